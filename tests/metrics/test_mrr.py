import numpy as np
import pytest

from keras_recsys.metrics import MRR

# Id 1 has rank 3 of the items 1 to 4, and id 3 rank 2.
SCORES = np.array([[9.0, 0.2, 0.1, 0.3, 0.4]])


@pytest.mark.parametrize(("k", "want"), [(2, 0), (3, 1 / 3), (10, 1 / 3)])
def test_rank_3_by_hand(k, want):
    metric = MRR(k)
    metric.update_state(np.array([1]), SCORES)
    assert float(metric.result()) == pytest.approx(want, rel=1e-6)


def test_tie_of_two_by_hand():  # ranks 1 and 2: (1 + 1/2) / 2
    metric = MRR()
    metric.update_state(np.array([1]), np.array([[0.0, 5, 5, 1]]))
    assert float(metric.result()) == 0.75


def test_mean_over_batches():  # by hand: (1 + 1/2) / 2
    metric = MRR()
    metric.update_state(np.array([4]), SCORES)
    metric.update_state(np.array([3]), SCORES)
    assert float(metric.result()) == 0.75
