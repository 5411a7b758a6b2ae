import itertools

import keras
import numpy as np
import pytest
from helpers import BACKEND, array
from keras import ops

from keras_recsys.layers.behavior.behavior_retrieval import BehaviorRetrieval
from keras_recsys.models.behavior._reinforced_model import ReinforcedModel

RNG = np.random.default_rng(0)
# XLA takes longer to compile than these tests, JAX longer without.
QUICK = {"jit_compile": BACKEND == "jax"}


def make_model(seq_len, seed=0):
    """Chooses items and gives `sigmoid(3 * sum of their last entries)`."""
    inputs = {
        "target": keras.Input((2,), name="target"),
        "history": keras.Input((seq_len, 2), name="history"),
    }
    keras.utils.set_random_seed(seed)
    retrieval = BehaviorRetrieval((4,), seed=seed, name="retrieval")
    kept, log_probability = retrieval(
        inputs["target"], inputs["history"], return_log_probability=True
    )
    total = Total(name="total")(inputs["history"], kept)
    outputs = {"probability": total, "log_probability": log_probability}
    return ReinforcedModel(inputs, outputs)


@keras.saving.register_keras_serializable(package="tests")
class Total(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, history_shape, kept_shape):
        self.bias = self.add_weight(name="bias", shape=(1,), initializer="zeros")

    def call(self, history, kept):
        kept = ops.cast(kept, history.dtype)
        total = ops.sum(history[..., 1] * kept, axis=1, keepdims=True)
        return ops.sigmoid(3.0 * total + self.bias)

    def compute_output_shape(self, history_shape, kept_shape):
        return (history_shape[0], 1)


def probabilities(model, x):
    retrieval = model.get_layer("retrieval")
    return array(retrieval(x["target"], x["history"], return_probabilities=True)[1])


def logloss(label, probability):
    return -np.log(probability if label else 1 - probability)


@pytest.mark.parametrize("usual", [0.0, 0.7])
def test_mean_gradient_is_that_of_the_expected_loss(usual):
    history = np.array([[0.3, 1.0], [-0.8, -0.6]], "float32")
    target = np.array([0.5, -0.2], "float32")
    model = make_model(2)
    model.get_layer("retrieval").score.bias.assign([0.4])
    model.loss_sum.assign(0.5 * usual)
    model.loss_weight.assign(0.5)
    count = 40_000
    x = {
        "target": np.tile(target, (count, 1)),
        "history": np.tile(history, (count, 1, 1)),
    }
    one = {key: value[:1] for key, value in x.items()}
    p = probabilities(model, one)[0].astype("float64")
    assert np.abs(p - 0.5).min() > 0.02  # all four choices occur, unequally often
    # d log_probability / d bias is the number of kept items less its mean.
    terms = []
    for choice in itertools.product([0, 1], repeat=2):
        choice = np.array(choice)
        chance = np.prod(np.where(choice, p, 1 - p))
        click = 1 / (1 + np.exp(-3 * (choice @ history[:, 1])))
        terms.append((chance, logloss(1, click), np.sum(choice - p)))
    chance, loss, slope = np.array(terms).T
    exact = np.sum(chance * loss * slope)
    spread = np.sqrt(np.sum(chance * ((loss - usual) * slope) ** 2) / count)
    assert abs(exact) > 20 * spread

    model.compile(keras.optimizers.SGD(1.0), loss="binary_crossentropy", **QUICK)
    before = array(model.get_layer("retrieval").score.bias).copy()
    model.fit(x, np.ones((count, 1)), batch_size=count, verbose=0)
    gradient = before - array(model.get_layer("retrieval").score.bias)
    assert gradient[0] == pytest.approx(exact, abs=4 * spread)
    # The running mean has moved by a hundredth of its weight.
    want = 0.99 * 0.5 * usual + 0.01 * np.sum(chance * loss)
    assert float(array(model.loss_sum)) == pytest.approx(want, rel=0.02)
    assert float(array(model.loss_weight)) == pytest.approx(0.505)


def toy(count):
    """Items of kind 1 tell the label, items of kind -1 tell the opposite."""
    label = RNG.integers(0, 2, size=(count, 1))
    kind = RNG.choice([-1.0, 1.0], size=(count, 4))
    sign = kind * (2 * label - 1)
    history = np.stack([kind, sign], axis=-1).astype("float32")
    return {"target": np.ones((count, 2), "float32"), "history": history}, label


def test_keeps_the_items_that_help():
    x, label = toy(512)
    model = make_model(4, seed=1)
    model.compile(
        keras.optimizers.Adam(0.03),
        loss=keras.losses.BinaryCrossentropy(),
        metrics=["accuracy"],
        **QUICK,
    )
    helps = x["history"][..., 0] > 0
    before = probabilities(model, x)
    first = model.evaluate(x, label, verbose=0, return_dict=True)
    history = model.fit(x, label, batch_size=64, epochs=8, verbose=0).history
    after = probabilities(model, x)
    gap = after[helps].mean() - after[~helps].mean()
    assert gap > before[helps].mean() - before[~helps].mean() + 0.3
    last = model.evaluate(x, label, verbose=0, return_dict=True)
    assert set(last) == {"loss", "accuracy"} == set(history)
    assert last["loss"] < 0.5 * first["loss"]
    assert last["accuracy"] > 0.9


def test_value_of_the_loss_is_that_of_the_clicks():
    x, label = toy(64)
    model = make_model(4)
    model.compile(keras.optimizers.SGD(0.0), loss="binary_crossentropy")
    weight = RNG.uniform(0.5, 2.0, size=64)
    y = ops.convert_to_tensor(label)
    outputs = model(x, training=True)
    got = model.compute_loss(x, y, outputs, ops.convert_to_tensor(weight))
    click = array(outputs["probability"])[:, 0].astype("float64")
    losses = np.where(label[:, 0], -np.log(click), -np.log(1 - click))
    assert float(array(got)) == pytest.approx(np.mean(weight * losses), rel=1e-4)
    usual = float(array(model.loss_sum)) / float(array(model.loss_weight))
    assert usual == pytest.approx(losses.mean(), rel=1e-4)  # one step, one term
    before = [array(model.loss_sum), array(model.loss_weight)]
    model.compute_loss(x, y, outputs, training=False)
    assert [array(model.loss_sum), array(model.loss_weight)] == before


def test_sample_weights_reach_the_choices():
    x, label = toy(2)
    steps = []
    for weight in ([1.0, 0.0], [0.0, 3.0], [1.0, 3.0]):  # on the same draws
        model = make_model(4, seed=3)
        score = model.get_layer("retrieval").score
        model.compile(keras.optimizers.SGD(1.0), loss="binary_crossentropy", **QUICK)
        before = array(score.kernel).copy()
        model.fit(x, label, sample_weight=np.array(weight), verbose=0, shuffle=False)
        steps.append(array(score.kernel) - before)
    assert np.abs(steps[0]).max() > 1e-3
    assert np.abs(steps[1]).max() > 1e-3
    np.testing.assert_allclose(steps[0] + steps[1], steps[2], rtol=1e-4, atol=1e-5)


def test_goes_on_after_loading(tmp_path):
    x, label = toy(128)
    model = make_model(4)
    model.compile("adam", loss="binary_crossentropy", metrics=["auc"], **QUICK)
    model.fit(x, label, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, ReinforcedModel)
    for a, b in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(array(a), array(b))
    assert float(array(loaded.loss_weight)) == pytest.approx(1 - 0.99**4)
    want, got = (m.predict(x, verbose=0) for m in (model, loaded))
    for key in ("probability", "log_probability"):
        np.testing.assert_allclose(got[key], want[key], rtol=1e-5, atol=1e-6)
    assert set(loaded.fit(x, label, verbose=0).history) == {"auc", "loss"}
    assert float(array(loaded.loss_weight)) == pytest.approx(1 - 0.99**8)
