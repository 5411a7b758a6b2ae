import keras
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
from keras_recsys.models import build_dcn

SMALL = {"embedding_dim": 3, "hidden_units": (5, 4)}
WAYS = [
    {"version": "v1"},
    {"version": "v2", "projection_dim": 2, "structure": "stacked"},
]


@pytest.mark.parametrize("arguments", WAYS, ids=["v1", "v2"])
def test_contract(arguments, tmp_path):
    check_model(
        lambda **names: build_dcn(
            FEATURES,
            **SMALL,
            **arguments,
            dropout=0.3,
            seed=1,
            embeddings_regularizer="l2",
            cross_regularizer="l2",
            **names,
        ),
        X,
        tmp_path,
    )


def cross_loop(twin, start, version, num_layers, projection_dim):
    """The formula of the docstring, one layer at a time."""
    x = start
    for i in range(num_layers):
        if version == "v1":
            kernel, bias = (weights[i] for weights in twin.weights("cross"))
            x = start * (x @ kernel) + bias + x
            continue
        cross = twin.model.get_layer(f"dcn_cross_{i}")
        projected = x
        if projection_dim is not None:
            (down,) = cross.down_proj_dense.get_weights()
            projected = x @ down.astype("float64")
        kernel, bias = (w.astype("float64") for w in cross.dense.get_weights())
        x = start * (projected @ kernel + bias) + x
    return x


@pytest.mark.parametrize("hidden_units", [(5, 4), ()])
@pytest.mark.parametrize(
    ("names", "arguments"),
    [
        (IDS + NUMBERS, {"version": "v1", "num_cross_layers": 3}),
        (IDS + NUMBERS, {}),
        (IDS + NUMBERS, {"structure": "stacked"}),
        (IDS, {"projection_dim": 2, "num_cross_layers": 3}),
        (NUMBERS, {"projection_dim": 1, "structure": "stacked"}),
        (NUMBERS, {"version": "v1", "num_cross_layers": 1}),
        (("item",), {}),
    ],
)
def test_equals_the_loop(names, arguments, hidden_units):
    def logit(twin):
        vectors = [twin.vector(name) for name in twin.x if name in IDS]
        start = np.concatenate([*vectors, twin.numbers()])
        crossed = cross_loop(
            twin,
            start,
            arguments.get("version", "v2"),
            arguments.get("num_cross_layers", 2),
            arguments.get("projection_dim"),
        )
        if arguments.get("structure") == "stacked":
            return twin.unit(twin.hidden(crossed, len(hidden_units)))
        deep = twin.hidden(start, len(hidden_units))
        return twin.unit(np.concatenate([crossed, deep]))

    model = build_dcn(
        chosen(names)[0], embedding_dim=3, hidden_units=hidden_units, **arguments
    )
    check_twin(model, logit)


def test_parameters_by_hand():
    features = [CategoricalFeature("a", 7), NumericFeature("n"), *simple(1)]
    dim = 2 * 3 + 1
    shared = (7 + 10) * 3 + (dim + 1) * 5 + (5 + 1) * 4 + (dim + 4) + 1
    count = {
        (version, rank): build_dcn(
            features, **SMALL, version=version, projection_dim=rank
        ).count_params()
        for version, rank in (("v1", None), ("v2", None), ("v2", 2))
    }
    assert count["v1", None] == shared + 2 * (dim + dim)
    assert count["v2", None] == shared + 2 * (dim * dim + dim)
    assert count["v2", 2] == shared + 2 * (dim * 2 + 2 * dim + dim)
    stacked = build_dcn(features, **SMALL, structure="stacked")
    assert stacked.count_params() == count["v2", None] - dim


@pytest.mark.parametrize(("arguments", "kernels"), zip(WAYS, (1, 4), strict=True))
def test_cross_kernels_are_regularized(arguments, kernels):
    model = build_dcn(
        simple(), **SMALL, **arguments, cross_regularizer=keras.regularizers.L2(1.0)
    )
    assert len(model.losses) == kernels


@pytest.mark.parametrize("arguments", [*WAYS, {"hidden_units": ()}])
def test_missing_number_is_loud(arguments):
    check_missing_number_is_loud(build_dcn, **{**SMALL, **arguments})


def test_gradients_of_tables_are_sparse():
    model = build_dcn(FEATURES, **SMALL, embeddings_regularizer="l2")
    check_sparse_gradients(model, tables=5)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_cross_layers_learn_a_product_of_two_features(version):
    settings = {"embedding_dim": 4, "hidden_units": (), "version": version}
    assert learned_auc(build_dcn, **settings) > 0.97


@pytest.mark.parametrize(
    ("features", "arguments", "message"),
    [
        ([], {}, "`features` must hold at least one feature"),
        (simple(), {"version": "v3"}, "`version` must be one of 'v1', 'v2'.*'v3'"),
        (simple(), {"structure": "deep"}, "`structure` must be one of.*'deep'"),
        (simple(), {"num_cross_layers": 0}, "`num_cross_layers` must be.*=0"),
        (simple(), {"projection_dim": 0}, "`projection_dim` must be.*=0"),
        (
            simple(),
            {"version": "v1", "projection_dim": 2},
            "`projection_dim` must be None.*projection_dim=2, structure='parallel'",
        ),
        (
            simple(),
            {"version": "v1", "structure": "stacked"},
            "`structure` 'parallel' where `version` is 'v1'.*structure='stacked'",
        ),
        (simple(), {"dropout": 1.0}, r"`dropout` must be a number in \[0, 1\).*1.0"),
    ],
)
def test_says_what_was_given(features, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_dcn(features, **arguments)
