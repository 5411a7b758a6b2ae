import json

import keras
import numpy as np
import pytest
from golden_files import golden, load
from helpers import (
    BACKEND,
    FLOATS,
    array,
    check_layer,
    output_and_gradients,
    randomize,
    tensor,
)
from twins import DTYPE, TOLERANCE, assert_near, slopes

from keras_recsys._initializers import FanInUniform
from keras_recsys.layers import DistillConv

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 5, 2)).astype("float32")


def distill_loop(x, kernel, bias, gamma, beta, mean, variance, padding, training):
    """The formulas of the docstring, one step at a time, in float64."""
    length = x.shape[1]
    conv = np.zeros(x.shape)
    for b, t in np.ndindex(*x.shape[:2]):
        conv[b, t] = bias
        for tap in range(3):
            place = t + tap - 1
            if padding == "circular" or 0 <= place < length:
                conv[b, t] += x[b, place % length] @ kernel[tap]
    if training:
        mean, variance = conv.mean((0, 1)), conv.var((0, 1))
    hidden = (conv - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    hidden = np.where(hidden > 0, hidden, np.exp(np.minimum(hidden, 0)) - 1)
    out = np.zeros((len(x), -(-length // 2), x.shape[2]))
    for b, t in np.ndindex(*out.shape[:2]):
        window = range(max(2 * t - 1, 0), min(2 * t + 2, length))
        out[b, t] = np.max([hidden[b, i] for i in window], axis=0)
    return out


@pytest.mark.parametrize("padding", ["circular", "same"])
def test_contract(padding, tmp_path):
    check_layer(
        lambda: DistillConv(
            padding,
            momentum=0.5,
            epsilon=0.01,
            kernel_initializer=FanInUniform(seed=1),
            bias_initializer=FanInUniform(seed=1),
        ),
        X,
        tmp_path,
    )


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("padding", ["circular", "same"])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_equals_the_loop(length, padding, training):
    x = RNG.normal(size=(2, length, 2)).astype(DTYPE)
    layer = DistillConv(padding, epsilon=1e-3, dtype=DTYPE)
    layer.build(x.shape)
    randomize(layer, np.random.default_rng(1))
    sources = [np.array(a, "float64") for a in (x, *layer.get_weights())]

    def twin(*sources):
        return distill_loop(*sources, padding, training)

    want = twin(*sources)
    coef = RNG.normal(size=want.shape)
    call = {"training": training}
    got, gradients = output_and_gradients(layer, x, coef, call=call, wrt_inputs=True)
    assert_near(got, want, TOLERANCE)
    if length == 1 and BACKEND != "tensorflow":
        return  # one step meets itself three times, in sums that cancel
    for i, gradient in enumerate(gradients):
        slope = slopes(twin, sources, i, coef, step=1e-6)
        assert_near(gradient, slope, 10 * TOLERANCE)


def test_by_hand():
    # Kernel (1, 0, 2), no bias, and a normalization that does nothing:
    # circular: 4+4, 1+6, 2+8, 3+2; same: 0+4, 1+6, 2+8, 3+0.
    x = np.array([[[1.0], [2.0], [3.0], [4.0]]], "float32")
    for padding, want in (("circular", [8.0, 10.0]), ("same", [7.0, 10.0])):
        layer = DistillConv(padding, epsilon=1e-7)
        layer.build(x.shape)
        kernel = np.array([1.0, 0.0, 2.0]).reshape(3, 1, 1)
        layer.set_weights([kernel, *np.array([[0.0], [1.0], [0.0], [0.0], [1.0]])])
        np.testing.assert_allclose(array(layer(x)).ravel(), want, rtol=1e-6)


@pytest.mark.parametrize("padding", ["circular", "same"])
def test_lengths_halve_known_or_not(padding):
    layer = DistillConv(padding)
    model = keras.Model(x := keras.Input((None, 2)), layer(x))
    assert model.output.shape == (None, None, 2)
    for length, half in ((1, 1), (2, 1), (3, 2), (12, 6), (13, 7), (47, 24)):
        x = RNG.normal(size=(2, length, 2)).astype("float32")
        assert layer.compute_output_shape(x.shape) == (2, half, 2)
        got = array(model(x))
        assert got.shape == (2, half, 2)
        np.testing.assert_allclose(got, array(layer(x)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_padding_never_wins_against_the_lowest_values(policy):
    layer = DistillConv(dtype=policy)
    layer.build((1, 4, 1))
    rest = np.array([[-50.0], [1.0], [0.0], [0.0], [1.0]])
    layer.set_weights([np.zeros((3, 1, 1)), *rest])
    np.testing.assert_array_equal(array(layer(np.zeros((1, 4, 1)))), -1.0)


def test_initial_values():
    layer = DistillConv(
        kernel_initializer=FanInUniform(seed=3), bias_initializer=FanInUniform(seed=3)
    )
    layer.build((None, None, 300))
    limit = 900**-0.5
    for weight in (layer.conv.kernel, layer.conv.bias):
        largest = np.abs(array(weight)).max()
        assert 0.98 * limit < largest <= limit
    assert array(layer.conv.kernel).ravel()[0] != array(layer.conv.bias)[0]


@pytest.mark.parametrize("dtype", FLOATS)
@golden("informer/distil", having=["eval.y", "train.y"])
def test_golden_distil(path, dtype):
    arrays = load(path)
    sizes = json.loads(str(arrays["meta"]))
    assert (sizes["kernel"], sizes["pool"], sizes["elu_alpha"]) == (3, [3, 2, 1], 1.0)
    layer = DistillConv(
        epsilon=sizes["bn_eps"], momentum=1 - sizes["bn_momentum_torch"], dtype=dtype
    )
    x = arrays["x"].astype(dtype)
    layer.build(x.shape)
    norm = [arrays[f"w.bn.{name}"] for name in ("gamma", "beta", "mean", "var")]
    conv = [arrays["w.conv.W"].transpose(2, 1, 0), arrays["w.conv.b"]]
    layer.set_weights([*conv, *norm])
    assert layer.compute_output_shape(x.shape)[1] == sizes["L_out"]

    def run(training):
        return output_and_gradients(
            layer,
            x,
            arrays["grad_out"],
            call={"training": training},
            wrt_inputs=True,
        )

    output, (dx, *_) = run(False)
    np.testing.assert_allclose(output, arrays["eval.y"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dx, arrays["eval.dx"], rtol=1e-3, atol=1e-4)
    output, (dx, dkernel, dbias, dgamma, dbeta) = run(True)
    np.testing.assert_allclose(output, arrays["train.y"], rtol=1e-4, atol=1e-5)
    for got, name in (
        (dx, "dx"),
        (dkernel.transpose(2, 1, 0), "dconv.W"),
        (dbias, "dconv.b"),
        (dgamma, "dgamma"),
        (dbeta, "dbeta"),
    ):
        want = arrays[f"train.{name}"]
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4, err_msg=name)
    if BACKEND == "jax":  # where a gradient leaves the state alone
        layer(x, training=True)
    mean, variance = map(array, layer.non_trainable_variables)
    want = arrays["train.running_mean_after"]
    np.testing.assert_allclose(mean, want, rtol=1e-4, atol=1e-5)
    # The update of Keras is the biased one.
    want = 0.9 * arrays["w.bn.var"] + 0.1 * arrays["train.batch_var_biased"]
    np.testing.assert_allclose(variance, want, rtol=1e-4, atol=1e-5)


def test_refuses_a_mask():
    x = keras.Input((4, 2))
    masked = keras.layers.Masking()(x)
    with pytest.raises(ValueError, match="`inputs` of `DistillConv` must have no mask"):
        DistillConv()(masked)
    eager = keras.layers.Masking()(tensor(X))
    with pytest.raises(ValueError, match=r"no mask.*a mask of shape \(3, 5\)"):
        DistillConv()(eager)


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 4, 1), (2, 3, None)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"`DistillConv` takes inputs.*input_shape=\("):
        DistillConv().build(shape)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("padding", "valid"),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("epsilon", 0.0),
        ("epsilon", float("nan")),
    ],
)
def test_says_what_was_given(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be.*{name}={value!r}"):
        DistillConv(**{name: value})
