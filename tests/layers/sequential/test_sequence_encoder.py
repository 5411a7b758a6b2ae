import keras
import numpy as np
import pytest
from helpers import array, check_layer
from twins import DTYPE, assert_near

from keras_recsys.layers import SequenceEncoder

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 4)).astype("float32")
# All real; holes, with padding first; no step.
MASK = np.array([[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]], bool)


def norm_loop(x, gamma, beta):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-12) * gamma + beta


def encoder_loop(x, weights, mask, layer):
    """The formulas of the docstring, one step and head at a time."""
    weights = iter(weights)
    positions = next(weights)
    first = next(weights), next(weights)
    out = np.zeros(x.shape)
    for b in range(len(x)):
        steps = np.flatnonzero(mask[b])
        start = 0 if layer.align == "first" else layer.max_len - len(steps)
        for i, step in enumerate(steps):
            out[b, step] = norm_loop(x[b, step] + positions[start + i], *first)
    for _ in range(layer.num_layers):
        names = ("norm", "query", "key", "value", "mixed", "second", "inner", "outer")
        block = {name: (next(weights), next(weights)) for name in names}
        out = np.array(
            [
                block_loop(*row, block, layer.num_heads)
                for row in zip(out, mask, strict=True)
            ]
        )
    return out


def block_loop(x, mask, block, num_heads):
    def dense(name, vector):
        return vector @ block[name][0] + block[name][1]

    out, width = np.zeros_like(x), x.shape[1] // num_heads
    for i in np.flatnonzero(mask):
        joined = np.zeros(x.shape[1])
        for head in range(num_heads):
            part = slice(head * width, (head + 1) * width)
            others = [j for j in range(i + 1) if mask[j]]
            query = dense("query", x[i])[part]
            keys = np.array([dense("key", x[j])[part] for j in others])
            values = np.array([dense("value", x[j])[part] for j in others])
            shares = np.exp(keys @ query / width**0.5)
            joined[part] = shares / shares.sum() @ values
        y = norm_loop(x[i] + dense("mixed", joined), *block["norm"])
        hidden = np.tanh(dense("inner", y))
        out[i] = norm_loop(y + dense("outer", hidden), *block["second"])
    return out


ARGUMENTS = {
    "first": {"num_layers": 2, "num_heads": 2, "intermediate_dim": 3, "max_len": 6},
    "last": {"num_layers": 1, "num_heads": 1, "max_len": 4, "align": "last"},
}


@pytest.mark.parametrize("align", ARGUMENTS)
def test_contract(align, tmp_path):
    check_layer(
        lambda: SequenceEncoder(
            **ARGUMENTS[align], epsilon=1e-3, attention_dropout=0.3
        ),
        X,
        tmp_path,
        call={"mask": MASK},
    )


@pytest.mark.parametrize("align", ARGUMENTS)
def test_equals_the_loop(align):
    layer = SequenceEncoder(**ARGUMENTS[align], activation="tanh", dtype=DTYPE)
    layer.build(X.shape)
    weights = [RNG.normal(size=w.shape, scale=0.7) for w in layer.weights]
    layer.set_weights(weights)
    for mask in (MASK, None):
        got = layer(X.astype(DTYPE), mask=mask)
        kept = np.ones_like(MASK) if mask is None else mask
        want = encoder_loop(X.astype("float64"), weights, kept, layer)
        assert_near(array(got), want, {"float64": 1e-9, "float32": 1e-4}[DTYPE])


def test_steps_are_those_of_the_prefix_and_padding_may_be_anywhere():
    layer = SequenceEncoder(max_len=6)
    whole = array(layer(X[:1]))
    np.testing.assert_allclose(
        array(layer(X[:1, :3])), whole[:, :3], rtol=1e-5, atol=1e-5
    )
    wide, mask = np.full((1, 6, 4), np.nan, "float32"), np.zeros((1, 6), bool)
    wide[:, [0, 2, 3, 5]], mask[:, [0, 2, 3, 5]] = X[:1], True
    got = array(layer(wide, mask=mask))
    np.testing.assert_allclose(got[:, [0, 2, 3, 5]], whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got[:, [1, 4]], 0.0)


def test_all_states_are_those_of_the_blocks():
    layer = SequenceEncoder(3, max_len=4)
    states = layer(X, return_all_states=True)
    assert len(states) == 3
    np.testing.assert_array_equal(array(states[-1]), array(layer(X)))
    after = array(layer.blocks[2](states[1]))
    np.testing.assert_allclose(after, array(states[2]), rtol=1e-5, atol=1e-6)
    x = keras.Input((4, 4))
    model = keras.Model(x, layer(x, return_all_states=True))
    assert [tuple(out.shape) for out in model.outputs] == [(None, 4, 4)] * 3


def test_a_position_moves_the_step_by_hand():
    layer = SequenceEncoder(1, 1, max_len=2)
    layer.build((None, None, 4))
    for weight in layer.weights:
        if weight.name == "kernel":
            weight.assign(np.zeros(weight.shape))
    layer.positions.assign([[0, 0, 0, 0], [4, 0, 0, 0]])
    got = array(layer(np.array([[[1, -1, 1, -1], [-3, -1, 1, -1]]], "float32")))
    # Without kernels a block is two normalizations of a vector of mean 0, variance 1.
    np.testing.assert_allclose(got[0], [[1, -1, 1, -1]] * 2, atol=1e-5)


@pytest.mark.parametrize("dropout", [{"dropout": 0.5}, {"attention_dropout": 0.5}])
def test_dropout_acts_in_training_alone(dropout):
    layer = SequenceEncoder(max_len=4, seed=1, **dropout)
    assert np.any(array(layer(X, training=True)) != array(layer(X)))
    np.testing.assert_array_equal(array(layer(X)), array(layer(X)))


def test_no_step_sees_a_later_one_in_training():
    x = np.array(X[:1])
    x[:, 3] = 9.0
    layer = SequenceEncoder(max_len=4, dropout=0.2, seed=1)
    again = SequenceEncoder(max_len=4, dropout=0.2, seed=1)
    layer.build(x.shape)
    again.build(x.shape)
    again.set_weights(layer.get_weights())
    first, second = array(layer(X[:1], training=True)), array(again(x, training=True))
    np.testing.assert_allclose(first[:, :3], second[:, :3], rtol=1e-5, atol=1e-6)
    assert np.any(first[:, 3] != second[:, 3])


def test_says_what_is_wrong():
    with pytest.raises(ValueError, match=r"`align`.*align='middle'"):
        SequenceEncoder(align="middle")
    with pytest.raises(ValueError, match=r"`attention_dropout`.*1.0"):
        SequenceEncoder(attention_dropout=1.0)
    with pytest.raises(TypeError, match=r"`max_len`.*max_len=2.5"):
        SequenceEncoder(max_len=2.5)
    with pytest.raises(ValueError, match=r"at most max_len=3 steps.*Received: 4"):
        SequenceEncoder(max_len=3)(X)
    with pytest.raises(ValueError, match=r"`num_heads`.*num_heads=3"):
        SequenceEncoder(num_heads=3)(X)
    with pytest.raises(ValueError, match=r"input_shape=\(3, 4\)"):
        SequenceEncoder()(X[:, :, 0])
