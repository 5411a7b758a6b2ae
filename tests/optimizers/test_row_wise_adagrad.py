import keras
import numpy as np
import pytest
from optimizer_cases import (
    ROWS,
    assert_close,
    dense_sum,
    gradients,
    row_wise_adagrad,
    start,
    train,
)

from keras_recsys.optimizers import RowWiseAdagrad

BATCHES = [[0, 1, 1], [2, 0], [1], [3, 3, 3, 0], [2, 1], [0], [8, 1, 8]] * 2


@pytest.mark.parametrize("first", [0.0, 0.5])
@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_equals_the_loop(first, jit_compile):
    steps = gradients(BATCHES)
    table, kernel, state = train(
        RowWiseAdagrad(0.1, first), steps, jit_compile=jit_compile
    )
    want, want_kernel = (v.numpy() for v in start())
    accumulator, of_kernel = np.full(ROWS, first), np.full(4, first)
    for values, ids, gradient in steps:
        want, accumulator = row_wise_adagrad(
            want, dense_sum(values, ids), accumulator, 0.1
        )
        want_kernel, of_kernel = row_wise_adagrad(want_kernel, gradient, of_kernel, 0.1)
    assert_close([table, kernel], [want, want_kernel])
    assert_close(
        [state["table_accumulator"], state["kernel_accumulator"]],
        [accumulator, of_kernel],
    )


def test_two_steps_by_hand():
    """(3 + 1)^2 + 2^2 + 2^2 = 24, 24 / 3 = 8, and 8 + 1 = 9 = 3^2."""
    kernel = np.zeros((4, 2), "float32")
    steps = [
        (np.array([[3, 2, 0], [1, 0, -2]], "f"), np.array([4, 4]), kernel),
        (np.array([[1, -1, 1]], "f"), np.array([4]), kernel),
    ]
    table, _, state = train(RowWiseAdagrad(0.6), steps)
    root = 8**0.5
    want = [
        -0.6 * (4 / root + 1 / 3),
        -0.6 * (2 / root - 1 / 3),
        0.6 * (2 / root - 1 / 3),
    ]
    np.testing.assert_allclose(table[4] - start()[0].numpy()[4], want, rtol=1e-5)
    np.testing.assert_allclose(state["table_accumulator"][4], 9.0, rtol=1e-6)


def test_row_without_a_gradient_does_not_become_nan():
    zero = np.zeros((2, 3), "float32")
    steps = [(zero, np.array([1, 1]), np.zeros((4, 2), "float32"))]
    table, kernel, _ = train(RowWiseAdagrad(0.1), steps)
    for got, before in zip((table, kernel), start(), strict=True):
        np.testing.assert_array_equal(got, before.numpy())


def test_state_is_one_number_a_row():
    optimizer = RowWiseAdagrad()
    scalar = keras.Variable(1.0, name="scalar")
    optimizer.build([*start(), keras.Variable(np.zeros(5)), scalar])
    shapes = [v.shape for v in optimizer.variables[2:]]
    assert shapes == [(ROWS,), (4,), (5,), ()]
