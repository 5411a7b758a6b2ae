"""Reading of columns that datasets and vocabularies share."""

import numbers

import numpy as np

INT64 = np.iinfo("int64")


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


def numpy_dtype(dtype):
    """Returns the dtype of arrays of raw values, `object` for those of `str`."""
    return object if dtype == "string" else "int64"


def read_column(what, column):
    """Reads raw values without loss.

    Returns:
        The values, an object array of `str` or an int64 array; a boolean array, `True`
        where a value is missing and stands as `""` or 0; and `"string"`, `"int64"` or,
        where no value is present, `None`.
    """
    if hasattr(column, "__array__"):
        array = as_numpy(column)
    else:  # not by asarray, which turns [1, "a"] into strings
        is_sequence = hasattr(column, "__iter__") and not isinstance(
            column, str | bytes
        )
        array = np.array(list(column) if is_sequence else column, object)
    if array.ndim != 1:
        raise ValueError(
            f"{what} must be a one-dimensional array, Series or sequence. "
            f"Received: {type(column).__name__} of shape {array.shape}."
        )
    kind = array.dtype.kind
    if kind == "f":
        return _read_floats(what, array)
    if kind not in "iu":
        return _read_objects(what, array)
    if kind == "u":
        _raise_first(what, array, array > INT64.max, "integers of 64 bits")
    return array.astype("int64"), np.zeros(len(array), bool), _kind_of(array, "int64")


def _kind_of(present, kind):
    return kind if len(present) else None


def _raise_first(what, array, bad, allowed):
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"{what} must hold {allowed}. Received: {array[row].item()!r} at row {row}."
        )


def _exact_limit(dtype):
    """Returns the bound below which a float dtype holds every integer."""
    return 2.0 ** (min(np.finfo(dtype).nmant, 52) + 1)


def _read_floats(what, array):
    missing = np.isnan(array)
    whole = np.where(missing, 0, array).astype("float64")
    limit = _exact_limit(array.dtype)
    bad = (whole != np.floor(whole)) | (np.abs(whole) >= limit)
    allowed = (
        "strings or integers; floats only where they are missing values or whole "
        f"numbers below {limit:.0f}, exact in {array.dtype}"
    )
    _raise_first(what, array, bad, allowed)
    return whole.astype("int64"), missing, _kind_of(array[~missing], "int64")


def _read_objects(what, array):
    missing = np.zeros(len(array), bool)
    values = []
    kind = None
    for row, value in enumerate(array.tolist()):
        value_kind, value = _read_value(what, value, row)
        if value_kind is None:
            missing[row] = True
        elif kind is None:
            kind = value_kind
        elif value_kind != kind:
            raise TypeError(
                f"{what} must hold only strings or only integers. "
                f"Received: {value!r} at row {row} after values of dtype {kind!r}."
            )
        values.append(value)
    filler = 0 if kind == "int64" else ""
    read = np.empty(len(values), numpy_dtype(kind or "string"))
    for row in np.flatnonzero(missing):
        values[row] = filler
    read[:] = values
    return read, missing, kind


def _read_value(what, value, row):
    """Returns the kind of one value, `None` for a missing one, and the value."""
    if isinstance(value, str):
        return "string", str(value)
    if is_missing(value):
        return None, value
    if isinstance(value, float | np.floating):
        limit = _exact_limit(np.asarray(value).dtype)
        whole = float(value).is_integer() and abs(value) < limit
    else:
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole:
        hint = " Decode bytes to strings first." if isinstance(value, bytes) else ""
        raise TypeError(
            f"{what} must hold strings or integers. "
            f"Received: {value!r} at row {row}.{hint}"
        )
    if not INT64.min <= value <= INT64.max:
        raise ValueError(
            f"{what} must hold integers of 64 bits. Received: {value!r} at row {row}."
        )
    return "int64", int(value)
