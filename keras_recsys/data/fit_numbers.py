"""Mean and deviation of the numbers of a `tf.data.Dataset`."""

import numpy as np

from keras_recsys._checks import NORMALIZATIONS, check_choice
from keras_recsys.data.raw_dataset import _check_names, _columns_of
from keras_recsys.features import NumericFeature


def fit_numbers(dataset, normalizations):
    """Makes the numeric features of several columns in one pass over a dataset.

    Each is equal to what `NumericFeature.fit` makes of the whole column, but for the
    rounding of sums in float64: means of batches are merged, so that no sum of squares
    loses its digits.

    Args:
        dataset: A finite `tf.data.Dataset` of batches, dicts from column name to tensor
            or tuples that begin with one. The columns named here hold finite numbers in
            tensors of shape `(batch_size,)`.
        normalizations: Non-empty dict from column name to `"zscore"` or `"log"`.

    Returns:
        Dict from column name to `NumericFeature`, in the order of `normalizations`.

    Raises:
        TypeError: If `dataset` is no dataset of dicts, `normalizations` no dict, or a
            column does not hold numbers.
        ValueError: If a column is not in the dataset or of another shape, a number is
            not finite, a normalization is unknown, or the dataset is infinite or empty.

    Example:
    >>> import tensorflow as tf
    >>> dataset = tf.data.Dataset.from_tensor_slices({"price": [1.0, 3.0]}).batch(1)
    >>> fit_numbers(dataset, {"price": "zscore"})["price"]
    NumericFeature(name='price', normalization='zscore', mean=2.0, std=1.0)
    """
    import tensorflow as tf

    columns = _columns_of(dataset)
    if not isinstance(normalizations, dict):
        raise TypeError(
            "`normalizations` must be a dict from column name to normalization. "
            f"Received: normalizations={normalizations!r}."
        )
    if not normalizations:
        raise ValueError(
            "`normalizations` must name at least one column. Received: {}."
        )
    _check_names("normalizations", normalizations, columns)
    for name, normalization in normalizations.items():
        check_choice(f"normalizations[{name!r}]", normalization, NORMALIZATIONS)
        spec = columns[name]
        if not isinstance(spec, tf.TensorSpec) or not (
            spec.dtype.is_integer or spec.dtype.is_floating
        ):
            raise TypeError(
                f"Column {name!r} must be a tensor of numbers. Received: {spec!r}."
            )
        if spec.shape.rank != 1:
            raise ValueError(
                f"Column {name!r} must be of shape (batch_size,). "
                f"Received: shape {spec.shape}."
            )
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "`dataset` must be finite; cut it with `dataset.take(n)`. "
            "Received: a dataset of infinite cardinality."
        )
    names = list(normalizations)
    is_log = np.array([normalizations[name] == "log" for name in names])

    def stack(element, *_):
        return tf.stack([tf.cast(element[name], "float64") for name in names], axis=1)

    count, mean, squares = 0, np.zeros(len(names)), np.zeros(len(names))
    batches = dataset.map(stack, num_parallel_calls=tf.data.AUTOTUNE)
    for values in batches.prefetch(tf.data.AUTOTUNE).as_numpy_iterator():
        if not len(values):
            continue
        bad = ~np.isfinite(values)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise ValueError(
                f"Column {names[column]!r} must hold finite numbers; fill or drop "
                f"missing ones first. Received: {values[row, column]} at row "
                f"{count + row}."
            )
        logs = np.log1p(np.maximum(values, 0.0))
        values = np.where(is_log, logs, values)
        # Chan, Golub and LeVeque's merge of two means and sums of squares.
        batch_mean = values.mean(axis=0)
        total = count + len(values)
        shift = batch_mean - mean
        squares += ((values - batch_mean) ** 2).sum(axis=0)
        squares += shift**2 * (count * len(values) / total)
        mean += shift * (len(values) / total)
        count = total
    if not count:
        raise ValueError(
            "`dataset` must hold at least one row. Received: an empty dataset."
        )
    stds = np.sqrt(squares / count)
    return {
        name: NumericFeature.of_moments(name, normalizations[name], center, std)
        for name, center, std in zip(names, mean, stds, strict=True)
    }
