import fractions
import json

import keras
import numpy as np
import pytest
from helpers import BACKEND, array, check_layer, tensor
from twins import DTYPE, assert_near

from keras_recsys.layers import TimeBucketEmbedding

EDGES = [2**k + i for k in range(44) for i in (-1, 0, 1)]
DTYPES = ["int32", "int64", "uint32", "uint64", "float16", "float32", "float64"]


def bucket_loop(times, unit=1, num_buckets=46):
    """The number of binary digits of each time in units, in exact fractions."""
    units = [fractions.Fraction(x) / fractions.Fraction(unit) for x in times]
    digits = [int(max(x, 0)).bit_length() for x in units]
    return [min(x, num_buckets - 1) for x in digits]


def exact(times, dtype):
    """Those of the times that the dtype holds, and an array of them."""
    if "float" in dtype:
        largest = float(np.finfo(dtype).max)
        kept = [
            x for x in times if abs(x) <= largest and float(np.array(x, dtype)) == x
        ]
    else:
        kept = [x for x in times if x == int(x) and x <= np.iinfo(dtype).max]
        kept = [int(x) for x in kept if x >= 0 or dtype.startswith("int")]
    return kept, np.array(kept, dtype)


def test_contract(tmp_path):
    x = np.array([[0.0, 0.5, -3.0], [1.75, 40.0, 2e9]], "float32")
    check_layer(
        lambda: TimeBucketEmbedding(
            3,
            9,
            time_unit=0.5,
            embeddings_initializer=keras.initializers.RandomNormal(seed=3),
        ),
        x,
        tmp_path,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_powers_of_two_are_exact(dtype):
    times, x = exact([*EDGES, -1, -(2**20), 0, 2**50], dtype)
    assert len(times) > 20
    layer = TimeBucketEmbedding(1, 46)
    # NumPy times of 64 bits count as they are, also where the backend has no 64 bits.
    np.testing.assert_array_equal(array(layer.buckets(x)), bucket_loop(times))
    wide = dtype in ("int64", "uint64", "float64")
    if (BACKEND == "jax" and wide) or (BACKEND == "torch" and dtype[0] == "u"):
        return  # the backend has no tensors of it
    got = layer.buckets(keras.ops.convert_to_tensor(x, dtype=dtype))
    np.testing.assert_array_equal(array(got), bucket_loop(times))


@pytest.mark.parametrize("dtype", ["int64", "float64", "float32"])
@pytest.mark.parametrize("unit", [0.5, 86_400, 0.375])
def test_units_are_exact(unit, dtype):
    bounds = [unit * 2**k for k in range(30)]
    times, x = exact([b + i for b in bounds for i in (-1, -0.125, 0, 0.125, 1)], dtype)
    layer = TimeBucketEmbedding(1, 46, time_unit=unit)
    np.testing.assert_array_equal(array(layer.buckets(x)), bucket_loop(times, unit))


def test_fraction_of_a_unit_in_whole_numbers():
    # A tenth is no binary fraction; the bounds are rounded up to whole numbers.
    layer = TimeBucketEmbedding(1, 46, time_unit=0.1)
    times = list(range(200))
    want = bucket_loop(times, 0.1)
    got = array(layer.buckets(np.array(times, "int32")))
    np.testing.assert_array_equal(got, want)


def test_by_hand():
    """A minute is the unit; five buckets, the last from eight minutes on."""
    layer = TimeBucketEmbedding(1, 5, time_unit=60)
    x = np.array([-5, 0, 59, 60, 119, 120, 479, 480, 10**9], "int32")
    want = [0, 0, 0, 1, 1, 2, 3, 4, 4]
    np.testing.assert_array_equal(array(layer.buckets(x)), want)
    layer.build(x.shape)
    layer.set_weights([np.array([[10.0], [11.0], [12.0], [13.0], [14.0]])])
    np.testing.assert_array_equal(array(layer(x))[:, 0], np.array(want) + 10.0)


def test_equals_the_loop():
    rng = np.random.default_rng(0)
    x = np.round(2.0 ** rng.uniform(-2, 12, size=(3, 2, 5)), 2).astype("float32")
    layer = TimeBucketEmbedding(4, 9, time_unit=3, dtype=DTYPE)
    layer.build(x.shape)
    table = rng.normal(size=(9, 4))
    layer.set_weights([table])
    rows = np.reshape(bucket_loop(map(float, x.ravel()), 3, 9), x.shape)
    assert_near(array(layer(tensor(x))), table[rows])


def test_numbers_at_the_ends():
    layer = TimeBucketEmbedding(2, 33)
    for dtype in ("float16", "float32", "float64"):
        x = np.array([np.nan, np.inf, -np.inf, -0.0, 1.0], dtype)
        np.testing.assert_array_equal(array(layer.buckets(x))[1:], [32, 0, 0, 1])
        got = array(layer(x))
        assert np.isnan(got[0]).all()
        assert np.isfinite(got[1:]).all()
    for dtype in ("int64", "uint64", "uint32"):
        x = np.array([0, np.iinfo(dtype).max], dtype)
        np.testing.assert_array_equal(array(layer.buckets(x)), [0, 32])
    assert array(layer(np.zeros((0, 4), "int32"))).shape == (0, 4, 2)
    # Bounds past the largest float32, and past the largest whole number.
    many = TimeBucketEmbedding(2, 200)
    x = np.array([5.0, np.inf, 2.0**127], "float32")
    np.testing.assert_array_equal(array(many.buckets(x)), [3, 199, 128])
    large = TimeBucketEmbedding(2, time_unit=1e30)
    np.testing.assert_array_equal(array(large.buckets(np.array([5], "int32"))), [0])


@pytest.mark.skipif(BACKEND != "jax", reason="JAX has no 64 bits")
def test_numpy_times_of_64_bits_are_not_cut():
    layer = TimeBucketEmbedding(3, 62)
    x = np.array([2**40, 2**40 - 1, 2**60 - 1, 2**60, -7])
    want = [41, 40, 60, 61, 0]
    np.testing.assert_array_equal(array(layer.buckets(x)), want)
    np.testing.assert_array_equal(array(layer(x)), array(layer.embeddings)[want])


@pytest.mark.skipif(BACKEND != "tensorflow", reason="compiles with TensorFlow")
@pytest.mark.parametrize("dtype", ["int64", "float16"])
def test_any_shape_with_xla(dtype):
    import tensorflow as tf

    layer = TimeBucketEmbedding(2, 20, dtype="mixed_float16")
    layer.build((None,))
    spec = [tf.TensorSpec((None, None), dtype)]
    run = tf.function(lambda x: layer(x), spec, jit_compile=True)
    x = np.array([[0, 1, 2, 3], [4, 7, 8, 60_000]], dtype)
    got = run(x)
    assert got.dtype == "float16"
    np.testing.assert_array_equal(got.numpy(), layer(x).numpy())


@pytest.mark.parametrize(
    "unit", [np.int64(86_400), np.float32(0.5), 86_400, 0.5], ids=repr
)
def test_unit_of_any_number_is_saved(unit):
    config = TimeBucketEmbedding(2, 70, time_unit=unit).get_config()
    again = TimeBucketEmbedding.from_config(json.loads(json.dumps(config)))
    assert again.get_config() == config
    assert again.bounds[-1] == int(2 * unit) * 2**67


def test_says_what_was_given():
    for name in ("output_dim", "num_buckets"):
        sizes = {"output_dim": 2, "num_buckets": 3}
        with pytest.raises(TypeError, match=f"`{name}` must be an integer.*=2.5"):
            TimeBucketEmbedding(**{**sizes, name: 2.5})
        with pytest.raises(ValueError, match=f"`{name}` must be at least .*=0"):
            TimeBucketEmbedding(**{**sizes, name: 0})
    with pytest.raises(ValueError, match=r"`num_buckets` must be at least 2.*=1"):
        TimeBucketEmbedding(2, 1)


@pytest.mark.parametrize("unit", [0, -1.0, float("nan"), float("inf"), "day", True])
def test_says_what_unit_was_given(unit):
    with pytest.raises(ValueError, match=f"`time_unit` must be .*time_unit={unit!r}"):
        TimeBucketEmbedding(2, time_unit=unit)
