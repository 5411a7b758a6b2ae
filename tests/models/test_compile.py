"""What `compile` of a builder's model does besides what Keras does."""

import keras
import numpy as np
import pytest

from keras_recsys.features import CategoricalFeature
from keras_recsys.models import build_dlrm
from keras_recsys.optimizers import (
    LazyAdam,
    RowWiseAdagrad,
    SparseLossScaleOptimizer,
    SplitOptimizer,
)

X = {name: np.array([1, 2, 2, 0]) for name in "ab"}
Y = np.array([[0.0], [1.0], [1.0], [0.0]])


def make_model(**kwargs):
    features = [CategoricalFeature(name, 5, **kwargs) for name in "ab"]
    return build_dlrm(features, embedding_dim=4, top_units=(3,))


def test_auto_is_lazy_adam_and_no_xla():
    model = make_model(out_of_range="nan")  # which XLA could compile
    model.compile("auto", "binary_crossentropy")
    assert type(model.optimizer) is LazyAdam
    assert model.jit_compile is False
    model.fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    ("make", "passed_on"),
    [
        (lambda: keras.optimizers.Adam(), "auto"),
        (lambda: "adam", "auto"),
        (lambda: SplitOptimizer(RowWiseAdagrad(), keras.optimizers.Adam()), False),
        (lambda: SparseLossScaleOptimizer(LazyAdam()), False),
    ],
)
def test_auto_is_for_keras_to_decide_or_off(make, passed_on, monkeypatch):
    seen, original = [], keras.Model.compile

    def compile(self, *args, jit_compile, **kwargs):
        seen.append(jit_compile)
        original(self, *args, jit_compile=jit_compile, **kwargs)

    model = make_model(out_of_range="nan")
    monkeypatch.setattr(keras.Model, "compile", compile)
    model.compile(make(), "binary_crossentropy")
    assert seen == [passed_on]
    assert model.optimizer.built


def test_xla_can_be_asked_for():
    model = make_model(out_of_range="nan")
    model.compile("auto", "binary_crossentropy", jit_compile=True)
    assert model.jit_compile is True
    assert np.isfinite(model.fit(X, Y, verbose=0).history["loss"]).all()


@pytest.mark.parametrize("wrapped", [True, False])
def test_mixed_float16_scales_the_loss_by_rows(wrapped):
    keras.config.set_dtype_policy("mixed_float16")
    model = make_model()
    model.compile("auto", "binary_crossentropy", auto_scale_loss=wrapped)
    kind = SparseLossScaleOptimizer if wrapped else LazyAdam
    assert type(model.optimizer) is kind
    before = model.get_weights()[0]
    model.fit(X, Y, verbose=0)
    assert np.abs(model.get_weights()[0] - before).max() > 0


def test_a_loaded_model_is_compiled_as_it_was(tmp_path):
    model = make_model()
    model.compile("auto", "binary_crossentropy", metrics=["AUC"], jit_compile=False)
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert type(loaded.optimizer) is LazyAdam
    assert int(loaded.optimizer.iterations) == 1
    assert loaded.jit_compile is False
    np.testing.assert_array_equal(
        model.train_on_batch(X, Y), loaded.train_on_batch(X, Y)
    )


def test_fit_on_a_dataset_of_unknown_length_does_not_warn(recwarn):
    import tensorflow as tf

    model = make_model()
    model.compile("auto", "binary_crossentropy")
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    stream = rows.filter(lambda *_: True)
    assert stream.cardinality() == tf.data.UNKNOWN_CARDINALITY
    history = model.fit(stream, epochs=2, shuffle=False, verbose=0)
    assert len(history.history["loss"]) == 2
    assert not [str(warning.message) for warning in recwarn]
