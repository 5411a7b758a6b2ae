import keras
import numpy as np
import pytest
from helpers import array

from keras_recsys._initializers import FanInUniform, bias_for, clone


def draw(initializer, shape):
    return array(initializer(shape, dtype="float32"))


@pytest.mark.parametrize(
    ("shape", "fan_in"),
    [((25, 400), 25), ((3, 12, 400), 36), ((5, 2000), 5)],
)
def test_fan_in_uniform_reads_the_fan_in_of_the_shape(shape, fan_in):
    values = draw(FanInUniform(seed=1), shape)
    limit = fan_in**-0.5
    assert 0.99 * limit < np.abs(values).max() <= limit
    assert abs(values.mean()) < 0.02 * limit
    assert abs(values.std() / (limit / 3**0.5) - 1) < 0.02  # of a uniform variable


def test_fan_in_uniform_takes_a_given_fan_in():
    # By hand: 1 / sqrt(16) = 0.25.
    values = draw(FanInUniform(16, seed=1), (5000,))
    assert 0.249 < np.abs(values).max() <= 0.25
    assert (values < 0).any()


def test_fan_in_uniform_keeps_its_seed_and_config():
    first, second = (FanInUniform(4, seed=3) for _ in range(2))
    np.testing.assert_array_equal(draw(first, (6,)), draw(second, (6,)))
    config = keras.initializers.serialize(first)
    again = keras.initializers.deserialize(config)
    assert again.get_config() == {"fan_in": 4, "seed": 3}
    np.testing.assert_array_equal(draw(again, (6,)), draw(first, (6,)))
    assert np.any(draw(clone(first, 1), (6,)) != draw(first, (6,)))
    unseeded = FanInUniform()
    assert unseeded.get_config() == {"fan_in": None, "seed": None}
    assert np.any(draw(clone(unseeded, 1), (6, 2)) != draw(unseeded, (6, 2)))


def test_bias_for_binds_the_fan_in_and_moves_the_seed_on():
    kernel = FanInUniform(seed=3)
    bias = bias_for(kernel, 16)
    assert bias.get_config() == {"fan_in": 16, "seed": 4}
    assert kernel.get_config() == {"fan_in": None, "seed": 3}
    assert bias_for(bias, 25) is bias
    zeros = keras.initializers.Zeros()
    assert bias_for(zeros, 16) is zeros
    dense = keras.layers.Dense(
        3000, kernel_initializer=kernel, bias_initializer=bias_for(kernel, 4)
    )
    dense.build((None, 4))
    for weight in dense.get_weights():
        assert 0.49 < np.abs(weight).max() <= 0.5


def test_fan_in_uniform_says_what_was_given():
    with pytest.raises(ValueError, match=r"`fan_in`.*fan_in=None, shape=\(5,\)"):
        FanInUniform()((5,))
    with pytest.raises(TypeError, match="`fan_in` must be an integer.*fan_in=2.5"):
        FanInUniform(2.5)
    with pytest.raises(ValueError, match="`fan_in` must be at least 1.*fan_in=0"):
        FanInUniform(0)
