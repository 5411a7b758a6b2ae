"""`NumericNormalization`, columns of numbers as the model sees them."""

import math

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import NORMALIZATIONS, check_choice, shapes_of
from keras_recsys._dtypes import wide_dtype


@keras.saving.register_keras_serializable(package="keras_recsys")
class NumericNormalization(keras.layers.Layer):
    """Normalizes numbers with fixed statistics, one or several a row.

    With `t(x) = log(1 + max(x, 0))` for `"log"` and `t(x) = x` otherwise,

        output = (t(x) - mean) / std

    Negative numbers, such as the -1 and -2 that stand for "unknown" in click logs, are
    read as 0 by `"log"`. A NaN stays NaN.

    Args:
        normalization: `None`, `"zscore"` or `"log"`; or a sequence of them, one for
            each number of a row. Defaults to `None`, which applies `mean` and `std` all
            the same.
        mean: Float, mean of `t(x)`, or a sequence. Defaults to `0.0`.
        std: Positive float, deviation of `t(x)`, or a sequence. Defaults to `1.0`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor, `(batch_size,)` or `(batch_size, num_numbers)`; or a list of one
            tensor a number, `(batch_size,)` or `(batch_size, 1)`; in the units of the
            column. The sums run in float32 also under mixed precision.

    Returns:
        Tensor of shape `(batch_size, num_numbers)`, in the compute dtype.

    Raises:
        ValueError: If `normalization` is unknown, `mean` is not finite, `std` is not
            positive and finite, they are of different lengths, or `inputs` has another
            number of numbers a row.

    Example:
    >>> NumericNormalization("log")(np.array([-2.0, 0.0])).numpy().tolist()
    [[0.0], [0.0]]
    >>> layer = NumericNormalization(["zscore", None], mean=[1.0, 0.0], std=[2.0, 1.0])
    >>> layer(np.array([[5.0, 7.0]])).numpy().tolist()
    [[2.0, 7.0]]
    """

    def __init__(self, normalization=None, *, mean=0.0, std=1.0, **kwargs):
        super().__init__(**kwargs)
        given = {"normalization": normalization, "mean": mean, "std": std}
        lengths = {
            key: len(value)
            for key, value in given.items()
            if isinstance(value, (list, tuple, np.ndarray))
        }
        if len(set(lengths.values())) > 1 or 0 in lengths.values():
            raise ValueError(
                "`normalization`, `mean` and `std` must be of one length, at least 1, "
                f"where they are sequences. Received: lengths {lengths}."
            )
        for value in _listed(normalization):
            if value is not None:
                check_choice("normalization", value, NORMALIZATIONS)
        for value in _listed(mean):
            if not math.isfinite(value):
                raise ValueError(f"`mean` must be finite. Received: mean={value!r}.")
        for value in _listed(std):
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(
                    f"`std` must be positive and finite. Received: std={value!r}."
                )
        self.normalization = _plain(normalization, lambda value: value)
        self.mean = _plain(mean, float)
        self.std = _plain(std, float)
        self.num_numbers = next(iter(lengths.values()), None)
        self.autocast = False  # a price in cents overflows float16

    def build(self, input_shape):
        self._built_width = self._width(input_shape)

    def call(self, inputs):
        dtype = wide_dtype(self.compute_dtype)
        if isinstance(inputs, (list, tuple)):
            columns = [ops.reshape(ops.cast(x, dtype), (-1,)) for x in inputs]
            x = ops.stack(columns, axis=1)
        else:
            x = ops.cast(inputs, dtype)
            if len(x.shape) == 1:
                x = ops.expand_dims(x, -1)
        if x.shape[1] != self._built_width:  # else it would be repeated
            raise ValueError(
                f"`inputs` of {self.name!r} must be {self._built_width} numbers a row. "
                f"Received: shape {tuple(x.shape)}."
            )
        logs = np.array([n == "log" for n in _listed(self.normalization)])
        if logs.any():
            logged = ops.log1p(ops.maximum(x, 0.0))
            if logs.all():
                x = logged
            else:
                x = ops.where(ops.convert_to_tensor(logs, dtype="bool"), logged, x)
        mean, std = (
            ops.convert_to_tensor(n, dtype=dtype) for n in (self.mean, self.std)
        )
        return ops.cast((x - mean) / std, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return (shapes_of(input_shape)[0][0], self._width(input_shape))

    def get_config(self):
        return {
            **super().get_config(),
            "normalization": self.normalization,
            "mean": self.mean,
            "std": self.std,
        }

    def _width(self, input_shape):
        """Returns the number of numbers a row."""
        shapes = shapes_of(input_shape)
        if input_shape and isinstance(input_shape[0], (list, tuple)):
            columns = all(tuple(shape[1:]) in ((), (1,)) for shape in shapes)
            width = len(shapes) if columns else None
        elif len(shapes[0]) in (1, 2):
            width = (*shapes[0], 1)[1]
        else:
            width = None
        if width is None or self.num_numbers not in (None, width):
            count = self.num_numbers or "num_numbers"
            raise ValueError(
                f"`NumericNormalization` takes inputs of shape (batch_size, {count}), "
                "or a list of tensors of shape (batch_size,). "
                f"Received: input_shape={input_shape}."
            )
        return width


def _listed(value):
    return value if isinstance(value, (list, tuple, np.ndarray)) else [value]


def _plain(value, convert):
    """A number or word, or a list of such, as JSON has them."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return [convert(one) for one in value]
    return convert(value)
