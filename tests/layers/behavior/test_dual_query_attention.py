import keras
import numpy as np
import pytest
from attention_twins import (
    WEIGHTINGS,
    check_any_shape,
    check_directions,
    check_graph,
    check_outer_products,
    dual_query_loop,
    long_history,
    random_mask,
)
from helpers import BACKEND, FLOATS, array, check_layer, output_and_gradients, tensor
from twins import DTYPE, check_twin

from keras_recsys.layers import DualQueryAttention, TargetAttention

RNG = np.random.default_rng(0)
QUERY, MEMORY = RNG.normal(size=(2, 4, 3)).astype("float32")
VALUE = RNG.normal(size=(4, 5, 3)).astype("float32")
# All real; holes, padding first; one item; no history.
MASK = np.array([[1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
MASK = MASK.astype(bool)
INPUTS = (QUERY, MEMORY, VALUE)
NOISE = np.array([np.nan, np.inf, 7.0])
SEEDED = keras.initializers.HeNormal(seed=2)


class MemoryAlone(keras.layers.Layer):
    """A layer that makes no use of its target, called without one."""

    def __init__(self, layer):
        super().__init__(dtype=layer.dtype_policy)
        self.layer = layer

    def build(self, memory_shape, value_shape):
        self.layer.build(memory_shape, memory_shape, value_shape)

    def call(self, memory, value, value_mask=None, return_attention_scores=False):
        kwargs = {"return_attention_scores": return_attention_scores}
        query = keras.ops.zeros_like(memory)
        return self.layer(query, memory, value, value_mask, **kwargs)


def built(*shapes, seed=1, **arguments):
    layer = DualQueryAttention(**arguments)
    layer.build(*(shapes or (x.shape for x in INPUTS)))
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])
    return layer


def test_contract(tmp_path):
    check_layer(
        lambda: DualQueryAttention(
            5,
            normalize="sqrt_len",
            use_target=False,
            use_subtraction=False,
            kernel_initializer=SEEDED,
            bias_initializer="ones",
            kernel_regularizer="l2",
        ),
        INPUTS,
        tmp_path,
        call={"value_mask": MASK},
    )


def test_equals_the_loop():
    check_twin(
        DualQueryAttention(2, normalize="sum", dtype=DTYPE),
        INPUTS,
        lambda *x: dual_query_loop(*x, mask=MASK, normalize="sum")[0],
        call={"value_mask": MASK},
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"use_target": False},
        {"use_target": False, "use_subtraction": False},
        {"use_target": False, "score_mode": "dot"},
    ],
    ids=["difference", "products", "dot"],
)
def test_memory_alone_equals_the_loop(arguments):
    named = {key: x for key, x in arguments.items() if key != "score_mode"}
    check_directions(
        MemoryAlone(DualQueryAttention(4, dtype=DTYPE, **arguments)),
        (MEMORY, VALUE),
        lambda *x: dual_query_loop(MEMORY, *x, mask=MASK, **named),
        MASK,
    )


@pytest.mark.parametrize(
    ("activation", "arguments"),
    [
        ("softmax", {"score_mode": "dot"}),
        ("linear", {"score_mode": "dot", "normalize": "sqrt_len"}),
        ("sigmoid", {"use_subtraction": False}),
    ],
)
def test_other_scores_equal_the_loop(activation, arguments):
    named = {key: x for key, x in arguments.items() if key != "score_mode"}
    check_directions(
        DualQueryAttention(
            4, attention_activation=activation, dtype=DTYPE, **arguments
        ),
        INPUTS,
        lambda *x: dual_query_loop(*x, mask=MASK, activation=activation, **named),
        MASK,
    )


@pytest.mark.parametrize(("activation", "normalize"), WEIGHTINGS)
def test_all_weightings_in_blocks_and_in_one(activation, normalize):
    rng = np.random.default_rng(0)
    arguments = {"attention_activation": activation, "normalize": normalize}
    for length in (5, 70):
        if length == 70 and BACKEND == "jax" and normalize != "sum":
            continue  # each is compiled, for many seconds
        inputs = [rng.normal(size=(9, 3)) for _ in range(2)]
        inputs.append(rng.normal(size=(9, length, 3)))
        mask = random_mask(rng, 9, length)
        named = {"activation": activation, "normalize": normalize, "mask": mask}
        check_directions(
            DualQueryAttention(4, dtype=DTYPE, **arguments),
            tuple(inputs),
            lambda *x, named=named: dual_query_loop(*x, **named),
            mask,
        )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("length", [20] if BACKEND == "jax" else [20, 90])
def test_factored_equals_plain(length, dtype):
    rng = np.random.default_rng(length)
    inputs = [rng.normal(size=(9, 8)), rng.normal(size=(9, 8))]
    inputs = [x.astype(dtype) for x in (*inputs, rng.normal(size=(9, length, 8)))]
    mask = random_mask(rng, 9, length)
    layer = built(*(x.shape for x in inputs), dtype=dtype, normalize="sum")
    got = layer(*inputs, mask, return_attention_scores=True)
    weights = [array(w).astype("float64") for w in layer.weights]
    inputs = [x.astype("float64") for x in inputs]
    want = dual_query_loop(*inputs, *weights, mask=mask, normalize="sum")
    limit = 1e-12 if dtype == "float64" else 2e-5
    for a, b in zip(got, want, strict=True):
        assert np.abs(array(a) - b).max() <= limit * max(1, np.abs(b).max())


def test_equals_din_where_both_queries_are_the_target():
    layer = built(hidden_dim=4)
    kernel, *rest = layer.get_weights()
    a, b, c, d = np.split(kernel, 4)
    din = TargetAttention(
        (4,), interactions=("difference", "product"), attention_activation="sigmoid"
    )
    din.build(QUERY.shape, VALUE.shape)
    din.set_weights([np.concatenate([a + c, b + d]), *rest])
    got = layer(QUERY, QUERY, VALUE, MASK, return_attention_scores=True)
    want = din(QUERY, VALUE, MASK, return_attention_scores=True)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(array(x), array(y), rtol=1e-5, atol=1e-6)


def test_by_hand():
    """One hidden unit that reads the product with the target: sigmoid(v k) = 3/4."""
    layer = DualQueryAttention(1, attention_activation="linear")
    value = np.array([[[np.log(3.0)], [-np.log(3.0)], [9.0]]], "float32")
    one = np.ones((1, 1), "float32")
    layer.build(one.shape, one.shape, value.shape)
    kernel = np.array([[0.0], [1.0], [0.0], [0.0]])
    layer.set_weights([kernel, np.zeros(1), np.array([[4.0]]), np.array([-1.0])])
    mask = np.array([[True, True, False]])
    pooled, weights = layer(one, one, value, mask, return_attention_scores=True)
    # 4 * 3/4 - 1 and 4 * 1/4 - 1.
    np.testing.assert_allclose(array(weights), [[2.0, 0.0, 0.0]], atol=1e-6)
    np.testing.assert_allclose(array(pooled), [[2 * np.log(3.0)]], rtol=1e-6)
    # The first row is the difference of the target: 1 - log 3 and 1 + log 3.
    layer.set_weights([kernel[::-1][[2, 0, 1, 3]], *layer.get_weights()[1:]])
    _, weights = layer(one, one, value, mask, return_attention_scores=True)
    want = [4 / (1 + np.exp(-1 + x)) - 1 for x in (np.log(3.0), -np.log(3.0))]
    np.testing.assert_allclose(array(weights)[0, :2], want, rtol=1e-5)


def test_normalize_by_hand():
    # Without weights every score is 0 and every sigmoid 1/2, of three items.
    mask = np.array([[True, False, True, True, False]])
    value = VALUE[:1]
    items = value[:, mask[0]].sum(1)
    for normalize, share in ((None, 0.5), ("sum", 1 / 3), ("sqrt_len", 0.5 / 3**0.5)):
        layer = DualQueryAttention(kernel_initializer="zeros", normalize=normalize)
        pooled, weights = layer(
            QUERY[:1], QUERY[:1], value, mask, return_attention_scores=True
        )
        np.testing.assert_allclose(array(weights), share * mask, rtol=1e-6)
        np.testing.assert_allclose(array(pooled), share * items, rtol=1e-5)


@pytest.mark.parametrize("score_mode", ["feed_forward", "dot"])
def test_nothing_under_the_mask_matters(score_mode):
    layer = built(score_mode=score_mode, attention_activation="softmax")
    call = {"value_mask": MASK, "return_attention_scores": True}
    results = []
    for noise in (0.0, NOISE):
        noisy = np.where(MASK[..., None], VALUE, noise).astype("float32")
        inputs = (QUERY, MEMORY, noisy)
        outputs, gradients = output_and_gradients(
            layer, inputs, call=call, wrt_inputs=True
        )
        assert not gradients[2][~MASK].any()
        results.append([*outputs, *gradients])
    for got, want in zip(*results, strict=True):
        np.testing.assert_array_equal(got, want)
    pooled, weights = results[0][:2]
    assert not weights[~MASK].any()
    assert not pooled[3].any()
    np.testing.assert_allclose(weights.sum(1), [1, 1, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(pooled[2], VALUE[2, 2], rtol=1e-6)
    # No mask is all real.
    full = array(layer(*INPUTS, MASK | True))
    np.testing.assert_array_equal(array(layer(*INPUTS)), full)


def test_history_of_one_item_and_of_none():
    for activation in ("softmax", "sigmoid"):
        layer = built(attention_activation=activation)
        one = VALUE[:, :1]
        pooled, weights = layer(QUERY, MEMORY, one, return_attention_scores=True)
        if activation == "softmax":
            np.testing.assert_array_equal(array(weights), np.ones((4, 1)))
        np.testing.assert_allclose(
            array(pooled), array(weights) * one[:, 0], rtol=1e-6, atol=1e-7
        )
        _, gradients = output_and_gradients(layer, (QUERY, MEMORY, one))
        assert all(np.isfinite(gradient).all() for gradient in gradients)
        none = array(layer(QUERY, MEMORY, VALUE, np.zeros_like(MASK)))
        np.testing.assert_array_equal(none, np.zeros((4, 3)))


def test_any_shape():
    layer = DualQueryAttention(5, attention_activation="softmax")
    check_any_shape(layer, 2, 3, np.random.default_rng(0), xla=True)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="reads a TensorFlow graph")
@pytest.mark.parametrize("score_mode", ["feed_forward", "dot"])
def test_gradients_are_no_outer_products_by_matmul(score_mode):
    check_outer_products(DualQueryAttention(score_mode=score_mode), 2)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="reads a TensorFlow graph")
def test_graph_holds_no_concatenation_of_the_history():
    check_graph(DualQueryAttention(5), 2, 11, 5)


@pytest.mark.parametrize("score_mode", ["feed_forward", "dot"])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_long_sums_in_half_precision(policy, score_mode):
    query, value = long_history("float32", np.random.default_rng(0))
    arguments = {"hidden_dim": 2, "normalize": "sum", "score_mode": score_mode}
    layer = built(
        query.shape, query.shape, value.shape, dtype=policy, seed=4, **arguments
    )
    layer.set_weights([np.round(w * 16) / 16 for w in layer.get_weights()])
    pooled, weights = layer(query, query, value, return_attention_scores=True)
    sources = [query, query, value, *layer.get_weights()]
    want = dual_query_loop(*(x.astype("float64") for x in sources), normalize="sum")
    np.testing.assert_allclose(array(pooled), want[0], rtol=1e-2)
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    np.testing.assert_allclose(array(weights).sum(), 1.0, rtol=1e-4)


def test_scores_beyond_float16_stay_finite():
    # 300 * 300 is no float16, and in float32 large scores are rounded.
    query, value = np.full((1, 4), 300.0), np.full((1, 3, 4), 300.0)
    value[0, 1] = -300.0
    layer = DualQueryAttention(
        score_mode="dot", attention_activation="softmax", dtype="mixed_float16"
    )
    _, weights = layer(query, query, value, return_attention_scores=True)
    np.testing.assert_allclose(array(weights), [[0.5, 0.0, 0.5]], atol=5e-3)


def test_keras_fills_in_the_mask_and_ends_it():
    ids = np.array([[1, 2, 0, 0], [0, 3, 0, 4]], "int32")
    layer = built(attention_activation="softmax")
    embedding = keras.layers.Embedding(9, 3, mask_zero=True)
    value = embedding(ids)
    output = layer(QUERY[:2], MEMORY[:2], value)
    want = layer(QUERY[:2], MEMORY[:2], array(value), ids > 0)
    np.testing.assert_array_equal(array(output), array(want))
    assert getattr(output, "_keras_mask", None) is None
    query = keras.Input((), dtype="int32")
    history = keras.Input((None,), dtype="int32")
    target = embedding(query)  # whose mask is of another rank
    output = layer(target, target, embedding(history))
    assert output.shape == (None, 3)
    model = keras.Model([query, history], output)
    got = array(model([np.array([5, 6], "int32"), ids]))
    x = array(embedding(np.array([5, 6], "int32")))
    want = array(layer(x, x, array(value), ids > 0))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_weights_are_an_output_of_a_saved_model(tmp_path):
    query, memory = keras.Input((3,)), keras.Input((3,))
    value, mask = keras.Input((None, 3)), keras.Input((None,), dtype="bool")
    layer = DualQueryAttention(4, normalize="sum", dtype="mixed_float16")
    outputs = layer(query, memory, value, mask, return_attention_scores=True)
    assert [tuple(x.shape) for x in outputs] == [(None, 3), (None, None)]
    assert [x.dtype for x in outputs] == ["float16", "float32"]
    model = keras.Model([query, memory, value, mask], outputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = [*map(tensor, INPUTS), tensor(MASK)]
    for got, want in zip(loaded(inputs), model(inputs), strict=True):
        np.testing.assert_array_equal(array(got), array(want))
        assert got.dtype == want.dtype
    inputs[2:] = tensor(VALUE[:, :2]), tensor(MASK[:, :2])
    assert array(loaded(inputs)[1]).shape == (4, 2)


def test_both_kernels_of_one_seeded_initializer_differ():
    seeded = keras.initializers.RandomNormal(seed=1)
    layer = DualQueryAttention(3, kernel_initializer=seeded)
    layer.build(*(x.shape for x in INPUTS))
    kernel, _, score_kernel, _ = layer.get_weights()
    assert not np.isclose(kernel.ravel()[:3], score_kernel.ravel()).any()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"attention_activation": "relu"}, "`attention_activation` must be one of"),
        ({"normalize": "mean"}, "`normalize` must be None, 'sum' or.*'mean'"),
        ({"score_mode": "mlp"}, "`score_mode` must be one of.*'mlp'"),
        ({"hidden_dim": 0}, "`hidden_dim` must be at least 1.*=0"),
        (
            {"attention_activation": "linear", "normalize": "sum"},
            "`normalize` must be None where.*normalize='sum'.*='linear'",
        ),
        (
            {"attention_activation": "softmax", "normalize": "sqrt_len"},
            "`normalize` must be None where.*='sqrt_len'.*='softmax'",
        ),
    ],
)
def test_says_what_was_given(given, text):
    with pytest.raises(ValueError, match=text):
        DualQueryAttention(**given)


def test_says_what_type_was_given():
    with pytest.raises(TypeError, match="`hidden_dim` must be an integer.*=2.5"):
        DualQueryAttention(2.5)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3), (2, 3), (2, 3)),
        ((2, 3), (2, 3), (2, 5, None)),
        ((2, 1, 3), (2, 3), (2, 5, 3)),
        ((2, 3), (2, 4), (2, 5, 3)),
    ],
)
def test_says_what_shapes_were_given(shapes):
    with pytest.raises(ValueError, match=r"`DualQueryAttention` takes.*value_shape=\("):
        DualQueryAttention().build(*shapes)
