import numpy as np
import pytest
from helpers import array, check_layer, output_and_gradients
from twins import DTYPE, assert_near, check_twin

from keras_recsys.layers import FactorizationMachine

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 5, 4)).astype("float32")
MASK = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 1, 0]], bool)


def pooled_loop(x, mask=None):
    """The sum of the docstring, one pair at a time."""
    out = np.zeros((len(x), x.shape[2]))
    for b, i, j in np.ndindex(len(x), x.shape[1], x.shape[1]):
        if i < j and (mask is None or (mask[b, i] and mask[b, j])):
            out[b] += x[b, i] * x[b, j]
    return out


@pytest.mark.parametrize("reduction", ["sum", None])
def test_contract(reduction, tmp_path):
    check_layer(
        lambda: FactorizationMachine(reduction=reduction),
        X,
        tmp_path,
        call={"mask": MASK},
        gradients=False,
    )


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
@pytest.mark.parametrize("num_fields", [2, 5])
def test_equals_the_loop(num_fields, mask):
    x = X[:, :num_fields]
    mask = None if mask is None else mask[:, :num_fields]
    check_twin(
        FactorizationMachine(reduction=None, dtype=DTYPE),
        x,
        lambda x: pooled_loop(x, mask),
        call=None if mask is None else {"mask": mask},
    )
    check_twin(
        FactorizationMachine(dtype=DTYPE),
        x,
        lambda x: pooled_loop(x, mask).sum(axis=1, keepdims=True),
        call=None if mask is None else {"mask": mask},
    )


def test_by_hand():
    x = np.array([[[1, 2], [3, 4], [5, 6]]], "float32")
    # 1*3 + 1*5 + 3*5 and 2*4 + 2*6 + 4*6
    np.testing.assert_array_equal(
        array(FactorizationMachine(reduction=None)(x)), [[23, 44]]
    )
    np.testing.assert_array_equal(array(FactorizationMachine()(x)), [[67]])


@pytest.mark.parametrize("reduction", ["sum", None])
def test_noise_at_masked_fields_changes_nothing(reduction):
    layer = FactorizationMachine(reduction=reduction)
    layer.build(X.shape)
    zeroed = np.where(MASK[..., None], X, 0)
    noisy = np.where(MASK[..., None], X, np.nan).astype("float32")
    want = output_and_gradients(layer, zeroed, wrt_inputs=True)
    got = output_and_gradients(layer, noisy, call={"mask": MASK}, wrt_inputs=True)
    assert_near(got[0], want[0])
    assert_near(got[1][0], np.where(MASK[..., None], want[1][0], 0))
    assert_near(got[0][2], 0)  # one field has no pair
    assert layer.compute_mask(X, MASK) is None


def test_half_precision_sums_in_float32():
    # The squares of the sums are above float16, their difference is not.
    x = np.full((1, 2, 64), 40.0, "float32")
    x[:, 1] = 0.01
    got = array(FactorizationMachine(dtype="mixed_float16")(x))
    np.testing.assert_allclose(got, [[64 * 0.4]], rtol=1e-2)
    x = np.full((1, 300, 1), 1.0, "float32")
    got = array(FactorizationMachine(dtype="mixed_float16")(x))
    np.testing.assert_allclose(got, [[44850.0]], rtol=1e-3)


@pytest.mark.parametrize("shape", [(2, 1, 4), (2, 4), (2, 3, 4, 5)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"at least two fields.*input_shape=\("):
        FactorizationMachine()(np.ones(shape, "float32"))


def test_says_what_was_given():
    with pytest.raises(ValueError, match="`reduction` must be None or 'sum'.*'mean'"):
        FactorizationMachine(reduction="mean")
