"""The forms that bench_behavior races compute the same; nothing here is timed."""

import importlib
import pathlib
import sys

import keras
import numpy as np
import pytest

from keras_recsys.layers import DualQueryAttention, TargetAttention

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
bench = importlib.import_module("bench_behavior")

RNG = np.random.default_rng(0)
QUERY, MEMORY = RNG.normal(size=(2, 3, 4)).astype("float32")
VALUE = RNG.normal(size=(3, 5, 4)).astype("float32")


def test_plain_attention_is_the_factored_one():
    layer = DualQueryAttention(6)
    want = layer(QUERY, MEMORY, VALUE)
    layer.set_weights([RNG.normal(size=w.shape) for w in layer.weights])
    want = layer(QUERY, MEMORY, VALUE)
    attend, weights = bench.plain_attention(layer.get_weights())
    np.testing.assert_allclose(attend(QUERY, MEMORY, VALUE), want, rtol=1e-5, atol=1e-5)
    assert [w.shape for w in weights] == [w.shape for w in layer.weights]


def test_plain_attention_of_din_is_the_factored_one():
    mask = RNG.random((3, 5)) < 0.7
    plain, layer = bench.plain_target_attention(), TargetAttention()
    for one, more in ((plain, {"mask": mask}), (layer, {"value_mask": mask})):
        one(QUERY, VALUE, **more)
    weights = [RNG.normal(size=w.shape) for w in layer.weights]
    layer.set_weights(weights)
    plain.set_weights(weights)
    want = layer(QUERY, VALUE, value_mask=mask)
    got = plain(QUERY, VALUE, mask=mask)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*bench.MODELS, "plain_din", "equal_din"])
def test_models_are_built(name):
    model = bench.make_model(name, 5, xla=False)
    assert [x.shape[1:] for x in model.input.values()] == [(), (5,)]
    tables = [w for w in model.weights if w.shape == (bench.ITEMS, bench.DIM)]
    assert len(tables) == 1
    ids = {"item": np.array([3]), "item_history": np.array([[5, 7, 0, 9, 0]])}
    assert 0 < float(keras.ops.convert_to_numpy(model(ids)["probability"])[0, 0]) < 1


def test_every_model_of_the_quality_cases_is_a_builder():
    for builder, settings, _ in bench.QUALITY.values():
        assert callable(
            getattr(importlib.import_module("keras_recsys").models, f"build_{builder}")
        )
        assert isinstance(settings, dict)
    assert set(bench.VIDEO) <= set(bench.QUALITY)
