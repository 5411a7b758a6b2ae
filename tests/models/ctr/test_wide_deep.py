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
    output_of,
    simple,
)
from helpers import array, check_model

from keras_recsys.models import build_wide_deep

SMALL = {"embedding_dim": 3, "hidden_units": (5, 4)}
# No part has all features, and `city` and `price` are in both.
PARTS = {
    "wide": ["user", "city", "price"],
    "deep": ("count", "item", "price", "genres", "city"),
}


def test_contract(tmp_path):
    check_model(
        lambda **names: build_wide_deep(
            FEATURES,
            **SMALL,
            **PARTS,
            dropout=0.3,
            seed=1,
            embeddings_regularizer="l2",
            linear_regularizer="l2",
            **names,
        ),
        X,
        tmp_path,
    )


@pytest.mark.parametrize(
    ("names", "arguments"),
    [
        (IDS + NUMBERS, {}),
        (IDS + NUMBERS, PARTS),
        (IDS + NUMBERS, {"wide": ["count"], "hidden_units": ()}),
        (IDS + NUMBERS, {"deep": ["price", "count"]}),
        (IDS + NUMBERS, {"wide": NUMBERS, "deep": IDS}),
        (IDS, {"wide": ("user",)}),
        (NUMBERS, {}),
        (("item",), {}),
    ],
)
def test_equals_the_loop(names, arguments):
    features, _ = chosen(names)
    in_order = [feature.name for feature in features]
    settings = {**SMALL, **arguments}
    wide = [n for n in in_order if n in settings.get("wide", in_order)]
    deep = [n for n in in_order if n in settings.get("deep", in_order)]

    def logit(twin):
        vectors = [twin.vector(name) for name in deep if name in IDS]
        x = np.concatenate([*vectors, twin.numbers(deep)])
        layers = len(settings["hidden_units"])
        return twin.linear(wide) + twin.unit(twin.hidden(x, layers))

    check_twin(build_wide_deep(features, **settings), logit)


def test_order_and_repetition_of_names_do_not_matter():
    twice = {"wide": ["price", "city", "user", "city"], "deep": PARTS["deep"][::-1]}
    one = build_wide_deep(FEATURES, **SMALL, **PARTS)
    two = build_wide_deep(FEATURES, **SMALL, **twice)
    two.set_weights(one.get_weights())
    np.testing.assert_array_equal(
        array(one(X)["probability"]), array(two(X)["probability"])
    )


def test_a_part_has_tables_of_its_features_alone():
    model = build_wide_deep(FEATURES, **SMALL, **PARTS)
    names = {layer.name for layer in model.layers}
    assert "wide_deep_linear_user" in names
    assert "wide_deep_fields_user" not in names
    assert "wide_deep_linear_genres" not in names
    assert output_of(model, "flatten").output_shape == (None, 3 * 3)
    tables = 13 + (5 + 1) + (9 + 6 + 5 + 1) * 3  # the linear weights; the vectors
    network = (3 * 3 + 2 + 1) * 5 + (5 + 1) * 4 + 4
    assert model.count_params() == tables + 1 + network + 1


@pytest.mark.parametrize(
    "arguments",
    [{}, {"wide": ["item"]}, {"wide": ["price"], "deep": ["item", "count"]}],
)
def test_missing_number_is_loud(arguments):
    check_missing_number_is_loud(build_wide_deep, **SMALL, **arguments)


def test_gradients_of_tables_are_sparse():
    model = build_wide_deep(FEATURES, **SMALL, embeddings_regularizer="l2")
    check_sparse_gradients(model, tables=10)


@pytest.mark.parametrize(
    ("features", "arguments", "message"),
    [
        ([], {}, "`features` must hold at least one feature"),
        (simple(), {"wide": ["c9"]}, r"`wide` must hold names.*'c2'\].*=\['c9'\]"),
        (simple(), {"deep": ()}, r"`deep` must hold names.*deep=\[\]"),
        (simple(), {"wide": "c0"}, r"`wide` must hold names.*=\['c', '0'\]"),
        (
            simple(),
            {"wide": ["c0"], "deep": ["c2"]},
            r"in `wide` or.*\['c1'\] in neither",
        ),
        (simple(), {"embedding_dim": 0}, "`embedding_dim` must be.*=0"),
        (simple(), {"dropout": 1.0}, r"`dropout` must be a number in \[0, 1\).*1.0"),
    ],
)
def test_says_what_was_given(features, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_wide_deep(features, **arguments)
