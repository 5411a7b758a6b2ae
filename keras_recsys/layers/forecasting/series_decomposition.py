"""`SeriesDecomposition`, a moving average and what is left."""

import keras
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys._dtypes import wide_dtype
from keras_recsys.layers.forecasting._steps import check_series, refuse_mask


@keras.saving.register_keras_serializable(package="keras_recsys")
class SeriesDecomposition(keras.layers.Layer):
    """Splits each channel of a time series into a trend and what is left.

        trend_t = mean of x_{t - (window - 1) // 2} .. x_{t + window // 2}
        seasonal = x - trend

    where the first step is repeated before the beginning and the last one after the
    end.

    Args:
        window: Positive int, steps in a mean. Defaults to `25`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, seq_len, num_channels)`, of one step at
            least; it may be shorter than `window`. A Keras mask is refused: a missing
            step would enter the mean of its neighbours.

    Returns:
        Tuple of `seasonal` and `trend`, tensors of the shape of `inputs`, in the
        compute dtype. The means run in float32 or wider.

    Raises:
        TypeError: If `window` is not an integer.
        ValueError: If `window` is not positive, `inputs` is not of rank 3 with a static
            last axis, or it has a mask.

    Example:
    >>> x = np.array([[[0.0], [3.0], [6.0], [0.0]]], "float32")
    >>> seasonal, trend = SeriesDecomposition(3)(x)
    >>> trend.numpy().ravel().tolist(), seasonal.numpy().ravel().tolist()
    ([1.0, 3.0, 3.0, 2.0], [-1.0, 0.0, 3.0, -2.0])

    Reference:
        Zeng et al., "Are Transformers Effective for Time Series Forecasting?", AAAI
        2023, the decomposition of DLinear. Differs from the code of its authors, which
        takes odd windows alone: an even one reaches one step further into the future.
    """

    def __init__(self, window=25, **kwargs):
        super().__init__(**kwargs)
        self.window = check_int("window", window)
        self.supports_masking = True  # to refuse one by name

    def build(self, input_shape):
        check_series(self, input_shape)

    def call(self, inputs):
        x = ops.cast(inputs, wide_dtype(self.compute_dtype))
        before, after = (self.window - 1) // 2, self.window // 2
        padded = ops.concatenate(
            [ops.repeat(x[:, :1], before, axis=1), x]
            + [ops.repeat(x[:, -1:], after, axis=1)],
            axis=1,
        )
        trend = ops.average_pool(padded, self.window, strides=1)
        return tuple(ops.cast(part, self.compute_dtype) for part in (x - trend, trend))

    def compute_mask(self, inputs, mask=None):
        refuse_mask(self, mask)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape), tuple(input_shape)

    def get_config(self):
        return {**super().get_config(), "window": self.window}
