import numpy as np
import pytest
from helpers import array, check_layer

from keras_recsys.layers import SequencePooling

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 5, 3)).astype("float32")
MASK = np.array([[1, 1, 0, 0, 0], [0, 1, 0, 1, 1], [1] * 5, [0] * 5], bool)


def pool_loop(x, mask, pooling):
    """The formula of the docstring, one sequence at a time, in float64."""
    out = np.zeros((len(x), x.shape[2]))
    for b, steps in enumerate(x.astype("float64")):
        kept = steps[mask[b]]
        if len(kept):
            divisor = {"sum": 1, "mean": len(kept), "sqrtn": len(kept) ** 0.5}[pooling]
            out[b] = kept.sum(axis=0) / divisor
    return out


@pytest.mark.parametrize("pooling", ["mean", "sum", "sqrtn"])
def test_contract(pooling, tmp_path):
    check_layer(lambda: SequencePooling(pooling), X, tmp_path, gradients=False)


@pytest.mark.parametrize("pooling", ["mean", "sum", "sqrtn"])
def test_equals_the_loop(pooling):
    got = array(SequencePooling(pooling)(X, mask=MASK))
    np.testing.assert_allclose(got, pool_loop(X, MASK, pooling), rtol=1e-5, atol=1e-6)
    got = array(SequencePooling(pooling)(X))
    want = pool_loop(X, np.ones_like(MASK), pooling)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_by_hand():
    x = np.array([[[3.0], [5.0], [100.0]]], "float32")
    mask = np.array([[True, True, False]])
    for pooling, want in (("sum", 8.0), ("mean", 4.0), ("sqrtn", 8 / 2**0.5)):
        got = array(SequencePooling(pooling)(x, mask=mask))
        np.testing.assert_allclose(got, [[want]], rtol=1e-6)


def test_padding_may_hold_anything():
    noisy = np.where(MASK[..., None], X, np.nan).astype("float32")
    got = array(SequencePooling()(noisy, mask=MASK))
    np.testing.assert_array_equal(got, array(SequencePooling()(X, mask=MASK)))
    np.testing.assert_array_equal(got[3], 0.0)


def test_bfloat16_counts_past_256():
    x = np.ones((1, 1000, 1), "float32")
    got = array(SequencePooling("sum", dtype="mixed_bfloat16")(x))
    np.testing.assert_allclose(got, [[1000.0]], rtol=4e-3)


def test_output_has_no_mask():
    assert SequencePooling().compute_mask(X, MASK) is None


def test_says_what_was_given():
    with pytest.raises(ValueError, match="`pooling` must be one of 'mean'.*'max'"):
        SequencePooling("max")
    with pytest.raises(ValueError, match=r"seq_len, dim\).*\(2, 3\)"):
        SequencePooling()(np.ones((2, 3), "float32"))
