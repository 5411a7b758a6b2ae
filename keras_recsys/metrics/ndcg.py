"""Discounted gain of the target."""

import keras

from keras_recsys.metrics._target_rank import TargetRankMetric, ndcg_gain


@keras.saving.register_keras_serializable(package="keras_recsys")
class NDCG(TargetRankMetric):
    """Normalized discounted cumulative gain of one target among all items.

    With `r` the rank of the target among all ids but 0,

        NDCG@k = mean over rows of [r <= k] / log2(r + 1)

    The gain of the best order is 1, since there is one target. Ties, padding and NaN
    are as in `HitRate`.

    The metrics of keras-rs are for lists of candidates with labels; this one is for one
    target among all items.

    Args:
        k: Positive int, the ranks that count. It may exceed the number of items.
            Defaults to `10`.
        name: Name of the metric. Defaults to `"ndcg"`.
        dtype: As in `keras.metrics.Metric`. Defaults to `None`.

    Call arguments:
        y_true: Integer tensor, `(batch_size,)` or `(batch_size, 1)`, the ids of the
            targets.
        y_pred: Float tensor, `(batch_size, vocab_size)`, scores or logits of all ids.
        sample_weight: Optional tensor, `(batch_size,)` or `(batch_size, 1)`, how much
            each row counts.

    Raises:
        TypeError: If `k` is no integer.
        ValueError: As `HitRate`.

    Example:
    >>> metric = NDCG()  # the target has rank 3
    >>> metric.update_state(np.array([1]), np.array([[9.0, 0.1, 0.2, 0.3]]))
    >>> float(metric.result())
    0.5
    """

    def __init__(self, k=10, name="ndcg", dtype=None):
        super().__init__(ndcg_gain, k, name, dtype)
