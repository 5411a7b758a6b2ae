"""The linear models and the forecasts without weights."""

import keras
import numpy as np
import pytest
from helpers import array, check_model

from keras_recsys.models import (
    build_dlinear,
    build_nlinear,
    build_repeat_last,
    build_seasonal_naive,
)

SIZES = {"seq_len": 8, "pred_len": 3}
X = {"values": np.random.default_rng(0).normal(size=(4, 8, 2)).astype("float32")}
BUILDERS = {
    "dlinear": (build_dlinear, {"window": 4}),
    "dlinear_individual": (build_dlinear, {"window": 3, "individual": True}),
    "nlinear": (build_nlinear, {}),
    "nlinear_target": (build_nlinear, {"num_outputs": 1, "individual": True}),
    "repeat_last": (build_repeat_last, {}),
    "seasonal_naive": (build_seasonal_naive, {"period": 2, "num_outputs": 1}),
}


def make(kind, **more):
    build, settings = BUILDERS[kind]
    return build(2, **SIZES, **settings, **more)


def forecast(model, values):
    return array(model({"values": np.asarray(values, "float32")})["forecast"])


@pytest.mark.parametrize("kind", BUILDERS)
def test_contract(kind, tmp_path):
    used = build_dlinear, build_nlinear, build_repeat_last, build_seasonal_naive
    assert BUILDERS[kind][0] in used
    check_model(lambda **more: make(kind, **more), X, tmp_path)


def linear_loop(x, kernel, bias):
    """Each channel mapped from its own past, one number at a time, in float64."""
    out = np.zeros((len(x), bias.shape[0], x.shape[2]))
    for b, p, c in np.ndindex(out.shape):
        weights = kernel[c, :, p] if kernel.ndim == 3 else kernel[:, p]
        offset = bias[p, c] if bias.shape[1] > 1 else bias[p, 0]
        out[b, p, c] = sum(weights[t] * x[b, t, c] for t in range(x.shape[1])) + offset
    return out


def trend_loop(x, window):
    out = np.zeros(x.shape)
    for t in range(x.shape[1]):
        first = t - (window - 1) // 2
        steps = np.clip(range(first, first + window), 0, x.shape[1] - 1)
        out[:, t] = np.mean([x[:, s] for s in steps], axis=0)
    return out


def randomized(kind):
    model = make(kind)
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(size=w.shape) for w in model.weights])
    return model, [w.astype("float64") for w in model.get_weights()]


@pytest.mark.parametrize("kind", ["dlinear", "dlinear_individual"])
def test_dlinear_equals_the_loop(kind):
    model, weights = randomized(kind)
    x = X["values"].astype("float64")
    trend = trend_loop(x, BUILDERS[kind][1]["window"])
    want = linear_loop(x - trend, *weights[:2]) + linear_loop(trend, *weights[2:])
    np.testing.assert_allclose(forecast(model, x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["nlinear", "nlinear_target"])
def test_nlinear_equals_the_loop(kind):
    model, weights = randomized(kind)
    x = X["values"].astype("float64")
    if kind == "nlinear_target":
        x = x[..., -1:]
    last = x[:, -1:]
    want = linear_loop(x - last, *weights) + last
    got = forecast(model, X["values"])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_initial_values_are_those_of_pytorch():
    for kind in ("dlinear", "dlinear_individual"):
        for weight in make(kind).get_weights():
            assert np.abs(weight).max() <= 8**-0.5
            assert np.abs(weight).max() > 0.1


def test_naive_forecasts():  # by hand
    values = np.arange(8.0)[None, :, None]
    last = build_repeat_last(1, **SIZES)
    np.testing.assert_array_equal(forecast(last, values)[0, :, 0], [7, 7, 7])
    season = build_seasonal_naive(1, **SIZES, period=2)
    np.testing.assert_array_equal(forecast(season, values)[0, :, 0], [6, 7, 6])
    season = build_seasonal_naive(1, **SIZES, period=8)
    np.testing.assert_array_equal(forecast(season, values)[0, :, 0], [0, 1, 2])


def test_naive_forecasts_have_no_weights_and_are_evaluated():
    model = build_repeat_last(1, **SIZES)
    assert not model.weights
    model.compile(loss="mse")
    x = {"values": np.zeros((4, 8, 1), "float32")}
    loss = model.evaluate(x, np.full((4, 3, 1), 2.0, "float32"), verbose=0)
    assert loss == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("build", "changes", "error", "message"),
    [
        (build_seasonal_naive, {"period": 9}, ValueError, "`period`.*`seq_len`, 8.*=9"),
        (build_seasonal_naive, {"period": 0}, ValueError, "`period`.*=0"),
        (build_dlinear, {"window": 0}, ValueError, "`window`.*=0"),
        (build_dlinear, {"seq_len": 2.5}, TypeError, "`seq_len`.*2.5"),
        (build_nlinear, {"num_outputs": 3}, ValueError, "`num_outputs`.*2.*=3"),
        (build_repeat_last, {"pred_len": 0}, ValueError, "`pred_len`.*=0"),
    ],
)
def test_says_what_was_given(build, changes, error, message):
    with pytest.raises(error, match=message):
        build(2, **{**SIZES, **changes})


@pytest.mark.parametrize("shape", [(4, 3, 1), (4, 2, 2), (4, 3, 3), (4, 6)])
@pytest.mark.parametrize(
    "form", [lambda y: y, lambda y: {"forecast": y}, lambda y: [y]]
)
def test_refuses_targets_of_another_shape(shape, form):
    model = make("nlinear")
    model.compile("sgd", "mse")
    y = form(np.zeros(shape, "float32"))
    match = rf"`y` must be of shape \(batch_size, 3, 2\).*, {shape[1]}"
    with pytest.raises(ValueError, match=match):
        model.train_on_batch(X, y)
    with pytest.raises(ValueError, match=match):
        model.test_on_batch(X, y)


def test_refuses_targets_of_another_shape_in_a_step_that_is_traced():
    model = make("nlinear")
    model.compile("sgd", "mse")
    y = np.zeros((4, 3, 2), "float32")
    model.test_on_batch(X, y)
    for bad in (y[..., :1], y[:, :2], y[:, :1, :1]):
        with pytest.raises(Exception, match="shape"):
            model.test_on_batch(X, bad)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_keeps_the_units_of_the_series(policy):
    x = {"values": np.full((1, 8, 2), 12345.5, "float32")}
    last = build_repeat_last(2, **SIZES, num_outputs=1)
    linear = build_nlinear(2, **SIZES)
    want = array(linear(x)["forecast"])
    keras.config.set_dtype_policy(policy)
    try:
        last = build_repeat_last(2, **SIZES, num_outputs=1)
        linear = build_nlinear(2, **SIZES)
    finally:
        keras.config.set_dtype_policy("float32")
    assert (array(last(x)["forecast"]) == 12345.5).all()
    # The linear map is of zeros; what is left is its bias.
    np.testing.assert_allclose(array(linear(x)["forecast"]), want, atol=1)


def test_weights_of_windows_and_of_steps():  # as many windows as steps
    model = make("nlinear_target")
    model.compile("sgd", "mse", weighted_metrics=["mae"])
    x = {"values": X["values"][:3]}
    y = np.arange(9, dtype="float32").reshape(3, 3, 1)
    windows = np.array([1, 0, 3], "float32")
    steps = np.arange(9, dtype="float32").reshape(3, 3)
    error = forecast(model, x["values"]) - y
    for weights, of_all in (
        (windows, windows[:, None]),
        (steps, steps),
        (windows[:, None], windows[:, None]),
        ([1.0, 0.0, 3.0], windows[:, None]),
    ):
        of_all = np.broadcast_to(of_all, (3, 3))[..., None]
        got = model.test_on_batch(x, y, sample_weight=weights)
        # Keras divides the loss by the number of steps, the metric by the weights.
        assert got[0] == pytest.approx(np.mean(of_all * error**2), rel=1e-4)
        model.reset_metrics()
        want = np.sum(of_all * abs(error)) / of_all.sum()
        assert got[1] == pytest.approx(want, rel=1e-4)
    named = model.test_on_batch(x, {"forecast": y}, sample_weight={"forecast": windows})
    assert named[0] == pytest.approx(
        np.mean(windows[:, None, None] * error**2), rel=1e-4
    )
