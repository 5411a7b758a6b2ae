import json

import keras
import numpy as np
import pytest
from golden_files import golden, load
from helpers import FLOATS, array, check_layer, tensor
from twins import DTYPE, check_twin

from keras_recsys.layers import TokenEmbedding

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 5, 2)).astype("float32")


def token_loop(x, kernel, bias, padding):
    """The formula of the docstring, one step at a time, in float64."""
    length = x.shape[1]
    out = np.zeros((len(x), length, len(bias)))
    for b, t in np.ndindex(*out.shape[:2]):
        out[b, t] = bias
        for tap in range(3):
            place = t + tap - 1
            if padding == "circular" or 0 <= place < length:
                out[b, t] += x[b, place % length] @ kernel[tap]
    return out


@pytest.mark.parametrize("padding", ["circular", "same"])
def test_contract(padding, tmp_path):
    check_layer(
        lambda: TokenEmbedding(
            3,
            padding=padding,
            kernel_initializer="glorot_normal",
            bias_initializer="ones",
        ),
        X,
        tmp_path,
    )


@pytest.mark.parametrize("padding", ["circular", "same"])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_equals_the_loop(length, padding):
    check_twin(
        TokenEmbedding(3, padding=padding, dtype=DTYPE),
        RNG.normal(size=(2, length, 2)),
        lambda *sources: token_loop(*sources, padding),
    )


def test_by_hand():
    # 100 x_{t-1} + 10 x_t + x_{t+1} + 0.5
    x = np.array([[[1.0], [2.0], [3.0]]], "float32")
    kernel = np.array([100.0, 10.0, 1.0]).reshape(3, 1, 1)
    for padding, want in (
        ("circular", [312.5, 123.5, 231.5]),
        ("same", [12.5, 123.5, 230.5]),
    ):
        layer = TokenEmbedding(1, padding=padding)
        layer.build(x.shape)
        layer.set_weights([kernel, np.array([0.5])])
        np.testing.assert_array_equal(array(layer(x)).ravel(), want)


def test_initial_values_are_those_of_the_paper():
    layer = TokenEmbedding(4000)
    layer.build((None, None, 7))
    kernel, bias = map(array, layer.weights)
    deviation = (2 / 21) ** 0.5
    assert kernel.shape == (3, 7, 4000)
    assert abs(kernel.std() / deviation - 1) < 0.02
    assert np.abs(kernel).max() > 3 * deviation  # not truncated
    assert 0.99 * 21**-0.5 < np.abs(bias).max() <= 21**-0.5
    assert abs(bias.mean()) < 0.01
    again = TokenEmbedding.from_config(layer.get_config())
    again.build((None, None, 7))
    assert np.abs(array(again.weights[0]) - kernel).max() > deviation


def test_length_may_be_unknown():
    layer = TokenEmbedding(3)
    model = keras.Model(x := keras.Input((None, 2)), layer(x))
    assert model.output.shape == (None, None, 3)
    np.testing.assert_allclose(array(model(X)), array(layer(X)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("informer/embed", having=["token_*.W"])
def test_golden_token(path, dtype):
    arrays = load(path)
    sizes = json.loads(str(arrays["meta"]))
    names = [name[:-2] for name in arrays if name.startswith("token_") and ".W" in name]
    assert names
    for name in names:
        layer = TokenEmbedding(sizes["d_model"], dtype=dtype)
        kernel = arrays[f"{name}.W"].transpose(2, 1, 0)
        layer.build((None, None, kernel.shape[1]))
        layer.set_weights([kernel, arrays[f"{name}.b"]])
        for length in sizes["lengths"]:
            x = arrays[f"{name}.L{length}.x"].astype(dtype)
            want = arrays[f"{name}.L{length}.y"]
            got = array(layer(tensor(x)))
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_refuses_a_mask():
    masked = keras.layers.Masking()(keras.Input((4, 2)))
    with pytest.raises(ValueError, match="of `TokenEmbedding` must have no mask"):
        TokenEmbedding(3)(masked)


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, None)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"`TokenEmbedding` takes.*input_shape=\("):
        TokenEmbedding(3).build(shape)


def test_says_what_was_given():
    with pytest.raises(TypeError, match="`output_dim` must be an integer.*=2.5"):
        TokenEmbedding(2.5)
    with pytest.raises(ValueError, match="`output_dim` must be at least 1.*=0"):
        TokenEmbedding(0)
    with pytest.raises(ValueError, match="`padding` must be one of.*='reflect'"):
        TokenEmbedding(3, padding="reflect")
