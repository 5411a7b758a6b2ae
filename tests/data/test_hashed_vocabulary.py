import copy
import json
import pickle

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from keras_recsys.data import HashedVocabulary, Vocabulary
from keras_recsys.data.hashed_vocabulary import HashedVocabularyLookup

RNG = np.random.default_rng(0)
WORDS = ["b", "a", "", "[UNK]", "Ünïcode", "a\0b", "0", "-1"]
NUMBERS = [2**53 + 1, 2**53, 2**31, -1, 0, 2**63 - 1, -(2**63), 77]


def encode_loop(column, num_buckets, padding, salt):
    """The layout of the docstring, one value at a time, by the op of TensorFlow."""
    ids = []
    for value in column:
        text = [str(value)]
        if salt is None:
            (bucket,) = tf.strings.to_hash_bucket_fast(text, num_buckets).numpy()
        else:
            hashed = tf.strings.to_hash_bucket_strong(text, num_buckets, [salt, salt])
            (bucket,) = hashed.numpy()
        ids.append(int(padding) if value is None else int(padding) + 1 + int(bucket))
    return ids


@pytest.mark.parametrize("salt", [None, 1, 2**63 - 1])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("column", [WORDS, NUMBERS])
def test_equals_the_loop(column, padding, salt):
    dtype = "string" if column is WORDS else "int64"
    vocabulary = HashedVocabulary(50, dtype=dtype, padding=padding, salt=salt)
    assert vocabulary.size == padding + 1 + 50
    assert vocabulary.dtype == dtype
    ids = vocabulary.encode([*column, None])
    assert ids.dtype == np.int32
    assert ids.tolist() == encode_loop([*column, None], 50, padding, salt)


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("num_buckets", [1, 2, 7])
def test_no_value_gets_the_ids_of_padding_and_of_missing_values(num_buckets, padding):
    codes = RNG.integers(0, 128, (2000, 6))
    words = ["".join(map(chr, row[: row[0] % 6])) for row in codes]
    numbers = RNG.integers(-(2**63), 2**63 - 1, 2000)
    first = padding + 1
    for column, dtype in ((words, "string"), (numbers, "int64")):
        vocabulary = HashedVocabulary(num_buckets, dtype=dtype, padding=padding)
        want = list(range(first, first + num_buckets))
        assert np.unique(vocabulary.encode(column)).tolist() == want


def test_by_hand():  # what keras.layers.Hashing shows in its own documentation
    vocabulary = HashedVocabulary(3)
    assert vocabulary.encode(["A", "B", "C", "D", "E"]).tolist() == [2, 1, 2, 2, 3]
    salted = HashedVocabulary(3, salt=133, padding=True)
    assert salted.encode(["A", "B", "C", "D", "E"]).tolist() == [2, 2, 4, 3, 2]


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([7, None, 8], dtype="Int64"),
        np.array([7, np.nan, 8]),
        [7, pd.NA, 8],
        np.ma.array([7, 1, 8], mask=[0, 1, 0]),
    ],
)
def test_missing_values_have_an_id_of_their_own(column):
    vocabulary = HashedVocabulary(10**6, dtype="int64", padding=True)
    first, missing, last = vocabulary.encode(column).tolist()
    assert missing == 1
    assert [first, last] == vocabulary.encode([7, 8]).tolist()


def test_columns_without_any_value():
    for vocabulary in (HashedVocabulary(5), HashedVocabulary(5, dtype="int64")):
        assert vocabulary.encode([None, float("nan")]).tolist() == [0, 0]
        assert vocabulary.encode([]).shape == (0,)


def test_separator():
    vocabulary = HashedVocabulary(1000, separator="|")
    assert vocabulary.padding is True
    a, b = vocabulary.encode(["a", "b"])[:, 0].tolist()
    assert min(a, b) >= 2
    got = vocabulary.encode(["b||a|", "", None, "a"])
    assert got.tolist() == [[b, a], [0, 0], [1, 0], [a, 0]]
    got = vocabulary.encode(["b|a", ""], max_len=1)
    assert got.tolist() == [[b], [0]]
    single = HashedVocabulary(1000, padding=True)
    assert single.encode(["a", "b"]).tolist() == [a, b]


CASES = [
    (HashedVocabulary(9, padding=True), ["b", "zz", "", "a", "y"]),
    (HashedVocabulary(9, dtype="int64", salt=5), [2**53, 2**53 + 1, -1, 3]),
    (HashedVocabulary(2**40), ["b", "zz"]),
    (HashedVocabulary(9, separator="|", salt=7), ["b|a|x|y", "", "||a", "x"]),
]


@pytest.mark.parametrize(("vocabulary", "column"), CASES)
def test_lookup_agrees_with_encode(vocabulary, column, tmp_path):
    module = tf.Module()
    module.lookup = vocabulary.lookup()
    tensor = tf.constant(column, vocabulary.dtype)
    signature = [tf.TensorSpec([None], vocabulary.dtype)]
    module.run = tf.function(module.lookup, input_signature=signature)
    tf.saved_model.save(module, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    want = vocabulary.encode(column)
    for function in (module.lookup, tf.function(module.lookup), loaded.run):
        got = function(tensor)
        assert got.dtype.name == vocabulary.id_dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("vocabulary", "column"), CASES)
def test_lookup_in_a_keras_model(vocabulary, column, tmp_path):
    max_len = 2 if vocabulary.separator else None
    inputs = keras.Input(shape=(), dtype=vocabulary.dtype, name="raw")
    ids = vocabulary.lookup(max_len=max_len)(inputs)
    assert tuple(ids.shape) == ((None, 2) if max_len else (None,))
    assert ids.dtype == vocabulary.id_dtype
    model = keras.Model(inputs, ids)
    tensor = tf.constant(column, vocabulary.dtype)
    want = vocabulary.encode(column, max_len=max_len)
    np.testing.assert_array_equal(model(tensor), want)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(tensor), want)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_all_integer_tensors_have_equal_ids(dtype):
    vocabulary = HashedVocabulary(10**6, dtype="int64")
    got = vocabulary.lookup()(tf.constant([[5, 77]], dtype))
    assert got.numpy().tolist() == [vocabulary.encode([5, 77]).tolist()]


def test_ragged_tensors():
    rows = tf.ragged.constant([["a", "b"], [], ["b"]])
    padded = HashedVocabulary(100, padding=True)
    a, b = padded.encode(["a", "b"]).tolist()
    assert padded.lookup()(rows).numpy().tolist() == [[a, b], [0, 0], [b, 0]]
    ragged = HashedVocabulary(100).lookup()(rows)
    assert ragged.to_list() == [[a - 1, b - 1], [], [b - 1]]
    deep = tf.ragged.constant([[["a"], ["b", "a"]], []])
    got = HashedVocabulary(100).lookup()(deep)
    assert got.to_list() == [[[a - 1], [b - 1, a - 1]], []]
    with pytest.raises(ValueError, match="`inputs` must be of rank 2.*None, None"):
        padded.lookup()(deep)
    with pytest.raises(ValueError, match=r"`inputs` must be of shape \(batch_size,\)"):
        HashedVocabulary(100, separator="|").lookup()(rows)


def test_lookup_keeps_its_config():
    layer = CASES[3][0].lookup(max_len=4)
    config = json.loads(json.dumps(layer.get_config()))
    again = HashedVocabularyLookup.from_config(config)
    assert again.get_config() == layer.get_config()
    assert again.vocabulary == layer.vocabulary
    column = tf.constant(["a|b"])
    np.testing.assert_array_equal(again(column), layer(column))


def test_encode_inside_a_function_being_traced():
    vocabulary = HashedVocabulary(5)

    @tf.function
    def double(x):
        return x * vocabulary.encode(["b", "a"])

    want = 2 * vocabulary.encode(["b", "a"])
    assert double(tf.constant(2)).numpy().tolist() == want.tolist()


def test_id_dtype():
    assert HashedVocabulary(2**31 - 2).id_dtype == "int32"
    assert HashedVocabulary(2**31 - 2, padding=True).id_dtype == "int64"
    assert HashedVocabulary(2**62, padding=True).encode(["a"])[0] > 1


@pytest.mark.parametrize("vocabulary", [case[0] for case in CASES])
def test_config_equality_and_copies(vocabulary):
    vocabulary.encode([])  # makes the cached layer
    config = json.loads(json.dumps(vocabulary.get_config()))
    for again in (
        HashedVocabulary.from_config(config),
        pickle.loads(pickle.dumps(vocabulary)),
        copy.deepcopy(vocabulary),
    ):
        assert again == vocabulary
        assert hash(again) == hash(vocabulary)
        assert repr(again) == repr(vocabulary)
    for key, value in (("num_buckets", 10), ("salt", 99)):
        assert HashedVocabulary.from_config({**config, key: value}) != vocabulary
    assert vocabulary != Vocabulary(["a"])
    assert vocabulary != config


def test_repr():
    assert repr(HashedVocabulary(9, padding=True, salt=3)) == (
        "<HashedVocabulary of 9 buckets, size=11, dtype='string', padding=True, "
        "separator=None, salt=3>"
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_buckets": 0}, ValueError, "`num_buckets`.*=0"),
        ({"num_buckets": 1.0}, TypeError, "`num_buckets`.*=1.0"),
        ({"num_buckets": 2**63}, ValueError, f"`num_buckets`.*={2**63}"),
        ({"dtype": "int32"}, ValueError, "`dtype`.*='int32'"),
        ({"dtype": "int64", "separator": "|"}, ValueError, "`dtype`.*separator='|'"),
        ({"padding": 1}, TypeError, "`padding`.*=1"),
        ({"separator": ""}, ValueError, "`separator`.*=''"),
        ({"salt": 0}, ValueError, "`salt`.*=0"),
        ({"salt": (1, 2)}, TypeError, r"`salt`.*=\(1, 2\)"),
        ({"salt": 2**63}, ValueError, f"`salt`.*={2**63}"),
    ],
)
def test_says_what_argument_was_given(arguments, error, message):
    with pytest.raises(error, match=message):
        HashedVocabulary(**{"num_buckets": 5, **arguments})


def test_encode_says_what_is_wrong():
    with pytest.raises(TypeError, match="`column`.*dtype 'string'.*5 at row 1"):
        HashedVocabulary(5).encode([None, 5])
    with pytest.raises(TypeError, match="`column`.*dtype 'int64'.*'a' at row 0"):
        HashedVocabulary(5, dtype="int64").encode(["a"])
    with pytest.raises(ValueError, match="`max_len` must be None.*=3"):
        HashedVocabulary(5).encode(["a"], max_len=3)
    with pytest.raises(TypeError, match="'string'.*'int64'"):
        HashedVocabulary(5).lookup()(tf.constant([1], "int64"))
    with pytest.raises(NotImplementedError, match="several share an id"):
        HashedVocabulary(5).decode([1])
