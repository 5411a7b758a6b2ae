import numpy as np
import pytest
from helpers import array, check_layer

from keras_recsys.layers import SENETLayer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 7, 4)).astype("float32")
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def senet_loop(x, reduction, expansion, squeeze, activation):
    """The formulas of the docstring, one sample and field at a time, in float64."""
    out = np.zeros(x.shape)
    for b, sample in enumerate(x.astype("float64")):
        z = [field.mean() if squeeze == "mean" else field.max() for field in sample]
        a = ACTIVATIONS[activation](np.maximum(z @ reduction, 0) @ expansion)
        for f, field in enumerate(sample):
            out[b, f] = a[f] * field
    return out


@pytest.mark.parametrize("squeeze", ["mean", "max"])
def test_contract(squeeze, tmp_path):
    check_layer(
        lambda: SENETLayer(
            2, squeeze=squeeze, activation="sigmoid", hidden_activation="tanh"
        ),
        X,
        tmp_path,
    )


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
@pytest.mark.parametrize("squeeze", ["mean", "max"])
def test_equals_the_loop(squeeze, activation):
    layer = SENETLayer(3, squeeze=squeeze, activation=activation)
    layer.build(X.shape)
    weights = [RNG.normal(size=w.shape) for w in layer.weights]
    layer.set_weights(weights)
    want = senet_loop(X, *weights, squeeze, activation)
    np.testing.assert_allclose(array(layer(X)), want, rtol=1e-5, atol=1e-6)


def test_by_hand():
    layer = SENETLayer(3)
    x = np.array([[[1.0, 1.0], [1.0, 3.0]]], "float32")
    layer.build(x.shape)
    layer.set_weights([np.array([[1.0], [1.0]]), np.array([[0.5, 2.0]])])
    output, weights = layer(x, return_weights=True)
    np.testing.assert_allclose(array(weights), [[1.5, 6.0]])
    np.testing.assert_allclose(array(output), [[[1.5, 1.5], [6.0, 18.0]]])


@pytest.mark.parametrize(
    ("num_fields", "ratio", "units"), [(6, 3, 2), (2, 3, 1), (39, 3, 13), (5, 1.5, 3)]
)
def test_ratio_is_no_number_of_units(num_fields, ratio, units):
    layer = SENETLayer(ratio)
    layer.build((None, num_fields, 4))
    assert layer.reduction_kernel.shape == (num_fields, units)
    assert layer.count_params() == 2 * num_fields * units


def test_zero_expansion():
    for activation, share in (("relu", 0.0), ("sigmoid", 0.5)):
        layer = SENETLayer(activation=activation)
        layer.build(X.shape)
        layer.set_weights(
            [
                w if i == 0 else np.zeros_like(w)
                for i, w in enumerate(layer.get_weights())
            ]
        )
        np.testing.assert_allclose(array(layer(X)), share * X, rtol=1e-6)


def test_a_zero_field_stays_zero():
    x = X.copy()
    x[:, 2] = 0
    assert not array(SENETLayer(activation="sigmoid")(x))[:, 2].any()


def test_mask_equals_a_zero_field():
    mask = np.ones((5, 7), bool)
    mask[:, 1] = False
    layer = SENETLayer(activation="sigmoid")
    zeroed = X.copy()
    zeroed[:, 1] = 0
    noisy = X.copy()
    noisy[:, 1] = np.nan
    output, weights = layer(noisy, mask=mask, return_weights=True)
    np.testing.assert_allclose(array(output), array(layer(zeroed)), rtol=1e-6)
    assert not array(output)[:, 1].any()
    assert not array(weights)[:, 1].any()


def test_both_kernels_of_one_seeded_initializer_differ():
    import keras

    layer = SENETLayer(1, kernel_initializer=keras.initializers.GlorotNormal(seed=1))
    layer.build((None, 4, 2))
    first, second = layer.get_weights()
    assert first.shape == second.shape
    assert np.abs(first - second).min() > 0


@pytest.mark.parametrize("ratio", [0, -1, float("nan"), float("inf")])
def test_says_what_ratio_was_given(ratio):
    with pytest.raises(ValueError, match=rf"`reduction_ratio`.*={ratio}"):
        SENETLayer(ratio)


def test_says_what_else_was_given():
    with pytest.raises(ValueError, match="`squeeze` must be one of.*'min'"):
        SENETLayer(squeeze="min")
    with pytest.raises(ValueError, match=r"num_fields, embedding_dim\).*\(2, 3\)"):
        SENETLayer()(np.ones((2, 3), "float32"))
