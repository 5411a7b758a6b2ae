import json

import keras
import numpy as np
import pytest
from helpers import (
    BACKEND,
    array,
    check_gradients,
    check_model,
    output_and_gradients,
    tensor,
)
from twins import DTYPE, TOLERANCE, assert_near, slopes

from keras_recsys.layers import SeriesDecomposition

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 6, 2)).astype("float32")


def decomposition_loop(x, window):
    """The formulas of the docstring, one step at a time, in float64."""
    trend = np.zeros(x.shape)
    for b, t in np.ndindex(*x.shape[:2]):
        steps = range(t - (window - 1) // 2, t + window // 2 + 1)
        inside = [min(max(step, 0), x.shape[1] - 1) for step in steps]
        trend[b, t] = sum(x[b, step] for step in inside) / window
    return x - trend, trend


def build_model(name, inputs=None):
    """Both parts in one model, each before a linear layer."""
    if inputs is None:
        inputs = {"values": keras.Input((6, 2), name="values")}
    parts = SeriesDecomposition(4, name=f"{name}_parts")(inputs["values"])
    outputs = {
        key: keras.layers.Dense(3, dtype="float32", name=f"{name}_{key}")(part)
        for key, part in zip(("seasonal", "trend"), parts, strict=True)
    }
    return keras.Model(inputs, outputs, name=name)


def test_contract(tmp_path):
    check_model(build_model, {"values": X}, tmp_path)
    layer = SeriesDecomposition(4, name="parts")
    config = json.loads(json.dumps(layer.get_config()))
    assert SeriesDecomposition.from_config(config).get_config() == config
    assert {"window", "name", "dtype"} <= set(config)
    registered = keras.saving.get_registered_name(SeriesDecomposition)
    assert registered == "keras_recsys>SeriesDecomposition"
    check_gradients(build_model("graded"), {"values": X}, {})


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_contract_of_shapes_and_dtypes(policy):
    layer = SeriesDecomposition(4, dtype=policy)
    assert layer.compute_output_shape((None, None, 2)) == ((None, None, 2),) * 2
    for length in (6, None):
        symbolic = layer(keras.Input((length, 2)))
        got = layer(X)
        for part, spec, want in zip(
            got, symbolic, decomposition_loop(X.astype("float64"), 4), strict=True
        ):
            assert spec.shape == (None, length, 2)
            assert keras.backend.standardize_dtype(part.dtype) == spec.dtype
            assert spec.dtype == layer.compute_dtype
            limit = 1e-5 if policy == "float32" else 0.03
            np.testing.assert_allclose(array(part), want, atol=limit)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="compiles with TensorFlow")
def test_contract_of_compiled_and_unknown_lengths():
    import tensorflow as tf

    layer = SeriesDecomposition(4)
    compiled = tf.function(layer, jit_compile=True)
    dynamic = tf.function(layer, input_signature=[tf.TensorSpec((None, None, 2))])
    for length in (1, 3, 6):
        x = tensor(X[:, :length])
        for run in (compiled, dynamic):
            for got, want in zip(run(x), layer(x), strict=True):
                np.testing.assert_allclose(array(got), array(want), atol=1e-6)


class _Part(keras.layers.Layer):
    """One of the two parts."""

    def __init__(self, layer, index):
        super().__init__(dtype=DTYPE)
        self.layer, self.index, self.built = layer, index, True

    def call(self, inputs):
        return self.layer(inputs)[self.index]


@pytest.mark.parametrize("window", [1, 2, 3, 4, 25])
@pytest.mark.parametrize("length", [1, 4])
def test_equals_the_loop(length, window):
    x = RNG.normal(size=(2, length, 2)).astype(DTYPE)
    layer = SeriesDecomposition(window, dtype=DTYPE)
    for i in range(2):

        def twin(x, i=i):
            return decomposition_loop(x, window)[i]

        coef = RNG.normal(size=x.shape)
        got, gradients = output_and_gradients(_Part(layer, i), x, coef, wrt_inputs=True)
        x64 = x.astype("float64")
        assert_near(got, twin(x64), TOLERANCE)
        assert_near(gradients[0], slopes(twin, [x64], 0, coef), TOLERANCE)


def test_by_hand():
    x = np.array([[[1.0], [2.0], [6.0], [3.0]]], "float32")
    # 3 steps: 1 1 2, 1 2 6, 2 6 3, 6 3 3; 2 steps: 1 2, 2 6, 6 3, 3 3.
    for window, want in ((3, np.array([4, 9, 11, 12]) / 3), (2, [1.5, 4.0, 4.5, 3.0])):
        seasonal, trend = SeriesDecomposition(window)(x)
        np.testing.assert_allclose(array(trend).ravel(), want, rtol=1e-6)
        np.testing.assert_allclose(array(seasonal).ravel(), x.ravel() - want, atol=1e-6)


def test_parts_add_up_and_a_constant_is_all_trend():
    seasonal, trend = map(array, SeriesDecomposition()(X))
    np.testing.assert_allclose(seasonal + trend, X, rtol=1e-6, atol=1e-6)
    seasonal, trend = map(array, SeriesDecomposition()(np.full((1, 40, 1), 7.0)))
    np.testing.assert_allclose(trend, 7.0, rtol=1e-6)
    np.testing.assert_allclose(seasonal, 0.0, atol=1e-5)


def test_refuses_a_mask():
    masked = keras.layers.Masking()(keras.Input((4, 2)))
    with pytest.raises(ValueError, match="of `SeriesDecomposition` must have no mask"):
        SeriesDecomposition()(masked)


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, None)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"`SeriesDecomposition` takes.*shape=\("):
        SeriesDecomposition().build(shape)


def test_says_what_window_was_given():
    with pytest.raises(TypeError, match="`window` must be an integer.*window=2.5"):
        SeriesDecomposition(2.5)
    with pytest.raises(ValueError, match="`window` must be at least 1.*window=0"):
        SeriesDecomposition(0)
