import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from keras_recsys.data import HashedVocabulary, Vocabulary, make_dataset, schema_of
from keras_recsys.features import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
    TimeGapFeature,
)

CITY = CategoricalFeature("city", vocab_size=200)
PRICE = NumericFeature("price")
GENRES = SequenceFeature("genres", vocab_size=5, max_len=2)
ALL = (CITY, PRICE, GENRES)


def columns(**changed):
    return {
        "city": np.array([0, 199, 5]),
        "price": np.array([0.5, -1.0, 2.0]),
        "genres": np.array([[1, 0], [4, 2], [0, 0]]),
        **changed,
    }


def city_order(dataset):
    """The city ids of one epoch, batch by batch."""
    return [batch["city"].numpy().tolist() for batch in dataset]


def test_values_shapes_and_dtypes():
    dataset = make_dataset(columns(), ALL, labels=[1, 0, 1], batch_size=2)
    assert dataset.element_spec[0]["city"].dtype == tf.int32
    assert dataset.element_spec[0]["genres"].shape.as_list() == [None, 2]
    assert len(dataset) == 2
    (first, first_labels), (last, last_labels) = list(dataset)
    assert set(first) == {"city", "price", "genres"}
    assert first["city"].dtype == tf.int32
    assert first["city"].numpy().tolist() == [0, 199]
    assert first["price"].dtype == tf.float32
    assert first["price"].numpy().tolist() == [0.5, -1.0]
    assert first["genres"].dtype == tf.int32
    assert first["genres"].numpy().tolist() == [[1, 0], [4, 2]]
    assert first_labels.dtype == tf.float32
    assert first_labels.numpy().tolist() == [[1.0], [0.0]]
    assert last["city"].numpy().tolist() == [5]
    assert last["genres"].numpy().tolist() == [[0, 0]]
    assert last_labels.numpy().tolist() == [[1.0]]


def test_without_labels_gives_only_the_inputs():
    (batch,) = make_dataset({"city": [3, 4]}, [CITY])
    assert batch["city"].numpy().tolist() == [3, 4]


@pytest.mark.parametrize("shuffle", [False, True])
def test_drop_remainder(shuffle):
    dataset = make_dataset(
        {"city": np.arange(7)},
        [CITY],
        batch_size=3,
        drop_remainder=True,
        shuffle=shuffle,
    )
    assert len(dataset) == 2
    assert [len(batch) for batch in city_order(dataset)] == [3, 3]
    assert dataset.element_spec["city"].shape.as_list() == [3]


def test_ids_keep_the_dtype_of_the_feature():
    feature = CategoricalFeature("big", vocab_size=2**40, dtype="int64")
    ids = np.array([2**40 - 1, 2**24 + 1, 0])
    (batch,) = make_dataset({"big": ids}, [feature])
    assert batch["big"].dtype == tf.int64
    np.testing.assert_array_equal(batch["big"], ids)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint64", "bool"])
def test_other_integer_dtypes(dtype):
    (batch,) = make_dataset({"city": np.array([1, 0], dtype)}, [CITY])
    assert batch["city"].dtype == tf.int32
    assert batch["city"].numpy().tolist() == [1, 0]


def test_reads_a_frame_with_nullable_columns_and_lists():
    frame = pd.DataFrame(
        {
            "genres": [[1, 0], [4, 2]],
            "city": pd.array([7, 8], "Int64"),
            "price": pd.array([1, 2], "Int64"),
        },
        index=[10, 10],
    )
    labels = pd.array([True, False], "boolean")
    ((batch, labels),) = make_dataset(frame, ALL, labels=labels)
    assert batch["genres"].numpy().tolist() == [[1, 0], [4, 2]]
    assert batch["city"].numpy().tolist() == [7, 8]
    assert batch["price"].numpy().tolist() == [1.0, 2.0]
    assert labels.numpy().tolist() == [[1.0], [0.0]]


def test_later_changes_of_the_arrays_do_not_show():
    ids = np.array([1, 2], "int32")
    numbers = np.array([1.0, 2.0], "float32")
    given = {"city": ids, "price": numbers}
    dataset = make_dataset(given, [CITY, PRICE], labels=numbers)
    ids[:] = 9
    numbers[:] = 9
    ((batch, labels),) = dataset
    assert batch["city"].numpy().tolist() == [1, 2]
    assert batch["price"].numpy().tolist() == [1.0, 2.0]
    assert labels.numpy().tolist() == [[1.0], [2.0]]


def test_shuffle_gives_each_row_once_and_keeps_rows_together():
    ids = np.arange(100)
    dataset = make_dataset(
        {"city": ids, "price": ids / 2},
        [CITY, PRICE],
        labels=ids * 3,
        batch_size=32,
        shuffle=True,
        seed=0,
    )
    assert len(dataset) == 4
    seen = []
    for batch, labels in dataset:
        np.testing.assert_array_equal(batch["price"] * 2, batch["city"])
        np.testing.assert_array_equal(labels[:, 0], 3 * batch["city"].numpy())
        seen += batch["city"].numpy().tolist()
    assert seen != sorted(seen)
    assert sorted(seen) == ids.tolist()


def test_shuffle_differs_by_epoch_and_repeats_by_seed():
    def make(seed):
        return make_dataset(
            {"city": np.arange(50)}, [CITY], batch_size=8, shuffle=True, seed=seed
        )

    one, two, other = make(1), make(1), make(2)
    epochs = [city_order(one) for _ in range(3)]
    assert epochs == [city_order(two) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != city_order(other)
    twice = city_order(make(1).repeat(2))
    assert twice[:7] == epochs[0]
    assert twice[7:] != epochs[0]


def test_without_seed_two_shuffles_differ():
    first, second = (
        city_order(make_dataset({"city": np.arange(100)}, [CITY], shuffle=True))
        for _ in range(2)
    )
    assert first != second


def test_without_shuffle_the_order_stays():
    dataset = make_dataset({"city": np.arange(10)}, [CITY], batch_size=4, seed=1)
    for _ in range(2):
        assert city_order(dataset) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"city": [0, 200, 5]},
            r"'city' must hold ids in \[0, 200\).*feature 'city'.*id 200 at row 1",
        ),
        ({"city": [0, 1, -1]}, r"\[0, 200\).*id -1 at row 2"),
        ({"genres": [[1, 0], [2, 5], [0, 0]]}, r"'genres'.*\[0, 5\).*id 5 at row 1"),
        ({"genres": [1, 2, 3]}, r"'genres' must be of shape \(num_rows, 2\).*\(3,\)"),
        ({"genres": np.ones((3, 3), int)}, r"\(num_rows, 2\).*\(3, 3\)"),
        ({"genres": np.ones((3, 1), int)}, r"\(num_rows, 2\).*\(3, 1\)"),
        ({"genres": [[1], [1, 2], [0]]}, r"'genres' must hold rows of equal length"),
        ({"city": [[1], [2], [3]]}, r"'city' must be of shape \(num_rows,\).*\(3, 1\)"),
        ({"price": [[1.0]] * 3}, r"'price' must be of shape \(num_rows,\).*\(3, 1\)"),
        ({"price": [0.0, 1.0, np.nan]}, r"'price'.*finite.*nan at row 2"),
        ({"price": [0.0, np.inf, 1.0]}, r"'price'.*finite.*inf at row 1"),
        ({"price": [0.0, 1e39, 1.0]}, r"'price'.*finite float32.*1e\+39 at row 1"),
        ({"price": [0, 1, 2**24 + 1]}, r"'price'.*float32.*16777217 at row 2"),
        (
            {"price": [0, -(2**63), 1]},
            r"'price'.*float32.*-9223372036854775808 at row 1",
        ),
        ({"price": [0.0, None, 1.0]}, r"'price'.*missing value at row 1"),
        (
            {"genres": pd.Series([[1, 0], [2, None], [0, 0]])},
            r"'genres'.*missing value at row 1",
        ),
        ({"city": pd.array([0, 1, None], "Int64")}, r"'city'.*missing value at row 2"),
        ({"city": [1, 2]}, r"'price'.*as many rows as column 'city', 2\..*3 rows"),
        ({"city": 5}, r"'city' must be an array with rows.*5"),
        ({"extra": [1, 2, 3]}, r"column 'extra', which has no feature"),
    ],
)
def test_says_which_value_is_wrong(changed, message):
    with pytest.raises(ValueError, match=message):
        make_dataset(columns(**changed), ALL)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"city": [0.0, 1.0, 2.0]}, r"'city'.*Vocabulary.*float64, 0.0 at row 0"),
        ({"city": ["a", "b", "c"]}, r"'city'.*Vocabulary.*'a' at row 0"),
        ({"city": pd.Series(["a", "b", "c"])}, r"'city'.*Vocabulary.*'a' at row 0"),
        ({"genres": np.ones((3, 2))}, r"'genres'.*Vocabulary.*float64"),
        ({"price": ["1", "2", "3"]}, r"'price' must hold numbers.*'1' at row 0"),
    ],
)
def test_says_which_dtype_is_wrong(changed, message):
    with pytest.raises(TypeError, match=message):
        make_dataset(columns(**changed), ALL)


def test_float_ids_beside_strings_are_not_cast():
    with pytest.raises(TypeError, match="'city'.*Vocabulary"):
        make_dataset({"city": pd.Series([1, "2"], dtype=object)}, [CITY])


def test_missing_column():
    with pytest.raises(ValueError, match=r"feature 'city'.*columns \['price'\]"):
        make_dataset({"price": [1.0]}, [CITY, PRICE])


def test_no_rows():
    with pytest.raises(ValueError, match="at least one row.*'city' of 0 rows"):
        make_dataset({"city": []}, [CITY])


def test_sequence_of_no_length():
    feature = SequenceFeature("genres", vocab_size=5)
    with pytest.raises(ValueError, match=r"\(num_rows, seq_len\).*\(3, 0\)"):
        make_dataset({"genres": np.zeros((3, 0), int)}, [feature])


def test_out_of_range_other_than_error_takes_any_id_that_fits():
    feature = CategoricalFeature("city", vocab_size=10, out_of_range="oov")
    (batch,) = make_dataset({"city": [-1, 10, 2**31 - 1]}, [feature])
    assert batch["city"].numpy().tolist() == [-1, 10, 2**31 - 1]
    for bad in (2**31, -(2**31) - 1):
        with pytest.raises(ValueError, match=rf"'city'.*int32.*id {bad} at row 1"):
            make_dataset({"city": [0, bad]}, [feature])


def test_unsigned_ids_above_int64_do_not_wrap():
    feature = CategoricalFeature("city", 10, out_of_range="mod", dtype="int64")
    with pytest.raises(ValueError, match=f"'city'.*int64.*id {2**64 - 1} at row 0"):
        make_dataset({"city": np.array([2**64 - 1], "uint64")}, [feature])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.0, np.nan, 1.0], "`labels`.*nan at row 1"),
        ([0.0, np.inf, 1.0], "`labels`.*inf at row 1"),
        ([0, None, 1], "`labels`.*missing value at row 1"),
        ([0, 1], "`labels`.*3.*2 rows"),
        (np.zeros((3, 2)), r"`labels`.*\(num_rows, 1\).*\(3, 2\)"),
        (np.zeros((3, 1, 1)), r"`labels`.*\(num_rows, 1\).*\(3, 1, 1\)"),
        (1, "`labels` must be an array with rows"),
    ],
)
def test_says_what_is_wrong_with_labels(labels, message):
    with pytest.raises(ValueError, match=message):
        make_dataset(columns(), ALL, labels=labels)


def test_labels_of_two_axes():
    ((_, labels),) = make_dataset(columns(), ALL, labels=np.array([[0], [1], [1]]))
    assert labels.numpy().tolist() == [[0.0], [1.0], [1.0]]


def test_labels_of_strings():
    with pytest.raises(TypeError, match="`labels` must hold numbers.*'yes' at row 0"):
        make_dataset(columns(), ALL, labels=["yes", "no", "no"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "`batch_size`.*=0"),
        ({"batch_size": 2.0}, TypeError, "`batch_size`.*=2.0"),
        ({"batch_size": 4, "drop_remainder": True}, ValueError, "`batch_size`.*3.*=4"),
        ({"shuffle": 100}, TypeError, "`shuffle`.*=100"),
        ({"drop_remainder": None}, TypeError, "`drop_remainder`.*=None"),
        ({"seed": 1.5}, TypeError, "`seed`.*=1.5"),
    ],
)
def test_says_what_argument_is_wrong(arguments, error, message):
    with pytest.raises(error, match=message):
        make_dataset(columns(), ALL, **arguments)


def test_features_are_checked():
    with pytest.raises(ValueError, match="`features` must hold at least one"):
        make_dataset({}, [])
    with pytest.raises(TypeError, match="`features`.*'city'"):
        make_dataset({"city": [1]}, ["city"])
    with pytest.raises(ValueError, match="distinct names.*'city'"):
        make_dataset({"city": [1]}, [CITY, CITY])
    with pytest.raises(TypeError, match="`columns` must be a dict.*list"):
        make_dataset([1, 2], [CITY])


def test_booleans_are_ids_in_range():
    with pytest.raises(ValueError, match=r"ids in \[0, 1\).*id 1 at row 0"):
        make_dataset({"a": np.array([True])}, [CategoricalFeature("a", 1)])


CITIES = Vocabulary(["rome", "oslo"], padding=True)
TAGS = Vocabulary(["Action", "Comedy", "Drama"], separator="|")
ITEMS = Vocabulary([7, 2**40, 0], padding=True)


def test_vocabularies_encode_raw_columns():
    raw = columns(city=["oslo", None, "bonn"], genres=["Drama|Action|Comedy", "", "x"])
    vocabularies = {"city": CITIES, "genres": TAGS}
    dataset = make_dataset(raw, ALL, vocabularies=vocabularies, batch_size=3)
    (batch,) = dataset
    assert batch["city"].dtype == batch["genres"].dtype == tf.int32
    assert batch["city"].numpy().tolist() == [3, 1, 1]
    assert batch["genres"].numpy().tolist() == [[4, 2], [0, 0], [1, 0]]
    assert batch["price"].numpy().tolist() == [0.5, -1.0, 2.0]
    assert dataset.element_spec["genres"].shape.as_list() == [None, 2]
    (same,) = make_dataset(pd.DataFrame(raw), ALL, vocabularies=vocabularies)
    for name in raw:
        np.testing.assert_array_equal(same[name], batch[name])


def test_vocabularies_give_ids_of_the_dtype_of_the_feature():
    feature = CategoricalFeature("city", 2**40, dtype="int64")
    vocabulary = HashedVocabulary(2**40 - 1)
    (batch,) = make_dataset(
        {"city": ["a"]}, [feature], vocabularies={"city": vocabulary}
    )
    assert batch["city"].dtype == tf.int64
    np.testing.assert_array_equal(batch["city"], vocabulary.encode(["a"]))


@pytest.mark.parametrize(
    ("column", "max_len", "want"),
    [
        ([[7, 0], [], [2**40, 5, 7]], None, [[2, 4, 0], [0, 0, 0], [3, 1, 2]]),
        ([[7, 0], [], [2**40, 5, 7]], 2, [[2, 4], [0, 0], [3, 1]]),
        (pd.Series([(7, None), np.array([7])]), 3, [[2, 1, 0], [2, 0, 0]]),
        (np.array([[7, 0], [5, 7]]), None, [[2, 4], [1, 2]]),
        (np.array([[7, 0], [5, 7]]), 3, [[2, 4, 0], [1, 2, 0]]),
        (np.array([[7, 0], [5, 7]]), 1, [[2], [1]]),
        ([[], []], None, [[0], [0]]),
        (np.zeros((2, 0), int), None, [[0], [0]]),
    ],
)
def test_vocabularies_encode_sequences_of_raw_values(column, max_len, want):
    feature = SequenceFeature("items", vocab_size=5, max_len=max_len)
    (batch,) = make_dataset({"items": column}, [feature], vocabularies={"items": ITEMS})
    assert batch["items"].numpy().tolist() == want


@pytest.mark.parametrize(
    ("vocabularies", "error", "message"),
    [
        ([CITIES], TypeError, "`vocabularies` must be a dict"),
        ({"city": ["rome"]}, TypeError, r"`vocabularies\['city'\]`.*\['rome'\]"),
        ({"town": CITIES}, ValueError, r"features, \['city', 'price'.*'town'"),
        ({"price": CITIES}, ValueError, "'price'.*feature of ids.*NumericFeature"),
        (
            {"city": HashedVocabulary(200)},
            ValueError,
            "'city'.*vocab_size=200. Received: size=201",
        ),
        ({"city": TAGS}, ValueError, "'city'.*no separator.*separator='|'"),
        ({"genres": Vocabulary(["a"])}, ValueError, "'genres'.*`padding=True`.*False"),
    ],
)
def test_says_what_is_wrong_with_vocabularies(vocabularies, error, message):
    with pytest.raises(error, match=message):
        make_dataset(columns(), ALL, vocabularies=vocabularies)


def test_says_which_raw_column_is_wrong():
    with pytest.raises(TypeError, match="Column 'city' must.*'string'.*0 at row 0"):
        make_dataset(columns(), ALL, vocabularies={"city": CITIES})
    closed = Vocabulary(["rome"], num_oov=0)
    for value, message in (("oslo", "'oslo' at row 1"), (None, "missing value at row")):
        with pytest.raises(ValueError, match=f"Column 'city' must.*{message}"):
            make_dataset(
                {"city": ["rome", value]}, [CITY], vocabularies={"city": closed}
            )
    feature = SequenceFeature("items", vocab_size=5)
    for column in (["ab"], [7]):
        with pytest.raises(
            TypeError, match=f"'items'.*sequences.*{column[0]!r} at row 0"
        ):
            make_dataset({"items": column}, [feature], vocabularies={"items": ITEMS})
    with pytest.raises(TypeError, match="'items', its rows end to end, .*'a' at row 1"):
        make_dataset({"items": [[7], ["a"]]}, [feature], vocabularies={"items": ITEMS})


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_times_keep_the_dtype_of_the_feature(dtype):
    feature = TimeGapFeature("age", dtype=dtype, max_len=2)
    values = [[2**24, -5], [0, 7]]
    for column in (np.array(values), np.array(values, "int32"), values):
        (batch,) = make_dataset({"age": column}, [feature])
        assert batch["age"].dtype == dtype
        np.testing.assert_array_equal(batch["age"], values)
    assert schema_of([feature]) == {"age": f"{dtype}[]"}


@pytest.mark.parametrize(
    ("feature", "column", "error", "message"),
    [
        ({}, [[1, 2]] * 2, ValueError, r"'age' must be of shape \(num_rows, 3\)"),
        ({}, [1, 2], ValueError, r"'age' must be of shape \(num_rows, 3\)"),
        ({}, [[1, 2, 3], [4]], ValueError, "'age' must hold rows of equal length"),
        ({}, [[1, 2, None]], ValueError, "'age' must hold no missing value.*row 0"),
        (
            {},
            [[1.5, 2, 3]],
            TypeError,
            "'age' must hold whole numbers.*`dtype='float32'`.*1.5 at row 0",
        ),
        (
            {"dtype": "int32"},
            [[1, 2, 3], [1, 2, 2**31]],
            ValueError,
            "must hold times that fit int32.*2147483648 at row 1",
        ),
        (
            {"dtype": "float32"},
            [[1, 2, np.nan]],
            ValueError,
            "'age'.*nan at row 0",
        ),
    ],
)
def test_says_what_is_wrong_with_times(feature, column, error, message):
    with pytest.raises(error, match=message):
        make_dataset({"age": column}, [TimeGapFeature("age", max_len=3, **feature)])


def test_times_have_no_vocabulary():
    with pytest.raises(
        ValueError, match="must be for a feature of ids.*TimeGapFeature"
    ):
        make_dataset(
            {"age": [[1]]}, [TimeGapFeature("age")], vocabularies={"age": ITEMS}
        )
