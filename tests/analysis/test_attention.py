import keras
import numpy as np
import pytest
import tensorflow as tf
from cases.case_models import answer, make_model, make_rows
from helpers import array

from keras_recsys import CategoricalFeature, SequenceFeature
from keras_recsys.analysis import attention_entropy, attention_scores
from keras_recsys.layers import DualQueryAttention, FullEmbedding, IterativeMemory
from keras_recsys.models import build_sam


def entropy_loop(weights):
    """Entropy of one history, one weight at a time."""
    total = sum(weights)
    shares = [x / total for x in weights if x > 0]
    return -sum(p * np.log2(p) for p in shares)


def test_by_hand():
    for weights, bits in (
        ([0.5, 0.5, 0.5, 0.5], 2.0),
        ([0.0, 0.3, 0.0], 0.0),
        ([2.0, 1.0, 1.0], 1.5),
        ([0.75, 0.25], 2 - 0.75 * np.log2(3)),
        ([0.0, 0.0], 0.0),
        ([1.0], 0.0),
        ([], 0.0),
    ):
        assert attention_entropy(weights) == pytest.approx(bits, abs=1e-15)


def test_equals_the_loop():
    rng = np.random.default_rng(0)
    weights = rng.random((3, 2, 7)) * (rng.random((3, 2, 7)) < 0.7)
    weights[..., 0] = 0.1
    got = attention_entropy(weights)
    assert got.shape == (3, 2)
    assert got.dtype == "float64"
    for place in np.ndindex(3, 2):
        assert got[place] == pytest.approx(entropy_loop(weights[place]), abs=1e-12)
    # Neither the scale nor more padding has a part in it.
    np.testing.assert_allclose(attention_entropy(1e3 * weights), got, atol=1e-12)
    padded = np.pad(weights, ((0, 0), (0, 0), (2, 5)))
    np.testing.assert_allclose(attention_entropy(padded), got, atol=1e-12)


def test_no_entropy_is_not_minus_zero():
    assert not np.signbit(attention_entropy([[1.0, 0.0], [0.0, 0.0]])).any()


@pytest.mark.parametrize("count", [1, 5, 16_384])
def test_equal_weights_spread_over_all(count):
    weights = np.full((1, count), 0.1, "float16")
    np.testing.assert_allclose(2 ** attention_entropy(weights), [count], rtol=1e-12)
    tensor = keras.ops.convert_to_tensor(weights)
    np.testing.assert_allclose(2 ** attention_entropy(tensor), [count], rtol=1e-12)


def test_of_what_a_layer_returns():
    rng = np.random.default_rng(0)
    query, value = rng.normal(size=(3, 2)), rng.normal(size=(3, 4, 2))
    mask = np.array([[1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]], bool)
    layer = DualQueryAttention(score_mode="dot", attention_activation="softmax")
    _, weights = layer(query, query, value, mask, return_attention_scores=True)
    bits = attention_entropy(weights)
    assert bits.shape == (3,)
    assert 0.5 < bits[0] <= np.log2(3)
    np.testing.assert_array_equal(bits[1:], 0.0)


@pytest.mark.parametrize("bad", [-0.5, np.nan, np.inf])
def test_says_what_weights_were_given(bad):
    with pytest.raises(ValueError, match=rf"`weights` must be finite.*{bad}"):
        attention_entropy([0.5, bad])


ROWS = make_rows(5, 4)
ROWS["history"][3] = 0
KEPT = ROWS["history"] > 0


@pytest.mark.parametrize(
    ("kind", "settings", "part"),
    [
        ("sam", {}, "memory"),
        ("sam", {"use_iterative_walk": False, "num_steps": 0}, "memory"),
        ("din", {}, "interest"),
        ("dien", {}, "interest"),
        ("dien", {"auxiliary_loss_weight": 1.0, "auxiliary_units": (3,)}, "interest"),
        ("bst", {"num_blocks": 2}, "block_1"),
    ],
)
def test_scores_are_those_of_the_layer(kind, settings, part):
    model = make_model(kind, **settings)
    before = answer(model, ROWS)
    scores = attention_scores(model, ROWS, batch_size=5)
    layer = model.get_layer(f"{kind}_{part}")
    assert list(scores) == (
        ["bst_block_0", "bst_block_1"] if kind == "bst" else [layer.name]
    )
    got = scores[layer.name]
    # The layer, called by hand on what it is given in the model.
    inputs = [array(x) for x in keras.Model(model.input, layer.input)(ROWS)]
    if kind == "bst":
        mask = np.append(KEPT, np.ones((5, 1), bool), axis=1)
        _, want = layer(inputs[0], mask=mask, return_attention_scores=True)
        assert got.shape == (5, 2, 5, 5)
    else:
        vectors = (
            inputs[:3] if settings.get("use_iterative_walk") is False else inputs[:2]
        )
        _, want = layer(*vectors, value_mask=KEPT, return_attention_scores=True)
        assert got.shape == ((5, 2, 4) if got.ndim == 3 else (5, 4))
        kept = KEPT if got.ndim == 2 else np.repeat(KEPT[:, None], 2, axis=1)
        np.testing.assert_array_equal(got != 0, kept)
    np.testing.assert_allclose(got, array(want), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(answer(model, ROWS), before)


def test_scores_of_several_batches_and_of_a_dataset():
    model = make_model("din")
    want = attention_scores(model, ROWS)["din_interest"]
    assert want.shape == (5, 4)
    dataset = tf.data.Dataset.from_tensor_slices(ROWS).batch(3)
    for got in (
        attention_scores(model, ROWS, batch_size=2),
        attention_scores(model, dataset),
    ):
        np.testing.assert_allclose(got["din_interest"], want, rtol=1e-6)


def test_scores_of_an_own_model():
    """A Keras mask is read, and no order of arguments is presumed."""
    ids, item = keras.Input((None,), dtype="int32"), keras.Input((3,))
    events = FullEmbedding(9, 3, mask_zero=True)(ids)
    memory = IterativeMemory(2, 4, name="memory")
    model = keras.Model([ids, item], memory(value=events, query=item))
    rows = [np.array([[1, 0, 5]], "int32"), np.ones((1, 3), "float32")]
    (got,) = attention_scores(model, rows).values()
    assert got.shape == (1, 2, 3)
    assert not got[:, :, 1].any()
    assert (got[:, :, [0, 2]] > 0).all()


def test_says_that_there_is_no_attention():
    for kind in ("youtube_dnn", "mimn", "fm"):
        with pytest.raises(
            ValueError, match=f"`model` must have a layer with.*{kind}_"
        ):
            attention_scores(make_model(kind), ROWS)


def test_scores_of_batches_of_different_lengths_are_filled():
    features = [
        CategoricalFeature("item", 9),
        SequenceFeature("item_history", 9, table="item"),
    ]
    model = build_sam(features, history={"item_history": "item"}, num_passes=2)
    rows = [
        ({"item": np.array([3]), "item_history": np.array([history])}, np.ones((1, 1)))
        for history in ([5, 8, 2], [7])
    ]
    spec = {
        "item": tf.TensorSpec((None,), "int64"),
        "item_history": tf.TensorSpec((None, None), "int64"),
    }
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(rows), output_signature=(spec, tf.TensorSpec((None, 1)))
    )
    got = attention_scores(model, dataset)["sam_memory"]
    assert got.shape == (2, 2, 3)
    for row, (inputs, _) in zip(got, rows, strict=True):
        want = attention_scores(model, inputs)["sam_memory"][0]
        np.testing.assert_allclose(row[:, : want.shape[1]], want, rtol=1e-6)
        assert not row[:, want.shape[1] :].any()
