"""Tests of the PyTorch peer of Informer; nothing here is timed."""

import importlib
import io
import json
import math
import pathlib
import sys

import numpy as np
import pytest
from golden_files import golden
from golden_files import load as load_file

torch = pytest.importorskip("torch")

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "runners")]
informer_torch = importlib.import_module("informer_torch")
peers = importlib.import_module("peers")
protocol = importlib.import_module("protocol")

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads cost more than they give at these sizes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def assert_same(got, want, rtol=1e-4, atol=1e-5):
    np.testing.assert_allclose(got.detach(), want, rtol=rtol, atol=atol)


def tensor(array):
    """A tensor of an array, its integers of 64 bits as PyTorch indexes with them."""
    array = torch.tensor(array)
    return array if array.is_floating_point() else array.long()


# --- Golden files -------------------------------------------------------------------


@golden("informer", having=["Q", "K", "V", "context"])
def test_attention_equals_the_published_one(path):
    arrays = load_file(path)
    meta = json.loads(str(arrays["meta"]))
    heads = [torch.tensor(arrays[x], requires_grad=True) for x in "QKV"]
    options = {"causal": meta["causal"], "scale": meta["scale"]}
    if "key_index" in arrays:
        index = tensor(arrays["key_index"])
        query, key = (x.transpose(1, 2) for x in heads[:2])
        measure = informer_torch.sparsity(query, key, index)
        assert_same(measure, arrays["M"])
        context = informer_torch.prob_sparse_attention(
            *heads, index, factor=meta["factor"], **options
        )
    else:
        context = informer_torch.full_attention(*heads, **options)
    assert_same(context, arrays["context"])
    context.backward(torch.tensor(arrays["grad_out"]))
    for name, x in zip("QKV", heads, strict=True):
        assert_same(x.grad, arrays[f"d{name}"], rtol=1e-3, atol=1e-4)


def make_model(meta, num_features):
    """The model of a golden file."""
    model = informer_torch.Informer(
        meta["enc_in"],
        meta["c_out"],
        meta["seq_len"],
        meta["label_len"],
        meta["pred_len"],
        width=meta["d_model"],
        num_heads=meta["n_heads"],
        inner=meta["d_ff"],
        encoder_layers=meta["e_layers"],
        decoder_layers=meta["d_layers"],
        attention=meta["attn"],
        factor=meta["factor"],
        embedding=meta["embed"],
        num_features=num_features,
        activation=meta["activation"],
        distill=meta["distil"],
        mix=meta["mix"],
        dropout=0.5,  # not in evaluation
    )
    return model.eval()


def watch(model, kept):
    """Keeps the outputs of the modules whose names the golden files know."""
    for path, module in model.named_modules():
        name = informer_torch.golden_name(path)
        name = {"out": "proj"}.get(name, name.replace(".ln", ".out"))
        module.register_forward_hook(
            lambda module, inputs, output, name=name: kept.update({name: output})
        )
    model.dec.register_forward_hook(
        lambda module, inputs, output: kept.update(memory=inputs[1])
    )


@golden("informer", having=["x_enc", "x_dec", "loss_mse"])
def test_model_equals_the_published_one(path, monkeypatch):
    arrays = load_file(path)
    meta = json.loads(str(arrays["meta"]))
    model = make_model(meta, arrays["mark_enc"].shape[-1])
    weights = informer_torch.golden_weights(model)
    assert {f"w.{name}" for name in weights} == {x for x in arrays if x[:2] == "w."}
    if meta["embed"] == "fixed":  # made alike, before they are loaded
        for name in ("enc_embed.day.table", "dec_embed.month.table"):
            assert_same(weights[name], arrays[f"w.{name}"])
    informer_torch.load(model, arrays)
    measures, states = [], {}
    sparsity = informer_torch.sparsity

    def record(*args):
        measures.append(sparsity(*args))
        return measures[-1]

    monkeypatch.setattr(informer_torch, "sparsity", record)
    watch(model, states)
    inputs = [tensor(arrays[x]) for x in ("x_enc", "mark_enc", "x_dec", "mark_dec")]
    samples = [tensor(arrays[f"call{i}.key_index"]) for i in range(meta["prob_calls"])]
    forecast = model(*inputs, key_indices=samples)

    for i in range(meta["prob_calls"]):
        assert_same(measures[i], arrays[f"call{i}.M"])
    assert len(measures) == meta["prob_calls"]
    for name in (x for x in arrays if x.startswith("mid.")):
        assert_same(states[name.removeprefix("mid.")], arrays[name])
    assert_same(forecast, arrays["y"])
    loss = torch.nn.functional.mse_loss(forecast, tensor(arrays["target"]))
    assert_same(loss, arrays["loss_mse"])
    loss.backward()
    wanted = {x.removeprefix("g."): arrays[x] for x in arrays if x.startswith("g.")}
    for name, want in wanted.items():
        got = weights[name].grad.reshape(want.shape)
        assert_same(got, want, rtol=1e-3, atol=1e-6)
    learned = {name for name, x in weights.items() if x.requires_grad}
    assert not wanted or wanted.keys() == learned


# --- Parts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "factor", "want"),
    [(1, 5, 1), (8, 5, 8), (24, 5, 20), (96, 5, 25), (2880, 5, 40), (96, 3, 15)],
)
def test_size_of_a_sample(length, factor, want):
    assert informer_torch.sample_size(length, factor) == want
    assert informer_torch.draw_keys(7, length, factor).shape == (7, want)


def test_sample_holds_all_keys_and_repeats():
    torch.manual_seed(0)
    index = informer_torch.draw_keys(400, 8)
    assert index.unique().tolist() == list(range(8))
    assert any(len(row.unique()) < 8 for row in index)


@pytest.mark.parametrize("causal", [False, True])
def test_sparse_attention_that_selects_all_queries_is_the_full_one(causal):
    heads = [torch.tensor(RNG.normal(size=(2, 12, 3, 4))) for _ in "qkv"]
    index = informer_torch.draw_keys(12, 12)
    got = informer_torch.prob_sparse_attention(*heads, index, causal=causal)
    assert_same(got, informer_torch.full_attention(*heads, causal=causal))


@pytest.mark.parametrize(
    ("causal", "want"),
    [(False, [4.0, 4.0, 5.2, 46 / 7]), (True, [1.0, 3.0, 2.0, 46 / 7])],
)
def test_lazy_queries_by_hand(causal, want):
    # The measures are 0, 0, 2 log 2 - (2 log 2) / 4 and twice that: of ceil(ln 4) = 2
    # queries, 2 and 3. Their weights are (1, 1, 1, 2) / 5 and (1, 1, 1, 4) / 7, or of
    # query 2, if it does not see key 3, (1, 1, 1) / 3. Lazy ones: mean, running sum.
    query = torch.tensor([0.0, 0.0, 2 * math.log(2), 4 * math.log(2)])
    key = torch.tensor([0.0, 0.0, 0.0, 1.0])
    value = torch.tensor([1.0, 2.0, 3.0, 10.0])
    got = informer_torch.prob_sparse_attention(
        *(x.reshape(1, 4, 1, 1) for x in (query, key, value)),
        torch.tensor([[0, 3]] * 4),
        factor=1,
        causal=causal,
        scale=0.5,
    )
    assert_same(got.flatten(), want)


def test_decoder_reads_the_end_of_the_history_and_zeros():
    values = torch.arange(1.0, 7.0).reshape(1, 6, 1)
    calendar = torch.arange(1.0, 9.0).reshape(1, 8, 1)
    start, horizon = informer_torch.decoder_inputs(values, calendar, 3, 2)
    assert start.flatten().tolist() == [4, 5, 6, 0, 0]
    assert horizon.flatten().tolist() == [4, 5, 6, 7, 8]
    start, horizon = informer_torch.decoder_inputs(values, calendar, 0, 2)
    assert start.flatten().tolist() == [0, 0]
    assert horizon.flatten().tolist() == [7, 8]


@pytest.mark.parametrize(
    ("channels", "settings", "want"),
    [
        (7, {}, 11_330_055),
        (1, {}, 11_308_545),
        (7, {"encoder_layers": 3, "decoder_layers": 2}, 19_474_439),
        (7, {"encoder_layers": [3, 2, 1]}, 25_517_575),
    ],
)
def test_number_of_weights_is_the_published_one(channels, settings, want):
    with torch.device("meta"):
        model = informer_torch.Informer(channels, channels, 96, 48, 24, **settings)
    assert sum(x.numel() for x in model.parameters() if x.requires_grad) == want


def test_initial_weights():
    torch.manual_seed(0)
    model = informer_torch.Informer(7, 7, 12, 6, 3, width=256, encoder_layers=1)
    weights = informer_torch.golden_weights(model)
    std = weights["enc_embed.token.W"].std().item()
    assert std == pytest.approx(math.sqrt(2 / 21), rel=0.05)
    for name, fan in {
        "enc_embed.token.b": 21,
        "enc.layer0.ffn1.W": 256,
        "enc.layer0.ffn2.b": 2048,
        "dec.layer0.cross.q.W": 256,
    }.items():
        limit = 1 / math.sqrt(fan)
        assert 0.9 * limit < weights[name].abs().max().item() <= limit


def test_every_weight_learns_in_training():
    torch.manual_seed(0)
    model = informer_torch.Informer(
        3, 2, 20, 6, 4, width=8, num_heads=2, inner=16, embedding="learned"
    )
    values = torch.randn(4, 20, 3)
    calendar = torch.randint(0, 7, (4, 24, 4))
    inputs = informer_torch.decoder_inputs(values, calendar, 6, 4)
    forecast = model(values, calendar[:, :20], *inputs)
    assert forecast.shape == (4, 4, 2)
    forecast.square().sum().backward()
    for name, weight in model.named_parameters():
        assert torch.isfinite(weight.grad).all(), name
        if not name.endswith((".k.bias", "conv.bias")):  # zero but for rounding
            assert weight.grad.abs().max() > 0, name


# --- Commands -----------------------------------------------------------------------

SMALL = "--seq-len 12 --label-len 6 --pred-len 3 --num-channels 2 --hidden-dim 8"
SMALL += " --num-heads 2 --intermediate-dim 16 --batch-size 4"


def runner(*words):
    """A runner of small models with the arguments given."""
    args = informer_torch.make_parser().parse_args([*SMALL.split(), *words])
    return informer_torch.Runner(args)


def test_defaults_of_the_arguments():
    assert vars(informer_torch.make_parser().parse_args([])) == {
        "seq_len": 96,
        "label_len": 48,
        "pred_len": 24,
        "num_channels": 7,
        "hidden_dim": 512,
        "num_heads": 8,
        "intermediate_dim": 2048,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "dropout": 0.05,
        "attention": "prob",
        "batch_size": 32,
        "learning_rate": 1e-4,
        "threads": None,
    }


@pytest.mark.parametrize("attention", ["prob", "full"])
def test_steps_learn_the_windows(attention):
    run = runner("--attention", attention, "--learning-rate", "0.01")
    run.build("1")
    first = np.mean([run.step()["loss"] for _ in range(8)])
    run.step("40")
    assert np.mean([run.step()["loss"] for _ in range(8)]) < 0.8 * first


def test_a_seed_gives_the_same_steps():
    losses = []
    for seed in ("1", "1", "2"):
        run = runner()
        run.build(seed)
        losses.append(run.step("2")["loss"])
    assert losses[0] == losses[1] != losses[2]


def test_commands_are_served(monkeypatch):
    lines = "step\nbuild\nstep 2\npredict 3\nversions\nquit\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    reply = io.StringIO()
    protocol.serve(runner().handlers(), reply)
    ready, early, built, step, predict, versions = map(
        json.loads, reply.getvalue().splitlines()
    )
    assert ready == {"ready": True}
    assert "error" in early
    assert built["parameters"] > 0
    assert 0 < step["loss"] < 10
    assert predict.keys() == {"seconds"}
    assert versions["torch"] == torch.__version__


def test_runner_answers_in_a_process(tmp_path, monkeypatch):
    python = tmp_path / "torch" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("KERAS_RECSYS_PEERS", str(tmp_path))
    words = [*SMALL.split(), "--threads", 1]
    with peers.PeerProcess("torch", "informer_torch.py", *words) as process:
        process.ask("build")
        assert process.seconds("step 2")() > 0
        with pytest.raises(peers.PeerMissing, match="invalid literal"):
            process.ask("step some")
