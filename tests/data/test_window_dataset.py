import numpy as np
import pytest

from keras_recsys.data import (
    SeriesScaler,
    TimeSeries,
    calendar_features,
    make_window_dataset,
)

RNG = np.random.default_rng(0)
SEQ, PRED = 4, 2


def series_of(num_rows, num_columns=3, frequency="h", missing=()):
    values = RNG.normal(size=(num_rows, num_columns)) * 5 + 100
    for row, column in missing:
        values[row, column] = np.nan
    if frequency == "h":
        times = np.arange(num_rows) * 3600
    else:
        times = np.arange(num_rows).astype("datetime64[Y]")
    return TimeSeries(values, times, frequency, missing="keep")


def windows_loop(parts, seq_len, pred_len, task, scaler=None, embedding="timeF"):
    """One window after another, in float64; those with a missing value left out."""
    found = []
    for part in parts:
        values = part.values
        if scaler is not None:
            values = (values - scaler.mean) / scaler.std
        for start in range(len(values) - seq_len - pred_len + 1):
            stop = start + seq_len
            x = values[start:stop]
            y = values[stop : stop + pred_len]
            if task != "M":
                y = y[:, -1:]
            if task == "S":
                x = x[:, -1:]
            times = part.times[start : stop + pred_len]
            marks = calendar_features(times, part.frequency, embedding)
            if not (np.isnan(x).any() or np.isnan(y).any()):
                found.append((x, marks, y))
    return [np.stack(arrays) for arrays in zip(*found, strict=True)]


def collect(dataset):
    batches = list(dataset)
    assert len(batches) == len(dataset)
    names = batches[0][0].keys()
    inputs = {n: np.concatenate([x[n] for x, _ in batches]) for n in names}
    return inputs, np.concatenate([y for _, y in batches])


def check(dataset, want):
    inputs, y = collect(dataset)
    assert list(inputs) == ["values", "calendar"]
    for got, expected in zip((*inputs.values(), y), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    assert inputs["values"].dtype == y.dtype == "float32"


@pytest.mark.parametrize("task", ["M", "S", "MS"])
@pytest.mark.parametrize("embedding", ["timeF", "fixed", "learned"])
def test_equals_the_loop(task, embedding):
    series = series_of(23)
    scaler = SeriesScaler.fit(series[:15])
    dataset = make_window_dataset(
        series,
        seq_len=SEQ,
        pred_len=PRED,
        task=task,
        scaler=scaler,
        embedding=embedding,
        batch_size=5,
    )
    assert len(dataset) == 4  # 18 windows
    check(dataset, windows_loop([series], SEQ, PRED, task, scaler, embedding))
    dtype = "float32" if embedding == "timeF" else "int32"
    assert dataset.element_spec[0]["calendar"].dtype == dtype


def test_by_hand():
    series = TimeSeries(np.arange(10.0).reshape(5, 2), np.arange(5) * 86400, "d")
    options = {"seq_len": 2, "pred_len": 1, "scaler": SeriesScaler([0, 1], [1, 2])}
    inputs, y = collect(make_window_dataset(series, task="MS", **options))
    want = [[[0, 0], [2, 1]], [[2, 1], [4, 2]], [[4, 2], [6, 3]]]
    np.testing.assert_array_equal(inputs["values"], want)
    np.testing.assert_array_equal(y, [[[2]], [[3]], [[4]]])
    assert inputs["calendar"].shape == (3, 3, 3)
    # Thursday, January 1
    np.testing.assert_allclose(inputs["calendar"][0, 0], [0, -0.5, -0.5], atol=1e-7)


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_no_window_is_lost(batch_size):
    series = series_of(30)
    for pred_len in (1, 26):  # 26 leaves a single window
        options = {"seq_len": SEQ, "pred_len": pred_len, "batch_size": batch_size}
        want = windows_loop([series], SEQ, pred_len, "M")
        assert len(want[0]) == 30 - SEQ - pred_len + 1
        check(make_window_dataset(series, **options), want)


def test_no_window_crosses_from_one_series_into_the_next():
    parts = [series_of(n) for n in (9, 6, 8)]
    dataset = make_window_dataset(parts, seq_len=SEQ, pred_len=PRED, batch_size=4)
    want = windows_loop(parts, SEQ, PRED, "M")
    assert len(want[0]) == 4 + 1 + 3
    check(dataset, want)


@pytest.mark.parametrize("task", ["M", "S", "MS"])
def test_windows_with_missing_values_are_left_out(task):
    # Row 8 lacks an input, row 25 the target.
    parts = [series_of(40, missing=[(8, 0), (25, 2)]), series_of(7)]
    want = windows_loop(parts, SEQ, PRED, task)
    # Windows that touch row 8, as input or as target, and row 25.
    lost = {"M": 6 + 6, "S": 6, "MS": 4 + 6}[task]
    assert len(want[0]) == 35 + 2 - lost
    dataset = make_window_dataset(
        parts, seq_len=SEQ, pred_len=PRED, task=task, missing="skip"
    )
    check(dataset, want)


def test_missing_values_are_refused():
    series = series_of(20, missing=[(8, 0), (12, 2)])
    options = {"seq_len": SEQ, "pred_len": PRED}
    message = r"no missing value.*row 8 \(1970-01-01T08:00:00\) of column '0' in .* 0"
    with pytest.raises(ValueError, match=message):
        make_window_dataset(series, **options)
    with pytest.raises(ValueError, match="row 12 .* of column '2' in series 1"):
        make_window_dataset([series[:8], series], task="S", **options)
    series = series_of(8, missing=[(3, 0)])
    with pytest.raises(ValueError, match="at least one window without.*of 8 rows"):
        make_window_dataset(series, missing="skip", **options)


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_shuffle(drop_remainder):
    series = TimeSeries(np.arange(103.0), np.arange(103) * 3600, "h")
    options = {
        "seq_len": 3,
        "pred_len": 1,
        "batch_size": 8,
        "shuffle": True,
        "drop_remainder": drop_remainder,
    }
    dataset = make_window_dataset(series, seed=1, **options)
    again = make_window_dataset(series, seed=1, **options)
    epochs = []
    for _ in range(2):
        (inputs, y), (inputs_again, _) = collect(dataset), collect(again)
        first = inputs["values"][:, 0, 0]
        np.testing.assert_array_equal(inputs_again["values"][:, 0, 0], first)
        np.testing.assert_array_equal(y[:, 0, 0], first + 3)
        if drop_remainder:
            assert len(first) == len(set(first)) == 96
        else:
            assert sorted(first) == list(range(100))
        epochs.append(first.tolist())
    assert epochs[0] != epochs[1]
    assert epochs[0] != sorted(epochs[0])
    other, _ = collect(make_window_dataset(series, seed=2, **options))
    assert other["values"][:, 0, 0].tolist() not in epochs


def test_shapes_are_static():
    series = series_of(40)
    options = {"seq_len": SEQ, "pred_len": PRED, "task": "MS", "batch_size": 8}
    for drop, rows in ((False, None), (True, 8)):
        inputs, y = make_window_dataset(
            series, drop_remainder=drop, **options
        ).element_spec
        assert tuple(inputs["values"].shape) == (rows, SEQ, 3)
        assert tuple(inputs["calendar"].shape) == (rows, SEQ + PRED, 4)
        assert tuple(y.shape) == (rows, PRED, 1)


def test_without_calendar():
    options = {"seq_len": SEQ, "pred_len": PRED}
    for dataset in (
        make_window_dataset(series_of(9), embedding=None, **options),
        make_window_dataset(series_of(9, frequency="y"), **options),
        make_window_dataset(series_of(9, frequency="y"), embedding="fixed", **options),
    ):
        assert list(dataset.element_spec[0]) == ["values"]


def test_scaler_of_the_target_serves_its_task():
    series = series_of(12)
    scaler = SeriesScaler.fit(series)
    target = SeriesScaler(scaler.mean[-1:], scaler.std[-1:])
    options = {"seq_len": SEQ, "pred_len": PRED, "task": "S"}
    _, want = collect(make_window_dataset(series, scaler=scaler, **options))
    _, got = collect(make_window_dataset(series, scaler=target, **options))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seq_len": 0}, "`seq_len` must be at least 1.*seq_len=0"),
        ({"pred_len": 0}, "`pred_len` must be at least 1.*pred_len=0"),
        ({"seq_len": 9}, "most the rows of the series, 10 in series 0.*=9.*11 rows"),
        ({"task": "SM"}, "`task` must be one of 'M', 'S', 'MS'.*task='SM'"),
        ({"missing": "keep"}, "`missing` must be one of 'error', 'skip'.*'keep'"),
        ({"embedding": "time"}, "`embedding` must be one of.*embedding='time'"),
        ({"batch_size": 0}, "`batch_size` must be at least 1.*batch_size=0"),
        ({"seed": -1}, "`seed` must be at least 0.*seed=-1"),
        ({"scaler": SeriesScaler([1], [1])}, "`scaler` must have .* 3 columns.*1"),
        (
            {"batch_size": 6, "drop_remainder": True},
            "`batch_size` must be at most the number of windows, 5,.*batch_size=6",
        ),
    ],
)
def test_says_which_option_is_wrong(options, message):
    with pytest.raises(ValueError, match=message):
        make_window_dataset(
            series_of(10), **{"seq_len": SEQ, "pred_len": PRED, **options}
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scaler": 3}, "`scaler` must be None or a `SeriesScaler`.*scaler=3"),
        ({"shuffle": 1}, "`shuffle` must be True or False.*shuffle=1"),
        ({"drop_remainder": None}, "`drop_remainder` must be True or False.*None"),
        ({"seq_len": 2.0}, "`seq_len` must be an integer.*seq_len=2.0"),
    ],
)
def test_says_which_option_is_of_a_wrong_type(options, message):
    with pytest.raises(TypeError, match=message):
        make_window_dataset(
            series_of(10), **{"seq_len": SEQ, "pred_len": PRED, **options}
        )


def test_series_go_together():
    options = {"seq_len": SEQ, "pred_len": PRED}
    with pytest.raises(ValueError, match=r"`series` must hold at least one.*\[\]"):
        make_window_dataset([], **options)
    with pytest.raises(TypeError, match="`series` must be a `TimeSeries` .*ndarray"):
        make_window_dataset(np.zeros((9, 2)), **options)
    with pytest.raises(ValueError, match="same columns and frequency.*series 1"):
        make_window_dataset([series_of(9), series_of(9, 2)], **options)
    with pytest.raises(ValueError, match="same columns and frequency.*'y' in series 1"):
        make_window_dataset([series_of(9), series_of(9, frequency="y")], **options)
    with pytest.raises(ValueError, match="most the rows of the series, 5 in series 1"):
        make_window_dataset([series_of(9), series_of(5)], **options)
