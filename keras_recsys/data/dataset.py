"""Checked columns to batches."""

import collections.abc

import numpy as np

from keras_recsys._checks import check_int
from keras_recsys.data._base_vocabulary import check_vocabularies
from keras_recsys.data._columns import as_numpy, is_missing
from keras_recsys.features import (
    FEATURES,
    NumericFeature,
    SequenceFeature,
    TimeGapFeature,
)

MAX_EXACT_FLOAT32 = 2**24  # above it float32 no longer holds every integer


def make_dataset(
    columns,
    features,
    *,
    labels=None,
    vocabularies=None,
    batch_size=1024,
    shuffle=False,
    seed=None,
    drop_remainder=False,
):
    """Makes a `tf.data.Dataset` of batches of named columns.

    Everything is checked before the first batch: names, lengths, dtypes, id ranges,
    missing and infinite numbers. Nothing is cast with loss, except that floats are
    rounded to float32. Rows are counted from 0 in the errors.

    Args:
        columns: Dict of arrays, or `pandas.DataFrame`, with one column for each feature
            and no other. A column is of shape `(num_rows,)`, or `(num_rows, seq_len)`
            for a `SequenceFeature`.
        features: Non-empty sequence of `CategoricalFeature`, `SequenceFeature`,
            `NumericFeature` and `TimeGapFeature`.
        labels: Numbers or booleans of shape `(num_rows,)` or `(num_rows, 1)`, or `None`
            for batches without labels. Defaults to `None`.
        vocabularies: Dict from feature name to the `Vocabulary` or `HashedVocabulary`
            that encodes its column, which then holds raw values. The column of a
            `SequenceFeature` holds cells of several values if its vocabulary has a
            separator, and else sequences of values, of any lengths; rows are cut and
            padded to the `max_len` of the feature, or padded to the longest. Defaults
            to `None`, all columns hold ids.
        batch_size: Positive int, rows in a batch. Defaults to `1024`.
        shuffle: Whether all rows are shuffled anew in each epoch. Defaults to `False`.
        seed: Int of the shuffle: two datasets of one seed have equal batches, epoch by
            epoch. Defaults to `None`, another order each time.
        drop_remainder: Whether a last batch of fewer rows is dropped. Defaults to
            `False`.

    Returns:
        A `tf.data.Dataset` of known length. Its elements are pairs `(inputs, labels)`,
        or only `inputs` without labels. `inputs` is a dict from feature name to a
        tensor: ids in the dtype of the feature, of shape `(batch_size,)` or
        `(batch_size, seq_len)`, and numbers in float32 of shape `(batch_size,)`.
        `labels` is float32 of shape `(batch_size, 1)`.

    Raises:
        TypeError: If a column or the labels are of a wrong dtype, or an argument of a
            wrong type.
        ValueError: If a column is missing or has no feature, lengths differ, there are
            no rows, a shape is wrong, an id is out of `[0, vocab_size)` where the
            feature has `out_of_range="error"` or does not fit its dtype, or a number is
            missing, infinite or too large for float32; or if a vocabulary is for no
            feature, has more ids than its feature, or does not fit the kind of it.

    Example:
    >>> from keras_recsys.features import CategoricalFeature
    >>> features = [CategoricalFeature("city", vocab_size=200)]
    >>> dataset = make_dataset({"city": [3, 199]}, features, labels=[0, 1])
    >>> inputs, labels = next(iter(dataset))
    >>> inputs["city"].numpy().tolist(), labels.numpy().tolist()
    ([3, 199], [[0.0], [1.0]])
    >>> from keras_recsys.data import HashedVocabulary
    >>> vocabularies = {"city": HashedVocabulary(199)}
    >>> dataset = make_dataset(
    ...     {"city": ["rome", None]}, features, vocabularies=vocabularies
    ... )
    >>> next(iter(dataset))["city"].numpy().tolist()
    [133, 0]
    """
    batch_size = check_int("batch_size", batch_size)
    for name, value in (("shuffle", shuffle), ("drop_remainder", drop_remainder)):
        if not isinstance(value, bool):
            raise TypeError(
                f"`{name}` must be True or False. Received: {name}={value!r}."
            )
    if seed is not None:
        seed = check_int("seed", seed, minimum=0)
    features = _check_features(features)
    _check_names(columns, features)
    vocabularies = {} if vocabularies is None else vocabularies
    _check_vocabularies(vocabularies, features)
    arrays = {
        feature.name: _read(
            feature, columns[feature.name], vocabularies.get(feature.name)
        )
        for feature in features
    }
    num_rows = _check_lengths(arrays)
    if labels is not None:
        labels = _read_labels(labels, num_rows)
    if drop_remainder and batch_size > num_rows:
        raise ValueError(
            f"`batch_size` must be at most the number of rows, {num_rows}, where "
            "`drop_remainder` is True, or there is no batch. "
            f"Received: batch_size={batch_size!r}."
        )
    return _batches(arrays, labels, num_rows, batch_size, shuffle, seed, drop_remainder)


def _batches(arrays, labels, num_rows, batch_size, shuffle, seed, drop_remainder):
    import tensorflow as tf

    # On the CPU even where there is a GPU: the batches are cut on the host.
    with tf.device("CPU:0"):
        table = {name: tf.constant(array) for name, array in arrays.items()}
        if labels is not None:
            table = (table, tf.constant(labels))
        order = tf.range(num_rows, dtype="int64")

    num_kept = num_rows - num_rows % batch_size if drop_remainder else num_rows
    num_batches = -(-num_kept // batch_size)

    def batches_of(order):
        starts = tf.data.Dataset.range(0, num_kept, batch_size)
        return starts.map(lambda start: order[start : start + batch_size])

    def shuffled_batches(seeds):
        return batches_of(tf.random.experimental.stateless_shuffle(order, seeds))

    def gather(rows):
        if drop_remainder:
            rows = tf.ensure_shape(rows, (batch_size,))
        return tf.nest.map_structure(lambda column: tf.gather(column, rows), table)

    if shuffle:
        # One permutation an epoch, then whole batches: `Dataset.shuffle` and `batch`,
        # which handle row numbers one by one, took 15 times as long at 2M rows.
        seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)
        rows = seeds.batch(2).take(1).flat_map(shuffled_batches)
        rows = rows.apply(tf.data.experimental.assert_cardinality(num_batches))
    else:
        rows = batches_of(order)
    return rows.map(
        gather, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    ).prefetch(tf.data.AUTOTUNE)


def _check_features(features):
    features = tuple(features)
    if not features:
        raise ValueError(
            "`features` must hold at least one feature. "
            f"Received: features={features!r}."
        )
    names = set()
    for feature in features:
        if not isinstance(feature, FEATURES):
            raise TypeError(
                "`features` must hold CategoricalFeature, SequenceFeature, "
                f"NumericFeature and TimeGapFeature only. Received: {feature!r}."
            )
        if feature.name in names:
            raise ValueError(
                "`features` must have distinct names. "
                f"Received: {feature.name!r} more than once."
            )
        names.add(feature.name)
    return features


def _check_names(columns, features):
    is_frame = hasattr(columns, "columns") and hasattr(columns, "keys")
    if not is_frame and not isinstance(columns, collections.abc.Mapping):
        raise TypeError(
            "`columns` must be a dict of arrays or a pandas.DataFrame. "
            f"Received: columns of type {type(columns).__name__}."
        )
    given = list(columns.keys())
    names = [feature.name for feature in features]
    for name in names:
        if name not in given:
            raise ValueError(
                f"`columns` must have a column for feature {name!r}. "
                f"Received: columns {given}."
            )
    for name in given:
        if name not in names:
            raise ValueError(
                f"`columns` must have columns of features only, {names}. "
                f"Received: column {name!r}, which has no feature; leave it out."
            )


def _check_lengths(arrays):
    lengths = {name: len(array) for name, array in arrays.items()}
    first = next(iter(lengths))
    for name, length in lengths.items():
        if length != lengths[first]:
            raise ValueError(
                f"Column {name!r} must have as many rows as column {first!r}, "
                f"{lengths[first]}. Received: {length} rows."
            )
    if not lengths[first]:
        raise ValueError(
            "`columns` must hold at least one row. "
            f"Received: column {first!r} of 0 rows."
        )
    return lengths[first]


def _check_vocabularies(vocabularies, features):
    """Checks that each vocabulary fits the feature that it is given for."""
    check_vocabularies(vocabularies)
    by_name = {feature.name: feature for feature in features}
    for name, vocabulary in vocabularies.items():
        if name not in by_name:
            raise ValueError(
                f"`vocabularies` must have names of features, {list(by_name)}. "
                f"Received: {name!r}."
            )
        feature = by_name[name]
        if not hasattr(feature, "vocab_size"):
            raise ValueError(
                f"`vocabularies[{name!r}]` must be for a feature of ids. "
                f"Received: {feature!r}."
            )
        if vocabulary.size > feature.vocab_size:
            raise ValueError(
                f"`vocabularies[{name!r}]` must have a `size` of at most the "
                f"`vocab_size` of its feature, vocab_size={feature.vocab_size!r}. "
                f"Received: size={vocabulary.size!r}."
            )
        is_sequence = isinstance(feature, SequenceFeature)
        if is_sequence and not vocabulary.padding:
            raise ValueError(
                f"`vocabularies[{name!r}]` must have `padding=True`, since id 0 of a "
                f"SequenceFeature is padding. Received: {vocabulary!r}."
            )
        if vocabulary.separator is not None and not is_sequence:
            raise ValueError(
                f"`vocabularies[{name!r}]` must have no separator, since its feature "
                f"is no SequenceFeature. Received: {vocabulary!r}."
            )


def _encode(feature, column, vocabulary):
    """Returns the ids of a column of raw values."""
    what = f"Column {feature.name!r}"
    if not isinstance(feature, SequenceFeature):
        return vocabulary._encode(what, column, None)
    if vocabulary.separator is not None:
        return vocabulary._encode(what, column, feature.max_len)
    return vocabulary._encode_rows(what, column, feature.max_len)


def _read(feature, column, vocabulary):
    if vocabulary is not None:
        return _read_ids(feature, _encode(feature, column, vocabulary))
    array = _as_array(f"Column {feature.name!r}", column)
    if isinstance(feature, NumericFeature):
        _check_rank(f"Column {feature.name!r}", array, 1, "(num_rows,)")
        return _read_numbers(f"Column {feature.name!r}", array)
    if isinstance(feature, TimeGapFeature):
        return _read_gaps(feature, array)
    return _read_ids(feature, array)


def _as_array(what, column):
    """Returns an array, of numbers where `column` holds numbers."""
    try:
        array = as_numpy(column)
        if array.dtype == object:  # a nullable column, or a column of lists
            _check_missing(what, array)
            if not any(isinstance(value, str | bytes) for value in array.ravel()):
                array = np.array(array.tolist())
                _check_missing(what, array)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise ValueError(
            f"{what} must hold rows of equal length; pad them with 0. "
            "Received: rows of different lengths."
        ) from error
    if array.ndim == 0:
        raise ValueError(f"{what} must be an array with rows. Received: {column!r}.")
    return array


def _check_missing(what, array):
    if array.dtype != object or array.ndim == 0:
        return
    missing = np.array([is_missing(value) for value in array.ravel()], bool)
    if missing.any():
        row = int(missing.argmax()) // array[0:1].size
        raise ValueError(
            f"{what} must hold no missing value; fill or drop it, or give a "
            "keras_recsys.data.Vocabulary in `vocabularies`, which takes raw values. "
            f"Received: a missing value at row {row}."
        )


def _check_rank(what, array, rank, shape):
    if array.ndim != rank:
        raise ValueError(
            f"{what} must be of shape {shape}. Received: shape {array.shape}."
        )


def _row_and_value(array, bad):
    """Row number and value of the first bad element."""
    index = np.unravel_index(int(bad.argmax()), bad.shape)
    return int(index[0]), array[index].item()


def _first(array):
    """Shows the first value of an array, if there is one."""
    flat = array.ravel()
    if not flat.size:
        return "no rows"
    value = flat[0].item() if isinstance(flat[0], np.generic) else flat[0]
    return f"{value!r} at row 0"


def _read_ids(feature, array):
    what = f"Column {feature.name!r}"
    if array.dtype.kind not in "iub" and array.size:
        raise TypeError(
            f"{what} must hold integer ids; give a keras_recsys.data.Vocabulary in "
            "`vocabularies` for raw values. "
            f"Received: dtype {array.dtype}, {_first(array)}."
        )
    if isinstance(feature, SequenceFeature):
        _check_rows_of(feature, what, array)
    else:
        _check_rank(what, array, 1, "(num_rows,)")
    if array.dtype.kind == "b":
        array = array.astype("int8")
    if feature.out_of_range == "error":
        bad = (array < 0) | (array >= feature.vocab_size)
        if bad.any():
            row, value = _row_and_value(array, bad)
            raise ValueError(
                f"{what} must hold ids in [0, {feature.vocab_size}), the vocab_size of "
                f"feature {feature.name!r}. Received: id {value!r} at row {row}."
            )
    limits = np.iinfo(feature.dtype)
    bad = (array < limits.min) | (array > limits.max)
    if bad.any():
        row, value = _row_and_value(array, bad)
        raise ValueError(
            f"{what} must hold ids that fit {feature.dtype}, the dtype of feature "
            f"{feature.name!r}, in [{limits.min}, {limits.max}]. "
            f"Received: id {value!r} at row {row}."
        )
    return array.astype(feature.dtype)


def _check_rows_of(feature, what, array):
    """Checks the shape of a column with several values a row."""
    max_len = feature.max_len
    shape = f"(num_rows, {'seq_len' if max_len is None else max_len})"
    _check_rank(what, array, 2, shape)
    if max_len not in (None, array.shape[1]) or not array.shape[1]:
        raise ValueError(
            f"{what} must be of shape {shape}; pad rows with 0 or cut them. "
            f"Received: shape {array.shape}."
        )


def _read_gaps(feature, array):
    what = f"Column {feature.name!r}"
    _check_rows_of(feature, what, array)
    if feature.dtype == "float32":
        return _read_numbers(what, array)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(
            f"{what} must hold whole numbers, or its feature `dtype='float32'`. "
            f"Received: dtype {array.dtype}, {_first(array)}."
        )
    limits = np.iinfo(feature.dtype)
    bad = (array < limits.min) | (array > limits.max)
    if bad.any():
        row, value = _row_and_value(array, bad)
        raise ValueError(
            f"{what} must hold times that fit {feature.dtype}, the dtype of feature "
            f"{feature.name!r}. Received: {value!r} at row {row}."
        )
    return array.astype(feature.dtype)


def _read_numbers(what, array):
    """Returns float32, after checks that no number is lost."""
    if array.dtype.kind not in "iubf" and array.size:
        raise TypeError(
            f"{what} must hold numbers. Received: dtype {array.dtype}, {_first(array)}."
        )
    if array.dtype.kind in "iu":
        bad = (array > MAX_EXACT_FLOAT32) | (array < -MAX_EXACT_FLOAT32)
        if bad.any():
            row, value = _row_and_value(array, bad)
            raise ValueError(
                f"{what} must hold integers that float32 holds exactly, from -2**24 to "
                "2**24; subtract or divide first, or give floats to have them rounded. "
                f"Received: {value!r} at row {row}."
            )
    with np.errstate(over="ignore"):
        numbers = array.astype("float32")
    bad = ~np.isfinite(numbers)
    if bad.any():
        row, value = _row_and_value(array, bad)
        raise ValueError(
            f"{what} must hold finite float32 numbers; fill or drop missing ones. "
            f"Received: {value!r} at row {row}."
        )
    return numbers


def _read_labels(labels, num_rows):
    array = _as_array("`labels`", labels)
    if array.ndim > 2 or (array.ndim == 2 and array.shape[1] != 1):
        raise ValueError(
            "`labels` must be of shape (num_rows,) or (num_rows, 1). "
            f"Received: shape {array.shape}."
        )
    if len(array) != num_rows:
        raise ValueError(
            f"`labels` must have as many rows as `columns`, {num_rows}. "
            f"Received: {len(array)} rows."
        )
    return _read_numbers("`labels`", array).reshape(num_rows, 1)
