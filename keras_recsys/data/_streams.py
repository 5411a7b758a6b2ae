"""From the tables of files to a `tf.data.Dataset` of batches.

Strings go to TensorFlow a column at a time, joined by a byte that UTF-8 does not have,
and are split there: a Python object for each would cost more than the parsing.
"""

import warnings

import numpy as np

from keras_recsys._checks import check_int
from keras_recsys.data._row_checks import kind_of

GLUE = b"\xff"


class Stream:
    """The arguments that all readers share, checked, and the pipeline that they make.

    Args:
        columns: Dict from column name to dtype, as of `check_schema`.
        label: Name of the label, or `None`.
        batch_size: Positive int.
        shuffle_rows: Int, rows of the window, or 0 for the order of the files.
        seed: Int, or `None`.
        drop_remainder: Whether a last smaller batch is dropped.
        num_open_files: Positive int, files read side by side.
    """

    def __init__(
        self,
        columns,
        label,
        *,
        batch_size,
        shuffle_rows,
        seed,
        drop_remainder,
        num_open_files,
    ):
        self.columns = columns
        self.label = label
        self.batch_size = check_int("batch_size", batch_size)
        self.shuffle_rows = check_int("shuffle_rows", shuffle_rows, minimum=0)
        self.seed = None if seed is None else check_int("seed", seed, minimum=0)
        self.drop_remainder = bool(drop_remainder)
        self.num_open_files = check_int("num_open_files", num_open_files)

    def from_tables(self, read_file, num_files, log, num_rows=None):
        """Makes the dataset of batches of files that Python reads.

        Args:
            read_file: Function from the index of a file to an iterator of dicts of
                typed Arrow arrays.
            num_files: Number of files.
            log: A `DamageLog`.
            num_rows: Number of rows of all files where it is known.
        """
        import tensorflow as tf

        signature = self._packed_signature()

        def begin():
            log.report.reset()
            yield from range(num_files)

        def read(index):
            for columns in read_file(index):
                if len(next(iter(columns.values()))):
                    yield pack(columns)

        def end():
            if log.report.num_skipped and not log.is_given:
                warnings.warn(str(log.report), stacklevel=2)
            yield from ()

        def open_file(index):
            return tf.data.Dataset.from_generator(
                read, args=(index,), output_signature=signature
            )

        index = tf.TensorSpec((), "int64")
        files = tf.data.Dataset.from_generator(begin, output_signature=index)
        blocks = self.interleave(files, num_files, open_file).concatenate(
            tf.data.Dataset.from_generator(end, output_signature=signature)
        )
        batches = self.to_batches(blocks.map(self._unpack, num_parallel_calls=2))
        if num_rows is None or log.errors == "skip":
            return batches
        count, rest = divmod(num_rows, self.batch_size)
        if rest and not self.drop_remainder:
            count += 1
        return batches.apply(tf.data.experimental.assert_cardinality(count))

    def interleave(self, files, num_files, open_file):
        """Returns the blocks of several files, a block of each at a time."""
        import tensorflow as tf

        if self.shuffle_rows:
            files = files.shuffle(num_files, seed=self.seed)
        return files.interleave(
            open_file,
            cycle_length=min(self.num_open_files, num_files),
            block_length=1,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )

    def to_batches(self, blocks):
        """Makes batches of blocks of rows, which are of any size."""
        import tensorflow as tf

        if self.shuffle_rows:
            seeds = tf.data.Dataset.random(
                seed=self.seed, rerandomize_each_iteration=True
            ).batch(2)
            windows = tf.data.Dataset.zip(blocks.rebatch(self.shuffle_rows), seeds)
            blocks = windows.map(_permute)
        return blocks.rebatch(
            self.batch_size, drop_remainder=self.drop_remainder
        ).prefetch(2)

    def element(self, columns):
        """Returns columns, the label among them, as an element of the dataset."""
        import tensorflow as tf

        if self.label is None:
            return columns
        columns = dict(columns)
        return columns, tf.expand_dims(columns.pop(self.label), 1)

    def _packed_signature(self):
        import tensorflow as tf

        signature = {}
        for name, dtype in self.columns.items():
            kind, is_list = kind_of(dtype)
            values = tf.TensorSpec(() if kind == "string" else (None,), kind)
            splits = tf.TensorSpec((None,), "int64")
            signature[name] = (values, splits) if is_list else values
        return signature

    def _unpack(self, packed):
        import tensorflow as tf

        columns = {}
        for name, dtype in self.columns.items():
            kind, is_list = kind_of(dtype)
            values, splits = packed[name] if is_list else (packed[name], None)
            if kind == "string":
                values = tf.raw_ops.StringSplitV2(input=[values], sep=GLUE).values
            if is_list:  # of no value at all, the split makes one
                values = tf.RaggedTensor.from_row_splits(
                    values[: splits[-1]], splits, validate=False
                )
            columns[name] = values
        return self.element(columns)


def pack(columns):
    """Returns Arrow columns as strings and arrays; see the top of the file."""
    packed = {}
    for name, column in columns.items():
        splits = None
        if hasattr(column, "offsets"):
            splits = column.offsets.to_numpy()
            column = column.values[splits[0] : splits[-1]]
            splits = splits - splits[0]
        values = _pack_values(column)
        packed[name] = values if splits is None else (values, splits)
    return packed


def _pack_values(values):
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_binary(values.type):
        return values.to_numpy()
    whole = pa.LargeListArray.from_arrays(np.array([0, len(values)]), values)
    return pc.binary_join(whole, pa.scalar(GLUE))[0].as_py()


def _permute(element, seed):
    """Shuffles the rows of a window."""
    import tensorflow as tf

    flat = tf.nest.flatten(element)
    rows = flat[0]
    num_rows = rows.nrows() if isinstance(rows, tf.RaggedTensor) else tf.shape(rows)[0]
    order = tf.random.experimental.stateless_shuffle(tf.range(num_rows), seed)
    shuffled = [tf.gather(values, order) for values in flat]
    return tf.nest.pack_sequence_as(element, shuffled)
