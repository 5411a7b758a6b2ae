"""Writing of a dataset of batches to numbered files."""

import contextlib
import os
import pathlib

import numpy as np

from keras_recsys._checks import check_int


def write_shards(
    dataset,
    folder,
    write,
    suffix,
    *,
    label,
    rows_per_shard,
    rows_per_table,
    overwrite,
):
    """Writes files of `rows_per_shard` rows, and names them when all are whole.

    Args:
        dataset: As in `write_parquet`.
        folder: As in `write_parquet`.
        write: Function of an iterator of Arrow tables and a path.
        suffix: End of the names of the files, from the point on.
        label: As in `write_parquet`.
        rows_per_shard: As in `write_parquet`.
        rows_per_table: Positive int, rows of each table but the last of a file.
        overwrite: As in `write_parquet`.
    """
    check_int("rows_per_shard", rows_per_shard)
    if not isinstance(label, str):
        raise TypeError(f"`label` must be a column name. Received: label={label!r}.")
    _check_dataset(dataset, label)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not overwrite and any(folder.iterdir()):
        raise ValueError(
            "`folder` must be empty where `overwrite` is False. "
            f"Received: folder={str(folder)!r}."
        )
    tables = _cut(_tables(dataset, label), rows_per_shard, rows_per_table)
    waiting = []
    try:
        for shard, shard_tables in enumerate(tables):
            waiting.append(folder / f".part-{shard:05d}{suffix}.unfinished")
            write(shard_tables, str(waiting[-1]))
        if not waiting:
            raise ValueError(
                "`dataset` must hold at least one row. Received: an empty dataset."
            )
        for old in folder.glob(f"part-*{suffix}"):
            old.unlink()
        files = [str(path.with_name(path.stem[1:])) for path in waiting]
        for path, file in zip(waiting, files, strict=True):
            os.replace(path, file)
    finally:
        for path in waiting:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
    return files


def _check_dataset(dataset, label):
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"`dataset` must be a `tf.data.Dataset`. Received: dataset={dataset!r}."
        )
    spec = dataset.element_spec
    parts = spec if isinstance(spec, tuple) else (spec,)
    if len(parts) > 2 or not parts or not isinstance(parts[0], dict):
        raise TypeError(
            "`dataset` must have elements that are dicts of columns, or pairs of such "
            f"a dict and labels. Received: elements {spec!r}."
        )
    kinds = (tf.string, tf.int32, tf.int64, tf.float32)
    named = {**parts[0], "labels": parts[1]} if len(parts) == 2 else parts[0]
    for name, column in named.items():
        is_tensor = isinstance(column, tf.TensorSpec | tf.RaggedTensorSpec)
        if (
            not is_tensor
            or column.dtype not in kinds
            or column.shape.rank not in (1, 2)
        ):
            raise TypeError(
                f"Column {name!r} must be of shape (batch_size,) or (batch_size, "
                "num_values), of dtype string, int32, int64 or float32. "
                f"Received: {column!r}."
            )
    labels = parts[1] if len(parts) == 2 else None
    is_ragged = isinstance(labels, tf.RaggedTensorSpec)
    shape = () if labels is None or labels.shape.rank == 1 else labels.shape[1:]
    if is_ragged or any(size not in (1, None) for size in shape):
        raise TypeError(
            "Labels must be of shape (batch_size,) or (batch_size, 1). "
            f"Received: {labels!r}."
        )
    if len(parts) == 2 and label in parts[0]:
        raise ValueError(
            f"`label` must be no column. Received: label={label!r}, which is one."
        )
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "`dataset` must be finite; cut it with `dataset.take(n)`. "
            "Received: a dataset of infinite cardinality."
        )


def _tables(dataset, label):
    """Yields an Arrow table a batch."""
    import pyarrow as pa

    for element in dataset:
        columns = element
        if isinstance(element, tuple):
            columns = dict(element[0])
            if len(element) == 2:
                columns[label] = _flat_labels(element[1])
        arrays = {name: _column(name, values) for name, values in columns.items()}
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                "`dataset` must have columns of one length in each batch. "
                f"Received: lengths {lengths}."
            )
        yield pa.table(arrays)


def _flat_labels(labels):
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] != 1:
        raise ValueError(
            "Labels must be of shape (batch_size,) or (batch_size, 1). "
            f"Received: labels of shape {labels.shape}."
        )
    return labels.reshape(-1)


def _column(name, values):
    import pyarrow as pa
    import tensorflow as tf

    if isinstance(values, tf.RaggedTensor):
        flat = _column(name, values.flat_values)
        return pa.LargeListArray.from_arrays(values.row_splits.numpy(), flat)
    values = np.asarray(values)
    if values.ndim == 2:
        splits = np.arange(len(values) + 1) * values.shape[1]
        flat = _column(name, values.reshape(-1))
        return pa.LargeListArray.from_arrays(splits, flat)
    if values.dtype != object:
        return pa.array(values)
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"Column {name!r} must hold strings of UTF-8. Received: other bytes."
        ) from error


def _cut(tables, rows_per_shard, rows_per_table):
    """Yields an iterator of tables a shard; each is to be used up before the next."""
    source = _Source(tables)
    while source.has_rows():
        yield source.take(rows_per_shard, rows_per_table)


class _Source:
    """A stream of tables, of which rows are taken by number."""

    def __init__(self, tables):
        self.tables = iter(tables)
        self.rest = None

    def has_rows(self):
        while self.rest is None or not len(self.rest):
            self.rest = next(self.tables, None)
            if self.rest is None:
                return False
        return True

    def take(self, num_rows, rows_per_table):
        import pyarrow as pa

        while num_rows and self.has_rows():
            parts, wanted = [], min(num_rows, rows_per_table)
            num_rows -= wanted
            while wanted and self.has_rows():
                parts.append(self.rest.slice(0, wanted))
                self.rest = self.rest.slice(len(parts[-1]))
                wanted -= len(parts[-1])
            yield pa.concat_tables(parts).combine_chunks()
