import collections
import gc

import numpy as np
import pytest
import tensorflow as tf

from keras_recsys.data import (
    HashedVocabulary,
    Vocabulary,
    encode_dataset,
    fit_vocabularies,
)

RNG = np.random.default_rng(0)
ROWS = 500
CITIES = RNG.choice(["rome", "oslo", "", "São Paulo", "東京", "a\0b"], ROWS).tolist()
ITEMS = RNG.integers(-5, 40, ROWS) * 2**40
TAGS = RNG.choice(["new|old", "", "old", "rare||new", "|", "é|old|é"], ROWS).tolist()
COLUMNS = {
    "city": CITIES,
    "item": ITEMS,
    "tags": TAGS,
    "price": RNG.normal(size=ROWS),
}
SETTINGS = {
    "tags": {"separator": "|", "num_oov": 2},
    "city": {"min_count": 3, "padding": True},
    "item": {"max_size": 9, "num_oov": 0},
}
RAGGED = [[7, 5], [], [7, 0, 7], [2**40]]


def rows(columns=COLUMNS, labels=None):
    given = columns if labels is None else (columns, labels)
    return tf.data.Dataset.from_tensor_slices(given)


def fit_one(values, **options):
    dataset = rows({"x": values}).batch(2)
    return fit_vocabularies(dataset, {"x": options})["x"]


def ragged_batches():
    dataset = tf.data.Dataset.from_tensor_slices({"x": tf.ragged.constant(RAGGED)})
    return dataset.batch(3)


@pytest.mark.parametrize(
    "dataset",
    [
        rows(),
        rows().batch(7),
        rows().batch(ROWS),
        rows(labels=np.zeros(ROWS)),
        rows(labels=np.zeros(ROWS)).batch(64, drop_remainder=False),
        rows().shuffle(ROWS, seed=1).batch(9),
        rows().filter(lambda row: True),  # of unknown length
    ],
)
def test_equals_the_fit_of_whole_columns(dataset):
    found = fit_vocabularies(dataset, SETTINGS)
    assert list(found) == list(SETTINGS)
    for name, options in SETTINGS.items():
        assert found[name] == Vocabulary.fit(COLUMNS[name], **options)


def test_equals_a_counter():
    counts = collections.Counter(part for cell in TAGS for part in cell.split("|"))
    del counts[""]
    want = sorted(counts, key=lambda value: (-counts[value], value))
    assert fit_one(TAGS, separator="|").values == tuple(want)


@pytest.mark.parametrize("number", range(5))
def test_random_columns(number):
    rng = np.random.default_rng(number)
    size = int(rng.integers(1, 200))
    words = ["".join(map(chr, row)) for row in rng.integers(97, 100, (size, 2))]
    numbers = rng.integers(0, 50, size)
    options = {"min_count": int(rng.integers(1, 3)), "max_size": 5}
    dataset = rows({"words": words, "numbers": numbers})
    dataset = dataset.batch(int(rng.integers(1, 40)))
    try:
        want = Vocabulary.fit(words, **options)
    except ValueError:
        options = {"max_size": 5}
        want = Vocabulary.fit(words, **options)
    found = fit_vocabularies(dataset, {"words": options, "numbers": {}})
    assert found == {"words": want, "numbers": Vocabulary.fit(numbers)}


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"]
)
def test_integer_dtypes(dtype):
    assert fit_one(np.array([5, 9, 9], dtype)).values == (9, 5)


def test_integers_stay_exact():
    column = [2**53, 2**53 + 1, 2**53 + 1, -(2**63), 2**63 - 1]
    want = (2**53 + 1, -(2**63), 2**53, 2**63 - 1)
    assert fit_one(np.array(column)).values == want


def test_numbers_of_sequences_are_counted_one_by_one():
    want = Vocabulary.fit([value for row in RAGGED for value in row], padding=True)
    assert want.values == (7, 0, 5, 2**40)  # 0 is a raw value like any other
    settings = {"x": {"padding": True}}
    ragged = ragged_batches()
    assert fit_vocabularies(ragged, settings)["x"] == want
    assert fit_vocabularies(ragged.unbatch(), settings)["x"] == want
    dense = rows({"x": np.array([[7, 5, 0], [7, 7, 2**40]])})
    for dataset in (dense, dense.batch(2)):
        assert fit_vocabularies(dataset, settings)["x"] == want


def test_single_rows_of_scalars_and_sequences():
    dataset = tf.data.Dataset.from_generator(
        lambda: ({"user": f"u{len(row)}", "seen": row} for row in RAGGED),
        output_signature={
            "user": tf.TensorSpec((), "string"),
            "seen": tf.TensorSpec((None,), "int64"),
        },
    )
    found = fit_vocabularies(dataset, {"seen": {}, "user": {}})
    assert found["seen"].values == (7, 0, 5, 2**40)
    assert found["user"].values == ("u0", "u1", "u2", "u3")


def test_columns_of_unknown_rank():
    dataset = tf.data.Dataset.from_generator(
        lambda: ({"x": row} for row in RAGGED),
        output_signature={"x": tf.TensorSpec(None, "int64")},
    )
    assert fit_vocabularies(dataset, {"x": {}})["x"].values == (7, 0, 5, 2**40)


def test_one_pass():
    passes = []

    def generate():
        passes.append(1)
        yield {"a": "x", "b": 1}
        yield {"a": "y", "b": 1}

    dataset = tf.data.Dataset.from_generator(
        generate,
        output_signature={
            "a": tf.TensorSpec((), "string"),
            "b": tf.TensorSpec((), "int32"),
        },
    )
    fit_vocabularies(dataset, {"a": {}, "b": {}})
    assert passes == [1]


def test_other_columns_may_be_anything():
    sparse = tf.sparse.from_dense([[0.0, 1.0]])
    dataset = tf.data.Dataset.from_tensors({"x": ["a"], "y": sparse, "z": {"w": 1}})
    assert fit_vocabularies(dataset, {"x": {}})["x"].values == ("a",)


def test_empty_cells_beside_others():
    assert fit_one(["", "a", ""]).values == ("", "a")
    with pytest.raises(ValueError, match="Column 'x'.*3 cells with 0 distinct"):
        fit_one(["", "|", ""], separator="|")


def test_strings_must_be_utf8():
    with pytest.raises(ValueError, match=r"Column 'x' must hold UTF-8.*b'\\xff'"):
        fit_one([b"a", b"\xff"])


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"town": {}}, ValueError, r"columns.*\['city', 'item'.*Received: \['town'\]"),
        ({"price": {}}, TypeError, "Column 'price'.*strings or.*float64"),
        ({"item": {"separator": "|"}}, TypeError, "Column 'item' must.*'int64'"),
        ({}, ValueError, "`settings` must name at least one.*={}"),
        (["city"], TypeError, r"`settings` must be a dict.*\['city'\]"),
        ({"city": 3}, TypeError, "`settings` must be a dict.*3"),
        ({"city": {"oov": 1}}, ValueError, r"`settings\['city'\]`.*Rec.*\['oov'\]"),
        ({"city": {"num_oov": -1}}, ValueError, "'city'.*: `num_oov`.*=-1"),
        ({"city": {"padding": 1}}, TypeError, "'city'.*: `padding`.*=1"),
        ({"city": {"separator": ""}}, ValueError, "'city'.*: `separator`.*=''"),
        ({"city": {"min_count": 0}}, ValueError, "'city'.*: `min_count`.*=0"),
        ({"city": {"max_size": 1.5}}, TypeError, "'city'.*: `max_size`.*=1.5"),
        ({"city": {"min_count": 999}}, ValueError, "Column 'city'.*500 cells.*=999"),
    ],
)
def test_fit_says_what_is_wrong(settings, error, message):
    with pytest.raises(error, match=message):
        fit_vocabularies(rows().batch(99), settings)


def test_fit_says_what_is_wrong_with_the_dataset():
    with pytest.raises(ValueError, match="`dataset` must be finite.*take"):
        fit_vocabularies(rows().repeat(), SETTINGS)
    finite = fit_vocabularies(rows().repeat().take(ROWS), {"city": {}})["city"]
    assert finite == Vocabulary.fit(CITIES)
    with pytest.raises(ValueError, match="`dataset` must hold at least one row"):
        fit_vocabularies(rows().take(0), SETTINGS)
    with pytest.raises(TypeError, match=r"`dataset` must be a `tf.data.Dataset`.*\[1"):
        fit_vocabularies([1], SETTINGS)
    for given in ([1, 2], ([1, 2], {"city": ["a", "b"]})):
        dataset = tf.data.Dataset.from_tensor_slices(given)
        with pytest.raises(TypeError, match="`dataset`.*dicts.*Received: elements"):
            fit_vocabularies(dataset, {"city": {}})
    for dtype in ("bool", "uint64"):
        with pytest.raises(TypeError, match=f"Column 'x'.*{dtype}"):
            fit_one(np.array([0, 1], dtype))
    sparse = tf.data.Dataset.from_tensors({"x": tf.sparse.from_dense([0, 1])})
    with pytest.raises(TypeError, match="Column 'x'.*SparseTensorSpec"):
        fit_vocabularies(sparse, {"x": {}})


VOCABULARIES = {
    "city": Vocabulary.fit(CITIES, max_size=3),
    "tags": HashedVocabulary(50, separator="|"),
}


@pytest.mark.parametrize("with_labels", [False, True])
def test_encode_dataset_agrees_with_encode(with_labels):
    labels = np.arange(ROWS)
    dataset = rows(labels=labels if with_labels else None).batch(64)
    encoded = encode_dataset(dataset, VOCABULARIES, max_len=2)
    batches = list(encoded)
    if with_labels:
        found = np.concatenate([label for _, label in batches])
        np.testing.assert_array_equal(found, labels)
        batches = [batch for batch, _ in batches]
    assert list(batches[0]) == list(COLUMNS)
    got = {name: np.concatenate([b[name] for b in batches]) for name in COLUMNS}
    np.testing.assert_array_equal(got["city"], VOCABULARIES["city"].encode(CITIES))
    want = VOCABULARIES["tags"].encode(TAGS, max_len=2)
    np.testing.assert_array_equal(got["tags"], want)
    for name in ("item", "price"):
        np.testing.assert_array_equal(got[name], COLUMNS[name])


def test_encode_dataset_keeps_the_structure():
    weights = tf.data.Dataset.from_tensors(({"city": ["oslo"]}, [1], [0.5]))
    (element,) = encode_dataset(weights, {"city": VOCABULARIES["city"]})
    assert len(element) == 3
    assert element[2].numpy().tolist() == [0.5]
    alone = tf.data.Dataset.from_tensors(({"city": ["oslo"]},))
    (element,) = encode_dataset(alone, {"city": VOCABULARIES["city"]})
    assert isinstance(element, tuple)
    dataset = rows().batch(4, drop_remainder=True)
    spec = encode_dataset(dataset, VOCABULARIES, max_len=2).element_spec
    assert spec["city"] == tf.TensorSpec((4,), "int32")
    assert spec["tags"].shape.as_list() == [4, 2]


def test_encode_dataset_of_vocabularies_that_nobody_holds():
    dataset = encode_dataset(rows().batch(99), {"city": Vocabulary.fit(CITIES)})
    iterator = iter(dataset.prefetch(1))
    del dataset
    gc.collect()
    got = np.concatenate([batch["city"] for batch in iterator])
    np.testing.assert_array_equal(got, Vocabulary.fit(CITIES).encode(CITIES))


def test_encode_dataset_of_sequences():
    padded = Vocabulary([0, 5, 7], padding=True)
    first, last = encode_dataset(ragged_batches(), {"x": padded})
    assert first["x"].numpy().tolist() == [[4, 3, 0], [0, 0, 0], [4, 2, 4]]
    assert last["x"].numpy().tolist() == [[1]]
    first, last = encode_dataset(ragged_batches(), {"x": padded}, max_len=2)
    assert first["x"].numpy().tolist() == [[4, 3], [0, 0], [4, 2]]
    assert last["x"].numpy().tolist() == [[1, 0]]
    first, _ = encode_dataset(ragged_batches(), {"x": Vocabulary([0, 5, 7])})
    assert first["x"].to_list() == [[3, 2], [], [3, 1, 3]]
    dense = tf.data.Dataset.from_tensors({"x": [[7, 9], [5, 0]]})
    (batch,) = encode_dataset(dense, {"x": padded})
    assert batch["x"].numpy().tolist() == [[4, 1], [3, 2]]


def test_max_len_of_each_column():
    columns = {"a": ["x|y|z"], "b": ["x|y"], "c": ["x"]}
    vocabulary = Vocabulary(["x", "y", "z"], separator="|")
    given = {"a": vocabulary, "b": vocabulary, "c": Vocabulary(["x"])}
    dataset = rows(columns).batch(1)
    (batch,) = encode_dataset(dataset, given, max_len={"a": 2})
    assert batch["a"].numpy().tolist() == [[2, 3]]
    assert batch["b"].numpy().tolist() == [[2, 3]]
    (batch,) = encode_dataset(dataset, given, max_len=1)
    assert {name: ids.numpy().tolist() for name, ids in batch.items()} == {
        "a": [[2]],
        "b": [[2]],
        "c": [1],
    }


@pytest.mark.parametrize(
    ("vocabularies", "max_len", "error", "message"),
    [
        ({"town": Vocabulary(["a"])}, None, ValueError, r"columns.*\['town'\]"),
        ([1], None, TypeError, r"`vocabularies` must be a dict.*\[1\]"),
        ({"city": ["a"]}, None, TypeError, r"`vocabularies\['city'\]`.*\['a'\]"),
        ({"item": Vocabulary(["a"])}, None, TypeError, "'item'.*'string'.*'int64'"),
        ({"city": Vocabulary([1])}, None, TypeError, "'city'.*'int64'.*'string'"),
        ({"price": Vocabulary([1])}, None, TypeError, "'price'.*float64"),
        (VOCABULARIES, 0, ValueError, "`max_len`.*=0"),
        (VOCABULARIES, {"tags": 1.5}, TypeError, r"`max_len\['tags'\]`.*=1.5"),
        (VOCABULARIES, {"city": 1}, ValueError, r"\['tags'\].*Received: \['city'\]"),
        ({"city": VOCABULARIES["city"]}, 2, ValueError, r"Received: \['city'\]"),
    ],
)
def test_encode_says_what_is_wrong(vocabularies, max_len, error, message):
    with pytest.raises(error, match=message):
        encode_dataset(rows().batch(9), vocabularies, max_len=max_len)


def test_separator_needs_batches():
    with pytest.raises(ValueError, match=r"`inputs` must be of shape \(batch_size,\)"):
        encode_dataset(rows(), VOCABULARIES)


def test_fitted_vocabularies_encode_their_dataset():
    dataset = rows().batch(50)
    found = fit_vocabularies(dataset, {"city": {"num_oov": 0}, "item": {"num_oov": 0}})
    batches = list(encode_dataset(dataset, found))
    for name in found:
        ids = np.concatenate([batch[name] for batch in batches])
        assert found[name].decode(ids).tolist() == list(COLUMNS[name])


def test_encode_dataset_gives_the_columns_that_a_model_reads():
    batch = {"city": ["rome"], "age": [7], "user": ["ann"]}, [[1.0]]
    dataset = tf.data.Dataset.from_tensors(batch)
    vocabularies = {"city": Vocabulary(["rome"]), "user": Vocabulary(["bob"])}
    encoded = encode_dataset(dataset, vocabularies, columns=["age", "city"])
    columns, labels = next(iter(encoded))
    assert list(columns) == list(encoded.element_spec[0]) == ["age", "city"]
    assert columns["city"].numpy().tolist() == [1]
    assert labels.numpy().tolist() == [[1.0]]
    with pytest.raises(ValueError, match=r"`columns` must have names.*\['town'\]"):
        encode_dataset(dataset, vocabularies, columns=["town"])
