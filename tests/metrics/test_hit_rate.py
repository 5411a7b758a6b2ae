import numpy as np
import pytest

from keras_recsys.metrics import HitRate

# Id 1 has rank 3 of the items 1 to 4.
SCORES = np.array([[9.0, 0.2, 0.1, 0.3, 0.4]])


@pytest.mark.parametrize(("k", "want"), [(1, 0), (2, 0), (3, 1), (10, 1)])
def test_rank_3_by_hand(k, want):
    metric = HitRate(k)
    metric.update_state(np.array([1]), SCORES)
    assert float(metric.result()) == want


def test_equal_scores_are_a_guess():  # by hand: 2 places for 8 items
    metric = HitRate(2)
    metric.update_state(np.arange(1, 9), np.zeros((8, 9)))
    assert float(metric.result()) == 0.25


def test_sample_weight():  # by hand: (3 * 1 + 1 * 0) / 4
    metric = HitRate(3)
    scores = np.concatenate([SCORES, SCORES])
    metric.update_state(np.array([1, 2]), scores, sample_weight=np.array([3.0, 1.0]))
    assert float(metric.result()) == 0.75
