import functools
import hashlib
import os
import pathlib

import golden_files
import keras
import numpy as np
import pytest

from keras_recsys._calendar import scaled_fields
from keras_recsys.data import (
    SeriesScaler,
    ett_borders,
    load_ett,
    make_window_dataset,
    split_time_series,
)
from keras_recsys.data import ett as module

REPOSITORY = pathlib.Path(__file__).parents[2]
DATA = os.environ.get("KERAS_RECSYS_DATA", REPOSITORY / ".." / "shared" / "data")
FOLDER = pathlib.Path(DATA) / "ett"
SPLITS = ("train", "val", "test")
COLUMNS = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")

needs_data = pytest.mark.skipif(
    not (FOLDER / "ETTh1.csv").is_file(), reason=f"no ETT files in {FOLDER}"
)


@functools.cache
def series_of(name):
    return load_ett(name, FOLDER)


def write(path, minutes=60, columns=COLUMNS):
    rows = [
        f"2016-07-01 {i * minutes // 60:02}:{i * minutes % 60:02}:00," + f"{i}," * 6
        for i in range(3)
    ]
    lines = [
        ",".join(["date", *columns]),
        *(row + f"{i + 0.5}" for i, row in enumerate(rows)),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def sums(*arrays):
    return [f(array) for array in arrays for f in (np.sum, lambda a: np.sum(a**2))]


@needs_data
@golden_files.golden("informer", having=["ETTh1.M.mean"])
@pytest.mark.parametrize("name", ["ETTh1", "ETTh2"])
@pytest.mark.parametrize("task", ["M", "S", "MS"])
def test_equals_the_golden_windows(path, name, task):
    arrays = golden_files.load(path)
    cases = {key.split(".")[3] for key in arrays if key.endswith(".count")}
    assert cases == {"96_48_24", "168_168_168", "720_336_720"}
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
    for case in cases:
        seq_len, label_len, pred_len = map(int, case.split("_"))
        parts = split_time_series(
            series_of(name), seq_len=seq_len, borders=ett_borders(name)
        )
        scaler = SeriesScaler.fit(parts[0])
        for moment in ("mean", "std"):
            want = arrays[f"{name}.{task}.{moment}"]
            close(getattr(scaler, moment)[-want.size :], want.ravel())
        for split, part in zip(SPLITS, parts, strict=True):
            key = f"{name}.{task}.{split}.{case}"
            dataset = make_window_dataset(
                part,
                seq_len=seq_len,
                pred_len=pred_len,
                task=task,
                scaler=scaler,
                batch_size=1,
            )
            assert len(dataset) == arrays[f"{key}.count"]
            num_inputs = 1 if task == "S" else 7
            x_shape, y_shape, marks_shape, _ = arrays[f"{key}.shapes"].reshape(4, 2)
            assert tuple(y_shape) == (label_len + pred_len, num_inputs)
            spec = dataset.element_spec[0]
            assert tuple(spec["values"].shape[1:]) == tuple(x_shape)
            assert spec["calendar"].shape[2] == marks_shape[1]
            values = scaler.transform(part.values)[:, -num_inputs:]
            seconds = part.times.astype("int64")
            marks = np.stack(scaled_fields(seconds, "h"), axis=1)
            for which, start in (("first", 0), ("last", len(dataset) - 1)):
                stop = start + seq_len
                x = values[start:stop]
                y = values[stop - label_len : stop + pred_len]
                marks_x = marks[start:stop].sum()
                marks_y = marks[stop - label_len : stop + pred_len].sum()
                got = [*sums(x, y), marks_x, marks_y]
                close(got, arrays[f"{key}.{which}.sums"])
                if which == "first":
                    inputs, target = next(iter(dataset))
                    close(inputs["values"][0], x)
                    close(inputs["calendar"][0], marks[start : stop + pred_len])
                    num_outputs = 7 if task == "M" else 1
                    close(target[0], y[label_len:, -num_outputs:])


@needs_data
def test_series_and_counts_by_hand():
    series = series_of("ETTh1")
    assert (len(series), series.frequency, series.columns) == (17420, "h", COLUMNS)
    assert str(series.times[-1]) == "2018-06-26T19:00:00"
    assert series.values[0, [0, 6]].tolist() == [5.827000141143799, 30.5310001373291]
    parts = split_time_series(series, seq_len=96, borders=ett_borders())
    assert [len(part) for part in parts] == [8640, 2976, 2976]
    counts = [
        len(make_window_dataset(part, seq_len=96, pred_len=24, batch_size=1))
        for part in parts
    ]
    assert counts == [8521, 2857, 2857]


@pytest.mark.parametrize(
    ("name", "minutes", "frequency"), [("ETTh2", 60, "h"), ("ETTm1", 15, "15min")]
)
def test_from_a_file_or_a_folder(tmp_path, name, minutes, frequency):
    path = write(tmp_path / f"{name}.csv", minutes)
    for place in (path, tmp_path, str(path)):
        series = load_ett(name, place)
        assert (series.frequency, series.target) == (frequency, "OT")
        assert series.values[:, [0, 6]].tolist() == [[0, 0.5], [1, 1.5], [2, 2.5]]


def test_another_file_is_refused(tmp_path):
    write(tmp_path / "ETTh1.csv", 15)
    with pytest.raises(ValueError, match="rise by 'h'.*00:15:00 at row 1"):
        load_ett("ETTh1", tmp_path)
    write(tmp_path / "ETTh1.csv", columns=[*"abcdef", "OT"])
    with pytest.raises(ValueError, match="`columns` must name columns of.*'HUFL'"):
        load_ett("ETTh1", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"a folder with ETTh2\.csv.*path="):
        load_ett("ETTh2", tmp_path)


def test_download_is_checked_and_kept(tmp_path, monkeypatch, capsys):
    served, cache = tmp_path / "served", tmp_path / "cache"
    served.mkdir()
    write(served / "ETTh1.csv")
    write(served / "ETTm1.csv", 15)
    get_file = functools.partial(keras.utils.get_file, cache_dir=str(cache))
    monkeypatch.setattr(keras.utils, "get_file", get_file)
    monkeypatch.setattr(module, "ORIGIN", served.as_uri() + "/")
    for name in ("ETTh1", "ETTm1"):
        match = rf"{name}\.csv cannot be downloaded.*`path`.*hash"
        with pytest.raises(OSError, match=match):
            load_ett(name)
    content = (served / "ETTm1.csv").read_bytes()
    monkeypatch.setitem(module.SHA256, "ETTm1", hashlib.sha256(content).hexdigest())
    assert len(load_ett("ETTm1")) == 3
    (served / "ETTm1.csv").unlink()
    assert len(load_ett("ETTm1")) == 3
    with pytest.raises(OSError, match=r"ETTm2\.csv cannot be downloaded.*`path`"):
        load_ett("ETTm2")
    capsys.readouterr()


@needs_data
def test_checksums_are_those_of_the_files(tmp_path, monkeypatch, capsys):
    get_file = functools.partial(keras.utils.get_file, cache_dir=str(tmp_path))
    monkeypatch.setattr(keras.utils, "get_file", get_file)
    monkeypatch.setattr(module, "ORIGIN", FOLDER.resolve().as_uri() + "/")
    for name in ("ETTh1", "ETTh2"):
        np.testing.assert_array_equal(load_ett(name).values, series_of(name).values)
    capsys.readouterr()


def test_borders():
    assert ett_borders("ETTh2") == (8640, 11520, 14400)
    assert ett_borders("ETTm2") == (34560, 46080, 57600)


@pytest.mark.parametrize("function", [load_ett, ett_borders])
def test_says_which_name_was_given(function):
    with pytest.raises(ValueError, match="`name` must be one of 'ETTh1'.*'ETTh3'"):
        function("ETTh3")
