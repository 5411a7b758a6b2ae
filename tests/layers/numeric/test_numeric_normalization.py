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


def test_takes_one_number_a_row():
    with pytest.raises(ValueError, match=r"\(batch_size, 1\).*\(4, 2\)"):
        NumericNormalization()(np.ones((4, 2), "float32"))
