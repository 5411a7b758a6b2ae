import json

import numpy as np
import pytest

from keras_recsys.data import SeriesScaler, TimeSeries, split_time_series

RNG = np.random.default_rng(0)
SCALER = SeriesScaler([1, 2, 10], [1, 1, 5])


def series_of(values):
    return TimeSeries(values, np.arange(len(values)) * 3600, "h", missing="keep")


def test_fit_by_hand():  # squares of -3, -1, 1, 3 have the mean 5
    scaler = SeriesScaler.fit([[1, 7], [3, 7], [5, 7], [7, 7]])
    np.testing.assert_allclose(scaler.mean, [4, 7])
    np.testing.assert_allclose(scaler.std, [5**0.5, 1])
    got = scaler.transform([[4.0, 7.0], [4 + 5**0.5, 8.0]])
    np.testing.assert_allclose(got, [[0, 0], [1, 1]])


def test_fit_leaves_missing_values_out():
    values = RNG.normal(size=(50, 3)) * [1, 10, 100] + 1000
    values[RNG.random(size=values.shape) < 0.2] = np.nan
    scaler = SeriesScaler.fit(values)
    for column in range(3):
        present = values[:, column][~np.isnan(values[:, column])]
        np.testing.assert_allclose(scaler.mean[column], present.mean(), rtol=1e-12)
        np.testing.assert_allclose(scaler.std[column], present.std(), rtol=1e-9)
    np.testing.assert_array_equal(np.isnan(scaler.transform(values)), np.isnan(values))


def test_a_constant_column_is_scaled_to_0():
    scaler = SeriesScaler.fit(np.full((3, 1), 0.1))
    assert scaler.std.tolist() == [1.0]
    np.testing.assert_allclose(scaler.transform(np.full((3, 1), 0.1)), 0, atol=1e-15)


def test_rows_of_the_test_do_not_count():
    values = RNG.normal(size=(100, 2))
    train, _, _ = split_time_series(series_of(values), seq_len=4)
    want = SeriesScaler.fit(train)
    values[70:] = 1e6
    train, _, _ = split_time_series(series_of(values), seq_len=4)
    np.testing.assert_array_equal(SeriesScaler.fit(train).mean, want.mean)
    np.testing.assert_array_equal(want.mean, values[:70].mean(axis=0))


def test_fit_takes_several_series():
    parts = [RNG.normal(size=(n, 2)) for n in (3, 5)]
    got = SeriesScaler.fit([series_of(part) for part in parts])
    want = SeriesScaler.fit(np.concatenate(parts))
    assert got.to_dict() == want.to_dict()


def test_inverse_of_the_target_by_hand():
    for y in ([0.2, -1], [[0.2], [-1]], [[[0.2], [-1]]]):
        want = np.reshape([11.0, 5.0], np.shape(y))
        np.testing.assert_allclose(SCALER.inverse_transform(y), want)
        np.testing.assert_allclose(SCALER.transform(want), y)
    got = SCALER.inverse_transform([[0.5, 1]])  # the last two columns
    np.testing.assert_allclose(got, [[2.5, 15]])


@pytest.mark.parametrize(
    "shape", [(4,), (4, 1), (4, 2), (4, 3), (2, 4, 3), (1, 2, 4, 3)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_inverse_undoes_transform(shape, dtype):
    x = RNG.normal(size=shape).astype(dtype)
    y = SCALER.transform(x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    np.testing.assert_allclose(SCALER.inverse_transform(y), x, rtol=1e-5, atol=1e-6)


def test_integers_become_floats():
    got = SCALER.transform([[1, 2, 11]])
    assert got.dtype == "float64"
    np.testing.assert_allclose(got, [[0, 0, 0.2]])


def test_survives_json():
    scaler = SeriesScaler.fit(RNG.normal(size=(7, 3)))
    again = SeriesScaler.from_dict(json.loads(json.dumps(scaler.to_dict())))
    np.testing.assert_array_equal(again.mean, scaler.mean)
    np.testing.assert_array_equal(again.std, scaler.std)


@pytest.mark.parametrize("config", [{}, {"mean": [1.0]}, [1.0]])
def test_says_which_config_was_given(config):
    with pytest.raises(ValueError, match="`config` must be a dict.*config="):
        SeriesScaler.from_dict(config)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ([1, 2], [1, 0], r"`std` must hold positive finite.*\[1, 0\]"),
        ([1, 2], [1, -1], r"`std` must hold positive finite.*\[1, -1\]"),
        ([1, np.nan], [1, 1], r"`mean` must hold finite numbers.*nan"),
        ([1, 2], [1, np.inf], r"`std` must hold positive finite.*inf"),
        ([1, 2], [1], r"`std` must hold as many numbers as `mean`, 2.*1 numbers"),
        (1.0, 1.0, r"`mean` must hold one number for each column.*mean=1.0"),
        ([], [], r"`mean` must hold one number for each column.*mean=\[\]"),
    ],
)
def test_says_which_moments_were_given(mean, std, message):
    with pytest.raises(ValueError, match=message):
        SeriesScaler(mean, std)


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ([1.0, 2.0], r"shape \(num_rows, num_columns\).*\(2,\)"),
        (np.zeros((2, 0)), r"shape \(num_rows, num_columns\).*\(2, 0\)"),
        ([[1.0, np.inf]], "finite numbers or NaN.*inf at row 0 of column 1"),
        ([[1.0, np.nan]], "at least one value in each column.*column 1"),
        (np.zeros((0, 2)), "at least one value in each column.*column 0"),
        (
            [series_of(np.zeros((2, 1))), series_of(np.zeros((2, 2)))],
            "same columns and frequency.*series 1",
        ),
    ],
)
def test_says_what_cannot_be_fitted(series, message):
    with pytest.raises(ValueError, match=f"`series` must .*{message}"):
        SeriesScaler.fit(series)


def test_takes_numbers_alone():
    with pytest.raises(TypeError, match="`series` must hold real numbers"):
        SeriesScaler.fit([["a", "b"]])
    with pytest.raises(TypeError, match="`series` must be a `TimeSeries` or a list"):
        SeriesScaler.fit([series_of(np.zeros((2, 1))), 3])
    with pytest.raises(TypeError, match="`y` must hold real numbers"):
        SCALER.inverse_transform(["a"])


@pytest.mark.parametrize("shape", [(), (2, 4), (2, 0)])
def test_says_which_shape_was_given(shape):
    for method, name in ((SCALER.transform, "x"), (SCALER.inverse_transform, "y")):
        with pytest.raises(ValueError, match=rf"`{name}` must be of shape.*at most 3"):
            method(np.zeros(shape))
