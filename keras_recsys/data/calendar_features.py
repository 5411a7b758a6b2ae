"""Features of time stamps, and the reading of time stamps."""

import datetime
import re

import numpy as np

from keras_recsys._calendar import EMBEDDINGS, Frequency, integer_fields, scaled_fields
from keras_recsys._checks import check_choice
from keras_recsys.data._columns import as_numpy, is_missing

ISO = re.compile(r"\d{4}-\d\d(-\d\d([ T]\d\d:\d\d(:\d\d)?)?)?")
WITHOUT_ZONE = (
    "Convert them first: `.tz_convert('UTC').tz_localize(None)` for UTC, or "
    "`.tz_localize(None)` for the local clock"
)


def calendar_features(times, frequency, embedding="timeF"):
    """Calendar features of time stamps, as the input embedding of Informer reads them.

    With `"timeF"` each feature is scaled to `[-0.5, 0.5]`. With `x` its value,

        feature = (x - smallest) / (largest - smallest) - 0.5

    over second and minute 0 to 59, hour 0 to 23, weekday 0 (Monday) to 6, day of the
    month 1 to 31, day of the year 1 to 366, month 1 to 12, ISO week 1 to 53. With
    `"fixed"` and `"learned"` features are integers, rows of tables: months and days
    count from 1, and the minute is the quarter of the hour, 0 to 3.

    | unit | scaled | integer |
    |---|---|---|
    | s | second, minute, hour, weekday, day, day of the year | as of min |
    | min | minute, hour, weekday, day, day of the year | as of h, then minute |
    | h | hour, weekday, day, day of the year | month, day, weekday, hour |
    | d, b | weekday, day, day of the year | month, day, weekday |
    | w | day, ISO week | month |
    | m, q | month | month |
    | y | none | none |

    A multiple of a unit has the features of the unit. So steps below a quarter of an
    hour are told apart by `"timeF"` alone.

    Args:
        times: Time stamps without time zone, of any shape: datetime64, datetimes,
            an index or Series of pandas, strings such as `"2016-07-01 00:00:00"`, or
            integers, seconds since 1970-01-01.
        frequency: Unit of the steps, with or without a multiple, as pandas or the
            paper's code spell it, such as `"h"`, `"15min"`, `"MS"`.
        embedding: `"timeF"`, `"fixed"` or `"learned"`. Defaults to `"timeF"`.

    Returns:
        Float32 array with `"timeF"`, else int32, of shape `(*times.shape,
        num_features)`.

    Raises:
        TypeError: If `times` holds anything but time stamps.
        ValueError: If a time stamp is missing, cannot be read, has a time zone or a
            fraction of a second, or `frequency` or `embedding` is unknown.

    Example:
    >>> calendar_features(["2024-01-01 00:30"], "30min", "fixed").tolist()
    [[1, 1, 0, 0, 2]]
    """
    seconds = read_times("times", times)
    unit = Frequency.parse(frequency).unit
    check_choice("embedding", embedding, EMBEDDINGS)
    fields = scaled_fields if embedding == "timeF" else integer_fields
    dtype = "float32" if embedding == "timeF" else "int32"
    columns = fields(seconds, unit)
    features = np.empty((*seconds.shape, len(columns)), dtype)
    for i, column in enumerate(columns):
        features[..., i] = column
    return features


def read_times(name, times):
    """Reads time stamps without time zone.

    Returns:
        Int64 array of seconds since 1970-01-01, of the shape of `times`.

    Raises:
        TypeError: If `times` holds anything but time stamps.
        ValueError: If a time stamp is missing, cannot be read, has a time zone or a
            fraction of a second.
    """
    if getattr(getattr(times, "dtype", None), "tz", None) is not None:
        raise ValueError(
            f"`{name}` must have no time zone. {WITHOUT_ZONE}. "
            f"Received: {name} of dtype {times.dtype}."
        )
    array = as_numpy(times)
    if array.dtype.kind in "iu":
        return array.astype("int64")
    if array.dtype.kind not in "MOU":
        raise TypeError(
            f"`{name}` must hold datetimes, strings, or integers in seconds. "
            f"Received: {name} of dtype {array.dtype}."
        )
    if array.dtype.kind != "M":
        array = _read_objects(name, array)
    seconds = array.astype("datetime64[s]")
    _raise_first(name, array, np.isnat(array), "no missing time stamp")
    _raise_first(name, array, seconds != array, "whole seconds")
    return seconds.astype("int64")


def _raise_first(name, array, bad, allowed):
    if bad.any():
        row = np.unravel_index(int(bad.argmax()), bad.shape)
        place = ", ".join(str(i) for i in row) or "0"
        raise ValueError(
            f"`{name}` must hold {allowed}. "
            f"Received: {str(array[row])!r} at row {place}."
        )


def _read_objects(name, array):
    """Strings and datetimes as datetime64 in microseconds."""
    values = array.ravel().tolist()
    for row, value in enumerate(values):
        if is_missing(value):
            raise ValueError(
                f"`{name}` must hold no missing time stamp. "
                f"Received: {value!r} at row {row}."
            )
        if isinstance(value, str):
            if not ISO.fullmatch(value):
                raise ValueError(
                    f"`{name}` must hold strings such as '2016-07-01 00:00:00', with "
                    "no time zone; `pandas.to_datetime` with a `format` reads others. "
                    f"Received: {value!r} at row {row}."
                )
        elif not isinstance(value, datetime.date | np.datetime64):
            raise TypeError(
                f"`{name}` must hold datetimes, strings, or integers in seconds. "
                f"Received: {value!r} at row {row}."
            )
        elif getattr(value, "tzinfo", None) is not None:
            raise ValueError(
                f"`{name}` must have no time zone. {WITHOUT_ZONE}. "
                f"Received: {value!r} at row {row}."
            )
    try:
        return np.array(values, "datetime64[us]").reshape(array.shape)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must hold time stamps of the calendar. Received: {error}."
        ) from error
