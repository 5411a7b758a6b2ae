import keras
import numpy as np
import pytest
from attention_twins import (
    check_any_shape,
    check_directions,
    check_graph,
    gru_step,
    long_history,
    memory_loop,
    random_mask,
    target_loop,
)
from helpers import BACKEND, array, check_layer, output_and_gradients, tensor
from twins import DTYPE, check_twin

from keras_recsys.layers import IterativeMemory, TargetAttention

RNG = np.random.default_rng(0)
QUERY = RNG.normal(size=(4, 3)).astype("float32")
VALUE = RNG.normal(size=(4, 5, 3)).astype("float32")
# All real; holes, padding first; one item; no history.
MASK = np.array([[1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
MASK = MASK.astype(bool)
NOISE = np.array([np.nan, np.inf, 7.0])
SEEDED = keras.initializers.HeNormal(seed=2)


class HistoryAlone(keras.layers.Layer):
    """A layer that makes no use of its target, called without one."""

    def __init__(self, layer):
        super().__init__(dtype=layer.dtype_policy)
        self.layer = layer

    def build(self, value_shape):
        if not self.layer.built:
            self.layer.build((value_shape[0], value_shape[2]), value_shape)

    def call(self, value, value_mask=None, return_attention_scores=False):
        kwargs = {"return_attention_scores": return_attention_scores}
        query = keras.ops.zeros_like(value[:, 0])
        return self.layer(query, value, value_mask, **kwargs)


def built(*shapes, seed=1, scale=0.7, **arguments):
    layer = IterativeMemory(**arguments)
    layer.build(*(shapes or (QUERY.shape, VALUE.shape)))
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=w.shape, scale=scale) for w in layer.weights])
    return layer


def test_contract(tmp_path):
    check_layer(
        lambda: IterativeMemory(
            2,
            5,
            normalize="sqrt_len",
            use_target=False,
            use_subtraction=False,
            share_pass_weights=False,
            return_memories=True,
            reset_after=True,
            gate_bias_initializer="zeros",
            kernel_initializer=SEEDED,
            kernel_regularizer="l2",
        ),
        (QUERY, VALUE),
        tmp_path,
        call={"value_mask": MASK},
    )


def test_equals_the_loop():
    check_twin(
        IterativeMemory(2, 2, normalize="sqrt_len", dtype=DTYPE),
        (QUERY, VALUE),
        lambda *x: memory_loop(*x, mask=MASK, num_passes=2, normalize="sqrt_len")[0][
            :, -1
        ],
        call={"value_mask": MASK},
    )


@pytest.mark.parametrize(
    ("length", "arguments"),
    [
        (70, {"normalize": "sum"}),
        (5, {"share_pass_weights": False, "reset_after": True}),
        (70, {"attention_activation": "softmax", "share_pass_weights": False}),
        (5, {"score_mode": "dot", "attention_activation": "softmax"}),
        (5, {"use_target": False}),
    ],
    ids=["shared", "own", "own_softmax", "dot", "memory_alone"],
)
def test_all_passes_equal_the_loop(length, arguments):
    if BACKEND == "jax":
        length = 5  # a block is compiled for itself, and has been for one attention
    rng = np.random.default_rng(0)
    query, value = rng.normal(size=(9, 3)), rng.normal(size=(9, length, 3))
    mask = random_mask(rng, 9, length)
    named = {"attention_activation": "activation", "normalize": "normalize"}
    named = {named[key]: x for key, x in arguments.items() if key in named}
    named |= {"mask": mask, "use_target": arguments.get("use_target", True)}
    layer = IterativeMemory(3, 4, return_memories=True, dtype=DTYPE, **arguments)
    if named["use_target"]:
        check_directions(
            layer, (query, value), lambda *x: memory_loop(*x, **named), mask
        )
    else:
        check_directions(
            HistoryAlone(layer),
            (value,),
            lambda x, *w: memory_loop(x[:, 0], x, *w, **named),
            mask,
        )


def test_one_pass_is_din_and_one_step_of_the_gru():
    layer = built(num_passes=1, hidden_dim=4)
    kernel, *rest = layer.get_weights()
    a, b, c, d = np.split(kernel, 4)
    din = TargetAttention(
        (4,), interactions=("difference", "product"), attention_activation="sigmoid"
    )
    din.build(QUERY.shape, VALUE.shape)
    din.set_weights([np.concatenate([a + c, b + d]), *rest[:3]])
    memory, weights = layer(QUERY, VALUE, MASK, return_attention_scores=True)
    pooled, want = din(QUERY, VALUE, MASK, return_attention_scores=True)
    np.testing.assert_allclose(array(weights)[:, 0], array(want), rtol=1e-5, atol=1e-6)
    want = gru_step(array(pooled), QUERY, *rest[3:])
    np.testing.assert_allclose(array(memory), want, rtol=1e-5, atol=1e-5)
    # The target alone is attended to by the same blocks: A + C, B + D.
    sources = [QUERY, VALUE, *din.get_weights()]
    want = target_loop(
        *sources,
        mask=MASK,
        interactions=("difference", "product"),
        activation="sigmoid",
    )
    np.testing.assert_allclose(array(pooled), want[0], rtol=1e-5, atol=1e-5)


def test_by_hand():
    """Every score is 0, every weight 1/2, and the GRU takes half of the candidate."""
    layer = IterativeMemory(2, gate_bias_initializer="zeros", return_memories=True)
    query, value = np.array([[1.0]], "float32"), np.array([[[3.0], [1.0]]], "float32")
    layer.build((1, 1), (1, 2, 1))
    weights = [np.zeros(w.shape) for w in layer.weights]
    weights[-3] = np.array([[0.0, 0.0, 0.25]])  # candidate = tanh(u / 4), u = 2
    layer.set_weights(weights)
    memories, scores = layer(query, value, return_attention_scores=True)
    np.testing.assert_allclose(array(scores), np.full((1, 2, 2), 0.5))
    first = 0.5 + 0.5 * np.tanh(0.5)
    want = [[[first], [0.5 * first + 0.5 * np.tanh(0.5)]]]
    np.testing.assert_allclose(array(memories), want, rtol=1e-6)


def test_memory_is_fed_back():
    layer = built(num_passes=2)
    _, weights = layer(QUERY, VALUE, MASK, return_attention_scores=True)
    first, second = np.moveaxis(array(weights), 1, 0)
    assert np.abs(first - second)[MASK].min() > 1e-4


def test_order_of_the_items_does_not_matter():
    layer = built()
    want, weights = layer(QUERY, VALUE, MASK, return_attention_scores=True)
    order = np.array([3, 0, 4, 1, 2])
    got, moved = layer(
        QUERY, VALUE[:, order], MASK[:, order], return_attention_scores=True
    )
    np.testing.assert_allclose(array(got), array(want), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        array(moved), array(weights)[:, :, order], rtol=1e-5, atol=1e-6
    )


def test_nothing_under_the_mask_matters():
    for use_target in (True, False):
        layer = built(use_target=use_target, normalize="sum")
        target = layer
        if not use_target:
            target = HistoryAlone(layer)
            target.build(VALUE.shape)
        call = {"value_mask": MASK, "return_attention_scores": True}
        results = []
        for noise in (0.0, NOISE):
            noisy = np.where(MASK[..., None], VALUE, noise).astype("float32")
            outputs, gradients = output_and_gradients(
                target,
                (QUERY, noisy) if use_target else (noisy,),
                call=call,
                wrt_inputs=True,
            )
            assert not gradients[int(use_target)][~MASK].any()
            results.append([*outputs, *gradients])
        for got, want in zip(*results, strict=True):
            np.testing.assert_array_equal(got, want)
        weights = results[0][1]
        assert not weights[np.broadcast_to(~MASK[:, None], weights.shape)].any()
        full = array(layer(QUERY, VALUE, MASK | True))
        np.testing.assert_array_equal(array(layer(QUERY, VALUE)), full)


def test_empty_history_depends_on_the_target_alone():
    layer = built()
    none = np.zeros_like(MASK)
    got, weights = layer(QUERY, VALUE, none, return_attention_scores=True)
    assert not array(weights).any()
    other = layer(QUERY, -VALUE[:, :2], none[:, :2])
    np.testing.assert_array_equal(array(got), array(other))
    want = QUERY
    for _ in range(3):
        want = gru_step(np.zeros_like(want), want, *layer.get_weights()[-3:])
    np.testing.assert_allclose(array(got), want, rtol=1e-5, atol=1e-6)


def test_any_shape():
    layer = IterativeMemory(2, 5, attention_activation="softmax")
    check_any_shape(layer, 1, 3, np.random.default_rng(0))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="reads a TensorFlow graph")
def test_graph_holds_no_concatenation_of_the_history():
    check_graph(IterativeMemory(3, 5), 1, 11, 5)


@pytest.mark.skipif(BACKEND == "jax", reason="takes long to compile, as one attention")
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_long_sums_in_half_precision(policy):
    query, value = long_history("float32", np.random.default_rng(0))
    layer = built(
        query.shape,
        value.shape,
        num_passes=1,
        hidden_dim=2,
        normalize="sum",
        dtype=policy,
    )
    layer.set_weights([np.round(w * 16) / 16 for w in layer.get_weights()])
    memory, weights = layer(query, value, return_attention_scores=True)
    sources = [x.astype("float64") for x in (query, value, *layer.get_weights())]
    want, shares = memory_loop(*sources, num_passes=1, normalize="sum")
    np.testing.assert_allclose(array(memory), want[:, 0], rtol=2e-2, atol=2e-2)
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    np.testing.assert_allclose(array(weights), shares, rtol=2e-2)
    np.testing.assert_allclose(array(weights).sum(), 1.0, rtol=1e-4)


def test_weights_are_an_output_of_a_saved_model(tmp_path):
    query, value = keras.Input((3,)), keras.Input((None, 3))
    mask = keras.Input((None,), dtype="bool")
    layer = IterativeMemory(2, 4, return_memories=True)
    outputs = layer(query, value, value_mask=mask, return_attention_scores=True)
    assert [tuple(x.shape) for x in outputs] == [(None, 2, 3), (None, 2, None)]
    model = keras.Model([query, value, mask], outputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = [tensor(QUERY), tensor(VALUE), tensor(MASK)]
    for got, want in zip(loaded(inputs), model(inputs), strict=True):
        np.testing.assert_array_equal(array(got), array(want))


@pytest.mark.parametrize("reset_after", [False, True])
def test_gates_start_open(reset_after):
    layer = IterativeMemory(reset_after=reset_after)
    layer.build((None, 3), (None, None, 3))
    want = np.repeat([1.0, 1.0, 0.0], 3)
    bias = array(layer.gru.bias)
    np.testing.assert_array_equal(bias, [want, 0 * want] if reset_after else want)


def test_kernels_of_the_passes_differ():
    for seed in (1, None):
        layer = IterativeMemory(
            3,
            share_pass_weights=False,
            kernel_initializer=keras.initializers.RandomNormal(seed=seed),
        )
        layer.build((None, 3), (None, None, 3))
        assert len(layer.attentions) == 3
        kernels = [layer.gru.kernel]
        for attention in layer.attentions:
            kernels += [attention.kernel, attention.score_kernel]
        starts = {tuple(array(kernel).ravel()[:9].round(6)) for kernel in kernels}
        assert len(starts) == 7
    assert len(IterativeMemory(3).attentions) == 1


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"num_passes": 0}, "`num_passes` must be at least 1.*=0"),
        ({"hidden_dim": 0}, "`hidden_dim` must be at least 1.*=0"),
        ({"attention_activation": "relu"}, "`attention_activation` must be one of"),
        ({"normalize": "mean"}, "`normalize` must be None, 'sum' or.*'mean'"),
        ({"score_mode": "mlp"}, "`score_mode` must be one of.*'mlp'"),
    ],
)
def test_says_what_was_given(given, text):
    with pytest.raises(ValueError, match=text):
        IterativeMemory(**given)


def test_says_what_type_was_given():
    with pytest.raises(TypeError, match="`num_passes` must be an integer.*=2.5"):
        IterativeMemory(2.5)


@pytest.mark.parametrize(
    "shapes", [((2, 3), (2, 3)), ((2, 3), (2, 5, None)), ((2, 4), (2, 5, 3))]
)
def test_says_what_shapes_were_given(shapes):
    with pytest.raises(ValueError, match=r"`IterativeMemory` takes.*value_shape=\("):
        IterativeMemory().build(*shapes)
