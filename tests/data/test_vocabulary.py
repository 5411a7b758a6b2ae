import collections
import copy
import json
import pickle

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from keras_recsys.data import Vocabulary
from keras_recsys.data.vocabulary import VocabularyLookup

RNG = np.random.default_rng(0)
WORDS = ["b", "a", "", "[UNK]", "Ünïcode", "a\0b", "new"]
NUMBERS = [2**53 + 1, 2**53, 2**31, -1, 0, 2**63 - 1, -(2**63), 77]


def encode_loop(column, values, num_oov, padding):
    """The layout of the docstring, one value at a time, for one `num_oov` at most."""
    ids = []
    for value in column:
        if value in values:
            ids.append(int(padding) + num_oov + values.index(value))
        else:
            ids.append(int(padding))
    return ids


@pytest.mark.parametrize("num_oov", [0, 1, 3])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("all_values", [WORDS, NUMBERS])
def test_layout(all_values, num_oov, padding):
    values = all_values[:-1]
    vocabulary = Vocabulary(values, num_oov=num_oov, padding=padding)
    first = int(padding) + num_oov
    assert vocabulary.size == first + len(values)
    assert vocabulary.values == tuple(values)
    ids = vocabulary.encode(values)
    assert ids.dtype == np.int32
    assert ids.tolist() == list(range(first, first + len(values)))
    assert ids.tolist() == encode_loop(values, values, num_oov, padding)
    assert vocabulary.decode(ids).tolist() == values
    special = vocabulary.decode(np.arange(first).reshape(1, first))
    assert special.tolist() == [[None] * first]
    if num_oov:
        (unseen,) = vocabulary.encode(all_values[-1:])
        assert int(padding) <= unseen < first
        assert vocabulary.encode([None]).tolist() == [int(padding)]


@pytest.mark.parametrize("all_values", [WORDS, NUMBERS])
def test_equals_the_loop(all_values):
    column = RNG.choice(np.array(all_values, object), 1000)
    vocabulary = Vocabulary.fit(column, max_size=4, padding=True)
    want = encode_loop(column.tolist(), vocabulary.values, 1, True)
    assert vocabulary.encode(column).tolist() == want


def test_fit_orders_by_count_then_value():
    column = ["d", "b", "c", "b", "a", "c", None, "c"]
    assert Vocabulary.fit(column).values == ("c", "b", "a", "d")
    assert Vocabulary.fit(column, min_count=2).values == ("c", "b")
    assert Vocabulary.fit(column, max_size=3).values == ("c", "b", "a")
    assert Vocabulary.fit([3, 10, -2, 10]).values == (10, -2, 3)


def test_fit_on_random_integers_equals_a_counter():
    column = RNG.integers(-20, 20, 500)
    counts = collections.Counter(column.tolist())
    want = sorted(counts, key=lambda value: (-counts[value], value))
    assert Vocabulary.fit(column).values == tuple(want)
    assert all(type(value) is int for value in Vocabulary.fit(column).values)


def test_special_tokens_of_keras_are_values_like_others():
    assert Vocabulary(["[UNK]", "a"]).encode(["a", "[UNK]", "x"]).tolist() == [2, 1, 0]
    assert Vocabulary([-1, 5]).encode([5, -1, 7]).tolist() == [2, 1, 0]
    vocabulary = Vocabulary(["", "a"], padding=True)
    assert vocabulary.encode(["", "a", "x"]).tolist() == [2, 3, 1]


def test_several_oov_ids_as_in_keras():
    layer = keras.layers.StringLookup(
        vocabulary=["a", "b"], num_oov_indices=5, mask_token="<pad>"
    )
    column = ["x", "y", "z", "a", "b", "xyz"]
    vocabulary = Vocabulary(["a", "b"], num_oov=5, padding=True)
    np.testing.assert_array_equal(vocabulary.encode(column), layer(column))
    layer = keras.layers.IntegerLookup(vocabulary=[1, 2], num_oov_indices=5)
    column = [1, 2, 3, 4, -7, 2**40]
    vocabulary = Vocabulary([1, 2], num_oov=5)
    np.testing.assert_array_equal(vocabulary.encode(column), layer(np.array(column)))


@pytest.mark.parametrize(
    "column",
    [
        ["a", "b", "a"],
        ("a", "b", "a"),
        np.array(["a", "b", "a"]),
        np.array(["a", "b", "a"], object),
        pd.Series(["a", "b", "a"], index=[5, 6, 7]),
        pd.Series(["a", "b", "a"], dtype="string"),
        pd.Series(["a", "b", "a"], dtype="category"),
    ],
)
def test_kinds_of_string_columns(column):
    vocabulary = Vocabulary.fit(column)
    assert vocabulary.dtype == "string"
    assert vocabulary.values == ("a", "b")
    assert vocabulary.encode(column).tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    "column",
    [
        [1995, 7, 1995],
        np.array([1995, 7, 1995], "uint16"),
        np.array([1995, 7, 1995], "float32"),
        pd.Series([1995, 7, 1995]),
        pd.Series([1995, 7, 1995], dtype="Int64"),
        pd.Series([1995, 7, 1995], dtype="category"),
    ],
)
def test_kinds_of_integer_columns(column):
    vocabulary = Vocabulary.fit(column)
    assert vocabulary.dtype == "int64"
    assert vocabulary.values == (1995, 7)
    assert vocabulary.encode(column).tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    "column",
    [
        [7, None, 8],
        [7.0, np.nan, 8.0],
        np.array([7, np.nan, 8]),
        np.array([7, np.nan, 8], "float32"),
        pd.Series([7, None, 8]),
        pd.Series([7, None, 8], dtype="Int64"),
        pd.Series(["x", None, "y"]),
        pd.Series(["x", None, "y"], dtype="string"),
        pd.Series(["x", None, "y"], dtype="category"),
        np.array(["x", float("nan"), "y"], object),
    ],
)
def test_missing_values_are_out_of_the_vocabulary(column):
    vocabulary = Vocabulary.fit(column, padding=True)
    assert vocabulary.values in [(7, 8), ("x", "y")]
    assert vocabulary.encode(column).tolist() == [2, 1, 3]
    closed = Vocabulary.fit(column, num_oov=0)
    with pytest.raises(ValueError, match="`column`.*missing value at row 1"):
        closed.encode(column)


@pytest.mark.parametrize("values", [["a"], [5]])
def test_columns_without_any_value(values):
    vocabulary = Vocabulary(values)
    assert vocabulary.encode([None, float("nan")]).tolist() == [0, 0]
    assert vocabulary.encode([]).shape == (0,)
    assert vocabulary.encode(np.array([])).dtype == np.int32
    assert vocabulary.decode([]).shape == (0,)


def test_integers_stay_exact():
    column = np.array([2**53, 2**53 + 1, 2**31, 2**31 - 1, -(2**63), 2**63 - 1])
    vocabulary = Vocabulary(column, num_oov=0)
    assert vocabulary.encode(column[::-1]).tolist() == [5, 4, 3, 2, 1, 0]
    assert vocabulary.values == tuple(column.tolist())
    again = Vocabulary.from_config(json.loads(json.dumps(vocabulary.get_config())))
    assert again == vocabulary


def test_nullable_integers_stay_exact_beside_missing_values():
    column = pd.Series([2**53, 2**53 + 1, None], dtype="Int64")
    vocabulary = Vocabulary.fit(column)
    assert vocabulary.values == (2**53, 2**53 + 1)
    assert vocabulary.encode(column).tolist() == [1, 2, 0]


def test_id_dtype():
    assert Vocabulary(["a"], num_oov=2**31 - 2).id_dtype == "int32"
    assert Vocabulary(["a"], num_oov=2**31 - 1).id_dtype == "int64"


def test_encoded_ids_can_be_written_to():
    ids = Vocabulary(["a"]).encode(["a", "b"])
    ids[0] = 7
    assert ids.tolist() == [7, 0]


GENRES = ["Action|Comedy", "", "Drama", "Comedy||Drama|Action", "|", "Drama"]


def test_separator():
    vocabulary = Vocabulary.fit(GENRES, separator="|")
    assert vocabulary.values == ("Drama", "Action", "Comedy")
    assert vocabulary.padding is True
    assert vocabulary.size == 5
    want = [[3, 4, 0], [0, 0, 0], [2, 0, 0], [4, 2, 3], [0, 0, 0], [2, 0, 0]]
    ids = vocabulary.encode(GENRES)
    assert ids.dtype == np.int32
    assert ids.tolist() == want
    assert vocabulary.encode(GENRES, max_len=1).tolist() == [row[:1] for row in want]
    longer = vocabulary.encode(GENRES, max_len=5)
    assert longer.tolist() == [row + [0, 0] for row in want]
    assert vocabulary.decode(ids)[0].tolist() == ["Action", "Comedy", None]
    mixed = vocabulary.encode(["x|Drama", None, ""])
    assert mixed.tolist() == [[1, 2], [1, 0], [0, 0]]
    assert vocabulary.encode([""]).tolist() == [[0]]
    assert vocabulary.encode([]).shape == (0, 1)
    assert vocabulary.encode([None]).tolist() == [[1]]


def test_separator_of_several_characters_and_spaces():
    vocabulary = Vocabulary.fit(["a, b", "b ,c"], separator=", ")
    assert vocabulary.values == ("a", "b", "b ,c")
    assert vocabulary.encode(["b, a,b"]).tolist() == [[3, 1]]


def test_separator_without_oov_names_value_and_row():
    vocabulary = Vocabulary(["a", "b"], separator="|", num_oov=0)
    assert vocabulary.encode(["a|b", ""]).tolist() == [[1, 2], [0, 0]]
    with pytest.raises(ValueError, match="`num_oov` is 0.*'x' at row 1"):
        vocabulary.encode(["a||b", "b|x"])


@pytest.mark.parametrize("column", [["a", "x"], [1, 77]])
def test_unseen_value_without_oov_is_named(column):
    with pytest.raises(ValueError, match=rf"`num_oov` is 0.*{column[1]!r} at row 1"):
        Vocabulary(column[:1], num_oov=0).encode(column)


CASES = [
    (Vocabulary(["a", "b"], num_oov=3, padding=True), ["b", "zz", "", "a", "y"]),
    (Vocabulary([2**53 + 1, -1], num_oov=2), [2**53, 2**53 + 1, -1, 3]),
    (Vocabulary(["a", "b"], num_oov=2, separator="|"), ["b|a|x|y", "", "||a", "x"]),
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


def test_encode_inside_a_function_being_traced():
    vocabulary = Vocabulary(["a", "b"])

    @tf.function
    def double(x):
        return x * vocabulary.encode(["b", "a"])

    assert double(tf.constant(10)).numpy().tolist() == [20, 10]
    assert vocabulary.encode(["a"]).tolist() == [1]


def test_lookup_in_a_dataset():
    vocabulary, column = CASES[2]
    lookup = vocabulary.lookup(max_len=3)
    dataset = tf.data.Dataset.from_tensor_slices(column).batch(4).map(lookup)
    assert dataset.element_spec.shape.as_list() == [None, 3]
    (got,) = dataset
    np.testing.assert_array_equal(got, vocabulary.encode(column, max_len=3))


@pytest.mark.parametrize(("vocabulary", "column"), CASES)
def test_lookup_in_a_keras_model(vocabulary, column, tmp_path):
    max_len = 2 if vocabulary.separator else None
    inputs = keras.Input(shape=(), dtype=vocabulary.dtype, name="raw")
    ids = vocabulary.lookup(max_len=max_len)(inputs)
    assert tuple(ids.shape) == ((None, 2) if max_len else (None,))
    assert ids.dtype == "int32"
    model = keras.Model(inputs, ids)
    tensor = tf.constant(column, vocabulary.dtype)
    want = vocabulary.encode(column, max_len=max_len)
    np.testing.assert_array_equal(model(tensor), want)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(tensor), want)


def test_lookup_keeps_its_config():
    layer = CASES[2][0].lookup(max_len=4)
    config = json.loads(json.dumps(layer.get_config()))
    again = VocabularyLookup.from_config(config)
    assert again.get_config() == layer.get_config()
    assert again.vocabulary == layer.vocabulary


def test_lookup_takes_any_shape_without_separator():
    lookup = Vocabulary([5, 6]).lookup()
    assert lookup(tf.constant([[5, 6], [7, 5]])).numpy().tolist() == [[1, 2], [0, 1]]
    assert lookup(tf.constant(6)).numpy() == 2


def test_lookup_without_oov_raises_in_the_graph():
    lookup = Vocabulary(["a"], num_oov=0).lookup()
    with pytest.raises(tf.errors.InvalidArgumentError, match="OOV"):
        tf.function(lookup)(tf.constant(["x"]))


def test_lookup_checks_its_input():
    with pytest.raises(TypeError, match="'string'.*'int64'"):
        Vocabulary(["a"]).lookup()(tf.constant([1], "int64"))
    with pytest.raises(TypeError, match="'int64'.*'float32'"):
        Vocabulary([1]).lookup()(tf.constant([1.0]))
    with pytest.raises(ValueError, match=r"\(batch_size,\).*\(1, 1\)"):
        Vocabulary(["a"], separator="|").lookup()(tf.constant([["a"]]))


@pytest.mark.parametrize("vocabulary", [case[0] for case in CASES])
def test_config_equality_and_copies(vocabulary):
    vocabulary.encode([])  # makes the cached layer
    config = json.loads(json.dumps(vocabulary.get_config()))
    for again in (
        Vocabulary.from_config(config),
        pickle.loads(pickle.dumps(vocabulary)),
        copy.deepcopy(vocabulary),
    ):
        assert again == vocabulary
        assert hash(again) == hash(vocabulary)
        assert again.size == vocabulary.size
    for key, value in (("num_oov", 9), ("values", config["values"][:1])):
        assert Vocabulary.from_config({**config, key: value}) != vocabulary
    assert vocabulary != config["values"]


def test_repr_is_short():
    text = repr(Vocabulary(range(1000)))
    assert text.startswith("<Vocabulary of 1000 values, size=1001, dtype='int64'")


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([], ValueError, r"`values`.*at least one value"),
        (["a", "b", "a"], ValueError, "`values` must be distinct.*'a' 2 times"),
        ([1, 2, 2.0], ValueError, "`values` must be distinct.*2 2 times"),
        (["a", None], ValueError, "`values`.*missing value at row 1"),
        ([1, "a"], TypeError, "only strings or only integers.*'a' at row 1.*'int64'"),
        (["a", 1], TypeError, "only strings or only integers.*1 at row 1.*'string'"),
        ([True, False], TypeError, "strings or integers.*True at row 0"),
        (np.array([True]), TypeError, "strings or integers.*True at row 0"),
        ([b"a"], TypeError, "strings or integers.*b'a' at row 0.*Decode"),
        ([[1], [2]], ValueError, r"one-dimensional.*\(2, 1\)"),
        ("abc", ValueError, r"one-dimensional.*str of shape \(\)"),
        ([0.5], TypeError, "strings or integers.*0.5 at row 0"),
        (np.array([1.0, 0.5]), ValueError, "whole numbers.*0.5 at row 1"),
        (np.array([1.0, np.inf]), ValueError, "whole numbers.*inf at row 1"),
        (np.array([2.0**53]), ValueError, "whole numbers.*at row 0"),
        (
            np.array([2.0**24], "float32"),
            ValueError,
            "below 16777216, exact in float32",
        ),
        ([2.0**53], TypeError, "strings or integers.*at row 0"),
        ([2**63], ValueError, f"64 bits.*{2**63} at row 0"),
        (np.array([2**63], "uint64"), ValueError, f"64 bits.*{2**63} at row 0"),
        (np.array(["2020"], "datetime64[D]"), TypeError, "strings or integers"),
    ],
)
def test_says_what_values_were_given(values, error, message):
    with pytest.raises(error, match=message):
        Vocabulary(values)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_oov": -1}, ValueError, "`num_oov`.*=-1"),
        ({"num_oov": 1.0}, TypeError, "`num_oov`.*=1.0"),
        ({"padding": 1}, TypeError, "`padding`.*=1"),
        ({"separator": ""}, ValueError, "`separator`.*=''"),
        ({"separator": 1}, ValueError, "`separator`.*=1"),
        ({"separator": "b"}, ValueError, "separator='b'.*'b' at row 1"),
    ],
)
def test_says_what_argument_was_given(arguments, error, message):
    with pytest.raises(error, match=message):
        Vocabulary(["a", "b"], **arguments)


def test_separator_takes_strings_only():
    with pytest.raises(TypeError, match="`values` must be strings.*5 at row 0"):
        Vocabulary([5], separator="|")
    with pytest.raises(TypeError, match="`column` must hold strings.*5 at row 1"):
        Vocabulary.fit([None, 5], separator="|")
    with pytest.raises(ValueError, match="non-empty.*'' at row 1"):
        Vocabulary(["a", ""], separator="|")


def test_fit_says_that_nothing_is_left():
    with pytest.raises(ValueError, match="0 cells with 0 distinct"):
        Vocabulary.fit([])
    with pytest.raises(ValueError, match="2 cells with 0 distinct"):
        Vocabulary.fit([None, None])
    with pytest.raises(ValueError, match="3 cells with 2 distinct values, min_count=3"):
        Vocabulary.fit(["a", "b", "a"], min_count=3)
    with pytest.raises(ValueError, match="`max_size`.*=0"):
        Vocabulary.fit(["a"], max_size=0)
    with pytest.raises(ValueError, match="`min_count`.*=0"):
        Vocabulary.fit(["a"], min_count=0)


def test_encode_says_what_is_wrong():
    with pytest.raises(TypeError, match="dtype 'string'.*5 at row 1"):
        Vocabulary(["a"]).encode([None, 5])
    with pytest.raises(TypeError, match="dtype 'int64'.*'a' at row 0"):
        Vocabulary([1]).encode(["a"])
    with pytest.raises(ValueError, match="`max_len` must be None.*=3"):
        Vocabulary(["a"]).encode(["a"], max_len=3)
    with pytest.raises(ValueError, match="`max_len` must be None.*=3"):
        Vocabulary(["a"]).lookup(max_len=3)
    with pytest.raises(ValueError, match="`max_len`.*=0"):
        Vocabulary(["a"], separator="|").encode(["a"], max_len=0)


def test_decode_says_what_is_wrong():
    vocabulary = Vocabulary(["a", "b"])
    with pytest.raises(ValueError, match=r"`ids` must be in \[0, 3\).*3"):
        vocabulary.decode([0, 3])
    with pytest.raises(ValueError, match=r"\[0, 3\).*-1"):
        vocabulary.decode([[-1]])
    with pytest.raises(TypeError, match="`ids` must be integers.*float64"):
        vocabulary.decode([1.0])


def test_masked_entries_are_missing():
    column = np.ma.array([1, 2, 3], mask=[0, 0, 1])
    assert Vocabulary.fit(column).values == (1, 2)
    np.testing.assert_array_equal(Vocabulary([1, 2, 3]).encode(column), [1, 2, 0])


def test_values_have_an_order():
    with pytest.raises(TypeError, match="`values` must be ordered.*set"):
        Vocabulary({"a", "b"})


def test_extended_keeps_all_ids_and_appends_by_count():
    old = Vocabulary(["d", "a"], num_oov=2, padding=True)
    column = ["z", "b", "a", "c", "c", None, "b", "y"]
    new = old.extended(column)
    assert new.values == ("d", "a", "b", "c", "y", "z")
    assert (new.num_oov, new.padding, new.separator) == (2, True, None)
    np.testing.assert_array_equal(new.encode(old.values), old.encode(old.values))
    assert old.extended(column, min_count=2).values == ("d", "a", "b", "c")
    assert old.extended(column, max_size=3).values == ("d", "a", "b")
    assert old.extended(column, max_size=2) == old


@pytest.mark.parametrize("column", [[], [None], ["a", "a"]])
def test_extended_without_new_values_is_equal(column):
    vocabulary = Vocabulary(["d", "a"])
    assert vocabulary.extended(column) == vocabulary


def test_extended_counts_the_parts_of_cells():
    genres = Vocabulary(["Action"], separator="|")
    new = genres.extended(["Drama|Action", "", "Comedy|Drama", "|"])
    assert new == Vocabulary(["Action", "Drama", "Comedy"], separator="|")


@pytest.mark.parametrize("number", range(5))
def test_extended_on_random_integers_equals_the_loop(number):
    rng = np.random.default_rng(number)
    old = Vocabulary.fit(rng.integers(-9, 9, 20), padding=True)
    column = rng.integers(-20, 20, 100)
    counts = collections.Counter(column.tolist())
    want = [value for value in counts if value not in old.values]
    want.sort(key=lambda value: (-counts[value], value))
    new = old.extended(column)
    assert new.values == old.values + tuple(want)
    assert all(type(value) is int for value in new.values)


def test_extended_says_what_is_wrong():
    vocabulary = Vocabulary(["a", "b"])
    with pytest.raises(TypeError, match="`column`.*dtype 'string'.*5 at row 1"):
        vocabulary.extended([None, 5])
    with pytest.raises(TypeError, match="`column` must hold strings.*5 at row 0"):
        Vocabulary(["a"], separator="|").extended([5])
    with pytest.raises(ValueError, match="`max_size` must be at least 2.*=1"):
        vocabulary.extended(["c"], max_size=1)
    with pytest.raises(ValueError, match="`min_count`.*=0"):
        vocabulary.extended(["c"], min_count=0)


def test_fit_checks_its_options_before_it_counts():
    with pytest.raises(TypeError, match="`padding`.*=1"):
        Vocabulary.fit([1, "a"], padding=1)
