"""`NumericNormalization`, a column of numbers as the model sees it."""

import math

import keras
from keras import ops

from keras_recsys._checks import NORMALIZATIONS, check_choice
from keras_recsys._dtypes import wide_dtype


@keras.saving.register_keras_serializable(package="keras_recsys")
class NumericNormalization(keras.layers.Layer):
    """Normalizes one number a row with fixed statistics.

    With `t(x) = log(1 + max(x, 0))` for `"log"` and `t(x) = x` otherwise,

        output = (t(x) - mean) / std

    Negative numbers, such as the -1 and -2 that stand for "unknown" in click logs, are
    read as 0 by `"log"`. A NaN stays NaN.

    Args:
        normalization: `None`, `"zscore"` or `"log"`. Defaults to `None`, which applies
            `mean` and `std` all the same.
        mean: Float, mean of `t(x)`. Defaults to `0.0`.
        std: Positive float, deviation of `t(x)`. Defaults to `1.0`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor, `(batch_size,)` or `(batch_size, 1)`, in the units of the
            column; the sums run in float32 also under mixed precision.

    Returns:
        Tensor of shape `(batch_size, 1)`, in the compute dtype.

    Raises:
        ValueError: If `normalization` is unknown, `mean` is not finite, `std` is not
            positive and finite, or `inputs` is not one number a row.

    Example:
    >>> NumericNormalization("log")(np.array([-2.0, 0.0])).numpy().tolist()
    [[0.0], [0.0]]
    """

    def __init__(self, normalization=None, *, mean=0.0, std=1.0, **kwargs):
        super().__init__(**kwargs)
        if normalization is not None:
            check_choice("normalization", normalization, NORMALIZATIONS)
        if not math.isfinite(mean):
            raise ValueError(f"`mean` must be finite. Received: mean={mean!r}.")
        if not (std > 0 and math.isfinite(std)):
            raise ValueError(
                f"`std` must be positive and finite. Received: std={std!r}."
            )
        self.normalization = normalization
        self.mean = float(mean)
        self.std = float(std)
        self.autocast = False  # a price in cents overflows float16

    def build(self, input_shape):
        if len(input_shape) not in (1, 2) or tuple(input_shape[1:]) not in ((), (1,)):
            raise ValueError(
                "`NumericNormalization` takes inputs of shape (batch_size,) or "
                f"(batch_size, 1). Received: input_shape={tuple(input_shape)}."
            )

    def call(self, inputs):
        dtype = wide_dtype(self.compute_dtype)
        x = ops.reshape(ops.cast(inputs, dtype), (-1, 1))
        if self.normalization == "log":
            x = ops.log1p(ops.maximum(x, 0.0))
        return ops.cast((x - self.mean) / self.std, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], 1)

    def get_config(self):
        return {
            **super().get_config(),
            "normalization": self.normalization,
            "mean": self.mean,
            "std": self.std,
        }
