"""The map from the raw values of a column to ids by hash, without a list of values."""

import keras

from keras_recsys._checks import check_int
from keras_recsys.data._base_vocabulary import BaseLookup, BaseVocabulary

MAX_BUCKETS = 2**62
MAX_SALT = 2**63 - 1


class HashedVocabulary(BaseVocabulary):
    """Maps the raw values of one column to a fixed number of ids by their hash.

    It has no list of values and needs no pass over the data. The ids are laid out as

        0                      padding, if `padding`
        p                      missing values, where p = 1 if `padding` and else 0
        p + 1 + hash(value)    values, with hash(value) in [0, num_buckets)

    The hash is that of `keras.layers.Hashing`, the same on every machine and in every
    process. Values that share a bucket share an id: each of `n` values meets about
    `n / num_buckets` others. Nothing leads back from an id to its values.

    A missing value is `None`, `NaN` or `pandas.NA`; no value gets its id, nor that of
    padding. The empty string is a value like any other, except with `separator`, where
    it is a cell without values. Inside a graph no value is missing.

    Args:
        num_buckets: Positive int, at most 2**62, the number of ids for values.
        dtype: Dtype of the raw values, `"string"` or `"int64"`. Defaults to `"string"`.
        padding: Whether id 0 is kept for padding. Defaults to `False`.
        separator: Non-empty string between the values of one cell, as in `Vocabulary`;
            implies `padding=True` and takes `dtype="string"`. Defaults to `None`, one
            value a cell.
        salt: Positive int below 2**63, for another hash, SipHash: other values share a
            bucket under each salt. Defaults to `None`, FarmHash without a salt.

    Raises:
        TypeError: If `num_buckets` or `salt` is not an integer, or `padding` is no
            boolean.
        ValueError: If an argument is out of its range, or `separator` is given with
            `dtype="int64"`.

    Example:
    >>> vocabulary = HashedVocabulary(1000, padding=True)
    >>> vocabulary.size
    1002
    >>> vocabulary.encode(["rome", "oslo", "rome", None]).tolist()
    [404, 660, 404, 1]
    """

    def __init__(
        self, num_buckets, *, dtype="string", padding=False, separator=None, salt=None
    ):
        super().__init__(padding=padding, separator=separator)
        self.num_buckets = check_int("num_buckets", num_buckets)
        if dtype not in ("string", "int64"):
            raise ValueError(
                f"`dtype` must be 'string' or 'int64'. Received: dtype={dtype!r}."
            )
        if separator is not None and dtype != "string":
            raise ValueError(
                "`dtype` must be 'string' where `separator` is given. "
                f"Received: dtype={dtype!r}, separator={separator!r}."
            )
        self._dtype = dtype
        self.salt = None if salt is None else check_int("salt", salt)
        if num_buckets > MAX_BUCKETS:  # so that ids fit int64
            raise ValueError(
                "`num_buckets` must be at most 2**62. "
                f"Received: num_buckets={num_buckets!r}."
            )
        if salt is not None and salt > MAX_SALT:
            raise ValueError(f"`salt` must be below 2**63. Received: salt={salt!r}.")

    @property
    def size(self):
        """Number of ids, special ones included: the `vocab_size` of a feature."""
        return self._missing_id + 1 + self.num_buckets

    @property
    def dtype(self):
        """Dtype of the raw values, `"string"` or `"int64"`."""
        return self._dtype

    def decode(self, ids):
        """Raises an error: no value can be told from its hash.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "A `HashedVocabulary` must not be asked for values, since several share an "
            "id; use a `Vocabulary` where ids are decoded."
        )

    def get_config(self):
        """Returns the arguments of the vocabulary as a dict that JSON can hold."""
        return {
            "num_buckets": self.num_buckets,
            "dtype": self.dtype,
            "padding": self.padding,
            "separator": self.separator,
            "salt": self.salt,
        }

    def _key(self):
        return tuple(self.get_config().values())

    def __repr__(self):
        return (
            f"<HashedVocabulary of {self.num_buckets} buckets, size={self.size}, "
            f"dtype={self.dtype!r}, padding={self.padding}, "
            f"separator={self.separator!r}, salt={self.salt!r}>"
        )

    @property
    def _lookup_class(self):
        return HashedVocabularyLookup


@keras.saving.register_keras_serializable(package="keras_recsys")
class HashedVocabularyLookup(BaseLookup):
    """Maps tensors of raw values to ids by hash; see `HashedVocabulary.lookup`.

    Args:
        vocabulary: A `HashedVocabulary`, or its config.
        max_len: Length of the rows of ids, with a separator only. Defaults to `None`.
        **kwargs: `name` and the rest of `keras.layers.Layer`.
    """

    vocabulary_class = HashedVocabulary

    @property
    def first_id(self):
        """The id of index 0 of the Keras layer."""
        return self.vocabulary._missing_id + 1

    def make_index_lookup(self):
        """Returns the Keras layer that maps single values to indices."""
        vocabulary = self.vocabulary
        return keras.layers.Hashing(
            vocabulary.num_buckets, salt=vocabulary.salt, name="index_lookup"
        )
