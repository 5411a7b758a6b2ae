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
    simple,
)
from helpers import array, check_model, randomize

from keras_recsys.features import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
)
from keras_recsys.models import build_deepfm, build_fm, build_fnn

SMALL = {"embedding_dim": 3, "hidden_units": (5, 4)}


def test_contract(tmp_path):
    check_model(
        lambda **names: build_fnn(
            FEATURES,
            **SMALL,
            dropout=0.3,
            seed=1,
            embeddings_regularizer="l2",
            **names,
        ),
        X,
        tmp_path,
    )


@pytest.mark.parametrize("names", [IDS + NUMBERS, IDS, NUMBERS, ("item",)])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_equals_the_loop(names, activation):
    activate = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0)}[activation]

    def logit(twin):
        # Each field has its weight in front of its vector.
        both = np.hstack([twin.fields("linear", np.add), twin.fields()])
        return twin.unit(twin.hidden(both.ravel(), 2, activate))

    features, _ = chosen(names)
    check_twin(build_fnn(features, **SMALL, activation=activation), logit)


def test_without_hidden_layers():
    def logit(twin):
        both = np.hstack([twin.fields("linear", np.add), twin.fields()])
        return twin.unit(both.ravel())

    check_twin(build_fnn(FEATURES, embedding_dim=3, hidden_units=()), logit)


def test_linear_weights_start_at_zero():
    model = build_fnn(FEATURES, **SMALL)
    parts = [x for x in model.layers if x.name.startswith("fnn_linear") and x.weights]
    assert len(parts) == 5
    assert not any(np.any(w) for part in parts for w in part.get_weights())


def test_takes_over_a_trained_machine():
    machine = build_fm(FEATURES, embedding_dim=3, name="trained")
    randomize(machine, np.random.default_rng(1))
    model = build_fnn(FEATURES, **SMALL, pretrained=machine)
    taken = 0
    for layer in machine.layers:
        part = layer.name.removeprefix("trained_")
        part = "linear-vectors" if part == "linear-numbers" else part
        if layer.weights:
            mine = model.get_layer(f"fnn_{part}").get_weights()
            for a, b in zip(mine, layer.get_weights(), strict=True):
                np.testing.assert_array_equal(a, b)
                taken += 1
    assert taken == len(machine.weights) == 15
    # So the machine can be told from the fields of the network, number for number.
    fields = keras.Model(
        model.input,
        [model.get_layer(f"fnn_{part}").output for part in ("linear", "fields")],
    )
    weights, vectors = (array(x).astype("float64") for x in fields(X))
    pairs = (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(-1, keepdims=True) / 2
    (bias,) = model.get_layer("fnn_probability").get_weights()
    logit = weights.sum(1) + pairs + bias
    want = array(machine(X)["probability"])
    np.testing.assert_allclose(1 / (1 + np.exp(-logit)), want, rtol=1e-5)


def test_copies_weights_and_shares_none():
    machine = build_fm(simple(), embedding_dim=3)
    model = build_fnn(simple(), **SMALL, pretrained=machine)
    assert not {id(w) for w in machine.weights} & {id(w) for w in model.weights}


def numbers(*names):
    return [NumericFeature(name) for name in names]


@pytest.mark.parametrize(
    ("features", "arguments", "wrong"),
    [
        (simple(), {"embedding_dim": 4}, "'fields-tables' does not fit"),
        (simple(2), {}, r"'input' does not fit: names \['c0', 'c1'\]"),
        (simple()[::-1], {}, r"names \['c2', 'c1', 'c0'\], and not \['c0',"),
        (simple(3, 11), {}, r"vocab_sizes \(11, 11, 11\), and not \(10, 10, 10\)"),
        (
            [CategoricalFeature("c0", 10, out_of_range="oov"), *simple()[1:]],
            {},
            "does not fit",
        ),
    ],
)
def test_refuses_a_machine_that_does_not_fit(features, arguments, wrong):
    machine = build_fm(features, **{"embedding_dim": 3, **arguments})
    with pytest.raises(ValueError, match=f"`pretrained` must be.*{wrong}"):
        build_fnn(simple(), **SMALL, pretrained=machine)


def test_refuses_fields_of_the_same_shape_in_another_place():
    sizes = [CategoricalFeature("a", 3), CategoricalFeature("b", 4)]
    swapped = [CategoricalFeature("a", 4), CategoricalFeature("b", 3)]
    with pytest.raises(ValueError, match=r"vocab_sizes \(4, 3\), and not \(3, 4\)"):
        build_fnn(sizes, **SMALL, pretrained=build_fm(swapped, embedding_dim=3))
    machine = build_fm(numbers("n", "m"), embedding_dim=3)
    with pytest.raises(ValueError, match=r"names \['n', 'm'\], and not \['m', 'n'\]"):
        build_fnn(numbers("m", "n"), **SMALL, pretrained=machine)


def test_refuses_what_is_no_machine():
    with pytest.raises(ValueError, match="`pretrained` must be.*'fm.keras'"):
        build_fnn(simple(), **SMALL, pretrained="fm.keras")
    other = build_fnn(numbers("n", "m"), **SMALL)
    with pytest.raises(ValueError, match="'linear-numbers' does not fit"):
        build_fnn(numbers("n", "m"), **SMALL, pretrained=other)


def test_a_model_with_the_weights_of_a_machine_is_taken():
    deep = build_deepfm(simple(), **SMALL)
    model = build_fnn(simple(), **SMALL, pretrained=deep)
    np.testing.assert_array_equal(
        array(model.get_layer("fnn_fields-tables").embeddings),
        array(deep.get_layer("deepfm_fields-tables").embeddings),
    )


def test_missing_number_is_loud():
    check_missing_number_is_loud(build_fnn, **SMALL, activation="relu")


def test_gradients_of_tables_are_sparse():
    model = build_fnn(FEATURES, **SMALL, embeddings_regularizer="l2")
    check_sparse_gradients(model, tables=10)


@pytest.mark.parametrize(
    ("features", "arguments", "message"),
    [
        ([], {}, "`features` must hold at least one feature"),
        (simple(), {"embedding_dim": 0}, "`embedding_dim` must be.*=0"),
        (simple(), {"dropout": 1.0}, r"`dropout` must be a number in \[0, 1\).*1.0"),
    ],
)
def test_says_what_was_given(features, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_fnn(features, **arguments)


@pytest.mark.parametrize(
    ("features", "others"),
    [
        (
            [NumericFeature("x", normalization="zscore", mean=5.0, std=2.0)],
            [NumericFeature("x", normalization="log")],
        ),
        (
            [SequenceFeature("x", 4, pooling="sum")],
            [SequenceFeature("x", 4, pooling="mean")],
        ),
    ],
)
def test_refuses_features_that_are_read_in_another_way(features, others):
    features, others = (
        [*some, CategoricalFeature("a", 4)] for some in (features, others)
    )
    with pytest.raises(ValueError, match="`pretrained` must be.*settings"):
        build_fnn(features, **SMALL, pretrained=build_fm(others, embedding_dim=3))
