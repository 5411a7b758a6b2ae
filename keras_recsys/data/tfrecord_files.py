"""Reading and writing of click logs in files of `tf.train.Example`."""

import gzip
import os
import zlib

from keras_recsys._checks import check_choice, check_int
from keras_recsys.data._row_checks import check_schema, find_files, kind_of
from keras_recsys.data._shards import write_shards
from keras_recsys.data._streams import Stream

COMPRESSIONS = ("GZIP", "none")
LENGTHS = "/lengths"  # after the name of a column of lists
BLOCK_ROWS = 2**12
FRAME_BYTES = 16  # of a record beside its data: a length and two checksums
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
    is one row. A column of lists is not read with a dtype of single values. Compressed
    files are known by their first bytes, decompressed and parsed in parallel.

    Values are taken as they are: such files are written by programs, mostly from rows
    that were checked. A broken record, a compressed file that ends early, a file of no
    byte, and an Example that lacks a column or whose lengths do not fit its values, are
    errors always. A file that is not compressed and ends between two records cannot be
    told from a whole one.

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
        is a `tf.errors.DataLossError`. An Example that does not fit the schema is a
        `tf.errors.InvalidArgumentError`, whose message has the file and the number of
        the Example, counted from 0; a compressed file that ends early is one too.

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
    rows, label_kinds, others = 1, set(), {}
    for file, compression in zip(files, compressions, strict=True):
        example = _first_example(file, compression)
        if example is not None:
            _check_example(file, example, columns, label)
            rows = max(rows, *(_num_rows(example, name, columns) for name in columns))
            for name, kind in _other_features(example, columns):
                others.setdefault(name, set()).add(kind)
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
        if name + LENGTHS not in columns:
            lengths = tf.io.RaggedFeature("int64", row_splits_dtype="int64")
            spec[name + LENGTHS] = lengths
    if len(columns) > 1:  # which tell of each other
        others = {}
    others = {name: kinds for name, kinds in others.items() if len(kinds) == 1}
    for name, (kind,) in others.items():
        spec[name] = tf.io.RaggedFeature(kind, row_splits_dtype="int64")
    records = -(-BLOCK_ROWS // rows)
    names = "`, `".join(columns)

    def open_file(index):
        file = tf.gather(files, index)
        return _records(file, tf.gather(compressions, index), records)

    def parse(serialized, places):
        parsed = tf.io.parse_example(serialized, spec, example_names=places)
        typed, num_rows, checks = {}, {}, []

        def check(fits, message):
            first = tf.argmin(tf.cast(fits, "int32"))
            place = tf.gather(tf.pad(places, [[0, 1]]), first)
            message = tf.strings.join([place, ": ", message])
            checks.append(tf.debugging.Assert(tf.reduce_all(fits), [message]))

        for name, dtype in columns.items():
            kind, is_list = kind_of(dtype)
            values, lengths = parsed[name], parsed.get(name + LENGTHS)
            if is_list:
                check(
                    _lengths_fit(values, lengths),
                    f"feature `{name + LENGTHS}` must hold lengths that add up to the "
                    f"number of values of `{name}`.",
                )
                values, num_rows[name] = _lists(values, lengths)
            else:
                if lengths is not None:
                    check(lengths.row_lengths() == 0, _single(name, dtype))
                num_rows[name] = values.row_lengths()
                values = values.flat_values
            if kind in ("int32", "float32"):
                values = _cast(name, values, kind)
            typed[name] = values
        counts = tf.stack(list(num_rows.values()))
        check(
            tf.reduce_all((counts == counts[:1]) & (counts > 0), axis=0),
            f"an Example must hold as many rows of each column of `{names}`.",
        )
        for other in others:
            name, count = next(iter(num_rows.items()))
            given = parsed[other].row_lengths()
            fits = (count == 1) | (given == 0) | (given == count)
            check(fits, _single(name, columns[name]))
        with tf.control_dependencies(checks):
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
        ValueError: As `write_parquet`, and if a column has the name of the lengths of
            another.

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
                _check_names(table.column_names)
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


def _check_names(names):
    for name in names:
        if name + LENGTHS in names:
            raise ValueError(
                f"`dataset` must have no column {name + LENGTHS!r} beside {name!r}: "
                "the name is that of the lengths of lists. "
                f"Received: columns {names}."
            )


def _records(file, compression, num_records):
    """Makes a dataset of blocks of records, and of the places to name in errors."""
    import tensorflow as tf

    records = tf.data.TFRecordDataset(file, compression).batch(num_records)
    end = tf.data.Dataset.from_tensors(tf.zeros((0,), "string"))
    blocks = records.concatenate(end)

    def scan(state, serialized):
        num_read, num_bytes = state
        number = tf.size(serialized, "int64")
        places = tf.strings.as_string(num_read + tf.range(number))
        places = tf.strings.join([file, ", Example ", places])
        sizes = tf.cast(tf.strings.length(serialized), "int64") + FRAME_BYTES
        num_bytes += tf.reduce_sum(sizes)
        if tf.equal(number, 0) and tf.equal(compression, "GZIP"):
            num_bytes = tf.numpy_function(_check_end, [file, num_bytes], "int64")
        num_bytes = tf.ensure_shape(num_bytes, ())
        return (num_read + number, num_bytes), (serialized, places)

    zero = tf.zeros((), "int64")
    blocks = blocks.scan((zero, zero), scan)
    return blocks.filter(lambda serialized, places: tf.size(serialized) > 0)


def _check_end(file, num_bytes):
    """Checks that a compressed file held as many bytes as were read.

    TensorFlow takes a file that ends early for one of fewer records. The last four
    bytes of a whole one are its size, if it is of one part; others are read again.
    """
    with open(file, "rb") as stream:
        stream.seek(-4, os.SEEK_END)
        size = int.from_bytes(stream.read(), "little")
    if size == num_bytes % 2**32:
        return num_bytes
    error = f"{num_bytes} bytes of records"
    try:
        with gzip.open(file, "rb") as stream:
            size = 0
            while chunk := stream.read(2**22):
                size += len(chunk)
        if size == num_bytes:
            return num_bytes
    except (OSError, EOFError, zlib.error) as raised:
        error = raised
    raise ValueError(f"{file.decode()} must be a whole file. Received: {error}.")


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

    if not os.path.getsize(file):
        raise ValueError(
            f"{file} must be a file of tf.train.Example. Received: an empty file."
        )
    try:
        for record in tf.data.TFRecordDataset(file, compression).take(1):
            return tf.train.Example.FromString(record.numpy())
    except (tf.errors.OpError, ValueError, _decode_error()) as error:
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
        is_list = name + LENGTHS in features
        if not kind_of(dtype)[1] and (is_list or not _rows_agree(example, name)):
            raise ValueError(f"{file}: {_single(name, dtype)}")


def _single(name, dtype):
    return (
        f"column `{name}` must hold one value a row, for dtype `{dtype}`. "
        "Received: lists of values."
    )


def _rows_agree(example, name):
    """Whether all features tell that an Example has as many rows as a column."""
    count = _size(example, name)
    sizes = {count, *(_size(example, other) for other in _row_features(example))}
    return count <= 1 or sizes <= {count, 0}


def _row_features(example):
    """Returns the features of a value a row, if the Example is of many rows."""
    features = example.features.feature
    return [name for name in features if name + LENGTHS not in features]


def _other_features(example, columns):
    """Yields names and dtypes of features that tell the number of rows as well."""
    kinds = {"bytes_list": "string", "int64_list": "int64", "float_list": "float32"}
    for name in _row_features(example):
        kind = example.features.feature[name].WhichOneof("kind")
        known = name in columns or name.removesuffix(LENGTHS) in columns
        if kind is not None and not known:
            yield name, kinds[kind]


def _size(example, name):
    feature = example.features.feature[name]
    kind = feature.WhichOneof("kind")
    return 0 if kind is None else len(getattr(feature, kind).value)


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
    return _size(example, name)


def _lengths_fit(values, lengths):
    """Returns for each Example whether its lengths, if any, add up to its values."""
    import tensorflow as tf

    total = tf.reduce_sum(lengths, axis=1)
    is_alone = lengths.row_lengths() == 0
    is_negative = tf.reduce_any(lengths < 0, axis=1)
    return is_alone | ((total == values.row_lengths()) & ~is_negative)


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
    ragged = tf.RaggedTensor.from_row_lengths(
        values.flat_values, lengths, validate=False
    )
    return ragged, num_rows


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
