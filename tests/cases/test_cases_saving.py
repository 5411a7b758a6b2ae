"""Cases 01 to 07 of saving, loading and exporting."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from case_models import (
    BUILDERS,
    FEATURES,
    FORECAST_BUILDERS,
    LAYERS,
    NEXT_ITEM_BUILDERS,
    answer,
    make_labels,
    make_layer_model,
    make_model,
    make_rows,
    predict,
)
from helpers import check_round_trips

from keras_recsys import layers, models, serving
from keras_recsys.data import make_dataset

X = make_rows()


def fitted(kind, epochs=1):
    model = make_model(kind)
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    model.fit(X, make_labels(), batch_size=3, epochs=epochs, verbose=0, shuffle=False)
    return model


def test_every_public_layer_and_builder_is_tried():
    assert set(LAYERS) == set(layers.__all__)
    builders = {name for name in models.__all__ if name.startswith("build_")}
    tried = [
        *BUILDERS.values(),
        *NEXT_ITEM_BUILDERS.values(),
        *FORECAST_BUILDERS.values(),
    ]
    builders -= {"build_two_stage"}  # made of the model of another builder
    assert {build.__name__ for build, _ in tried} == builders


@pytest.mark.parametrize("kind", BUILDERS)
def test_case_01_saved_model_loads_without_custom_objects(kind, tmp_path):
    model = make_model(kind)
    want = predict(model, X)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert json.dumps(loaded.get_config()) == json.dumps(model.get_config())
    assert np.abs(predict(loaded, X) - want).max() < 1e-6
    again = keras.models.clone_model(model)
    again.set_weights(model.get_weights())
    assert np.abs(answer(again, X) - want).max() < 1e-6


def test_case_01_saved_model_loads_in_another_process(tmp_path):
    # One fresh process loads this at the end of the session, see conftest.py.
    check_round_trips(make_model("fibinet_deep"), X, tmp_path)


@pytest.mark.parametrize("name", LAYERS)
def test_case_02_weights_of_every_layer_are_saved(name, tmp_path):
    first, second = make_layer_model(name), make_layer_model(name)
    rng = np.random.default_rng(9)
    second.set_weights([rng.normal(size=w.shape) for w in second.get_weights()])
    first.save_weights(tmp_path / "w.weights.h5")
    second.load_weights(tmp_path / "w.weights.h5")
    assert len(second.weights) == len(first.weights)
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    layer = first.get_layer("tried")
    assert layer.built
    config = json.dumps(layer.get_config())
    again = type(layer).from_config(json.loads(config))
    assert json.dumps(again.get_config()) == config
    # A layer of layers keeps the weights of all of them.
    assert len(layer.weights) == len({id(w) for w in layer.weights})


@pytest.mark.parametrize("kind", BUILDERS)
def test_case_02_weights_of_every_builder_are_saved(kind, tmp_path):
    first = make_model(kind)
    build, settings = BUILDERS[kind]
    second = build(FEATURES, **settings, name="other")
    first.save_weights(tmp_path / "w.weights.h5")
    second.load_weights(tmp_path / "w.weights.h5")
    assert len(second.weights) == len(first.weights)
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(answer(second, X), answer(first, X), rtol=1e-6)
    json.dumps(first.get_config())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fibinet_deep", "fibinet_numbers_in_dnn"])
def test_case_03_trained_model_is_saved_loaded_and_trained_on(kind, tmp_path):
    model = fitted(kind)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(predict(loaded, X), predict(model, X), atol=1e-6)
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 2
    dataset = make_dataset(X, FEATURES, labels=make_labels(), batch_size=3)
    loaded.fit(dataset, shuffle=False, verbose=0)
    assert int(loaded.optimizer.iterations) == 4
    assert np.isfinite(predict(loaded, X)).all()


def test_case_03_training_goes_on_as_if_it_had_not_stopped(tmp_path):
    model = fitted("fibinet_shallow")  # without dropout, so that two runs are equal
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    for one in (model, loaded):
        one.fit(X, make_labels(), batch_size=3, verbose=0, shuffle=False)
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.fixture(
    scope="module",
    params=["keras", pytest.param("serving", marks=pytest.mark.slow)],
)
def served(request, tmp_path_factory):
    """A model of every kind of feature, and its export by `model.export` and ours."""
    path = tmp_path_factory.mktemp("served") / "1"
    keras.utils.set_random_seed(0)
    model = make_model("fibinet_deep")
    if request.param == "keras":
        model.export(path, verbose=False)
    else:
        serving.export(model, path, verbose=False)
    loaded = tf.saved_model.load(str(path))
    return model, loaded, loaded.signatures["serving_default"]


def test_case_05_names_of_the_signature(served):
    model, _, signature = served
    _, arguments = signature.structured_input_signature
    assert set(arguments) == set(X)
    outputs = signature(**{name: tf.constant(value) for name, value in X.items()})
    assert list(outputs) == ["probability"]
    np.testing.assert_allclose(outputs["probability"], answer(model, X), atol=1e-6)


def test_case_05_order_of_the_arguments_does_not_matter(served):
    model, _, signature = served
    rows = {name: tf.constant(X[name]) for name in reversed(sorted(X))}
    got = signature(**rows)["probability"]
    np.testing.assert_allclose(got, answer(model, X), atol=1e-6)


def test_case_06_dtypes_and_open_dimensions(served):
    _, _, signature = served
    _, specs = signature.structured_input_signature
    got = {name: (spec.dtype.name, tuple(spec.shape)) for name, spec in specs.items()}
    assert got == {
        "user": ("int64", (None,)),
        "item": ("int64", (None,)),
        "history": ("int64", (None, None)),
        "genres": ("int32", (None, 3)),  # fixed by `max_len`
        "price": ("float32", (None,)),
        "count": ("float32", (None,)),
        "city": ("int32", (None,)),
    }


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_case_07_other_batch_sizes_and_lengths(served, rows, length):
    model, _, signature = served
    x = make_rows(rows, length, seed=rows)
    got = signature(**{name: tf.constant(value) for name, value in x.items()})
    assert got["probability"].shape == (rows, 1)
    np.testing.assert_allclose(got["probability"], answer(model, x), atol=1e-6)


def test_case_07_length_that_is_fixed_is_answered_or_refused_by_name(served):
    model, _, signature = served
    x = {**X, "genres": np.tile(X["genres"], (1, 2))[:, :5]}
    features = [
        dataclasses.replace(feature, max_len=None)
        if feature.name == "genres"
        else feature
        for feature in FEATURES
    ]
    free = make_model("fibinet_deep", features)
    free.set_weights(model.get_weights())
    try:
        got = signature(**{name: tf.constant(value) for name, value in x.items()})
    except (ValueError, TypeError, tf.errors.OpError) as error:
        assert "genres" in str(error)  # noqa: PT017 (answered or refused)
    else:
        np.testing.assert_allclose(got["probability"], answer(free, x), atol=1e-6)
