import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import BACKEND
from keras import ops
from matplotlib.figure import Figure

from keras_recsys.analysis import (
    compare_forecasters,
    evaluate_forecasts,
    plot_forecasts,
)
from keras_recsys.data import SeriesScaler, TimeSeries, make_window_dataset
from keras_recsys.models import build_repeat_last, build_seasonal_naive

RNG = np.random.default_rng(0)
SIZES = {"seq_len": 5, "pred_len": 3}
SERIES = TimeSeries(
    RNG.normal(size=(18, 2)) * [1, 20] + [5, 300], 3600 * np.arange(18), "h"
)
SCALER = SeriesScaler.fit(SERIES)
# One window of 3 known steps, 2 to come, of the last of 2 channels.
VALUES = np.array([[[9, 1], [9, 2], [9, 4]]], "float32")
TRUTH = np.array([[[5], [2]]], "float32")


def windows(**kwargs):
    return make_window_dataset(SERIES, **SIZES, **{"batch_size": 4, **kwargs})


class Slope(keras.Model):
    """Goes on from the last step as the last two say; it counts its traces."""

    def __init__(self, form="tensor"):
        super().__init__()
        self.form = form
        self.dropout = keras.layers.Dropout(0.9)
        self.traces = 0

    def call(self, inputs, training=None):
        self.traces += 1
        x = self.dropout(inputs["values"], training=training)
        steps = ops.reshape(ops.arange(1, 4, dtype="float32"), (1, 3, 1))
        x = x[:, -1:] + steps * (x[:, -1:] - x[:, -2:-1])
        return x if self.form == "tensor" else {"forecast": x, "other": x}


def errors_loop():
    """Errors of `Slope` and of repeat-last, window by window, in float64."""
    scaled = (SERIES.values - SERIES.values.mean(0)) / SERIES.values.std(0)
    slope, repeat = [], []
    for first in range(18 - 5 - 3 + 1):
        known, truth = scaled[first : first + 5], scaled[first + 5 : first + 8]
        for step in range(3):
            last, before = known[-1], known[-2]
            slope.append(last + (step + 1) * (last - before) - truth[step])
            repeat.append(last - truth[step])
    return np.array(slope), np.array(repeat)


@pytest.mark.parametrize("form", ["tensor", "dict"])
@pytest.mark.parametrize("batch_size", [1, 4, 11, 100])
def test_equals_the_loop_for_any_batch_size(batch_size, form):
    batches = windows(scaler=SCALER, batch_size=batch_size)
    got = evaluate_forecasts(Slope(form), batches, scaler=SCALER)
    error, _ = errors_loop()
    raw = error * SERIES.values.std(0)
    assert got.pop("num_windows") == 11
    want = {
        "mse": np.mean(error**2),
        "mae": np.mean(np.abs(error)),
        "rmse": np.mean(error**2) ** 0.5,
        "raw_mse": np.mean(raw**2),
        "raw_mae": np.mean(np.abs(raw)),
        "raw_rmse": np.mean(raw**2) ** 0.5,
    }
    assert got == pytest.approx(want, rel=1e-5)
    assert all(type(x) is float for x in got.values())


def test_partial_batch_weighs_by_its_size_by_hand():
    # Errors -1 and 2 in two windows, -4 and 0 in a third one: squares of 1, 4, 1, 4, 16
    # and 0. The mean of the means of the batches would be (2.5 + 8) / 2.
    model = build_repeat_last(2, seq_len=3, pred_len=2, num_outputs=1)
    batches = [
        ({"values": VALUES.repeat(2, 0)}, TRUTH.repeat(2, 0)),
        ({"values": VALUES[:0]}, TRUTH[:0]),
        ({"values": VALUES}, np.array([[[8], [4]]])),
    ]
    got = evaluate_forecasts(model, batches)
    assert got == pytest.approx(
        {"num_windows": 3, "mse": 26 / 6, "mae": 10 / 6, "rmse": (26 / 6) ** 0.5}
    )
    # The target is the last column of the scaler: errors are times 5.
    scaler = SeriesScaler([1, 2, 10], [1, 1, 5])
    got = evaluate_forecasts(model, batches, scaler=scaler)
    assert got["mse"] == pytest.approx(26 / 6)
    assert got["raw_mse"] == pytest.approx(25 * 26 / 6)
    assert got["raw_mae"] == pytest.approx(50 / 6)


def test_sums_do_not_lose_small_errors():
    # In float32 the 1 in 10001 would be lost beside 10000^2.
    y = np.array([[[1e4], [1.0]]])
    batches = [({"values": np.zeros((1, 2, 1), "float32")}, y)] * 2
    model = build_repeat_last(1, seq_len=2, pred_len=2)
    assert evaluate_forecasts(model, batches)["mse"] == (1e8 + 1) / 2


@pytest.mark.skipif(BACKEND == "torch", reason="PyTorch traces nothing")
def test_one_trace_for_each_shape_of_batch():
    model = Slope()
    for _ in range(3):
        evaluate_forecasts(model, windows())
    traces = model.traces
    evaluate_forecasts(model, windows())
    compare_forecasters({"slope": model}, windows())
    assert model.traces == traces <= 4  # one more builds the model


def test_table_has_a_line_for_repeat_last():
    models = {
        "slope": Slope(),
        "season": build_seasonal_naive(2, period=2, **SIZES),  # reads no calendar
    }
    table = compare_forecasters(models, windows(scaler=SCALER), scaler=SCALER)
    assert set(table.index) == {"slope", "season", "repeat last"}
    assert table["mse"].is_monotonic_increasing
    assert list(table.columns) == [
        "mse", "mae", "rmse", "raw_mse", "raw_mae", "raw_rmse", "skill"
    ]  # fmt: skip
    slope, repeat = errors_loop()
    mse = table["mse"]
    np.testing.assert_allclose(mse["repeat last"], np.mean(repeat**2), rtol=1e-5)
    np.testing.assert_allclose(mse["slope"], np.mean(slope**2), rtol=1e-5)
    skill = 1 - np.mean(slope**2) / np.mean(repeat**2)
    np.testing.assert_allclose(table["skill"]["slope"], skill, rtol=1e-5)
    assert table["skill"]["repeat last"] == 0
    own = evaluate_forecasts(models["season"], windows(scaler=SCALER))
    assert mse["season"] == own["mse"]


def test_table_by_hand():
    # Repeat-last errs by -1 and 2; a season of 2 steps, 2 and 4, errs by -3 and 2.
    season = build_seasonal_naive(2, seq_len=3, pred_len=2, num_outputs=1, period=2)
    batches = [({"values": VALUES}, TRUTH)]
    table = compare_forecasters({"season": season}, batches)
    assert list(table.index) == ["repeat last", "season"]
    assert table["mse"].tolist() == [2.5, 6.5]
    assert table["mae"].tolist() == [1.5, 2.5]
    np.testing.assert_allclose(table["skill"], [0, 1 - 6.5 / 2.5])
    table = compare_forecasters({"repeat last": season}, batches)
    assert table["mse"].tolist() == [6.5]  # that of the user


def test_lines_of_a_plot_by_hand():
    model = build_repeat_last(2, seq_len=3, pred_len=2, num_outputs=1)
    batches = [
        ({"values": VALUES}, TRUTH),
        ({"values": VALUES[[0, 0]] + 1}, TRUTH[[0, 0]] + 1),
    ]
    figure = plot_forecasts(
        {"repeat": model},
        batches,
        windows=[2, 0],
        scaler=SeriesScaler([0, 10], [1, 5]),
        num_known=2,
    )
    assert isinstance(figure, Figure)
    first, second = figure.axes
    assert first.get_title() == "window 2"
    assert second.get_title() == "window 0"
    lines = {x.get_label(): x.get_xydata().tolist() for x in second.lines}
    assert lines == {  # times 5 and plus 10
        "known": [[-1, 20], [0, 30]],
        "truth": [[1, 35], [2, 20]],
        "repeat": [[1, 30], [2, 30]],
    }
    known = first.lines[0].get_ydata().tolist()
    assert known == [25, 35]
    texts = [x.get_text() for x in first.get_legend().get_texts()]
    assert texts == ["known", "truth", "repeat"]


@pytest.mark.parametrize("channel", [0, -2])
def test_plot_of_another_channel(tmp_path, channel):
    figure = plot_forecasts(
        {"slope": Slope("dict")},
        windows(scaler=SCALER),
        windows=[10],
        channel=channel,
        scaler=SCALER,
    )
    known, truth, _ = (x.get_ydata() for x in figure.axes[0].lines)
    np.testing.assert_allclose(known, SERIES.values[10:15, 0], rtol=1e-5)
    np.testing.assert_allclose(truth, SERIES.values[15:18, 0], rtol=1e-5)
    figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


@pytest.mark.parametrize("evaluate", [evaluate_forecasts, compare_forecasters])
def test_datasets_that_do_not_fit(evaluate):
    model = build_repeat_last(2, **SIZES)
    if evaluate is compare_forecasters:
        model = {"model": model}
    inputs, y = next(iter(windows()))
    for batches, error, match in (
        (windows().repeat(), ValueError, "must be finite"),
        ([], ValueError, "at least one window.*an empty dataset"),
        ([(inputs, y[:0])], ValueError, "at least one window"),
        ([inputs], TypeError, r"elements \(inputs, y\).*type dict"),
        ([(inputs, y, y)], TypeError, "type tuple"),
        ([({"x": y}, y)], ValueError, r"name 'values'.*names \['x'\]"),
        ([(y, y)], ValueError, r"name 'values'.*names \[\]"),
        ([(inputs, y[:, 0])], ValueError, r"y of shape.*Received: shape \(4, 2\)"),
        # Would be spread over both channels.
        ([(inputs, y[:, :, -1:])], ValueError, r"shape of y, \(4, 3, 1\).*\(4, 3, 2\)"),
    ):
        with pytest.raises(error, match=match):
            evaluate(model, batches)


def test_says_what_was_given():
    model = build_repeat_last(2, **SIZES)
    batches = windows()
    with pytest.raises(TypeError, match=r"must be a `keras.Model`.*'model': None"):
        evaluate_forecasts(None, batches)
    for models in (model, [model], {"a": model, "b": len}):
        for function in (compare_forecasters, plot_forecasts):
            with pytest.raises(TypeError, match="a dict from name to"):
                function(models, batches)
    for scaler, error, match in (
        (1.0, TypeError, "`scaler` must be None or.*scaler=1.0"),
        (SeriesScaler([0], [1]), ValueError, "each of 2 output channels. Received: 1"),
    ):
        with pytest.raises(error, match=match):
            evaluate_forecasts(model, batches, scaler=scaler)
        with pytest.raises(error, match=match):
            plot_forecasts({}, batches, scaler=scaler)
    inputs = keras.Input((5, 2), name="values")
    other = keras.Model({"values": inputs}, {"y": inputs[:, :3]})
    with pytest.raises(ValueError, match=r"output 'forecast'.*outputs \['y'\]"):
        evaluate_forecasts(other, batches)


def test_names_of_a_plot_stay_its_own():
    model = build_repeat_last(2, **SIZES)
    for name in ("known", "truth"):
        with pytest.raises(ValueError, match=f"than 'known' and 'truth'.*'{name}'"):
            plot_forecasts({"a": model, name: model}, windows())


def test_batches_of_lists():
    x = np.arange(10.0).reshape(1, 5, 2)
    y = np.full((1, 3, 2), 9.0)
    table = compare_forecasters({}, [({"values": x.tolist()}, y.tolist())])
    assert table.loc["repeat last", "mse"] == 0.5  # the last values are 8 and 9
    for bad in (x[0], x[None]):
        for function in (compare_forecasters, plot_forecasts):
            with pytest.raises(ValueError, match=r"must have values of shape.*: shape"):
                function({}, [({"values": bad}, y)])


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"windows": []}, ValueError, "`windows` must hold at least one"),
        ({"windows": [1.5]}, TypeError, "`windows` must be an integer.*windows=1.5"),
        ({"windows": [-1]}, ValueError, "windows=-1"),
        ({"windows": [0, 11]}, ValueError, r"of the 11 windows.*windows=\[0, 11\]"),
        ({"channel": 2}, ValueError, "one of the 2 output channels.*channel=2"),
        ({"channel": -3}, ValueError, "channel=-3"),
        ({"channel": "OT"}, TypeError, "`channel` must be an integer.*'OT'"),
        ({"num_known": 0}, ValueError, "num_known=0"),
    ],
)
def test_plot_says_what_was_given(arguments, error, match):
    with pytest.raises(error, match=match):
        plot_forecasts({}, windows(), **arguments)


def test_a_dataset_of_unknown_length():
    batches = tf.data.Dataset.from_generator(
        lambda: iter([({"values": VALUES}, TRUTH)]),
        output_signature=(
            {"values": tf.TensorSpec((None, 3, 2))},
            tf.TensorSpec((None, 2, 1)),
        ),
    )
    model = build_repeat_last(2, seq_len=3, pred_len=2, num_outputs=1)
    assert evaluate_forecasts(model, batches)["mse"] == 2.5


def test_says_nothing_of_models_that_are_traced(caplog):
    models = {str(i): build_repeat_last(2, **SIZES) for i in range(6)}
    logger = logging.getLogger("tensorflow")
    logger.addHandler(caplog.handler)
    try:
        compare_forecasters(models, windows())
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.messages
