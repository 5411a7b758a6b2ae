"""The map between the raw values of a column and ids."""

import collections

import keras
import numpy as np

from keras_recsys._checks import check_int
from keras_recsys.data._base_vocabulary import (
    BaseLookup,
    BaseVocabulary,
    check_padding_and_separator,
)
from keras_recsys.data._columns import numpy_dtype, read_column
from keras_recsys.data._counting import ValueCounts


class Vocabulary(BaseVocabulary):
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
        super().__init__(padding=padding, separator=separator)
        self.num_oov = check_int("num_oov", num_oov, minimum=0)
        if isinstance(values, set | frozenset):
            raise TypeError(
                "`values` must be ordered, since ids are; `Vocabulary.fit` takes any "
                f"order. Received: {type(values).__name__}."
            )
        array, missing, kind = read_column("`values`", values)
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
        check_padding_and_separator(padding, separator)
        counts = ValueCounts(min_count, max_size)
        counts.add_column(column, separator)
        return cls(
            counts.values("`column`"),
            num_oov=num_oov,
            padding=padding,
            separator=separator,
        )

    def extended(self, column, *, min_count=1, max_size=None):
        """Makes a larger vocabulary, for a model that grows.

        All values keep their ids. The values of `column` that are not among them follow
        by falling count, those of equal count by value. `num_oov`, `padding` and
        `separator` stay as they are.

        Args:
            column: One-dimensional array, Series or sequence of the raw values of new
                rows. Missing values are passed over; it may hold no new value, or none.
            min_count: Positive int, a new value seen fewer times in `column` is left
                out. Defaults to `1`.
            max_size: Int, the number of values kept, old ones included and special ids
                not counted; or `None` for all. Defaults to `None`.

        Returns:
            A `Vocabulary`; one equal to this if there is no new value.

        Raises:
            TypeError: If the values are not of the type of the vocabulary.
            ValueError: If `max_size` is below the number of values that there are.

        Example:
        >>> cities = Vocabulary(["rome", "oslo"])
        >>> cities.extended(["bonn", "oslo", "york", "york"]).values
        ('rome', 'oslo', 'york', 'bonn')
        """
        counts = ValueCounts(min_count, max_size)
        if max_size is not None and max_size < len(self._values):
            raise ValueError(
                f"`max_size` must be at least {len(self._values)}, the number of "
                f"values that the vocabulary has. Received: max_size={max_size!r}."
            )
        counts.add_column(column, self.separator, self.dtype)
        values = self._values + tuple(counts.new_values(set(self._values)))
        return type(self).from_config({**self.get_config(), "values": values})

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
    def _num_special(self):
        return int(self.padding) + self.num_oov

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

    def get_config(self):
        """Returns the arguments of the vocabulary as a dict that JSON can hold."""
        return {
            "values": list(self._values),
            "num_oov": self.num_oov,
            "padding": self.padding,
            "separator": self.separator,
        }

    def _key(self):
        return (self._values, self.num_oov, self.padding, self.separator)

    def __repr__(self):
        return (
            f"<Vocabulary of {len(self._values)} values, size={self.size}, "
            f"dtype={self.dtype!r}, num_oov={self.num_oov}, padding={self.padding}, "
            f"separator={self.separator!r}>"
        )

    @property
    def _lookup_class(self):
        return VocabularyLookup

    def _look_up(self, what, array, missing, max_len):
        import tensorflow as tf

        if self.num_oov == 0 and missing.any():
            raise ValueError(
                f"{what} must hold no missing value where `num_oov` is 0. "
                f"Received: a missing value at row {int(missing.argmax())}."
            )
        try:
            return super()._look_up(what, array, missing, max_len)
        except tf.errors.InvalidArgumentError:
            self._check_known(what, array)
            raise

    def _check_known(self, what, array):
        """Raises for the first value out of the vocabulary."""
        known = set(self._values)
        for row, cell in enumerate(array.tolist()):
            parts = [cell] if self.separator is None else cell.split(self.separator)
            for value in parts:
                if value not in known and not (value == "" and self.separator):
                    raise ValueError(
                        f"{what} must hold values of the vocabulary, since `num_oov` "
                        f"is 0. Received: {value!r} at row {row}."
                    )


@keras.saving.register_keras_serializable(package="keras_recsys")
class VocabularyLookup(BaseLookup):
    """Maps tensors of raw values to the ids of a vocabulary; see `Vocabulary.lookup`.

    Args:
        vocabulary: A `Vocabulary`, or its config.
        max_len: Length of the rows of ids, with a separator only. Defaults to `None`.
        **kwargs: `name` and the rest of `keras.layers.Layer`.
    """

    vocabulary_class = Vocabulary

    @property
    def first_id(self):
        """The id of index 0 of the Keras layer."""
        return int(self.vocabulary.padding)

    def make_index_lookup(self):
        """Returns the Keras layer that maps single values to indices."""
        # The padding id is added to the index and not made by a `mask_token`: no
        # integer could be given away for it. The special tokens stand in front because
        # Keras would otherwise take a first value equal to its `oov_token` for a
        # special token.
        vocabulary = self.vocabulary
        layer, oov_token = {
            "string": (keras.layers.StringLookup, "[UNK]"),
            "int64": (keras.layers.IntegerLookup, -1),
        }[vocabulary.dtype]
        tokens = [oov_token] * vocabulary.num_oov + list(vocabulary.values)
        return layer(
            vocabulary=np.array(tokens, numpy_dtype(vocabulary.dtype)),
            num_oov_indices=vocabulary.num_oov,
            oov_token=oov_token,
            name="index_lookup",
        )
