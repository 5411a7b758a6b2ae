import keras
import numpy as np
import pytest
from optimizer_cases import assert_close, gradients, start, train

from keras_recsys.optimizers import SparseFtrl

BATCHES = [[0, 1, 1], [2, 0], [1], [3, 3, 3, 0], [2, 1], [0], [8, 1, 8]] * 4
TOUCHED, NEVER = [0, 1, 2, 3, 8], [4, 5, 6, 7]


def ftrl(weight, gradients, rate, first, l1, l2, beta):
    """The formula of the docstring for one number, in float64."""
    n, z = first, 0.0
    for g in gradients:
        after = n + g**2
        z += g - (after**0.5 - n**0.5) / rate * weight
        n = after
        weight = -np.sign(z) * max(abs(z) - l1, 0) / ((beta + n**0.5) / rate + 2 * l2)
    return weight


@pytest.mark.parametrize(("l1", "l2", "beta"), [(0.0, 0.0, 0.0), (0.2, 0.1, 0.5)])
@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_rows_of_batches_are_those_of_ftrl(l1, l2, beta, jit_compile):
    """Keras first turns a row that no batch has to 0; each row starts in the first."""
    steps = gradients([[0, 1, 2, 3, 8], *BATCHES])
    ours = SparseFtrl(0.1, l1=l1, l2=l2, beta=beta)
    stock = keras.optimizers.Ftrl(
        0.1, l1_regularization_strength=l1, l2_regularization_strength=l2, beta=beta
    )
    table, kernel, state = train(ours, steps, jit_compile=jit_compile)
    want_table, want_kernel, want_state = train(stock, steps, dense=True)
    assert_close([table[TOUCHED], kernel], [want_table[TOUCHED], want_kernel])
    for key in ("table_accumulator", "table_linear"):
        assert_close([state[key][TOUCHED]], [want_state[key][TOUCHED]], atol=1e-5)
    np.testing.assert_array_equal(table[NEVER], start()[0].numpy()[NEVER])
    np.testing.assert_array_equal(want_table[NEVER], 0.0)


def test_equals_the_loop():
    steps = gradients(BATCHES)
    table = train(SparseFtrl(0.1, 0.2, 0.3, 0.1, 0.5), steps)[0]
    want = start()[0].numpy().astype("float64")
    for row, column in np.ndindex(want.shape):
        sums = [
            values[ids == row, column].astype("float64").sum()
            for values, ids, _ in steps
            if row in ids
        ]
        want[row, column] = ftrl(want[row, column], sums, 0.1, 0.2, 0.3, 0.1, 0.5)
    np.testing.assert_allclose(table, want, rtol=1e-4, atol=1e-6)


def test_l1_makes_exact_zeros():
    steps = gradients(BATCHES)
    none, some, all_ = (
        (train(SparseFtrl(0.1, l1=l1), steps)[0][TOUCHED] == 0).mean()
        for l1 in (0.0, 1.0, 1e3)
    )
    assert none == 0
    assert 0 < some < 1
    assert all_ == 1


def test_weight_decay_is_refused():
    with pytest.raises(ValueError, match="`weight_decay` must be.*`l2`.*=0.1"):
        SparseFtrl(weight_decay=0.1)
    assert SparseFtrl(weight_decay=None).weight_decay is None


def test_a_row_without_a_gradient_must_not_be_nan():
    with pytest.raises(ValueError, match="One of `initial_accumulator_value`"):
        SparseFtrl(0.1, initial_accumulator_value=0.0)
    SparseFtrl(0.1, initial_accumulator_value=0.0, beta=1.0)
