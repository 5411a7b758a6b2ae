import numpy as np
import pytest
from helpers import array, check_layer, output_and_gradients
from twins import DTYPE, assert_near, check_twin

from keras_recsys.layers import FieldAwareFactorizationMachine

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 4, 2)).astype("float32")
MASK = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 1]], bool)


def ffm_loop(x, mask=None):
    """The sum of the docstring, one pair at a time."""
    out = np.zeros((len(x), 1))
    for b, i, j in np.ndindex(x.shape[:3]):
        if i < j and (mask is None or (mask[b, i] and mask[b, j])):
            out[b] += x[b, i, j] @ x[b, j, i]
    return out


@pytest.mark.parametrize("x", [X, X.reshape(3, 4, 8)], ids=["square", "flat"])
def test_contract(x, tmp_path):
    check_layer(
        lambda: FieldAwareFactorizationMachine(),
        x,
        tmp_path,
        call={"mask": MASK},
        gradients=False,
    )


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
def test_equals_the_loop(mask):
    call = None if mask is None else {"mask": mask}
    layer = FieldAwareFactorizationMachine(dtype=DTYPE)
    check_twin(layer, X, lambda x: ffm_loop(x, mask), call=call)
    check_twin(
        FieldAwareFactorizationMachine(dtype=DTYPE),
        X.reshape(3, 4, 8),
        lambda x: ffm_loop(x.reshape(3, 4, 4, 2), mask),
        call=call,
    )


def test_by_hand():
    x = np.zeros((1, 3, 3, 2), "float32")
    x[0, 0, 1], x[0, 1, 0] = [1, 2], [3, 4]
    x[0, 0, 2], x[0, 2, 0] = [1, 0], [7, 9]
    x[0, 1, 2], x[0, 2, 1] = [0, 5], [9, 1]
    for f in range(3):
        x[0, f, f] = 100  # faces itself: no part of the sum
    got = array(FieldAwareFactorizationMachine()(x))
    np.testing.assert_array_equal(got, [[3 + 8 + 7 + 5]])


def test_noise_at_masked_fields_changes_nothing():
    layer = FieldAwareFactorizationMachine()
    layer.build(X.shape)
    kept = MASK[:, :, None, None]
    noisy = np.where(kept, X, np.nan).astype("float32")
    want = output_and_gradients(layer, np.where(kept, X, 0), wrt_inputs=True)
    got = output_and_gradients(layer, noisy, call={"mask": MASK}, wrt_inputs=True)
    assert_near(got[0], want[0])
    assert_near(got[1][0], np.where(kept, want[1][0], 0))
    assert_near(got[0][2], 0)  # one field has no pair
    assert layer.compute_mask(X, MASK) is None


@pytest.mark.parametrize(
    "shape", [(2, 1, 1, 4), (2, 4), (2, 3, 4, 5), (2, 3, 5), (2, 1, 4)]
)
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"at least two fields.*input_shape=\("):
        FieldAwareFactorizationMachine()(np.ones(shape, "float32"))
