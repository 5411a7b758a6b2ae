import contextlib
import io
import json
import re
import runpy

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

from keras_recsys import __main__ as program
from keras_recsys import data, serving
from keras_recsys._quickstart import forecast

SMALL = {"hidden_dim": 4, "num_heads": 2, "intermediate_dim": 4, "encoder_layers": 1}
NAMES = ["Informer", "DLinear", "NLinear", "last 24 steps again", "repeat last"]
RUN = ["--rows", "260", "--epochs", "1"]
FIGURE = r"\d+\.\d{4}"


def run(*arguments):
    """Runs the quickstart in this process: exit status, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = program.main(
                ["quickstart", "--model", "informer", *map(str, arguments)]
            )
        except SystemExit as stop:  # argparse
            status = stop.code
    return status, out.getvalue(), err.getvalue()


def check_error(match, *arguments):
    """Checks that the quickstart stops at once with one line that says why."""
    status, out, err = run(*arguments)
    assert (status, out) == (1, "")
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert re.search(match, err)


def make_series(num_rows=250, frequency="h", step=3600, columns=("load", "oil")):
    """A series with a season of 24 steps."""
    steps = np.arange(num_rows)
    values = np.sin(2 * np.pi * steps[:, None] / 24 + np.arange(len(columns)))
    return data.TimeSeries(values, step * steps, frequency, columns)


def write_series(path, series):
    forecast.write_rows(series, path)
    return path


def narrow(monkeypatch):
    """Makes the model small."""
    real = forecast.models.build_informer
    monkeypatch.setattr(
        forecast.models, "build_informer", lambda *_, **args: real(**{**args, **SMALL})
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder and stdout of a small run, in place of another quickstart."""
    out = tmp_path_factory.mktemp("quickstart") / "a folder" / "out"
    out.mkdir(parents=True)
    (out / "fibinet.keras").write_text("of the click model")
    with pytest.MonkeyPatch.context() as monkeypatch:
        narrow(monkeypatch)
        status, text, err = run(*RUN, "--overwrite", "--out", out)
    assert (status, err) == (0, "")
    return out, text


@pytest.mark.slow
def test_writes_the_folder_and_nothing_beside_it(finished):
    out, text = finished
    assert sorted(path.name for path in out.iterdir()) == sorted(forecast.FILES)
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    for name in forecast.FILES:
        assert f"  {name} " in text
    for name in ("history.png", "forecasts.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_prints_one_table_and_who_wins(finished):
    text = finished[1]
    # By hand: 182, 26 and 52 of 260 hours have 63, 3 and 29 windows. Hour 11 is missing
    # at two airports, hour 125 at the third: 12 windows less for training at each of
    # the two, at the third 57, all 3 of the validation and 14 of the test.
    assert "108 windows to train on, 6 to validate, 73 to test" in text
    assert text.count("MSE      MAE   MAE temp   training") == 1
    lines = re.findall(
        rf"^(\D[\w ]+?) +({FIGURE}) +({FIGURE}) +([\d.]+) +(-|[\d.]+ s)$", text, re.M
    )
    assert sorted(line[0] for line in lines) == sorted(NAMES)
    mse = {name: float(mse) for name, mse, *_ in lines}
    assert list(mse.values()) == sorted(mse.values())
    untrained = {name for name, *_, seconds in lines if seconds == "-"}
    assert untrained == {"last 24 steps again", "repeat last"}
    best = lines[0][0]
    assert re.search(rf"^{best} wins: its MSE is [\d.]+% below that of ", text, re.M)
    # By definition the error in degrees is that of scaled values times their spread.
    std = json.loads((finished[0] / "scaler.json").read_text())["std"][-1]
    for _, _, mae, raw, _ in lines:
        assert float(raw) == pytest.approx(float(mae) * std, rel=1e-3)


def history_of(folder):
    """The rows that the folder holds, and the scaler."""
    rows = data.read_time_series(folder / "recent.csv", frequency="h")
    scaler = data.SeriesScaler.from_dict(
        json.loads((folder / "scaler.json").read_text())
    )
    return rows, scaler


@pytest.mark.slow
def test_scaler_is_that_of_the_training_rows(finished):
    _, scaler = history_of(finished[0])
    weather = data.load_weather().values()
    rows = np.concatenate([series.values[:182] for series in weather])
    np.testing.assert_allclose(scaler.mean, np.nanmean(rows, axis=0))
    std = np.nanstd(rows, axis=0)
    np.testing.assert_allclose(scaler.std, np.where(std == 0, 1, std))  # no rain


@pytest.mark.slow
def test_model_and_served_model_agree(finished):
    out, _ = finished
    rows, scaler = history_of(out)
    assert len(rows) == 96
    assert rows.target == "temp"
    later = rows.future_times(24)
    inputs = {
        "values": scaler.transform(rows.values)[None],
        "calendar": data.calendar_features([*rows.times, *later], "h")[None],
    }
    model = keras.models.load_model(out / "informer.keras")
    want = scaler.inverse_transform(model.predict(inputs, verbose=0)["forecast"])
    loaded = tf.saved_model.load(out / "saved_model")
    got = loaded.signatures["serving_default"](
        values=tf.constant(rows.values[None]),
        time=tf.constant([str(rows.times[-1])]),
    )
    np.testing.assert_allclose(got["forecast"], want, rtol=1e-4)
    got = [text.decode() for text in got["time"].numpy()[0]]
    assert got == [str(time).replace("T", " ") for time in later]


@pytest.mark.slow
def test_client_runs(finished, capsys):
    rows, _ = history_of(finished[0])
    client = finished[0] / "client.py"
    assert "keras" not in client.read_text().replace(str(finished[0]), "")
    runpy.run_path(str(client))
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"temp after {rows.times[-1]}".replace("T", " ")
    assert len(lines) == 24
    hour = str(rows.future_times(1)[0]).replace("T", " ")
    assert re.fullmatch(rf"{hour} -?\d+\.\d+", lines[0])


@pytest.mark.slow
def test_same_seed_same_model(finished, monkeypatch):
    narrow(monkeypatch)
    task = forecast.make_task(forecast.load_series(None, 260))
    options = program.parse(["quickstart", *RUN])
    model = forecast.build_informer(task, options)
    forecast.fit(model, task, options.epochs, options.seed)
    want = keras.models.load_model(finished[0] / "informer.keras").get_weights()
    for a, b in zip(model.get_weights(), want, strict=True):
        np.testing.assert_array_equal(a, b)
    # Another seed draws others, before any training.
    options.seed = 1
    other = forecast.build_informer(task, options).get_weights()
    assert any((a != b).any() for a, b in zip(other, want, strict=True))


@pytest.mark.slow
def test_takes_a_file_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    def export(*args, **kwargs):
        raise OSError("disk full")

    narrow(monkeypatch)
    monkeypatch.setattr(serving, "export_forecaster", export)
    path = write_series(tmp_path / "mine.csv", make_series(columns=("oil",)))
    out = tmp_path / "out"
    out.mkdir()
    (out / "informer.keras").write_text("an earlier one")
    status, text, err = run(
        *["--data", path, "--epochs", 1, "--out", out, "--overwrite"]
    )
    # All seasons of the file are equal.
    assert re.search(r"^last 24 steps again +0\.0000 +0\.0000 ", text, re.M)
    assert re.search(r"^last 24 .* wins: its MSE is 100\.0% below", text, re.M)
    assert (status, err) == (1, "error: disk full\n")
    assert (out / "informer.keras").read_text() == "an earlier one"
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "informer.keras",
        "mine.csv",
        "out",
    ]


@pytest.mark.parametrize(
    ("frequency", "step", "season", "calendar"),
    [
        ("h", 3600, 24, "timeF"),
        ("15min", 900, 96, "timeF"),
        ("min", 60, None, "timeF"),  # 1440 steps are more than a window holds
        ("5h", 18000, None, "timeF"),  # a day is no whole number of steps
        ("d", 86400, 7, "timeF"),
        ("12h", 43200, 2, "timeF"),
    ],
)
def test_season_of(frequency, step, season, calendar):
    task = forecast.make_task([make_series(frequency=frequency, step=step)])
    assert (task.season, task.calendar) == (season, calendar)


def test_years_have_no_calendar_and_no_season():
    times = [f"{year}-01-01" for year in range(1700, 1950)]
    series = data.TimeSeries(np.arange(250.0), times, "YS")
    task = forecast.make_task([series])
    assert (task.season, task.calendar) == (None, None)
    inputs, _ = next(iter(task.windows("train")))
    assert list(inputs) == ["values"]


def test_windows_do_not_cross_the_parts():
    task = forecast.make_task([make_series(300)])
    ends = {name: part[0].times[-1] for name, part in task.parts.items()}
    for before, after in (("train", "validation"), ("validation", "test")):
        # The first step to be forecast follows the last row of the part before.
        first = task.parts[after][0].times[forecast.SEQ_LEN]
        assert first == ends[before] + np.timedelta64(1, "h")
    np.testing.assert_allclose(
        task.scaler.mean, make_series(300).values[:210].mean(axis=0)
    )


def test_recent_rows_are_the_last_without_a_gap():
    series = make_series(600)
    values = series.values.copy()
    values[-5] = np.nan
    series = data.TimeSeries(values, series.times, "h", missing="keep")
    rows = forecast.recent_rows(forecast.make_task([series]))
    assert len(rows) == forecast.SEQ_LEN
    assert rows.times[-1] == series.times[-6]
    assert not rows.num_missing


def make_table(**mse):
    return pandas.DataFrame({"mse": mse}).sort_values("mse")


def test_says_who_wins():  # by hand: 0.9 is 10 % below 1, 0.5 is 50 % below 1
    got = forecast.format_winner(make_table(Informer=0.9, NLinear=1.0, DLinear=2.0))
    assert got == "Informer wins: its MSE is 10.0% below that of NLinear."
    got = forecast.format_winner(make_table(Informer=1.0, NLinear=0.5, DLinear=0.8))
    assert got == (
        "NLinear wins: its MSE is 50.0% below that of Informer, which is number 3 of 3."
    )


def test_bad_files(tmp_path):
    out = ["--out", tmp_path / "out"]
    check_error("must be a file.*no.csv", "--data", tmp_path / "no.csv", *out)
    check_error("must be a file.*CSV file", "--data", tmp_path, *out)
    path = write_series(tmp_path / "short.csv", make_series(239))
    check_error("must have 240 rows or more.*has 239", "--data", path, *out)
    check_error("must have 240 rows or more.*has 100", "--rows", 100, *out)
    path.write_text("time,oil\nmonday,1\n")
    check_error("'monday' at row 0", "--data", path, *out)
    path.write_text("time,oil\n2024-01-01,1\n2024-01-02,much\n")
    check_error("much", "--data", path, *out)
    path.write_text("")
    check_error("cannot be read", "--data", path, *out)
    series = make_series()
    frame = pandas.DataFrame(
        series.values, index=pandas.Index(series.times, name="time")
    )
    frame.drop(frame.index[100]).to_csv(path)
    check_error("regular step.*at equal steps", "--data", path, *out)
    frame.iloc[200:, 1] = np.nan
    frame.to_csv(path)
    check_error("the test part:.*without missing values", "--data", path, *out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["short.csv"]


def test_each_model_has_its_own_number_of_epochs():
    for model, epochs in (("fibinet", 8), ("informer", forecast.EPOCHS)):
        assert program.parse(["quickstart", "--model", model]).epochs == epochs
    assert program.parse(["quickstart", "--epochs", "3"]).epochs == 3
