import keras
import numpy as np
import pytest
from helpers import array, check_layer
from twins import DTYPE, check_twin

from keras_recsys.layers import CrossNetwork

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4)).astype("float32")


def cross_loop(x, kernel, bias):
    """The formula of the docstring, one row and layer at a time."""
    out = np.zeros(x.shape)
    for b, first in enumerate(x):
        one = first
        for weights, offset in zip(kernel, bias, strict=True):
            one = first * (one @ weights) + offset + one
        out[b] = one
    return out


def test_contract(tmp_path):
    check_layer(
        lambda: CrossNetwork(
            3,
            kernel_initializer="he_normal",
            bias_initializer="ones",
            kernel_regularizer="l2",
        ),
        X,
        tmp_path,
    )


@pytest.mark.parametrize("num_layers", [1, 2, 5])
def test_equals_the_loop(num_layers):
    check_twin(CrossNetwork(num_layers, dtype=DTYPE), X, cross_loop)


def test_by_hand():
    layer = CrossNetwork(2)
    layer.build((None, 2))
    layer.set_weights([np.array([[1, 0], [0, 1]]), np.array([[1, 1], [0, 10]])])
    # x_1 = 2 [2, 3] + [1, 1] + [2, 3] = [7, 10]; x_2 = 10 [2, 3] + [0, 10] + x_1
    np.testing.assert_array_equal(array(layer(np.array([[2.0, 3.0]]))), [[27, 50]])


def test_no_weights_give_the_input():
    layer = CrossNetwork(3, kernel_initializer="zeros")
    np.testing.assert_array_equal(array(layer(X)), X)
    assert layer.count_params() == 2 * 3 * 4


def test_every_layer_starts_as_a_kernel_of_its_own():
    layer = CrossNetwork(3, kernel_initializer=keras.initializers.GlorotNormal(seed=1))
    layer.build((None, 5000))
    kernel = layer.get_weights()[0]
    for row in kernel:
        assert row.std() == pytest.approx((2 / 5001) ** 0.5, rel=0.05)
    assert np.abs(np.corrcoef(kernel) - np.eye(3)).max() < 0.1


@pytest.mark.parametrize("shape", [(2,), (2, 3, 4)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"\(batch_size, dim\).*input_shape=\(2,"):
        CrossNetwork()(np.ones(shape, "float32"))


def test_says_what_was_given():
    with pytest.raises(TypeError, match="`num_layers` must be an integer.*=1.5"):
        CrossNetwork(1.5)
    with pytest.raises(ValueError, match="`num_layers` must be at least 1.*=0"):
        CrossNetwork(0)
    with pytest.raises(ValueError, match=r"static dim.*\(None, None\)"):
        CrossNetwork()(keras.Input((None,)))
