import math

import numpy as np
import pytest
from helpers import array, check_layer, randomize

from keras_recsys.layers import MultiInputState

RNG = np.random.default_rng(0)
STATES = [RNG.normal(size=(3, 5, 4)).astype("float32") for _ in range(3)]
MASK = np.array(
    [[True] * 5, [False, False, True, True, True], [True, False, True, False, False]]
)


def gelu(x):
    cube = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + np.tanh(cube))


def multi_input_loop(states, mask, kernel, bias, window):
    """The formula of the docstring, one step at a time, in float64."""
    rows, steps, dim = states[0].shape
    out = np.zeros((rows, steps, 2 * dim))
    for row, step in np.ndindex(rows, steps):
        if not mask[row, step]:
            continue
        parts = []
        for layer in reversed(states):
            for t in range(step, step - window, -1):
                there = t >= 0 and mask[row, t]
                parts.append(layer[row, t] if there else np.zeros(dim))
        hidden = gelu(np.concatenate(parts).astype("float64") @ kernel + bias)
        out[row, step] = np.concatenate([states[-1][row, step], hidden])
    return out


def test_contract_of_several_layers(tmp_path):
    check_layer(lambda: MultiInputState(window=2), STATES[:2], tmp_path)


def test_contract_of_one_layer_with_a_mask(tmp_path):
    check_layer(MultiInputState, STATES[0], tmp_path, call={"mask": MASK})


@pytest.mark.parametrize("window", [1, 3, 7])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_equals_the_loop(num_layers, window):
    layer = MultiInputState(window)
    states = STATES[:num_layers]
    layer.build([x.shape for x in states])
    randomize(layer, np.random.default_rng(1))
    weights = [array(w).astype("float64") for w in layer.weights]
    for mask in (None, MASK):
        real = np.ones_like(MASK) if mask is None else mask
        want = multi_input_loop(states, real, *weights, window)
        got = array(layer(states, mask=mask))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        if num_layers == 1:
            got = array(layer(states[0], mask=mask))
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_sum_of_a_window_by_hand():  # kernel of 1, 10, 100: now, one back, two back
    layer = MultiInputState(3)
    layer.build((1, 4, 1))
    layer.kernel.assign([[1.0], [10.0], [100.0]])
    states = np.array([[[1.0], [2.0], [3.0], [4.0]]], "float32")
    got = array(layer(states))[0]
    np.testing.assert_allclose(got[:, 0], [1, 2, 3, 4])
    np.testing.assert_allclose(got[1:, 1], [12, 123, 234], rtol=1e-5)
    np.testing.assert_allclose(got[0, 1], 0.841192, rtol=1e-5)


def test_masked_steps_are_zero_and_have_no_effect():
    layer = MultiInputState()
    want = array(layer(STATES, mask=MASK))
    assert not want[~MASK].any()
    noise = [np.where(MASK[..., None], x, np.nan) for x in STATES]
    np.testing.assert_array_equal(array(layer(noise, mask=MASK)), want)


def test_masks_of_several_inputs_are_joined_and_passed_on():
    layer = MultiInputState()
    other = np.ones_like(MASK)
    other[0, 3] = False
    got = array(layer(STATES, mask=[MASK, None, other]))
    want = array(layer(STATES, mask=MASK & other))
    np.testing.assert_array_equal(got, want)
    passed = layer.compute_mask(STATES, [MASK, None, other])
    np.testing.assert_array_equal(array(passed), MASK & other)
    assert layer.compute_mask(STATES, [None] * 3) is None


@pytest.mark.parametrize("window", [0, 2.0])
def test_says_what_window_was_given(window):
    with pytest.raises((TypeError, ValueError), match=f"`window`.*={window}"):
        MultiInputState(window)


def test_says_what_shapes_were_given():
    with pytest.raises(ValueError, match="`MultiInputState` takes.*shapes"):
        MultiInputState()([STATES[0], STATES[1][..., :2]])
