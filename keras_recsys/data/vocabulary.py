"""The map between the raw values of a column and ids."""

import collections
import functools
import numbers

import keras
import numpy as np

from keras_recsys._checks import check_int
from keras_recsys.data._columns import as_numpy, is_missing

INT64 = np.iinfo("int64")


class Vocabulary:
    """Maps the raw values of one column, strings or integers, to ids.

    The ids are laid out as in `keras.layers.StringLookup` with a mask token: id 0 for
    padding if `padding`, then `num_oov` ids for values out of the vocabulary, then the
    values in order. No single value gets the padding id. With several out-of-vocabulary
    ids, a string takes one by its hash and an integer by its remainder.

    A missing value (`None`, `NaN`, `pandas.NA`) gets the first out-of-vocabulary id.
    The empty string is a value like any other, except with `separator`, where it is a
    cell without values. Integers that became floats for missing values (1995.0, NaN)
    are read as integers.

    Args:
        values: Non-empty one-dimensional array or sequence of distinct strings, or of
            distinct integers of 64 bits, in the order of their ids.
        num_oov: Number of ids for values out of the vocabulary. With 0 such a value is
            an error. Defaults to `1`.
        padding: Whether id 0 is kept for padding. Defaults to `False`.
        separator: Non-empty string between the values of one cell, such as `"|"` in
            `"Action|Comedy"`; implies `padding=True`. Empty parts do not count, and
            spaces are kept. Defaults to `None`, one value a cell.

    Raises:
        TypeError: If `values` holds anything but strings or integers, both, or if
            `num_oov` is not an integer.
        ValueError: If `values` is empty, has a duplicate or a missing value, or
            holds parts that `separator` can never give.

    Example:
    >>> vocabulary = Vocabulary.fit(["rome", "oslo", "rome"])
    >>> vocabulary.values, vocabulary.size
    (('rome', 'oslo'), 3)
    >>> vocabulary.encode(["oslo", "paris", None]).tolist()
    [2, 0, 0]
    >>> genres = Vocabulary(["Action", "Comedy"], separator="|")
    >>> genres.encode(["Comedy|Action", "", "Comedy"]).tolist()
    [[3, 2], [0, 0], [3, 0]]
    """

    def __init__(self, values, *, num_oov=1, padding=False, separator=None):
        self.num_oov = check_int("num_oov", num_oov, minimum=0)
        if not isinstance(padding, bool):
            raise TypeError(
                f"`padding` must be True or False. Received: padding={padding!r}."
            )
        _check_separator(separator)
        self.separator = separator
        self.padding = padding or separator is not None
        if isinstance(values, set | frozenset):
            raise TypeError(
                "`values` must be ordered, since ids are; `Vocabulary.fit` takes any "
                f"order. Received: {type(values).__name__}."
            )
        array, missing, kind = _read_column("values", values)
        if not len(array):
            raise ValueError(
                f"`values` must hold at least one value. Received: values={values!r}."
            )
        if missing.any():
            raise ValueError(
                "`values` must hold no missing value. "
                f"Received: a missing value at row {int(missing.argmax())}."
            )
        self._dtype = kind
        self._values = tuple(array.tolist())
        self._check_values()

    def _check_values(self):
        if len(set(self._values)) < len(self._values):
            counts = collections.Counter(self._values)
            value, count = counts.most_common(1)[0]
            raise ValueError(
                f"`values` must be distinct. Received: {value!r} {count} times."
            )
        if self.separator is None:
            return
        if self.dtype != "string":
            raise TypeError(
                "`values` must be strings where `separator` is given. "
                f"Received: {self._values[0]!r} at row 0."
            )
        for row, value in enumerate(self._values):
            if not value or self.separator in value:
                raise ValueError(
                    "`values` must be non-empty and free of "
                    f"separator={self.separator!r}. Received: {value!r} at row {row}."
                )

    @classmethod
    def fit(
        cls,
        column,
        *,
        min_count=1,
        max_size=None,
        num_oov=1,
        padding=False,
        separator=None,
    ):
        """Makes the vocabulary of the values of a column.

        The values are ordered by falling count, those of equal count by value.

        Args:
            column: One-dimensional array, Series or sequence of strings or integers,
                the training rows. Missing values are passed over.
            min_count: Positive int, a value seen fewer times is left out. Defaults to
                `1`.
            max_size: Positive int, the number of values kept, special ids not counted;
                or `None` for all. Defaults to `None`.
            num_oov: As in `Vocabulary`.
            padding: As in `Vocabulary`.
            separator: As in `Vocabulary`; the parts of each cell are counted.

        Returns:
            A `Vocabulary`.

        Raises:
            TypeError: If `column` holds anything but strings or integers, or both.
            ValueError: If no value is left.

        Example:
        >>> Vocabulary.fit([7, 5, 5, 9, 9], max_size=2).values
        (5, 9)
        """
        check_int("min_count", min_count)
        if max_size is not None:
            check_int("max_size", max_size)
        _check_separator(separator)
        array, missing, kind = _read_column("column", column)
        cells = array[~missing].tolist()
        if separator is not None:
            if kind == "int64":
                raise TypeError(
                    "`column` must hold strings where `separator` is given. "
                    f"Received: {cells[0]!r} at row {int(missing.argmin())}."
                )
            cells = [part for cell in cells for part in cell.split(separator) if part]
        counts = collections.Counter(cells)
        kept = [value for value, count in counts.items() if count >= min_count]
        if not kept:
            raise ValueError(
                "`column` must hold at least one value seen `min_count` times. "
                f"Received: {len(array)} rows with {len(counts)} distinct values, "
                f"min_count={min_count!r}."
            )
        kept.sort(key=lambda value: (-counts[value], value))
        return cls(
            kept[:max_size], num_oov=num_oov, padding=padding, separator=separator
        )

    @property
    def values(self):
        """Tuple of the values in the order of their ids, special ids left out."""
        return self._values

    @property
    def size(self):
        """Number of ids, special ones included: the `vocab_size` of a feature."""
        return self._num_special + len(self._values)

    @property
    def dtype(self):
        """Dtype of the raw values, `"string"` or `"int64"`."""
        return self._dtype

    @property
    def id_dtype(self):
        """Dtype of the ids: `"int32"`, or `"int64"` for a `size` above 2**31 - 1."""
        return "int32" if self.size <= 2**31 - 1 else "int64"

    @property
    def _num_special(self):
        return int(self.padding) + self.num_oov

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
            ValueError: If a value is missing or out of the vocabulary and `num_oov` is
                0, or if `max_len` is given without `separator`.
        """
        import tensorflow as tf

        self._check_max_len(max_len)
        array, missing, kind = _read_column("column", column)
        if kind not in (None, self.dtype):
            row = int(missing.argmin())
            raise TypeError(
                f"`column` must hold values of dtype {self.dtype!r}, as the vocabulary "
                f"does. Received: {array.tolist()[row]!r} at row {row}."
            )
        if self.num_oov == 0 and missing.any():
            raise ValueError(
                "`column` must hold no missing value where `num_oov` is 0. "
                f"Received: a missing value at row {int(missing.argmax())}."
            )
        if kind is None:  # nothing but missing values
            filler = "" if self.dtype == "string" else 0
            array = np.full(len(array), filler, _numpy_dtype(self.dtype))
        with tf.init_scope(), tf.device("CPU:0"):
            try:
                ids = self._encoder.look_up(
                    tf.constant(array, self.dtype, shape=array.shape), max_len
                )
            except tf.errors.InvalidArgumentError:
                self._check_known(array)
                raise
        ids = np.array(ids)  # a copy, since the tensor is read-only
        if self.separator is None:
            ids[missing] = int(self.padding)
        else:
            ids[missing, 0] = 1
        return ids

    def decode(self, ids):
        """Returns the raw values of ids.

        Args:
            ids: Integer array of any shape, of ids from 0 to `size - 1`.

        Returns:
            Object array of the shape of `ids`; `None` for padding and
            out-of-vocabulary ids.

        Raises:
            TypeError: If `ids` are not integers.
            ValueError: If an id is not in `[0, size)`.

        Example:
        >>> Vocabulary(["rome", "oslo"]).decode([2, 0]).tolist()
        ['oslo', None]
        """
        ids = np.asarray(ids)
        if not ids.size:
            return np.empty(ids.shape, object)
        if ids.dtype.kind not in "iu":
            raise TypeError(
                f"`ids` must be integers. Received: an array of dtype {ids.dtype}."
            )
        bad = (ids < 0) | (ids >= self.size)
        if bad.any():
            raise ValueError(
                f"`ids` must be in [0, {self.size}). Received: {int(ids[bad][0])}."
            )
        values = np.array((None,) + self._values, object)
        return values[np.maximum(ids.astype("int64") - self._num_special + 1, 0)]

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
            the shape of the input, or `(batch_size, max_len)`. Where `num_oov` is 0, a
            value out of the vocabulary raises `tf.errors.InvalidArgumentError`.

        Raises:
            ValueError: If `max_len` is given without `separator`.
        """
        return VocabularyLookup(self, max_len=max_len)

    def get_config(self):
        """Returns the arguments of the vocabulary as a dict that JSON can hold."""
        return {
            "values": list(self._values),
            "num_oov": self.num_oov,
            "padding": self.padding,
            "separator": self.separator,
        }

    @classmethod
    def from_config(cls, config):
        """Makes the vocabulary of a `get_config`."""
        return cls(**config)

    def _key(self):
        return (self._values, self.num_oov, self.padding, self.separator)

    def __eq__(self, other):
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self):
        return hash(self._key())

    def __reduce__(self):  # leaves the cached layer out of a pickle
        return type(self).from_config, (self.get_config(),)

    def __repr__(self):
        return (
            f"<Vocabulary of {len(self._values)} values, size={self.size}, "
            f"dtype={self.dtype!r}, num_oov={self.num_oov}, padding={self.padding}, "
            f"separator={self.separator!r}>"
        )

    @functools.cached_property
    def _encoder(self):
        return VocabularyLookup(self)

    def _check_max_len(self, max_len):
        if max_len is None:
            return
        check_int("max_len", max_len)
        if self.separator is None:
            raise ValueError(
                "`max_len` must be None where `separator` is None. "
                f"Received: max_len={max_len!r}."
            )

    def _check_known(self, array):
        """Raises for the first value out of the vocabulary."""
        known = set(self._values)
        for row, cell in enumerate(array.tolist()):
            parts = [cell] if self.separator is None else cell.split(self.separator)
            for value in parts:
                if value not in known and not (value == "" and self.separator):
                    raise ValueError(
                        "`column` must hold values of the vocabulary, since `num_oov` "
                        f"is 0. Received: {value!r} at row {row}."
                    )


@keras.saving.register_keras_serializable(package="keras_recsys")
class VocabularyLookup(keras.layers.Layer):
    """Maps tensors of raw values to the ids of a vocabulary; see `Vocabulary.lookup`.

    Args:
        vocabulary: A `Vocabulary`, or its config.
        max_len: Length of the rows of ids, with a separator only. Defaults to `None`.
        **kwargs: `name` and the rest of `keras.layers.Layer`.
    """

    def __init__(self, vocabulary, *, max_len=None, **kwargs):
        super().__init__(**kwargs)
        if isinstance(vocabulary, dict):
            vocabulary = Vocabulary.from_config(vocabulary)
        vocabulary._check_max_len(max_len)
        self.vocabulary = vocabulary
        self.max_len = max_len
        self.autocast = False
        # The padding id is added in `call` and not by a `mask_token`: no integer could
        # be given away for it. The special tokens stand in front because Keras would
        # otherwise take a first value equal to its `oov_token` for a special token.
        layer, oov_token = {
            "string": (keras.layers.StringLookup, "[UNK]"),
            "int64": (keras.layers.IntegerLookup, -1),
        }[vocabulary.dtype]
        tokens = [oov_token] * vocabulary.num_oov + list(vocabulary.values)
        self.index_lookup = layer(
            vocabulary=np.array(tokens, _numpy_dtype(vocabulary.dtype)),
            num_oov_indices=vocabulary.num_oov,
            oov_token=oov_token,
            name="index_lookup",
        )
        self.built = True

    def call(self, inputs):
        return self.look_up(inputs, self.max_len)

    def look_up(self, inputs, max_len):
        """Returns the ids of `inputs`, in rows of `max_len` with a separator."""
        import tensorflow as tf

        vocabulary = self.vocabulary
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
        if vocabulary.separator is None:
            ids = self.index_lookup(inputs) + int(vocabulary.padding)
            return tf.cast(ids, vocabulary.id_dtype)
        if inputs.shape.rank != 1:
            raise ValueError(
                "`inputs` must be of shape (batch_size,) where the vocabulary has a "
                f"separator. Received: shape {inputs.shape}."
            )
        parts = tf.strings.split(inputs, vocabulary.separator)
        parts = tf.ragged.boolean_mask(parts, tf.not_equal(parts, ""))
        ids = tf.cast(self.index_lookup(parts.flat_values) + 1, vocabulary.id_dtype)
        ids = parts.with_flat_values(ids).to_tensor(0, shape=(None, max_len))
        if max_len is None:  # at least one column, since nothing can pool over none
            ids = tf.pad(ids, [[0, 0], [0, tf.maximum(1 - tf.shape(ids)[1], 0)]])
        return ids

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


def _check_separator(separator):
    if separator is not None and not (isinstance(separator, str) and separator):
        raise ValueError(
            "`separator` must be None or a non-empty string. "
            f"Received: separator={separator!r}."
        )


def _numpy_dtype(dtype):
    return object if dtype == "string" else "int64"


def _read_column(name, column):
    """Reads raw values without loss.

    Returns:
        The values, an object array of `str` or an int64 array; a boolean array, `True`
        where a value is missing and stands as `""` or 0; and `"string"`, `"int64"` or,
        where no value is present, `None`.
    """
    if hasattr(column, "__array__"):
        array = as_numpy(column)
    else:  # not by asarray, which turns [1, "a"] into strings
        is_sequence = hasattr(column, "__iter__") and not isinstance(
            column, str | bytes
        )
        array = np.array(list(column) if is_sequence else column, object)
    if array.ndim != 1:
        raise ValueError(
            f"`{name}` must be a one-dimensional array, Series or sequence. "
            f"Received: {type(column).__name__} of shape {array.shape}."
        )
    kind = array.dtype.kind
    if kind == "f":
        return _read_floats(name, array)
    if kind not in "iu":
        return _read_objects(name, array)
    if kind == "u":
        _raise_first(name, array, array > INT64.max, "integers of 64 bits")
    return array.astype("int64"), np.zeros(len(array), bool), _kind_of(array, "int64")


def _kind_of(present, kind):
    return kind if len(present) else None


def _raise_first(name, array, bad, allowed):
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"`{name}` must hold {allowed}. "
            f"Received: {array[row].item()!r} at row {row}."
        )


def _exact_limit(dtype):
    """Returns the bound below which a float dtype holds every integer."""
    return 2.0 ** (min(np.finfo(dtype).nmant, 52) + 1)


def _read_floats(name, array):
    missing = np.isnan(array)
    whole = np.where(missing, 0, array).astype("float64")
    limit = _exact_limit(array.dtype)
    bad = (whole != np.floor(whole)) | (np.abs(whole) >= limit)
    allowed = (
        "strings or integers; floats only where they are missing values or whole "
        f"numbers below {limit:.0f}, exact in {array.dtype}"
    )
    _raise_first(name, array, bad, allowed)
    return whole.astype("int64"), missing, _kind_of(array[~missing], "int64")


def _read_objects(name, array):
    missing = np.zeros(len(array), bool)
    values = []
    kind = None
    for row, value in enumerate(array.tolist()):
        value_kind, value = _read_value(name, value, row)
        if value_kind is None:
            missing[row] = True
        elif kind is None:
            kind = value_kind
        elif value_kind != kind:
            raise TypeError(
                f"`{name}` must hold only strings or only integers. "
                f"Received: {value!r} at row {row} after values of dtype {kind!r}."
            )
        values.append(value)
    filler = 0 if kind == "int64" else ""
    read = np.empty(len(values), _numpy_dtype(kind or "string"))
    for row in np.flatnonzero(missing):
        values[row] = filler
    read[:] = values
    return read, missing, kind


def _read_value(name, value, row):
    """Returns the kind of one value, `None` for a missing one, and the value."""
    if isinstance(value, str):
        return "string", str(value)
    if is_missing(value):
        return None, value
    if isinstance(value, float | np.floating):
        limit = _exact_limit(np.asarray(value).dtype)
        whole = float(value).is_integer() and abs(value) < limit
    else:
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole:
        hint = " Decode bytes to strings first." if isinstance(value, bytes) else ""
        raise TypeError(
            f"`{name}` must hold strings or integers. "
            f"Received: {value!r} at row {row}.{hint}"
        )
    if not INT64.min <= value <= INT64.max:
        raise ValueError(
            f"`{name}` must hold integers of 64 bits. Received: {value!r} at row {row}."
        )
    return "int64", int(value)
