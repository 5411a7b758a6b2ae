import importlib
import os

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from helpers import randomize
from keras import layers

from keras_recsys._calendar import Frequency
from keras_recsys.data import SeriesScaler, TimeSeries, make_window_dataset
from keras_recsys.models import (
    build_dlinear,
    build_gru4rec,
    build_informer,
    build_nlinear,
    build_repeat_last,
    build_seasonal_naive,
    build_transformer_forecaster,
)
from keras_recsys.serving import ExportReport, export_forecaster

MODULE = importlib.import_module("keras_recsys.serving.export_forecaster")
SIZES = {"seq_len": 6, "pred_len": 3}
WIDTHS = {
    "hidden_dim": 4,
    "num_heads": 2,
    "intermediate_dim": 4,
    "encoder_layers": 1,
}
RNG = np.random.default_rng(0)
SERIES = TimeSeries(
    RNG.normal(size=(40, 3)) * [0.01, 1, 50] + [-1, 2, 1000],
    np.datetime64("2023-12-31T00:00:00") + 3600 * np.arange(40),
    "h",
)
SCALER = SeriesScaler.fit(SERIES)


@pytest.fixture
def unchecked(monkeypatch):
    """Leaves out the fresh process, where a test looks at something else."""
    monkeypatch.setattr(MODULE, "check_in_fresh_process", lambda *args: 0.0)


def make_toy(num_channels=1, features=None, take=slice(2, 5), dtype="float32"):
    """A model of 2 known steps that forecasts 3: the last one, or its calendar."""
    values = keras.Input((2, num_channels), name="values")
    if features is None:
        last = layers.RepeatVector(3)(values[:, -1])
        return keras.Model({"values": values}, {"forecast": last})
    calendar = keras.Input((5, features), name="calendar", dtype=dtype)
    forecast = layers.Identity(dtype="float32")(calendar[:, take])
    return keras.Model({"values": values, "calendar": calendar}, {"forecast": forecast})


def make_constant(forecast, num_channels):
    """A model of 2 known steps whose forecast is the same for each history."""
    values = keras.Input((2, num_channels), name="values")
    x = layers.Dense(
        np.size(forecast),
        kernel_initializer="zeros",
        bias_initializer=lambda shape, dtype: tf.reshape(
            tf.constant(forecast, dtype), shape
        ),
    )(layers.Flatten()(values))
    x = layers.Reshape(np.shape(forecast))(x)
    return keras.Model({"values": values}, {"forecast": x})


class Served:
    """An export, loaded; what it answers is arrays, and texts."""

    def __init__(self, path):
        self.loaded = tf.saved_model.load(str(path))  # it owns the weights

    def __call__(self, **inputs):
        signature = self.loaded.signatures["serving_default"]
        specs = signature.structured_input_signature[1]
        outputs = signature(
            **{name: tf.constant(x, specs[name].dtype) for name, x in inputs.items()}
        )
        if "time" not in outputs:
            return outputs["forecast"].numpy()
        return outputs["forecast"].numpy(), outputs["time"].numpy().astype(str)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The toy of hours in raw values, loaded."""
    path = tmp_path_factory.mktemp("served") / "1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "check_in_fresh_process", lambda *args: 0.0)
        export_forecaster(make_toy(2), path, frequency="h", verbose=False)
    return Served(path)


@pytest.mark.slow
def test_checked_in_a_fresh_process(tmp_path, capsys):
    report = export_forecaster(
        make_toy(3, 3, dtype="int32"),
        tmp_path / "made" / "1",
        scaler=SCALER,
        frequency="d",
    )
    assert isinstance(report, ExportReport)
    assert report.signatures == {
        "serving_default": {
            "inputs": {
                "values": ("float32", (None, 2, 3)),
                "time": ("string", (None,)),
            },
            "outputs": {
                "forecast": ("float32", (None, 3, 3)),
                "time": ("string", (None, 3)),
            },
        }
    }
    assert report.max_difference < 1e-3  # of a column around 1000
    assert capsys.readouterr().out == report.snippet
    compile(report.snippet, "client", "exec")
    assert "'time': tf.constant(['2023-12-25 00:00:00', " in report.snippet


@pytest.mark.parametrize(
    ("build", "options", "task"),
    [
        (build_informer, {"calendar_embedding": "fixed", **WIDTHS}, "MS"),
        (build_transformer_forecaster, {"frequency": "h", **WIDTHS}, "S"),
        (build_dlinear, {}, "MS"),
        (build_nlinear, {}, "M"),
        (build_repeat_last, {}, "S"),
        (build_seasonal_naive, {"period": 2}, "MS"),
    ],
)
def test_equals_the_model_on_windows(tmp_path, unchecked, build, options, task):
    num_channels = 1 if task == "S" else 3
    num_outputs = num_channels if task == "M" else 1
    model = build(num_channels, num_outputs=num_outputs, **SIZES, **options)
    randomize(model, np.random.default_rng(3))
    report = export_forecaster(
        model, tmp_path / "1", scaler=SCALER, frequency="h", verbose=False
    )
    # No value of the future is an input.
    inputs = report.signatures["serving_default"]["inputs"]
    assert inputs == {
        "values": ("float32", (None, 6, num_channels)),
        "time": ("string", (None,)),
    }
    embedding = options.get("calendar_embedding", "timeF")
    batches = make_window_dataset(
        SERIES, task=task, scaler=SCALER, embedding=embedding, batch_size=100, **SIZES
    )
    inputs, _ = next(iter(batches))
    want = model.predict_on_batch({name: inputs[name] for name in model.input})
    want = want["forecast"] * SCALER.std[-num_outputs:] + SCALER.mean[-num_outputs:]
    first = np.arange(len(want))
    got, times = Served(tmp_path / "1")(
        values=SERIES.values[first[:, None] + np.arange(6), -num_channels:],
        time=np.datetime_as_string(SERIES.times[first + 5]),
    )
    std = SCALER.std[-num_outputs:]
    np.testing.assert_allclose(got / std, want / std, rtol=2e-6, atol=1e-5)
    horizon = SERIES.times[first[:, None] + np.arange(6, 9)]
    np.testing.assert_array_equal(times.astype("datetime64[s]"), horizon)


def test_maps_back_by_the_last_column_by_hand(tmp_path, unchecked):
    # 0.2 * 5 + 10 and -1 * 5 + 10; the first two columns have other scales.
    model = make_constant([[0.2], [-1.0]], 3)
    scaler = SeriesScaler([1, 2, 10], [1, 1, 5])
    export_forecaster(model, tmp_path / "1", scaler=scaler, verbose=False)
    got = Served(tmp_path / "1")(values=np.ones((1, 2, 3)))
    np.testing.assert_allclose(got, [[[11], [5]]], rtol=1e-6)


@pytest.mark.parametrize(
    ("features", "dtype", "frequency", "time", "want"),
    [
        # Sunday, December 31, then Monday, January 1 of a leap year.
        (
            4,
            "float32",
            "h",
            "2023-12-31T22:00",
            [[0.5, 0.5, 0.5, 364 / 365 - 0.5], [-0.5] * 4, [1 / 23 - 0.5, *[-0.5] * 3]],
        ),
        # Month, day, weekday, hour and quarter of the hour.
        (
            5,
            "int32",
            "15min",
            "2024-02-29 23:30:00",
            [[2, 29, 3, 23, 3], [3, 1, 4, 0, 0], [3, 1, 4, 0, 1]],
        ),
        # Friday, then Monday to Wednesday.
        (3, "int32", "b", "2024-03-29", [[4, 1, 0], [4, 2, 1], [4, 3, 2]]),
    ],
)
def test_calendar_of_the_horizon_by_hand(
    tmp_path, unchecked, features, dtype, frequency, time, want
):
    model = make_toy(features, features, dtype=dtype)
    export_forecaster(model, tmp_path / "1", frequency=frequency, verbose=False)
    got, _ = Served(tmp_path / "1")(values=np.zeros((1, 2, features)), time=[time])
    np.testing.assert_allclose(got[0], want, rtol=1e-6)


def test_calendar_of_the_known_steps_by_hand(tmp_path, unchecked):
    model = make_toy(3, 3, slice(0, 3), "int32")
    export_forecaster(model, tmp_path / "1", frequency="2d", verbose=False)
    got, _ = Served(tmp_path / "1")(values=np.zeros((1, 2, 3)), time=["2024-03-01"])
    # Two days before, the last known day, and two days later.
    assert got[0].tolist() == [[2, 28, 2], [3, 1, 4], [3, 3, 6]]


@pytest.mark.parametrize(
    ("frequency", "start"),
    [
        ("s", "1969-12-31 23:59:58"),
        ("MS", "2023-11-01 06:00:00"),
        ("2QE", "2023-12-31 00:00:00"),
    ],
)
def test_times_are_those_of_pandas(tmp_path, unchecked, frequency, start):
    export_forecaster(make_toy(), tmp_path / "1", frequency=frequency, verbose=False)
    _, times = Served(tmp_path / "1")(values=np.zeros((1, 2, 1)), time=[start])
    want = pandas.date_range(start, periods=4, freq=frequency)[1:]
    assert times[0].tolist() == want.strftime("%Y-%m-%d %H:%M:%S").tolist()


def test_without_frequency_there_are_no_times(tmp_path, unchecked):
    model = build_repeat_last(1, **SIZES)
    report = export_forecaster(model, tmp_path / "1", verbose=False)
    assert report.signatures["serving_default"] == {
        "inputs": {"values": ("float32", (None, 6, 1))},
        "outputs": {"forecast": ("float32", (None, 3, 1))},
    }
    got = Served(tmp_path / "1")(values=np.arange(6.0).reshape(1, 6, 1))
    assert got.tolist() == [[[5], [5], [5]]]


def test_level_far_above_the_spread(tmp_path, unchecked):
    scaler = SeriesScaler([0, 1e6], [1, 1])
    with pytest.raises(
        ValueError, match="'float64' for values of mean 1000000.0.*channel 1"
    ):
        export_forecaster(make_toy(2), tmp_path / "1", scaler=scaler)
    assert os.listdir(tmp_path) == []
    report = export_forecaster(
        make_toy(2), tmp_path / "1", scaler=scaler, dtype="float64", verbose=False
    )
    signature = report.signatures["serving_default"]
    assert signature["inputs"]["values"] == ("float64", (None, 2, 2))
    assert signature["outputs"]["forecast"] == ("float64", (None, 3, 2))
    values = np.array([[[0, 1e6 + 0.01], [2, 1e6 - 0.75]]])
    got = Served(tmp_path / "1")(values=values)
    np.testing.assert_allclose(got[0, 0], [2, 1e6 - 0.75], rtol=0, atol=1e-6)
    for mean in (1e4, -1e4):  # float32 is good to a thousandth there
        export_forecaster(
            make_toy(),
            tmp_path / "2",
            scaler=SeriesScaler([mean], [1]),
            overwrite=True,
            verbose=False,
        )


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("2024-02-29 22:30:15", "2024-02-29 23:30:15"),
        ("2024-02-29T22:30", "2024-02-29 23:30:00"),
        ("2024-02-29", "2024-02-29 01:00:00"),
        ("2024-02", "2024-02-01 01:00:00"),
        ("0999-12-31 23:00", "1000-01-01 00:00:00"),
    ],
)
def test_spellings_of_a_time(served, text, want):
    _, times = served(values=np.zeros((1, 2, 2)), time=[text])
    assert times[0, 0] == want


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2023-02-29",
        "2024-13-01",
        "2024-00-10",
        "2024-01-00",
        "2024-01-01 24:00",
        "2024-01-01 10:60",
        "2024-01-01 10:00:60",
        "2024-1-1",
        "2024-01-01  10:00",
        "2024-01-01 10:00:00Z",
        "2024-01-01 10:00:00.5",
        "2024-01-01 10:00:00+01:00",
        "1704067200",
        "\u0662\u0660\u0662\u0664-01-01",
    ],
)
def test_refuses_what_is_no_time(served, text):
    match = "`time` must hold time stamps such as.*Received: time=.* at row 1"
    with pytest.raises(tf.errors.InvalidArgumentError, match=match) as caught:
        served(values=np.zeros((3, 2, 2)), time=["2024-01-01", text, "also bad"])
    if text.isascii():
        assert f"Received: time={text} at row 1." in str(caught.value)


@pytest.mark.parametrize(
    ("frequency", "text"), [("b", "2024-03-30"), ("ME", "2024-02-28")]
)
def test_refuses_what_is_no_step(tmp_path, unchecked, frequency, text):
    export_forecaster(make_toy(), tmp_path / "1", frequency=frequency, verbose=False)
    match = f"steps of {frequency}. Received: time={text} at row 0"
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        Served(tmp_path / "1")(values=np.zeros((1, 2, 1)), time=[text])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_refuses_what_is_not_finite(served, value):
    values = np.zeros((3, 2, 2))
    values[1, 1, 0] = values[2] = value
    match = f"`values` must be finite.*Received: {value} at row, step, channel 1, 1, 0"
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        served(values=values, time=["2024-01-01"] * 3)


@pytest.mark.parametrize("shape", [(3, 2, 1), (3, 1, 2), (3, 3, 2), (3, 2, 3)])
def test_refuses_values_of_another_shape(served, shape):
    match = rf"be of shape \(batch_size, 2, 2\). Received: \(batch_size, {shape[1]}, "
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        served(values=np.zeros(shape), time=["2024-01-01"] * 3)


def test_refuses_other_numbers_of_rows(served):
    match = "`time` must hold a time stamp for each.*Received: 1 time stamps, rows: 3"
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        served(values=np.zeros((3, 2, 2)), time=["2024-01-01"])


def test_no_rows(served):
    forecast, times = served(values=np.zeros((0, 2, 2)), time=np.zeros(0, str))
    assert forecast.shape == (0, 3, 2)
    assert times.shape == (0, 3)


@pytest.mark.parametrize("part", ["std", "mean"])
def test_wrong_answers_leave_what_was_there(tmp_path, unchecked, monkeypatch, part):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_text("the old export")
    save = MODULE._save

    def save_wrong(interface, scaler, *args):
        """A scaler that is wrong in its small column alone."""
        numbers = {"mean": scaler.mean.copy(), "std": scaler.std.copy()}
        numbers[part][0] += 1e-3 * scaler.std[0]
        save(interface, SeriesScaler(**numbers), *args)

    monkeypatch.setattr(MODULE, "_save", save_wrong)
    model = make_constant([[2.0, 2.0]], 2)
    scaler = SeriesScaler([0.1, 0], [0.01, 1000])
    with pytest.raises(RuntimeError, match="must answer as.*deviations by column"):
        export_forecaster(model, tmp_path / "1", scaler=scaler, overwrite=True)
    assert os.listdir(tmp_path) == ["1"]
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "the old export"
    with pytest.raises(FileExistsError, match="`path` must not exist"):
        export_forecaster(model, tmp_path / "1")


def test_wrong_times_are_found(tmp_path, unchecked, monkeypatch):
    save = MODULE._save

    def save_days(interface, scaler, frequency, *args):
        save(interface, scaler, Frequency.parse("d"), *args)

    monkeypatch.setattr(MODULE, "_save", save_days)
    with pytest.raises(
        RuntimeError, match=r"Received: times \[\['2023-12-26 00:00:00'"
    ):
        export_forecaster(make_toy(), tmp_path / "1", frequency="h")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("make", "arguments", "error", "match"),
    [
        (make_toy, {"scaler": {}}, TypeError, "`scaler` must be None or.*{}"),
        (
            lambda: make_toy(2),
            {"scaler": SeriesScaler([0], [1])},
            ValueError,
            "a mean for each of 2 channels. Received: 1",
        ),
        (make_toy, {"frequency": "hours"}, ValueError, "frequency='hours'"),
        (
            lambda: make_toy(),
            {"dtype": "float16"},
            ValueError,
            "`dtype`.*dtype='float16'",
        ),
        (
            lambda: make_toy(4, 4),
            {},
            ValueError,
            "`frequency` must be given.*Received: frequency=None",
        ),
        (
            lambda: make_toy(4, 4),
            {"frequency": "d"},
            ValueError,
            "the model was built with.*4 calendar features.*frequency='d', of 3",
        ),
        (
            lambda: build_informer(1, frequency="d", **SIZES, **WIDTHS),
            {"frequency": "b"},  # has as many features
            ValueError,
            r"built with, \['d'\].*frequency='b'",
        ),
        (
            lambda: build_informer(1, frequency="15min", **SIZES, **WIDTHS),
            {"frequency": "30min"},
            ValueError,
            r"built with, \['15min'\].*frequency='30min'",
        ),
        (
            lambda: build_gru4rec(9, embedding_dim=4, max_len=3),
            {},
            ValueError,
            "`model` must have the input 'values'.*'item_ids'",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_says_what_was_given(tmp_path, make, arguments, error, match):
    with pytest.raises(error, match=match):
        export_forecaster(make(), tmp_path / "1", **arguments)
    assert os.listdir(tmp_path) == []


def test_other_backend(tmp_path, monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "torch")
    with pytest.raises(RuntimeError, match="TensorFlow backend.*backend='torch'"):
        export_forecaster(make_toy(), tmp_path / "1")
