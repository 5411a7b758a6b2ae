import itertools

import keras
import numpy as np
import pytest
from helpers import BACKEND
from keras import ops

from keras_recsys.metrics import MRR, NDCG, HitRate, target_rank

METRICS = {
    HitRate: lambda rank: 1.0,
    NDCG: lambda rank: 1 / np.log2(rank + 1),
    MRR: lambda rank: 1 / rank,
}
RNG = np.random.default_rng(0)
# Few distinct scores, so that ties are many.
SCORES = RNG.integers(0, 4, size=(40, 7)).astype("float32")
TARGETS = RNG.integers(0, 7, size=40).astype("int32")


def ranks_loop(scores, target):
    """The rank of the target in each order of the items that share its score."""
    items = range(1, len(scores))
    above = sum(scores[item] > scores[target] for item in items)
    tied = [item for item in items if scores[item] == scores[target]]
    return [
        above + 1 + order.index(target)
        for order in itertools.permutations(tied, len(tied))
    ]


def mean_loop(metric, k, scores, targets, weights):
    """The metric of the docstrings, one row and one order at a time, in float64."""
    total = count = 0.0
    for row, target, weight in zip(scores, targets, weights, strict=True):
        if target:
            gains = [(r <= k) * METRICS[metric](r) for r in ranks_loop(row, target)]
            total += weight * np.mean(gains)
            count += weight
    return total / count


def no_loss(y_true, y_pred):
    return 0 * ops.sum(y_pred, axis=-1)


def as_ints(*tensors):
    return tuple(ops.convert_to_numpy(x).tolist() for x in tensors)


@pytest.mark.parametrize("k", [1, 2, 3, 6, 50])  # there are six items
@pytest.mark.parametrize("metric", METRICS)
def test_equals_the_loop_over_all_orders_of_ties(metric, k):
    weights = RNG.uniform(0.1, 2, 40).astype("float32")
    got = metric(k)
    for rows in (slice(0, 15), slice(15, 40)):
        got.update_state(TARGETS[rows, None], SCORES[rows], weights[rows])
    want = mean_loop(metric, k, SCORES, TARGETS, weights)
    np.testing.assert_allclose(float(got.result()), want, rtol=1e-5)
    got.reset_state()
    got.update_state(TARGETS, SCORES)
    want = mean_loop(metric, k, SCORES, TARGETS, np.ones(40))
    np.testing.assert_allclose(float(got.result()), want, rtol=1e-5)


def test_rank_by_hand():
    scores = np.array([[0.0, 3, 1, 1, 1], [9, 9, 9, 9, 9], [5, 4, 3, 2, 1]])
    above, tied = target_rank(scores, np.array([3, 2, 4]))
    assert as_ints(above, tied) == ([1, 0, 3], [3, 4, 1])
    assert above.shape == tied.shape == (3,)
    assert {keras.backend.standardize_dtype(x.dtype) for x in (above, tied)} == {
        "int32"
    }


def test_id_0_never_counts():
    scores = SCORES.copy()
    want = as_ints(*target_rank(scores, TARGETS))
    for filler in (-np.inf, 1e9, np.inf, np.nan, scores[0, 3]):
        scores[:, 0] = filler
        assert as_ints(*target_rank(scores, TARGETS)) == want


@pytest.mark.parametrize("metric", METRICS)
def test_padding_does_not_count(metric):
    got = metric(1)
    got.update_state(np.array([0, 0]), np.array([[9.0, 1], [0, 1]]))
    assert float(got.result()) == 0  # and not NaN
    got.update_state(np.array([0, 1]), np.array([[9.0, 1], [0, 1]]))
    assert float(got.result()) == 1


def test_nan_never_flatters():
    nan = np.nan
    scores = np.array([[0, 3, nan, 1], [0, nan, 2, 1], [0, nan, nan, nan]])
    above, tied = target_rank(scores, np.array([1, 1, 3]))
    # One item of NaN is above; the target of NaN is the last of three.
    assert as_ints(above, tied) == ([1, 2, 2], [1, 1, 1])


def test_infinite_scores_tie():
    scores = np.array([[0, -np.inf, 2, -np.inf]])
    assert as_ints(*target_rank(scores, np.array([3]))) == ([1], [2])
    assert as_ints(*target_rank(-scores, np.array([3]))) == ([0], [2])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_scores(dtype):
    scores = ops.cast(SCORES, dtype)
    want = as_ints(*target_rank(SCORES, TARGETS))
    assert as_ints(*target_rank(scores, TARGETS)) == want


@pytest.mark.parametrize("target", [7, -1, 2**31 + 1])
def test_says_what_id_has_no_score(target):
    targets = np.array([1, target])
    with pytest.raises(ValueError, match=r"`targets`.*\[0, 7\).*at row 1"):
        target_rank(SCORES[:2], targets)
    with pytest.raises(ValueError, match=r"`targets`"):
        HitRate().update_state(targets, SCORES[:2])


@pytest.mark.skipif(BACKEND == "torch", reason="has no graph, and raises")
def test_an_id_without_score_is_no_hit_in_a_graph():
    inputs = keras.Input((7,))
    model = keras.Model(inputs, inputs)
    model.compile("sgd", no_loss, metrics=[metric(100) for metric in METRICS])
    got = model.evaluate(SCORES[:2], np.array([7, -1]), verbose=0, return_dict=True)
    assert [got[metric().name] for metric in METRICS] == [0, 0, 0]


def test_compile_on_targets_and_weights():
    inputs = keras.Input((7,))
    model = keras.Model(inputs, inputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, weighted_metrics=[metric(3) for metric in METRICS])
    weights = RNG.uniform(0.1, 2, 40).astype("float32")
    got = model.evaluate(
        SCORES,
        TARGETS,
        batch_size=16,
        sample_weight=weights,
        verbose=0,
        return_dict=True,
    )
    for metric in METRICS:
        want = mean_loop(metric, 3, SCORES, TARGETS, weights)
        np.testing.assert_allclose(got[metric().name], want, rtol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
def test_config_round_trip(metric):
    made = metric(k=7, name="other", dtype="bfloat16")
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(made)
    )
    assert type(again) is metric
    assert again.get_config() == made.get_config()
    assert made.get_config() == {"name": "other", "dtype": "bfloat16", "k": 7}
    assert again.dtype == "bfloat16"


def test_names_and_direction():
    assert [metric().name for metric in METRICS] == ["hit_rate", "ndcg", "mrr"]
    assert {metric().k for metric in METRICS} == {10}
    inputs = keras.Input((7,))
    model = keras.Model(inputs, inputs)
    model.compile("sgd", no_loss, metrics=[NDCG()])
    stop = keras.callbacks.EarlyStopping("val_ndcg")  # in mode "auto"
    stop.set_model(model)
    stop.on_train_begin()
    model.evaluate(SCORES[:1], TARGETS[:1], verbose=0)
    stop._set_monitor_op()
    assert stop.monitor_op(2.0, 1.0)


@pytest.mark.parametrize(("k", "error"), [(0, ValueError), (2.5, TypeError)])
@pytest.mark.parametrize("metric", METRICS)
def test_says_what_k_was_given(metric, k, error):
    with pytest.raises(error, match=rf"`k`.*k={k}"):
        metric(k)


@pytest.mark.parametrize(
    ("scores", "targets", "message"),
    [
        ((2, 3, 4), (2,), r"`scores`.*\(2, 3, 4\)"),
        ((4,), (4,), r"`scores`.*\(4,\)"),
        ((2, 4), (2, 3), r"`targets`.*one target a row.*\(2, 3\)"),
        ((2, 4), (), r"`targets`.*\(\)"),
        ((2, 4), (3,), r"`targets`.*each of 2 rows.*3 ids"),
    ],
)
def test_says_what_shape_was_given(scores, targets, message):
    with pytest.raises(ValueError, match=message):
        NDCG().update_state(np.ones(targets, "int32"), np.ones(scores))
