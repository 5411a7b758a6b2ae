"""The forms of attention that bench_prob_sparse races; nothing here is timed."""

import importlib
import json
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf
from golden_files import golden
from golden_files import load as load_file

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
bench = importlib.import_module("bench_prob_sparse")
peers = importlib.import_module("attention_peers")


@pytest.fixture
def small(monkeypatch):
    """Batches of 2 rows, 3 heads of width 4, and factor 1."""
    for name, size in {"BATCH": 2, "HEADS": 3, "DIM": 4, "FACTOR": 1}.items():
        monkeypatch.setattr(peers, name, size)


def assert_published(form, arrays, *sample, **options):
    """Compares the output and its gradients with those of a golden file."""
    heads = [tf.constant(arrays[name]) for name in "QKV"]
    with tf.GradientTape() as tape:
        tape.watch(heads)
        got = form(*heads, *sample, **options)
    np.testing.assert_allclose(got, arrays["context"], rtol=1e-4, atol=1e-5)
    gradients = tape.gradient(got, heads, tf.constant(arrays["grad_out"]))
    for name, gradient in zip("QKV", gradients, strict=True):
        np.testing.assert_allclose(gradient, arrays[f"d{name}"], rtol=1e-3, atol=1e-4)


@golden("informer", having=["Q", "context", "key_index"])
def test_gather_form_equals_the_published_attention(path):
    arrays = load_file(path)
    meta = json.loads(str(arrays["meta"]))
    query, key = (arrays[name].transpose(0, 2, 1, 3) for name in "QK")
    got = peers.gathered_measure(query, key, arrays["key_index"])
    np.testing.assert_allclose(got, arrays["M"], rtol=1e-4, atol=1e-5)
    options = {name: meta[name] for name in ("factor", "causal", "scale")}
    assert_published(peers.gather_attention, arrays, arrays["key_index"], **options)


@golden("informer", having=["Q", "context"], lacking=["key_index"])
@pytest.mark.parametrize("form", ["full", "sdpa"])
def test_full_forms_equal_the_published_attention(path, form):
    arrays = load_file(path)
    meta = json.loads(str(arrays["meta"]))
    options = {name: meta[name] for name in ("causal", "scale")}
    assert_published(peers.FORMS[form][0], arrays, **options)


@pytest.mark.parametrize("causal", [False, True])
def test_sparse_forms_give_the_same(small, causal):
    want = peers.attention_call("gather", 40, "graph", causal)()
    assert [x.shape for x in want] == [(2, 40, 3, 4)] * 4
    lazy = (np.asarray(want[1]) == 0).all(axis=-1)  # no gradient of the query
    assert (lazy.sum(axis=1) == 40 - 4).all()  # ceil(ln 40) = 4 queries attend
    for form in ("ours", "stream", "blocks"):
        for got, x in zip(
            peers.attention_call(form, 40, "graph", causal)(), want, strict=True
        ):
            np.testing.assert_allclose(got, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["stream", "gather", "full", "sdpa"])
def test_forms_give_the_same_in_xla(small, form):
    want = peers.attention_call(form, 20, "graph", causal=True)()
    got = peers.attention_call(form, 20, "XLA", causal=True)()
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_full_forms_give_the_same(small, causal):
    want = peers.attention_call("full", 9, "graph", causal)()
    got = peers.attention_call("sdpa", 9, "graph", causal)()
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "mode", "want"),
    [
        ("ours", "graph", None),
        ("ours", "XLA", True),
        ("stream", "graph", True),
        ("blocks", "XLA", False),
    ],
)
def test_path_that_a_form_takes(small, monkeypatch, form, mode, want):
    seen = set()

    def attention(query, key, value, *, streamed, **options):
        seen.add(streamed)
        return value

    monkeypatch.setattr(peers, "our_attention", attention)
    monkeypatch.setitem(peers.FORMS, form, (attention, True))
    peers.attention_call(form, 9, mode)
    assert seen == {want}


# --- The script ---------------------------------------------------------------------


def test_cases_of_the_script():
    got = {case for cases, _ in bench.suite.groups for case in cases}
    want = {"exponent_1440_2880", "torch_train_step"}
    for peer in ("gather", "full", "sdpa"):
        for length in (96, 336, 720, 1440, 2880):
            want |= {f"{peer}_{length}_time", f"{peer}_{length}_memory"}
    assert want <= got
    assert set(bench.PEERS) | {"ours", "stream", "blocks"} == set(peers.FORMS)


def test_lightest_mode_is_measured_on(monkeypatch):
    sizes = {8: {"graph": 100.0, "XLA": 150.0}, 96: {"graph": 190.0, "XLA": 220.0}}
    asked = []

    def peak(form, length, mode):
        asked.append((length, mode))
        return sizes[length][mode]

    monkeypatch.setattr(bench, "peak", peak)
    run = importlib.import_module("harness").Run([], quick=False)
    small = {}
    assert bench.lightest(run, "full", 96, small) == ([70.0] * 3, "XLA")
    assert asked.count((8, "XLA")) == 1  # at the small length once for all lengths
    assert bench.lightest(run, "full", 96, small) == ([70.0] * 3, "XLA")
    assert asked.count((8, "XLA")) == 1
    run.quick = True
    assert bench.lightest(run, "full", 96, small) == ([90.0], "graph")
