import keras
import numpy as np
import pytest
from optimizer_cases import assert_close, gradients, start, train

from keras_recsys.optimizers import SparseAdagrad

BATCHES = [[0, 1, 1], [2, 0], [1], [3, 3, 3, 0], [2, 1], [0], [8, 1, 8]] * 4


@pytest.mark.parametrize("first", [0.0, 0.1])
@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_is_adagrad_everywhere(first, jit_compile):
    steps = gradients(BATCHES)
    ours = SparseAdagrad(0.1, initial_accumulator_value=first)
    stock = keras.optimizers.Adagrad(0.1, initial_accumulator_value=first)
    table, kernel, state = train(ours, steps, jit_compile=jit_compile)
    want = train(stock, steps, dense=True)
    assert_close([table, kernel], want[:2])
    assert_close(state.values(), [want[2][key] for key in state])
    moved = np.abs(table - start()[0].numpy()).max(axis=1)
    assert (moved > 0.01).tolist() == [True] * 4 + [False] * 4 + [True]


def test_step_by_hand():
    """The squares of duplicates are not added: (1 + 2)^2 + 7 = 16 = 4^2."""
    steps = [(np.array([[1.0] * 3, [2.0] * 3], "f"), np.array([4, 4]), np.ones((4, 2)))]
    optimizer = SparseAdagrad(0.4, initial_accumulator_value=7.0)
    table, _, state = train(optimizer, steps)
    np.testing.assert_allclose(table[4] - start()[0].numpy()[4], -0.3, rtol=1e-5)
    np.testing.assert_allclose(state["table_accumulator"][4], 16.0, rtol=1e-6)
