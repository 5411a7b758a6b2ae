import numpy as np
from helpers import array, check_layer

from keras_recsys.layers import PaddingMask

IDS = np.array([[5, 0, 2], [0, 0, 0]], "int32")


def test_contract(tmp_path):
    check_layer(PaddingMask, IDS, tmp_path, gradients=False)


def test_zero_is_padding():
    got = array(PaddingMask()(IDS))
    assert got.dtype == bool
    np.testing.assert_array_equal(got, [[True, False, True], [False] * 3])
