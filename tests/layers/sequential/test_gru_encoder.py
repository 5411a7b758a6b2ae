import numpy as np
import pytest
from helpers import array, check_layer
from twins import DTYPE, assert_near

from keras_recsys.layers import GRUEncoder

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 2)).astype("float32")
# All real; holes, with padding first; no step.
MASK = np.array([[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]], bool)


def gru_loop(x, weights, mask, use_bias):
    """The recurrence of Keras with the reset gate after the product, in float64."""
    kernel, recurrent, *rest = weights
    bias = rest.pop(0) if use_bias else np.zeros((2, kernel.shape[1]))
    (dense, offset) = rest
    out = np.zeros((*x.shape[:2], dense.shape[1]))
    for b in range(len(x)):
        state = np.zeros(recurrent.shape[0])
        for t in np.flatnonzero(mask[b]):
            given = np.split(x[b, t] @ kernel + bias[0], 3)
            kept = np.split(state @ recurrent + bias[1], 3)
            update, reset = (1 / (1 + np.exp(-given[i] - kept[i])) for i in range(2))
            new = np.tanh(given[2] + reset * kept[2])
            state = update * state + (1 - update) * new
            out[b, t] = state @ dense + offset
    return out


def test_contract(tmp_path):
    check_layer(
        lambda: GRUEncoder(3, 5, use_bias=True), X, tmp_path, call={"mask": MASK}
    )


@pytest.mark.parametrize("use_bias", [False, True])
def test_equals_the_loop(use_bias):
    layer = GRUEncoder(3, 2, use_bias=use_bias, dtype=DTYPE)
    layer.build(X.shape)
    weights = [RNG.normal(size=w.shape) for w in layer.weights]
    layer.set_weights(weights)
    for mask in (MASK, None):
        kept = np.ones_like(MASK) if mask is None else mask
        want = gru_loop(X.astype("float64"), weights, kept, use_bias)
        got = layer(X.astype(DTYPE), mask=mask)
        assert_near(array(got), want, {"float64": 1e-9, "float32": 1e-5}[DTYPE])


def test_padding_may_be_anywhere_and_anything():
    layer = GRUEncoder(3, use_bias=True)
    layer.build(X.shape)
    layer.gru.cell.bias.assign(RNG.normal(size=(2, 9)))
    whole = array(layer(X))
    assert whole.shape == (3, 4, 3)
    wide, mask = np.full((3, 6, 2), np.nan, "float32"), np.zeros((3, 6), bool)
    wide[:, [0, 2, 3, 5]], mask[:, [0, 2, 3, 5]] = X, True
    got = array(layer(wide, mask=mask))
    np.testing.assert_allclose(got[:, [0, 2, 3, 5]], whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got[:, [1, 4]], 0.0)


def test_one_step_by_hand():
    layer = GRUEncoder(1)
    layer.build((None, None, 1))
    layer.set_weights([np.array([[0.0, 0.0, 2.0]]), np.zeros((1, 3))])
    # Half of the old state, 0, and half of tanh(2 x); then again.
    first = 0.5 * np.tanh(2.0)
    second = 0.5 * first + 0.5 * np.tanh(-4.0)
    got = array(layer(np.array([[[1.0], [-2.0]]], "float32")))
    np.testing.assert_allclose(got[0, :, 0], [first, second], rtol=1e-5)


def test_says_what_is_wrong():
    with pytest.raises(ValueError, match=r"`units`.*units=0"):
        GRUEncoder(0)
    with pytest.raises(TypeError, match=r"`output_dim`.*output_dim='a'"):
        GRUEncoder(2, "a")
    with pytest.raises(ValueError, match=r"input_shape=\(3, 4\)"):
        GRUEncoder(2)(X[:, :, 0])
