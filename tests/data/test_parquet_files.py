import os
import pathlib

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from keras_recsys.data import (
    ReadReport,
    Vocabulary,
    encode_dataset,
    fit_vocabularies,
    make_dataset,
    read_arrays,
    read_csv,
    read_parquet,
    read_tfrecord,
    write_parquet,
    write_tfrecord,
)
from keras_recsys.data.parquet_files import _batches
from keras_recsys.features import CategoricalFeature, SequenceFeature

SCHEMA = {
    "city": "string",
    "item": "int64",
    "shop": "int32",
    "price": "float32",
    "tags": "string[]",
    "seen": "int64[]",
    "near": "int32[]",
    "rates": "float32[]",
}
ROWS = 50
RNG = np.random.default_rng(0)


def lists(make):
    return [[make(i) for i in range(RNG.integers(0, 4))] for _ in range(ROWS)]


COLUMNS = {
    "city": RNG.choice(["rome", "", "東京", "a\0b\n"], ROWS).tolist(),
    "item": [int(x) for x in RNG.integers(-(2**63), 2**63 - 1, ROWS)],
    "shop": [int(x) for x in RNG.integers(-(2**31), 2**31 - 1, ROWS)],
    "price": RNG.normal(size=ROWS).astype("float32").tolist(),
    "tags": lists(lambda i: ["x", "", "é"][i]),
    "seen": lists(lambda i: 2**60 + i),
    "near": lists(lambda i: -i),
    "rates": lists(lambda i: i / 2),
    "label": RNG.integers(0, 2, ROWS).astype("float32").tolist(),
}


def plain(values):
    values = values.to_list() if hasattr(values, "to_list") else values.numpy().tolist()
    if values and isinstance(values[0], list):
        return [[decoded(value) for value in row] for row in values]
    return [decoded(value) for value in values]


def decoded(value):
    return value.decode() if isinstance(value, bytes) else value


def columns_of(dataset):
    """The columns of a dataset of batches with labels, as lists."""
    found = {}
    for columns, labels in dataset:
        for name, values in {**columns, "label": labels[:, 0]}.items():
            found.setdefault(name, []).extend(plain(values))
    return found


def arrays(**kwargs):
    return read_arrays(COLUMNS, SCHEMA, label="label", **kwargs)


def save(folder, columns, name="a.parquet"):
    pq.write_table(pa.table(columns), folder / name)
    return str(folder / name)


@pytest.mark.parametrize(
    ("write", "read", "rows_per_shard", "options"),
    [
        (write_parquet, read_parquet, 1_000_000, {}),
        (write_parquet, read_parquet, 13, {"compression": "none"}),
        (write_tfrecord, read_tfrecord, 1_000_000, {}),
        (write_tfrecord, read_tfrecord, 50, {"rows_per_record": 1}),
        (
            write_tfrecord,
            read_tfrecord,
            13,
            {"rows_per_record": 7, "compression": "none"},
        ),
    ],
)
def test_round_trip(tmp_path, write, read, rows_per_shard, options):
    files = write(
        arrays(batch_size=8), tmp_path / "a", rows_per_shard=rows_per_shard, **options
    )
    assert len(files) == -(-ROWS // min(rows_per_shard, ROWS))
    assert sorted(map(str, (tmp_path / "a").iterdir())) == files
    dataset = read(files, SCHEMA, label="label", batch_size=6, num_open_files=1)
    assert columns_of(dataset) == COLUMNS
    assert dataset.element_spec == arrays(batch_size=6).element_spec


@pytest.mark.parametrize(
    ("write", "read"), [(write_parquet, read_parquet), (write_tfrecord, read_tfrecord)]
)
def test_shuffle_moves_whole_rows(tmp_path, write, read):
    files = write(arrays(), tmp_path, rows_per_shard=20)
    first, second = (
        read(files, SCHEMA, label="label", shuffle_rows=20, seed=0) for _ in range(2)
    )
    epochs = [columns_of(first) for _ in range(2)]
    for epoch in epochs:
        order = [COLUMNS["item"].index(item) for item in epoch["item"]]
        assert sorted(order) == list(range(ROWS))
        for name, column in COLUMNS.items():
            assert epoch[name] == [column[row] for row in order]
    assert epochs[0]["item"] != epochs[1]["item"]
    assert columns_of(second) == epochs[0]


def test_all_readers_agree(tmp_path):
    names = ("city", "item", "shop", "price")
    schema = {name: SCHEMA[name] for name in names}
    frame = pd.DataFrame({name: COLUMNS[name] for name in (*names, "label")})
    frame["city"] = frame["city"].str.replace("\0b\n", '",')
    frame["price"] = frame["price"].astype("float32")
    frame.to_csv(tmp_path / "a.csv", index=False)
    common = {"label": "label", "batch_size": 9}
    from_csv = read_csv(tmp_path / "a.csv", schema, **common)
    want = columns_of(read_arrays(frame, schema, **common))
    assert want["city"] == frame["city"].tolist()
    assert columns_of(from_csv) == want
    parquet = write_parquet(from_csv, tmp_path / "parquet")
    assert columns_of(read_parquet(parquet, schema, **common)) == want
    records = write_tfrecord(from_csv, tmp_path / "records")
    assert columns_of(read_tfrecord(records, schema, **common)) == want


def test_ids_of_an_encoded_dataset(tmp_path):
    raw = arrays(batch_size=8)
    settings = {"city": {}, "tags": {"padding": True}}
    vocabularies = fit_vocabularies(raw, settings)
    encoded = encode_dataset(raw, vocabularies, max_len=3)
    schema = {**SCHEMA, "city": "int32", "tags": "int32[]"}
    want = columns_of(encoded)
    for write, read in ((write_parquet, read_parquet), (write_tfrecord, read_tfrecord)):
        files = write(encoded, tmp_path / write.__name__)
        assert columns_of(read(files, schema, label="label")) == want


def test_case_51_ragged_in_padded_out(tmp_path):
    histories = [[7, 5], [], [7, 9, 7, 5], [5]]
    files = [save(tmp_path, {"seen": histories, "city": ["a", "b", "a", "a"]})]
    schema = {"seen": "int64[]", "city": "string"}
    raw = read_parquet(files, schema)
    found = fit_vocabularies(raw, {"seen": {"padding": True}, "city": {}})
    (batch,) = encode_dataset(raw, found, max_len=3)
    features = [
        SequenceFeature("seen", found["seen"].size, max_len=3),
        CategoricalFeature("city", found["city"].size),
    ]
    columns = {"seen": histories, "city": ["a", "b", "a", "a"]}
    (want,) = make_dataset(columns, features, vocabularies=found)
    for name in want:
        np.testing.assert_array_equal(batch[name], want[name])
        assert batch[name].dtype == want[name].dtype


def test_case_51_ids_are_only_padded(tmp_path):
    raw = read_parquet(
        save(tmp_path, {"seen": [[7, 5], [], [7, 9, 4]]}), {"seen": "int32[]"}
    )
    (cut,) = encode_dataset(raw, {}, max_len={"seen": 2})
    assert cut["seen"].numpy().tolist() == [[7, 5], [0, 0], [7, 9]]
    assert cut["seen"].dtype == "int32"
    (longest,) = encode_dataset(raw, {}, max_len={"seen": None})
    assert longest["seen"].numpy().tolist() == [[7, 5, 0], [0, 0, 0], [7, 9, 4]]


def test_arrow_types_that_stand_for_the_dtypes(tmp_path):
    columns = {
        "a": pa.array(["x", "y"]).dictionary_encode(),
        "b": pa.array([1, 255], pa.uint8()),
        "c": pa.array([0.1, 2.0], pa.float64()),
        "d": pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)),
        "e": pa.array([True, False]),
        "f": pa.array([7, 8], pa.int64()),
    }
    schema = {
        "a": "string",
        "b": "int32",
        "c": "float32",
        "d": "int64[]",
        "f": "float32",
    }
    (batch,) = read_parquet(save(tmp_path, columns), schema, label="e")
    want = {"a": ["x", "y"], "b": [1, 255], "d": [[1, 2], [3, 4]], "f": [7, 8]}
    for name, values in want.items():
        assert plain(batch[0][name]) == values
    assert plain(batch[0]["c"]) == np.float32([0.1, 2.0]).tolist()
    assert batch[1].numpy().tolist() == [[1.0], [0.0]]


DAMAGES = {
    "null string": ({"a": pa.array(["x", None, "y"])}, "string", "missing value"),
    "null": ({"a": pa.array([1, None, 2])}, "int64", "missing value"),
    "nan": ({"a": pa.array([1.0, float("nan"), 2.0])}, "float32", "not finite"),
    "float64": ({"a": pa.array([1.0, 1e39, 2.0])}, "float32", "not finite"),
    "int32": ({"a": pa.array([1, 2**31, 2])}, "int32", "out of range"),
    "uint64": ({"a": pa.array([1, 2**63, 2], pa.uint64())}, "int64", "out of range"),
    "bytes": ({"a": pa.array([b"x", b"\xff", b"y"])}, "string", "not UTF-8"),
    "null list": ({"a": pa.array([[1], None, [2]])}, "int64[]", "missing value"),
    "null inside": ({"a": pa.array([[1], [3, None], [2]])}, "int64[]", "missing value"),
    "wide inside": ({"a": pa.array([[1], [3, 2**40], [2]])}, "int32[]", "out of range"),
    "unknown": ({"a": pa.array(["x", "z", "y"])}, "string", "unknown category"),
    "unknown inside": ({"a": [["x"], ["x", "z"], []]}, "string[]", "unknown category"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damage(tmp_path, case, monkeypatch):
    columns, dtype, reason = DAMAGES[case]
    known = {"a": Vocabulary(["x", "y"], num_oov=0)} if "unknown" in case else None
    table = pa.concat_tables([pa.table(columns)] * 3)
    path = save(tmp_path, table)
    monkeypatch.setattr("keras_recsys.data.parquet_files.BLOCK_ROWS", 2)
    dataset = read_parquet(path, {"a": dtype}, vocabularies=known)
    place = f"{path}, row 1, column 'a': {reason}; must"
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(dataset)
    assert place in str(caught.value)
    report = ReadReport()
    dataset = read_parquet(
        path, {"a": dtype}, vocabularies=known, errors="skip", report=report
    )
    (batch,) = dataset
    good = table.column("a").to_pylist()
    want = [decode_all(value) for row, value in enumerate(good) if row % 3 != 1]
    assert plain(batch["a"]) == want
    assert report.counts == {reason: 3}
    assert [number for _, number, *_ in report.examples] == [1, 4, 7]
    with pytest.raises(tf.errors.InvalidArgumentError, match="`columns`, row 1, col"):
        list(read_arrays(columns, {"a": dtype}, vocabularies=known))


def decode_all(value):
    return [*map(decoded, value)] if isinstance(value, list) else decoded(value)


def test_fill():
    frame = pd.DataFrame({"n": [1.5, None], "s": ["x", None], "i": [[1], [None, 2]]})
    schema = {"n": "float32", "s": "string", "i": "int64[]"}
    (batch,) = read_arrays(frame, schema, fill={"n": -1, "s": "none", "i": 9})
    assert plain(batch["n"]) == [1.5, -1.0]
    assert plain(batch["s"]) == ["x", "none"]
    assert plain(batch["i"]) == [[1], [9, 2]]


def test_a_single_number_fills_lists_too():
    columns = {"a": [1, None], "b": [[1, None], []]}
    (batch,) = read_arrays(columns, {"a": "int32", "b": "float32[]"}, fill=7)
    assert plain(batch["a"]) == [1, 7]
    assert plain(batch["b"]) == [[1.0, 7.0], []]


def test_a_fill_that_is_no_text():
    with pytest.raises(ValueError, match="`fill` must be.*'string' for column 'a'"):
        read_arrays({"a": ["x", None]}, {"a": "string"}, fill={"a": "\udcff"})


def test_integers_with_gaps_are_floats_in_pandas():
    frame = pd.DataFrame({"a": [1, None, -3]})
    assert frame["a"].dtype == "float64"
    (batch,) = read_arrays(frame, {"a": "int32"}, fill=0)
    assert plain(batch["a"]) == [1, 0, -3]
    values = [1.0, 1.5, 2.0**53, 2.0**53 - 1, float("inf"), float("nan"), 2.0**31]
    for dtype, counts, good in [
        ("int64", {"out of range": 2}, [1, 2**53 - 1, 2**31]),
        ("int32", {"out of range": 4}, [1]),
    ]:
        report = ReadReport()
        (batch,) = read_arrays(
            {"a": np.array(values)}, {"a": dtype}, errors="skip", report=report
        )
        assert plain(batch["a"]) == good
        assert report.counts == {**counts, "bad number": 1, "missing value": 1}
    with pytest.raises(tf.errors.InvalidArgumentError, match="row 1, column 'a': bad"):
        list(read_arrays({"a": [1.0, 1.5]}, {"a": "int64"}))


def test_columns_that_are_tensors():
    columns = {
        "a": tf.constant([1, 2]),
        "b": tf.constant(["x", "y"]),
        "c": tf.constant([[1.0, 2.0], [3.0, 4.0]]),
        "d": tf.ragged.constant([[5], []], dtype="int64"),
    }
    schema = {"a": "int32", "b": "string", "c": "float32[]", "d": "int64[]"}
    (batch,) = read_arrays(columns, schema)
    want = {"a": [1, 2], "b": ["x", "y"], "c": [[1, 2], [3, 4]], "d": [[5], []]}
    assert {name: plain(values) for name, values in batch.items()} == want


@pytest.mark.parametrize("value", [5, "abc", b"abc", np.float32(2), [2**70], [1j]])
def test_what_is_no_column(value):
    with pytest.raises(ValueError, match="Column 'i' must hold values of dtype 'int6"):
        read_arrays({"i": value}, {"i": "int64"})


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_flipped_bytes_never_give_other_values(tmp_path, compression):
    columns = {"a": [i * 7919 % 1000 for i in range(40)]}
    schema = {"a": "int64"}
    (path,) = write_parquet(
        read_arrays(columns, schema), tmp_path / "good", compression=compression
    )
    data = pathlib.Path(path).read_bytes()
    assert pq.read_metadata(path).num_rows == 40
    pages = pq.read_metadata(path).row_group(0).column(0).total_compressed_size
    bad = tmp_path / "bad.parquet"
    errors = []
    for place in range(4, 4 + pages, 3):
        flipped = bytearray(data)
        flipped[place] ^= 0x10
        bad.write_bytes(flipped)
        try:
            batches = list(_batches(str(bad), ["a"]))
        except ValueError as error:
            errors.append(str(error))
        else:
            assert pa.Table.from_batches(batches).to_pydict() == columns
    assert all(str(bad) in error for error in errors)
    assert len(errors) > pages / 6
    flipped = bytearray(data)
    flipped[4 + pages // 2] ^= 1
    bad.write_bytes(flipped)
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad.parquet must be a w"):
        list(read_parquet(bad, schema))
    bad.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="bad.parquet must be a Parquet file"):
        read_parquet(bad, schema)


def test_a_wrong_file_is_an_error(tmp_path):
    path = save(tmp_path, {"a": [1.0], "b": ["x"], "c": [[1]]})
    for schema, message in [
        ({"z": "int64"}, r"a.parquet must have the columns \['z'\].*'a', 'b', 'c'"),
        ({"a": "int64"}, "a.parquet, column 'a' must be of dtype 'int64'.*double"),
        ({"b": "float32"}, "column 'b'.*'float32'.*string"),
        ({"a": "string"}, "column 'a'.*'string'.*double"),
        ({"c": "int64"}, "column 'c'.*'int64'.*list"),
        ({"a": "float32[]"}, r"column 'a'.*'float32\[\]'.*double"),
        ({"c": "string[]"}, r"column 'c'.*'string\[\]'.*list"),
    ]:
        with pytest.raises(ValueError, match=message):
            read_parquet(path, schema)
    (tmp_path / "b.parquet").write_bytes(b"text")
    with pytest.raises(ValueError, match="b.parquet must be a Parquet file"):
        read_parquet(tmp_path / "b.parquet", {"a": "float32"})


def test_wrong_arrays():
    with pytest.raises(TypeError, match="`columns` must be a dict of arrays"):
        read_arrays([1, 2], {"a": "int64"})
    with pytest.raises(ValueError, match=r"`columns` must have the columns \['b'\]"):
        read_arrays({"a": [1]}, {"b": "int64"})
    with pytest.raises(ValueError, match="of one length.*'a': 1, 'b': 2"):
        read_arrays({"a": [1], "b": [1, 2]}, {"a": "int64", "b": "int64"})
    with pytest.raises(ValueError, match="Column 'a' must hold values of.*'int64'"):
        read_arrays({"a": [1, "x"]}, {"a": "int64"})
    (batch,) = read_arrays({"a": np.ones((2, 3), "int32")}, {"a": "int32[]"})
    assert batch["a"].to_list() == [[1, 1, 1], [1, 1, 1]]


def test_writers_want_an_empty_folder(tmp_path):
    first = write_parquet(arrays(), tmp_path, rows_per_shard=10)
    assert len(first) == 5
    with pytest.raises(ValueError, match="`folder` must be empty.*overwrite"):
        write_parquet(arrays(), tmp_path)
    (tmp_path / "notes.txt").write_text("kept")
    again = write_parquet(arrays(), tmp_path, rows_per_shard=30, overwrite=True)
    assert again == first[:2]
    names = ["notes.txt", "part-00000.parquet", "part-00001.parquet"]
    assert sorted(os.listdir(tmp_path)) == names


@pytest.mark.parametrize("write", [write_parquet, write_tfrecord])
def test_a_run_that_fails_leaves_the_folder_as_it_was(tmp_path, write):
    files = write(arrays(), tmp_path)
    before = [path.read_bytes() for path in map(pathlib.Path, files)]

    def fail():
        yield {"a": np.ones(3, "int64")}
        raise ValueError("broken")

    spec = {"a": tf.TensorSpec((None,), "int64")}
    dataset = tf.data.Dataset.from_generator(fail, output_signature=spec)
    with pytest.raises(tf.errors.InvalidArgumentError, match="broken"):
        write(dataset, tmp_path, rows_per_shard=2, overwrite=True)
    assert sorted(map(str, tmp_path.iterdir())) == files
    assert [path.read_bytes() for path in map(pathlib.Path, files)] == before


@pytest.mark.parametrize("write", [write_parquet, write_tfrecord])
def test_writers_say_what_is_wrong(tmp_path, write):
    batch = {"a": [1, 2]}, [[1.0], [0.0]]
    dataset = tf.data.Dataset.from_tensors(batch)
    for given, kwargs, error, message in [
        (dataset, {"label": "a"}, ValueError, "`label`.*='a'"),
        (dataset, {"rows_per_shard": 0}, ValueError, "`rows_per_shard`.*=0"),
        (dataset, {"compression": "rar"}, ValueError, "`compression`.*='rar'"),
        (dataset.repeat(), {}, ValueError, "`dataset` must be finite"),
        (dataset.take(0), {}, ValueError, "`dataset` must hold at least one row"),
        ([1], {}, TypeError, "`dataset` must be a `tf.data"),
        (dataset, {"label": None}, TypeError, "`label`.*=None"),
        (
            tf.data.Dataset.from_tensors((batch[0], tf.zeros((2, 3)))),
            {},
            TypeError,
            "Labels must be of shape",
        ),
        (
            tf.data.Dataset.from_tensors((batch[0], [[1.0]])),
            {},
            ValueError,
            "columns of one length.*'a': 2, 'label': 1",
        ),
        (
            tf.data.Dataset.from_tensors({"a": [b"x", b"\xff"]}),
            {},
            ValueError,
            "Column 'a' must hold strings of UTF-8",
        ),
        (tf.data.Dataset.range(3), {}, TypeError, "`dataset` must have elements"),
        (
            tf.data.Dataset.from_tensors({"a": tf.zeros((1, 2, 3))}),
            {},
            TypeError,
            "Column 'a' must be of shape",
        ),
        (
            tf.data.Dataset.from_tensors({"a": tf.zeros(3, "float64")}),
            {},
            TypeError,
            "Column 'a' must.*float64",
        ),
    ]:
        with pytest.raises(error, match=message):
            write(given, tmp_path / "new", **kwargs)
