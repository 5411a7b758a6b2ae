"""Reading of the columns that an evaluation takes."""

import collections.abc

import keras
import numpy as np

from keras_recsys.data._columns import as_numpy, is_missing


def to_array(name, values):
    """Array of an array, tensor, Series, list or `{"probability": ...}`.

    Raises:
        ValueError: If it is a dict without that key.
    """
    if isinstance(values, collections.abc.Mapping):
        if "probability" not in values:
            raise ValueError(
                f"`{name}` must have the key 'probability' where it is a dict. "
                f"Received: keys {list(values)}."
            )
        values = values["probability"]
    if keras.ops.is_tensor(values):
        return keras.ops.convert_to_numpy(values)
    return as_numpy(values)


def to_numbers(name, values):
    """Float64 array of numbers of any shape.

    Raises:
        TypeError: If something is not a number.
    """
    array = to_array(name, values)
    if array.dtype == object:
        array = np.array(array.tolist())
    if array.dtype.kind in "OSUMm":
        raise TypeError(
            f"`{name}` must hold numbers, none missing. Received: dtype {array.dtype}."
        )
    return array.astype("float64")


def to_column(name, array):
    """`array` of shape `(num_rows,)` or `(num_rows, 1)`, as the former.

    Raises:
        ValueError: If it is of another shape or empty.
    """
    if not array.size or array.ndim not in (1, 2) or array.size != len(array):
        raise ValueError(
            f"`{name}` must be of shape (num_rows,) or (num_rows, 1), with at least "
            f"one row. Received: shape {array.shape}."
        )
    return array.reshape(-1)


def check_rows(name, array, good, allowed):
    """Checks that all values of a column are good.

    Raises:
        ValueError: If not; it tells how many are not, and the first.
    """
    bad = np.flatnonzero(~good)
    if len(bad):
        raise ValueError(
            f"`{name}` must hold {allowed}. Received: {len(bad)} of {len(array)} rows "
            f"with other values, the first {array.flat[bad[0]].item()!r} at row "
            f"{bad[0]}."
        )


def read_probabilities(probabilities):
    """Float64 array of probabilities, of the shape that was given."""
    array = to_numbers("probabilities", probabilities)
    flat = array.reshape(-1)
    good = (flat >= 0) & (flat <= 1)
    check_rows("probabilities", flat, good, "numbers in [0, 1], and no logits")
    return array


def read_groups(groups):
    """Integers that are equal where the groups are.

    Raises:
        TypeError: If the groups are of several kinds.
        ValueError: If one is missing.
    """
    array = to_column("groups", to_array("groups", groups))
    if array.dtype.kind in "iub":
        return array
    if array.dtype.kind == "f":
        missing = np.isnan(array)
    else:
        missing = np.array([is_missing(value) for value in array.tolist()], bool)
    if missing.any():
        raise ValueError(
            "`groups` must hold no missing value. Received: "
            f"{missing.sum()} of {len(array)} rows without a group, the first at row "
            f"{missing.argmax()}."
        )
    try:
        return np.unique(array, return_inverse=True)[1]
    except TypeError as error:
        raise TypeError(
            "`groups` must hold values that can be ordered, only integers or only "
            f"strings. Received: {error}."
        ) from error
