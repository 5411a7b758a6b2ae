"""Reading and writing of click logs in files of `tf.train.Example`."""

from keras_recsys._checks import check_choice, check_int
from keras_recsys.data._row_checks import check_schema, find_files, kind_of
from keras_recsys.data._shards import write_shards
from keras_recsys.data._streams import Stream

COMPRESSIONS = ("GZIP", "none")
LENGTHS = "/lengths"  # after the name of a column of lists
BLOCK_ROWS = 2**12
FEATURES = {
    "string": "bytes_list",
    "int64": "int64_list",
    "int32": "int64_list",
    "float32": "float_list",
}


def read_tfrecord(
    paths,
    schema,
    *,
    label=None,
    batch_size=1024,
    shuffle_rows=0,
    seed=None,
    drop_remainder=False,
    num_open_files=4,
):
    """Reads files of `tf.train.Example` as a stream of raw batches.

    An Example may hold one row, as most programs write it, or many, as `write_tfrecord`
    does. In the second case every feature has the values of all its rows end to end, so
    that their number is the number of rows; a column of lists has the lengths of its
    lists in a feature `"{name}/lengths"` beside it. Without that feature, the Example
    is one row. Compressed files are known by their first bytes, decompressed and parsed
    in parallel.

    Values are taken as they are: such files are written by programs, mostly from rows
    that were checked. A broken record, and an Example that lacks a column, are errors
    always.

    Args:
        paths: As in `read_csv`.
        schema: As in `read_parquet`; `"int32"` is for int64 features of such values.
        label: As in `read_csv`; a feature of floats or of integers.
        batch_size: As in `read_csv`.
        shuffle_rows: As in `read_csv`.
        seed: As in `read_csv`.
        drop_remainder: As in `read_csv`.
        num_open_files: As in `read_csv`.

    Returns:
        A `tf.data.Dataset` as of `read_parquet`. While it is iterated, a broken record
        is a `tf.errors.DataLossError`, and an Example that does not fit the schema a
        `tf.errors.InvalidArgumentError`.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If there is no such file, the first Example of a file does not fit
            the schema, or an argument is out of its range.
    """
    import tensorflow as tf

    files = find_files(paths)
    columns = check_schema(schema, label)
    stream = Stream(
        columns,
        label,
        batch_size=batch_size,
        shuffle_rows=shuffle_rows,
        seed=seed,
        drop_remainder=drop_remainder,
        num_open_files=num_open_files,
    )
    compressions = [_compression(file) for file in files]
    rows, label_kinds = 1, set()
    for file, compression in zip(files, compressions, strict=True):
        example = _first_example(file, compression)
        if example is not None:
            _check_example(file, example, columns, label)
            rows = max(rows, *(_num_rows(example, name, columns) for name in columns))
            if label is not None:
                label_kinds.add(example.features.feature[label].WhichOneof("kind"))
    if len(label_kinds) > 1:
        raise ValueError(
            f"`paths` must be files that agree in the kind of feature {label!r}. "
            f"Received: {sorted(label_kinds)}."
        )
    spec = {}
    for name, dtype in columns.items():
        kind, is_list = kind_of(dtype)
        kind = "int64" if kind == "int32" else kind
        if name == label and label_kinds == {"int64_list"}:
            kind = "int64"
        spec[name] = tf.io.RaggedFeature(kind, row_splits_dtype="int64")
        if is_list:
            lengths = tf.io.RaggedFeature("int64", row_splits_dtype="int64")
            spec[name + LENGTHS] = lengths
    records = -(-BLOCK_ROWS // rows)

    def open_file(index):
        return tf.data.TFRecordDataset(
            tf.gather(files, index), tf.gather(compressions, index)
        ).batch(records)

    def parse(serialized):
        parsed = tf.io.parse_example(serialized, spec)
        typed, lengths = {}, {}
        for name, dtype in columns.items():
            kind, is_list = kind_of(dtype)
            values = parsed[name]
            if is_list:
                values, lengths[name] = _lists(values, parsed[name + LENGTHS])
            else:
                lengths[name] = values.row_lengths()
                values = values.flat_values
            if kind in ("int32", "float32"):
                values = _cast(name, values, kind)
            typed[name] = values
        counts = tf.stack(list(lengths.values()))
        check = tf.debugging.Assert(
            tf.reduce_all((counts == counts[:1]) & (counts > 0)),
            [f"An Example must hold as many rows of each column of {list(columns)}."],
        )
        with tf.control_dependencies([check]):
            return stream.element(tf.nest.map_structure(tf.identity, typed))

    indices = tf.data.Dataset.range(len(files))
    blocks = stream.interleave(indices, len(files), open_file)
    return stream.to_batches(blocks.map(parse, num_parallel_calls=tf.data.AUTOTUNE))


def write_tfrecord(
    dataset,
    folder,
    *,
    label="label",
    rows_per_shard=1_000_000,
    rows_per_record=1024,
    compression="GZIP",
    overwrite=False,
):
    """Writes a dataset of batches to files of `tf.train.Example`.

    Files are named `part-00000.tfrecord` and so on, and written as by `write_parquet`.
    See `read_tfrecord` for what an Example holds.

    Args:
        dataset: As in `write_parquet`.
        folder: As in `write_parquet`.
        label: As in `write_parquet`.
        rows_per_shard: As in `write_parquet`.
        rows_per_record: Positive int, rows in an Example. 1 makes files that other
            programs read, more makes them smaller and several times faster to parse.
            Defaults to `1024`.
        compression: `"GZIP"` or `"none"`. Defaults to `"GZIP"`.
        overwrite: As in `write_parquet`.

    Returns:
        List of the paths of the files.

    Raises:
        TypeError: As `write_parquet`.
        ValueError: As `write_parquet`.

    Example:
    >>> import tempfile
    >>> import tensorflow as tf
    >>> batch = {"ids": tf.ragged.constant([[4, 2], []], dtype="int64")}
    >>> files = write_tfrecord(tf.data.Dataset.from_tensors(batch), tempfile.mkdtemp())
    >>> next(iter(read_tfrecord(files, {"ids": "int64[]"})))["ids"].to_list()
    [[4, 2], []]
    """
    check_choice("compression", compression, COMPRESSIONS)
    check_int("rows_per_record", rows_per_record)

    def write(tables, path):
        import tensorflow as tf

        options = "" if compression == "none" else compression
        with tf.io.TFRecordWriter(path, options) as writer:
            for table in tables:
                for example in _examples(table, rows_per_record):
                    writer.write(example)

    return write_shards(
        dataset,
        folder,
        write,
        ".tfrecord",
        label=label,
        rows_per_shard=rows_per_shard,
        rows_per_table=max(
            rows_per_record, BLOCK_ROWS // rows_per_record * rows_per_record
        ),
        overwrite=overwrite,
    )


def _examples(table, rows_per_record):
    """Yields the rows of a table as serialized Examples."""
    import tensorflow as tf

    columns = {}
    for name in table.column_names:
        values = table.column(name).combine_chunks()
        offsets = None
        if hasattr(values, "offsets"):
            offsets = values.offsets.to_numpy() - values.offsets[0].as_py()
            values = values.flatten()
        make = _feature_maker(values.type)
        values = values.cast("binary") if make is _bytes else values
        columns[name] = (make, values.to_numpy(zero_copy_only=False).tolist(), offsets)
    for row in range(0, len(table), rows_per_record):
        end = min(row + rows_per_record, len(table))
        features = {}
        for name, (make, values, offsets) in columns.items():
            if offsets is None:
                features[name] = make(values[row:end])
                continue
            features[name] = make(values[offsets[row] : offsets[end]])
            if rows_per_record > 1:
                lengths = offsets[row + 1 : end + 1] - offsets[row:end]
                features[name + LENGTHS] = _int64(lengths.tolist())
        features = tf.train.Features(feature=features)
        yield tf.train.Example(features=features).SerializeToString()


def _feature_maker(dtype):
    import pyarrow as pa

    if pa.types.is_floating(dtype):
        return _float
    return _int64 if pa.types.is_integer(dtype) else _bytes


def _float(values):
    import tensorflow as tf

    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def _int64(values):
    import tensorflow as tf

    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _bytes(values):
    import tensorflow as tf

    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def _compression(file):
    with open(file, "rb") as stream:
        return "GZIP" if stream.read(2) == b"\x1f\x8b" else ""


def _first_example(file, compression):
    """Returns the first Example of a file, `None` if there is none."""
    import tensorflow as tf

    try:
        for record in tf.data.TFRecordDataset(file, compression).take(1):
            return tf.train.Example.FromString(record.numpy())
    except (tf.errors.DataLossError, ValueError, _decode_error()) as error:
        raise ValueError(
            f"{file} must be a file of tf.train.Example. Received: {error}."
        ) from error
    return None


def _decode_error():
    from google.protobuf.message import DecodeError

    return DecodeError


def _check_example(file, example, columns, label):
    features = example.features.feature
    missing = [name for name in columns if name not in features]
    if missing:
        raise ValueError(
            f"{file} must have the columns {missing}. Received: columns "
            f"{sorted(features)}."
        )
    for name, dtype in columns.items():
        given = features[name].WhichOneof("kind")
        allowed = [FEATURES[kind_of(dtype)[0]]]
        if name == label:
            allowed.append("int64_list")
        elif kind_of(dtype)[1]:
            allowed.append(None)  # an empty list has no kind in some programs
        if given not in allowed:
            raise ValueError(
                f"{file}, column {name!r} must be of dtype {dtype!r}, a feature of "
                f"kind {allowed[0]}. Received: {given}."
            )


def _num_rows(example, name, columns):
    kind, is_list = kind_of(columns[name])
    features = example.features.feature
    if is_list:
        lengths = (
            features[name + LENGTHS].int64_list.value
            if name + LENGTHS in features
            else ()
        )
        return max(1, len(lengths))
    feature = features[name]
    return len(getattr(feature, feature.WhichOneof("kind")).value)


def _lists(values, lengths):
    """Returns ragged rows and the number of rows of each Example."""
    import tensorflow as tf

    given, num_values = lengths.row_lengths(), values.row_lengths()
    num_rows = tf.maximum(given, 1)  # an Example without lengths is one row
    is_alone = tf.repeat(tf.equal(given, 0), num_rows)
    index = tf.cumsum(tf.cast(~is_alone, "int64"), exclusive=True)
    padded = tf.pad(lengths.flat_values, [[0, 1]])
    lengths = tf.where(
        is_alone, tf.repeat(num_values, num_rows), tf.gather(padded, index)
    )
    return tf.RaggedTensor.from_row_lengths(values.flat_values, lengths), num_rows


def _cast(name, values, kind):
    """Casts integers, with a check that none is cut."""
    import tensorflow as tf

    flat = values.flat_values if isinstance(values, tf.RaggedTensor) else values
    if flat.dtype == kind:
        return values
    cast = tf.cast(flat, kind)
    if kind == "int32":
        check = tf.debugging.assert_equal(
            tf.cast(cast, flat.dtype),
            flat,
            f"Column {name!r} must hold integers that fit int32.",
        )
        with tf.control_dependencies([] if check is None else [check]):
            cast = tf.identity(cast)
    return (
        values.with_flat_values(cast) if isinstance(values, tf.RaggedTensor) else cast
    )
