"""Tests of the runners of click models that need no peer; nothing here is timed."""

import argparse
import importlib
import io
import itertools
import json
import pathlib
import sys

import numpy as np
import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "runners")]
ctr_shared = importlib.import_module("ctr_shared")
peers = importlib.import_module("peers")
protocol = importlib.import_module("protocol")

DATA = {  # 5 rows, 3 categorical columns, 2 numbers
    "ids": np.arange(15, dtype="int32").reshape(5, 3),
    "numbers": np.arange(10, dtype="float32").reshape(5, 2) / 2,
    "labels": np.array([0, 1, 0, 0, 1], "float32"),
    "vocab_sizes": np.array([13, 14, 15]),
}


class SumRunner(ctr_shared.CtrRunner):
    """A runner whose model is the sum of the ids and whose loss is that of a batch."""

    made = []

    def build(self):
        self.made.append([len(self.data["vocab_sizes"]), self.args.batch_size])
        return {"seconds": 1.5}

    def versions(self):
        return {"sum": "1.0"}

    def _batches(self):
        columns, labels = self._columns()
        ids = [column for name, column in columns.items() if name.startswith("c")]
        return itertools.cycle(np.sum(ids, axis=0))

    def _make_step(self):
        self.model = np.sum

    def _one_step(self):
        return float(self.model(next(self.iterator)))


@pytest.fixture
def runner():
    """A `SumRunner` with batches of two rows."""
    SumRunner.made = []
    args = ctr_shared.make_parser(["sum"]).parse_args(["x", "--batch-size", "2"])
    return SumRunner(args, DATA)


# --- Arguments ----------------------------------------------------------------------


def test_defaults_of_the_arguments():
    args = ctr_shared.make_parser(["fibinet", "deepfm"]).parse_args(["data.npz"])
    assert vars(args) == {
        "data": "data.npz",
        "model": "fibinet",
        "batch_size": 1024,
        "embedding_dim": 16,
        "hidden_units": (256, 128, 64),
        "threads": None,
    }


def test_all_arguments():
    line = "d --model b --batch-size 8 --embedding-dim 4 --hidden-units 5,6 --threads 1"
    args = ctr_shared.make_parser(["a", "b"]).parse_args(line.split())
    assert (args.model, args.batch_size, args.embedding_dim) == ("b", 8, 4)
    assert (args.hidden_units, args.threads) == ((5, 6), 1)


@pytest.mark.parametrize(
    ("text", "want"), [("64", (64,)), ("256,128,64", (256, 128, 64)), ("2, 1", (2, 1))]
)
def test_widths(text, want):
    assert ctr_shared.widths(text) == want


@pytest.mark.parametrize("text", ["", "64,", "64,x", "0", "8,-1", "1.5"])
def test_widths_that_are_no_positive_ints_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=f"Received: '{text}'"):
        ctr_shared.widths(text)


@pytest.mark.parametrize("option", [["--model", "c"], ["--hidden-units", "0"]])
def test_a_wrong_argument_is_named(option, capsys):
    with pytest.raises(SystemExit):
        ctr_shared.make_parser(["a", "b"]).parse_args(["data.npz", *option])
    assert f"argument {option[0]}" in capsys.readouterr().err


# --- Data and commands --------------------------------------------------------------


def test_data_file_is_read_whole(tmp_path):
    np.savez(tmp_path / "data.npz", **DATA)
    got = ctr_shared.load_data(tmp_path / "data.npz")
    assert got.keys() == DATA.keys()
    for key, value in DATA.items():
        np.testing.assert_array_equal(got[key], value)
        assert got[key].dtype == value.dtype


def test_two_fields_are_the_first_two_and_one_number():
    got = ctr_shared.two_fields(DATA, rows=2)
    np.testing.assert_array_equal(got["ids"], [[0, 1], [3, 4]])
    np.testing.assert_array_equal(got["numbers"], [[0.0], [1.0]])
    np.testing.assert_array_equal(got["labels"], [0, 1])
    np.testing.assert_array_equal(got["vocab_sizes"], [13, 14])


def test_columns_are_cut_into_batches_and_the_rest_is_dropped(runner):
    columns, labels = runner._columns()
    assert list(columns) == ["c0", "c1", "c2", "n0", "n1"]
    np.testing.assert_array_equal(columns["c1"], [[1, 4], [7, 10]])
    np.testing.assert_array_equal(columns["n1"], [[0.5, 1.5], [2.5, 3.5]])
    np.testing.assert_array_equal(labels, [[0, 1], [0, 0]])


def test_steps_go_on_where_the_first_step_ended(runner):
    # By hand: rows 0 and 1 hold the ids 0 to 5, rows 2 and 3 the ids 6 to 11.
    assert runner.build() == {"seconds": 1.5}
    assert runner.first_step()["loss"] == 15.0
    assert runner.step("1")["loss"] == 51.0
    assert runner.step("2")["loss"] == 51.0  # the second batch is also the last
    assert runner.step("3")["loss"] == 15.0
    assert runner.first_step()["loss"] == 15.0
    assert runner.step()["seconds"] >= 0.0


def test_warm_trains_a_small_model_and_leaves_the_runner_alone(monkeypatch, runner):
    many = {key: np.tile(value, 8) for key, value in DATA.items()}
    many["ids"] = np.tile(DATA["ids"], (8, 1))
    many["numbers"] = np.tile(DATA["numbers"], (8, 1))
    monkeypatch.setattr(runner, "data", many)
    runner.warm()
    assert runner.made == [[2, 8]]
    assert runner.iterator is None
    assert runner.args.batch_size == 2


def test_commands_are_served(runner, monkeypatch):
    lines = "warm\nbuild\nfirst_step\nstep 2\nversions\nexport x\nquit\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    monkeypatch.setattr(runner, "warm", lambda: None)
    reply = io.StringIO()
    protocol.serve(runner.handlers(), reply)
    ready, warm, build, first, step, versions, unknown = map(
        json.loads, reply.getvalue().splitlines()
    )
    assert ready == {"ready": True}
    assert warm.keys() == {"seconds"}
    assert build["seconds"] == 1.5
    assert (first["loss"], step["loss"]) == (15.0, 15.0)
    assert versions["sum"] == "1.0"
    assert "KeyError" in unknown["error"]


# --- Peers --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deepctr", "fuxictr"])
def test_requirements_of_the_peers_are_pinned(name):
    assert any(text.startswith(f"{name}==") for text in peers.PEERS[name])
    assert all("==" in text for text in peers.PEERS[name])


def test_both_torch_peers_have_the_same_torch():
    [torch] = [text for text in peers.PEERS["torch"] if text.startswith("torch")]
    assert torch in peers.PEERS["fuxictr"]


@pytest.mark.parametrize("name", ["deepctr", "fuxictr"])
def test_a_runner_without_its_peer_says_how_to_install_it(name, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_RECSYS_PEERS", str(tmp_path))
    script = f"{name}_ctr.py"
    assert (peers.RUNNERS / script).exists()
    with pytest.raises(peers.PeerMissing, match=rf"peers\.py install {name}"):
        peers.PeerProcess(name, script, "data.npz")
