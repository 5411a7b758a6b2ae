import importlib
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import array, randomize
from keras import layers

from keras_recsys.layers import CPRSoftmax, MixtureOfSoftmaxes
from keras_recsys.models import build_gru4rec, build_sasrec
from keras_recsys.serving import ExportReport, _check, export_next_item

MODULE = importlib.import_module("keras_recsys.serving.export_next_item")
NAMES = [f"item {n}" for n in range(1, 10)]
IDS = np.array([[3, 5, 3, 0], [0, 0, 0, 0], [1, 2, 7, 4]], dtype="int32")


@pytest.fixture
def unchecked(monkeypatch):
    """Leaves out the fresh process, where a test looks at something else."""
    monkeypatch.setattr(MODULE, "check_in_fresh_process", lambda *args: 0.0)


def make_model(build=build_gru4rec, **settings):
    """A model of 9 items with random weights."""
    settings = {"head": CPRSoftmax(rerank=(2,)), **settings}
    model = build(9, embedding_dim=4, max_len=3, **settings)
    randomize(model, np.random.default_rng(3))
    return model


def make_toy(scores=(9.0, 3.0, 2.0, 1.0, 0.0), length=None):
    """A model whose scores are the same for each history."""
    ids = keras.Input((length,), dtype="int64", name="item_ids")
    x = layers.GlobalMaxPooling1D()(layers.Embedding(len(scores), 2)(ids))
    x = layers.Dense(
        len(scores),
        kernel_initializer="zeros",
        bias_initializer=lambda shape, dtype: tf.constant(scores, dtype),
    )(x)
    return keras.Model({"item_ids": ids}, {"logits": x})


def best(model, ids, k, exclude_seen=False):
    """The best items by the logits of all, one row at a time."""
    found = np.zeros((len(ids), k), "int32"), np.full((len(ids), k), -1e9)
    for row, logits in enumerate(array(model({"item_ids": ids})["logits"])):
        seen = set(ids[row]) if exclude_seen else set()
        kept = [i for i in range(1, len(logits)) if i not in seen]
        order = sorted(kept, key=lambda i: -logits[i])[:k]
        found[0][row, : len(order)] = order
        found[1][row, : len(order)] = logits[order]
    return found


class Served:
    """An export, loaded; what it answers is arrays, and texts."""

    def __init__(self, path):
        self.loaded = tf.saved_model.load(str(path))  # it owns the weights

    def __call__(self, item_ids, k):
        signature = self.loaded.signatures["serving_default"]
        spec = signature.structured_input_signature[1]["item_ids"]
        outputs = signature(
            item_ids=tf.constant(item_ids, spec.dtype), k=tf.constant(k, tf.int32)
        )
        ids = outputs["item_ids"].numpy()
        if ids.dtype == object:
            ids = np.array([x.decode() for x in ids.ravel()]).reshape(ids.shape)
        return ids, outputs["scores"].numpy()


@pytest.mark.slow
def test_checked_in_a_fresh_process(tmp_path, capsys):
    model = make_model(build_sasrec, multi_input=True)
    report = export_next_item(
        model,
        tmp_path / "made" / "1",
        item_values=NAMES,
        exclude_seen=True,
        num_candidates=8,
    )
    assert isinstance(report, ExportReport)
    assert report.signatures == {
        "serving_default": {
            "inputs": {"item_ids": ("string", (None, None)), "k": ("int32", ())},
            "outputs": {
                "item_ids": ("string", (None, None)),
                "scores": ("float32", (None, None)),
            },
        }
    }
    assert report.max_difference < 1e-5
    assert capsys.readouterr().out == report.snippet
    compile(report.snippet, "client", "exec")
    assert "'k': tf.constant(5, tf.int32)" in report.snippet
    want = best(model, IDS, 4, exclude_seen=True)
    got = Served(report.path)(np.array(["", *NAMES])[IDS], 4)
    np.testing.assert_array_equal(got[0], np.array(["", *NAMES])[want[0]])
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("num_candidates", "exclude_seen"), [(None, False), (8, True)])
def test_equals_the_model(tmp_path, unchecked, num_candidates, exclude_seen):
    model = make_model()
    config = model.to_json()
    export_next_item(
        model,
        tmp_path / "1",
        exclude_seen=exclude_seen,
        num_candidates=num_candidates,
        verbose=False,
    )
    assert model.to_json() == config
    served = Served(tmp_path / "1")
    longer = np.pad(IDS, [(0, 0), (9, 0)])
    for k, ids in ((1, IDS), (5, IDS), (8, IDS[:, :1]), (3, longer)):
        got, want = served(ids, k), best(model, ids, k, exclude_seen)
        assert got[0].dtype == "int32"
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_allclose(got[1], want[1], rtol=1e-5, atol=1e-6)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"10 > {num_candidates or 9} candidates"
    ):
        served(IDS, 10)
    # The weights and nothing else, each once.
    checkpoint = tf.train.load_checkpoint(str(tmp_path / "1" / "variables/variables"))
    shapes = checkpoint.get_variable_to_shape_map()
    weights = [name for name in shapes if name.startswith("weights/")]
    assert len(weights) == len(model.weights)


@pytest.mark.parametrize(
    ("values", "unknown"),
    [
        (["b", "a", "é", "d"], "x"),
        (np.array([7, 2**40, -1, 5]), 9),
        (np.array(["b", "a", "é", "d"], object), "b "),
    ],
    ids=["strings", "array", "objects"],
)
def test_raw_values(tmp_path, unchecked, values, unknown):
    export_next_item(
        make_toy(), tmp_path / "1", item_values=values, exclude_seen=True, verbose=False
    )
    served = Served(tmp_path / "1")
    first, second, third, fourth = list(values)
    none = "" if isinstance(first, str) else 0
    rows = [[none, unknown, none], [unknown, third, first], [first, second, fourth]]
    ids, scores = served(rows, 3)
    assert ids.tolist() == [
        [first, second, third],
        [second, fourth, none],
        [third, none, none],
    ]
    assert scores.tolist() == [[3, 2, 1], [2, 0, -1e9], [1, -1e9, -1e9]]


def test_fixed_length_and_ids_of_64_bits(tmp_path, unchecked):
    report = export_next_item(make_toy(length=2), tmp_path / "1", verbose=False)
    inputs = report.signatures["serving_default"]["inputs"]
    assert inputs["item_ids"] == ("int64", (None, 2))
    ids, _ = Served(tmp_path / "1")([[4, 4]], 4)
    assert ids.dtype == "int64"
    assert ids.tolist() == [[1, 2, 3, 4]]


def test_says_what_k_was_given(tmp_path, unchecked):
    export_next_item(make_toy(), tmp_path / "1", verbose=False)
    served = Served(tmp_path / "1")
    for k, match in (
        (5, "`k` must be at most 4. Received: k=5; 5 > 4 candidates"),
        (0, "`k` must be at least 1. Received: k=0"),
        (-2, "`k` must be at least 1. Received: k=-2"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=match):
            served([[1, 2]], k)


def test_failed_check_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_text("the old export")

    def refuse(*args):
        raise RuntimeError("other answers")

    monkeypatch.setattr(MODULE, "check_in_fresh_process", refuse)
    with pytest.raises(RuntimeError, match="other answers"):
        export_next_item(make_toy(), tmp_path / "1", overwrite=True)
    assert os.listdir(tmp_path) == ["1"]
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "the old export"
    with pytest.raises(FileExistsError, match="`path` must not exist"):
        export_next_item(make_toy(), tmp_path / "1")


def test_scores_of_what_was_found_by_hand():
    ids, scores = (
        np.array([[0, 3, 1], [2, 0, 0]]),
        np.array([[-9.0, 5, 4], [7, -9, -9]]),
    )
    got = _check._scores_of(np.array([[3, 1], [2, 1]]), ids, scores)
    np.testing.assert_array_equal(got, [[5, 4], [7, np.nan]])
    values = np.array(["", "a", "é", "c"])
    found = np.array([[b"c", b"a"], ["é".encode(), b"?"]], object)
    got = _check._scores_of(found, ids, scores, values)
    np.testing.assert_array_equal(got, [[5, 4], [7, np.nan]])


@pytest.mark.parametrize(
    ("values", "error", "match"),
    [
        ([1.5, 2, 3, 4], TypeError, "strings or of integers.*dtype float64"),
        ("abcd", TypeError, r"sequence of strings.*shape \(\)"),
        ([[1, 2], [3, 4]], TypeError, r"shape \(2, 2\)"),
        ([1, 2, 3], ValueError, "each of the 4 items.*Received: 3 values"),
        ([1, 2, 3, 1], ValueError, r"each value once.*Received: \[1\]"),
        ([1, 2, 3, 0], ValueError, r"padding, 0. Received: \[0\]"),
        (["a", "b", "c", ""], ValueError, r"padding, ''. Received: \[''\]"),
    ],
)
def test_values_that_do_not_fit(tmp_path, values, error, match):
    with pytest.raises(error, match=f"`item_values` must .*{match}"):
        export_next_item(make_toy(), tmp_path / "1", item_values=values)
    assert os.listdir(tmp_path) == []


def test_models_that_do_not_fit(tmp_path):
    path = tmp_path / "1"
    ids = keras.Input((None,), dtype="int32", name="item_ids")
    user = keras.Input((None,), dtype="int32", name="user")
    logits = layers.GlobalMaxPooling1D()(layers.Embedding(5, 5)(ids))
    both = logits + layers.GlobalMaxPooling1D()(layers.Embedding(2, 1)(user))
    for model in (
        keras.Model({"user": user}, {"logits": user}),
        keras.Model({"item_ids": ids, "user": user}, {"logits": both}),
    ):
        with pytest.raises(ValueError, match="the one input 'item_ids'.*'user'"):
            export_next_item(model, path)
    with pytest.raises(ValueError, match=r"output 'logits'.*'scores': \(None, 5\)"):
        export_next_item(keras.Model({"item_ids": ids}, {"scores": logits}), path)
    with pytest.raises(TypeError, match="`model` must be a `NextItemModel`"):
        export_next_item(make_toy(), path, num_candidates=3)
    model = make_model(head=MixtureOfSoftmaxes(2))
    with pytest.raises(ValueError, match="a `MixtureOfSoftmaxes`"):
        export_next_item(model, path, num_candidates=3)
    with pytest.raises(ValueError, match="`num_candidates`.*num_candidates=0"):
        export_next_item(make_model(), path, num_candidates=0)
    assert os.listdir(tmp_path) == []


def test_other_backend(tmp_path, monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "torch")
    with pytest.raises(RuntimeError, match="TensorFlow backend.*backend='torch'"):
        export_next_item(make_toy(), tmp_path / "1")
