import gzip
import os
import pathlib

import pytest
import tensorflow as tf

from keras_recsys.data import read_arrays, read_tfrecord, write_tfrecord


def feature(values):
    if not values:
        return tf.train.Feature(int64_list=tf.train.Int64List())
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    if isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def save(path, examples, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for example in examples:
            features = {name: feature(values) for name, values in example.items()}
            features = tf.train.Features(feature=features)
            writer.write(tf.train.Example(features=features).SerializeToString())
    return str(path)


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_examples_of_other_programs(tmp_path, compression):
    examples = [
        {"city": [b"rome"], "seen": [7, 5], "click": [1], "other": [0.5]},
        {"city": [b""], "seen": [9], "click": [0], "other": [0.5]},
    ]
    path = save(tmp_path / "a", examples, compression)
    schema = {"city": "string", "seen": "int32[]"}
    ((columns, labels),) = read_tfrecord(path, schema, label="click")
    assert columns["city"].numpy().tolist() == [b"rome", b""]
    assert columns["seen"].to_list() == [[7, 5], [9]]
    assert columns["seen"].dtype == "int32"
    assert labels.numpy().tolist() == [[1.0], [0.0]]
    assert labels.dtype == "float32"


def test_one_row_an_example_is_what_other_programs_read(tmp_path):
    columns = {"city": ["rome", "oslo"], "seen": [[4], []], "age": [0.5, 2.0]}
    schema = {"city": "string", "seen": "int64[]", "age": "float32"}
    (path,) = write_tfrecord(
        read_arrays(columns, schema), tmp_path, rows_per_record=1, compression="none"
    )
    spec = {
        "city": tf.io.FixedLenFeature((), "string"),
        "seen": tf.io.VarLenFeature("int64"),
        "age": tf.io.FixedLenFeature((), "float32"),
    }
    records = list(tf.data.TFRecordDataset(path))
    assert len(records) == 2
    parsed = tf.io.parse_example(records, spec)
    assert parsed["city"].numpy().tolist() == [b"rome", b"oslo"]
    assert parsed["age"].numpy().tolist() == [0.5, 2.0]
    assert tf.sparse.to_dense(parsed["seen"]).numpy().tolist() == [[4], [0]]


def test_many_rows_are_smaller(tmp_path):
    rows = read_arrays({"id": list(range(2000))}, {"id": "int64"})
    sizes = [
        os.path.getsize(*write_tfrecord(rows, tmp_path / str(n), rows_per_record=n))
        for n in (1, 1024)
    ]
    assert sizes[1] < sizes[0] / 2


def test_both_kinds_side_by_side(tmp_path):
    schema = {"id": "int64", "seen": "int64[]"}
    files = []
    for n in (1, 3):
        rows = {"id": [n, n, n, n], "seen": [[], [n, n], [], [n]]}
        files += write_tfrecord(
            read_arrays(rows, schema), tmp_path / str(n), rows_per_record=n
        )
    (batch,) = read_tfrecord(files, schema, num_open_files=1)
    assert batch["id"].numpy().tolist() == [1] * 4 + [3] * 4
    assert batch["seen"].to_list() == [[], [1, 1], [], [1], [], [3, 3], [], [3]]


@pytest.mark.parametrize(
    ("schema", "label", "message"),
    [
        ({"town": "string"}, None, r"must have the columns \['town'\].*'city'"),
        ({"city": "int64"}, None, "column 'city'.*'int64'.*Received: bytes_list"),
        ({"id": "float32"}, None, "column 'id'.*float_list.*Received: int64_list"),
        ({"id": "int64"}, "city", "column 'city'.*Received: bytes_list"),
    ],
)
def test_the_first_example_must_fit(tmp_path, schema, label, message):
    path = save(tmp_path / "a.tfrecord", [{"city": [b"rome"], "id": [1]}])
    with pytest.raises(ValueError, match="a.tfrecord.*" + message):
        read_tfrecord(path, schema, label=label)


def test_later_examples_must_fit(tmp_path):
    first = {"a": [1, 2], "b": [3, 4]}
    for other, schema, message in [
        ({"a": [1]}, "int64", "must hold as many rows of each column"),
        ({"c": [1]}, "int64", "must hold as many rows of each column"),
        ({"a": [1, 2], "b": [3, 2**31]}, "int32", "must hold integers that fit int32"),
        ({"a": [1, 2], "b": [b"x", b"y"]}, "int64", "Key: b.*Data types don't match"),
    ]:
        path = save(tmp_path / "a", [first, other])
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            list(read_tfrecord(path, {"a": "int64", "b": schema}))


def test_broken_files(tmp_path):
    path = save(tmp_path / "a", [{"a": [1]}] * 9)
    data = bytearray(pathlib.Path(path).read_bytes())
    data[-20] ^= 1
    (tmp_path / "b").write_bytes(data)
    with pytest.raises(tf.errors.DataLossError):
        list(read_tfrecord(tmp_path / "b", {"a": "int64"}))
    (tmp_path / "c").write_bytes(b"label,a\n1,2\n" * 9)
    with pytest.raises(ValueError, match="c must be a file of tf.train.Example"):
        read_tfrecord(tmp_path / "c", {"a": "int64"})
    (tmp_path / "d").write_bytes(b"")
    with pytest.raises(ValueError, match="d must be.*Received: an empty file"):
        read_tfrecord(tmp_path / "d", {"a": "int64"})


def test_compressed_files_that_end_early(tmp_path):
    path = save(tmp_path / "a", [{"a": [i]} for i in range(500)], "GZIP")
    data = pathlib.Path(path).read_bytes()
    for end in (20, len(data) // 2, len(data) - 9, len(data) - 8, len(data) - 1):
        (tmp_path / "b").write_bytes(data[:end])
        with pytest.raises((ValueError, tf.errors.OpError), match="whole file|trunc"):
            list(read_tfrecord(tmp_path / "b", {"a": "int64"}))
    (tmp_path / "b").write_bytes(data[: len(data) - 8])
    with pytest.raises(tf.errors.InvalidArgumentError, match="b must be a whole file"):
        list(read_tfrecord([path, tmp_path / "b"], {"a": "int64"}))


def test_compressed_files_of_several_parts(tmp_path):
    records = [
        pathlib.Path(save(tmp_path / "a", [{"a": [i]} for i in part])).read_bytes()
        for part in (range(3), range(3, 5))
    ]
    (tmp_path / "b").write_bytes(b"".join(map(gzip.compress, records)))
    (batch,) = read_tfrecord(tmp_path / "b", {"a": "int64"})
    assert batch["a"].numpy().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("values", "lengths"),
    [([4, 5, 6, 7], [1, 2]), ([4, 5, 6], [3, 1]), ([4, 5, 6], [4, -1])],
)
def test_lengths_must_add_up_in_each_example(tmp_path, values, lengths):
    good = {"a": [1, 2, 3], "a/lengths": [3, 0], "b": [1, 2]}
    other = {**good, "a": values, "a/lengths": lengths}
    # One too many in the second and one too few in the third are as many in all.
    examples = [good, other, {**good, "a": [8, 9]}]
    path = save(tmp_path / "a.tfrecord", examples)
    message = "a.tfrecord, Example 1: feature `a/lengths` must hold lengths that add up"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        list(read_tfrecord(path, {"a": "int64[]", "b": "int64"}))


def test_lists_are_not_read_as_single_values(tmp_path):
    scalar = {"a": "int64"}
    for first in (
        {"a": [1, 2], "a/lengths": [2]},
        {"a": [1, 2], "city": [b"rome"]},
        {"a": [1], "a/lengths": [1]},
    ):
        path = save(tmp_path / "a", [first])
        with pytest.raises(ValueError, match="a: column `a` must hold one value a row"):
            read_tfrecord(path, scalar)
        assert len(list(read_tfrecord(path, {"a": "int64[]"}))) == 1
    for first, second in (
        ({"a": [1], "city": [b"rome"]}, {"a": [1, 2], "city": [b"oslo"]}),
        ({"a": [1], "city": [b"rome"]}, {"a": [1], "a/lengths": [1]}),
    ):
        path = save(tmp_path / "a", [first, second])
        message = "a, Example 1: column `a` must hold one value a row"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            list(read_tfrecord(path, scalar))


def test_one_column_of_examples_of_many_rows(tmp_path):
    rows = {"a": [1, 2, 3], "seen": [[1], [], [2, 3]], "c": ["x", "y", "z"]}
    schema = {"a": "int64", "seen": "int64[]", "c": "string"}
    files = write_tfrecord(read_arrays(rows, schema), tmp_path)
    for name, dtype in schema.items():
        (batch,) = read_tfrecord(files, {name: dtype})
        assert batch[name].shape[0] == 3
    (batch,) = read_tfrecord(files, {"seen/lengths": "int64"})
    assert batch["seen/lengths"].numpy().tolist() == [1, 0, 2]


def test_no_column_has_the_name_of_lengths(tmp_path):
    batch = {"x": tf.ragged.constant([[1], [2, 3]]), "x/lengths": [1, 2]}
    with pytest.raises(ValueError, match="no column 'x/lengths' beside 'x'"):
        write_tfrecord(tf.data.Dataset.from_tensors(batch), tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_labels_of_two_kinds(tmp_path):
    files = [
        save(tmp_path / "a", [{"a": [1], "y": [1]}]),
        save(tmp_path / "b", [{"a": [1], "y": [1.0]}]),
    ]
    with pytest.raises(ValueError, match="agree in the kind of feature 'y'"):
        read_tfrecord(files, {"a": "int64"}, label="y")
