import numpy as np
import pytest
from helpers import array, check_layer

from keras_recsys.layers import NumericNormalization

X = np.array([-2.0, 0.0, 3.0, 1e6], "float32")


@pytest.mark.parametrize("normalization", [None, "zscore", "log"])
def test_contract(normalization, tmp_path):
    check_layer(
        lambda: NumericNormalization(normalization, mean=1.5, std=200.0),
        X,
        tmp_path,
        gradients=False,
    )


def test_by_hand():
    got = array(NumericNormalization("zscore", mean=1.0, std=2.0)(X))
    np.testing.assert_allclose(got, [[-1.5], [-0.5], [1.0], [499999.5]], rtol=1e-6)
    got = array(NumericNormalization("log", mean=1.0, std=2.0)(X))
    want = [(np.log1p(max(x, 0)) - 1) / 2 for x in X.tolist()]
    np.testing.assert_allclose(got[:, 0], want, rtol=1e-6)


def test_half_precision_normalizes_before_it_rounds():
    layer = NumericNormalization("zscore", mean=1e6, std=1e5, dtype="mixed_float16")
    got = array(layer(np.array([1.2e6], "float32")))
    np.testing.assert_allclose(got, [[2.0]], rtol=1e-3)


def test_nan_is_not_hidden():
    got = array(NumericNormalization("log")(np.array([np.nan, 1.0], "float32")))
    assert np.isnan(got[0, 0])
    assert np.isfinite(got[1, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"normalization": "minmax"}, "`normalization` must be one of.*'minmax'"),
        ({"mean": float("nan")}, "`mean` must be finite.*mean=nan"),
        ({"std": 0.0}, "`std` must be positive and finite.*std=0.0"),
        ({"std": float("inf")}, "`std` must be positive and finite.*std=inf"),
    ],
)
def test_says_what_was_given(arguments, message):
    with pytest.raises(ValueError, match=message):
        NumericNormalization(**arguments)


SEVERAL = {
    "normalization": ["log", None, "zscore"],
    "mean": [0.5, 0.0, 2.0],
    "std": [2.0, 1.0, 4.0],
}
ROWS = np.array([[-1.0, -1.0, 6.0], [0.0, 3.5, 2.0], [9.0, 0.0, -2.0]], "float32")


@pytest.mark.parametrize(
    "inputs", [ROWS, list(ROWS.T), list(ROWS.T[..., None])], ids=["rows", "list", "one"]
)
def test_contract_of_several_numbers(inputs, tmp_path):
    inputs = [x.copy() for x in inputs] if isinstance(inputs, list) else inputs
    check_layer(
        lambda: NumericNormalization(**SEVERAL), inputs, tmp_path, gradients=False
    )


def normalize_loop(x, normalization, mean, std):
    """The formula of the docstring, one number at a time."""
    out = np.zeros(x.shape)
    for b, n in np.ndindex(x.shape):
        t = np.log1p(max(x[b, n], 0.0)) if normalization[n] == "log" else x[b, n]
        out[b, n] = (t - mean[n]) / std[n]
    return out


@pytest.mark.parametrize("normalization", [["log", None, "zscore"], ["log"] * 3, None])
def test_several_numbers_equal_the_loop(normalization):
    arguments = {**SEVERAL, "normalization": normalization}
    layer = NumericNormalization(**arguments)
    arguments["normalization"] = normalization or [None] * 3
    want = normalize_loop(ROWS.astype("float64"), **arguments)
    np.testing.assert_allclose(array(layer(ROWS)), want, rtol=1e-5, atol=1e-6)
    columns = [column.copy() for column in ROWS.T]
    np.testing.assert_array_equal(array(layer(columns)), array(layer(ROWS)))


def test_one_setting_holds_for_all_numbers():
    got = array(NumericNormalization("zscore", mean=1.0, std=2.0)(ROWS))
    np.testing.assert_allclose(got, (ROWS - 1) / 2)
    got = array(NumericNormalization(mean=np.array([1.0, 2.0, 3.0]))(ROWS))
    np.testing.assert_allclose(got, ROWS - [1, 2, 3])


def test_numbers_of_several_dtypes():
    layer = NumericNormalization(["log", None], mean=[0.0, 1.0])
    got = array(layer([np.array([0, 7], "int32"), np.array([1.5, 2.0], "float32")]))
    np.testing.assert_allclose(got, [[0, 0.5], [np.log(8), 1]], rtol=1e-6)


def test_settings_of_several_numbers_are_of_one_length():
    with pytest.raises(ValueError, match="of one length.*'mean': 2, 'std': 3"):
        NumericNormalization(mean=[0.0, 1.0], std=[1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="of one length, at least 1.*'mean': 0"):
        NumericNormalization(mean=[])
    with pytest.raises(ValueError, match="`std` must be positive.*std=-1.0"):
        NumericNormalization(std=[1.0, -1.0])


@pytest.mark.parametrize(
    "inputs",
    [
        np.ones((4, 3), "float32"),
        np.ones((4, 2, 1), "float32"),
        np.ones(4, "float32"),
        [np.ones(4, "float32")] * 3,
        [np.ones((4, 2), "float32")],
        [np.ones((4, 2), "float32")] * 2,
    ],
    ids=["three", "cube", "one", "three_columns", "one_of_two", "two_of_two"],
)
def test_says_what_shape_was_given(inputs):
    with pytest.raises(ValueError, match=r"\(batch_size, 2\), or a list.*\(4,"):
        NumericNormalization(["log", None])(inputs)
