"""Correction of probabilities that were learnt on a sample of the negatives."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases.case_models import BUILDERS, answer, make_labels, make_model, make_rows
from helpers import array

from keras_recsys.analysis import correct_downsampling, evaluate_clicks, shift_bias
from keras_recsys.features import CategoricalFeature
from keras_recsys.layers import ClickProbability
from keras_recsys.models import build_dlrm


@pytest.mark.parametrize(
    ("q", "rate", "p"),
    [
        (0.5, 0.1, 1 / 11),  # 1 positive and 1 negative, of 10
        (0.5, 1.0, 0.5),
        (0.75, 0.5, 0.6),  # 3 and 1, of 2
        (0.0, 0.1, 0.0),
        (1.0, 0.1, 1.0),
        (0.1, 0.01, 1 / 901),  # 1 and 9, of 900
    ],
)
def test_by_hand(q, rate, p):
    assert float(correct_downsampling(q, rate)) == pytest.approx(p, abs=1e-15)


def test_shape_and_dtype():
    q = np.array([[0.2], [0.5]], "float32")
    want = correct_downsampling(q, 0.3)
    assert want.dtype == "float64"
    assert want.shape == (2, 1)
    for given in (tf.constant(q), {"probability": q}, q.tolist()):
        np.testing.assert_allclose(correct_downsampling(given, 0.3), want, rtol=1e-7)


def test_the_sample_is_put_right():
    """A tenth of the negatives, and the counts of all rows come out again."""
    rng = np.random.default_rng(0)
    rate = np.array([0.01, 0.2])[np.arange(40_000) % 2]  # of two kinds of rows
    labels = rng.uniform(size=40_000) < rate
    kept = labels | (rng.uniform(size=40_000) < 0.1)
    # What the best model of the sample answers.
    sampled = rate / (rate + (1 - rate) * 0.1)
    assert evaluate_clicks(labels[kept], sampled[kept]).calibration == pytest.approx(
        1.0, abs=0.05
    )
    assert evaluate_clicks(labels, sampled).calibration > 3
    np.testing.assert_allclose(correct_downsampling(sampled, 0.1), rate, rtol=1e-12)
    # Weights put the sample right as well.
    weighted = evaluate_clicks(
        labels[kept], rate[kept], weights=np.where(labels[kept], 1.0, 10.0)
    )
    whole = evaluate_clicks(labels, rate)
    assert weighted.log_loss == pytest.approx(whole.log_loss, rel=0.05)


@pytest.mark.parametrize("kind", BUILDERS)
def test_model_agrees_with_the_formula(kind):
    model, rows = make_model(kind), make_rows(50)
    before = answer(model, rows)
    shifted = shift_bias(model, 0.05)
    want = correct_downsampling(before, 0.05)
    np.testing.assert_allclose(answer(shifted, rows), want, atol=1e-6)
    assert np.ptp(want) > 1e-3
    assert type(shifted) is type(model)
    assert shifted.name == model.name
    # The model is left as it is, and shares no weight with the copy.
    np.testing.assert_array_equal(answer(model, rows), before)
    moved = [
        a.path
        for a, b in zip(model.weights, shifted.weights, strict=True)
        if not np.array_equal(array(a), array(b))
    ]
    assert moved == [f"{model.name}_probability/bias"]
    assert not {id(x) for x in model.weights} & {id(x) for x in shifted.weights}


def test_trained_model_and_saved_copy(tmp_path):
    features = [CategoricalFeature(name, 5) for name in "ab"]
    model = build_dlrm(features, embedding_dim=2, top_units=(3,))
    rows = {name: np.arange(4, dtype="int32") for name in "ab"}
    model.compile("adam", "binary_crossentropy")
    model.train_on_batch(rows, make_labels(4))
    shifted = shift_bias(model, 0.5)
    assert not shifted.compiled
    shifted.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(answer(loaded, rows), answer(shifted, rows))
    shifted.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    got = served.serve({name: tf.constant(x) for name, x in rows.items()})
    want = correct_downsampling(answer(model, rows), 0.5)
    np.testing.assert_allclose(got["probability"], want, atol=1e-6)


def test_under_mixed_precision():
    keras.config.set_dtype_policy("mixed_float16")
    model, rows = make_model("dlrm"), make_rows(6)
    want = correct_downsampling(answer(model, rows), 0.05)
    shifted = shift_bias(model, 0.05)
    assert shifted.dtype_policy.name == model.dtype_policy.name
    np.testing.assert_allclose(answer(shifted, rows), want, atol=1e-6)


@pytest.mark.parametrize("rate", [0, -0.1, 1.5, float("nan"), True, "0.1"])
def test_says_what_rate_was_given(rate):
    with pytest.raises(ValueError, match=rf"`negative_rate`.*={rate!r}"):
        correct_downsampling([0.5], rate)
    with pytest.raises(ValueError, match=rf"`negative_rate`.*={rate!r}"):
        shift_bias(None, rate)


def test_says_what_probability_was_given():
    with pytest.raises(ValueError, match=r"1 of 2 rows.*2\.5 at row 1"):
        correct_downsampling([0.5, 2.5], 0.1)


def test_refuses_other_models():
    x = keras.Input((1,), name="x")
    head = ClickProbability(name="head")(x)
    for model, text in (
        (keras.Sequential([keras.layers.Dense(1)]), r"a Sequential with outputs of"),
        (keras.Model(x, keras.layers.Dense(1)(x)), r"outputs of \['Dense'\]"),
        (keras.Model(x, 0.5 * head), r"outputs of \['Multiply'\]"),
        (keras.Model(x, [head, head]), r"\['ClickProbability', 'ClickProbability'\]"),
    ):
        with pytest.raises(ValueError, match=rf"`model` must be a functional.*{text}"):
            shift_bias(model, 0.5)
