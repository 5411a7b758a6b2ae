"""Cases 33 to 40 of forecasts, and those of all models tried on forecasters."""

import keras
import numpy as np
import pytest
from case_models import FORECAST_BUILDERS, make_forecaster, make_windows
from helpers import array

from keras_recsys.data import SeriesScaler, TimeSeries, calendar_features
from keras_recsys.layers import InformerEncoderBlock, ProbSparseAttention
from keras_recsys.models import build_informer
from keras_recsys.ops import prob_sparse_attention, prob_sparse_counts

RNG = np.random.default_rng(0)
SMALL = {
    "label_len": 5,
    "pred_len": 5,
    "hidden_dim": 8,
    "intermediate_dim": 8,
    "dropout": 0.0,
}


def forecast(model, inputs):
    return array(model(inputs)["forecast"])


def predict(model, inputs):
    return model.predict(inputs, verbose=0)["forecast"]


def test_case_33_weights_are_returned_and_the_model_is_saved(tmp_path):
    x = keras.Input((24, 6))
    layer = ProbSparseAttention(2, 3, factor=1)
    outputs = layer(x, x, return_attention_scores=True)
    model = keras.Model(x, outputs)
    values = RNG.normal(size=(2, 24, 6)).astype("float32")
    output, weights = model.predict(values, verbose=0)
    assert output.shape == (2, 24, 6)
    assert weights.shape == (2, 2, 24, 24)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-5)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    for a, b in zip(loaded.predict(values, verbose=0), (output, weights), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_case_34_active_queries_and_sampled_keys():
    assert prob_sparse_counts(48, 96, 5) == (20, 25)
    assert prob_sparse_counts(10, 10, 5) == (10, 10)


@pytest.mark.parametrize("causal", [False, True])
def test_case_35_what_inactive_queries_get(causal):
    query, key, value = RNG.normal(size=(3, 1, 48, 1, 4)).astype("float32")
    index = RNG.integers(0, 48, (48, 4)).astype("int32")
    got = array(
        prob_sparse_attention(query, key, value, index, factor=1, causal=causal)
    )[0, :, 0]
    rows = value[0, :, 0].astype("float64")
    lazy = rows.cumsum(axis=0) if causal else np.full(rows.shape, rows.mean(axis=0))
    inactive = np.isclose(got, lazy, rtol=1e-5, atol=1e-5).all(axis=1)
    assert inactive.sum() == 48 - 4
    if causal:  # with values up to their own step alone
        later = value.copy()
        later[:, 24:] += 7.0
        again = array(
            prob_sparse_attention(query, key, later, index, factor=1, causal=True)
        )
        np.testing.assert_allclose(again[0, :24, 0], got[:24], rtol=1e-5)

    scores = (query[0, :, 0] @ key[0, :, 0].T / 2).astype("float64")
    if causal:
        scores[np.triu_indices(48, 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    got = array(
        prob_sparse_attention(query, key, value, index, factor=100, causal=causal)
    )
    np.testing.assert_allclose(got[0, :, 0], weights @ rows, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("measure", ["sampled", "exact"])
def test_case_36_forecast_is_the_same_at_each_predict(measure, tmp_path):
    model = build_informer(
        3,
        seq_len=40,
        factor=1,
        num_heads=2,
        attention_options={"measure": measure},
        **SMALL,
    )
    x, y = make_windows(model)
    model.compile("adam", "mse", run_eagerly=True, jit_compile=False)
    model.fit(x, y, batch_size=3, verbose=0)  # draws samples
    model.compile(jit_compile=False)
    first, second = predict(model, x), predict(model, x)
    model.save(tmp_path / "i.keras")
    third = predict(keras.models.load_model(tmp_path / "i.keras"), x)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, third)
    order = [3, 0, 5, 1, 4, 2]
    shuffled = predict(model, {name: rows[order] for name, rows in x.items()})
    np.testing.assert_allclose(shuffled, first[order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attention", ["prob_sparse", "full"])
@pytest.mark.parametrize("num_heads", [1, 2])
def test_case_37_any_batch_and_heads(attention, num_heads):
    model = build_informer(
        2, seq_len=49, num_heads=num_heads, attention=attention, **SMALL
    )
    x, y = make_windows(model, rows=2)
    want = predict(model, x)
    one = predict(model, {name: rows[:1] for name, rows in x.items()})
    np.testing.assert_allclose(one, want[:1], rtol=1e-5, atol=1e-6)
    model.compile("sgd", "mse", run_eagerly=True)
    for rows in (1, 2):
        loss = model.train_on_batch({k: v[:rows] for k, v in x.items()}, y[:rows])
        assert np.isfinite(loss)


def test_case_38_the_future_is_no_input():
    model = make_forecaster("informer")
    assert set(model.input) == {"values", "calendar"}
    assert model.input["values"].shape == (None, 12, 3)  # known steps alone
    start = keras.Model(model.input, model.get_layer("informer_decoder_values").output)
    x, _ = make_windows(model)
    np.testing.assert_array_equal(array(start(x))[:, 6:], 0.0)
    block = model.get_layer("informer_decoder_block_0")
    assert block.self_attention.causal
    assert not block.cross_attention.causal
    assert isinstance(model.get_layer("informer_encoder_block_0"), InformerEncoderBlock)


def test_case_39_scaling_of_the_target():
    scaler = SeriesScaler([1, 2, 10], [1, 1, 5])
    np.testing.assert_allclose(scaler.inverse_transform([0.2, -1]), [11, 5])
    series = TimeSeries(np.arange(20.0) ** 2, np.arange(20) * 3600, "h")
    train = SeriesScaler.fit(series[:10])
    assert train.mean[0] == pytest.approx(np.mean(np.arange(10.0) ** 2))
    values = np.arange(12.0).reshape(2, 2, 3)
    back = scaler.inverse_transform(scaler.transform(values))
    np.testing.assert_allclose(back, values)


@pytest.mark.parametrize("embedding", ["timeF", "fixed"])
def test_case_40_half_hours_differ(embedding):
    times = ["2024-01-01 00:00", "2024-01-01 00:30"]
    first, second = calendar_features(times, "30min", embedding)
    assert (first != second).any()
    with pytest.raises(ValueError, match="`frequency`.*'30n'"):
        calendar_features(times, "30n", embedding)


@pytest.mark.parametrize("kind", FORECAST_BUILDERS)
def test_case_42_inputs_are_matched_by_name(kind):
    model = make_forecaster(kind)
    x, _ = make_windows(model)
    backwards = {name: x[name] for name in reversed(sorted(x))}
    np.testing.assert_array_equal(forecast(model, backwards), forecast(model, x))
    with pytest.raises(ValueError, match=r"missing \['values'\]"):
        model({name: rows for name, rows in x.items() if name != "values"})


@pytest.mark.parametrize("kind", FORECAST_BUILDERS)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_case_43_forecasters_in_half_precision(kind, policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = make_forecaster(kind)
    finally:
        keras.config.set_dtype_policy("float32")
    x, y = make_windows(model)
    output = model(x)["forecast"]
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    assert np.isfinite(array(output)).all()
    if model.trainable_weights:
        model.compile("sgd", "mse", run_eagerly=True)
        assert np.isfinite(model.train_on_batch(x, y))


@pytest.mark.parametrize("kind", FORECAST_BUILDERS)
def test_case_01_saved_forecaster_loads_without_custom_objects(kind, tmp_path):
    model = make_forecaster(kind)
    x, _ = make_windows(model)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(forecast(loaded, x), forecast(model, x), atol=1e-6)
