import numpy as np
import pytest
from behavior_twins import FEATURES, SMALL, X, check_twin
from helpers import check_model

from keras_recsys import CategoricalFeature, SequenceFeature
from keras_recsys.models import build_youtube_dnn


def test_contract_youtube_dnn(tmp_path):
    check_model(
        lambda **names: build_youtube_dnn(
            FEATURES, **SMALL, dropout=0.2, embeddings_regularizer="l2", seed=1, **names
        ),
        X,
        tmp_path,
    )


def test_equals_the_loop():
    def interests(twin):
        return [twin.value[0].sum(0) / max(twin.mask.sum(), 1)]

    check_twin(build_youtube_dnn(FEATURES, **SMALL), interests)


def test_parameters_by_hand():
    features = [
        CategoricalFeature("item", 7),
        SequenceFeature("seen", 7, table="item"),
        CategoricalFeature("user", 5),
    ]
    model = build_youtube_dnn(
        features,
        history={"seen": "item"},
        embedding_dim=3,
        num_positions=4,
        hidden_units=(6,),
    )
    tables = 3 * (7 + 5) + 3 * (4 + 1)
    assert model.count_params() == tables + (3 * 3 + 1) * 6 + 6 + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dropout": 1.0}, r"`dropout` must be a number in \[0, 1\).*1.0"),
        ({"embedding_dim": 0}, "`output_dim` must be at least 1.*=0"),
        ({"num_positions": 0}, "`max_len` must be at least 1.*=0"),
    ],
)
def test_says_what_was_given(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_youtube_dnn(FEATURES, **{**SMALL, **arguments})


def test_mean_by_hand():
    """Events 1 and 4 are (1, 4) in width one: their mean is 2.5, that of none 0."""
    features = [CategoricalFeature("item", 6), SequenceFeature("seen", 6, table="item")]
    model = build_youtube_dnn(
        features, history={"seen": "item"}, embedding_dim=1, hidden_units=()
    )
    model.get_layer("youtube_dnn_fields_item").set_weights([np.arange(6.0)[:, None]])
    model.get_layer("youtube_dnn_deep_logit").set_weights([np.array([[2.0], [-1.0]])])
    x = {"item": np.array([3, 3]), "seen": np.array([[1, 0, 4], [0, 0, 0]])}
    got = model.predict(x, verbose=0)["probability"][:, 0]
    want = 1 / (1 + np.exp(-np.array([2 * 2.5 - 3, -3.0])))
    np.testing.assert_allclose(got, want, rtol=1e-5)
