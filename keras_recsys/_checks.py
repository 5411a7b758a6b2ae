"""Checks of arguments that several parts share, and the choices they allow."""

import math
import numbers

ID_DTYPES = ("int32", "int64")
NORMALIZATIONS = ("zscore", "log")
OUT_OF_RANGE = ("error", "nan", "zero", "mod", "oov")
POOLINGS = ("mean", "sum", "sqrtn")


def check_choice(name, value, allowed):
    """Returns `value` if it is one of the strings in `allowed`.

    Raises:
        ValueError: If it is not.
    """
    if not isinstance(value, str) or value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(
            f"`{name}` must be one of {choices}. Received: {name}={value!r}."
        )
    return value


def check_int(name, value, minimum=1):
    """Returns `value` as a Python int if it is an integer of at least `minimum`.

    Raises:
        TypeError: If it is no integer.
        ValueError: If it is below `minimum`.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"`{name}` must be an integer, at least {minimum}. "
            f"Received: {name}={value!r}."
        )
    if value < minimum:
        raise ValueError(
            f"`{name}` must be at least {minimum}. Received: {name}={value!r}."
        )
    return int(value)


def check_widths(name, value):
    """Returns `value` as a tuple if it is a list or tuple of positive integers.

    Raises:
        TypeError: If one of them is no integer.
        ValueError: If one is below 1, there is none, or `value` is no list or tuple.
    """
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(
            f"`{name}` must be a list or tuple of at least one width. "
            f"Received: {name}={value!r}."
        )
    return tuple(check_int(name, width) for width in value)


def check_rate(name, value):
    """Returns `value` as a float if it lies in `[0, 1)`.

    Raises:
        ValueError: If it does not.
    """
    return _check_number(name, value, lambda x: 0 <= x < 1, "in [0, 1)")


def check_positive(name, value):
    """Returns `value` as a float if it is finite and above 0.

    Raises:
        ValueError: If it is not.
    """
    return _check_number(name, value, lambda x: 0 < x < math.inf, "above 0")


def check_non_negative(name, value):
    """Returns `value` as a float if it is finite and not below 0.

    Raises:
        ValueError: If it is not.
    """
    return _check_number(name, value, lambda x: 0 <= x < math.inf, "of at least 0")


def _check_number(name, value, allowed, words):
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Real)
        or not allowed(value)
    ):
        raise ValueError(
            f"`{name}` must be a number {words}. Received: {name}={value!r}."
        )
    return float(value)


def shapes_of(input_shape):
    """List of the input shapes of a layer that takes one tensor or a list of them.

    A saved model gives back one shape as a list of numbers.
    """
    one = not input_shape or not isinstance(input_shape[0], (list, tuple))
    return [tuple(shape) for shape in ([input_shape] if one else input_shape)]
