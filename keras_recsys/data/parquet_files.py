"""Reading and writing of click logs in Parquet files."""

import numpy as np

from keras_recsys._checks import check_choice
from keras_recsys.data._row_checks import (
    DamageLog,
    RowChecks,
    check_arrow_types,
    check_columns,
    check_schema,
    find_files,
)
from keras_recsys.data._shards import write_shards
from keras_recsys.data._streams import Stream

BLOCK_ROWS = 2**14
GROUP_ROWS = 2**17  # rows of a row group
COMPRESSIONS = ("zstd", "snappy", "gzip", "none")


def read_parquet(
    paths,
    schema,
    *,
    label=None,
    fill=None,
    errors="raise",
    report=None,
    vocabularies=None,
    batch_size=1024,
    shuffle_rows=0,
    seed=None,
    drop_remainder=False,
    num_open_files=4,
):
    """Reads Parquet files as a stream of raw batches.

    Only the columns of the schema are read, some thousand rows at a time. The rows
    found damaged are those with a `"missing value"` (a null) without `fill`, text that
    is `"not UTF-8"`, a number that is `"not finite"` or `"out of range"`, and an
    `"unknown category"`; see `read_csv`. Damage of a file itself is an error always:
    checksums of its pages are verified where it has them, as files of `write_parquet`
    do. The list of columns at its end can have none.

    Args:
        paths: As in `read_csv`.
        schema: As in `read_csv`, and the dtypes of several values a row, `"string[]"`,
            `"int64[]"`, `"int32[]"` and `"float32[]"`, for columns of lists.
        label: As in `read_csv`. Booleans are read as 0 and 1.
        fill: As in `read_csv`, with strings for columns of strings; in lists it stands
            for missing values within them, not for a missing list.
        errors: As in `read_csv`.
        report: As in `read_csv`.
        vocabularies: As in `read_csv`.
        batch_size: As in `read_csv`.
        shuffle_rows: As in `read_csv`.
        seed: As in `read_csv`.
        drop_remainder: As in `read_csv`.
        num_open_files: As in `read_csv`.

    Returns:
        A `tf.data.Dataset` as of `read_csv`, of known length where damage raises.
        Columns of lists are of type `tf.RaggedTensor`, which `encode_dataset` pads.
        Rows are counted from 0 in the errors.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If there is no such file, a file is no Parquet file, lacks a column
            or has one of another dtype, or an argument is out of its range.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = find_files(paths)
    columns = check_schema(schema, label)
    log = DamageLog(errors, report, "row")
    checks = RowChecks(schema, label, fill, vocabularies, log)
    num_rows = 0
    for file in files:
        try:
            metadata = pq.read_metadata(file)
            given = metadata.schema.to_arrow_schema()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{file} must be a Parquet file. Received: {error}."
            ) from error
        num_rows += metadata.num_rows
        check_columns(file, columns, given.names)
        types = {name: given.field(name).type for name in columns}
        check_arrow_types(file, columns, types)

    def read(index):
        file = files[index]
        row = 0
        for batch in _batches(file, list(columns)):
            typed, damages = checks.convert(batch)
            numbers = range(row, row + len(batch))
            yield checks.keep_good(typed, damages, batch, file, numbers)
            row += len(batch)

    stream = Stream(
        columns,
        label,
        batch_size=batch_size,
        shuffle_rows=shuffle_rows,
        seed=seed,
        drop_remainder=drop_remainder,
        num_open_files=num_open_files,
    )
    return stream.from_tables(read, len(files), log, num_rows)


def _batches(file, columns):
    """Yields the rows of a file, some thousand at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    num_rows = 0
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            for batch in opened.iter_batches(
                BLOCK_ROWS, columns=columns, use_threads=False
            ):
                num_rows += len(batch)
                yield batch
            expected = opened.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{file} must be a whole Parquet file. Received, after {num_rows} rows: "
            f"{error}."
        ) from error
    if num_rows != expected:
        raise ValueError(
            f"{file} must have {expected} rows, as its end says. "
            f"Received: {num_rows} rows."
        )


def write_parquet(
    dataset,
    folder,
    *,
    label="label",
    rows_per_shard=1_000_000,
    compression="zstd",
    overwrite=False,
):
    """Writes a dataset of batches to Parquet files, raw columns or ids.

    The files `part-00000.parquet` and so on are written under other names and get
    theirs when all are whole: a run that fails leaves the folder as it was. The pages
    of a file have checksums.

    Args:
        dataset: A finite `tf.data.Dataset` of batches, dicts from column name to tensor
            or pairs of such a dict and labels of shape `(batch_size, 1)`. Columns are
            strings, integers or floats of shape `(batch_size,)`; those of rank 2, dense
            or ragged, become lists, padding included.
        folder: Path of the folder; made if it is not there.
        label: Name of the column of labels. Defaults to `"label"`.
        rows_per_shard: Positive int, rows in a file. Defaults to `1_000_000`.
        compression: `"zstd"`, `"snappy"`, `"gzip"` or `"none"`. Defaults to `"zstd"`.
        overwrite: Whether files of this kind that are in the folder are replaced; if
            not, the folder must be empty. Defaults to `False`.

    Returns:
        List of the paths of the files.

    Raises:
        TypeError: If `dataset` is no dataset of such batches, or `label` no string.
        ValueError: If the folder is not empty, the dataset is empty, the label is a
            column too, the columns of a batch are not of one length, strings are not
            UTF-8, or an argument is out of its range.

    Example:
    >>> import tempfile
    >>> import tensorflow as tf
    >>> batch = {"city": ["rome", "oslo"]}, [[1.0], [0.0]]
    >>> files = write_parquet(tf.data.Dataset.from_tensors(batch), tempfile.mkdtemp())
    >>> batches = read_parquet(files, {"city": "string"}, label="label")
    >>> columns, labels = next(iter(batches))
    >>> columns["city"].numpy().tolist(), labels.numpy().tolist()
    ([b'rome', b'oslo'], [[1.0], [0.0]])
    """
    check_choice("compression", compression, COMPRESSIONS)

    def write(tables, path):
        import pyarrow.parquet as pq

        writer = None
        try:
            for table in tables:
                if writer is None:
                    writer = pq.ParquetWriter(
                        path,
                        table.schema,
                        compression=compression,
                        write_page_checksum=True,
                    )
                writer.write_table(table, row_group_size=GROUP_ROWS)
        finally:
            if writer is not None:
                writer.close()

    return write_shards(
        dataset,
        folder,
        write,
        ".parquet",
        label=label,
        rows_per_shard=rows_per_shard,
        rows_per_table=GROUP_ROWS,
        overwrite=overwrite,
    )


def read_arrays(
    columns,
    schema,
    *,
    label=None,
    fill=None,
    errors="raise",
    report=None,
    vocabularies=None,
    batch_size=1024,
    shuffle_rows=0,
    seed=None,
    drop_remainder=False,
):
    """Reads a `pandas.DataFrame` or a dict of arrays as a stream of raw batches.

    `make_dataset` makes batches of columns that are encoded and checked beforehand;
    this gives the same stream as the readers of files, for data that fit in memory.

    Args:
        columns: `pandas.DataFrame`, or dict from column name to array, tensor or list,
            all of one length. Columns of several values a row hold sequences. `None`,
            `NaN` and `pandas.NA` are missing values. Floats stand for integers, as
            pandas makes them of integers with gaps, if they are whole; else they are a
            `"bad number"`, and `"out of range"` from `2**53` on, where one float64
            stands for several integers.
        schema: As in `read_parquet`.
        label: As in `read_parquet`.
        fill: As in `read_parquet`.
        errors: As in `read_csv`.
        report: As in `read_csv`.
        vocabularies: As in `read_csv`.
        batch_size: As in `read_csv`.
        shuffle_rows: As in `read_csv`.
        seed: As in `read_csv`.
        drop_remainder: As in `read_csv`.

    Returns:
        A `tf.data.Dataset` as of `read_parquet`.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If a column is not there, is of another dtype or length, or an
            argument is out of its range.

    Example:
    >>> arrays = {"city": ["rome", "oslo", "bonn"], "seen": [[3, 5], [], [4]]}
    >>> schema = {"city": "string", "seen": "int64[]"}
    >>> [batch["seen"].to_list() for batch in read_arrays(arrays, schema, batch_size=2)]
    [[[3, 5], []], [[4]]]
    """
    import pyarrow as pa

    names = check_schema(schema, label)
    if not hasattr(columns, "keys"):
        raise TypeError(
            "`columns` must be a dict of arrays or a pandas.DataFrame. "
            f"Received: columns of type {type(columns).__name__}."
        )
    log = DamageLog(errors, report, "row")
    checks = RowChecks(schema, label, fill, vocabularies, log)
    check_columns("`columns`", names, columns.keys())
    arrays = {}
    for name in names:
        try:
            arrays[name] = _array(columns[name])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"Column {name!r} must hold values of dtype {names[name]!r}. "
                f"Received: {error}."
            ) from error
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = {name: len(array) for name, array in arrays.items()}
        raise ValueError(f"`columns` must be of one length. Received: {lengths}.")
    types = {name: array.type for name, array in arrays.items()}
    check_arrow_types("`columns`", names, types, whole_floats=True)
    table = pa.table(arrays)

    def read(index):
        for row in range(0, len(table), BLOCK_ROWS):
            block = table.slice(row, BLOCK_ROWS)
            numbers = range(row, row + len(block))
            typed, damages = checks.convert(block)
            yield checks.keep_good(typed, damages, block, "`columns`", numbers)

    stream = Stream(
        names,
        label,
        batch_size=batch_size,
        shuffle_rows=shuffle_rows,
        seed=seed,
        drop_remainder=drop_remainder,
        num_open_files=1,
    )
    return stream.from_tables(read, 1, log, len(table))


def _array(values):
    """Returns a column as an Arrow array."""
    import pyarrow as pa

    if hasattr(values, "to_list") and hasattr(values, "row_splits"):
        values = values.to_list()
    elif hasattr(values, "numpy"):
        values = values.numpy()
    is_single = not hasattr(values, "__len__") or getattr(values, "ndim", 1) == 0
    if is_single or isinstance(values, str | bytes):
        raise TypeError(f"a single {type(values).__name__}, {values!r}")
    if isinstance(values, np.ndarray) and values.ndim == 2:
        values = list(values)
    return pa.array(values, from_pandas=True)
