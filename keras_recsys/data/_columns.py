"""Reading of columns that dataset and vocabulary share."""

import numpy as np


def as_numpy(column):
    """Returns an array without loss.

    pandas turns a nullable column with missing values into floats, which merges
    integers above 2**53: such a column becomes an object array here.
    """
    if isinstance(column, np.ma.MaskedArray):
        values = np.ma.getdata(column).astype(object)
        values[np.ma.getmaskarray(column)] = None
        return values
    dtype = getattr(column, "dtype", None)
    is_extension = hasattr(column, "isna") and not isinstance(dtype, np.dtype)
    if is_extension and dtype is not None and column.isna().any():
        return column.to_numpy(dtype=object)
    return np.asarray(column)


def is_missing(value):
    """Whether a value is `None`, `NaN`, `pandas.NA` or `NaT`."""
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float | np.floating) and bool(np.isnan(value)))
    )
