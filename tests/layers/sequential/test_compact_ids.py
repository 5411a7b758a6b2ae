import keras
import numpy as np
import pytest
from helpers import array, check_layer

from keras_recsys.layers import CompactIds

IDS = np.array([[0, 5, 0, 6, 5], [7, 8, 9, 1, 2], [0, 0, 0, 0, 0]], "int32")


def test_contract(tmp_path):
    check_layer(lambda: CompactIds(3), IDS, tmp_path, gradients=False)


@pytest.mark.parametrize("max_len", [None, 1, 3, 5, 9])
def test_equals_the_loop(max_len):
    rows = [[i for i in row if i][-(max_len or 9) :] for row in IDS]
    width = min(5, max_len or 5)
    want = [row + [0] * (width - len(row)) for row in rows]
    np.testing.assert_array_equal(array(CompactIds(max_len)(IDS)), want)


def test_length_may_be_unknown_when_traced():
    ids = keras.Input((None,), dtype="int64")
    out = CompactIds(3)(ids)
    assert tuple(out.shape) == (None, None)
    assert out.dtype == "int64"
    model = keras.Model(ids, out)
    want = [[5, 6, 5], [9, 1, 2], [0, 0, 0]]
    np.testing.assert_array_equal(model.predict(IDS, verbose=0), want)
    np.testing.assert_array_equal(array(model(IDS[:, :2])), [[5, 0], [7, 8], [0, 0]])


def test_says_what_is_wrong():
    with pytest.raises(ValueError, match=r"`max_len`.*max_len=0"):
        CompactIds(0)
    with pytest.raises(ValueError, match=r"input_shape=\(5,\)"):
        CompactIds()(IDS[0])
