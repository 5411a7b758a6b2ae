"""Figures of a click model on rows with known clicks."""

import collections.abc
import dataclasses
import math

import numpy as np

from keras_recsys.analysis._columns import (
    check_rows,
    read_groups,
    read_probabilities,
    to_array,
    to_column,
    to_numbers,
)

EPSILON = 1e-7  # that of the losses of Keras, so that the log loss equals theirs


@dataclasses.dataclass(frozen=True)
class ClickReport:
    """Figures of a click model; `print` shows them as a table.

    A figure that the rows do not define is NaN. All sums are in float64, and weighted
    where weights were given; the numbers of rows and groups count each as one.

    Args:
        num_rows: Rows.
        num_positives: Rows with label 1.
        auc: Area under the ROC curve: the share of the pairs of a positive and a
            negative row in which the positive has the higher probability, ties as one
            half. NaN if all labels are equal.
        log_loss: Mean of `-log(probability of the label)`, in nats. Probabilities are
            clipped to `[1e-7, 1 - 1e-7]` as in Keras, so that no row costs more than
            16.2.
        base_log_loss: Log loss of a model that answers the share of positives of these
            rows, whatever the row; 0 if all labels are equal.
        calibration: Sum of the probabilities over the number of positives: above 1 the
            model promises too many clicks. NaN if there is no positive.
        gauc: AUC inside each group, averaged with the number of rows as weight, over
            the groups with both labels. NaN if there is no such group, `None` without
            groups.
        num_groups: Groups, `None` without.
        num_groups_scored: Groups with both labels, which `gauc` averages, or `None`.
        num_rows_left_out: Rows in the other groups, or `None`.
    """

    num_rows: int
    num_positives: int
    auc: float
    log_loss: float
    base_log_loss: float
    calibration: float
    gauc: float | None = None
    num_groups: int | None = None
    num_groups_scored: int | None = None
    num_rows_left_out: int | None = None

    @property
    def information_gain(self):
        """Share of `base_log_loss` that the model saves; NaN if all labels are equal.

        It is 1 - the normalized entropy. 0 is no better than the base rate, and unlike
        the log loss it can be compared between rows of different base rates.
        """
        if not self.base_log_loss:
            return math.nan
        return 1 - self.log_loss / self.base_log_loss

    def __str__(self):
        lines = [
            ("rows", f"{self.num_rows:,}"),
            ("positives", f"{self.num_positives:,}"),
            *((name, text) for name, text in _figures(self).items() if text),
        ]
        if self.gauc is not None:
            scored = f"{self.num_groups_scored:,} of {self.num_groups:,}"
            lines.append(("groups scored", scored))
            lines.append(("rows left out", f"{self.num_rows_left_out:,}"))
        return _table(lines)


def evaluate_clicks(labels, probabilities, *, groups=None, weights=None):
    """Computes AUC, log loss, calibration and GAUC of predicted probabilities.

        GAUC = sum_g num_rows_g AUC_g / sum_g num_rows_g

    over the groups `g` with both labels. Ranking inside the group is what a list shown
    to one user needs, while a high AUC may come from knowing which users click.

    Args:
        labels: 0 or 1 for each row, as numbers or booleans.
        probabilities: Numbers in `[0, 1]`, or the dict with `"probability"` that
            `predict` of a click model returns.
        groups: Integers or strings that say of which user, list or request a row is.
            Defaults to `None`, no GAUC.
        weights: Numbers of at least 0 that say how much each row counts; in GAUC a
            group then counts as the sum of its rows. With negatives sampled at a rate,
            `1 / rate` for them stands for those left out. Defaults to `None`, all 1.

    All may be an array, tensor, `pandas.Series` or list, of shape `(num_rows,)` or
    `(num_rows, 1)`.

    Returns:
        A `ClickReport`.

    Raises:
        ImportError: If scikit-learn is not installed.
        TypeError: If a value is not a number, or groups are of several kinds.
        ValueError: If lengths differ, there are no rows, a shape is wrong, a label is
            not 0 or 1, a probability is NaN or not in `[0, 1]`, a group is missing, or
            weights are negative, not finite or all 0.

    Example:
    >>> report = evaluate_clicks(
    ...     [0, 1, 0, 1], [0.2, 0.6, 0.7, 0.9], groups=["a", "a", "b", "b"]
    ... )
    >>> report.auc, report.gauc
    (0.75, 1.0)
    >>> print(report)
    rows                   4
    positives              2
    AUC               0.7500
    log loss          0.5108
    information gain  26.3 %
    calibration       1.2000
    GAUC              1.0000
    groups scored     2 of 2
    rows left out          0

    Reference:
        GAUC: the user weighted AUC of Zhou et al., "Deep Interest Network for
        Click-Through Rate Prediction", KDD 2018. Said here and not there: groups of
        one label are left out. Information gain: He et al., "Practical Lessons from
        Predicting Clicks on Ads at Facebook", ADKDD 2014.
    """
    from scipy.special import entr
    from sklearn import metrics

    labels = to_column("labels", to_numbers("labels", labels))
    check_rows("labels", labels, (labels == 0) | (labels == 1), "only 0 and 1")
    scores = to_column("probabilities", read_probabilities(probabilities))
    _check_length("probabilities", scores, labels)
    if weights is not None:
        weights = _read_weights(weights, labels)
    if groups is not None:
        groups = read_groups(groups)
        _check_length("groups", groups, labels)

    rate = np.average(labels, weights=weights)
    auc = (
        metrics.roc_auc_score(labels, scores, sample_weight=weights)
        if (0 < rate < 1)
        else math.nan
    )
    log_loss = metrics.log_loss(
        labels,
        np.clip(scores, EPSILON, 1 - EPSILON),
        sample_weight=weights,
        labels=[0, 1],
    )
    calibration = np.average(scores, weights=weights) / rate if rate else math.nan
    report = ClickReport(
        num_rows=len(labels),
        num_positives=int(labels.sum()),
        auc=float(auc),
        log_loss=float(log_loss),
        base_log_loss=float(entr(rate) + entr(1 - rate)),
        calibration=float(calibration),
    )
    if groups is None:
        return report
    weights = np.ones(len(labels)) if weights is None else weights
    return dataclasses.replace(
        report, **_group_figures(labels, scores, groups, weights)
    )


def evaluate_model(model, dataset, *, group=None):
    """Computes the figures of a click model over batches of rows with labels.

    The dataset is read once. Only probabilities, labels, weights and the column of
    groups are kept, not the inputs.

    Args:
        model: A `keras.Model` whose output is a tensor of probabilities, or a dict with
            `"probability"`, as that of the builders.
        dataset: A finite `tf.data.Dataset`, or another iterable, of batches `(inputs,
            labels)` or `(inputs, labels, weights)`, as `fit` takes them.
        group: Name of the column of `inputs`, a dict, that holds the groups of GAUC.
            The model need not read it. Defaults to `None`, no GAUC.

    Returns:
        A `ClickReport`, that of `evaluate_clicks` on all rows.

    Raises:
        TypeError: If an element of `dataset` is no tuple of inputs and labels.
        ValueError: If the dataset is infinite or empty, `group` is not a column, or the
            rows are not as `evaluate_clicks` takes them.

    Example:
    >>> import keras
    >>> x = keras.Input((1,), name="x")
    >>> model = keras.Model({"x": x}, {"probability": keras.ops.sigmoid(x)})
    >>> batches = [({"x": np.array([[-1.0], [2.0]])}, np.array([0, 1]))]
    >>> evaluate_model(model, batches).auc
    1.0
    """
    cardinality = getattr(dataset, "cardinality", None)
    if cardinality is not None and int(cardinality()) == -1:
        raise ValueError(
            "`dataset` must be finite; cut it with `dataset.take(n)`. "
            "Received: a dataset of infinite cardinality."
        )
    parts = {"labels": [], "probabilities": [], "weights": [], "groups": []}
    for element in dataset:
        if not isinstance(element, tuple | list) or len(element) not in (2, 3):
            raise TypeError(
                "`dataset` must have elements (inputs, labels) or (inputs, labels, "
                f"weights). Received: an element of type {type(element).__name__}."
            )
        inputs, labels, *weights = element
        if not len(labels):
            continue
        if group is not None:
            inputs, groups = _split_group(model, inputs, group)
            parts["groups"].append(_batch("groups", groups))
        probabilities = model.predict_on_batch(inputs)
        parts["probabilities"].append(_batch("probabilities", probabilities))
        parts["labels"].append(_batch("labels", labels))
        if weights and weights[0] is not None:
            parts["weights"].append(_batch("weights", weights[0]))
    if not parts["labels"]:
        raise ValueError(
            "`dataset` must hold at least one batch. Received: an empty dataset."
        )
    columns = {name: np.concatenate(part) for name, part in parts.items() if part}
    return evaluate_clicks(**columns)


def compare_models(reports):
    """Makes a table of the reports of several models, the lowest log loss first.

    Args:
        reports: Non-empty dict from name of the model to its `ClickReport`, all of the
            same rows.

    Returns:
        The table, a string.

    Raises:
        TypeError: If `reports` is not such a dict.
        ValueError: If it is empty, or the reports are of different rows.

    Example:
    >>> clicks = [0, 1, 1, 0]
    >>> reports = {
    ...     "base rate": evaluate_clicks(clicks, [0.5] * 4),
    ...     "model": evaluate_clicks(clicks, [0.2, 0.6, 0.7, 0.5]),
    ... }
    >>> print(compare_models(reports))
                  AUC  log loss  information gain  calibration
    model      1.0000    0.4459            35.7 %       1.0000
    base rate  0.5000    0.6931             0.0 %       1.0000
    """
    if not isinstance(reports, collections.abc.Mapping) or not all(
        isinstance(report, ClickReport) for report in reports.values()
    ):
        raise TypeError(
            "`reports` must be a dict from name to ClickReport. "
            f"Received: reports={reports!r}."
        )
    rows = {
        (x.num_rows, x.num_positives, x.base_log_loss, x.num_groups)
        for x in reports.values()
    }
    if len(rows) != 1:
        raise ValueError(
            "`reports` must be of the same rows and groups, at least one report. "
            "Received: (rows, positives, base log loss, groups) of "
            f"{sorted(rows, key=str)}."
        )
    ranked = sorted(reports.items(), key=lambda item: item[1].log_loss)
    figures = {str(name): _figures(report) for name, report in ranked}
    header = [name for name, text in next(iter(figures.values())).items() if text]
    return _table(
        [
            ("", *header),
            *((name, *(row[key] for key in header)) for name, row in figures.items()),
        ]
    )


def _read_weights(weights, labels):
    array = to_column("weights", to_numbers("weights", weights))
    _check_length("weights", array, labels)
    good = (array >= 0) & (array < math.inf)
    check_rows("weights", array, good, "finite numbers of at least 0")
    if not array.any():
        raise ValueError("`weights` must hold a number above 0. Received: only zeros.")
    return array


def _check_length(name, array, labels):
    if len(array) != len(labels):
        raise ValueError(
            f"`{name}` must have as many rows as `labels`, {len(labels)}. "
            f"Received: {len(array)} rows."
        )


def _batch(name, values):
    return to_column(name, to_array(name, values))


def _split_group(model, inputs, group):
    """Inputs of the model, and the column of groups."""
    if not isinstance(inputs, collections.abc.Mapping) or group not in inputs:
        given = list(inputs) if isinstance(inputs, collections.abc.Mapping) else "none"
        raise ValueError(
            "`group` must be the name of a column of the inputs. "
            f"Received: group={group!r}; names {given}."
        )
    known = getattr(model, "input", None)  # which a subclassed model lacks
    if isinstance(known, dict) and group not in known:
        rest = {name: column for name, column in inputs.items() if name != group}
        return rest, inputs[group]
    return inputs, inputs[group]


def _group_figures(labels, scores, groups, weights):
    """The fields of a report that groups add.

    Sorted by group and score, the rows fall into runs of equal score. A run of
    positives wins against all negatives of its group in earlier runs, and half against
    those in its own.
    """
    order = np.lexsort((scores, groups))
    labels, scores, groups = labels[order], scores[order], groups[order]
    is_first = np.append(True, groups[1:] != groups[:-1])
    is_run = is_first.copy()
    is_run[1:] |= scores[1:] != scores[:-1]
    runs = np.flatnonzero(is_run)
    first_runs = np.flatnonzero(is_first[runs])

    positive = np.add.reduceat(weights[order] * labels, runs)
    negative = np.add.reduceat(weights[order] * (1 - labels), runs)
    lower = np.cumsum(negative) - negative
    lower -= np.repeat(lower[first_runs], np.diff(first_runs, append=len(runs)))
    wins = np.add.reduceat(positive * (lower + negative / 2), first_runs)

    positive = np.add.reduceat(positive, first_runs)
    negative = np.add.reduceat(negative, first_runs)
    scored = (positive > 0) & (negative > 0)
    auc = wins[scored] / (positive * negative)[scored]
    share = (positive + negative)[scored]
    sizes = np.diff(np.flatnonzero(is_first), append=len(labels))
    return {
        "gauc": float(np.average(auc, weights=share)) if scored.any() else math.nan,
        "num_groups": len(scored),
        "num_groups_scored": int(scored.sum()),
        "num_rows_left_out": int(sizes[~scored].sum()),
    }


def _figures(report):
    """Dict from name to text of the figures, `""` for those not asked for."""
    return {
        "AUC": _text(report.auc),
        "log loss": _text(report.log_loss),
        "information gain": _text(100 * report.information_gain, "{:.1f} %"),
        "calibration": _text(report.calibration),
        "GAUC": _text(report.gauc),
    }


def _text(value, form="{:.4f}"):
    if value is None:
        return ""
    return "-" if math.isnan(value) else form.format(value)


def _table(lines):
    """Text of rows of cells; the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
