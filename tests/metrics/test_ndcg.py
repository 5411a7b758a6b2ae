import math

import numpy as np
import pytest

from keras_recsys.metrics import NDCG

# Id 1 has rank 3 of the items 1 to 4.
SCORES = np.array([[9.0, 0.2, 0.1, 0.3, 0.4]])


@pytest.mark.parametrize(("k", "want"), [(2, 0), (3, 0.5), (10, 0.5)])
def test_rank_3_by_hand(k, want):  # 1 / log2(4)
    metric = NDCG(k)
    metric.update_state(np.array([1]), SCORES)
    assert float(metric.result()) == want


def test_tie_of_two_by_hand():  # ranks 1 and 2, each half of the time
    metric = NDCG()
    metric.update_state(np.array([1]), np.array([[0.0, 5, 5, 1]]))
    assert float(metric.result()) == pytest.approx((1 + 1 / math.log2(3)) / 2, 1e-6)


def test_mean_over_batches():  # by hand: (1 + 0.5) / 2
    metric = NDCG()
    metric.update_state(np.array([4]), SCORES)
    metric.update_state(np.array([1]), SCORES)
    assert float(metric.result()) == 0.75
