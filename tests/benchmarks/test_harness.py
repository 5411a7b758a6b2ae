"""Tests of what the benchmarks share; nothing here is timed, nothing loads Keras."""

import importlib
import json
import pathlib
import sys

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
harness = importlib.import_module("harness")
peers = importlib.import_module("peers")


def one_case(case="a_step", calls=None, **row):
    """A suite of one case that notes in `calls` each time it is measured."""
    suite = harness.Suite("subject")

    @suite.cases(case)
    def measure(run):
        if calls is not None:
            calls.append(case)
        yield run.row(case, [0.002], "ms", "loop", [0.008], **row)

    return suite


# --- Timing -------------------------------------------------------------------------


def test_functions_run_in_turn_and_the_warmup_is_dropped():
    order = []

    def returns(name):
        def function():
            order.append(name)
            return float(len(order))

        return function

    got = harness.interleave({"a": returns("a"), "b": returns("b")}, runs=2, warmup=1)
    assert order == ["a", "b"] * 3
    assert got == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


@pytest.mark.parametrize(("budget", "rounds"), [(None, 9), (0.0, 4)])
def test_a_budget_ends_after_the_least_number_of_rounds(budget, rounds):
    got = harness.interleave({"a": lambda: 1.0}, runs=9, budget=budget, min_runs=4)
    assert len(got["a"]) == rounds


def test_a_function_that_gives_no_time_is_refused():
    with pytest.raises(TypeError, match=r"`functions\['a'\]`.*`clock`.*None"):
        harness.interleave({"a": lambda: None}, runs=1)


def test_clock_runs_the_function_and_gives_seconds():
    calls = []
    seconds = harness.clock(lambda: calls.append(1))()
    assert calls == [1]
    assert seconds >= 0.0


@pytest.mark.parametrize(("quick", "runs"), [(False, 20), (True, 7)])
def test_number_of_runs(quick, runs):
    run = harness.Run([], quick)
    assert len(run.interleave({"a": lambda: 1.0})["a"]) == runs


# --- Values and ratios --------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "amount", "value", "spread"),
    [
        ("ms", 1, 3000.0, [1000.0, 5000.0]),
        ("s", 1, 3.0, [1.0, 5.0]),
        ("exponent", 1, 3.0, [1.0, 5.0]),
        ("MB", 1, 3e-6, [1e-6, 5e-6]),
        ("rows/s", 30, 10.0, [6.0, 30.0]),
    ],
)
def test_summary_of_samples(unit, amount, value, spread):
    got, got_spread = harness.summarize([5.0, 1.0, 3.0, 2.0, 4.0], unit, amount)
    assert got == pytest.approx(value)
    assert got_spread == pytest.approx(spread)


def test_spread_leaves_out_a_tenth_at_each_end():
    samples = [float(i) for i in range(21)]
    assert harness.summarize(samples, "s") == (10.0, [2.0, 18.0])


@pytest.mark.parametrize(
    "case",
    [
        "flat_sgd_full",
        "cpr100_vs_softmax_train_12000",
        "sam_vs_din_time_1000",
        "exponent_sam",
        "over_limit_fibinet",
        "input_share_fibinet",
    ],
)
def test_ratio_of_a_cost_is_ours_over_base(case):
    assert harness.ratio(case, 6.0, 2.0, "ms") == 3.0
    assert harness.ratio(case, 6.0, 2.0, "rows/s") == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "case",
    [
        "bilinear_all_step",
        "fibinet_vs_deepctr",
        "sam_vs_factored_din_time_1000",
        "stock_adam_1e7",
        "inflat_step",
    ],
)
def test_ratio_of_a_race_is_peer_over_ours(case):
    assert harness.ratio(case, 2.0, 6.0, "ms") == 3.0
    assert harness.ratio(case, 6.0, 2.0, "rows/s") == pytest.approx(3.0)


# --- Rows ---------------------------------------------------------------------------


def test_row_has_the_fields_of_the_contract():
    row = harness.Run(["a"], False).row(
        "a",
        [0.002, 0.003, 0.004],
        "ms",
        "loop",
        [0.01234567] * 3,
        peer_versions={"deepctr": "0.9.4"},
        moved_bytes=7,
    )
    assert json.loads(json.dumps(row)) == row
    assert {key: row[key] for key in ("case", "value", "unit", "peer")} == {
        "case": "a",
        "value": 3.0,
        "unit": "ms",
        "peer": "loop",
    }
    assert row["peer_value"] == 12.346  # five digits
    assert row["ratio"] == pytest.approx(12.346 / 3, rel=1e-4)
    assert row["spread"] == [2.0, 4.0]
    assert row["runs"] == 3
    assert row["moved_bytes"] == 7
    assert row["quick"] is False
    assert "reason" not in row
    assert "cores" in row["device"]
    assert row["versions"]["deepctr"] == "0.9.4"
    assert {"python", "keras", "tensorflow"} < row["versions"].keys()


def test_row_without_a_peer_says_why():
    row = harness.Run(["a"], True).row("a", [1.0], "s", "DeepCTR", reason="not there")
    assert (row["value"], row["peer_value"], row["ratio"]) == (1.0, None, None)
    assert row["reason"] == "not there"
    assert row["quick"] is True


def test_row_takes_a_ratio_of_its_own():
    row = harness.Run(["a"], True).row("exponent_sam", [1.1], "exponent", ratio=1.1)
    assert row["ratio"] == 1.1


# --- The command line ---------------------------------------------------------------


@pytest.fixture
def three_cases():
    """Two groups, the first of two cases; `suite.calls` says which group ran."""
    suite = harness.Suite("subject", drops={"slow_*": "takes an hour"})
    suite.calls = []

    @suite.cases("fast_a", "fast_b")
    def fast(run):
        suite.calls.append("fast")
        yield run.row("fast_a", [0.001], "ms", "loop", [0.002])
        yield run.row("fast_b", [0.001], "ms", "loop", [0.003])

    @suite.cases("slow_c")
    def slow(run):
        suite.calls.append("slow")
        yield run.row("slow_c", [0.001], "ms", "loop", [0.004])

    return suite


def names(rows):
    """The cases of some rows."""
    return [row["case"] for row in rows]


def test_all_cases_run_and_one_table_is_printed(three_cases, capsys):
    assert names(three_cases.main([])) == ["fast_a", "fast_b", "slow_c"]
    out = capsys.readouterr().out
    assert out.count("10-90 % of ours") == 1
    assert "cores" in out


@pytest.mark.parametrize(
    ("regex", "want", "groups"),
    [
        ("_b$", ["fast_b"], ["fast"]),
        ("^slow", ["slow_c"], ["slow"]),
        ("a$|c$", ["fast_a", "slow_c"], ["fast", "slow"]),
        ("nothing", [], []),
    ],
)
def test_case_is_a_regex_searched_in_the_name(three_cases, regex, want, groups):
    assert names(three_cases.main(["--case", regex])) == want
    assert three_cases.calls == groups


def test_quick_drops_what_the_script_says(three_cases, capsys):
    assert names(three_cases.main(["--quick"])) == ["fast_a", "fast_b"]
    assert "--quick drops slow_c: takes an hour" in capsys.readouterr().out


def test_a_name_is_registered_once(three_cases):
    with pytest.raises(ValueError, match=r"`names` must be new.*fast_a"):
        three_cases.cases("fast_a")


def test_json_holds_the_rows_in_the_order_of_the_script(three_cases, tmp_path):
    out = tmp_path / "new" / "out.json"
    three_cases.main(["--json", str(out), "--case", "slow"])
    rows = three_cases.main(["--json", str(out)])
    assert json.loads(out.read_text()) == rows
    assert names(rows) == ["fast_a", "fast_b", "slow_c"]
    assert list(out.parent.iterdir()) == [out]


def test_finished_cases_are_kept_and_others_measured(three_cases, tmp_path, capsys):
    out = ["--json", str(tmp_path / "out.json")]
    three_cases.main([*out, "--case", "fast_b"])
    three_cases.main(out)
    three_cases.main(out)
    assert three_cases.calls == ["fast", "fast", "slow"]
    assert "measures again): 3" in capsys.readouterr().out


def test_each_row_is_written_at_once(tmp_path):
    out = tmp_path / "out.json"
    suite = harness.Suite("subject")

    @suite.cases("a", "b")
    def measure(run):
        if run.wants("a"):
            yield run.row("a", [1.0], "s", "loop", [2.0])
        if len(json.loads(out.read_text())) == 1 and not hasattr(suite, "again"):
            suite.again = True
            raise KeyboardInterrupt
        yield run.row("b", [1.0], "s", "loop", [2.0])

    with pytest.raises(KeyboardInterrupt):
        suite.main(["--json", str(out)])
    assert names(json.loads(out.read_text())) == ["a"]
    assert names(suite.main(["--json", str(out)])) == ["a", "b"]


def test_fresh_measures_the_asked_cases_again_and_keeps_the_rest(three_cases, tmp_path):
    out = tmp_path / "out.json"
    three_cases.main(["--json", str(out)])
    three_cases.main(["--json", str(out), "--fresh", "--case", "slow"])
    assert three_cases.calls == ["fast", "slow", "slow"]
    assert names(json.loads(out.read_text())) == ["fast_a", "fast_b", "slow_c"]


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ({}, False),
        ({"device": "1 core of another make"}, True),
        ({"versions": {"python": "2.7"}}, True),
        ({"quick": True}, True),
        ({"ratio": None}, True),
        ({"ratio": None, "peer": None}, False),
    ],
)
def test_a_row_made_under_other_conditions_is_measured_again(tmp_path, changed, again):
    out = tmp_path / "out.json"
    calls = []
    one_case(calls=calls).main(["--json", str(out)])
    [row] = json.loads(out.read_text())
    out.write_text(json.dumps([row | changed]))
    one_case(calls=calls).main(["--json", str(out)])
    assert len(calls) == 1 + again


def test_a_quick_run_keeps_a_full_row(tmp_path):
    out = ["--json", str(tmp_path / "out.json")]
    calls = []
    one_case(calls=calls).main(out)
    [row] = one_case(calls=calls).main([*out, "--quick"])
    assert calls == ["a_step"]
    assert row["quick"] is False


def test_a_missing_peer_is_a_row_and_the_table_goes_on():
    suite = harness.Suite("subject")

    @suite.cases("a", "b")
    def first(run):
        yield run.row("a", [1.0], "s", "loop", [2.0])
        raise harness.PeerMissing("deepctr is not installed")

    @suite.cases("c")
    def second(run):
        yield run.row("c", [1.0], "s", "loop", [2.0])

    a, b, c = suite.main([])
    assert (a["ratio"], c["ratio"]) == (2.0, 2.0)
    assert (b["case"], b["value"], b["ratio"]) == ("b", None, None)
    assert b["reason"] == "deepctr is not installed"


def test_table_has_units_ratios_and_dashes_for_what_is_missing():
    run = harness.Run(["a", "b"], False)
    rows = [
        run.row("a", [0.002] * 3, "ms", "loop", [0.008] * 3, note="both with XLA"),
        run.row("bigger_name", [1024.0], "MB", "DeepCTR", reason="not installed"),
    ]
    head, rule, first, second = harness.table(rows).split("\n")
    assert head.split()[:4] == ["case", "ours", "peer", "ratio"]
    assert set(rule) == {"-", " "}
    assert first.split()[:6] == ["a", "2", "ms", "8", "ms", "4"]
    assert first.endswith("loop; both with XLA")
    assert second.split()[1:5] == ["0.001024", "MB", "-", "-"]
    assert second.endswith("DeepCTR; not installed")
    assert first.index("2 ms") == head.index("ours")  # right-aligned


# --- Memory -------------------------------------------------------------------------


def hold(size):
    """What the memory test runs in a process of its own."""
    return b"x" * size


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_that_of_the_child_above_its_trivial_size():
    blocker = hold(64 * 2**20)  # the parent's own size has no part in it
    [got] = harness.Run(["a"], True).memory(
        hold, small={"size": 1024}, large={"size": 32 * 2**20}
    )
    assert len(blocker) == 64 * 2**20
    assert got == pytest.approx(32 * 2**20, rel=0.1)


# --- Peers --------------------------------------------------------------------------


@pytest.fixture
def fake_peer(tmp_path, monkeypatch):
    """An environment named `fake` whose interpreter is the one of the tests."""
    monkeypatch.setenv("KERAS_RECSYS_PEERS", str(tmp_path))
    monkeypatch.setitem(peers.PEERS, "fake", ["fake==1.0"])
    python = tmp_path / "fake" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


def test_peer_python_looks_in_the_folder_of_the_variable(fake_peer):
    assert peers.peer_python("fake") == fake_peer
    assert peers.peer_python("deepctr") is None


def test_peer_python_looks_in_the_repository_by_default(monkeypatch):
    monkeypatch.delenv("KERAS_RECSYS_PEERS", raising=False)
    assert peers.folder() == BENCHMARKS / ".venvs"


@pytest.mark.parametrize("function", [peers.peer_python, peers.install])
def test_an_unknown_peer_is_refused(function):
    with pytest.raises(ValueError, match=r"`name` must be one of.*name='nobody'"):
        function("nobody")


def test_install_makes_an_environment_with_the_pinned_requirements(
    fake_peer, tmp_path, monkeypatch
):
    calls = []
    monkeypatch.setattr(peers.venv, "create", lambda path, **_: calls.append(path))
    monkeypatch.setattr(peers.subprocess, "run", lambda args, **_: calls.append(args))
    elsewhere = tmp_path / "elsewhere"
    fake_peer.parents[1].rename(elsewhere)
    (tmp_path / "fake").symlink_to(elsewhere)
    peers.main(["install", "fake"])
    assert calls[0] == tmp_path / "fake"
    assert calls[1] == [fake_peer, "-m", "pip", "install", "fake==1.0"]
    assert (elsewhere / "bin" / "python").exists()  # a link is not followed
    assert not (tmp_path / "fake").exists()


def test_list_says_what_is_there(fake_peer, capsys):
    peers.main(["list"])
    lines = capsys.readouterr().out.strip().split("\n")
    by_name = {line.split()[0]: line for line in lines}
    assert set(by_name) == set(peers.PEERS)
    assert "not installed" in by_name["deepctr"]
    assert "deepctr==0.9.4" in by_name["deepctr"]
    assert "torch==" in by_name["torch"]
    assert any(str(fake_peer) in line for line in lines)


def test_a_runner_answers_one_line_a_command(fake_peer, tmp_path):
    runner = tmp_path / "runner.py"
    runner.write_text(
        f"import sys; sys.path.insert(0, {str(BENCHMARKS / 'runners')!r})\n"
        "from protocol import open_reply, serve\n"
        "reply = open_reply()\n"
        "print('a greeting that is no reply')\n"
        "def double(word):\n"
        "    print('chatter')\n"
        "    return {'value': 2 * int(word), 'seconds': 0.5}\n"
        "def fail():\n"
        "    raise KeyError('gone')\n"
        "def leave():\n"
        "    sys.exit('the reason')\n"
        "serve({'double': double, 'fail': fail, 'leave': leave}, reply)\n"
    )
    with peers.PeerProcess("fake", runner) as process:
        assert process.ask("double 21") == {"value": 42, "seconds": 0.5}
        assert process.seconds("double 1")() == 0.5
        with pytest.raises(harness.PeerMissing, match=r"KeyError.*gone"):
            process.ask("fail")
        assert process.ask("double 2")["value"] == 4
        with pytest.raises(harness.PeerMissing, match="the reason"):
            process.ask("leave")
        with pytest.raises(harness.PeerMissing, match="has ended"):
            process.ask("double 1")


def test_a_peer_that_is_not_installed_says_how_to(fake_peer):
    with pytest.raises(harness.PeerMissing, match=r"peers\.py install deepctr"):
        peers.PeerProcess("deepctr", "deepctr_ctr.py")
