"""Standardisation of the columns of a time series."""

import dataclasses

import numpy as np

from keras_recsys.data.time_series import TimeSeries, list_series


@dataclasses.dataclass(frozen=True, eq=False)
class SeriesScaler:
    """Subtracts the mean of each column and divides by its standard deviation.

        scaled = (x - mean) / std

    Fit it on the rows of the training part alone and keep it: with the numbers of later
    rows a test sees the future, and a trained model would read other inputs.

    Args:
        mean: Finite numbers, one a column. Kept as float64.
        std: Positive finite numbers, one a column. Kept as float64.

    Raises:
        ValueError: If the two are not vectors of one length, or a number is out of its
            range.

    Example:
    >>> scaler = SeriesScaler.fit(np.array([[1.0, 5.0], [3.0, 5.0]]))
    >>> scaler.mean.tolist(), scaler.std.tolist()
    ([2.0, 5.0], [1.0, 1.0])
    >>> SeriesScaler([1, 2, 10], [1, 1, 5]).inverse_transform([0.2, -1]).tolist()
    [11.0, 5.0]
    """

    mean: np.ndarray
    std: np.ndarray

    def __post_init__(self):
        for name in ("mean", "std"):
            value = getattr(self, name)
            numbers = _read_numbers(name, value)
            if numbers.ndim != 1 or not len(numbers):
                raise ValueError(
                    f"`{name}` must hold one number for each column. "
                    f"Received: {name}={value!r}."
                )
            if not np.isfinite(numbers).all() or (name == "std" and numbers.min() <= 0):
                kind = "finite" if name == "mean" else "positive finite"
                raise ValueError(
                    f"`{name}` must hold {kind} numbers. Received: {name}={value!r}."
                )
            object.__setattr__(self, name, numbers.astype("float64"))
        if len(self.mean) != len(self.std):
            raise ValueError(
                "`std` must hold as many numbers as `mean`, "
                f"{len(self.mean)}. Received: {len(self.std)} numbers."
            )

    @classmethod
    def fit(cls, series):
        """Makes the scaler of the rows of a series.

        The standard deviation is that of the population (the sum of squares is divided
        by the number of rows). Missing values, `NaN`, are left out of their column.

        Args:
            series: `TimeSeries` or list of them, the training parts; or an array of
                shape `(num_rows, num_columns)`.

        Returns:
            A `SeriesScaler`. A column that has one value throughout gets the standard
            deviation 1, so that it is scaled to 0.

        Raises:
            TypeError: If the values are no numbers.
            ValueError: If the array is not of rank 2 or has no column, a value is
                infinite, a column has no value but missing ones, or series differ in
                columns or frequency.
        """
        parts = series if isinstance(series, list | tuple) else [series]
        if any(isinstance(part, TimeSeries) for part in parts):
            series = np.concatenate([part.values for part in list_series(series)])
        values = _read_numbers("series", series).astype("float64", copy=False)
        if values.ndim != 2 or not values.shape[1]:
            raise ValueError(
                "`series` must be of shape (num_rows, num_columns). "
                f"Received: shape {values.shape}."
            )
        if np.isinf(values).any():
            row, column = np.argwhere(np.isinf(values))[0]
            raise ValueError(
                "`series` must hold finite numbers or NaN. "
                f"Received: {values[row, column]} at row {row} of column {column}."
            )
        is_empty = np.isnan(values).all(axis=0)
        if is_empty.any():
            raise ValueError(
                "`series` must hold at least one value in each column. "
                f"Received: none in column {int(is_empty.argmax())}."
            )
        is_constant = np.nanmin(values, axis=0) == np.nanmax(values, axis=0)
        std = np.nanstd(values, axis=0)
        return cls(np.nanmean(values, axis=0), np.where(is_constant, 1.0, std))

    def transform(self, x):
        """Scales values.

        Args:
            x: Numbers, of shape `(..., num_columns)`; with fewer columns than the
                scaler they are the last ones, since the target stands last. Of rank 1,
                `(num_steps,)`, they are steps of the target alone.

        Returns:
            Array of the shape of `x`, in its dtype if it is a float one, else float64.

        Raises:
            TypeError: If `x` holds no numbers.
            ValueError: If `x` is a single number or has more columns than the scaler.
        """
        x, mean, std = self._broadcast("x", x)
        return ((x - mean) / std).astype(x.dtype)

    def inverse_transform(self, y):
        """Maps scaled values back, `y * std + mean`.

        Args:
            y: Numbers, of shapes as in `transform`.

        Returns:
            Array of the shape of `y`, in its dtype if it is a float one, else float64.

        Raises:
            TypeError: If `y` holds no numbers.
            ValueError: If `y` is a single number or has more columns than the scaler.
        """
        y, mean, std = self._broadcast("y", y)
        return (y * std + mean).astype(y.dtype)

    def to_dict(self):
        """Dict of lists of floats, which JSON holds exactly."""
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}

    @classmethod
    def from_dict(cls, config):
        """Makes a scaler of what `to_dict` gave.

        Args:
            config: Dict with `"mean"` and `"std"`.

        Returns:
            A `SeriesScaler`.

        Raises:
            ValueError: If `config` is no such dict, or a number is out of its range.
        """
        if not isinstance(config, dict) or set(config) != {"mean", "std"}:
            raise ValueError(
                "`config` must be a dict with 'mean' and 'std'. "
                f"Received: config={config!r}."
            )
        return cls(**config)

    def _broadcast(self, name, values):
        """The values as floats, and the mean and std of their columns."""
        numbers = _read_numbers(name, values)
        if numbers.dtype.kind != "f":
            numbers = numbers.astype("float64")
        num_columns = numbers.shape[-1] if numbers.ndim > 1 else 1
        if not numbers.ndim or not 0 < num_columns <= len(self.mean):
            raise ValueError(
                f"`{name}` must be of shape (..., num_columns) with at most "
                f"{len(self.mean)} columns, or (num_steps,). "
                f"Received: shape {numbers.shape}."
            )
        return numbers, self.mean[-num_columns:], self.std[-num_columns:]


def check_scaler(scaler, num_columns, what):
    """Checks a scaler that is given.

    Args:
        scaler: What was given, other than `None`.
        num_columns: Int, how many columns it is used for.
        what: String, what these are.

    Raises:
        TypeError: If it is no `SeriesScaler`.
        ValueError: If it has too few columns.
    """
    if not isinstance(scaler, SeriesScaler):
        raise TypeError(
            f"`scaler` must be None or a `SeriesScaler`. Received: scaler={scaler!r}."
        )
    if len(scaler.mean) < num_columns:
        raise ValueError(
            f"`scaler` must have a mean for each of {num_columns} {what}. "
            f"Received: {len(scaler.mean)}."
        )


def _read_numbers(name, values):
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" and array.size:
        raise TypeError(
            f"`{name}` must hold real numbers. Received: dtype {array.dtype}."
        )
    return array
