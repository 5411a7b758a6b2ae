import itertools
import math

import numpy as np
import pytest
from helpers import BACKEND, array, check_layer, output_and_gradients, tensor

from keras_recsys.layers import CompositionalEmbedding, FullEmbedding, QREmbedding

IDS = np.array([[0, 3, 9], [5, 0, 10]], "int32")
COMBINERS = ("multiply", "add", "concat", "stack")
BRAND = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2])
RANK = np.array([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2])
PARTITIONS = {
    "mixed_radix": {"sizes": (2, 3, 2)},
    "chinese_remainder": {"partition": "chinese_remainder", "sizes": (3, 4)},
    "given": {"partition": [BRAND, RANK]},
}


def classes_of(i, kind, sizes):
    """The classes of one id by the formulas of the docstring."""
    if kind == "given":
        return [BRAND[i], RANK[i]]
    if kind == "chinese_remainder":
        return [i % m for m in sizes]
    return [i // math.prod(sizes[:j]) % m for j, m in enumerate(sizes)]


def loop(ids, tables, combiner, kind, sizes):
    """One id at a time, in float64."""
    out = []
    for i in ids.ravel().tolist():
        classes = classes_of(i, kind, sizes)
        rows = [t[c] for t, c in zip(tables, classes, strict=True)]
        out.append(
            {
                "multiply": lambda r: np.prod(r, axis=0),
                "add": lambda r: np.sum(r, axis=0),
                "concat": np.concatenate,
                "stack": np.stack,
            }[combiner](rows)
        )
    return np.array(out).reshape(*ids.shape, *out[0].shape)


@pytest.mark.parametrize("kind", PARTITIONS)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_contract(kind, combiner, tmp_path):
    check_layer(
        lambda: CompositionalEmbedding(
            11, 5, combiner=combiner, mask_zero=True, **PARTITIONS[kind]
        ),
        IDS,
        tmp_path,
    )


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("pool_first", [True, False])
def test_contract_of_bags(combiner, pool_first, tmp_path):
    check_layer(
        lambda: CompositionalEmbedding(
            11,
            6,
            combiner=combiner,
            out_of_range="zero",
            pooling="mean",
            pool_first=pool_first,
            embeddings_initializer="ones" if combiner == "multiply" else "dlrm",
        ),
        IDS,
        tmp_path,
    )


@pytest.mark.parametrize("kind", PARTITIONS)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_equals_the_loop(kind, combiner):
    layer = CompositionalEmbedding(11, 7, combiner=combiner, **PARTITIONS[kind])
    layer.build()
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=table.shape) for table in layer.tables]
    for weight, table in zip(layer.tables, tables, strict=True):
        weight.assign(table)
    want = loop(IDS, tables, combiner, kind, layer.sizes)
    got = array(layer(IDS))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert got.shape == layer.compute_output_shape(IDS.shape)


def test_by_hand():
    layer = CompositionalEmbedding(12, 1, sizes=(2, 3, 2))
    layer.build()
    layer.set_weights(
        [np.array([[1], [2]]), np.array([[1], [10], [100]]), np.array([[1], [-1]])]
    )
    # 9 is 1 + 2 (1 + 3 * 1): digits 1, 1, 1; 4 is 0, 2, 0
    np.testing.assert_array_equal(array(layer(np.array([9, 4]))), [[-20], [100]])


def test_concat_gives_the_rest_to_the_last():
    layer = CompositionalEmbedding(60, 8, sizes=(3, 4, 5), combiner="concat")
    layer.build()
    assert [tuple(t.shape) for t in layer.tables] == [(3, 2), (4, 3), (5, 3)]


@pytest.mark.parametrize("partition", ["mixed_radix", "chinese_remainder"])
def test_default_sizes_tell_all_ids_apart(partition):
    for input_dim, count in itertools.product(range(1, 201, 3), (1, 2, 3, 4)):
        layer = CompositionalEmbedding(
            input_dim, 1, partition=partition, num_partitions=count
        )
        assert len(layer.sizes) == count
        ids = tensor(np.arange(input_dim, dtype="int32"))
        rows = [array(part) for part in layer.split(ids)]
        for part, size in zip(rows, layer.sizes, strict=True):
            assert 0 <= part.min()
            assert part.max() < size
        assert len({*zip(*rows, strict=True)}) == input_dim


@pytest.mark.parametrize("partition", ["mixed_radix", "chinese_remainder"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_default_sizes_are_small(partition, count):
    layer = CompositionalEmbedding(10**6, 1, partition=partition, num_partitions=count)
    root = 10 ** (6 / count)
    assert sum(layer.sizes) <= count * (root + count + 12)


def test_two_digits_are_a_qr_embedding():
    qr = QREmbedding(11, 4, num_buckets=4)
    two = CompositionalEmbedding(11, 4, sizes=(4, 3))
    for layer in (qr, two):
        layer.build()
    quotient, remainder = qr.get_weights()
    two.set_weights([remainder, quotient])
    np.testing.assert_array_equal(array(two(IDS)), array(qr(IDS)))


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has no int64 without x64")
def test_a_million_millions():
    layer = CompositionalEmbedding(10**12, 2, sizes=(10**4,) * 3)
    ids = np.array([0, 10**12 - 1, 123_456_789_012, 2**32, 2**32 + 1])
    got = np.stack([array(part) for part in layer.split(tensor(ids))], axis=1)
    want = [[i % 10**4, i // 10**4 % 10**4, i // 10**8] for i in ids.tolist()]
    np.testing.assert_array_equal(got, want)
    vectors = array(layer(ids))
    assert len(np.unique(vectors, axis=0)) == len(ids)
    assert layer.count_params() == 60_000
    with pytest.raises(ValueError, match=r"\[0, 1000000000000\).*id 1000000000000"):
        layer(np.array([10**12]))


@pytest.mark.parametrize("combiner", ["multiply", "add", "concat", "stack"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_starts_with_the_spread_of_a_plain_table(combiner, count):
    layer = CompositionalEmbedding(10_000, 16, num_partitions=count, combiner=combiner)
    std = array(layer(np.arange(10_000))).std()
    assert std == pytest.approx(0.05 / 3**0.5, rel=0.3)


@pytest.mark.parametrize("kind", PARTITIONS)
def test_gradients_reach_the_rows_of_the_batch(kind):
    layer = CompositionalEmbedding(11, 3, combiner="add", **PARTITIONS[kind])
    layer.build()
    _, gradients = output_and_gradients(layer, np.array([9, 9]), np.ones((2, 3)))
    classes = classes_of(9, kind, layer.sizes)
    for gradient, row in zip(gradients, classes, strict=True):
        np.testing.assert_array_equal(np.flatnonzero(gradient.any(axis=1)), [row])
        np.testing.assert_array_equal(gradient[row], [2, 2, 2])


def test_given_classes_stay_out_of_the_config():
    layer = CompositionalEmbedding(11, 3, partition=[BRAND, RANK])
    assert layer.sizes == (3, 4)
    config = layer.get_config()
    assert config["partition"] == "given"
    assert "array" not in str(config)
    layer.build()
    again = CompositionalEmbedding.from_config(config)
    again.build()
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(array(again(IDS)), array(layer(IDS)))


def test_grows_by_its_last_digit():
    layer = CompositionalEmbedding(11, 4, sizes=(2, 3, 2))
    layer.build()
    assert layer.grow(12).sizes == (2, 3, 2)
    grown = layer.grow(40)
    assert grown.sizes == (2, 3, 7)
    everything = np.arange(11)
    np.testing.assert_array_equal(array(grown(everything)), array(layer(everything)))


def test_grows_within_its_moduli():
    layer = CompositionalEmbedding(11, 4, **PARTITIONS["chinese_remainder"])
    layer.build()
    grown = layer.grow(12)
    everything = np.arange(11)
    np.testing.assert_array_equal(array(grown(everything)), array(layer(everything)))
    with pytest.raises(ValueError, match="multiple of at least 13.*tell 12 ids"):
        layer.grow(13)
    given = CompositionalEmbedding(11, 4, partition=[BRAND, RANK])
    given.build()
    with pytest.raises(ValueError, match="`partition` must be no list of arrays"):
        given.grow(12)


def test_for_vocab():
    small = CompositionalEmbedding.for_vocab(200, 6, num_partitions=2)
    large = CompositionalEmbedding.for_vocab(201, 6, num_partitions=2)
    assert type(small) is FullEmbedding
    assert type(large) is CompositionalEmbedding
    assert small.compute_output_shape((3,)) == large.compute_output_shape((3,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partition": "radix"}, "`partition` must be 'mixed_radix'.*'radix'"),
        ({"sizes": (2, 5)}, r"product of at least 11.*\(2, 5\), which tell 10 ids"),
        (
            {"sizes": (4, 6), "partition": "chinese_remainder", "input_dim": 13},
            "common multiple of at least 13.*tell 12 ids apart",
        ),
        ({"sizes": (4, 3), "num_partitions": 3}, "`num_partitions` must be left out"),
        ({"partition": []}, "`partition` must hold at least one array"),
        ({"partition": [BRAND[:-1]]}, r"`partition\[0\]` must be.*\(11,\)"),
        ({"partition": [BRAND * 1.0]}, r"`partition\[0\]` must be.*float64"),
        ({"partition": [BRAND - 1]}, r"`partition\[0\]` must hold classes.*-1 to 1"),
        ({"partition": [BRAND, BRAND]}, r"ids 0 and 1 both with \[0, 0\]; 3 of 11"),
        (
            {"partition": [BRAND, RANK], "sizes": (2, 4)},
            r"`sizes\[0\]` must be above every class.*size 2, class 2",
        ),
        ({"combiner": "concat", "output_dim": 2}, "`output_dim` must be at least 3"),
    ],
)
def test_says_what_was_given(arguments, message):
    with pytest.raises(ValueError, match=message):
        CompositionalEmbedding(**{"input_dim": 11, "output_dim": 4, **arguments})


def test_many_given_classes_need_a_word():
    n = 10**7 + 1
    partition = [np.arange(n, dtype="int32")]
    with pytest.raises(ValueError, match="`assume_complementary` must be True"):
        CompositionalEmbedding(n, 1, partition=partition)
    CompositionalEmbedding(n, 1, partition=partition, assume_complementary=True)


def test_given_classes_that_are_not_loaded_are_loud():
    layer = CompositionalEmbedding(11, 3, partition=[BRAND, RANK])
    layer.build()
    again = CompositionalEmbedding.from_config(layer.get_config())
    assert np.isnan(array(again(IDS))).all()
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(array(again(IDS)), array(layer(IDS)))
