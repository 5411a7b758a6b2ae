import keras
import numpy as np
import pytest
from helpers import array, check_layer, output_and_gradients

from keras_recsys.layers import NumericEmbedding

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 2)).astype("float32")


def embedding_loop(x, kernel):
    """The formula of the docstring, one number at a time."""
    out = np.zeros((*x.shape, kernel.shape[1]))
    for b, f in np.ndindex(x.shape):
        out[b, f] = x[b, f] * kernel[f]
    return out


def test_contract(tmp_path):
    check_layer(
        lambda: NumericEmbedding(
            4, kernel_initializer="he_normal", kernel_regularizer="l2"
        ),
        X,
        tmp_path,
    )


@pytest.mark.parametrize("num_numbers", [1, 2])
def test_equals_the_loop(num_numbers):
    x = X[:, :num_numbers]
    layer = NumericEmbedding(4)
    layer.build(x.shape)
    kernel = RNG.normal(size=(num_numbers, 4))
    layer.set_weights([kernel])
    coef = RNG.normal(size=(3, num_numbers, 4))
    output, gradients = output_and_gradients(layer, x, coef, wrt_inputs=True)
    np.testing.assert_allclose(output, embedding_loop(x, kernel), rtol=1e-5)
    for f in range(num_numbers):
        np.testing.assert_allclose(
            gradients[0][:, f], coef[:, f] @ kernel[f], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(
            gradients[1][f], x[:, f] @ coef[:, f], rtol=1e-4, atol=1e-5
        )


def test_by_hand():
    layer = NumericEmbedding(2)
    layer.build((None, 2))
    layer.set_weights([np.array([[1, 2], [10, 20]])])
    got = array(layer(np.array([[3.0, -1.0]])))
    np.testing.assert_array_equal(got, [[[3, 6], [-10, -20]]])


def test_kernel_is_regularized():
    layer = NumericEmbedding(2, kernel_initializer="ones", kernel_regularizer="l2")
    layer(X)
    assert float(array(layer.losses[0])) == pytest.approx(0.01 * 4)


@pytest.mark.parametrize("shape", [(2,), (2, 3, 4)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"\(batch_size, num_numbers\).*\(2,"):
        NumericEmbedding(4)(np.ones(shape, "float32"))


def test_says_what_was_given():
    with pytest.raises(TypeError, match="`output_dim` must be an integer.*=2.5"):
        NumericEmbedding(2.5)
    with pytest.raises(ValueError, match="`output_dim` must be at least 1.*=0"):
        NumericEmbedding(0)
    with pytest.raises(ValueError, match=r"static num_numbers.*\(None, None\)"):
        NumericEmbedding(2)(keras.Input((None,)))
