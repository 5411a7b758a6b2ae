"""Time series at regular steps: from arrays, frames and files, and their splits."""

import dataclasses
import math
import numbers

import numpy as np

from keras_recsys._calendar import (
    MONTHS,
    SECONDS,
    Frequency,
    add_steps,
    civil_from_days,
    infer_frequency,
    is_month_end,
)
from keras_recsys._checks import check_choice, check_int
from keras_recsys.data._columns import is_missing
from keras_recsys.data._packages import import_package
from keras_recsys.data.calendar_features import read_times

GAPS = ("error", "insert")
MISSING = ("error", "keep")
INSERT = '`TimeSeries.from_frame` with `gaps="insert"` makes missing rows of gaps.'


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TimeSeries:
    """Values of several columns at time stamps of a regular step.

    `len(series)` is the number of rows, and `series[a:b]` the series of some of them.
    The target stands last in `columns` and in `values`, wherever it was given.

    Args:
        values: Real numbers, of shape `(num_rows, num_columns)`, or `(num_rows,)` for
            a single column. Kept as float64.
        times: Time stamps, one a row, each one step after the one before: datetime64,
            datetimes, an index or Series of pandas, strings such as
            `"2016-07-01 00:00:00"`, or integers, seconds since 1970-01-01. No time
            zones. Kept as datetime64 in seconds.
        frequency: The step, as in `calendar_features`, such as `"h"`, `"15min"`,
            `"MS"`. Months, quarters and years whose time stamps are all last days of
            months are read as ends, `"ME"`; others keep the day of the month, 28 at
            most. Kept as a string of one spelling. Defaults to `None`, the one that
            fits three or more time stamps.
        columns: Distinct names of the columns. Defaults to `None`, `"0"`, `"1"`, ...
        target: Name of the column to forecast. Defaults to `None`, the last one.
        missing: `"error"`, or `"keep"` to take `NaN` as missing values. Infinite
            numbers are refused with either. Defaults to `"error"`.

    Raises:
        TypeError: If the values are no real numbers, or `times` no time stamps.
        ValueError: If shapes, names or `frequency` are wrong, a step is another than
            `frequency` (a gap, a time stamp given twice, disorder), or a value is
            missing or infinite.

    Example:
    >>> series = TimeSeries([[1.0, 7.0], [2.0, 8.0], [3.0, 9.0]],
    ...     ["2024-01-31", "2024-02-29", "2024-03-31"], columns=["load", "oil"])
    >>> series
    TimeSeries(3 rows, 'ME' from 2024-01-31T00:00:00, columns=('load', 'oil'))
    >>> series[1:].values.tolist(), series.target
    ([[2.0, 8.0], [3.0, 9.0]], 'oil')
    >>> series.future_times(2).astype("datetime64[D]").tolist()
    [datetime.date(2024, 4, 30), datetime.date(2024, 5, 31)]
    """

    values: np.ndarray
    times: np.ndarray
    frequency: str | None = None
    columns: tuple | None = None
    target: str | None = None
    missing: str = "error"

    def __post_init__(self):
        check_choice("missing", self.missing, MISSING)
        values = _read_values(self.values)
        seconds = read_times("times", self.times)
        if seconds.shape != values.shape[:1]:
            raise ValueError(
                f"`times` must hold one time stamp for each of {len(values)} rows. "
                f"Received: times of shape {seconds.shape}."
            )
        frequency = _resolve_frequency(self.frequency, seconds)
        _check_steps(seconds, frequency)
        columns = _read_names(self.columns, values.shape[1])
        target = columns[-1] if self.target is None else self.target
        if target not in columns:
            raise ValueError(
                f"`target` must be one of the columns {columns}. "
                f"Received: target={target!r}."
            )
        order = [i for i, name in enumerate(columns) if name != target]
        order.append(columns.index(target))
        if order != sorted(order):
            values = values[:, order]
            columns = tuple(columns[i] for i in order)
        _check_finite(values, columns, seconds, self.missing)
        self._set(values, seconds.astype("datetime64[s]"), str(frequency), columns)

    @classmethod
    def from_frame(
        cls,
        frame,
        *,
        time=None,
        frequency=None,
        columns=None,
        target=None,
        missing="error",
        gaps="error",
    ):
        """Makes a series of a frame of pandas.

        Args:
            frame: `pandas.DataFrame`, a row a time stamp, oldest first.
            time: Name of the column of time stamps. Defaults to `None`, the index.
            frequency: As in `TimeSeries`; needed for `gaps="insert"`.
            columns: Names of the columns to take. Defaults to `None`, all others.
            target: As in `TimeSeries`.
            missing: As in `TimeSeries`.
            gaps: `"error"`, or `"insert"` to put rows of missing values where time
                stamps are absent, which implies `missing="keep"`. Defaults to
                `"error"`.

        Returns:
            A `TimeSeries`.

        Raises:
            TypeError: If `frame` is no frame, or a column holds anything but numbers.
            ValueError: If a column is not there, with `gaps="insert"` a time stamp
                stands between two steps, or as for `TimeSeries`.
        """
        check_choice("gaps", gaps, GAPS)
        names = _check_frame(frame, time, columns)
        times = frame.index if time is None else frame[time]
        seconds = read_times("time" if time in (None, "") else time, times)
        values = np.empty((len(frame), len(names)))
        for i, name in enumerate(names):
            values[:, i] = _read_column(name, frame[name])
        if gaps == "insert":
            if frequency is None:
                raise ValueError(
                    '`frequency` must be given where `gaps` is "insert". '
                    "Received: frequency=None."
                )
            missing = "keep"
            frequency = _resolve_frequency(frequency, seconds)
            values, seconds = _insert_rows(values, seconds, frequency)
        return cls(values, seconds, frequency, names, target, missing)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, rows):
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise TypeError(
                "Rows of a `TimeSeries` must be a slice of step 1, such as "
                f"`series[:100]`. Received: {rows!r}."
            )
        part = object.__new__(type(self))
        object.__setattr__(part, "missing", self.missing)
        part._set(self.values[rows], self.times[rows], self.frequency, self.columns)
        if not len(part):
            raise ValueError(
                f"Rows of a `TimeSeries` of {len(self)} rows must be at least one. "
                f"Received: {rows!r}."
            )
        return part

    def __repr__(self):
        return (
            f"TimeSeries({len(self)} rows, {self.frequency!r} from {self.times[0]}, "
            f"columns={self.columns})"
        )

    @property
    def num_missing(self):
        """Number of rows with a missing value."""
        return int(np.isnan(self.values).any(axis=1).sum())

    def future_times(self, steps):
        """The time stamps that follow the last row.

        Args:
            steps: Positive int, how many.

        Returns:
            Datetime64 array in seconds, of shape `(steps,)`.

        Raises:
            TypeError: If `steps` is no integer.
            ValueError: If it is below 1.
        """
        later = np.arange(1, check_int("steps", steps) + 1)
        last = self.times[-1:].astype("int64")
        seconds = add_steps(last, Frequency.parse(self.frequency), later)
        return seconds.astype("datetime64[s]")

    def _set(self, values, times, frequency, columns):
        for name, value in (
            ("values", values),
            ("times", times),
            ("frequency", frequency),
            ("columns", columns),
            ("target", columns[-1]),
        ):
            object.__setattr__(self, name, value)


def read_time_series(
    path,
    *,
    time=None,
    frequency=None,
    columns=None,
    target=None,
    delimiter=",",
    missing="error",
    gaps="error",
):
    """Reads a series from a text file with a line of column names, a row a time stamp.

    Args:
        path: Path of the file; one that ends in `.gz` is decompressed on the way.
        time: Name of the column of time stamps, such as `2016-07-01 00:00:00`.
            Defaults to `None`, the first one, which may have an empty name, as
            `DataFrame.to_csv` writes an index without one.
        frequency: As in `TimeSeries`.
        columns: Names of the columns to take. Defaults to `None`, all others.
        target: As in `TimeSeries`.
        delimiter: Character between cells. Defaults to `","`.
        missing: As in `TimeSeries`. Empty cells and texts such as `NA` are missing
            values.
        gaps: As in `TimeSeries.from_frame`.

    Returns:
        A `TimeSeries`.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If pandas is not installed.
        ValueError: If a line has more cells than there are columns, a cell is no number
            (the message has its row, counted from 0, and its column), or as for
            `TimeSeries.from_frame`.
    """
    pandas = import_package("pandas", "read_time_series")
    options = {"sep": delimiter, "encoding": "utf-8-sig", "low_memory": False}
    try:
        # Read apart, since pandas renames those that are empty or there twice.
        head = {"header": None, "nrows": 1, "dtype": str, "keep_default_na": False}
        names = pandas.read_csv(path, **head, **options).iloc[0].tolist()
        if len(set(names)) != len(names):
            raise ValueError(f"it must have distinct column names. Received: {names}.")
        time = names[0] if time is None else time
        options |= {"header": 0, "names": names}
        frame = pandas.read_csv(path, dtype={time: str}, **options)
    except ValueError as error:  # pandas' own errors are ValueErrors
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(frame.index, pandas.RangeIndex):
        raise ValueError(
            f"{path} must have as many cells in a line as column names, {len(names)}; "
            "`delimiter` says what is between them. "
            f"Received: {len(names) + frame.index.nlevels} cells at row 0."
        )
    _check_cells(pandas, path, frame, _check_frame(frame, time, columns))
    return TimeSeries.from_frame(
        frame,
        time=time,
        frequency=frequency,
        columns=columns,
        target=target,
        missing=missing,
        gaps=gaps,
    )


def split_time_series(series, *, seq_len, borders=None, train=0.7, test=0.2):
    """Splits a series by time into train, validation and test.

    Validation and test begin `seq_len` rows early, so that the first row of their
    period is the first to be forecast. Without `borders` train has
    `floor(train * num_rows)` rows, test `floor(test * num_rows)`, at the end of the
    series, and validation those between.

    Args:
        series: `TimeSeries`.
        seq_len: Positive int, the rows that a forecast reads.
        borders: Three ints, the rows at which train, validation and test end, such as
            `ett_borders("ETTh1")`. Later rows are not used. Defaults to `None`.
        train: Float in `(0, 1)`, the share of train. Defaults to `0.7`.
        test: Float in `(0, 1)`, the share of test. Defaults to `0.2`.

    Returns:
        Tuple of three `TimeSeries`: train, validation and test.

    Raises:
        TypeError: If `series` is no `TimeSeries`, or a count no integer.
        ValueError: If `borders` do not rise or pass the end of the series, the shares
            leave no row for validation, or train has fewer than `seq_len + 1` rows.

    Example:
    >>> series = TimeSeries(np.arange(10.0), np.arange(10) * 3600, "h")
    >>> [len(part) for part in split_time_series(series, seq_len=2)]
    [7, 3, 4]
    """
    if not isinstance(series, TimeSeries):
        raise TypeError(
            "`series` must be a `TimeSeries`. "
            f"Received: series of type {type(series).__name__}."
        )
    seq_len = check_int("seq_len", seq_len)
    if borders is None:
        for name, share in (("train", train), ("test", test)):
            if (
                isinstance(share, bool)
                or not isinstance(share, numbers.Real)
                or not 0 < share < 1
            ):
                raise ValueError(
                    f"`{name}` must be a number in (0, 1). Received: {name}={share!r}."
                )
        # Rounded first, since 0.7 * 90 is a little below 63.
        num_train = math.floor(round(float(train) * len(series), 9))
        num_test = math.floor(round(float(test) * len(series), 9))
        ends = (num_train, len(series) - num_test, len(series))
        what = "`train` and `test`"
        given = f"train={train!r}, test={test!r}"
    else:
        if not isinstance(borders, list | tuple) or len(borders) != 3:
            raise ValueError(
                "`borders` must be three integers, the ends of train, validation and "
                f"test. Received: borders={borders!r}."
            )
        ends = tuple(check_int("borders", end) for end in borders)
        what = "`borders`"
        given = f"borders={borders!r}"
    if not 0 < ends[0] < ends[1] < ends[2] <= len(series):
        raise ValueError(
            f"{what} must give train, validation and test at least one row each, of "
            f"{len(series)} rows. Received: {given}."
        )
    if ends[0] <= seq_len:
        raise ValueError(
            f"`seq_len` must be below the number of rows of train, {ends[0]}. "
            f"Received: seq_len={seq_len!r}."
        )
    first, second, third = ends
    return (
        series[:first],
        series[first - seq_len : second],
        series[second - seq_len : third],
    )


def list_series(series):
    """Returns a list of one or more series, checked to go together.

    Raises:
        TypeError: If one is no `TimeSeries`.
        ValueError: If there is none, or they differ in columns or frequency.
    """
    parts = list(series) if isinstance(series, list | tuple) else [series]
    if not parts:
        raise ValueError(
            f"`series` must hold at least one series. Received: series={series!r}."
        )
    for part in parts:
        if not isinstance(part, TimeSeries):
            raise TypeError(
                "`series` must be a `TimeSeries` or a list of them. "
                f"Received: {type(part).__name__}."
            )
    first = parts[0]
    for i, part in enumerate(parts):
        if (part.columns, part.frequency) != (first.columns, first.frequency):
            raise ValueError(
                f"`series` must have the same columns and frequency, {first.columns} "
                f"and {first.frequency!r}. Received: {part.columns} and "
                f"{part.frequency!r} in series {i}."
            )
    return parts


def _read_values(values):
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise TypeError(
            f"`values` must hold real numbers. Received: dtype {array.dtype}."
        )
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or not array.size:
        raise ValueError(
            "`values` must be of shape (num_rows, num_columns), with at least one of "
            f"each. Received: shape {array.shape}."
        )
    return array.astype("float64")  # a copy: later changes pass no checks


def _read_names(columns, num_columns):
    if columns is None:
        return tuple(str(i) for i in range(num_columns))
    names = [columns] if isinstance(columns, str) else list(columns)
    if (
        len(names) != num_columns
        or len(set(names)) != len(names)
        or not all(isinstance(name, str) for name in names)
    ):
        raise ValueError(
            f"`columns` must be {num_columns} distinct strings. "
            f"Received: columns={columns!r}."
        )
    return tuple(names)


def _resolve_frequency(frequency, seconds):
    """The `Frequency` of time stamps, which may be given as `None`."""
    if frequency is None:
        _check_order(seconds)
        frequency = infer_frequency(seconds)
        if frequency is None:
            raise ValueError(
                "`frequency` must be given where `times` are not three or more of a "
                'regular step; `gaps="insert"` then makes rows where some are '
                f"missing. Received: frequency=None, {len(seconds)} time stamps."
            )
    else:
        frequency = Frequency.parse(frequency)
        if frequency.unit in MONTHS and len(seconds) and is_month_end(seconds).all():
            frequency = dataclasses.replace(frequency, end=True)
    if frequency.unit in MONTHS and not frequency.end:
        _check_days(seconds, frequency.unit)
    return frequency


def _check_days(seconds, unit):
    """Raises for a day that not each of the months has: the next would be unknown."""
    _, month, day = civil_from_days(seconds // 86400)
    bad = (day > 28) & ((month == 2) | (unit != "y"))
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            "`times` must be of a day that each month has, 28 at most, or of ends of "
            f"months. Received: {_text(seconds[row])} at row {row}."
        )


def _check_order(seconds):
    bad = seconds[1:] <= seconds[:-1]
    if bad.any():
        row = int(bad.argmax()) + 1
        raise ValueError(
            "`times` must rise from row to row. Received: "
            f"{_text(seconds[row])} at row {row} after {_text(seconds[row - 1])}."
        )


def _check_steps(seconds, frequency):
    start = add_steps(seconds[:1], frequency, 0)
    if start[0] != seconds[0]:
        raise ValueError(
            f"`times` must begin at a step of {str(frequency)!r}. "
            f"Received: {_text(seconds[0])} at row 0."
        )
    wanted = add_steps(seconds[:-1], frequency, 1)
    bad = seconds[1:] != wanted
    if bad.any():
        row = int(bad.argmax()) + 1
        step = seconds[row] - seconds[row - 1]
        kind = "is another step"
        if step == 0:
            kind = "stands there twice"
        elif step < 0:
            kind = "is out of order"
        elif seconds[row] > wanted[row - 1]:
            kind = f"leaves a gap. {INSERT[:-1]}"
        raise ValueError(
            f"`times` must rise by {str(frequency)!r} from row to row. Received: "
            f"{_text(seconds[row])} at row {row} after {_text(seconds[row - 1])}, "
            f"which {kind}."
        )


def _text(seconds):
    return str(np.datetime64(int(seconds), "s"))


def _check_finite(values, columns, seconds, missing):
    bad = np.isinf(values) if missing == "keep" else ~np.isfinite(values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        cure = "" if np.isinf(values[row, column]) else ' `missing="keep"` takes them.'
        raise ValueError(
            "`values` must be finite numbers. "
            f"Received: {values[row, column]} at row {row} ({_text(seconds[row])}) of "
            f"column {columns[column]!r}.{cure}"
        )


def _check_frame(frame, time, columns):
    """Returns the names of the columns to take."""
    if not hasattr(frame, "iloc") or not hasattr(frame, "columns"):
        raise TypeError(
            "`frame` must be a pandas.DataFrame. "
            f"Received: frame of type {type(frame).__name__}."
        )
    given = list(frame.columns)
    if not len(frame):
        raise ValueError("`frame` must hold at least one row. Received: 0 rows.")
    if len(set(given)) != len(given):
        raise ValueError(f"`frame` must have distinct column names. Received: {given}.")
    if time is not None and time not in given:
        raise ValueError(
            f"`time` must name a column of {given}. Received: time={time!r}."
        )
    if time is None and frame.index.dtype.kind in "iu":
        raise ValueError(
            f"`time` must name a column of {given} where the index numbers the rows. "
            "Received: time=None."
        )
    names = [name for name in given if name != time]
    if columns is not None:
        names = [columns] if isinstance(columns, str) else list(columns)
    unknown = [name for name in names if name not in given or name == time]
    if unknown or not names:
        raise ValueError(
            f"`columns` must name columns of {given} other than `time`. "
            f"Received: columns={columns!r}."
        )
    return names


def _read_column(name, column):
    """One column as float64, its missing values as `NaN`."""
    if column.dtype.kind in "iuf":
        return column.to_numpy("float64", na_value=np.nan)
    if column.dtype.kind != "O":
        raise TypeError(
            f"Column {name!r} must hold numbers, or be left out of `columns`. "
            f"Received: dtype {column.dtype}."
        )
    read = np.full(len(column), np.nan)
    for row, value in enumerate(column.tolist()):
        if is_missing(value):
            continue
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(
                f"Column {name!r} must hold numbers, or be left out of `columns`. "
                f"Received: {value!r} at row {row}."
            )
        read[row] = value
    return read


def _check_cells(pandas, path, frame, names):
    """Raises for the first text that is no number, `True` and `False` among them."""
    for name in names:
        column = frame[name]
        if column.dtype.kind in "Ob":
            bad = pandas.to_numeric(column, errors="coerce").isna() & column.notna()
            bad |= column.map(lambda cell: isinstance(cell, bool))
            if bad.any():
                row = int(bad.to_numpy().argmax())
                raise ValueError(
                    f"{path} must hold numbers with a point in column {name!r}, or "
                    "have it left out of `columns`; several series in one file are to "
                    f"be split by it. Received: {str(column[row])!r} at row {row}."
                )


def _insert_rows(values, seconds, frequency):
    """Rows at each step, `NaN` where there was none."""
    days = 28 * MONTHS.get(frequency.unit, 0) or 1  # in a month or business day
    shortest = frequency.count * SECONDS.get(frequency.unit, 86400 * days)
    limit = (seconds.max() - seconds[0]) // shortest + 2
    grid = add_steps(seconds[:1], frequency, np.arange(limit))
    places = np.searchsorted(grid, seconds)
    bad = grid[np.minimum(places, len(grid) - 1)] != seconds
    bad[1:] |= seconds[1:] <= seconds[:-1]
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"`times` must rise by whole steps of {str(frequency)!r}. "
            f"Received: {_text(seconds[row])} at row {row}"
            + (f" after {_text(seconds[row - 1])}." if row else ".")
        )
    inserted = np.full((places[-1] + 1, values.shape[1]), np.nan)
    inserted[places] = values
    return inserted, grid[: len(inserted)]
