import datetime
import json

import golden_files
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from keras_recsys import _calendar
from keras_recsys._calendar import (
    INTEGER,
    SCALED,
    TABLE_SIZES,
    UNITS,
    Frequency,
    add_steps,
    calendar_fields,
    civil_from_days,
    days_from_civil,
    infer_frequency,
    integer_fields,
    scaled_fields,
)
from keras_recsys.data import calendar_features

# Every day of 900 years at noon, with the leap years 1600, 1896 and 2000 but not 1900.
DAYS = pd.date_range("1600-01-01 12:00", "2499-12-31 12:00", unit="s")


def seconds_of(*texts):
    return np.array(texts, "datetime64[s]").astype("int64")


def texts_of(seconds):
    return [str(time) for time in np.asarray(seconds).astype("datetime64[s]")]


@golden_files.golden("informer", having=["scaled_h"])
def test_equals_the_golden_features(path):
    arrays = golden_files.load(path)
    meta = json.loads(str(arrays["meta"]))
    for unit, names in meta["scaled_columns"].items():
        assert list(SCALED[unit]) == names
        got = calendar_features(arrays["dates"], unit)
        np.testing.assert_allclose(got, arrays[f"scaled_{unit}"], rtol=1e-6, atol=1e-7)
    for unit, names in meta["integer_columns"].items():
        assert list(INTEGER[unit]) == [name.removesuffix("//15") for name in names]
        for embedding in ("fixed", "learned"):
            got = calendar_features(arrays["dates"], unit, embedding)
            np.testing.assert_array_equal(got, arrays[f"integer_{unit}"])


def test_equals_pandas_over_900_years():
    fields = calendar_fields(DAYS.astype("int64").to_numpy())
    weeks = DAYS.isocalendar()
    for name, want in {
        "hour": DAYS.hour,
        "weekday": DAYS.day_of_week,
        "day": DAYS.day,
        "yearday": DAYS.day_of_year,
        "month": DAYS.month,
        "isoweek": weeks["week"],
    }.items():
        np.testing.assert_array_equal(fields[name], np.asarray(want, "int64"), name)


def test_days_and_dates_are_inverse():
    days = np.arange(-800_000, 800_000, 7)
    np.testing.assert_array_equal(days_from_civil(*civil_from_days(days)), days)


@pytest.mark.parametrize(
    ("date", "week"),
    [("2020-12-31", 53), ("2021-01-03", 53), ("2021-01-04", 1), ("2018-12-31", 1)],
)
def test_weeks_at_the_turn_of_the_year(date, week):
    assert calendar_fields(seconds_of(date))["isoweek"] == [week]


def test_clock_before_1970():  # 23:59:58 on a Wednesday
    fields = calendar_fields(np.array([-2]))
    got = [int(fields[name][0]) for name in ("hour", "minute", "second", "weekday")]
    assert got == [23, 59, 58, 2]


def test_scaled_by_hand():  # a Sunday in a leap year
    got = calendar_features("2024-12-15 23:59:00", "t")
    want = [59 / 59, 23 / 23, 6 / 6, 14 / 30, 349 / 365]
    np.testing.assert_allclose(got, np.array(want) - 0.5, rtol=1e-6)
    np.testing.assert_allclose(calendar_features("2024-12-15", "2w")[1], 49 / 52 - 0.5)


def test_half_hours_differ():
    times = ["2024-01-01 00:00", "2024-01-01 00:30"]
    for embedding in ("timeF", "fixed", "learned"):
        first, second = calendar_features(times, "30min", embedding)
        assert (first != second).any()
    assert calendar_features(times, "30min", "fixed").tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 2],
    ]


@pytest.mark.parametrize("unit", UNITS)
def test_features_fit_their_ranges(unit):
    times = seconds_of("2016-02-29 23:59:59", "2020-12-31", "2021-01-01 06:15:00")
    times = np.concatenate([times, np.arange(0, 2**31, 86_399 * 7)])
    scaled = calendar_features(times, unit)
    assert scaled.shape == (len(times), len(SCALED[unit]))
    assert scaled.dtype == "float32"
    assert (np.abs(scaled) <= 0.5).all()
    integer = calendar_features(times, unit, "learned")
    assert integer.dtype == "int32"
    sizes = [TABLE_SIZES[name] for name in INTEGER[unit]]
    assert integer.shape == (len(times), len(sizes))
    assert (integer >= 0).all()
    assert (integer < sizes).all()


def test_tensors_give_what_arrays_give():
    times = seconds_of("1969-12-31 23:59:59", "2016-02-29 12:15:00", "2021-01-03")
    steps = np.array([-3, 0, 14])

    @tf.function
    def features(times):
        return [
            tf.stack(function(times, "s"), axis=-1)
            for function in (scaled_fields, integer_fields)
        ]

    for got, function in zip(
        features(tf.constant(times)), (scaled_fields, integer_fields), strict=True
    ):
        np.testing.assert_array_equal(got, np.stack(function(times, "s"), axis=-1))
    for text in ("15min", "B", "w", "m", "2ME", "y"):
        frequency = Frequency.parse(text)
        got = add_steps(tf.constant(times), frequency, tf.constant(steps))
        np.testing.assert_array_equal(got, add_steps(times, frequency, steps))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("h", (1, "h", False)),
        ("3H", (3, "h", False)),
        ("15min", (15, "t", False)),
        ("15t", (15, "t", False)),
        ("30T", (30, "t", False)),
        ("S", (1, "s", False)),
        ("d", (1, "d", False)),
        ("B", (1, "b", False)),
        ("W-SUN", (1, "w", False)),
        ("m", (1, "m", False)),
        ("MS", (1, "m", False)),
        ("M", (1, "m", True)),
        ("2ME", (2, "m", True)),
        ("q", (1, "q", False)),
        ("QS-JAN", (1, "q", False)),
        ("QE", (1, "q", True)),
        ("y", (1, "y", False)),
        ("a", (1, "y", False)),
        ("A", (1, "y", True)),
        ("YE-DEC", (1, "y", True)),
        ("YS", (1, "y", False)),
    ],
)
def test_parse(text, want):
    frequency = Frequency.parse(text)
    assert (frequency.count, frequency.unit, frequency.end) == want
    assert Frequency.parse(str(frequency)) == frequency
    assert Frequency.parse(frequency) is frequency


def test_parse_takes_offsets_of_pandas():
    assert Frequency.parse(pd.offsets.Minute(15)) == Frequency(15, "t")


@pytest.mark.parametrize(
    "text",
    "15x,,0h,-1h,1.5h,ms,us,W-JAN,h-SUN,min15,15m,2m".split(",") + [15],
)
def test_says_which_frequency_was_given(text):
    with pytest.raises(ValueError, match=f"`frequency` must be .*frequency={text!r}"):
        Frequency.parse(text)


def test_months_are_no_minutes():
    assert str(Frequency.parse("2MS")) == "2MS"
    assert str(Frequency.parse("m")) == "m"
    with pytest.raises(ValueError, match="'min' for minutes and 'MS' or 'ME'.*'15m'"):
        Frequency.parse("15m")


def test_frequency_errors():
    with pytest.raises(ValueError, match="`count` must be at least 1.*count=0"):
        Frequency(0, "h")
    with pytest.raises(ValueError, match="`unit` must be one of 's', 't'.*unit='x'"):
        Frequency(1, "x")
    with pytest.raises(ValueError, match="`end` must be False.*end=True, unit='h'"):
        Frequency(1, "h", True)
    with pytest.raises(TypeError, match="`end` must be True or False.*end=1"):
        Frequency(1, "m", 1)


@pytest.mark.parametrize(
    "text",
    "s 15min 3h D 2D B 3B W-SUN ME 2ME MS QE QS YE YS".split(),
)
def test_steps_equal_pandas(text):
    frequency = Frequency.parse(text)
    times = pd.date_range("2019-12-02 05:30", periods=150, freq=text, unit="s")
    times = times.astype("int64").to_numpy()
    steps = np.arange(len(times))
    np.testing.assert_array_equal(add_steps(times[0], frequency, steps), times)
    np.testing.assert_array_equal(add_steps(times[-1], frequency, steps - 149), times)
    np.testing.assert_array_equal(add_steps(times[:-1], frequency, 1), times[1:])
    if text != "3B":  # multiples of business days are not inferred
        assert infer_frequency(times) == frequency


@pytest.mark.parametrize(
    ("text", "start", "want"),
    [
        ("m", "2023-01-31T06:00:00", ["2023-02-28T06:00:00", "2023-03-31T06:00:00"]),
        ("ME", "2023-02-28", ["2023-03-31T00:00:00", "2023-04-30T00:00:00"]),
        ("q", "2023-11-30", ["2024-02-29T00:00:00", "2024-05-30T00:00:00"]),
        ("y", "2024-02-29", ["2025-02-28T00:00:00", "2026-02-28T00:00:00"]),
        ("b", "2024-06-08", ["2024-06-10T00:00:00", "2024-06-11T00:00:00"]),
    ],
)
def test_steps_by_hand(text, start, want):
    got = add_steps(seconds_of(start), Frequency.parse(text), np.array([1, 2]))
    assert texts_of(got) == want


@pytest.mark.parametrize(
    ("times", "want"),
    [
        (["2024-07-01", "2024-08-01", "2024-09-01"], "m"),
        (["2024-03-31", "2024-06-30", "2024-09-30"], "QE"),
        (["2024-01-30", "2024-02-29", "2024-03-30"], "m"),
        (["2024-06-06", "2024-06-07", "2024-06-10"], "b"),
        (["2024-06-06", "2024-06-20", "2024-07-04"], "2w"),
    ],
)
def test_infer_by_hand(times, want):
    assert str(infer_frequency(seconds_of(*times))) == want


@pytest.mark.parametrize(
    "times",
    [
        ["2024-01-01", "2024-01-02"],
        ["2024-01-01", "2024-01-02", "2024-01-04"],
        ["2024-01-03", "2024-01-02", "2024-01-01"],
        ["2024-01-01", "2024-01-01", "2024-01-01"],
    ],
)
def test_infers_nothing(times):
    assert infer_frequency(seconds_of(*times)) is None


def test_reads_times_of_all_kinds():
    want = calendar_features([1467331200, 1467334800], "h")
    texts = ["2016-07-01 00:00:00", "2016-07-01T01:00"]
    stamps = pd.to_datetime(pd.Series(["2016-07-01 00:00:00", "2016-07-01 01:00:00"]))
    for times in (
        texts,
        np.array(texts),
        pd.Series(texts),
        stamps,
        pd.DatetimeIndex(stamps),
        stamps.to_numpy("datetime64[ns]"),
        stamps.tolist(),
        [stamp.to_pydatetime() for stamp in stamps],
        [np.datetime64("2016-07-01"), np.datetime64("2016-07-01T01")],
    ):
        np.testing.assert_array_equal(calendar_features(times, "h"), want)
    got = calendar_features(np.array(texts).reshape(2, 1), "h")
    np.testing.assert_array_equal(got, want[:, None])
    np.testing.assert_array_equal(
        calendar_features(datetime.date(2016, 7, 1), "h"), want[0]
    )


UTC = datetime.timezone.utc


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (pd.date_range("2024", periods=2, tz="UTC"), "no time zone.*tz_localize"),
        ([datetime.datetime(2024, 1, 1, tzinfo=UTC)], "no time zone.*row 0"),
        (["2024-01-01", "2024-01-01T00:00Z"], "strings such as.*00Z' at row 1"),
        (["7/1/2016 0:00"], "strings such as.*'7/1/2016 0:00' at row 0"),
        (["2023-02-29"], "time stamps of the calendar.*2023-02-29"),
        (["2024-01-01", None], "no missing time stamp.*None at row 1"),
        (pd.to_datetime(["2024-01-01", None]), "no missing time stamp.*NaT' at row 1"),
        (np.array(["2024-01-01T00:00:00.5"], "M8[ms]"), "whole seconds.*500' at row 0"),
    ],
)
def test_says_which_time_is_wrong(times, message):
    with pytest.raises(ValueError, match=f"`times` must .*{message}"):
        calendar_features(times, "h")


@pytest.mark.parametrize("times", [[1.5], [True], [b"2024-01-01"], ["2024-01-01", 3]])
def test_says_what_times_are_not(times):
    with pytest.raises((TypeError, ValueError), match="`times` must hold"):
        calendar_features(times, "h")


def test_says_which_embedding_was_given():
    with pytest.raises(ValueError, match="`embedding` must be one.*embedding='time'"):
        calendar_features([0], "h", "time")


def test_tables_are_those_of_the_fields():
    assert set(TABLE_SIZES) == {name for names in INTEGER.values() for name in names}
    assert {name for names in SCALED.values() for name in names} == set(
        _calendar.RANGES
    )
