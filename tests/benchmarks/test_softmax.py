"""The pieces that bench_softmax races and trains; nothing here is timed."""

import importlib
import json
import pathlib
import sys
from unittest import mock

import keras
import numpy as np
import pytest

from keras_recsys.analysis import NextItemReport
from keras_recsys.data import Sequences

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
bench = importlib.import_module("bench_softmax")
models = importlib.import_module("softmax_models")
quality = importlib.import_module("softmax_quality")

RNG = np.random.default_rng(0)
ITEMS = 30
PLAN = quality.Plan(8, 1e-2, 2, max_len=4, width=8)


def make_sequences(num_sequences=12, length=7):
    """Sequences of random items, all of one length."""
    items = RNG.integers(1, ITEMS + 1, (num_sequences, length)).astype("int32")
    offsets = np.arange(num_sequences + 1) * length
    return Sequences(items.reshape(-1), offsets, np.arange(ITEMS) + 100)


@pytest.fixture
def small_batch(monkeypatch):
    """Batches of 4 rows of 5 items."""
    defaults = (4, 5, False)
    monkeypatch.setattr(models.random_rows, "__defaults__", defaults)
    monkeypatch.setattr(models, "BATCH", 4)
    monkeypatch.setattr(models, "LENGTH", 5)


# --- Heads and calls ----------------------------------------------------------------


def test_every_head_has_a_name_at_the_peer():
    assert models.HEADS.keys() == models.PEER_METHODS.keys()
    assert set(bench.RACED.values()) | {"softmax"} == set(models.HEADS)


# By hand, at width 64: facets (4,160 each, 8,256 with Mi), and 24,640 of Mi itself.
@pytest.mark.parametrize(
    ("head", "want"),
    [
        ("softmax", 4160),
        ("c", 8320),
        ("cp", 16640),
        ("cpr100", 20800),
        ("cpr100_mi", 65920),
        ("cpr3_mi", 7 * 8256 + 24640),
        ("mos_max", 3 * 4160),
        ("mos_dynamic", 3 * 4160 + 3 * 64 + 3),
    ],
)
def test_number_of_weights_of_a_head(head, want):
    model = models.make_model(head, ITEMS)
    rest = {"sasrec_items", "sasrec_encoder"}
    count = sum(x.count_params() for x in model.layers if x.name not in rest)
    assert count == want


def test_score_is_run_in_the_graph(small_batch):
    assert np.isfinite(models.score_calls("softmax", ITEMS)["graph"]())


def test_loss_of_the_head_alone_is_that_of_equal_scores_at_first(small_batch):
    # Kernels and table are small, so that all items are about as likely: log(30).
    head = {"softmax": (*models.HEADS["softmax"][:2], 1)}  # with multiple states
    with mock.patch.dict(models.HEADS, head):
        loss = models.head_calls("softmax", ITEMS)["graph"]()
    assert loss == pytest.approx(np.log(ITEMS), abs=0.02)


def test_training_step_takes_a_target_for_each_step(small_batch):
    call = models.prefix_calls("softmax", ITEMS, every_step=True)["graph"]
    first = call()
    assert first == pytest.approx(np.log(ITEMS), abs=0.1)
    assert [call() for _ in range(20)][-1] < first  # the batch is always the same


# --- Quality ------------------------------------------------------------------------


def test_validation_has_4000_users_of_a_fixed_order(monkeypatch):
    monkeypatch.setattr(quality, "NUM_VALIDATION_USERS", 5)
    sequences = make_sequences()
    users = quality.validation_users(sequences)
    assert len(users) == 5
    np.testing.assert_array_equal(
        users.items, quality.validation_users(sequences).items
    )
    assert {tuple(x) for x in users} <= {tuple(x) for x in sequences}


def test_training_keeps_the_best_epoch_and_ranks_both_ways(monkeypatch):
    sequences = make_sequences()
    monkeypatch.setattr(quality, "read", lambda name: sequences)
    outcome = quality.measure("some", "gru4rec", "softmax", PLAN, 0)
    assert outcome.reports.keys() == {"all", "wodup"}
    assert outcome.reports["all"].num_users == 12
    assert outcome.reports["wodup"].repeated.hit_rate in (0.0, pytest.approx(np.nan))
    assert 1 <= outcome.best_epoch <= outcome.epochs == 2
    assert len(outcome.seconds) == 1  # the first epoch is traced


def test_last_slot_has_no_padding_and_does_not_rank_the_filler(monkeypatch):
    sequences = make_sequences(length=4)  # one row of training, of one item
    seen = {}

    def train_and_rank(model, datasets, plan, *, score):
        rows = [inputs["item_ids"].numpy() for inputs, _ in datasets[0]]
        seen["ids"] = np.concatenate(rows)
        inputs, targets = next(iter(datasets[2]))
        seen["width"] = score(model(inputs)["logits"]).shape[1]
        seen["targets"] = targets.numpy()

    monkeypatch.setattr(quality, "read", lambda name: sequences)
    monkeypatch.setattr(quality, "train_and_rank", train_and_rank)
    quality.measure_last_slot("some", "softmax", PLAN, 0)
    assert seen["ids"].shape == (12, 4)
    assert (seen["ids"][:, 1:] == ITEMS + 1).all()
    assert (seen["ids"][:, 0] <= ITEMS).all()
    assert seen["width"] == ITEMS + 1  # id 0 and the items
    np.testing.assert_array_equal(
        np.sort(seen["targets"]), np.sort(sequences.items[3::4])
    )


def test_file_of_the_peer_has_the_rows_of_the_training(tmp_path):
    sequences = Sequences([3, 1, 2, 4, 5], [0, 5], np.arange(5))
    assert quality.write_rows(sequences, PLAN, tmp_path / "rows.npz") == 2
    with np.load(tmp_path / "rows.npz") as arrays:
        np.testing.assert_array_equal(arrays["item_ids"], [[0, 0, 0, 3], [0, 0, 3, 1]])
        np.testing.assert_array_equal(arrays["target"], [1, 2])


# --- Rows ---------------------------------------------------------------------------


def make_outcome(ndcg):
    """An outcome, all of whose targets are new."""
    part = NextItemReport(10, 4, 0.5, ndcg, 0.25)
    none = NextItemReport(10, 0, *[float("nan")] * 3)
    report = NextItemReport(10, 4, 0.5, ndcg, 0.25, repeated=none, new=part)
    return quality.Outcome({"all": report}, 2, 3, [1.0, 3.0])


@pytest.fixture
def run(monkeypatch):
    """A run of all cases, whose rows are remembered from nothing."""
    monkeypatch.setattr(bench.suite, "made", {}, raising=False)
    return importlib.import_module("harness").Run(list(bench.GEOMEANS), quick=True)


def test_row_of_quality_is_the_mean_over_seeds_and_its_ratio_ours_over_theirs(run):
    outcomes = [make_outcome(0.2), make_outcome(0.4)]
    row = bench.quality_row(run, "some", outcomes, "all", "published", 0.2)
    assert (row["value"], row["spread"], row["ratio"]) == (0.3, [0.2, 0.4], 1.5)
    assert (row["hr"], row["mrr"], row["ndcg_new"]) == (0.5, 0.25, 0.3)
    assert row["ndcg_repeated"] is None
    assert row["seconds_per_epoch"] == 2.0
    assert bench.suite.value_of("some") == 0.3
    json.dumps(row, allow_nan=False)


def test_geometric_means_are_made_of_the_rows_that_are_there(run):
    start = "quality_{}_sasrec_softmax"
    bench.suite.made.update({start.format("tms"): 0.02})
    rows = {row["case"]: row for row in bench.geomeans(run)}
    case = "geomean_copying_sasrec_softmax"
    assert rows[case]["reason"] == "no quality_yoochoose_sasrec_softmax"
    bench.suite.made.update({start.format("yoochoose"): 0.08})
    bench.suite.made.update(
        {f"quality_{name}_sasrec_c": 0.08 for name in bench.COPYING}
    )
    rows = {row["case"]: row for row in bench.geomeans(run)}
    assert rows[case]["value"] == pytest.approx(0.04)  # the root of 0.02 * 0.08
    assert rows["geomean_copying_sasrec_c"]["ratio"] == pytest.approx(2.0)


def test_cases_of_quality_are_all_made_of_known_heads():
    for name in bench.PLANS:
        assert name in quality.SOURCES
        for encoder in bench.ENCODERS:
            heads = bench.heads_of(name, encoder)
            assert set(heads) <= {*models.HEADS, "repeatnet"}
            assert ("repeatnet" in heads) == (
                encoder == "gru4rec" and name in ("yoochoose", "beauty")
            )
    assert "repeatnet" in bench.heads_of("beauty", "gru4rec")


def test_repeatnet_is_built():
    plan = bench.PLANS["beauty"]
    model = models.make_model("repeatnet", ITEMS, **plan.settings("gru4rec"))
    assert isinstance(model, keras.Model)
    assert model.output["logits"].shape == (None, ITEMS + 1)
