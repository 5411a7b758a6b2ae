"""`build_nlinear`, a linear map of what a series is above its last value."""

from keras_recsys.models.forecasting._frame import ForecastFrame, linear_over_time


def build_nlinear(
    num_channels,
    *,
    seq_len,
    pred_len,
    num_outputs=None,
    individual=False,
    inputs=None,
    name="nlinear",
):
    """Builds NLinear: a linear map over time that starts from the last known value.

        forecast = linear(x - x_last) + x_last

    Each channel is forecast from its own past alone. It is hard to beat where the level
    of a series moves.

    Args:
        num_channels: Positive int, channels of the series.
        seq_len: Positive int, known steps. The authors take 336.
        pred_len: Positive int, steps to forecast.
        num_outputs: Positive int, how many of the last channels are forecast. Defaults
            to `None`, all.
        individual: Whether each channel has a map of its own. Defaults to `False`.
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
        normalization="last",
        inputs=inputs,
        name=name,
    )
    values = frame.outputs_of(frame.values)
    return frame.model_of(linear_over_time(frame, values, "linear", individual))
