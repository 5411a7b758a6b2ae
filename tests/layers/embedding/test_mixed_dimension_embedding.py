import numpy as np
import pytest
from helpers import array, check_layer

from keras_recsys.layers import FullEmbedding, MixedDimensionEmbedding

IDS = np.array([[0, 3, 9], [5, 0, 10]], "int32")


@pytest.mark.parametrize("table_dim", [2, 5])
def test_contract(table_dim, tmp_path):
    check_layer(
        lambda: MixedDimensionEmbedding(11, 5, table_dim=table_dim, mask_zero=True),
        IDS,
        tmp_path,
    )


def test_contract_of_bags(tmp_path):
    check_layer(
        lambda: MixedDimensionEmbedding(11, 5, table_dim=2, pooling="sum"),
        IDS,
        tmp_path,
    )


def test_equals_the_loop():
    layer = MixedDimensionEmbedding(11, 5, table_dim=2)
    layer.build()
    rng = np.random.default_rng(0)
    table, projection = rng.normal(size=(11, 2)), rng.normal(size=(2, 5))
    layer.set_weights([table, projection])
    want = [
        [[sum(table[i] * projection[:, j]) for j in range(5)] for i in row]
        for row in IDS.tolist()
    ]
    np.testing.assert_allclose(array(layer(IDS)), want, rtol=1e-5, atol=1e-6)


def test_by_hand():
    layer = MixedDimensionEmbedding(2, 3, table_dim=1)
    layer.build()
    layer.set_weights([np.array([[2], [5]]), np.array([[1, 10, -1]])])
    got = array(layer(np.array([1, 0])))
    np.testing.assert_array_equal(got, [[5, 50, -5], [2, 20, -2]])


def test_full_width_is_a_plain_table():
    layer = MixedDimensionEmbedding(11, 5, table_dim=5)
    plain = FullEmbedding(11, 5)
    for one in (layer, plain):
        one.build()
    plain.set_weights(layer.get_weights())
    np.testing.assert_array_equal(array(layer(IDS)), array(plain(IDS)))


def test_mask():
    layer = MixedDimensionEmbedding(
        11, 5, table_dim=2, mask_zero=True, zero_masked=True
    )
    assert not array(layer(IDS))[IDS == 0].any()


@pytest.mark.parametrize("table_dim", [1, 2, 8])
def test_starts_with_the_spread_of_a_plain_table(table_dim):
    layer = MixedDimensionEmbedding(10_000, 64, table_dim=table_dim)
    std = array(layer(np.arange(10_000))).std()
    assert std == pytest.approx(0.05 / 3**0.5, rel=0.3)


def test_grows_by_rows():
    layer = MixedDimensionEmbedding(11, 5, table_dim=2)
    layer.build()
    grown = layer.grow(15)
    assert [w.shape for w in grown.get_weights()] == [(15, 2), (2, 5)]
    np.testing.assert_array_equal(array(grown(IDS)), array(layer(IDS)))


def test_says_what_was_given():
    with pytest.raises(ValueError, match="`table_dim` must be at most.*5.*table_dim=6"):
        MixedDimensionEmbedding(11, 5, table_dim=6)
