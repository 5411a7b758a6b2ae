import keras
import numpy as np
import pytest
from helpers import array, check_layer
from twins import DTYPE, check_twin

from keras_recsys.layers import FieldOrder

X = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")


def order_loop(x, order):
    """The formula of the docstring, one field at a time."""
    out = np.zeros((len(x), len(order), x.shape[2]))
    for f, field in enumerate(order):
        out[:, f] = x[:, field]
    return out


def test_contract(tmp_path):
    check_layer(lambda: FieldOrder([3, 0, 3]), X, tmp_path, gradients=False)


@pytest.mark.parametrize("order", [[3, 1, 0, 2], [2], [0, 0, 1, 0, 3, 3]])
def test_equals_the_loop(order):
    check_twin(FieldOrder(order, dtype=DTYPE), X, lambda x: order_loop(x, order))


def test_by_hand():
    x = np.array([[[1, 2], [3, 4], [5, 6]]], "float32")
    got = array(FieldOrder(np.array([2, 0]))(x))
    np.testing.assert_array_equal(got, [[[5, 6], [1, 2]]])


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 5), (2, 2, 4)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"more than 2 fields.*input_shape=\(2,"):
        FieldOrder([0, 2])(np.ones(shape, "float32"))


def test_says_what_was_given():
    with pytest.raises(ValueError, match=r"at least one field. Received: order=\[\]"):
        FieldOrder([])
    with pytest.raises(ValueError, match="`order` must be at least 0.*order=-1"):
        FieldOrder([0, -1])
    with pytest.raises(TypeError, match="`order` must be an integer.*order=1.5"):
        FieldOrder([1.5])
    with pytest.raises(ValueError, match=r"more than 0 fields.*\(None, None, 3\)"):
        FieldOrder([0])(keras.Input((None, 3)))
