import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_recsys.analysis import NextItemReport, evaluate_next_item, geometric_mean
from keras_recsys.data import Sequences, make_sequence_dataset
from keras_recsys.metrics import MRR, NDCG, HitRate

RNG = np.random.default_rng(0)
NUM_ITEMS = 12


class Bag(keras.Model):
    """Scores by the sum of vectors of the items of a row."""

    def __init__(self, form="tensor"):
        super().__init__()
        self.form = form
        self.table = keras.layers.Embedding(NUM_ITEMS + 1, NUM_ITEMS + 1)
        self.dropout = keras.layers.Dropout(0.9)
        self.traces = 0

    def call(self, inputs, training=None):
        self.traces += 1
        x = ops.sum(self.table(inputs["item_ids"]), axis=1)
        x = self.dropout(x, training=training)
        return x if self.form == "tensor" else {"logits": x, "other": x[:, :1]}


def dataset(**kwargs):
    rng = np.random.default_rng(1)
    users = rng.integers(0, 40, 400)
    sequences = Sequences.from_events(users, rng.integers(0, NUM_ITEMS, 400))
    return make_sequence_dataset(sequences, "test", batch_size=7, **kwargs)


def rank_loop(scores, target, seen=()):
    """Mean gains over the ranks that ties leave open, in float64."""
    others = [i for i in range(1, len(scores)) if i != target]
    low = {i: (i not in seen, scores[i] if i not in seen else 0) for i in others}
    own = (target not in seen, scores[target] if target not in seen else 0)
    above = sum(low[i] > own for i in others)
    return range(above + 1, above + 2 + sum(low[i] == own for i in others))


def report_loop(model, batches, k, exclude_seen):
    parts = {"all": [], "repeated": [], "new": []}
    for inputs, targets in batches:
        scores = np.array(model(inputs, training=False))
        for x, row, target in zip(
            inputs["item_ids"].numpy().tolist(), scores, targets.numpy(), strict=True
        ):
            ranks = rank_loop(row, target, set(x) if exclude_seen else ())
            gains = [(r <= k, (r <= k) / np.log2(r + 1), (r <= k) / r) for r in ranks]
            gains = np.mean(np.array(gains, "float64"), axis=0)
            parts["all"].append(gains)
            parts["repeated" if target in x else "new"].append(gains)
    return {name: (len(x), *np.mean(x, axis=0)) for name, x in parts.items()}


def figures(report):
    return report.num_users, report.hit_rate, report.ndcg, report.mrr


@pytest.mark.parametrize("exclude_seen", [False, True])
@pytest.mark.parametrize("k", [1, 5, 100])  # there are 12 items
def test_equals_the_loop(k, exclude_seen):
    model = Bag()
    batches = dataset()
    got = evaluate_next_item(model, batches, k=k, exclude_seen=exclude_seen)
    want = report_loop(model, batches, k, exclude_seen)
    assert got.k == k
    parts = {"all": got, "repeated": got.repeated, "new": got.new}
    for name, part in parts.items():
        np.testing.assert_allclose(figures(part), want[name], rtol=1e-9)
    assert got.new.num_users > 0
    assert got.repeated.num_users > 0
    assert got.new.new is None


def test_equals_the_metrics():
    model = Bag()
    report = evaluate_next_item(model, dataset(), k=3)
    for metric in (HitRate(3), NDCG(3), MRR(3)):
        for inputs, targets in dataset():
            metric.update_state(targets, model(inputs, training=False))
        want = float(metric.result())
        assert getattr(report, metric.name) == pytest.approx(want, rel=1e-5)


def test_models_of_several_outputs_and_functions():
    model, other = Bag(), Bag("dict")
    want = evaluate_next_item(model, dataset())
    next(iter(dataset().map(lambda x, y: other(x))))
    other.set_weights(model.get_weights())
    assert evaluate_next_item(other, dataset()) == want
    assert evaluate_next_item(lambda x: model(x, training=False), dataset()) == want
    inputs = keras.Input((None,), dtype="int32", name="item_ids")
    functional = keras.Model({"item_ids": inputs}, ops.sum(model.table(inputs), axis=1))
    left = dataset(padding="left").map(lambda x, y: (x, y[:, None]))
    assert evaluate_next_item(functional, left) == want


def test_traces_do_not_grow_with_the_widths():
    model = Bag()
    rng = np.random.default_rng(0)
    batches = [
        ({"item_ids": rng.integers(1, 9, (size, width))}, rng.integers(1, 9, size))
        for size, width in enumerate(range(3, 13), start=1)
    ]
    evaluate_next_item(model, batches)
    assert model.traces <= 4  # one makes the weights, two find what varies


def test_by_hand():
    item_ids = np.array([[1, 2, 0], [2, 3, 2], [3, 1, 0], [1, 1, 1]])
    scores = np.array(
        [[9, 4, 3, 2, 1], [9, 1, 2, 0, 3], [9, 1, 3, 0, 2], [9, 1, 2, 3, 4]]
    )
    # Rank 1 of a repeated target, ranks 3 and 2 of new ones, and padding.
    batches = [({"item_ids": item_ids}, np.array([1, 1, 4, 0]))]

    def model(inputs):
        return np.array(scores)

    got = evaluate_next_item(model, batches, k=2)
    second = 1 / math.log2(3)
    assert figures(got) == pytest.approx((3, 2 / 3, (1 + second) / 3, 0.5))
    assert figures(got.repeated) == pytest.approx((1, 1, 1, 1))
    assert figures(got.new) == pytest.approx((2, 0.5, second / 2, 0.25))
    lines = [line.split() for line in str(got).splitlines()]
    assert lines[0] == ["all", "repeated", "new"]
    assert lines[1] == ["users", "3", "1", "2"]
    assert lines[4] == ["MRR@2", "0.5000", "1.0000", "0.2500"]
    # Without the items of the row: a tie of ranks 3 and 4; rank 2; rank 2.
    got = evaluate_next_item(model, batches, k=4, exclude_seen=True)
    assert got.repeated.mrr == pytest.approx((1 / 3 + 1 / 4) / 2)
    assert got.new.mrr == pytest.approx(1 / 2)


def test_seen_items_are_below_scores_of_minus_infinity():
    scores = np.array([[0, 5, -np.inf, 7, 1]])
    batches = [({"item_ids": np.array([[1, 3, 1]])}, np.array([2]))]
    got = evaluate_next_item(lambda x: scores, batches, exclude_seen=True)
    assert got.mrr == 0.5  # behind item 4 alone


def test_parts_of_no_users_are_nan():
    batches = [({"item_ids": np.array([[1]])}, np.array([2]))]
    got = evaluate_next_item(lambda x: np.eye(1, 4, 2), batches)
    assert figures(got) == (1, 1.0, 1.0, 1.0)
    assert got.repeated.num_users == 0
    assert math.isnan(got.repeated.ndcg)
    assert "-" in str(got)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": 3}, TypeError, r"`model`.*int"),
        ({"k": 0}, ValueError, r"`k`.*k=0"),
        ({"exclude_seen": 1}, TypeError, r"`exclude_seen`.*exclude_seen=1"),
        ({"dataset": [np.ones(2)]}, TypeError, r"`dataset`.*ndarray"),
        ({"dataset": [({}, [1])]}, ValueError, r"`dataset`.*'item_ids'.*\[\]"),
        ({"dataset": [(np.ones(2), [1])]}, ValueError, r"'item_ids'.*names none"),
        ({"dataset": []}, ValueError, r"`dataset`.*at least one row"),
        ({"model": lambda x: {"p": 1}}, ValueError, r"`model`.*'logits'.*\['p'\]"),
        ({"model": lambda x: np.ones((1, 2, 3))}, ValueError, r"\(1, 2, 3\)"),
        ({"model": lambda x: np.ones((1, 2))}, ValueError, r"`targets`.*\[0, 2\).*2"),
    ],
)
def test_says_what_was_given(change, error, message):
    batches = [({"item_ids": np.array([[1]])}, np.array([2]))]
    arguments = {"model": lambda x: np.ones((1, 4)), "dataset": batches, **change}
    with pytest.raises(error, match=message):
        evaluate_next_item(**arguments)


def test_says_that_targets_are_one_a_row_and_the_set_finite():
    with pytest.raises(ValueError, match=r"`dataset`.*targets='last'"):
        evaluate_next_item(Bag(), dataset(targets="all"))
    endless = tf.data.Dataset.from_tensors(({"item_ids": [[1]]}, [2])).repeat()
    with pytest.raises(ValueError, match="finite"):
        evaluate_next_item(Bag(), endless)


def test_geometric_mean_by_hand():
    assert geometric_mean([1, 4.0, 16]) == pytest.approx(4.0)
    assert geometric_mean([1e-300, 1e-300]) == pytest.approx(1e-300)
    assert geometric_mean([0.5, 0.0]) == 0.0
    assert geometric_mean([np.float32(0.25)]) == 0.25
    first = NextItemReport(10, 5, hit_rate=0.4, ndcg=0.2, mrr=0.0)
    second = NextItemReport(10, 9, hit_rate=0.1, ndcg=0.8, mrr=0.5)
    assert geometric_mean([first, second]) == pytest.approx(
        {"hit_rate": 0.2, "ndcg": 0.4, "mrr": 0.0}
    )
    other = dataclasses.replace(first, k=20)
    with pytest.raises(ValueError, match=r"one `k`.*\[10, 20\]"):
        geometric_mean([first, other])


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([], ValueError),
        ([0.5, -0.1], ValueError),
        ([0.0, float("nan")], ValueError),
        ([float("inf")], ValueError),
        (["0.5"], TypeError),
        ([True], TypeError),
        ([NextItemReport(10, 1, 0.1, 0.1, 0.1), 0.5], TypeError),
    ],
)
def test_geometric_mean_says_what_was_given(values, error):
    with pytest.raises(error, match="`values`"):
        geometric_mean(values)
