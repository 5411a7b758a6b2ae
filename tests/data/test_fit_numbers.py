import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recsys.data import fit_numbers
from keras_recsys.features import (
    CategoricalFeature,
    NumericFeature,
    make_inputs,
    normalize_numbers,
)

RNG = np.random.default_rng(0)
COLUMNS = {
    "price": RNG.normal(1e6, 1e-1, 1000),  # sums of squares would lose its digits
    "count": RNG.integers(-2, 500, 1000),
    "same": np.full(1000, 0.1, "float32"),
}
NORMALIZATIONS = {"count": "log", "price": "zscore", "same": "zscore"}


def batches(columns, size=64):
    return tf.data.Dataset.from_tensor_slices(columns).batch(size)


@pytest.mark.parametrize("size", [1, 64, 1000])
def test_equals_the_fit_of_whole_columns(size):
    dataset = batches((COLUMNS, np.zeros(1000)), size)
    found = fit_numbers(dataset, NORMALIZATIONS)
    assert list(found) == list(NORMALIZATIONS)
    for name, normalization in NORMALIZATIONS.items():
        want = NumericFeature.fit(name, COLUMNS[name], normalization=normalization)
        assert found[name].normalization == normalization
        np.testing.assert_allclose(found[name].mean, want.mean, rtol=1e-12)
        np.testing.assert_allclose(found[name].std, want.std, rtol=1e-9)


def test_by_hand():  # log(1 + 0) = 0 and log(1 + e - 1) = 1
    columns = {"x": np.array([0.0, np.e - 1]), "y": np.array([3.0, 7.0])}
    found = fit_numbers(batches(columns, 1), {"x": "log", "y": "zscore"})
    np.testing.assert_allclose([found["x"].mean, found["x"].std], 0.5, rtol=1e-12)
    assert found["y"] == NumericFeature("y", normalization="zscore", mean=5.0, std=2.0)


def test_case_47_negative_counts_of_the_log_are_zero():
    counts = np.float32([-2, -1, 0, 3])
    feature = fit_numbers(batches({"I1": counts}, 3), {"I1": "log"})["I1"]
    logs = np.log([1, 1, 1, 4])  # -2 and -1 count as 0
    np.testing.assert_allclose(feature.mean, logs.mean(), rtol=1e-12)
    np.testing.assert_allclose(feature.std, logs.std(), rtol=1e-12)
    features = [feature, CategoricalFeature("city", 3)]
    inputs = make_inputs(features)
    model = keras.Model(inputs, normalize_numbers(inputs, features))
    got = np.array(model({"I1": counts, "city": np.zeros(4, "int32")})).ravel()
    want = (logs - logs.mean()) / logs.std()
    assert np.isfinite(got).all()
    assert got[0] == got[1] == got[2]
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize(
    ("normalizations", "error", "message"),
    [
        (["price"], TypeError, r"`normalizations` must be a dict.*\['price'\]"),
        ({}, ValueError, "`normalizations` must name"),
        ({"cost": "log"}, ValueError, r"`normalizations`.*\['cost'\]"),
        ({"price": None}, ValueError, r"`normalizations\['price'\]`.*=None"),
        ({"city": "log"}, TypeError, "Column 'city' must be a tensor of numbers"),
        ({"wide": "log"}, ValueError, r"Column 'wide'.*\(None, 2\)"),
        ({"bad": "log"}, ValueError, "Column 'bad' must hold finite.*nan at row 3"),
    ],
)
def test_says_what_is_wrong(normalizations, error, message):
    columns = {
        "price": np.ones(4),
        "city": ["a"] * 4,
        "wide": np.ones((4, 2)),
        "bad": [1.0, 2.0, 3.0, np.nan],
    }
    with pytest.raises(error, match=message):
        fit_numbers(batches(columns, 2), normalizations)


def test_says_what_is_wrong_with_the_dataset():
    dataset = batches({"x": [1.0]})
    with pytest.raises(ValueError, match="finite; cut it"):
        fit_numbers(dataset.repeat(), {"x": "log"})
    with pytest.raises(ValueError, match="at least one row"):
        fit_numbers(dataset.take(0), {"x": "log"})
    with pytest.raises(TypeError, match=r"`dataset` must be a `tf.data"):
        fit_numbers([1], {"x": "log"})
