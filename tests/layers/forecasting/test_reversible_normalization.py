import keras
import numpy as np
import pytest
from helpers import (
    BACKEND,
    array,
    check_gradients,
    check_layer,
    check_round_trips,
    output_and_gradients,
    randomize,
    tensor,
)
from twins import DTYPE, assert_near, check_twin

from keras_recsys.layers import ReversibleNormalization

RNG = np.random.default_rng(0)
X = (RNG.normal(size=(3, 5, 2)) * [1.0, 20.0] + [3.0, -50.0]).astype("float32")
Y = RNG.normal(size=(3, 4, 2)).astype("float32")
# All kept; holes, with the last step missing; nothing kept.
MASK = np.array([[1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]], bool)
METHODS = ["instance", "last"]


def statistics_loop(x, method, mask=None, epsilon=1e-5):
    """Center and scale of each row and channel, in float64."""
    center, scale = np.zeros((2, len(x), x.shape[2]))
    for b, c in np.ndindex(center.shape):
        kept = [v for t, v in enumerate(x[b, :, c]) if mask is None or mask[b, t]]
        if method == "last":
            center[b, c], scale[b, c] = (kept or [0.0])[-1], 1.0
        elif kept:
            center[b, c], scale[b, c] = np.mean(kept), np.sqrt(np.var(kept) + epsilon)
        else:
            scale[b, c] = 1.0
    return center[:, None], scale[:, None]


def normalization_loop(x, statistics, gamma=1.0, beta=0.0, inverse=False):
    center, scale = statistics
    if inverse:
        return scale * (x - beta) / (gamma + 1e-10) + center
    return gamma * (x - center) / scale + beta


def build_model(method, affine, dtype=None, channels=2):
    """A layer before a forecaster and behind it, which sees the last channels."""
    x = keras.Input((5, 2), name="values")
    layer = ReversibleNormalization(method, affine=affine, dtype=dtype, name="level")
    steps = keras.layers.Permute((2, 1))(layer(x))
    steps = keras.layers.Dense(3, name="forecaster")(steps)
    forecast = keras.layers.Permute((2, 1))(steps)[:, :, 2 - channels :]
    return keras.Model(x, layer(forecast, reference=x, inverse=True))


@pytest.mark.parametrize(("method", "affine"), [("instance", True), ("last", False)])
def test_contract(method, affine, tmp_path):
    check_layer(
        lambda: ReversibleNormalization(method, affine=affine, epsilon=0.01),
        X,
        tmp_path,
        gradients=affine,
    )


def test_contract_with_masks(tmp_path):
    check_layer(
        lambda: ReversibleNormalization(affine=True), X, tmp_path, call={"mask": MASK}
    )
    check_layer(
        lambda: ReversibleNormalization(affine=True),
        (Y, X),
        tmp_path,
        call={"reference_mask": MASK},
    )


@pytest.mark.parametrize(("method", "channels"), [("instance", 1), ("last", 2)])
def test_contract_of_both_directions(method, channels, tmp_path):
    model = build_model(method, affine=True, channels=channels)
    randomize(model, np.random.default_rng(1))
    assert len(model.trainable_variables) == 4
    assert model.output.shape == (None, 3, channels)
    check_gradients(model, X, {})
    check_round_trips(model, X, tmp_path)
    output = array(model(X))
    for dtype in ("mixed_float16", "mixed_bfloat16"):
        half = build_model(method, affine=True, dtype=dtype, channels=channels)
        half.set_weights(model.get_weights())
        got = half(X)
        assert keras.backend.standardize_dtype(got.dtype) == dtype[6:]
        assert np.abs(array(got) - output).max() < 0.02 * np.abs(output).max()
    if BACKEND == "tensorflow":
        import tensorflow as tf

        got = tf.function(model, jit_compile=True)(X)
        np.testing.assert_allclose(array(got), output, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_equals_the_loop(method, masked):
    mask = MASK if masked else None
    fixed = statistics_loop(X.astype(DTYPE).astype("float64"), method, mask)

    def twin(x, gamma, beta):
        got = normalization_loop(x, fixed, gamma, beta)
        return got if mask is None else np.where(mask[..., None], got, 0.0)

    check_twin(
        ReversibleNormalization(method, affine=True, dtype=DTYPE),
        X,
        twin,  # whose statistics stay where they are, as for the gradient of the layer
        call={"mask": mask} if masked else None,
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_with_a_reference_equals_the_loop(method, inverse, channels, masked):
    mask = MASK if masked else None
    layer = ReversibleNormalization(method, affine=True, dtype=DTYPE)
    x, y = X.astype(DTYPE), Y[:, :, 2 - channels :].astype(DTYPE)
    layer.build(y.shape, x.shape)
    gamma, beta = RNG.normal(size=(2, 2))
    layer.set_weights([gamma, beta])
    fixed = statistics_loop(x.astype("float64"), method, mask)
    if channels == 1:
        fixed = [part[..., 1:] for part in fixed]
        gamma, beta = gamma[1:], beta[1:]
    call = {"reference": tensor(x), "inverse": inverse}
    if masked:
        call["reference_mask"] = tensor(mask)
    coef = RNG.normal(size=y.shape)
    got, gradients = output_and_gradients(layer, y, coef, call=call, wrt_inputs=True)
    want = normalization_loop(y.astype("float64"), fixed, gamma, beta, inverse)
    assert_near(got, want)
    step = normalization_loop(1.0 + y, fixed, gamma, beta, inverse) - want
    assert_near(gradients[0], coef * step)
    assert all(np.any(gradient) for gradient in gradients)


def test_by_hand():
    # Mean 3 and variance 8 of 1, 1, 7; a constant channel stays near 0.
    x = np.array([[[1.0, 4.0], [1.0, 4.0], [7.0, 4.0]]], "float32")
    layer = ReversibleNormalization(epsilon=1e-5)
    got = array(layer(x))
    np.testing.assert_allclose(got[0, :, 0], np.array([-2, -2, 4]) / 8**0.5, rtol=1e-5)
    np.testing.assert_array_equal(got[0, :, 1], 0.0)
    y = np.array([[[0.0, 1.0], [1.0, 0.0]]], "float32")
    got = array(layer(y, reference=x, inverse=True))
    want = [[3.0, 4 + 1e-5**0.5], [3 + 8**0.5, 4.0]]
    np.testing.assert_allclose(got[0], want, rtol=1e-6)
    # One channel of a forecast is the last of the series.
    got = array(layer(y[:, :, :1], reference=x, inverse=True))
    np.testing.assert_allclose(got.ravel(), [4.0, 4 + 1e-5**0.5], rtol=1e-6)
    last = ReversibleNormalization("last")
    np.testing.assert_array_equal(array(last(x))[0, :, 0], [-6.0, -6.0, 0.0])
    got = array(last(y, reference=x, inverse=True))
    np.testing.assert_array_equal(got[0], [[7.0, 5.0], [8.0, 4.0]])


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_inverse_undoes(method, affine):
    layer = ReversibleNormalization(method, affine=affine)
    layer.build(X.shape)
    layer.set_weights([np.array([0.5, -2.0]), np.array([1.0, 3.0])] * affine)
    back = layer(layer(X), reference=X, inverse=True)
    np.testing.assert_allclose(array(back), X, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_level_of_a_row_does_not_matter(method):
    layer = ReversibleNormalization(method)
    np.testing.assert_allclose(array(layer(X + 8.0)), array(layer(X)), atol=1e-4)
    y = layer(Y, reference=X + 8.0, inverse=True)
    want = layer(Y, reference=X, inverse=True) + 8.0
    np.testing.assert_allclose(array(y), array(want), rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_noise_in_missing_steps_changes_nothing(method):
    layer = ReversibleNormalization(method, affine=True)
    layer.build(X.shape)
    noisy = np.where(MASK[..., None], X, np.float32("nan"))
    mask = tensor(MASK)
    got, gradients = output_and_gradients(layer, noisy, call={"mask": mask})
    want, want_gradients = output_and_gradients(layer, X, call={"mask": mask})
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(got[~MASK], 0.0)
    assert np.abs(got[MASK]).max() > 0.5
    for a, b in zip(gradients, want_gradients, strict=True):
        np.testing.assert_array_equal(a, b)
    call = {"inverse": True, "reference_mask": mask}
    got = array(layer(Y, reference=tensor(noisy), **call))
    np.testing.assert_array_equal(got, array(layer(Y, reference=tensor(X), **call)))
    np.testing.assert_allclose(got[2], Y[2], rtol=1e-6)  # nothing is known of its level


def test_masks_of_keras_are_read_and_passed_on():
    x = keras.Input((5, 2))
    masked = keras.layers.Masking()(x)
    layer = ReversibleNormalization("last")
    level = layer(masked)
    model = keras.Model(
        x,
        [
            level,
            keras.layers.GlobalAveragePooling1D()(level),
            layer(level[:, :1] * 0.0, reference=masked, inverse=True),
        ],
    )
    values = np.where(MASK[..., None], X, 0.0)[:2]
    level, mean, back = map(array, model(values))
    np.testing.assert_allclose(level[1, [1, 3]], X[1, [1, 3]] - X[1, 3], atol=1e-5)
    np.testing.assert_array_equal(level[1, [0, 2, 4]], 0.0)
    np.testing.assert_allclose(mean[1], level[1, [1, 3]].mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(back[:, 0], [X[0, 4], X[1, 3]], rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_large_values_survive_half_precision(method):
    layer = ReversibleNormalization(method, dtype="mixed_float16")
    x = X + np.float32(1e6)
    got, want = array(layer(x)), array(ReversibleNormalization(method)(x))
    assert np.isfinite(want).all()
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


def test_statistics_are_constants_for_the_gradient():
    for method in METHODS:
        layer = ReversibleNormalization(method)
        _, (gradient,) = output_and_gradients(
            layer, X, np.ones(X.shape), wrt_inputs=True
        )
        _, scale = statistics_loop(X.astype("float64"), method)
        np.testing.assert_allclose(gradient, np.ones(X.shape) / scale, rtol=1e-4)


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, None)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"`ReversibleNormalization` takes.*shape=\("):
        ReversibleNormalization().build(shape)
    with pytest.raises(ValueError, match=r"`ReversibleNormalization` takes.*shape=\("):
        ReversibleNormalization().build((2, 3, 1), shape)


def test_says_what_was_given():
    with pytest.raises(ValueError, match="`method` must be one of.*='mean'"):
        ReversibleNormalization("mean")
    with pytest.raises(ValueError, match="`epsilon` must be a number above 0.*=0"):
        ReversibleNormalization(epsilon=0)
    layer = ReversibleNormalization()
    with pytest.raises(ValueError, match="`reference` must be.*reference=None"):
        layer(Y, inverse=True)
    with pytest.raises(ValueError, match=r"at most the 1 channels.*shape \(3, 4, 2\)"):
        layer(Y, reference=X[:, :, :1], inverse=True)


@pytest.mark.parametrize("built", [1, 3])
def test_affine_weights_are_of_the_channels_it_was_built_for(built):
    layer = ReversibleNormalization(affine=True)
    layer(np.ones((2, 4, built), "float32"))
    other = np.ones((2, 4, 4 - built), "float32")
    match = (
        f"the {built} channels that it was built for.*Received: {4 - built} channels"
    )
    with pytest.raises(ValueError, match=match):
        layer(other)
    with pytest.raises(ValueError, match=match):
        layer(other, reference=other, inverse=True)
