"""Cases 23, 25, 30 and 33: masks and weights of attention to a history."""

import keras
import numpy as np
import pytest
from helpers import array, randomize

from keras_recsys.layers import DualQueryAttention, TargetAttention

RNG = np.random.default_rng(0)
QUERY, MEMORY = RNG.normal(size=(2, 3, 4)).astype("float32")
KEYS = RNG.normal(size=(3, 4, 4)).astype("float32")
KINDS = {
    "dual": (DualQueryAttention, (QUERY, MEMORY)),
    "dual_dot": (DualQueryAttention, (QUERY, MEMORY)),
    "target": (TargetAttention, (QUERY,)),
    "target_one_layer": (TargetAttention, (QUERY,)),
}
ARGUMENTS = {
    "dual_dot": {"score_mode": "dot"},
    "target_one_layer": {"hidden_units": (3,)},
}


def make(kind, **arguments):
    """A layer of random weights, and its queries."""
    cls, queries = KINDS[kind]
    layer = cls(**ARGUMENTS.get(kind, {}), **arguments)
    layer(*queries, KEYS)
    randomize(layer, np.random.default_rng(1))
    return layer, queries


@pytest.mark.parametrize("kind", KINDS)
def test_case_23_without_a_mask_every_item_counts(kind):
    for activation in ("softmax", "sigmoid"):
        layer, queries = make(kind, attention_activation=activation)
        got = array(layer(*queries, KEYS))
        full = np.ones((3, 4), bool)
        np.testing.assert_array_equal(got, array(layer(*queries, KEYS, full)))
        assert np.abs(got).max() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_case_25_mask_of_the_history_is_used(kind):
    layer, queries = make(kind, attention_activation="softmax")
    queries = [query[:1] for query in queries]
    embedding = keras.layers.Embedding(9, 4, mask_zero=True)
    padded = np.array([[1, 2, 0, 0]], "int32")
    want = array(layer(*queries, embedding(padded[:, :2])))
    # By the Keras mask, and by hand.
    got = array(layer(*queries, embedding(padded)))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    keys = array(embedding(padded))
    got = array(layer(*queries, keys, value_mask=padded > 0))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    assert np.abs(array(layer(*queries, keys)) - want).max() > 1e-4
    # In a model, where masks come as one for each argument.
    inputs = [keras.Input((4,)) for _ in queries]
    history = keras.Input((None,), dtype="int32")
    model = keras.Model([*inputs, history], layer(*inputs, embedding(history)))
    for ids in (padded, padded[:, :2], np.array([[0, 1, 0, 2]], "int32")):
        got = array(model([*queries, ids]))
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_case_30_softmax_leaves_padding_out():
    keys = np.array([[[1.0], [2.0], [0.0], [0.0]]], "float32")
    mask = np.array([[True, True, False, False]])
    zero, one = np.zeros((1, 1), "float32"), np.ones((1, 1), "float32")
    want = [[0.268941, 0.731059, 0.0, 0.0]]
    # The scores are the keys: key . (0 + 1), and a network that copies the key.
    dot = DualQueryAttention(score_mode="dot", attention_activation="softmax")
    copy = TargetAttention(
        (1,),
        interactions=("value",),
        activation="linear",
        attention_activation="softmax",
        kernel_initializer="ones",
    )
    for layer, queries in ((dot, (zero, one)), (copy, (zero,))):
        pooled, weights = layer(*queries, keys, mask, return_attention_scores=True)
        np.testing.assert_allclose(array(weights), want, rtol=1e-5)
        np.testing.assert_array_equal(array(weights)[:, 2:], 0.0)
        np.testing.assert_allclose(
            array(pooled), [[0.268941 + 2 * 0.731059]], rtol=1e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_case_33_weights_are_returned_and_saved(kind, tmp_path):
    layer, queries = make(kind, attention_activation="softmax")
    mask = np.array([[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]], bool)
    inputs = [keras.Input((4,)) for _ in queries]
    keys, kept = keras.Input((None, 4)), keras.Input((None,), dtype="bool")
    outputs = layer(*inputs, keys, kept, return_attention_scores=True)
    assert [tuple(x.shape) for x in outputs] == [(None, 4), (None, None)]
    model = keras.Model([*inputs, keys, kept], outputs)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    pooled, weights = (array(x) for x in loaded([*queries, KEYS, mask]))
    assert weights.shape == (3, 4)
    np.testing.assert_array_equal(weights[~mask], 0.0)
    np.testing.assert_allclose(weights.sum(1), [1.0, 1.0, 0.0], rtol=1e-6)
    want = np.einsum("bj,bjd->bd", weights, KEYS)
    np.testing.assert_allclose(pooled, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        pooled, array(layer(*queries, KEYS, mask)), rtol=1e-6, atol=1e-7
    )
