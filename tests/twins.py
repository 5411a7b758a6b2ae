"""Comparison of a layer with its slow twin, values and gradients."""

import keras
import numpy as np
from helpers import FLOATS, output_and_gradients

DTYPE = FLOATS[-1]  # the widest of the backend
TOLERANCE = {"float64": 1e-7, "float32": 1e-4}[DTYPE]


def check_twin(layer, x, twin, *, call=None, seed=0):
    """Compares a layer with random weights with a function in float64.

    Args:
        layer: A layer of dtype `DTYPE`, not built.
        x: Array, the input; or a tuple of arrays, the positional arguments of a call.
        twin: Callable from the inputs and the weights, float64, to the output.
        call: Optional dict of further call arguments.
        seed: Of the weights and of the coefficients of the outputs.
    """
    rng = np.random.default_rng(seed)
    x = keras.tree.map_structure(lambda array: array.astype(DTYPE), x)
    inputs = x if isinstance(x, tuple) else (x,)
    layer.build(*(array.shape for array in inputs))
    layer.set_weights([rng.normal(size=w.shape, scale=0.7) for w in layer.weights])
    sources = [np.array(a, "float64") for a in (*inputs, *layer.get_weights())]
    want = twin(*sources)
    coef = rng.normal(size=want.shape)
    output, gradients = output_and_gradients(layer, x, coef, call=call, wrt_inputs=True)
    assert output.dtype == DTYPE
    assert_near(output, want, TOLERANCE)
    for i, gradient in enumerate(gradients):
        assert_near(gradient, slopes(twin, sources, i, coef), TOLERANCE)


def assert_near(got, want, tolerance=1e-6):
    """Compares relative to the largest entry, as sums of such are rounded."""
    scale = max(1.0, np.abs(want).max(initial=0.0))
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale)


def slopes(function, sources, index, coef, step=1e-5):
    """Gradient of `sum(coef * function)` by one source, by differences."""
    moved = [source.copy() for source in sources]
    gradient = np.zeros(sources[index].shape)
    for place in np.ndindex(gradient.shape):
        center = moved[index][place]
        ends = []
        for sign in (1, -1):
            moved[index][place] = center + sign * step
            ends.append(np.sum(coef * function(*moved)))
        moved[index][place] = center
        gradient[place] = (ends[0] - ends[1]) / (2 * step)
    return gradient
