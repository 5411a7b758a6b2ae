"""Share of rows whose target is among the best items."""

import keras

from keras_recsys.metrics._target_rank import TargetRankMetric, hit_gain


@keras.saving.register_keras_serializable(package="keras_recsys")
class HitRate(TargetRankMetric):
    """Share of rows whose target is among the `k` best of all items.

    With `r` the rank of the target among all ids but 0,

        HR@k = mean over rows of [r <= k]

    Where other items have the score of the target, each order of them is as likely as
    any other, and the mean over these orders is taken: a model that gives one score to
    all `n` items has `k / n`, no more. Rows with target 0, padding, do not count.
    `target_rank` says what NaN does.

    The metrics of keras-rs are for lists of candidates with labels; this one is for one
    target among all items.

    Args:
        k: Positive int, the ranks that count. It may exceed the number of items.
            Defaults to `10`.
        name: Name of the metric. Defaults to `"hit_rate"`.
        dtype: As in `keras.metrics.Metric`. Defaults to `None`.

    Call arguments:
        y_true: Integer tensor, `(batch_size,)` or `(batch_size, 1)`, the ids of the
            targets.
        y_pred: Float tensor, `(batch_size, vocab_size)`, scores or logits of all ids.
        sample_weight: Optional tensor, `(batch_size,)` or `(batch_size, 1)`, how much
            each row counts.

    Raises:
        TypeError: If `k` is no integer.
        ValueError: If `k` is below 1, shapes are wrong, or a target is outside `[0,
            vocab_size)`; in a compiled graph the latter is no hit.

    Example:
    >>> metric = HitRate(k=1)
    >>> metric.update_state(np.array([1, 2]), np.array([[0, 3.0, 1], [0, 3.0, 1]]))
    >>> float(metric.result())
    0.5
    """

    def __init__(self, k=10, name="hit_rate", dtype=None):
        super().__init__(hit_gain, k, name, dtype)
