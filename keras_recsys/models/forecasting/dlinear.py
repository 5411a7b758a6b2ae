"""`build_dlinear`, a linear map of the trend and one of the rest."""

import keras

from keras_recsys import layers
from keras_recsys.models.forecasting._frame import ForecastFrame, linear_over_time


def build_dlinear(
    num_channels,
    *,
    seq_len,
    pred_len,
    num_outputs=None,
    window=25,
    individual=False,
    inputs=None,
    name="dlinear",
):
    """Builds DLinear: two linear maps over time, of the trend and of the rest.

        seasonal, trend = SeriesDecomposition(x)
        forecast = linear(seasonal) + linear(trend)

    Each channel is forecast from its own past alone. Simple as it is, it is better than
    Informer on many series: no forecast should be published without it at the side.

    Args:
        num_channels: Positive int, channels of the series.
        seq_len: Positive int, known steps. The authors take 336.
        pred_len: Positive int, steps to forecast.
        num_outputs: Positive int, how many of the last channels are forecast. Defaults
            to `None`, all.
        window: Positive int, steps of the moving average. Defaults to `25`.
        individual: Whether each channel has maps of its own. Defaults to `False`.
        inputs: Optional dict from `"values"` to an existing `keras.Input`.
        name: Name of the model, and prefix of its layer names.

    Returns:
        An uncompiled `ForecastModel`. Input: `"values"`, float32, `(batch_size,
        seq_len, num_channels)`. Output: `"forecast"`, float32, `(batch_size, pred_len,
        num_outputs)`.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range.

    Reference:
        Zeng et al., "Are Transformers Effective for Time Series Forecasting?", AAAI
        2023.
    """
    frame = ForecastFrame(
        num_channels,
        seq_len=seq_len,
        pred_len=pred_len,
        num_outputs=num_outputs,
        inputs=inputs,
        name=name,
    )
    seasonal, trend = layers.SeriesDecomposition(
        window, dtype="float32", name=f"{name}_decomposition"
    )(frame.outputs_of(frame.values))
    parts = [
        linear_over_time(frame, seasonal, "seasonal", individual),
        linear_over_time(frame, trend, "trend", individual),
    ]
    return frame.model_of(keras.layers.Add(name=f"{name}_sum")(parts))
