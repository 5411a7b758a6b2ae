"""Time series to batches of windows: history, calendar and what follows."""

import dataclasses

import numpy as np

from keras_recsys._calendar import EMBEDDINGS
from keras_recsys._checks import check_choice, check_int
from keras_recsys.data.calendar_features import calendar_features
from keras_recsys.data.ranking_dataset import _batches, _narrow
from keras_recsys.data.series_scaler import check_scaler
from keras_recsys.data.time_series import list_series

TASKS = ("M", "S", "MS")
WINDOW_MISSING = ("error", "skip")


def make_window_dataset(
    series,
    *,
    seq_len,
    pred_len,
    task="M",
    scaler=None,
    embedding="timeF",
    batch_size=32,
    shuffle=False,
    seed=None,
    missing="error",
    drop_remainder=False,
):
    """Makes a `tf.data.Dataset` of all windows of a time series.

    Window `i` reads the rows `i` to `i + seq_len - 1` and forecasts the `pred_len` rows
    that follow. Windows overlap, each begins one row after the one before:

        num_windows = num_rows - seq_len - pred_len + 1

    None is left out, so that an error does not depend on `batch_size`. With several
    series no window crosses from one into the next.

    Args:
        series: `TimeSeries`, or a list of them with the same columns and frequency.
        seq_len: Positive int, rows of history in a window.
        pred_len: Positive int, rows to forecast.
        task: `"M"`, all columns to all columns; `"S"`, the target to itself; or `"MS"`,
            all columns to the target. Defaults to `"M"`.
        scaler: `SeriesScaler` of the training rows, applied to inputs and targets.
            Defaults to `None`, the values as they are.
        embedding: `"timeF"`, `"fixed"` or `"learned"`, the calendar features, as in
            `calendar_features`; or `None` for none. Defaults to `"timeF"`.
        batch_size: Positive int, windows in a batch. Defaults to `32`.
        shuffle: Whether each epoch has another random order. Defaults to `False`, the
            order of time.
        seed: Non-negative int: two datasets of one seed are equal, epoch by epoch.
            Defaults to `None`, another order each time.
        missing: `"error"`, or `"skip"` to leave out the windows that would read or
            forecast a missing value. Defaults to `"error"`.
        drop_remainder: Whether a last partial batch is dropped: random windows with
            `shuffle`, else the last. Defaults to `False`.

    Returns:
        A `tf.data.Dataset` of known length. Its elements are pairs `(inputs, y)`:
        `inputs` is a dict with `"values"`, float32 of shape `(batch_size, seq_len,
        num_columns)`, and `"calendar"`, the features of history and horizon, float32
        (int32 for `"fixed"` and `"learned"`) of shape `(batch_size, seq_len + pred_len,
        num_features)`, left out if `embedding` is `None` or the rows are years; `y` is
        float32 of shape `(batch_size, pred_len, num_outputs)`.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If a series is shorter than a window, has a missing value with
            `missing="error"`, no window is left, series differ in columns or frequency,
            `scaler` has fewer columns than the inputs, or an argument is out of its
            range.

    Example:
    >>> from keras_recsys.data import TimeSeries
    >>> series = TimeSeries(np.arange(5.0), np.arange(5) * 3600, "h")
    >>> batches = make_window_dataset(series, seq_len=2, pred_len=1)
    >>> inputs, y = next(iter(batches))
    >>> inputs["values"][:, :, 0].numpy().tolist(), y[:, 0, 0].numpy().tolist()
    ([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]], [2.0, 3.0, 4.0])
    >>> tuple(inputs["calendar"].shape)
    (3, 3, 4)
    """
    parts = list_series(series)
    seq_len = check_int("seq_len", seq_len)
    pred_len = check_int("pred_len", pred_len)
    check_choice("task", task, TASKS)
    check_choice("missing", missing, WINDOW_MISSING)
    batch_size = check_int("batch_size", batch_size)
    if embedding is not None:
        check_choice("embedding", embedding, EMBEDDINGS)
    for name, value in (("shuffle", shuffle), ("drop_remainder", drop_remainder)):
        if not isinstance(value, bool):
            raise TypeError(
                f"`{name}` must be True or False. Received: {name}={value!r}."
            )
    if seed is not None:
        seed = check_int("seed", seed, minimum=0)

    num_inputs = 1 if task == "S" else len(parts[0].columns)
    num_outputs = num_inputs if task == "M" else 1
    if scaler is not None:
        check_scaler(scaler, num_inputs, "columns")
    starts = _window_starts(parts, seq_len, pred_len, num_inputs, num_outputs, missing)
    if drop_remainder and batch_size > len(starts):
        raise ValueError(
            f"`batch_size` must be at most the number of windows, {len(starts)}, where "
            "`drop_remainder` is True, or there is no batch. "
            f"Received: batch_size={batch_size!r}."
        )
    values = np.concatenate([part.values[:, -num_inputs:] for part in parts])
    if scaler is not None:
        values = scaler.transform(values)
    calendar = None
    if embedding is not None:
        times = np.concatenate([part.times for part in parts])
        calendar = calendar_features(times, parts[0].frequency, embedding)
        calendar = calendar if calendar.shape[1] else None
    gather = _make_gather(values, calendar, starts, seq_len, pred_len, num_outputs)
    windows = _Windows(starts, np.zeros(len(starts), "int32"))
    return _batches(gather, windows, 0, batch_size, shuffle, seed, drop_remainder)


@dataclasses.dataclass(frozen=True)
class _Windows:
    """The windows in the order of the rows, all of one bucket."""

    event: np.ndarray  # the first row
    bucket: np.ndarray


def _window_starts(parts, seq_len, pred_len, num_inputs, num_outputs, missing):
    """The first rows of the windows, counted over all series."""
    window = seq_len + pred_len
    starts = []
    offset = 0
    for i, part in enumerate(parts):
        num_windows = len(part) - window + 1
        if num_windows < 1:
            raise ValueError(
                "`seq_len` and `pred_len` must make a window of at most the rows of "
                f"the series, {len(part)} in series {i}. Received: seq_len={seq_len!r},"
                f" pred_len={pred_len!r}, a window of {window} rows."
            )
        is_missing = np.isnan(part.values[:, -num_inputs:])
        if missing == "error" and is_missing.any():
            row, column = np.argwhere(is_missing)[0]
            name = part.columns[len(part.columns) - num_inputs + column]
            raise ValueError(
                '`series` must have no missing value where `missing` is "error"; '
                '"skip" leaves windows with one out. Received: a missing value at row '
                f"{row} ({part.times[row]}) of column {name!r} in series {i}."
            )
        first = np.arange(num_windows)
        # Missing rows before each row, so that a difference counts those of a span.
        read = np.append(0, np.cumsum(is_missing.any(axis=1)))
        told = np.append(0, np.cumsum(is_missing[:, -num_outputs:].any(axis=1)))
        number = read[first + seq_len] - read[first]
        number = number + told[first + window] - told[first + seq_len]
        starts.append(offset + first[number == 0])
        offset += len(part)
    starts = np.concatenate(starts)
    if not len(starts):
        raise ValueError(
            "`series` must have at least one window without missing values, "
            f"{window} rows. Received: missing values in all windows of {offset} rows."
        )
    return starts


def _make_gather(values, calendar, starts, seq_len, pred_len, num_outputs):
    """Returns the function from window numbers to a batch."""
    import tensorflow as tf

    # On the CPU even where there is a GPU: the batches are cut on the host.
    with tf.device("CPU:0"):
        table = tf.constant(values, "float32")
        targets = tf.constant(values[:, -num_outputs:], "float32")
        features = None if calendar is None else tf.constant(calendar)
        first = tf.constant(_narrow(starts))
        rows = tf.range(seq_len + pred_len, dtype=first.dtype)

    def gather(numbers, seed):
        read = tf.gather(first, numbers)[:, None] + rows
        inputs = {"values": tf.gather(table, read[:, :seq_len])}
        if features is not None:
            inputs["calendar"] = tf.gather(features, read)
        return inputs, tf.gather(targets, read[:, seq_len:])

    return gather
