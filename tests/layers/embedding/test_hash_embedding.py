import numpy as np
import pytest
from helpers import array, check_layer, output_and_gradients

from keras_recsys.layers import HashEmbedding

IDS = np.array([[0, 3, 9], [5, 0, 10]], "int32")


@pytest.mark.parametrize("pooling", [None, "mean"])
def test_contract(pooling, tmp_path):
    check_layer(
        lambda: HashEmbedding(11, 4, num_buckets=3, mask_zero=True, pooling=pooling),
        IDS,
        tmp_path,
    )


@pytest.mark.parametrize("num_buckets", [1, 3, 11, 20])
def test_equals_the_loop(num_buckets):
    layer = HashEmbedding(11, 4, num_buckets=num_buckets)
    layer.build()
    table = np.random.default_rng(0).normal(size=(num_buckets, 4))
    layer.set_weights([table])
    want = [[table[i % num_buckets] for i in row] for row in IDS.tolist()]
    np.testing.assert_allclose(array(layer(IDS)), want, rtol=1e-6)


def test_by_hand():
    layer = HashEmbedding(5, 1, num_buckets=2)
    layer.build()
    layer.set_weights([np.array([[10], [20]])])
    got = array(layer(np.arange(5)))
    np.testing.assert_array_equal(got[:, 0], [10, 20, 10, 20, 10])
    _, (gradient,) = output_and_gradients(layer, np.arange(5), np.ones((5, 1)))
    np.testing.assert_array_equal(gradient, [[3], [2]])


def test_mask_and_ids_outside():
    layer = HashEmbedding(11, 4, num_buckets=3, mask_zero=True, zero_masked=True)
    got = array(layer(IDS))
    assert not got[IDS == 0].any()
    assert got[0, 1].any()  # id 3 shares row 0 with padding
    with pytest.raises(ValueError, match=r"\[0, 11\)\. Received: id 11"):
        layer(np.array([11]))


def test_grows_without_a_new_row():
    layer = HashEmbedding(11, 4, num_buckets=3)
    layer.build()
    grown = layer.grow(50)
    assert grown.count_params() == 12
    np.testing.assert_array_equal(array(grown(IDS)), array(layer(IDS)))


def test_says_what_was_given():
    with pytest.raises(ValueError, match="`num_buckets` must be at least 1.*=0"):
        HashEmbedding(11, 4, num_buckets=0)
    with pytest.raises(TypeError, match="`num_buckets` must be an integer.*=1.5"):
        HashEmbedding(11, 4, num_buckets=1.5)
