"""The rank of one target among all items, and the metrics that read it."""

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys._lookup import narrow_array

NO_ITEM = 2**30  # items above a target that is none: no rank that pays is so low


def target_rank(scores, targets):
    """Counts the items above the target of each row, and those of the same score.

    With `a` items above and `t` of its score, itself among them, the rank of the target
    is any of `a + 1` to `a + t`, each alike. Id 0 is padding and no item: it counts
    nowhere, whatever its score.

    NaN never flatters: an item whose score is NaN counts as above the target, and a
    target whose score is NaN as the last of all items.

    Args:
        scores: Float tensor, `(batch_size, vocab_size)`, a score for each id; higher is
            better.
        targets: Integer tensor, `(batch_size,)` or `(batch_size, 1)`, the ids of the
            targets; 0 is padding.

    Returns:
        Tuple `(num_above, num_tied)` of int32 tensors of shape `(batch_size,)`. A
        target of 0 has `2**30` above it and so has, where a compiled graph cannot
        raise, an id outside `[0, vocab_size)`: they are no hit at any `k`.

    Raises:
        ValueError: If shapes are wrong, or an id is outside `[0, vocab_size)` and the
            values are at hand.

    Example:
    >>> above, tied = target_rank(np.array([[9.0, 0.5, 0.7, 0.5]]), np.array([3]))
    >>> int(above[0]), int(tied[0])
    (1, 2)
    """
    scores = ops.convert_to_tensor(scores)
    targets = ops.convert_to_tensor(narrow_array(targets))
    _check_shapes(scores, targets)
    targets = ops.reshape(targets, (-1,))
    vocab_size = ops.shape(scores)[1]
    in_range = ops.logical_and(targets >= 0, targets < vocab_size)
    _check_range(in_range, targets, vocab_size)
    is_item = ops.logical_and(in_range, targets > 0)
    ids = ops.cast(ops.where(is_item, targets, ops.zeros_like(targets)), "int32")
    own = ops.take_along_axis(scores, ops.expand_dims(ids, 1), axis=1)

    not_above = scores <= own  # `False` where one of the two is NaN
    num_above = vocab_size - _count(not_above)
    num_above -= 1 - ops.cast(not_above[:, 0], "int32")  # id 0
    tied = ops.equal(scores, own)
    num_tied = _count(tied) - ops.cast(tied[:, 0], "int32")

    is_nan = ops.isnan(own[:, 0])
    num_above = ops.where(is_nan, vocab_size - 2, num_above)
    num_above = ops.where(is_item, num_above, NO_ITEM)
    num_tied = ops.where(ops.logical_and(is_item, ~is_nan), num_tied, 1)
    return ops.cast(num_above, "int32"), ops.cast(num_tied, "int32")


def mean_gain(num_above, num_tied, gains):
    """Mean of the gain over the ranks `num_above + 1` to `num_above + num_tied`.

    Args:
        num_above: Int tensor of any shape.
        num_tied: Like `num_above`, at least 1.
        gains: Float array, `(k,)`, the gain of each rank from 1; that of lower ranks is
            0.

    Returns:
        Float32 tensor of the shape of `num_above`.
    """
    k = len(gains)
    first = ops.minimum(num_above, k)
    last = ops.minimum(num_above + num_tied, k)
    total = np.append(0.0, np.cumsum(gains)).astype("float32")
    among = ops.take(total, last, axis=0) - ops.take(total, first, axis=0)
    among = among / ops.cast(num_tied, "float32")
    alone = ops.take(np.append(gains, 0.0).astype("float32"), first, axis=0)
    return ops.where(num_tied == 1, alone, among)  # exact without a tie


class TargetRankMetric(keras.metrics.Mean):
    """Mean over the rows of a gain that depends on the rank of the target.

    Args:
        gain: Function from an array of ranks, from 1, to the gain of each.
        k: Positive int, the ranks that count.
        name: Name of the metric.
        dtype: As in `keras.metrics.Metric`.
    """

    def __init__(self, gain, k, name, dtype):
        super().__init__(name=name, dtype=dtype)
        self.k = check_int("k", k)
        self.gains = gain(np.arange(1.0, self.k + 1))
        self._direction = "up"

    def update_state(self, y_true, y_pred, sample_weight=None):
        num_above, num_tied = target_rank(y_pred, y_true)
        gain = mean_gain(num_above, num_tied, self.gains)
        targets = ops.reshape(ops.convert_to_tensor(narrow_array(y_true)), (-1,))
        weight = ops.cast(ops.not_equal(targets, 0), self.dtype)
        if sample_weight is not None:
            given = ops.convert_to_tensor(sample_weight, dtype=self.dtype)
            weight = weight * ops.reshape(given, (-1,))
        super().update_state(gain, sample_weight=weight)

    def get_config(self):
        return {**super().get_config(), "k": self.k}


def hit_gain(rank):
    """1 at each rank."""
    return np.ones_like(rank)


def ndcg_gain(rank):
    """1 over the logarithm of the rank, 1 at the first."""
    return 1 / np.log2(rank + 1)


def reciprocal_gain(rank):
    """1 over the rank."""
    return 1 / rank


def _count(booleans):
    return ops.cast(ops.sum(ops.cast(booleans, "int32"), axis=1), "int32")


def _check_shapes(scores, targets):
    if len(scores.shape) != 2:
        raise ValueError(
            "`scores` must be of shape (batch_size, vocab_size), one row of scores for "
            f"each target. Received: shape {tuple(scores.shape)}."
        )
    shape = tuple(targets.shape)
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
        raise ValueError(
            "`targets` must be of shape (batch_size,) or (batch_size, 1), one target a "
            f"row. Received: shape {shape}."
        )
    if None not in (shape[0], scores.shape[0]) and shape[0] != scores.shape[0]:
        raise ValueError(
            f"`targets` must hold one id for each of {scores.shape[0]} rows of "
            f"`scores`. Received: {shape[0]} ids."
        )


def _check_range(in_range, targets, vocab_size):
    """Raises for an id that has no score, unless a graph is being made."""
    try:
        good = ops.convert_to_numpy(in_range)
    except (NotImplementedError, TypeError, RuntimeError):
        return
    if not good.all():
        row = int((~good).argmax())
        raise ValueError(
            f"`targets` must be ids in [0, {int(vocab_size)}), which have a score. "
            f"Received: {ops.convert_to_numpy(targets)[row].item()!r} at row {row}."
        )
