import keras
import numpy as np
import pytest
from optimizer_cases import DIM, ROWS, assert_close, gradients, start, train

from keras_recsys.optimizers import LazyAdam

BATCHES = [[0, 1, 1], [2, 0], [1], [3, 3, 3, 0], [2, 1], [0], [8, 1, 8]]
EVERY_ROW = [[*range(ROWS), i % ROWS, (3 * i) % ROWS] for i in range(20)]


def lazy_adam(table, steps, amsgrad, rate=0.1, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
    """The formula of the docstring, one row at a time, in float64."""
    table = np.array(table, "float64")
    m, v, largest = np.zeros((3, *table.shape))
    for t, (values, ids, _) in enumerate(steps, start=1):
        for row in set(ids.tolist()):
            g = sum(values[i].astype("float64") for i in np.flatnonzero(ids == row))
            m[row] = m[row] + (1 - beta_1) * (g - m[row])
            v[row] = v[row] + (1 - beta_2) * (g**2 - v[row])
            largest[row] = np.maximum(largest[row], v[row])
            root = np.sqrt(largest[row] if amsgrad else v[row])
            step = rate * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
            table[row] -= step * m[row] / (root + epsilon)
    return table, m, v


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_equals_the_loop(amsgrad, jit_compile):
    steps = gradients(BATCHES)
    want, m, v = lazy_adam(start()[0].numpy(), steps, amsgrad, beta_2=0.9)
    optimizer = LazyAdam(0.1, beta_2=0.9, amsgrad=amsgrad)
    table, _, state = train(optimizer, steps, jit_compile=jit_compile)
    assert_close([table], [want])
    assert_close([state["table_momentum"], state["table_velocity"]], [m, v])
    if amsgrad:  # so that the test tells the two apart
        other = lazy_adam(start()[0].numpy(), steps, False, beta_2=0.9)[0]
        assert np.abs(other - want).max() > 1e-3


def test_first_step_by_hand():  # m / sqrt(v) is the sign of g, whatever its size
    steps = [
        (np.array([[1e3, -2, 0.5]], "float32"), np.array([4]), np.ones((4, 2), "f"))
    ]
    table, kernel, _ = train(LazyAdam(0.25), steps)
    before, kernel_before = (v.numpy() for v in start())
    np.testing.assert_allclose(table[4] - before[4], [-0.25, 0.25, -0.25], rtol=1e-4)
    np.testing.assert_allclose(kernel - kernel_before, -0.25, rtol=1e-5)


def test_row_out_of_the_batch_waits_where_adam_moves_it():
    steps = gradients([[0], [1]])
    lazy = [train(LazyAdam(0.1), steps[:n])[::2] for n in (1, 2)]
    dense = [
        train(keras.optimizers.Adam(0.1), steps[:n], dense=True)[::2] for n in (1, 2)
    ]
    assert_close([lazy[0][0]], [dense[0][0]])
    np.testing.assert_array_equal(lazy[1][0][0], lazy[0][0][0])
    np.testing.assert_array_equal(
        lazy[1][1]["table_momentum"][0], lazy[0][1]["table_momentum"][0]
    )
    assert np.abs(dense[1][0][0] - dense[0][0][0]).min() > 0.01
    # A row in its first batch moves as with Adam, at any step.
    np.testing.assert_allclose(lazy[1][0][1], dense[1][0][1], rtol=1e-6)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_is_adam_where_every_row_is_in_every_batch(amsgrad):
    steps = gradients(EVERY_ROW)
    lazy = train(LazyAdam(0.05, amsgrad=amsgrad), steps, jit_compile=False)
    adam = keras.optimizers.Adam(0.05, amsgrad=amsgrad)
    dense = train(adam, steps, dense=True)
    assert_close(lazy[:2], dense[:2], rtol=1e-4, atol=1e-5)
    assert_close(lazy[2].values(), [dense[2][k] for k in lazy[2]], atol=1e-5)


def test_waiting_costs_no_row_its_step():
    """A row in every second batch still moves by about the learning rate."""
    values = np.ones((1, DIM), "float32")
    steps = [(values, np.array([i % 2]), np.ones((4, 2), "f")) for i in range(10)]
    table = train(LazyAdam(0.1), steps)[0]
    moved = table - start()[0].numpy()
    assert (moved[:2] < -0.1).all()
    np.testing.assert_array_equal(moved[2:], 0.0)
