"""Declarations of the columns of a data set, and the functions that embed them.

A feature is a frozen description and holds no layer. `make_inputs` turns features into
named Keras inputs, `embed_fields` turns those into `(batch_size, num_fields,
embedding_dim)`.
"""

import collections.abc
import dataclasses
import math
import re

import keras
import numpy as np

from keras_recsys import layers
from keras_recsys._checks import (
    ID_DTYPES,
    NORMALIZATIONS,
    OUT_OF_RANGE,
    POOLINGS,
    check_choice,
    check_int,
    check_positive,
)
from keras_recsys.layers.embedding._id_embedding import IdEmbedding

__all__ = [
    "CategoricalFeature",
    "NumericFeature",
    "SequenceFeature",
    "TimeGapFeature",
    "compress_features",
    "embed_fields",
    "make_inputs",
    "normalize_numbers",
]


def _check_name(name, argument="name"):
    if not isinstance(name, str) or not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(
            f"`{argument}` of a feature must be a letter followed by letters, digits "
            "and underscores, since it names an input of the served model. "
            f"Received: {argument}={name!r}."
        )


def _check_ids(feature):
    """Checks what categorical and sequence features have in common."""
    _check_name(feature.name)
    check_int("vocab_size", feature.vocab_size)
    kinds = ("full", "qr", "hash")
    if feature.embedding not in kinds and not callable(feature.embedding):
        raise ValueError(
            "`embedding` must be 'full', 'qr', 'hash' or a callable "
            "(input_dim, output_dim, name) -> layer. "
            f"Received: embedding={feature.embedding!r}."
        )
    if feature.num_buckets is not None:
        check_int("num_buckets", feature.num_buckets)
        if feature.embedding not in ("qr", "hash"):
            raise ValueError(
                "`num_buckets` must be None unless embedding is 'qr' or 'hash'. "
                f"Received: num_buckets={feature.num_buckets!r}, "
                f"embedding={feature.embedding!r}."
            )
    elif feature.embedding == "hash":
        raise ValueError(
            "`num_buckets` must be given where embedding is 'hash'. "
            "Received: num_buckets=None."
        )
    check_choice("out_of_range", feature.out_of_range, OUT_OF_RANGE)
    if callable(feature.embedding) and feature.out_of_range != "error":
        raise ValueError(
            "`out_of_range` must be left at 'error' where `embedding` is a callable: "
            "the layer that it makes decides. "
            f"Received: out_of_range={feature.out_of_range!r}."
        )
    check_choice("dtype", feature.dtype, ID_DTYPES)
    if feature.dtype == "int32" and feature.vocab_size > 2**31 - 1:
        raise ValueError(
            "`dtype` must be 'int64' for a `vocab_size` above 2**31 - 1. Received: "
            f"vocab_size={feature.vocab_size!r}, dtype={feature.dtype!r}."
        )
    if feature.table is not None:
        _check_name(feature.table, "table")


@dataclasses.dataclass(frozen=True)
class CategoricalFeature:
    """One id a row, such as a user, a city or an hour of the day.

    Args:
        name: Name of the column and of the model input: letters, digits and
            underscores.
        vocab_size: Number of ids, which run from 0 to `vocab_size - 1`. It is the
            largest id plus one, not the number of distinct ids seen; a
            `keras_recsys.data.Vocabulary` has it as `size`, out-of-vocabulary ids
            included.
        embedding: `"full"`, one row an id; `"qr"`, a `QREmbedding`; `"hash"`, a
            `HashEmbedding`; or a callable `(input_dim, output_dim, name) -> layer` for
            any other, such as a `CompositionalEmbedding`. Defaults to `"full"`.
        num_buckets: Rows of the remainder table of `"qr"`, by default
            `ceil(sqrt(vocab_size))`, or of the table of `"hash"`, which has no default.
        out_of_range: What an id outside the vocabulary does: `"error"`, `"nan"`,
            `"zero"`, `"mod"` or `"oov"` (one extra learned row); see `QREmbedding`.
            Defaults to `"error"`.
        dtype: `"int32"` or `"int64"`. Defaults to `"int32"`.
        table: Name of the embedding table. Features with the same `table` share one
            table and must agree in `vocab_size`, `embedding`, `num_buckets` and
            `out_of_range`. Defaults to `name`.

    Raises:
        TypeError: If `vocab_size` or `num_buckets` is not an integer.
        ValueError: If an argument is out of its range.

    Example:
    >>> CategoricalFeature("city", vocab_size=200).vocab_size
    200
    """

    name: str
    vocab_size: int
    _: dataclasses.KW_ONLY
    embedding: str | collections.abc.Callable = "full"
    num_buckets: int | None = None
    out_of_range: str = "error"
    dtype: str = "int32"
    table: str | None = None

    def __post_init__(self):
        _check_ids(self)

    @property
    def shape(self):
        """Shape of one row."""
        return ()


@dataclasses.dataclass(frozen=True)
class SequenceFeature:
    """Several ids a row, pooled into one vector: genres, tags, a short history.

    Id 0 is padding: it is masked, has no part in the pooled vector, and may stand
    anywhere in the row. A row of nothing but padding gives the zero vector.

    Args:
        name: Name of the column and of the model input: letters, digits and
            underscores.
        vocab_size: Number of ids, padding included: from 0 to `vocab_size - 1`.
        pooling: `"mean"`, `"sum"` or `"sqrtn"` (the sum over the square root of the
            count). Defaults to `"mean"`.
        max_len: Length of each row, or `None` for any length. Defaults to `None`.
        embedding: As in `CategoricalFeature`.
        num_buckets: As in `CategoricalFeature`.
        out_of_range: As in `CategoricalFeature`.
        dtype: As in `CategoricalFeature`.
        table: As in `CategoricalFeature`; a categorical feature that shares the table
            counts ids the same way, 0 for padding.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range.

    Example:
    >>> SequenceFeature("genres", vocab_size=20, pooling="sum").shape
    (None,)
    """

    name: str
    vocab_size: int
    _: dataclasses.KW_ONLY
    pooling: str = "mean"
    max_len: int | None = None
    embedding: str | collections.abc.Callable = "full"
    num_buckets: int | None = None
    out_of_range: str = "error"
    dtype: str = "int32"
    table: str | None = None

    def __post_init__(self):
        _check_ids(self)
        check_choice("pooling", self.pooling, POOLINGS)
        if self.max_len is not None:
            check_int("max_len", self.max_len)

    @property
    def shape(self):
        """Shape of one row."""
        return (self.max_len,)


@dataclasses.dataclass(frozen=True)
class NumericFeature:
    """One number a row, normalized inside the model.

    With `t(x) = log(1 + max(x, 0))` for `"log"` and `t(x) = x` otherwise, the model
    sees `(t(x) - mean) / std`. Negative counts are therefore read as 0 by `"log"`.

    Args:
        name: Name of the column and of the model input: letters, digits and
            underscores.
        normalization: `None` (the raw number), `"zscore"` or `"log"`. Defaults to
            `None`.
        mean: Float, mean of `t(x)` over the training rows. Defaults to `0.0`.
        std: Positive float, standard deviation of `t(x)`. Defaults to `1.0`.

    Raises:
        ValueError: If `std` is not positive and finite, `mean` is not finite, or
            either is given without a normalization.

    Example:
    >>> NumericFeature.fit("price", [1.0, 3.0], normalization="zscore")
    NumericFeature(name='price', normalization='zscore', mean=2.0, std=1.0)
    """

    name: str
    _: dataclasses.KW_ONLY
    normalization: str | None = None
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self):
        _check_name(self.name)
        if self.normalization is not None:
            check_choice("normalization", self.normalization, NORMALIZATIONS)
        elif (self.mean, self.std) != (0.0, 1.0):
            raise ValueError(
                "`mean` and `std` must be left out where `normalization` is None. "
                f"Received: mean={self.mean!r}, std={self.std!r}."
            )
        if not math.isfinite(self.mean):
            raise ValueError(f"`mean` must be finite. Received: mean={self.mean!r}.")
        if not (self.std > 0 and math.isfinite(self.std)):
            raise ValueError(
                f"`std` must be positive and finite. Received: std={self.std!r}."
            )

    @property
    def dtype(self):
        """Dtype of the model input."""
        return "float32"

    @property
    def shape(self):
        """Shape of one row."""
        return ()

    @classmethod
    def fit(cls, name, values, *, normalization="zscore"):
        """Makes the feature with mean and deviation of the training rows.

        Args:
            name: Name of the feature.
            values: One-dimensional array of training values, in the units of the
                column; computed in float64. A constant column gets `std=1`.
            normalization: `"zscore"` or `"log"`. Defaults to `"zscore"`.

        Returns:
            A `NumericFeature`.

        Raises:
            ValueError: If `values` is empty or holds a number that is not finite.
        """
        check_choice("normalization", normalization, NORMALIZATIONS)
        values = np.asarray(values, "float64")
        if values.ndim != 1 or not values.size or not np.isfinite(values).all():
            bad = np.count_nonzero(~np.isfinite(values))
            raise ValueError(
                f"`values` of feature {name!r} must be a non-empty one-dimensional "
                "array of finite numbers; fill or drop missing ones first. "
                f"Received: shape {values.shape} with {bad} that are not finite."
            )
        if normalization == "log":
            values = np.log1p(np.maximum(values, 0.0))
        return cls.of_moments(name, normalization, values.mean(), values.std())

    @classmethod
    def of_moments(cls, name, normalization, mean, std):
        """Makes the feature of known mean and deviation of `t(x)`.

        Args:
            name: Name of the feature.
            normalization: `"zscore"` or `"log"`.
            mean: Mean of `t(x)`.
            std: Deviation of `t(x)`; that of a constant column, 0 but for rounding, is
                taken as 1.

        Returns:
            A `NumericFeature`.
        """
        mean, std = float(mean), float(std)
        if std <= 1e-7 * abs(mean):
            std = 1.0
        return cls(name, normalization=normalization, mean=mean, std=std)


@dataclasses.dataclass(frozen=True)
class TimeGapFeature:
    """How long before the request each event of a history was.

    The builders of `keras_recsys.models` that read a history add a vector to each event
    for the bucket of its gap, see `TimeBucketEmbedding`. What stands at padding has no
    effect.

    Args:
        name: Name of the column and of the model input: letters, digits and
            underscores.
        time_unit: Positive number, width of the first bucket in the units of the
            column. Defaults to `1`.
        num_buckets: Int, at least 2. Defaults to `33`.
        max_len: Length of each row, or `None` for any length. Defaults to `None`.
        dtype: `"int32"`, `"int64"` or `"float32"`. Defaults to `"int64"`, which is
            exact for every time. A model called with a time that the dtype does not
            hold takes the largest that it does. JAX has no int64 by default, and cuts
            the whole numbers that `predict` and `fit` get to 32 bits without a word:
            give times that may pass `2**31` as floats there, to `"float32"`.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range.

    Example:
    >>> TimeGapFeature("item_age", time_unit=3600).shape
    (None,)
    """

    name: str
    _: dataclasses.KW_ONLY
    time_unit: float = 1
    num_buckets: int = 33
    max_len: int | None = None
    dtype: str = "int64"

    def __post_init__(self):
        _check_name(self.name)
        check_positive("time_unit", self.time_unit)
        check_int("num_buckets", self.num_buckets, minimum=2)
        check_choice("dtype", self.dtype, (*ID_DTYPES, "float32"))
        if self.max_len is not None:
            check_int("max_len", self.max_len)

    @property
    def shape(self):
        """Shape of one row."""
        return (self.max_len,)


FEATURES = (CategoricalFeature, SequenceFeature, NumericFeature, TimeGapFeature)


def compress_features(features, threshold=200, *, num_buckets=None):
    """Gives large vocabularies two small tables instead of a full one.

    Args:
        features: Non-empty sequence of features.
        threshold: Int, at least 0; features of more ids become `embedding="qr"`, the
            others and those with another embedding stay as they are. Defaults to `200`,
            as in DLRM.
        num_buckets: Rows of the remainder tables: DLRM's "collisions", 4 there.
            Defaults to `ceil(sqrt(vocab_size))`, the smallest tables.

    Returns:
        Tuple of features.

    Raises:
        TypeError: If an entry is no feature, or a size no integer.
        ValueError: If a size is out of its range.

    Example:
    >>> features = [CategoricalFeature("city", 200), CategoricalFeature("user", 201)]
    >>> [feature.embedding for feature in compress_features(features)]
    ['full', 'qr']
    """
    check_int("threshold", threshold, minimum=0)
    if num_buckets is not None:
        check_int("num_buckets", num_buckets)
    return tuple(
        dataclasses.replace(feature, embedding="qr", num_buckets=num_buckets)
        if getattr(feature, "embedding", None) == "full"
        and feature.vocab_size > threshold
        else feature
        for feature in check_features(features)
    )


def make_inputs(features, inputs=None):
    """Makes one named Keras input a feature.

    Args:
        features: Non-empty sequence of features with distinct names.
        inputs: Optional dict from feature name to the `keras.Input` of another model;
            those are used instead of new ones, so that two models can be joined. Names
            of other features are ignored. A plain `keras.Model` cuts ids to the dtype
            of its inputs before any layer sees them: give features whose raw ids may
            pass 2**31 `dtype="int64"`, or keep the model that a builder returns.

    Returns:
        Dict from feature name to `KerasTensor`, in the order of `features`: ids of
        shape `(batch_size,)`, sequences `(batch_size, max_len)`, numbers
        `(batch_size,)`.

    Raises:
        TypeError: If an entry is no feature, or `inputs` is no dict.
        ValueError: If `features` is empty, a name occurs twice, an existing input has
            another dtype, rank or length, or one stands for two features.

    Example:
    >>> list(make_inputs([CategoricalFeature("city", 9), NumericFeature("age")]))
    ['city', 'age']
    """
    features = check_features(features)
    if not isinstance(inputs, dict | None):
        raise TypeError(
            "`inputs` must be a dict from feature name to `KerasTensor`. "
            f"Received: inputs={inputs!r}."
        )
    made = {}
    for feature in features:
        given = (inputs or {}).get(feature.name)
        if given is None:
            given = keras.Input(feature.shape, dtype=feature.dtype, name=feature.name)
        elif given.dtype != feature.dtype or len(given.shape) != 1 + len(feature.shape):
            raise ValueError(
                f"`inputs[{feature.name!r}]` must be {feature.dtype} of rank "
                f"{1 + len(feature.shape)}. Received: {given.dtype} of shape "
                f"{given.shape}."
            )
        elif feature.shape and given.shape[1] != feature.shape[0]:
            raise ValueError(
                f"`inputs[{feature.name!r}]` must be of length {feature.shape[0]}. "
                f"Received: shape {given.shape}."
            )
        twin = next((name for name, x in made.items() if x is given), None)
        if twin is not None:
            raise ValueError(
                "`inputs` must hold a tensor of its own for each feature. "
                f"Received: one for {twin!r} and {feature.name!r}."
            )
        made[feature.name] = given
    return made


def normalize_numbers(inputs, features, *, name="fields"):
    """Normalizes the numeric features as they declare it, all at once.

    Args:
        inputs: Dict from feature name to tensor, as `make_inputs` makes it.
        features: Non-empty sequence of features.
        name: Prefix of the layer name, `{name}-normalized`.

    Returns:
        Tensor of shape `(batch_size, num_numbers)` in the order of the numeric
        features, or `None` if there are none.

    Example:
    >>> features = [NumericFeature("age", normalization="log"), NumericFeature("size")]
    >>> normalize_numbers(make_inputs(features), features).shape
    (None, 2)
    """
    numbers = [f for f in check_features(features) if isinstance(f, NumericFeature)]
    if not numbers:
        return None
    layer = layers.NumericNormalization(
        [feature.normalization for feature in numbers],
        mean=[feature.mean for feature in numbers],
        std=[feature.std for feature in numbers],
        name=f"{name}-normalized",
    )
    return layer([inputs[feature.name] for feature in numbers])


def embed_fields(
    inputs,
    features,
    embedding_dim,
    *,
    numbers=None,
    tables=None,
    combiner="multiply",
    embeddings_initializer="uniform",
    embeddings_regularizer=None,
    name="fields",
):
    """Embeds every feature as one field.

    Categorical features read their table, sequences are pooled, and a number becomes a
    learned vector times its normalized value. Features that name the same `table` share
    one. Categorical features that have `embedding="full"` and name no `table` are read
    together, from one `FieldEmbedding` for each `out_of_range` among them.

    Args:
        inputs: Dict from feature name to tensor, as `make_inputs` makes it.
        features: Non-empty sequence of features; its order is the order of the fields.
        embedding_dim: Positive int, the width of every field.
        numbers: The normalized numbers of `normalize_numbers`, where a model uses them
            for more than the fields. Defaults to `None`: they are normalized here.
        tables: Optional dict from the name of a table to its layer, those that a model
            has already made with `make_table` for features that are not among these.
        combiner: Combiner of `"qr"` features, see `QREmbedding`. Defaults to
            `"multiply"`.
        embeddings_initializer: Initializer of the tables and of the vectors of numbers,
            see `QREmbedding`; `"ones"` and `"dlrm"` concern `"qr"` tables alone, all
            else then starts as `"uniform"`. Defaults to `"uniform"`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, and of the vectors of numbers. Defaults
            to `None`.
        name: Prefix of the layer names: `{name}_{table}` for a table of its own,
            `{name}-tables` (`{name}-tables-{out_of_range}` where that is not `"error"`)
            for those read together. Layers that are for no single feature have a
            hyphen, which no feature can have, in their names.

    Returns:
        Tensor, `(batch_size, num_fields, embedding_dim)`, the output of layer `name`.

    Raises:
        TypeError: If `embedding_dim` is not an integer, or a feature is a
            `TimeGapFeature`, which belongs to a history.
        ValueError: If features that share a table disagree about it.

    Example:
    >>> features = [CategoricalFeature("city", 9), NumericFeature("age")]
    >>> embed_fields(make_inputs(features), features, 4).shape
    (None, 2, 4)
    """
    features = check_features(features)
    check_int("embedding_dim", embedding_dim)
    check_choice("combiner", combiner, ("multiply", "add", "concat"))
    for feature in features:
        if isinstance(feature, TimeGapFeature):
            raise TypeError(
                "`features` must hold no TimeGapFeature where there is no history; "
                f"`build_sam` and its like read one. Received: {feature!r}."
            )
    tables = tables or {}
    # Two words of `QREmbedding` that mean something else, or nothing, elsewhere.
    words = ("ones", "dlrm")
    plain = "uniform" if embeddings_initializer in words else embeddings_initializer
    parts, order = [], []
    for key, members in _read_together(features, tables).items():
        order += [features.index(feature) for feature in members]
        if key is NumericFeature:
            if numbers is None:
                numbers = normalize_numbers(inputs, features, name=name)
            layer = layers.NumericEmbedding(
                embedding_dim,
                kernel_initializer=plain,
                kernel_regularizer=embeddings_regularizer,
                name=f"{name}-vectors",
            )
            parts.append(layer(numbers))
        elif key in OUT_OF_RANGE:
            layer = layers.FieldEmbedding(
                [feature.vocab_size for feature in members],
                embedding_dim,
                field_names=[feature.name for feature in members],
                embeddings_initializer=plain,
                embeddings_regularizer=embeddings_regularizer,
                out_of_range=key,
                name=f"{name}-tables" + ("" if key == "error" else f"-{key}"),
            )
            parts.append(layer([inputs[feature.name] for feature in members]))
        else:
            table = tables.get(key[0]) or make_table(
                members[0],
                embedding_dim,
                combiner=combiner,
                embeddings_initializer=(
                    embeddings_initializer if members[0].embedding == "qr" else plain
                ),
                embeddings_regularizer=embeddings_regularizer,
                name=f"{name}_{key[0]}",
            )
            for feature in members:
                check_shared(members[0], feature, key[0])
                vector = _read_table(table, inputs[feature.name], feature, name)
                field = keras.layers.Reshape(
                    (1, embedding_dim), name=f"{name}_{feature.name}-field"
                )
                parts.append(field(vector))
    return _in_order(parts, order, name)


def _read_together(features, tables):
    """Dict from what features are read by to the list of those features.

    Keys: `NumericFeature`; an `out_of_range` for those read from one `FieldEmbedding`;
    and a tuple with the name of the table for those of a table of their own.
    """
    groups = {}
    for feature in features:
        if isinstance(feature, NumericFeature):
            key = NumericFeature
        elif (
            isinstance(feature, CategoricalFeature)
            and feature.embedding == "full"
            and feature.table is None
            and feature.vocab_size < 2**31
            and feature.name not in tables
            and not any(_table_of(other) == feature.name for other in features)
        ):
            key = feature.out_of_range
        else:
            key = (_table_of(feature) or feature.name,)
        groups.setdefault(key, []).append(feature)
    return groups


def _table_of(feature):
    return getattr(feature, "table", None)


def _read_table(table, ids, feature, name):
    """The vector of a feature from the table that it has or shares."""
    mask = None
    if isinstance(feature, SequenceFeature):
        mask = layers.PaddingMask(name=f"{name}_{feature.name}-mask")(ids)
    if isinstance(table, IdEmbedding):
        vectors = table(ids, source=feature.name, padding_mask=mask)
    else:
        vectors = table(ids)
    if mask is None:
        return vectors
    pooling = layers.SequencePooling(
        feature.pooling, name=f"{name}_{feature.name}-pooling"
    )
    return pooling(vectors, mask=mask)


def _in_order(parts, order, name):
    """Joins groups of fields and brings the fields to the order of the features."""
    if len(parts) == 1:
        return keras.layers.Identity(name=name)(parts[0])
    in_order = order == sorted(order)
    joined = keras.layers.Concatenate(
        axis=1, name=name if in_order else f"{name}-joined"
    )(parts)
    if in_order:
        return joined
    return layers.FieldOrder(np.argsort(order).tolist(), name=name)(joined)


def check_features(features):
    """Returns `features` as a tuple.

    Raises:
        TypeError: If an entry is no feature.
        ValueError: If there is none, a name occurs twice, or a table has the name of a
            numeric feature.
    """
    features = tuple(features)
    if not features:
        raise ValueError(
            "`features` must hold at least one feature. "
            f"Received: features={features!r}."
        )
    for feature in features:
        if not isinstance(feature, FEATURES):
            raise TypeError(
                "`features` must hold CategoricalFeature, SequenceFeature, "
                f"NumericFeature or TimeGapFeature. Received: {feature!r}."
            )
    names = [feature.name for feature in features]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"`features` must have distinct names. Received: {twice} more than once."
        )
    numbers = {f.name for f in features if not hasattr(f, "vocab_size")}
    for feature in features:
        if getattr(feature, "table", None) in numbers:
            raise ValueError(
                "`table` must not be the name of a feature without ids. "
                f"Received: table={feature.table!r} for {feature.name!r}."
            )
    return features


def make_table(feature, dim, *, combiner, name, **kwargs):
    """The embedding layer of a categorical or sequence feature.

    Args:
        feature: The feature.
        dim: Width of its vectors.
        combiner: Combiner of `"qr"`.
        name: Name of the layer.
        **kwargs: Further arguments of the layer, not of one that a callable makes.
    """
    if callable(feature.embedding):
        return feature.embedding(feature.vocab_size, dim, name=name)
    kwargs |= {"out_of_range": feature.out_of_range, "name": name}
    if feature.embedding == "full":
        return layers.FullEmbedding(feature.vocab_size, dim, **kwargs)
    kwargs["num_buckets"] = feature.num_buckets
    if feature.embedding == "hash":
        return layers.HashEmbedding(feature.vocab_size, dim, **kwargs)
    return layers.QREmbedding(feature.vocab_size, dim, combiner=combiner, **kwargs)


def check_shared(owner, feature, table):
    """Checks that two features describe the table that they share alike."""
    for key in ("vocab_size", "embedding", "num_buckets", "out_of_range"):
        first, second = getattr(owner, key), getattr(feature, key)
        if first != second:
            raise ValueError(
                f"`{key}` must be the same for all features that share table "
                f"{table!r}. Received: {first!r} for {owner.name!r}, {second!r} for "
                f"{feature.name!r}."
            )
