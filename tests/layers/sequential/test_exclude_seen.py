import numpy as np
import pytest
from helpers import array, check_layer

from keras_recsys.layers import ExcludeSeen

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(3, 6)).astype("float32")
IDS = np.array([[3, 5, 3], [0, 1, 2], [0, 0, 0]], "int32")
LOWEST = -1e9


def exclude_loop(logits, ids):
    out = logits.copy()
    for row, step in np.ndindex(ids.shape):
        out[row, ids[row, step]] = LOWEST
    out[:, 0] = LOWEST
    return out


def test_contract(tmp_path):
    check_layer(ExcludeSeen, (LOGITS, IDS), tmp_path, gradients=False)


def test_equals_the_loop():
    np.testing.assert_array_equal(
        array(ExcludeSeen()(LOGITS, IDS)), exclude_loop(LOGITS, IDS)
    )


def test_best_items_by_hand():
    logits = np.array([[9.0, 8, 7, 6, 5, 4]])
    got = array(ExcludeSeen()(logits, np.array([[1, 3, 1]])))
    np.testing.assert_array_equal(got, [[LOWEST, LOWEST, 7, LOWEST, 5, 4]])
    np.testing.assert_array_equal(np.argsort(-got)[0, :3], [2, 4, 5])


def test_case_09_as_many_remain_as_are_asked_for():
    got = array(ExcludeSeen()(LOGITS, IDS))
    best = np.argsort(-got, axis=1)[:, :3]
    for row in range(len(IDS)):
        assert not set(best[row]) & {0, *IDS[row]}


def test_masked_row_loses_the_padding_alone():
    got = array(ExcludeSeen()(LOGITS, IDS))
    np.testing.assert_array_equal(got[2, 1:], LOGITS[2, 1:])
    assert got[2, 0] == LOWEST


def test_says_what_shapes_were_given():
    with pytest.raises(ValueError, match="`ExcludeSeen` takes.*shapes"):
        ExcludeSeen()(LOGITS, IDS[0])
