import numpy as np
import pytest
from click_twins import (
    FEATURES,
    IDS,
    NUMBERS,
    X,
    check_missing_number_is_loud,
    check_sparse_gradients,
    check_twin,
    chosen,
    learned_auc,
    simple,
)
from helpers import check_model

from keras_recsys.features import CategoricalFeature, NumericFeature
from keras_recsys.models import build_deepfm

SMALL = {"embedding_dim": 3, "hidden_units": (5, 4)}


def test_contract(tmp_path):
    check_model(
        lambda **names: build_deepfm(
            FEATURES,
            **SMALL,
            dropout=0.3,
            seed=1,
            numeric_inputs="dnn",
            embeddings_regularizer="l2",
            linear_regularizer="l2",
            **names,
        ),
        X,
        tmp_path,
    )


@pytest.mark.parametrize("hidden_units", [(5, 4), ()])
@pytest.mark.parametrize(
    ("names", "numeric_inputs"),
    [
        (IDS + NUMBERS, "field"),
        (IDS + NUMBERS, "dnn"),
        (IDS, "dnn"),
        (NUMBERS, "field"),
    ],
)
def test_equals_the_loop(names, numeric_inputs, hidden_units):
    def logit(twin):
        if numeric_inputs == "field":
            v = twin.fields()
            x = v.ravel()
        else:
            v = twin.fields(names=[name for name in twin.x if name in IDS])
            x = np.concatenate([v.ravel(), twin.numbers()])
        pairs = sum(v[i] @ v[j] for j in range(len(v)) for i in range(j))
        deep = twin.unit(twin.hidden(x, len(hidden_units)))
        return twin.linear() + pairs + deep

    model = build_deepfm(
        chosen(names)[0],
        embedding_dim=3,
        hidden_units=hidden_units,
        numeric_inputs=numeric_inputs,
    )
    check_twin(model, logit)


def test_parameters_by_hand():
    features = [CategoricalFeature("a", 7), NumericFeature("n"), *simple(1)]
    tables = (7 + 10) * (3 + 1)
    field = build_deepfm(features, **SMALL)
    network = (3 * 3 + 1) * 5 + (5 + 1) * 4 + 4
    assert field.count_params() == tables + (3 + 1) + network + 1
    dnn = build_deepfm(features, **SMALL, numeric_inputs="dnn", name="dnn")
    network = (2 * 3 + 1 + 1) * 5 + (5 + 1) * 4 + 4
    assert dnn.count_params() == tables + 1 + network + 1


@pytest.mark.parametrize(
    ("names", "numeric_inputs"),
    [(("item", "price"), "field"), (("item", "city", "price"), "dnn")],
)
def test_missing_number_is_loud(names, numeric_inputs):
    check_missing_number_is_loud(
        build_deepfm, names, **SMALL, numeric_inputs=numeric_inputs
    )


def test_gradients_of_tables_are_sparse():
    model = build_deepfm(FEATURES, **SMALL, embeddings_regularizer="l2")
    check_sparse_gradients(model, tables=10)


def test_learns_a_product_of_two_features():
    assert learned_auc(build_deepfm, **SMALL, seed=0) > 0.97


@pytest.mark.parametrize(
    ("features", "arguments", "message"),
    [
        ([], {}, "`features` must hold at least one feature"),
        (simple(1), {}, r"at least two fields.*\['c0'\]"),
        (
            [NumericFeature("a"), NumericFeature("b"), *simple(1)],
            {"numeric_inputs": "dnn"},
            r"at least two fields.*\['c0'\]",
        ),
        (simple(), {"numeric_inputs": "x"}, "`numeric_inputs` must be one of.*'x'"),
        (simple(), {"dropout": -0.1}, r"`dropout` must be a number in \[0, 1\).*-0.1"),
        (simple(), {"embedding_dim": 0}, "`embedding_dim` must be.*=0"),
    ],
)
def test_says_what_was_given(features, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_deepfm(features, **arguments)
