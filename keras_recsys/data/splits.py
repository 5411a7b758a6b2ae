"""Splits of a frame of interactions into train and test."""

import numbers

import numpy as np


def split_by_user_time(frame, *, user="user_id", time="timestamp", test_fraction=0.1):
    """Splits off the last interactions of each user as test rows.

    The rows are sorted by time, those of equal time in the order of `frame`. Counting
    the rows of a user from the last, `rank = 0, 1, ...`, a row is a test row if

        rank < test_fraction * number of rows of the user

    so that each user has at least one test row, and a user of a single row has no
    other.

    Args:
        frame: Non-empty `pandas.DataFrame`.
        user: Name of the column of users, of any dtype. Defaults to `"user_id"`.
        time: Name of the column of times, numbers or datetimes. Defaults to
            `"timestamp"`.
        test_fraction: Float in `(0, 1)`. Defaults to `0.1`.

    Returns:
        A pair `(train, test)` of frames with the columns and the index labels of
        `frame`, each in order of time.

    Raises:
        TypeError: If `frame` is not a DataFrame or the times cannot be ordered.
        ValueError: If a column is not there or has missing values, `frame` is empty, or
            `test_fraction` is not in `(0, 1)`.

    Example:
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"user_id": [7, 7, 7], "timestamp": [30, 10, 20]})
    >>> train, test = split_by_user_time(frame, test_fraction=0.3)
    >>> train["timestamp"].tolist(), test["timestamp"].tolist()
    ([10, 20], [30])
    """
    _check_frame(frame, user, time)
    if (
        isinstance(test_fraction, bool)
        or not isinstance(test_fraction, numbers.Real)
        or not 0 < test_fraction < 1
    ):
        raise ValueError(
            "`test_fraction` must be a number in (0, 1). "
            f"Received: test_fraction={test_fraction!r}."
        )
    ordered = frame.sort_values(time, kind="stable")
    groups = ordered.groupby(user, sort=False, observed=True)[time]
    rank = groups.cumcount(ascending=False).to_numpy()
    # Rounded, since 0.07 * 100 is a little above 7 and would take an eighth row.
    limit = np.round(float(test_fraction) * groups.transform("size").to_numpy(), 9)
    is_test = rank < limit
    return ordered[~is_test], ordered[is_test]


def _check_frame(frame, user, time):
    if not hasattr(frame, "groupby") or not hasattr(frame, "columns"):
        raise TypeError(
            "`frame` must be a pandas.DataFrame. "
            f"Received: frame of type {type(frame).__name__}."
        )
    for argument, column in (("user", user), ("time", time)):
        if column not in frame.columns:
            raise ValueError(
                f"`{argument}` must name a column of `frame`, one of "
                f"{list(frame.columns)}. Received: {argument}={column!r}."
            )
    if not len(frame):
        raise ValueError("`frame` must hold at least one row. Received: 0 rows.")
    for column in (user, time):
        missing = frame[column].isna().to_numpy()
        if missing.any():
            raise ValueError(
                f"Column {column!r} of `frame` must hold no missing value. "
                f"Received: a missing value at row {int(missing.argmax())}."
            )
    dtype = frame[time].dtype
    if getattr(dtype, "kind", "O") not in "iufM":
        raise TypeError(
            f"Column {time!r} of `frame` must hold numbers or datetimes. "
            f"Received: a column of dtype {dtype}."
        )
