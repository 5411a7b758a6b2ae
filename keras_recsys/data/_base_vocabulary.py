"""What all vocabularies share: options, encoding of columns, and the lookup layer."""

import functools

import keras
import numpy as np

from keras_recsys._checks import check_int
from keras_recsys.data._columns import as_numpy, numpy_dtype, read_column


class BaseVocabulary:
    """Maps the raw values of one column to ids.

    A subclass has `dtype`, `size` and `get_config`, a method `_key` with what makes two
    vocabularies equal, and its `BaseLookup` in `_lookup_class`.

    Args:
        padding: Whether id 0 is kept for padding.
        separator: Non-empty string between the values of one cell, or `None`; implies
            `padding=True`.

    Raises:
        TypeError: If `padding` is no boolean.
        ValueError: If `separator` is neither `None` nor a non-empty string.
    """

    def __init__(self, *, padding, separator):
        check_padding_and_separator(padding, separator)
        self.separator = separator
        self.padding = padding or separator is not None

    @property
    def id_dtype(self):
        """Dtype of the ids: `"int32"`, or `"int64"` for a `size` above 2**31 - 1."""
        return "int32" if self.size <= 2**31 - 1 else "int64"

    def encode(self, column, *, max_len=None):
        """Returns the ids of a column of raw values.

        Args:
            column: One-dimensional array, Series or sequence of strings or integers.
            max_len: With `separator` only: positive int, the length of each row of
                ids; a cell keeps its first `max_len` values. Defaults to `None`, the
                length of the longest row of `column`, at least 1.

        Returns:
            Array of `id_dtype` and shape `(num_rows,)`, or `(num_rows, max_len)` with
            `separator`, padded with 0 at the end.

        Raises:
            TypeError: If the values are not of the type of the vocabulary.
            ValueError: If `max_len` is given without `separator`, or the vocabulary has
                `num_oov=0` and a value is missing or not in it.
        """
        return self._encode("`column`", column, max_len)

    def lookup(self, *, max_len=None):
        """Returns a layer that maps tensors of raw values to ids inside a TF graph.

        It gives the ids of `encode`, and can be called in a `tf.function`, exported in
        a SavedModel as an attribute of a `tf.Module`, or put in a Keras model after
        `keras.Input(shape=(), dtype="string")`.

        Args:
            max_len: As in `encode`.

        Returns:
            A `keras.layers.Layer`. Its input is a tensor of strings or integers of any
            shape, or `(batch_size,)` with `separator`; its output has `id_dtype` and
            the shape of the input, or `(batch_size, max_len)`. The ids of a
            `tf.RaggedTensor` are padded to its longest row if the vocabulary has
            padding, and else ragged. A vocabulary with `num_oov=0` raises
            `tf.errors.InvalidArgumentError` for a value out of it.

        Raises:
            ValueError: If `max_len` is given without `separator`.
        """
        return self._lookup_class(self, max_len=max_len)

    @classmethod
    def from_config(cls, config):
        """Makes the vocabulary of a `get_config`."""
        return cls(**config)

    def __eq__(self, other):
        if not isinstance(other, BaseVocabulary):
            return NotImplemented
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self):
        return hash(self._key())

    def __reduce__(self):  # leaves the cached layer out of a pickle
        return type(self).from_config, (self.get_config(),)

    @functools.cached_property
    def _encoder(self):
        return self.lookup()

    @property
    def _missing_id(self):
        """The id of a missing value: the first one after padding."""
        return int(self.padding)

    def _encode(self, what, column, max_len):
        """Does `encode`, and calls the column `what` in errors."""
        self._check_max_len(max_len)
        array, missing, kind = read_column(what, column)
        if kind not in (None, self.dtype):
            row = int(missing.argmin())
            raise TypeError(
                f"{what} must hold values of dtype {self.dtype!r}, as the vocabulary "
                f"does. Received: {array.tolist()[row]!r} at row {row}."
            )
        if kind is None:  # nothing but missing values
            filler = "" if self.dtype == "string" else 0
            array = np.full(len(array), filler, numpy_dtype(self.dtype))
        ids = np.array(self._look_up(what, array, missing, max_len))  # can be written
        if self.separator is None:
            ids[missing] = self._missing_id
        else:
            ids[missing, 0] = self._missing_id
        return ids

    def _look_up(self, what, array, missing, max_len):
        """Returns the ids of values that were read, whatever those of missing ones."""
        import tensorflow as tf

        with tf.init_scope(), tf.device("CPU:0"):
            tensor = tf.constant(array, self.dtype, shape=array.shape)
            return self._encoder.look_up(tensor, max_len)

    def _encode_rows(self, what, rows, max_len):
        """Encodes a sequence of sequences of raw values, padded with 0."""
        flat = f"{what}, its rows end to end,"
        if hasattr(rows, "__array__"):
            rows = as_numpy(rows)
            if rows.ndim == 2:
                rows = rows[:, :max_len]
                ids = self._encode(flat, rows.reshape(-1), None).reshape(rows.shape)
                width = max(1, ids.shape[1]) if max_len is None else max_len
                return np.pad(ids, [(0, 0), (0, width - ids.shape[1])])
        rows = list(rows)
        for number, row in enumerate(rows):
            if not hasattr(row, "__len__") or isinstance(row, str | bytes):
                raise TypeError(
                    f"{what} must hold sequences of raw values, or its vocabulary have "
                    f"a separator. Received: {row!r} at row {number}."
                )
        rows = [row[:max_len] for row in rows]
        lengths = np.array([len(row) for row in rows], "int64")
        width = lengths.max(initial=1) if max_len is None else max_len
        ids = np.zeros((len(rows), width), self.id_dtype)
        values = [value for row in rows for value in row]
        ids[np.arange(width) < lengths[:, None]] = self._encode(flat, values, None)
        return ids

    def _check_max_len(self, max_len):
        if max_len is None:
            return
        check_int("max_len", max_len)
        if self.separator is None:
            raise ValueError(
                "`max_len` must be None where `separator` is None. "
                f"Received: max_len={max_len!r}."
            )


class BaseLookup(keras.layers.Layer):
    """Maps tensors of raw values to the ids of a vocabulary.

    A subclass has the class of its vocabulary in `vocabulary_class`, and the method
    `make_index_lookup`; `first_id` is the id of index 0 of that layer.

    Args:
        vocabulary: A vocabulary, or its config.
        max_len: Length of the rows of ids, with a separator only. Defaults to `None`.
        **kwargs: `name` and the rest of `keras.layers.Layer`.
    """

    def __init__(self, vocabulary, *, max_len=None, **kwargs):
        super().__init__(**kwargs)
        if isinstance(vocabulary, dict):
            vocabulary = self.vocabulary_class.from_config(vocabulary)
        vocabulary._check_max_len(max_len)
        self.vocabulary = vocabulary
        self.max_len = max_len
        self.autocast = False
        self.index_lookup = self.make_index_lookup()
        self.built = True

    def call(self, inputs):
        return self.look_up(inputs, self.max_len)

    def look_up(self, inputs, max_len):
        """Returns the ids of `inputs`, in rows of `max_len` with a separator.

        The rows of a `RaggedTensor` are treated as those of a separator if the
        vocabulary has padding; without padding, its ids are ragged too.
        """
        import tensorflow as tf

        vocabulary = self.vocabulary
        is_ragged = isinstance(inputs, tf.RaggedTensor)
        if not is_ragged:
            inputs = tf.convert_to_tensor(inputs)
        matches = (
            inputs.dtype == tf.string
            if vocabulary.dtype == "string"
            else inputs.dtype.is_integer
        )
        if not matches:
            raise TypeError(
                f"`inputs` must be a tensor of dtype {vocabulary.dtype!r}, as the "
                f"vocabulary. Received: a tensor of dtype {inputs.dtype.name!r}."
            )
        if vocabulary.separator is not None:
            if is_ragged or inputs.shape.rank != 1:
                raise ValueError(
                    "`inputs` must be of shape (batch_size,) where the vocabulary has "
                    f"a separator. Received: shape {inputs.shape}."
                )
            rows = tf.strings.split(inputs, vocabulary.separator)
            rows = tf.ragged.boolean_mask(rows, tf.not_equal(rows, ""))
        elif is_ragged:
            if vocabulary.padding and inputs.shape.rank != 2:
                raise ValueError(
                    "`inputs` must be of rank 2 where they are ragged and the "
                    f"vocabulary has padding. Received: shape {inputs.shape}."
                )
            rows = inputs
        else:
            return self._ids(inputs)
        ids = rows.with_flat_values(self._ids(rows.flat_values))
        if not vocabulary.padding:
            return ids
        return pad_ids(ids, max_len, inputs.shape[0])

    def compute_output_shape(self, input_shape):
        if self.vocabulary.separator is None:
            return tuple(input_shape)
        return (input_shape[0], self.max_len)

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(
            self.compute_output_shape(inputs.shape), dtype=self.vocabulary.id_dtype
        )

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary": self.vocabulary.get_config(),
            "max_len": self.max_len,
        }

    def _ids(self, values):
        """Returns the ids of single values."""
        import tensorflow as tf

        ids = self.index_lookup(values) + self.first_id
        return tf.cast(ids, self.vocabulary.id_dtype)


def pad_ids(ids, max_len, batch_size):
    """Returns ragged ids in rows of `max_len`, or as long as the longest."""
    import tensorflow as tf

    ids = ids.to_tensor(0, shape=(None, max_len))
    if max_len is None:  # at least one column, since nothing can pool over none
        ids = tf.pad(ids, [[0, 0], [0, tf.maximum(1 - tf.shape(ids)[1], 0)]])
    return tf.ensure_shape(ids, (batch_size, max_len))  # known, if it was before


def check_padding_and_separator(padding, separator):
    """Checks two options that all vocabularies have.

    Raises:
        TypeError: If `padding` is no boolean.
        ValueError: If `separator` is neither `None` nor a non-empty string.
    """
    if not isinstance(padding, bool):
        raise TypeError(
            f"`padding` must be True or False. Received: padding={padding!r}."
        )
    if separator is not None and not (isinstance(separator, str) and separator):
        raise ValueError(
            "`separator` must be None or a non-empty string. "
            f"Received: separator={separator!r}."
        )


def check_vocabularies(vocabularies):
    """Checks that `vocabularies` is a dict of vocabularies.

    Raises:
        TypeError: If it is not.
    """
    if not isinstance(vocabularies, dict):
        raise TypeError(
            "`vocabularies` must be a dict from name to `Vocabulary` or "
            f"`HashedVocabulary`. Received: vocabularies={vocabularies!r}."
        )
    for name, vocabulary in vocabularies.items():
        if not isinstance(vocabulary, BaseVocabulary):
            raise TypeError(
                f"`vocabularies[{name!r}]` must be a `Vocabulary` or "
                f"`HashedVocabulary`. Received: {vocabulary!r}."
            )
