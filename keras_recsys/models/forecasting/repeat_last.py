"""`build_repeat_last`, the last value again and again."""

from keras_recsys.models.forecasting.seasonal_naive import build_seasonal_naive


def build_repeat_last(num_channels, *, name="repeat_last", **kwargs):
    """Builds the forecast that repeats the last known step.

    Args:
        num_channels: Positive int, channels of the series.
        name: Name of the model, and prefix of its layer names.
        **kwargs: Further arguments of `build_seasonal_naive`, but for `period`.

    Returns:
        As `build_seasonal_naive`.

    Raises:
        TypeError: If a size is not an integer, or an argument is not taken.
        ValueError: If an argument is out of its range.
    """
    return build_seasonal_naive(num_channels, period=1, name=name, **kwargs)
