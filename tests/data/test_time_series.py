import gzip
import sys

import numpy as np
import pandas as pd
import pytest

from keras_recsys.data import TimeSeries, read_time_series, split_time_series

RNG = np.random.default_rng(0)


def hours(*numbers):
    return np.array(numbers) * 3600


def frame_of(*numbers, **columns):
    times = pd.to_datetime(hours(*numbers), unit="s")
    return pd.DataFrame({"date": times, **columns})


def text_of(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def check(series, values, columns=None):
    np.testing.assert_array_equal(series.values, values)
    assert series.values.dtype == "float64"
    assert series.times.dtype == "datetime64[s]"
    assert len(series) == len(series.times) == len(values)
    if columns:
        assert series.columns == tuple(columns)
    assert series.target == series.columns[-1]


def test_target_stands_last():
    values = RNG.normal(size=(4, 3))
    series = TimeSeries(values, hours(0, 1, 2, 3), "h", list("abc"), "b")
    check(series, values[:, [0, 2, 1]], "acb")
    check(TimeSeries(values, hours(0, 1, 2, 3), "h", list("abc")), values, "abc")
    check(TimeSeries(values, hours(0, 1, 2, 3), "h", target="0"), values[:, [1, 2, 0]])


def test_one_column_and_integers():
    series = TimeSeries([3, 4, 5], ["2024-01-01", "2024-01-02", "2024-01-03"])
    check(series, [[3], [4], [5]], "0")
    assert series.frequency == "d"
    assert repr(series) == (
        "TimeSeries(3 rows, 'd' from 2024-01-01T00:00:00, columns=('0',))"
    )


def test_slices():
    values = RNG.normal(size=(6, 2))
    series = TimeSeries(values, hours(*range(6)), "h", list("ab"), "a")
    part = series[2:-1]
    check(part, values[2:-1, ::-1], "ba")
    np.testing.assert_array_equal(part.times, series.times[2:-1])
    assert (part.frequency, part.missing) == ("h", "error")
    with pytest.raises(TypeError, match="must be a slice of step 1.*3"):
        series[3]
    with pytest.raises(TypeError, match="must be a slice of step 1.*2"):
        series[::2]
    with pytest.raises(ValueError, match="of 6 rows must be at least one.*slice"):
        series[6:]


@pytest.mark.parametrize(
    ("frequency", "times", "want"),
    [
        ("15t", ["2024-01-01 23:45"], ["2024-01-02T00:00:00", "2024-01-02T00:15:00"]),
        ("b", ["2024-06-06", "2024-06-07"], ["2024-06-10", "2024-06-11"]),
        ("m", ["2024-01-31", "2024-02-29"], ["2024-03-31", "2024-04-30"]),
        ("m", ["2024-01-15", "2024-02-15"], ["2024-03-15", "2024-04-15"]),
        ("ME", ["2024-01-31", "2024-02-29"], ["2024-03-31", "2024-04-30"]),
        ("YE", ["2023-12-31", "2024-12-31"], ["2025-12-31", "2026-12-31"]),
    ],
)
def test_future_times(frequency, times, want):
    series = TimeSeries(np.zeros(len(times)), times, frequency)
    got = series.future_times(2)
    np.testing.assert_array_equal(got, np.array(want, "datetime64[s]"))
    np.testing.assert_array_equal(series[-1:].future_times(2), got)


def test_future_times_says_what_steps_was():
    with pytest.raises(ValueError, match="`steps` must be at least 1.*steps=0"):
        TimeSeries([1.0], [0], "h").future_times(0)


@pytest.mark.parametrize(
    ("times", "frequency", "message"),
    [
        (hours(0, 1, 3), "h", "03:00:00 at row 2 after .*01:00:00, which leaves a gap"),
        (hours(0, 1, 1), "h", "01:00:00 at row 2 .* stands there twice"),
        (hours(0, 2, 1), "2h", "01:00:00 at row 2 .* is out of order"),
        (hours(0, 1, 2), "3h", "01:00:00 at row 1 .* is another step"),
        (["2024-06-07", "2024-06-08"], "b", "2024-06-08.* is another step"),
        (["2024-06-08", "2024-06-10"], "b", "must begin at a step of 'b'.*06-08"),
        (["2024-01-30", "2024-02-29"], "ME", "must begin at a step of 'ME'.*01-30"),
        (["2024-01-28", "2024-03-28"], "m", "2024-03-28.* leaves a gap"),
        (["2024-01-31", "2024-03-01"], "m", "28 at most.*2024-01-31.* at row 0"),
        (["2023-01-30", "2023-02-28", "2023-03-30"], None, "28 at most.*01-30.* row 0"),
        (["2023-06-30", "2024-02-29", "2025-02-27"], "y", "02-29.* at row 1"),
        (hours(2, 1, 0), None, "must rise.*01:00:00 at row 1 after .*02:00:00"),
        (hours(0, 1, 1), None, "must rise.*01:00:00 at row 2 after .*01:00:00"),
        (hours(0, 1, 3), None, "`frequency` must be given .*None, 3 time stamps"),
        (hours(0, 1, 2), "1x", "`frequency` must be .*'1x'"),
    ],
)
def test_irregular_times_are_refused(times, frequency, message):
    with pytest.raises(ValueError, match=message):
        TimeSeries(np.zeros(len(times)), times, frequency)


def test_each_row_has_a_time_stamp():
    message = r"one time stamp for each of 3 rows.*shape \(2,\)"
    with pytest.raises(ValueError, match=message):
        TimeSeries(np.zeros(3), hours(0, 1), "h")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_missing_and_infinite_values(value):
    values = [[1.0, 2.0], [3.0, value]]
    message = rf"finite numbers.*{value} at row 1 \(1970-01-01T01:00:00\) of .*'1'"
    with pytest.raises(ValueError, match=message):
        TimeSeries(values, hours(0, 1), "h")
    if np.isnan(value):
        series = TimeSeries(values, hours(0, 1), "h", missing="keep")
        check(series, values)
        assert (series.num_missing, series[:1].num_missing) == (1, 0)
    else:
        with pytest.raises(ValueError, match=message):
            TimeSeries(values, hours(0, 1), "h", missing="keep")


@pytest.mark.parametrize("values", [["a", "b"], [True, False], [1j, 2], [None, 1]])
def test_values_must_be_real_numbers(values):
    with pytest.raises(TypeError, match="`values` must hold real numbers.*dtype"):
        TimeSeries(values, hours(0, 1), "h")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["a"]}, r"`columns` must be 2 distinct strings.*\['a'\]"),
        ({"columns": ["a", "a"]}, r"`columns` must be 2 distinct strings"),
        ({"columns": [1, 2]}, r"`columns` must be 2 distinct strings.*\[1, 2\]"),
        ({"target": "c"}, r"`target` must be one of.*target='c'"),
        ({"missing": "skip"}, r"`missing` must be one of 'error', 'keep'.*'skip'"),
    ],
)
def test_says_which_option_is_wrong(options, message):
    with pytest.raises(ValueError, match=message):
        TimeSeries(np.zeros((2, 2)), hours(0, 1), "h", **options)


def test_keeps_a_copy():
    values = np.ones((2, 1))
    series = TimeSeries(values, hours(0, 1), "h")
    values[:] = np.nan
    check(series, [[1], [1]])


@pytest.mark.parametrize("shape", [(0,), (2, 0), (2, 1, 1)])
def test_says_which_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"`values` must be of shape.*shape \("):
        TimeSeries(np.zeros(shape), hours(*range(shape[0])), "h")


def test_from_frame():
    frame = frame_of(0, 1, 2, a=[1, 2, 3], text=list("xyz"), b=[0.5, 1.5, 2.5])
    series = TimeSeries.from_frame(frame, time="date", columns=["b", "a"], target="b")
    check(series, [[1, 0.5], [2, 1.5], [3, 2.5]], "ab")
    assert series.frequency == "h"
    frame = frame.set_index("date")[["a", "b"]]
    check(TimeSeries.from_frame(frame), frame.to_numpy(), "ab")
    check(TimeSeries.from_frame(frame, columns="a"), frame[["a"]].to_numpy(), "a")


@pytest.mark.parametrize("dtype", ["Int64", "Float64", "object", "float32"])
def test_from_frame_reads_missing_numbers(dtype):
    column = pd.Series([1, None, 3], dtype=dtype)
    frame = frame_of(0, 1, 2, a=column)
    series = TimeSeries.from_frame(frame, time="date", missing="keep")
    check(series, [[1], [np.nan], [3]])
    with pytest.raises(ValueError, match="finite numbers.*nan at row 1.*'a'"):
        TimeSeries.from_frame(frame, time="date")


@pytest.mark.parametrize(
    ("frequency", "times", "rows"),
    [
        ("h", hours(5, 6, 9, 10), [0, 1, 4, 5]),
        ("2h", hours(5, 7, 13, 15), [0, 1, 4, 5]),
        ("B", ["2024-06-06", "2024-06-07", "2024-06-11", "2024-06-14"], [0, 1, 3, 6]),
        ("m", ["2023-01-31", "2023-02-28", "2023-06-30", "2024-03-31"], [0, 1, 5, 14]),
        ("MS", ["2023-01-01", "2023-02-01", "2023-04-01", "2024-03-01"], [0, 1, 3, 14]),
        ("y", ["2020-01-01", "2021-01-01", "2024-01-01", "2025-01-01"], [0, 1, 4, 5]),
    ],
)
def test_from_frame_inserts_absent_rows(frequency, times, rows):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0]}, index=np.array(times, "M8[s]"))
    series = TimeSeries.from_frame(frame, frequency=frequency, gaps="insert")
    want = np.full((rows[-1] + 1, 1), np.nan)
    want[rows, 0] = [1, 2, 3, 4]
    check(series, want)
    assert series.num_missing == len(want) - 4
    assert series.missing == "keep"
    np.testing.assert_array_equal(series.times[rows], frame.index.to_numpy())


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 1.5, 3), "whole steps of 'h'.*01:30:00 at row 1 after .*00:00:00"),
        ((0, 2, 2), "whole steps of 'h'.*02:00:00 at row 2 after .*02:00:00"),
        ((0, 2, 1), "whole steps of 'h'.*01:00:00 at row 2 after .*02:00:00"),
        ((3, 0, 1), "whole steps of 'h'.*00:00:00 at row 1 after .*03:00:00"),
    ],
)
def test_insert_refuses_what_fits_no_step(numbers, message):
    frame = frame_of(*numbers, a=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=message):
        TimeSeries.from_frame(frame, time="date", frequency="h", gaps="insert")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": "day"}, r"`time` must name a column of \['date', 'a'\].*'day'"),
        ({"time": None}, "`time` must name a column .* the index numbers the rows"),
        ({"columns": ["b"]}, r"`columns` must name columns of .*columns=\['b'\]"),
        ({"columns": ["date"]}, r"`columns` must name columns of .* other than `time`"),
        ({"columns": []}, r"`columns` must name columns of .*columns=\[\]"),
        ({"gaps": "fill"}, r"`gaps` must be one of 'error', 'insert'.*'fill'"),
        ({"gaps": "insert"}, r"`frequency` must be given where `gaps` is"),
    ],
)
def test_says_which_option_of_a_frame_is_wrong(options, message):
    frame = frame_of(0, 1, 2, a=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=message):
        TimeSeries.from_frame(frame, **{"time": "date", **options})


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1.0, "2", 3.0], "'a' must hold numbers.*'2' at row 1"),
        (["x", "y", "z"], "'a' must hold numbers.*'x' at row 0"),
        ([True, False, True], "'a' must hold numbers.*dtype bool"),
        ([None, True, 1], "'a' must hold numbers.*True at row 1"),
        (pd.date_range("2024", periods=3), "'a' must hold numbers.*datetime64"),
    ],
)
def test_says_which_column_is_no_numbers(column, message):
    with pytest.raises(TypeError, match=message):
        TimeSeries.from_frame(frame_of(0, 1, 2, a=column), time="date")


def test_frame_must_be_a_frame_with_rows_and_names():
    with pytest.raises(TypeError, match="`frame` must be a pandas.DataFrame.*list"):
        TimeSeries.from_frame([1, 2])
    with pytest.raises(ValueError, match="at least one row.*0 rows"):
        TimeSeries.from_frame(frame_of(a=[]), time="date")
    frame = frame_of(0, 1, a=[1, 2], b=[3, 4]).set_axis(["date", "a", "a"], axis=1)
    with pytest.raises(ValueError, match="distinct column names.*'a', 'a'"):
        TimeSeries.from_frame(frame, time="date")


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_read(tmp_path, mark):
    path = text_of(
        tmp_path / "a.csv",
        mark + "date,load,oil",
        "2016-07-01 00:00:00,1,-2.5",
        "2016-07-01 00:15:00,3,4e-1",
        "2016-07-01 00:30:00,5,.5",
    )
    series = read_time_series(path)
    check(series, [[1, -2.5], [3, 0.4], [5, 0.5]], ["load", "oil"])
    assert series.frequency == "15min"
    assert str(series.times[0]) == "2016-07-01T00:00:00"
    series = read_time_series(path, time="date", frequency="15t", columns=["load"])
    check(series, [[1], [3], [5]], ["load"])


def test_read_what_pandas_writes_of_an_index_without_a_name(tmp_path):
    path = tmp_path / "a.csv"
    times = pd.DatetimeIndex(["2016-07-01", "2016-07-02", "2016-07-03"])
    pd.DataFrame({"NA": [1, 2, 3]}, index=times).to_csv(path)
    check(read_time_series(path), [[1], [2], [3]], ["NA"])
    # Years are read as texts, not as seconds.
    path = text_of(path, ",a", "2016,1", "2017,2", "2018,3")
    with pytest.raises(ValueError, match="`time` must hold strings such as .*'2016'"):
        read_time_series(path)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["True", "False"], "'a'.*'True' at row 0"),
        (["1", "False"], "'a'.*'False' at row 1"),
    ],
)
def test_read_refuses_what_is_no_number(tmp_path, cells, message):
    rows = [f"2016-07-0{i},{cell}" for i, cell in enumerate(cells, 1)]
    path = text_of(tmp_path / "a.csv", "date,a", *rows)
    with pytest.raises(ValueError, match=rf"a\.csv must hold numbers.*{message}"):
        read_time_series(path, frequency="d")


def test_read_gzip_with_gaps(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"a;t\n1;2024-01-01\n;2024-01-02\n3;2024-01-04\n"))
    series = read_time_series(
        path, time="t", frequency="d", delimiter=";", gaps="insert"
    )
    check(series, [[1], [np.nan], [np.nan], [3]], "a")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["t,a,b", "2024-01-01,1,2", "2024-01-02,3,4o"], "column 'b'.*'4o' at row 1"),
        (["t,a", "2024-01-01,1", '2024-01-02,"1,5"'], "column 'a'.*'1,5' at row 1"),
        (["t,a", "2024-01-01,1", "2024-01-02,inf"], "finite numbers.*inf at row 1"),
        (["t,a", "2024-01-01,1", "2024-01-02,"], "finite numbers.*nan at row 1.*'a'"),
        (["t,a", "01/02/2024,1"], "`t` must hold strings such as.*01/02/2024"),
        (["t,a", "2024-01-01,1", ",2"], "`t` must hold no missing.*row 1"),
        (["t,a", "2024-01-01,1", "2024-01-02,2,3"], "cannot be read: .*line 3"),
        (
            ["t,a", "2024-01-01,1,5", "2024-01-02,2,3"],
            "line as column names, 2.*3 cell",
        ),
        (["t,a,a", "2024-01-01,1,5"], "distinct column names.*'a', 'a'"),
        ([""], "cannot be read"),
        (["t,a"], "`frame` must hold at least one row"),
    ],
)
def test_says_what_is_wrong_in_a_file(tmp_path, lines, message):
    path = text_of(tmp_path / "a.csv", *lines)
    with pytest.raises(ValueError, match=message):
        read_time_series(path, frequency="d")


def test_read_says_what_is_not_there(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"nothing\.csv"):
        read_time_series(tmp_path / "nothing.csv")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="`read_time_series` needs .* pandas"):
        read_time_series(tmp_path / "nothing.csv")


def series_of(num_rows):
    return TimeSeries(np.arange(num_rows), hours(*range(num_rows)), "h")


def test_split_by_hand():  # of 90 rows 63, 9 and 18, the last two begin 5 early
    parts = split_time_series(series_of(90), seq_len=5)
    ends = [(part.values[0, 0], part.values[-1, 0]) for part in parts]
    assert ends == [(0, 62), (58, 71), (67, 89)]
    parts = split_time_series(series_of(13), seq_len=1, train=0.5, test=0.25)
    assert [len(part) for part in parts] == [6, 5, 4]
    parts = split_time_series(series_of(90), seq_len=5, borders=(10, 20, 50))
    ends = [(part.values[0, 0], part.values[-1, 0]) for part in parts]
    assert ends == [(0, 9), (5, 19), (15, 49)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seq_len": 0}, "`seq_len` must be at least 1.*seq_len=0"),
        ({"seq_len": 14}, "`seq_len` must be below .* of train, 14.*seq_len=14"),
        ({"train": 1.0}, r"`train` must be a number in \(0, 1\).*train=1.0"),
        ({"test": True}, r"`test` must be a number in \(0, 1\).*test=True"),
        ({"train": 0.8}, "`train` and `test` must give .* of 20 rows.*train=0.8"),
        ({"test": 0.01}, "`train` and `test` must give .* of 20 rows.*test=0.01"),
        ({"borders": (10, 15)}, r"`borders` must be three integers.*\(10, 15\)"),
        ({"borders": (10, 15, 21)}, r"`borders` must give .* of 20 rows.*21\)"),
        ({"borders": (10, 10, 20)}, r"`borders` must give .* of 20 rows.*10, 20\)"),
    ],
)
def test_says_what_is_wrong_with_a_split(options, message):
    with pytest.raises(ValueError, match=message):
        split_time_series(series_of(20), **{"seq_len": 5, **options})


def test_split_takes_series_and_integers():
    with pytest.raises(TypeError, match="`series` must be a `TimeSeries`.*list"):
        split_time_series([1, 2, 3], seq_len=1)
    with pytest.raises(TypeError, match="`borders` must be an integer.*1.5"):
        split_time_series(series_of(9), seq_len=1, borders=(1.5, 2, 3))
