"""`build_seasonal_naive`, the last season once more."""

from keras_recsys._checks import check_int
from keras_recsys.models.forecasting._frame import ForecastFrame, TakeSteps


def build_seasonal_naive(
    num_channels,
    *,
    seq_len,
    pred_len,
    period,
    num_outputs=None,
    inputs=None,
    name="seasonal_naive",
):
    """Builds the forecast that repeats the last `period` known steps.

    It has no weights: compile it, and evaluate it as it is.

    Args:
        num_channels: Positive int, channels of the series.
        seq_len: Positive int, known steps.
        pred_len: Positive int, steps to forecast.
        period: Positive int, at most `seq_len`, the steps of a season: 24 for the day
            of an hourly series, 168 for its week.
        num_outputs: Positive int, how many of the last channels are forecast. Defaults
            to `None`, all.
        inputs: Optional dict from `"values"` to an existing `keras.Input`.
        name: Name of the model, and prefix of its layer names.

    Returns:
        An uncompiled `ForecastModel`. Input: `"values"`, float32, `(batch_size,
        seq_len, num_channels)`. Output: `"forecast"`, float32, `(batch_size, pred_len,
        num_outputs)`.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range.
    """
    frame = ForecastFrame(
        num_channels,
        seq_len=seq_len,
        pred_len=pred_len,
        num_outputs=num_outputs,
        inputs=inputs,
        name=name,
    )
    if check_int("period", period) > seq_len:
        raise ValueError(
            f"`period` must be at most `seq_len`, {seq_len}. "
            f"Received: period={period!r}."
        )
    season = TakeSteps(-period, period=period, length=pred_len, name=f"{name}_season")
    return frame.model_of(season(frame.outputs_of(frame.values)))
