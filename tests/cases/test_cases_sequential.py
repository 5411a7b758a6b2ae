"""Cases 04, 08 to 10, 24, 27 to 29, 31 and 32 of models of the next item."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from case_models import NEXT_ITEM_BUILDERS, make_next_item_model
from helpers import array, tensor
from keras import layers

from keras_recsys.layers import CPRSoftmax, ExcludeSeen, SequenceEncoder
from keras_recsys.models import build_two_stage
from keras_recsys.serving import export_next_item

VALUES = [11, 12, 13, 14]
# Left and right padded, with holes, long, and without an item.
ROWS = np.array(
    [[1, 2, 3, 0, 0], [0, 0, 1, 2, 3], [1, 0, 2, 0, 3], [8, 1, 5, 1, 2], [0] * 5],
    dtype="int32",
)


def logits_of(model, rows):
    return array(model({"item_ids": np.asarray(rows, "int32")})["logits"])


def make_toy():
    """Four items with scores 3, 2, 1, 0, and padding that would have 9."""
    ids = keras.Input((None,), dtype="int32", name="item_ids")
    x = layers.GlobalMaxPooling1D()(layers.Embedding(5, 2)(ids))
    scores = layers.Dense(5, kernel_initializer="zeros")
    model = keras.Model({"item_ids": ids}, {"logits": scores(x)})
    scores.bias.assign([9.0, 3.0, 2.0, 1.0, 0.0])
    return model


@pytest.fixture(scope="module", params=[False, True], ids=["all", "unseen"])
def toy(request, tmp_path_factory):
    """The toy exported: whether without what was seen, and a function of rows and k."""
    path = tmp_path_factory.mktemp("toy") / "1"
    module = importlib.import_module("keras_recsys.serving.export_next_item")
    with pytest.MonkeyPatch.context() as patch:  # the tests look at all answers
        patch.setattr(module, "check_in_fresh_process", lambda *args: 0.0)
        export_next_item(
            make_toy(),
            path,
            item_values=VALUES,
            exclude_seen=request.param,
            verbose=False,
        )
    loaded = tf.saved_model.load(str(path))

    def serve(rows, k):
        outputs = loaded.signatures["serving_default"](
            item_ids=tf.constant(rows, tf.int64), k=tf.constant(k, tf.int32)
        )
        return outputs["item_ids"].numpy().tolist(), outputs["scores"].numpy().tolist()

    return request.param, serve


@pytest.mark.parametrize("kind", ["sasrec", "gru4rec"])
def test_case_04_user_tower_is_exported(kind, tmp_path):
    full = make_next_item_model(kind)
    tower = keras.Model(full.input, full.get_layer(f"{kind}_user_vector").output)
    tower.export(tmp_path / "tower", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "tower"))
    for rows in (ROWS, ROWS[:1, :3]):
        got = served.serve({"item_ids": tf.constant(rows)})
        want = array(full({"item_ids": rows})["user_vector"])
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        assert np.abs(np.diff(want)).max() > 1e-3
    predicted = tower.predict({"item_ids": ROWS[:1, :3]}, verbose=0)
    np.testing.assert_allclose(got, predicted, rtol=1e-5, atol=1e-6)


def test_case_08_number_of_items_is_chosen_by_the_call(toy):
    _, serve = toy
    assert serve([[0]], 2) == ([[11, 12]], [[3.0, 2.0]])
    assert serve([[0]], 4) == ([[11, 12, 13, 14]], [[3.0, 2.0, 1.0, 0.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="5 > 4 candidates"):
        serve([[0]], 5)


def test_case_09_what_was_seen_is_left_out_and_replaced(toy):
    exclude_seen, serve = toy
    ids, scores = serve([[11, 12], [0, 0], [12, 99]], 2)
    if exclude_seen:
        assert ids == [[13, 14], [11, 12], [11, 13]]
        assert scores == [[1.0, 0.0], [3.0, 2.0], [3.0, 1.0]]
    else:
        assert ids == [[11, 12]] * 3
    # Too few are left: no item stands there twice, and none that was seen.
    ids, scores = serve([[11, 12, 13]], 3)
    assert ids == [[14, 0, 0] if exclude_seen else [11, 12, 13]]
    assert scores == [[0.0, -1e9, -1e9] if exclude_seen else [3.0, 2.0, 1.0]]


def test_case_10_padding_is_no_item_of_the_toy(toy):
    _, serve = toy
    for rows in ([[0, 0]], [[11, 0]], [[13, 14]]):
        ids, _ = serve(rows, 2)
        assert min(min(row) for row in ids) > 10


@pytest.mark.parametrize("kind", NEXT_ITEM_BUILDERS)
def test_case_10_padding_is_no_item_of_a_model(kind):
    model = make_next_item_model(kind)
    table = model.get_layer(f"{kind}_items").embeddings
    values = array(table).copy()
    if kind != "repeatnet":  # whose vector is for another table
        # By its vector padding is the best item of the first row.
        values[0] = 9.0 * array(model({"item_ids": ROWS[:1]})["user_vector"])[0]
    table.assign(values)
    logits = logits_of(model, ROWS)
    assert (logits[:, 0] == -1e9).all()
    shares = array(keras.ops.softmax(tensor(logits)))
    assert (shares[:, 0] == 0).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-5)
    left = array(ExcludeSeen()(logits, ROWS))
    for row, seen in zip(left, ROWS, strict=True):
        assert not set(np.argsort(-row)[:4]) & {0, *seen}
    if kind == "repeatnet":
        return  # it scores all items, or none
    two = build_two_stage(model, num_candidates=8, k=8, exclude_seen=True)
    for ids, seen in zip(array(two({"item_ids": ROWS})["item_ids"]), ROWS, strict=True):
        unseen = set(range(1, 9)) - set(seen)
        assert set(ids[: len(unseen)]) == unseen
        assert not ids[len(unseen) :].any()


@pytest.mark.parametrize("kind", NEXT_ITEM_BUILDERS)
def test_case_24_vector_of_padding_never_counts(kind):
    model = make_next_item_model(kind)
    want = logits_of(model, ROWS)
    table = model.get_layer(f"{kind}_items").embeddings
    values = array(table).copy()
    values[0] = 100.0
    table.assign(values)
    np.testing.assert_array_equal(logits_of(model, ROWS), want)
    values[3] += 0.1
    table.assign(values)
    assert np.abs(logits_of(model, ROWS) - want).max() > 1e-3


@pytest.mark.parametrize("kind", NEXT_ITEM_BUILDERS)
def test_case_27_more_padding_changes_nothing(kind):
    model = make_next_item_model(kind)
    want = logits_of(model, [[5, 6]])
    for row in ([0, 5, 6], [0, 0, 0, 5, 6], [5, 6, 0, 0, 0, 0, 0, 0]):
        np.testing.assert_allclose(logits_of(model, [row]), want, rtol=1e-5, atol=1e-6)


def test_case_27_masked_step_has_no_part_in_the_attention():
    encoder = SequenceEncoder(1, 2, align="last")
    x = np.random.default_rng(0).normal(size=(1, 4, 4)).astype("float32")
    mask = np.array([[False, True, True, True]])
    want = array(encoder(x, mask=mask))
    x[:, 0] = 50.0
    np.testing.assert_allclose(
        array(encoder(x, mask=mask))[:, 1:], want[:, 1:], rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", NEXT_ITEM_BUILDERS)
def test_case_28_no_step_sees_a_later_one(kind, training):
    # One seed, and so the same steps dropped, for both.
    states = []
    for last in (4, 7):
        keras.utils.set_random_seed(1)
        model = make_next_item_model(kind, dropout=0.2, seed=1)
        head = model.get_layer(f"{kind}_head")
        encoder = keras.Model(model.input, head.input[0])
        rows = np.array([[1, 2, 3, last]], "int32")
        states.append(array(encoder({"item_ids": rows}, training=training)))
    np.testing.assert_array_equal(states[0][:, :3], states[1][:, :3])
    assert np.abs(states[0][:, 3] - states[1][:, 3]).max() > 1e-3


@pytest.mark.parametrize("kind", NEXT_ITEM_BUILDERS)
def test_case_29_padding_adds_no_loss(kind):
    model = make_next_item_model(kind)

    def loss(rows, targets):
        rows = {"item_ids": np.array(rows, "int32")}
        targets = tensor(np.array(targets, "int32"))
        outputs = model(rows)
        return float(model.compute_loss(rows, targets, outputs, training=False))

    want = loss([[3, 4]], [[4, 1]])
    assert want > 0.1
    for rows, targets in (
        ([[3, 4, 0, 0]], [[4, 1, 0, 0]]),
        ([[3, 4], [0, 0]], [[4, 1], [0, 0]]),
        ([[3, 4, 0], [0, 0, 0], [0, 0, 0]], [[4, 1, 0], [0, 0, 0], [0, 0, 0]]),
    ):
        np.testing.assert_allclose(loss(rows, targets), want, rtol=1e-5)
    assert loss([[0, 0]], [[0, 0]]) == 0.0


@pytest.mark.parametrize("kind", NEXT_ITEM_BUILDERS)
def test_case_31_rows_without_a_history(kind):
    model = make_next_item_model(kind)
    rows = np.array([[1, 2, 3], [0, 0, 0], [4, 5, 6]], "int32")
    logits = logits_of(model, rows)
    assert np.isfinite(logits).all()
    alone = logits_of(model, [[0]])
    np.testing.assert_allclose(logits[1:2], alone, rtol=1e-6)
    assert np.abs(logits[0] - logits[1]).max() > 1e-3
    # Recurrent kernels are what differs in a compiled step.
    eager = kind == "sasrec"
    model.compile(keras.optimizers.SGD(0.1), jit_compile=False, run_eagerly=eager)
    # The second batch has no item at all.
    rows = np.array([[1, 2, 3], [4, 0, 0], [0, 0, 0], [0, 0, 0]], "int32")
    history = model.fit(
        {"item_ids": rows},
        np.array([4, 5, 6, 0], "int32"),
        batch_size=2,
        shuffle=False,
        verbose=0,
    )
    assert np.isfinite(history.history["loss"]).all()
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    predicted = model.predict({"item_ids": rows}, verbose=0)["logits"]
    np.testing.assert_allclose(predicted, logits_of(model, rows), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", NEXT_ITEM_BUILDERS)
def test_case_32_any_side_may_be_padded(kind):
    model = make_next_item_model(kind)
    logits = logits_of(model, ROWS)
    want = logits_of(model, [[1, 2, 3]])[0]
    for row in logits[:3]:
        np.testing.assert_allclose(row, want, rtol=1e-5, atol=1e-6)
    # It is item 3 that is read, and not another.
    assert np.abs(logits_of(model, [[3, 2, 1]])[0] - want).max() > 1e-3


def test_case_32_state_of_the_last_item_is_read():
    states = np.zeros((2, 5, 2), "float32")
    states[0, 2] = states[1, 4] = [1.0, 2.0]  # those of item 3
    head = CPRSoftmax(False, False, (), use_projection=False)
    table = np.array([[7, 7], [1, 0], [0, 1], [1, 1]], "float32")
    logits = array(head(states, ROWS[:2], table))
    np.testing.assert_array_equal(logits, [[-1e9, 1, 2, 3]] * 2)
