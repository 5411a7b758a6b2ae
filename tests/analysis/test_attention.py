import keras
import numpy as np
import pytest

from keras_recsys.analysis import attention_entropy
from keras_recsys.layers import DualQueryAttention


def entropy_loop(weights):
    """Entropy of one history, one weight at a time."""
    total = sum(weights)
    shares = [x / total for x in weights if x > 0]
    return -sum(p * np.log2(p) for p in shares)


def test_by_hand():
    for weights, bits in (
        ([0.5, 0.5, 0.5, 0.5], 2.0),
        ([0.0, 0.3, 0.0], 0.0),
        ([2.0, 1.0, 1.0], 1.5),
        ([0.75, 0.25], 2 - 0.75 * np.log2(3)),
        ([0.0, 0.0], 0.0),
        ([1.0], 0.0),
        ([], 0.0),
    ):
        assert attention_entropy(weights) == pytest.approx(bits, abs=1e-15)


def test_equals_the_loop():
    rng = np.random.default_rng(0)
    weights = rng.random((3, 2, 7)) * (rng.random((3, 2, 7)) < 0.7)
    weights[..., 0] = 0.1
    got = attention_entropy(weights)
    assert got.shape == (3, 2)
    assert got.dtype == "float64"
    for place in np.ndindex(3, 2):
        assert got[place] == pytest.approx(entropy_loop(weights[place]), abs=1e-12)
    # Neither the scale nor more padding has a part in it.
    np.testing.assert_allclose(attention_entropy(1e3 * weights), got, atol=1e-12)
    padded = np.pad(weights, ((0, 0), (0, 0), (2, 5)))
    np.testing.assert_allclose(attention_entropy(padded), got, atol=1e-12)


def test_no_entropy_is_not_minus_zero():
    assert not np.signbit(attention_entropy([[1.0, 0.0], [0.0, 0.0]])).any()


@pytest.mark.parametrize("count", [1, 5, 16_384])
def test_equal_weights_spread_over_all(count):
    weights = np.full((1, count), 0.1, "float16")
    np.testing.assert_allclose(2 ** attention_entropy(weights), [count], rtol=1e-12)
    tensor = keras.ops.convert_to_tensor(weights)
    np.testing.assert_allclose(2 ** attention_entropy(tensor), [count], rtol=1e-12)


def test_of_what_a_layer_returns():
    rng = np.random.default_rng(0)
    query, value = rng.normal(size=(3, 2)), rng.normal(size=(3, 4, 2))
    mask = np.array([[1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]], bool)
    layer = DualQueryAttention(score_mode="dot", attention_activation="softmax")
    _, weights = layer(query, query, value, mask, return_attention_scores=True)
    bits = attention_entropy(weights)
    assert bits.shape == (3,)
    assert 0.5 < bits[0] <= np.log2(3)
    np.testing.assert_array_equal(bits[1:], 0.0)


@pytest.mark.parametrize("bad", [-0.5, np.nan, np.inf])
def test_says_what_weights_were_given(bad):
    with pytest.raises(ValueError, match=rf"`weights` must be finite.*{bad}"):
        attention_entropy([0.5, bad])
