import keras
import numpy as np
import pytest
from attention_twins import (
    WEIGHTINGS,
    check_any_shape,
    check_directions,
    check_graph,
    check_outer_products,
    long_history,
    random_mask,
    target_loop,
)
from helpers import BACKEND, FLOATS, array, check_layer, output_and_gradients, tensor
from twins import DTYPE, check_twin

from keras_recsys.layers import TargetAttention

RNG = np.random.default_rng(0)
QUERY = RNG.normal(size=(4, 3)).astype("float32")
VALUE = RNG.normal(size=(4, 5, 3)).astype("float32")
# All real; holes, padding first; one item; no history.
MASK = np.array([[1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
MASK = MASK.astype(bool)
INPUTS = (QUERY, VALUE)
NOISE = np.array([np.nan, np.inf, 7.0])
SEEDED = keras.initializers.HeNormal(seed=2)


def built(*shapes, seed=1, **arguments):
    layer = TargetAttention(**arguments)
    layer.build(*(shapes or (QUERY.shape, VALUE.shape)))
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])
    return layer


def test_contract(tmp_path):
    check_layer(
        lambda: TargetAttention(
            (5, 2),
            interactions=("query", "value", "product"),
            activation="tanh",
            attention_activation="sigmoid",
            normalize="sqrt_len",
            kernel_initializer=SEEDED,
            bias_initializer="ones",
            kernel_regularizer="l2",
        ),
        INPUTS,
        tmp_path,
        call={"value_mask": MASK},
    )


def test_contract_of_one_hidden_layer(tmp_path):
    check_layer(
        lambda: TargetAttention((4,), attention_activation="sigmoid"),
        INPUTS,
        tmp_path,
        call={"value_mask": MASK},
    )


def test_equals_the_loop():
    check_twin(
        TargetAttention((3, 2), dtype=DTYPE),
        INPUTS,
        lambda *x: target_loop(*x, mask=MASK, activation="linear")[0],
        call={"value_mask": MASK},
    )


@pytest.mark.parametrize("units", [(4,), (3, 2)], ids=["one_layer", "two_layers"])
@pytest.mark.parametrize(("activation", "normalize"), WEIGHTINGS)
def test_all_weightings_in_blocks_and_in_one(activation, normalize, units):
    if BACKEND == "jax" and (len(units) == 1 or normalize != "sum"):
        pytest.skip("takes long to compile; the other attention has the same code")
    rng = np.random.default_rng(0)
    arguments = {"attention_activation": activation, "normalize": normalize}
    length = 70 if len(units) == 1 else 5
    mask = random_mask(rng, 9, length)
    named = {"activation": activation, "normalize": normalize, "mask": mask}
    check_directions(
        TargetAttention(units, dtype=DTYPE, **arguments),
        (rng.normal(size=(9, 3)), rng.normal(size=(9, length, 3))),
        lambda *x: target_loop(*x, **named),
        mask,
    )


@pytest.mark.parametrize(
    ("interactions", "activation"),
    [
        (("difference", "product"), "sigmoid"),
        (("query", "value"), "relu"),
        (("query", "product"), "tanh"),
        (("query", "difference"), "sigmoid"),
    ],
)
def test_some_interactions_equal_the_loop(interactions, activation):
    act = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}
    named = {"act": act[activation]} if activation in act else {}
    named |= {"mask": MASK, "interactions": interactions, "activation": "linear"}
    check_directions(
        TargetAttention(
            (4,), interactions=interactions, activation=activation, dtype=DTYPE
        ),
        INPUTS,
        lambda *x: target_loop(*x, **named),
        MASK,
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("units", "length"), [((6,), 90), ((6, 4), 20)])
def test_factored_equals_plain(units, length, dtype):
    rng = np.random.default_rng(length)
    inputs = [rng.normal(size=(9, 8)), rng.normal(size=(9, length, 8))]
    inputs = [x.astype(dtype) for x in inputs]
    mask = random_mask(rng, 9, length)
    layer = built(
        *(x.shape for x in inputs),
        hidden_units=units,
        attention_activation="softmax",
        dtype=dtype,
    )
    got = layer(*inputs, mask, return_attention_scores=True)
    sources = [*inputs, *(array(w) for w in layer.weights)]
    sources = [x.astype("float64") for x in sources]
    want = target_loop(*sources, mask=mask, activation="softmax")
    limit = 1e-12 if dtype == "float64" else 2e-5
    for a, b in zip(got, want, strict=True):
        assert np.abs(array(a) - b).max() <= limit * max(1, np.abs(b).max())


@pytest.mark.parametrize("activation", ["sigmoid", "linear"])
def test_by_hand(activation):
    """One unit that reads the product with the target, -log 3 and log 3."""
    layer = TargetAttention((1,), activation=activation)
    value = np.array([[[-np.log(3.0)], [np.log(3.0)], [9.0]]], "float32")
    one = np.ones((1, 1), "float32")
    layer.build(one.shape, value.shape)
    kernel = np.array([[0.0], [0.0], [0.0], [1.0]])
    layer.set_weights([kernel, np.zeros(1), np.array([[4.0]]), np.array([-1.0])])
    mask = np.array([[True, True, False]])
    pooled, weights = layer(one, value, mask, return_attention_scores=True)
    # 4 * 1/4 - 1 and 4 * 3/4 - 1.
    want = [0.0, 2.0] if activation == "sigmoid" else 4 * value[0, :2, 0] - 1
    np.testing.assert_allclose(array(weights), [[*want, 0.0]], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(array(pooled), [want @ value[0, :2]], rtol=1e-5)


def test_weights_by_hand():
    """Scores 1 and 2, then padding: 1 / (1 + e) and e / (1 + e)."""
    layer = TargetAttention((1,), interactions=("value",), activation="linear")
    value = np.array([[[1.0], [2.0], [0.0], [0.0]]], "float32")
    mask = np.array([[True, True, False, False]])
    for activation, normalize, want in (
        ("softmax", None, [0.268941, 0.731059]),
        ("sigmoid", None, [0.731059, 0.880797]),
        ("sigmoid", "sum", [0.453551, 0.546449]),
        ("linear", "sqrt_len", [0.707107, 1.414214]),
    ):
        layer = TargetAttention(
            (1,),
            interactions=("value",),
            activation="linear",
            attention_activation=activation,
            normalize=normalize,
            kernel_initializer="ones",
        )
        _, weights = layer(value[:, 0], value, mask, return_attention_scores=True)
        np.testing.assert_allclose(array(weights), [[*want, 0, 0]], rtol=1e-5)


@pytest.mark.parametrize("units", [(4,), (4, 2)])
def test_nothing_under_the_mask_matters(units):
    layer = built(hidden_units=units, attention_activation="softmax")
    call = {"value_mask": MASK, "return_attention_scores": True}
    results = []
    for noise in (0.0, NOISE):
        noisy = np.where(MASK[..., None], VALUE, noise).astype("float32")
        outputs, gradients = output_and_gradients(
            layer, (QUERY, noisy), call=call, wrt_inputs=True
        )
        assert not gradients[1][~MASK].any()
        results.append([*outputs, *gradients])
    for got, want in zip(*results, strict=True):
        np.testing.assert_array_equal(got, want)
    pooled, weights = results[0][:2]
    assert not weights[~MASK].any()
    assert not pooled[3].any()
    np.testing.assert_allclose(weights.sum(1), [1, 1, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(pooled[2], VALUE[2, 2], rtol=1e-6)
    full = array(layer(*INPUTS, MASK | True))
    np.testing.assert_array_equal(array(layer(*INPUTS)), full)


@pytest.mark.parametrize("units", [(4,), (4, 2)])
def test_history_of_one_item(units):
    layer = built(hidden_units=units, attention_activation="softmax")
    one = VALUE[:, :1]
    pooled, weights = layer(QUERY, one, return_attention_scores=True)
    np.testing.assert_array_equal(array(weights), np.ones((4, 1)))
    np.testing.assert_allclose(array(pooled), one[:, 0], rtol=1e-6)
    _, gradients = output_and_gradients(layer, (QUERY, one))
    assert not any(gradient.any() for gradient in gradients)  # the weight is fixed


@pytest.mark.parametrize("units", [(5,), (5, 2)])
def test_any_shape(units):
    layer = TargetAttention(units, attention_activation="sigmoid", normalize="sum")
    check_any_shape(layer, 1, 3, np.random.default_rng(0))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="reads a TensorFlow graph")
@pytest.mark.parametrize("units", [(5,), (5, 2)])
def test_graph_holds_no_concatenation_of_the_history(units):
    check_graph(TargetAttention(units), 1, 11, 5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="reads a TensorFlow graph")
@pytest.mark.parametrize("units", [(5,), (5, 2)])
def test_gradients_are_no_outer_products_by_matmul(units):
    check_outer_products(TargetAttention(units), 1)


@pytest.mark.parametrize("activation", ["sigmoid", "relu"])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_long_sums_in_half_precision(policy, activation):
    query, value = long_history("float32", np.random.default_rng(0))
    named = {"act": lambda x: np.maximum(x, 0)} if activation == "relu" else {}
    layer = built(
        query.shape,
        value.shape,
        hidden_units=(2,),
        activation=activation,
        attention_activation="sigmoid",
        normalize="sum",
        dtype=policy,
    )
    layer.set_weights([np.round(w * 16) / 16 for w in layer.get_weights()])
    pooled, weights = layer(query, value, return_attention_scores=True)
    sources = [x.astype("float64") for x in (query, value, *layer.get_weights())]
    want, _ = target_loop(*sources, activation="sigmoid", normalize="sum", **named)
    np.testing.assert_allclose(array(pooled), want, rtol=1e-2)
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    np.testing.assert_allclose(array(weights).sum(), 1.0, rtol=1e-4)


def test_scores_beyond_float16_stay_finite():
    # 120,000 is no float16, and in float32 large scores are rounded.
    layer = TargetAttention(
        (2,),
        interactions=("value",),
        activation="relu",
        attention_activation="softmax",
        kernel_initializer="ones",
        dtype="mixed_float16",
    )
    value = np.array([[[60_000.0], [1.0], [60_000.0]]])
    _, weights = layer(value[:, 0], value, return_attention_scores=True)
    np.testing.assert_allclose(array(weights), [[0.5, 0.0, 0.5]], atol=5e-3)


def test_keras_fills_in_the_mask_and_ends_it():
    ids = np.array([[1, 2, 0, 0], [0, 3, 0, 4]], "int32")
    layer = built(attention_activation="softmax", hidden_units=(4,))
    value = keras.layers.Embedding(9, 3, mask_zero=True)(ids)
    output = layer(QUERY[:2], value)
    want = layer(QUERY[:2], array(value), ids > 0)
    np.testing.assert_array_equal(array(output), array(want))
    assert getattr(output, "_keras_mask", None) is None


def test_weights_are_an_output_of_a_saved_model(tmp_path):
    query, value = keras.Input((3,)), keras.Input((None, 3))
    mask = keras.Input((None,), dtype="bool")
    layer = TargetAttention((4, 2), attention_activation="softmax")
    outputs = layer(query, value, value_mask=mask, return_attention_scores=True)
    assert [tuple(x.shape) for x in outputs] == [(None, 3), (None, None)]
    model = keras.Model([query, value, mask], outputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = [*map(tensor, INPUTS), tensor(MASK)]
    for got, want in zip(loaded(inputs), model(inputs), strict=True):
        np.testing.assert_array_equal(array(got), array(want))


def test_all_kernels_of_one_seeded_initializer_differ():
    seeded = keras.initializers.RandomNormal(seed=1)
    layer = TargetAttention((3, 3, 3), kernel_initializer=seeded)
    layer.build(QUERY.shape, VALUE.shape)
    starts = np.stack([array(kernel).ravel()[:3] for kernel in layer.kernels])
    assert len({tuple(row) for row in starts.round(6)}) == 4


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"attention_activation": "relu"}, "`attention_activation` must be one of"),
        ({"normalize": "mean"}, "`normalize` must be None, 'sum' or.*'mean'"),
        ({"normalize": "sum"}, "`normalize` must be None where.*'sum'.*='linear'"),
        ({"hidden_units": ()}, r"`hidden_units` must be a list.*=\(\)"),
        ({"hidden_units": (4, 0)}, "`hidden_units` must be at least 1.*=0"),
        ({"interactions": ("query",)}, r"`interactions` must be some.*=\('query',\)"),
        ({"interactions": ()}, r"`interactions` must be some.*interactions=\(\)"),
        ({"interactions": ("product", "value")}, r"in this order.*'product', 'value'"),
        ({"interactions": ("value", "sum")}, "`interactions` must be some.*'sum'"),
        ({"interactions": "product"}, "`interactions` must be some.*='product'"),
    ],
)
def test_says_what_was_given(given, text):
    with pytest.raises(ValueError, match=text):
        TargetAttention(**given)


def test_says_what_type_was_given():
    with pytest.raises(TypeError, match="`hidden_units` must be an integer.*=2.5"):
        TargetAttention((2.5,))


@pytest.mark.parametrize(
    "shapes", [((2, 3), (2, 3)), ((2, 3), (2, 5, None)), ((2, 4), (2, 5, 3))]
)
def test_says_what_shapes_were_given(shapes):
    with pytest.raises(ValueError, match=r"`TargetAttention` takes.*value_shape=\("):
        TargetAttention().build(*shapes)


@pytest.mark.parametrize("seq_len", [5, 70])
def test_one_query_stands_for_all_rows(seq_len):
    rng = np.random.default_rng(0)
    value = rng.normal(size=(11, seq_len, 3)).astype("float32")
    query = rng.normal(size=(1, 3)).astype("float32")
    layer = TargetAttention((4,))
    want = array(layer(np.repeat(query, 11, axis=0), value))
    np.testing.assert_allclose(array(layer(query, value)), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("units", [(4,), (4, 2)])
@pytest.mark.parametrize("mask", [None, MASK[1:2]])
def test_one_history_stands_for_all_queries(units, mask):
    layer = built(hidden_units=units)
    value = VALUE[1:2]
    coef = np.random.default_rng(0).normal(size=QUERY.shape)
    call = {} if mask is None else {"value_mask": mask}
    got, gradients = output_and_gradients(
        layer, (QUERY, value), coef, call=call, wrt_inputs=True
    )
    rows = {key: np.repeat(x, len(QUERY), axis=0) for key, x in call.items()}
    repeated = (QUERY, np.repeat(value, len(QUERY), axis=0))
    want, wants = output_and_gradients(
        layer, repeated, coef, call=rows, wrt_inputs=True
    )
    wants[1] = wants[1].sum(axis=0, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    for a, b in zip(gradients, wants, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_says_what_mask_was_given():
    value = np.ones((2, 5, 3), "float32")
    for shape in [(2, 1), (1, 5), (2, 4), (2, 5, 1)]:
        with pytest.raises(ValueError, match=r"`value_mask` must be of shape"):
            TargetAttention((4,))(value[:, 0], value, value_mask=np.ones(shape, bool))
