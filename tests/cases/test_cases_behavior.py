"""Cases 19, 23, 24, 25 and 29 to 33: tables, masks and weights of a history."""

import functools

import keras
import numpy as np
import pytest
from case_models import (
    FEATURES,
    HISTORY_BUILDERS,
    answer,
    make_labels,
    make_model,
    make_rows,
    predict,
)
from helpers import array, randomize

from keras_recsys.features import SequenceFeature
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


@functools.cache
def model_of(kind):
    """A model of a builder; tests leave it as it is."""
    return make_model(kind)


def rows_of(*histories, item=5):
    """Rows that differ in nothing but the history."""
    one = {name: x[:1] for name, x in make_rows().items()}
    rows = {name: np.repeat(x, len(histories), axis=0) for name, x in one.items()}
    return {**rows, "item": np.full(len(histories), item), "history": histories}


def as_arrays(rows):
    return {name: np.asarray(x) for name, x in rows.items()}


@pytest.mark.parametrize("kind", HISTORY_BUILDERS)
def test_case_19_one_table_for_target_and_history(kind):
    liked = SequenceFeature("liked", 9, table="items", dtype="int64")
    model = make_model(kind, (*FEATURES, liked))
    (table,) = [w for w in model.weights if tuple(w.shape) == (9, 4)]
    rows = as_arrays(rows_of([1, 2, 0], [1, 3, 0], [0, 0, 0], [0, 0, 0]))
    rows["item"] = np.array([4, 4, 4, 5])
    rows["liked"] = np.array([[6], [6], [7], [6]])
    want = answer(model, rows)[:, 0]
    # Item 2 is in the history of row 0, item 5 the target of row 3, and 7 is liked.
    for item, row in ((2, 0), (5, 3), (7, 2)):
        values = array(table).copy()
        values[item] += 0.5
        table.assign(values)
        moved = np.abs(answer(model, rows)[:, 0] - want) > 1e-6
        assert np.flatnonzero(moved).tolist() == [row]
        values[item] -= 0.5
        table.assign(values)


@pytest.mark.parametrize("kind", HISTORY_BUILDERS)
def test_case_24_vector_of_padding_never_counts(kind):
    model = make_model(kind)
    rows = as_arrays(rows_of([5, 6, 0, 0], [0, 5, 0, 6], [0, 0, 0, 0]))
    rows["genres"] = np.array([[1, 0, 2], [0, 0, 0], [3, 4, 0]], "int32")
    want = answer(model, rows)
    for table in ("items", "genres"):
        layer = model.get_layer(f"{model.name}_fields_{table}")
        values = array(layer.embeddings).copy()
        values[0] = 100.0
        layer.embeddings.assign(values)
    np.testing.assert_array_equal(answer(model, rows), want)


@pytest.mark.parametrize("kind", HISTORY_BUILDERS)
def test_case_29_padding_adds_no_loss(kind):
    model = model_of(kind)
    sums = keras.losses.BinaryCrossentropy(reduction="sum")
    model.compile("sgd", sums, run_eagerly=True)
    rows = as_arrays(rows_of([3, 4], [5, 0]))
    labels = make_labels(2)
    want = model.test_on_batch(rows, labels)
    wider = {**rows, "history": np.pad(rows["history"], ((0, 0), (0, 3)))}
    assert model.test_on_batch(wider, labels) == pytest.approx(want, rel=1e-6)
    # A row of nothing but padding adds the loss of its own click alone.
    empty = as_arrays(rows_of([0, 0, 0, 0, 0]))
    both = {name: np.concatenate([wider[name], empty[name]]) for name in wider}
    own = -np.log(answer(model, empty)[0, 0])
    got = model.test_on_batch(both, np.append(labels, [[1.0]], axis=0))
    assert got == pytest.approx(want + own, rel=1e-5)


@pytest.mark.parametrize("kind", HISTORY_BUILDERS)
def test_case_31_rows_without_a_history(kind):
    model = make_model(kind)
    some = as_arrays(rows_of([1, 2, 3], [0, 0, 0], [0, 0, 0], [0, 0, 0]))
    some["item"] = np.array([5, 5, 5, 6])
    got = answer(model, some)[:, 0]
    assert np.isfinite(got).all()
    # Target and other features decide, however much padding there is.
    assert got[1] == got[2]
    assert np.abs(got[1] - got[[0, 3]]).min() > 1e-6
    alone = as_arrays(rows_of([0]))
    np.testing.assert_allclose(answer(model, alone)[0], got[1], rtol=1e-6)
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    # The second batch has no event at all.
    loss = model.fit(some, make_labels(4), batch_size=2, shuffle=False, verbose=0)
    assert np.isfinite(loss.history["loss"]).all()
    assert all(np.isfinite(w).all() for w in model.get_weights())
    np.testing.assert_allclose(predict(model, some), answer(model, some), rtol=1e-5)


@pytest.mark.parametrize("kind", HISTORY_BUILDERS)
def test_case_32_any_side_may_be_padded(kind):
    model = model_of(kind)
    sides = ([1, 2, 3, 0, 0], [0, 0, 1, 2, 3], [1, 0, 2, 0, 3], [3, 2, 1, 0, 0])
    got = answer(model, as_arrays(rows_of(*sides)))[:, 0]
    np.testing.assert_allclose(got[:3], got[0], rtol=1e-6)
    in_order = kind in ("dien", "mimn")
    assert bool(np.abs(got[3] - got[0]) > 1e-6) is in_order
    short = answer(model, as_arrays(rows_of([1, 2, 3])))[0]
    np.testing.assert_allclose(short, got[0], rtol=1e-6)  # case 25
