"""How high a model ranks the next item of a sequence."""

import collections.abc
import dataclasses
import math
import numbers

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys.analysis.clicks import _table, _text
from keras_recsys.metrics._target_rank import (
    hit_gain,
    ndcg_gain,
    reciprocal_gain,
    target_rank,
)

METRICS = {"hit_rate": hit_gain, "ndcg": ndcg_gain, "mrr": reciprocal_gain}
LOWEST = np.finfo("float32").min


@dataclasses.dataclass(frozen=True)
class NextItemReport:
    """Figures of a model of the next item; `print` shows them as a table.

    Figures of no users are NaN.

    Args:
        k: The ranks that count.
        num_users: Rows with a target.
        hit_rate: Share of targets among the `k` best items.
        ndcg: Mean of `1 / log2(rank + 1)` of those among the `k` best, 0 of others.
        mrr: Mean of `1 / rank` of those among the `k` best, 0 of others.
        repeated: `NextItemReport` of the rows whose target stands in the input, or
            `None` in a part.
        new: `NextItemReport` of the other rows, or `None` in a part.
    """

    k: int
    num_users: int
    hit_rate: float
    ndcg: float
    mrr: float
    repeated: "NextItemReport | None" = None
    new: "NextItemReport | None" = None

    def __str__(self):
        parts = {"all": self, "repeated": self.repeated, "new": self.new}
        parts = {name: part for name, part in parts.items() if part is not None}
        lines = [("", *parts)]
        lines.append(("users", *(f"{part.num_users:,}" for part in parts.values())))
        for name, title in (("hit_rate", "HR"), ("ndcg", "NDCG"), ("mrr", "MRR")):
            figures = [_text(getattr(part, name)) for part in parts.values()]
            lines.append((f"{title}@{self.k}", *figures))
        return _table(lines)


def evaluate_next_item(model, dataset, *, k=10, exclude_seen=False):
    """Computes hit rate, NDCG and MRR of the next item among all items.

    With `r` the rank of the target among all ids but 0, means over the rows of

        HR@k = [r <= k]
        NDCG@k = [r <= k] / log2(r + 1)
        MRR@k = [r <= k] / r

    Ties and NaN are as in `keras_recsys.metrics.HitRate`: neither flatters. All figures
    are also given apart for targets that stand in the input of their row and for new
    ones. The dataset is read once, no scores are kept, and sums are in float64.

    Args:
        model: A `keras.Model` whose output is a tensor of scores or logits of shape
            `(batch_size, vocab_size)`, or a dict with `"logits"`; or a function from
            the dict of inputs to either. On TensorFlow a model is compiled once for
            batches of all widths; a function is called as it is.
        dataset: A finite `tf.data.Dataset`, or another iterable, of batches
            `({"item_ids": x}, y)` as of `keras_recsys.data.make_sequence_dataset`: `x`
            is int of shape `(batch_size, seq_len)`, 0 at padding, and `y` int of shape
            `(batch_size,)` or `(batch_size, 1)`. Rows with a target of 0 do not count.
        k: Positive int, the ranks that count. Defaults to `10`.
        exclude_seen: Whether the items of a row are put below all others, which suits
            data in which nobody takes an item twice. Defaults to `False`.

    Returns:
        A `NextItemReport`.

    Raises:
        TypeError: If an argument or an element of `dataset` is of a wrong type.
        ValueError: If the dataset is infinite or has no target, the inputs have no
            `"item_ids"`, the output is of a wrong shape, or a target has no score.

    Example:
    >>> batches = [({"item_ids": np.array([[1, 2], [2, 0]])}, np.array([2, 3]))]
    >>> scores = np.array([[0.0, 0.1, 0.9, 0.5]] * 2)
    >>> print(evaluate_next_item(lambda inputs: scores, batches, k=2))
               all  repeated     new
    users        2         1       1
    HR@2    1.0000    1.0000  1.0000
    NDCG@2  0.8155    1.0000  0.6309
    MRR@2   0.7500    1.0000  0.5000

    Reference:
        Leaving out seen items: "softmax without duplication" of Li et al., 2023, as in
        Chang et al., "To Copy, or not to Copy", WSDM 2024.
    """
    k = check_int("k", k)
    if not isinstance(exclude_seen, bool):
        raise TypeError(
            "`exclude_seen` must be True or False. "
            f"Received: exclude_seen={exclude_seen!r}."
        )
    if not callable(model):
        raise TypeError(
            "`model` must be a keras.Model or a function of the inputs. "
            f"Received: {type(model).__name__}."
        )
    cardinality = getattr(dataset, "cardinality", None)
    if cardinality is not None and int(cardinality()) == -1:
        raise ValueError(
            "`dataset` must be finite; cut it with `dataset.take(n)`. "
            "Received: a dataset of infinite cardinality."
        )
    # The gain of each rank up to `k`, and before them the sum of none.
    ranks = np.arange(1.0, k + 1)
    totals = np.stack(
        [np.append(0.0, np.cumsum(gain(ranks))) for gain in METRICS.values()], axis=1
    )
    sums = np.zeros((2, len(METRICS)))  # of new targets, of repeated ones
    counts = np.zeros(2, "int64")
    score, rank = _make_steps(model, exclude_seen)
    for element in dataset:
        inputs, targets = _read_element(element)
        scores = _read_scores(score(inputs))
        num_above, num_tied, repeated, is_row = (
            ops.convert_to_numpy(x)
            for x in rank(scores, ops.convert_to_tensor(inputs["item_ids"]), targets)
        )
        first = np.minimum(num_above, k)
        last = np.minimum(num_above + num_tied, k)
        gains = (totals[last] - totals[first]) / num_tied[:, None]
        for part in (0, 1):
            rows = is_row & (repeated == bool(part))
            sums[part] += gains[rows].sum(axis=0)
            counts[part] += rows.sum()
    if not counts.sum():
        raise ValueError(
            "`dataset` must hold at least one row with a target other than 0. "
            "Received: none."
        )
    new, repeated = (
        _report(k, total, count) for total, count in zip(sums, counts, strict=True)
    )
    whole = _report(k, sums.sum(axis=0), counts.sum())
    return dataclasses.replace(whole, repeated=repeated, new=new)


def geometric_mean(values):
    """Geometric mean, the summary of one metric over several data sets.

        (product over the n values of value)^(1 / n)

    A value of 0 makes the mean 0.

    Args:
        values: Non-empty sequence of numbers of at least 0; or of `NextItemReport` of
            one `k`, of which the parts are not read.

    Returns:
        A float; of reports a dict from `"hit_rate"`, `"ndcg"` and `"mrr"` to a float.

    Raises:
        TypeError: If the values are neither all numbers nor all reports.
        ValueError: If there are none, one is negative or not finite, or reports differ
            in `k`.

    Example:
    >>> round(geometric_mean([0.02, 0.08]), 6)
    0.04
    """
    values = list(values)
    if values and all(isinstance(value, NextItemReport) for value in values):
        ks = sorted({report.k for report in values})
        if len(ks) > 1:
            raise ValueError(
                f"`values` must be reports of one `k`. Received: k of {ks}."
            )
        return {
            name: geometric_mean([getattr(report, name) for report in values])
            for name in METRICS
        }
    for value in values:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(
                "`values` must be all numbers or all NextItemReport. "
                f"Received: {value!r}."
            )
        if not 0 <= value < math.inf:
            raise ValueError(
                "`values` must be finite numbers of at least 0. "
                f"Received: values={values!r}."
            )
    if not values:
        raise ValueError("`values` must hold at least one. Received: values=[].")
    if min(values) == 0:
        return 0.0
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _report(k, sums, count):
    figures = sums / count if count else np.full(len(sums), math.nan)
    named = dict(zip(METRICS, map(float, figures), strict=True))
    return NextItemReport(k=k, num_users=int(count), **named)


def _make_steps(model, exclude_seen):
    """Functions from inputs to scores, and from scores on to what is counted."""

    def rank(scores, item_ids, targets):
        targets = ops.reshape(targets, (-1,))
        own = ops.equal(item_ids, ops.expand_dims(targets, 1))
        if exclude_seen:
            scores = _without_seen(scores, item_ids)
        num_above, num_tied = target_rank(scores, targets)
        return num_above, num_tied, ops.any(own, axis=1), ops.not_equal(targets, 0)

    if not isinstance(model, keras.Layer):
        return model, rank

    def call(inputs):
        return model(inputs, training=False)

    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        call = tf.function(call, reduce_retracing=True)

    def score(inputs):  # of tensors, since another NumPy array is another trace
        return call({name: ops.convert_to_tensor(x) for name, x in inputs.items()})

    return score, rank


def _without_seen(scores, item_ids):
    """Scores with those of the items of the row below all others."""
    # Others of minus infinity must stay above.
    scores = ops.maximum(ops.cast(scores, "float32"), LOWEST)
    item_ids = ops.cast(item_ids, "int32")
    rows = ops.expand_dims(ops.arange(ops.shape(item_ids)[0], dtype="int32"), 1)
    places = ops.stack([ops.broadcast_to(rows, ops.shape(item_ids)), item_ids], axis=-1)
    places = ops.reshape(places, (-1, 2))
    lowest = ops.full((ops.shape(places)[0],), -math.inf, dtype="float32")
    return ops.scatter_update(scores, places, lowest)


def _read_element(element):
    """Inputs and targets of a batch."""
    if not isinstance(element, tuple | list) or len(element) != 2:
        raise TypeError(
            "`dataset` must have elements (inputs, targets). "
            f"Received: an element of type {type(element).__name__}."
        )
    inputs, targets = element
    if not isinstance(inputs, collections.abc.Mapping) or "item_ids" not in inputs:
        given = list(inputs) if isinstance(inputs, collections.abc.Mapping) else "none"
        raise ValueError(
            "`dataset` must have inputs with the name 'item_ids', the items of each "
            f"row. Received: names {given}."
        )
    targets = ops.convert_to_tensor(targets)
    shape = tuple(targets.shape)
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
        raise ValueError(
            "`dataset` must have targets of shape (batch_size,) or (batch_size, 1), "
            f"as of targets='last'. Received: shape {shape}."
        )
    return inputs, targets


def _read_scores(output):
    if isinstance(output, collections.abc.Mapping):
        if "logits" not in output:
            raise ValueError(
                "`model` must have the output 'logits' where its output is a dict. "
                f"Received: outputs {list(output)}."
            )
        output = output["logits"]
    return ops.convert_to_tensor(output)
