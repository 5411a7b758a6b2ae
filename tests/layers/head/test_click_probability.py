import keras
import numpy as np
import pytest
from helpers import array, check_layer

from keras_recsys.layers import ClickProbability

RNG = np.random.default_rng(0)
LOGITS = [RNG.normal(size=(4, 1)).astype("float32") for _ in range(3)]


@pytest.mark.parametrize("inputs", [LOGITS, LOGITS[0]], ids=["list", "one"])
def test_contract(inputs, tmp_path):
    check_layer(ClickProbability, inputs, tmp_path)


def test_equals_the_formula():
    layer = ClickProbability()
    layer.build([(None, 1)] * 3)
    layer.set_weights([np.array([0.7])])
    want = 1 / (1 + np.exp(-(sum(x.astype("float64") for x in LOGITS) + 0.7)))
    np.testing.assert_allclose(array(layer(LOGITS)), want, rtol=1e-5)


def test_starts_at_a_base_rate():
    bias = keras.initializers.Constant(np.log(0.2 / 0.8))
    layer = ClickProbability(bias_initializer=bias)
    got = array(layer(np.zeros((1, 1), "float32")))
    np.testing.assert_allclose(got, [[0.2]], rtol=1e-6)


def test_is_float32_under_mixed_precision():
    keras.config.set_dtype_policy("mixed_float16")
    got = ClickProbability()(LOGITS[0].astype("float16"))
    assert keras.backend.standardize_dtype(got.dtype) == "float32"


def test_says_what_was_given():
    with pytest.raises(ValueError, match=r"\(batch_size, 1\).*\(4, 2\)"):
        ClickProbability()(np.ones((4, 2), "float32"))
