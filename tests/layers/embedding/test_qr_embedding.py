import keras
import numpy as np
import pytest
from helpers import BACKEND, array, check_layer, output_and_gradients, tensor

from keras_recsys._lookup import safe_ids
from keras_recsys.layers import FullEmbedding, QREmbedding

IDS = np.array([[0, 3, 9], [5, 0, 10]], "int32")
OUTSIDE = np.array([[0, 3, 11], [5, -1, 10]], "int32")
COMBINERS = ("multiply", "add", "concat")


def qr_loop(ids, quotient, remainder, combiner):
    """The formula of the docstring, one id at a time, in float64."""
    num_buckets = len(remainder)
    rows = []
    for i in ids.ravel().tolist():
        a, b = quotient[i // num_buckets], remainder[i % num_buckets]
        rows.append(
            {"multiply": a * b, "add": a + b, "concat": [*a, *b]}[combiner]
            if combiner == "concat"
            else (a * b if combiner == "multiply" else a + b)
        )
    return np.array(rows, "float64").reshape(*ids.shape, -1)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_contract(combiner, tmp_path):
    check_layer(
        lambda: QREmbedding(11, 5, num_buckets=4, combiner=combiner, mask_zero=True),
        IDS,
        tmp_path,
    )


@pytest.mark.parametrize("out_of_range", ["nan", "zero", "mod", "oov"])
def test_contract_of_the_policies(out_of_range, tmp_path):
    check_layer(
        lambda: QREmbedding(
            11,
            4,
            num_buckets=20,
            out_of_range=out_of_range,
            embeddings_initializer="ones",
            mask_zero=True,
            zero_masked=True,
        ),
        OUTSIDE if out_of_range == "oov" else IDS,
        tmp_path,
    )


@pytest.mark.parametrize("combiner", [*COMBINERS, "stack"])
@pytest.mark.parametrize("pool_first", [True, False])
def test_contract_of_bags(combiner, pool_first, tmp_path):
    check_layer(
        lambda: QREmbedding(
            11,
            5,
            combiner=combiner,
            mask_zero=True,
            pooling="sqrtn",
            pool_first=pool_first,
            shuffle_seed=3,
        ),
        IDS,
        tmp_path,
    )


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("num_buckets", [1, 3, 4, 11, 20])
def test_equals_the_loop(combiner, num_buckets):
    layer = QREmbedding(11, 6, num_buckets=num_buckets, combiner=combiner)
    layer.build()
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=w.shape) for w in layer.weights]
    layer.set_weights(tables)
    want = qr_loop(IDS, *tables, combiner)
    np.testing.assert_allclose(array(layer(IDS)), want, rtol=1e-5, atol=1e-6)


def test_by_hand():
    layer = QREmbedding(5, 2, num_buckets=2, combiner="multiply")
    layer.build()
    quotient, remainder = [[1, 2], [3, 4], [5, 6]], [[10, 20], [1, -1]]
    layer.set_weights([np.array(quotient), np.array(remainder)])
    # ids 0..4 are (0, 0), (0, 1), (1, 0), (1, 1), (2, 0)
    want = [[10, 40], [1, -2], [30, 80], [3, -4], [50, 120]]
    np.testing.assert_array_equal(array(layer(np.arange(5))), want)


def test_every_id_has_its_own_pair_of_rows():
    for num_ids in range(1, 201, 7):
        for num_buckets in range(1, num_ids + 4, 3):
            layer = QREmbedding(num_ids, 1, num_buckets=num_buckets)
            ids = tensor(np.arange(num_ids, dtype="int32"))
            quotients, remainders = map(array, layer.split(ids))
            rows = -(-num_ids // num_buckets)
            assert quotients.max() == rows - 1
            assert remainders.max() < num_buckets
            assert len({*zip(quotients, remainders, strict=True)}) == num_ids


@pytest.mark.parametrize(
    ("input_dim", "num_buckets"),
    [(1, 1), (2, 2), (10, 4), (10_000, 100), (10_001, 101)],
)
def test_default_buckets_are_the_root(input_dim, num_buckets):
    layer = QREmbedding(input_dim, 2)
    assert layer.num_buckets == num_buckets
    layer.build()
    assert layer.count_params() == 2 * (-(-input_dim // num_buckets) + num_buckets)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_starts_with_the_spread_of_a_plain_table(combiner):
    layer = QREmbedding(10_000, 16, num_buckets=100, combiner=combiner)
    std = array(layer(np.arange(10_000))).std()
    assert std == pytest.approx(0.05 / 3**0.5, rel=0.15)


def test_start_around_one():
    layer = QREmbedding(400, 64, embeddings_initializer="ones")
    layer.build()
    quotient, remainder = layer.get_weights()
    assert abs(quotient.mean()) < 0.005
    assert np.abs(quotient).max() <= 0.05
    assert abs(remainder.mean() - 1) < 0.005
    assert np.abs(remainder - 1).max() <= 0.05 + 1e-6


def test_start_of_dlrm():
    layer = QREmbedding(400, 64, embeddings_initializer="dlrm")
    layer.build()
    for table in layer.get_weights():
        assert table.min() >= 1 / 20
        assert table.max() <= 1
        assert table.mean() == pytest.approx(0.525, abs=0.03)


def test_tables_of_one_seeded_initializer_differ():
    initializer = keras.initializers.RandomNormal(seed=3)
    layer = QREmbedding(16, 8, num_buckets=4, embeddings_initializer=initializer)
    layer.build()
    quotient, remainder = layer.get_weights()
    assert quotient.shape == remainder.shape
    assert np.abs(quotient - remainder).min() > 0


def test_zeros_with_multiply_never_train():
    layer = QREmbedding(
        11, 4, embeddings_initializer=keras.initializers.Zeros(), num_buckets=4
    )
    layer.build()
    _, gradients = output_and_gradients(layer, IDS)
    assert not any(np.any(g) for g in gradients)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_trains_as_well_as_a_plain_table(combiner):
    """Every id has its own number to learn; the tables have rows for all of them."""
    ids = np.arange(12, dtype="int32")
    rng = np.random.default_rng(0)
    target = np.outer(rng.normal(size=3), rng.normal(size=4)).reshape(12, 1)

    def final_loss(layer):
        keras.utils.set_random_seed(1)
        x = keras.Input((), dtype="int32")
        model = keras.Model(x, keras.layers.Dense(1)(layer(x)))
        model.compile(keras.optimizers.Adam(0.05), "mse")
        for _ in range(150):
            loss = model.train_on_batch(ids, target)
        return float(loss)

    plain = final_loss(FullEmbedding(12, 8))
    got = final_loss(QREmbedding(12, 8, num_buckets=4, combiner=combiner))
    assert plain < 1e-2
    # Added or joined rows cannot make every table of numbers; a product of rank 1 can.
    assert got < (1e-2 if combiner == "multiply" else 0.5)


@pytest.mark.parametrize("bad", [-1, 11, 12, 2**31 - 1])
def test_ids_outside_are_refused_by_name(bad):
    layer = QREmbedding(11, 4, num_buckets=4, name="city")  # 3 * 4 = 12 rows
    with pytest.raises(ValueError, match=rf"'city' must be .*\[0, 11\).*id {bad}"):
        layer(np.array([[0, bad]]))


def test_policies_outside():
    ids = np.array([[1, -1, 11, 25]])
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(3, 4)), rng.normal(size=(4, 4))]
    got = {}
    for policy in ("nan", "zero", "mod", "oov"):
        layer = QREmbedding(11, 4, num_buckets=4, out_of_range=policy)
        layer.build()
        layer.set_weights(
            [*tables, *([np.array([[1, 2, 3, 4]])] if policy == "oov" else [])]
        )
        got[policy] = array(layer(ids))[0]
        np.testing.assert_array_equal(got[policy][0], got["nan"][0])
    assert np.isnan(got["nan"][1:]).all()
    assert not got["zero"][1:].any()
    inside = QREmbedding(11, 4, num_buckets=4)
    inside.build()
    inside.set_weights(tables)
    wrapped = array(inside(np.array([10, 0, 3])))  # -1, 11 and 25 modulo 11
    np.testing.assert_array_equal(got["mod"][1:], wrapped)
    np.testing.assert_array_equal(got["oov"][1:], [[1, 2, 3, 4]] * 3)


def test_zero_policy_has_no_gradient():
    layer = QREmbedding(11, 4, num_buckets=4, out_of_range="zero")
    layer.build()
    _, gradients = output_and_gradients(layer, np.array([[-1, 11]]))
    assert not any(np.any(g) for g in gradients)


def test_regularizer_acts_on_the_vectors_of_the_batch():
    layer = QREmbedding(11, 4, num_buckets=4, embeddings_regularizer="l2")
    vectors = array(layer(IDS)).astype("float64")
    (loss,) = layer.losses
    np.testing.assert_allclose(array(loss), 0.01 * (vectors**2).sum() / 2, rtol=1e-5)


def test_int64_ids_keep_all_their_bits():
    if BACKEND == "jax":
        with pytest.raises(ValueError, match=r"at most 2\*\*31 on JAX"):
            QREmbedding(2**33, 1, num_buckets=2**20)
        layer = QREmbedding(10, 1)
        with pytest.raises(ValueError, match=r"must be whole ids in \[0, 10\)"):
            layer(np.array([5, 5 + 2**32]))
        return
    layer = QREmbedding(2**33, 1, num_buckets=2**20)
    layer.build()
    ids = np.array([5, 5 + 2**32], "int64")
    safe, in_range = safe_ids(tensor(ids), 2**33, "error")
    assert array(in_range).all()
    quotients, remainders = layer.split(safe)
    assert array(quotients).tolist() == [0, 4096]
    assert array(remainders).tolist() == [5, 5]
    first, second = array(layer(ids))
    assert first != second


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has no int64 without x64")
def test_mod_by_a_size_beyond_int32():
    layer = QREmbedding(2**31, 2, out_of_range="mod")
    got = array(layer(np.array([3, 100_000], "int32")))
    np.testing.assert_array_equal(got, array(layer(np.array([3, 100_000], "int64"))))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int64"])
def test_other_integer_types(dtype):
    layer = QREmbedding(11, 4)
    np.testing.assert_array_equal(array(layer(IDS.astype(dtype))), array(layer(IDS)))


def test_floats_that_count_are_taken():
    layer = QREmbedding(11, 4)
    np.testing.assert_array_equal(
        array(layer(IDS.astype("float32"))), array(layer(IDS))
    )
    with pytest.raises(ValueError, match=r"\[0, 11\).*id 1.5"):
        layer(np.array([1.5], "float32"))


def test_floats_that_merge_ids_are_refused():
    with pytest.raises(ValueError, match="float32 merges ids above 16777216"):
        QREmbedding(2**24 + 1, 4)(np.array([3.0], "float32"))


def test_mask():
    plain = QREmbedding(11, 4)
    assert plain.compute_mask(tensor(IDS)) is None
    layer = QREmbedding(11, 4, mask_zero=True)
    np.testing.assert_array_equal(array(layer.compute_mask(tensor(IDS))), IDS != 0)
    assert array(layer(IDS))[0, 0].any()  # its rows belong to other ids as well
    zeroed = QREmbedding(11, 4, mask_zero=True, zero_masked=True)
    got = array(zeroed(IDS))
    assert not got[IDS == 0].any()
    assert got[IDS != 0].all()


def test_works_on_ids_of_any_rank():
    layer = QREmbedding(11, 4)
    assert array(layer(np.array([3]))).shape == (1, 4)
    assert array(layer(np.zeros((2, 3, 4), "int32"))).shape == (2, 3, 4, 4)
    assert array(layer(np.zeros((0, 3), "int32"))).shape == (0, 3, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_dim": 0}, "`input_dim` must be at least 1.*input_dim=0"),
        ({"output_dim": -2}, "`output_dim` must be at least 1.*output_dim=-2"),
        ({"num_buckets": 0}, "`num_buckets` must be at least 1.*num_buckets=0"),
        ({"combiner": "mult"}, "`combiner` must be one of 'multiply'.*'mult'"),
        (
            {"combiner": "add", "embeddings_initializer": "ones"},
            "must not be 'ones' where.*combiner='add'",
        ),
        (
            {"embeddings_initializer": np.zeros((11, 4))},
            r"`FullEmbedding` takes pretrained vectors.*\(11, 4\)",
        ),
        ({"pool_first": True}, "`pool_first` must be False.*pooling=None"),
        (
            {"pool_first": True, "pooling": "sum", "out_of_range": "oov"},
            "`pool_first` must be False.*out_of_range='oov'",
        ),
        (
            {"combiner": "stack", "out_of_range": "oov"},
            "`out_of_range` must not be 'oov'",
        ),
        ({"shuffle_seed": -1}, "`shuffle_seed` must be at least 0.*=-1"),
        ({"out_of_range": "clip"}, "`out_of_range` must be one of.*'clip'"),
        ({"zero_masked": True}, "`zero_masked` must be False.*mask_zero=False"),
        (
            {"combiner": "concat", "output_dim": 1},
            "`output_dim` must be at least 2.*output_dim=1",
        ),
    ],
)
def test_says_what_was_given(arguments, message):
    with pytest.raises(ValueError, match=message):
        QREmbedding(**{"input_dim": 11, "output_dim": 4, **arguments})


@pytest.mark.parametrize("name", ["input_dim", "output_dim", "num_buckets"])
def test_sizes_are_integers(name):
    arguments = {"input_dim": 11, "output_dim": 4, name: 2.5}
    with pytest.raises(TypeError, match=rf"`{name}` must be an integer.*{name}=2.5"):
        QREmbedding(**arguments)


def test_pool_first_by_hand():
    layer = QREmbedding(
        5, 1, num_buckets=2, pooling="sum", pool_first=True, mask_zero=True
    )
    layer.build()
    layer.set_weights([np.array([[1], [3], [5]]), np.array([[10], [100]])])
    # ids 1 and 4 are (0, 1) and (2, 0): (1 + 5) * (100 + 10), and not 100 + 50
    np.testing.assert_array_equal(array(layer(np.array([[1, 0, 4]]))), [[660]])
    weights = np.array([[2.0, 7.0, -1.0]], "float32")
    got = array(layer(np.array([[1, 0, 4]]), weights=weights))
    np.testing.assert_array_equal(got, [[(2 - 5) * (200 - 10)]])
    layer = QREmbedding(5, 1, num_buckets=2, pooling="sum", mask_zero=True)
    layer.build()
    layer.set_weights([np.array([[1], [3], [5]]), np.array([[10], [100]])])
    np.testing.assert_array_equal(array(layer(np.array([[1, 0, 4]]))), [[150]])


def test_pool_first_treats_ids_outside_like_their_policy():
    ids = np.array([[1, 99, 4]])
    for policy, want in (("zero", 660), ("mod", None), ("nan", np.nan)):
        layer = QREmbedding(
            5, 1, num_buckets=2, pooling="sum", pool_first=True, out_of_range=policy
        )
        layer.build()
        layer.set_weights([np.array([[1], [3], [5]]), np.array([[10], [100]])])
        if want is None:
            want = array(layer(ids % 5))[0, 0]
        np.testing.assert_array_equal(array(layer(ids)), [[want]])


def test_stack_gives_both_rows():
    layer = QREmbedding(5, 2, num_buckets=2, combiner="stack")
    layer.build()
    layer.set_weights(
        [np.array([[1, 2], [3, 4], [5, 6]]), np.array([[10, 20], [1, -1]])]
    )
    got = array(layer(np.array([[3]])))
    np.testing.assert_array_equal(got, [[[[3, 4], [1, -1]]]])
    assert layer.compute_output_shape((None, 1)) == (None, 1, 2, 2)


@pytest.mark.parametrize("input_dim", [1, 2, 10, 97, 1000, 40_000])
def test_shuffle_is_one_to_one_and_separates_neighbours(input_dim):
    layer = QREmbedding(input_dim, 1, shuffle_seed=5)
    order = array(layer._shuffled(tensor(np.arange(input_dim, dtype="int32"))))
    assert sorted(order.tolist()) == list(range(input_dim))
    if input_dim > 100:
        quotients = order // layer.num_buckets
        assert np.mean(quotients[1:] == quotients[:-1]) < 0.1


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has no int64 without x64")
def test_shuffle_of_many_ids():
    layer = QREmbedding(10**12, 1, num_buckets=10**3 + 9, shuffle_seed=5)
    ids = np.random.default_rng(0).integers(0, 10**12, 1000)
    factor, shift = layer._shuffle
    want = [(factor * i + shift) % 10**12 for i in ids.tolist()]
    assert array(layer._shuffled(tensor(ids))).tolist() == want


def test_shuffled_layers_do_not_grow():
    layer = QREmbedding(10, 1, shuffle_seed=5)
    layer.build()
    with pytest.raises(ValueError, match="`shuffle_seed` must be None.*that grows"):
        layer.grow(11)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_grows_by_quotients_alone(combiner):
    layer = QREmbedding(11, 4, num_buckets=4, combiner=combiner, out_of_range="oov")
    layer.build()
    grown = layer.grow(18)
    assert [len(w) for w in grown.get_weights()] == [5, 4, 1]
    everything = np.arange(11)
    np.testing.assert_array_equal(array(grown(everything)), array(layer(everything)))
    np.testing.assert_array_equal(
        array(grown(np.array([18]))), array(layer(np.array([11])))
    )


def test_for_vocab_makes_a_plain_table_of_a_small_one():
    arguments = {"embeddings_initializer": "ones", "name": "x"}
    small = QREmbedding.for_vocab(200, 6, num_buckets=4, **arguments)
    assert type(small) is FullEmbedding
    assert small.name == "x"
    large = QREmbedding.for_vocab(201, 6, num_buckets=4, **arguments)
    assert type(large) is QREmbedding
    assert large.num_buckets == 4
    for layer in (small, large):
        assert array(layer(np.array([3]))).shape == (1, 6)
    assert type(QREmbedding.for_vocab(51, 6, threshold=50)) is QREmbedding
    assert type(QREmbedding.for_vocab(50, 6, threshold=50)) is FullEmbedding


def test_for_vocab_loses_no_argument():
    small = QREmbedding.for_vocab(100, 4, activity_regularizer="l2", pooling="sum")
    assert small.activity_regularizer is not None
    assert small.pooling == "sum"
    with pytest.raises((TypeError, ValueError), match="zero_msked"):
        QREmbedding.for_vocab(100, 4, zero_msked=True)
    with pytest.raises(ValueError, match="`combiner` must not be 'stack'"):
        QREmbedding.for_vocab(100, 4, combiner="stack")
