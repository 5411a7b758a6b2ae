"""Tests of the PyTorch peer of Softmax-CPR; nothing here is timed."""

import importlib
import io
import json
import math
import pathlib
import re
import sys

import numpy as np
import pytest
from golden_files import golden
from golden_files import load as load_file

torch = pytest.importorskip("torch")

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "runners")]
cpr_torch = importlib.import_module("cpr_torch")
peers = importlib.import_module("peers")
protocol = importlib.import_module("protocol")

METHODS = ["softmax", "c", "cp", "cpr:3", "cpr:2,5", "mos:max", "mos:dynamic"]
METHODS += ["mos:static", "mos:uniform"]
METHODS += [f"{name}+mi" for name in METHODS]


# --- Golden files -------------------------------------------------------------------


def method_of(path):
    """The method of a golden file, by its name."""
    name = re.sub(r"^(sasrec|gru4rec)_", "", path.stem.split("__")[0])
    sizes = {"cpr_k1": "cpr:10", "cpr_k3": "cpr:20,10,5"}
    for start, text in sizes.items():
        name = name.replace(start, text)
    name = name.replace("mos_", "mos:").replace("wodup", "softmax")
    name = re.sub(r"(_onelayer|_endtoend)$", "", name).replace("encoder", "softmax")
    return cpr_torch.read_method(name.replace("_mi", "+mi"))


def encoder_of(path, arrays):
    """The encoder of a golden file, with weights of the same shapes."""
    num_ids, width = arrays["item_embedding/table"].shape
    length = arrays["item_seq"].shape[1]
    if path.stem.startswith("gru4rec"):
        units = len(arrays["dense/kernel"])
        return cpr_torch.GRU4Rec(num_ids, width, length, units=units)
    inner = len(arrays["layer0_ffn_dense_1/bias"])
    return cpr_torch.SASRec(num_ids, width, length, inner=inner, attention_dropout=0.0)


def assert_same(got, want, rtol=1e-5, atol=2e-5):
    np.testing.assert_allclose(got.detach(), want, rtol=rtol, atol=atol)


def assert_gradients(named, arrays):
    """Compares the gradient of every weight, and finds none without a reference."""
    for name, (parameter, transposed) in named.items():
        got = parameter.grad.T if transposed else parameter.grad
        assert_same(got, arrays[f"grad_all/{name}"], rtol=1e-4)


def assert_output(output, logits, last, arrays):
    """Compares probabilities, of all ids and of items alone, and gives the loss."""
    target = torch.tensor(arrays["target"]).long()
    items = output.probability(logits[..., 1:], last)
    sure = arrays["logprob_items"] > math.log(1e-7)  # below, float32 has too few digits
    assert_same(items.log()[sure], arrays["logprob_items"][sure])
    chosen = items.gather(1, target.unsqueeze(1) - 1)
    assert_same(-chosen.log().mean(), arrays["loss_items"], atol=1e-5)
    probability = output.probability(logits, last)
    assert_same(probability, arrays["prob_all"])
    loss = cpr_torch.cross_entropy(probability, target)
    assert_same(loss, arrays["loss_all"], atol=1e-5)
    return loss


@golden("softmax_cpr", having=["hidden_1", "q_last"])
def test_output_layer_equals_the_published_one(path):
    if "_add_" in path.stem:
        pytest.skip("the mode that adds logits is not served")
    arrays = load_file(path)
    method = method_of(path)
    names = sorted(name for name in arrays if name.startswith("hidden_"))
    states = [torch.tensor(arrays[name], requires_grad=True) for name in names]
    item_ids = torch.tensor(arrays["item_seq"]).long()
    table = torch.tensor(arrays["item_embedding"], requires_grad=True)
    output = cpr_torch.OutputLayer(method, table.shape[1], len(states))
    cpr_torch.load(output, arrays)

    queries = output.queries(states)
    assert_same(queries[:, -1], arrays["q_last"])
    if method.pointer:
        assert_same(queries, arrays["q_all"])
    logits = output.logits(queries, item_ids, table)
    want = arrays["logits" if "logits" in arrays else "component_logits"]
    assert_same(logits, want)
    if "mix_weights" in arrays:
        weights = output.mixture_weights(queries[:, -1]).expand(len(item_ids), -1)
        assert_same(weights, arrays["mix_weights"])
    assert_same(output(states, item_ids, table), arrays["prob_all"])
    assert_output(output, logits, queries[:, -1], arrays).backward()
    assert_gradients(cpr_torch.golden_weights(output), arrays)
    assert_same(table.grad, arrays["grad_all/item_embedding"], rtol=1e-4)
    for name, state in zip(names, states, strict=True):
        if state.grad is not None:  # without multiple inputs, the top alone is read
            assert_same(state.grad, arrays[f"grad_all/{name}"], rtol=1e-4)


@golden("softmax_cpr", having=["item_embedding/table", "state_1", "logits"])
def test_model_equals_the_published_one(path):
    arrays = load_file(path)
    model = cpr_torch.Recommender(encoder_of(path, arrays), method_of(path))
    cpr_torch.load(model, arrays)
    item_ids = torch.tensor(arrays["item_seq"]).long()

    states = model.encoder(item_ids)
    for i, state in enumerate(states, start=1):
        assert_same(state, arrays[f"state_{i}"])
    table = model.encoder.item_embedding.weight
    queries = model.output.queries(states)
    logits = model.output.logits(queries, item_ids, table)
    assert_same(logits, arrays["logits"])
    assert_same(model(item_ids), arrays["prob_all"])
    assert_output(model.output, logits, queries[:, -1], arrays).backward()
    assert_gradients(cpr_torch.golden_weights(model), arrays)


@golden("softmax_cpr", having=["prob_wodup"])
def test_rank_without_repeats_equals_that_of_the_published_scores(path):
    arrays = load_file(path)
    rows = torch.tensor(arrays["item_seq"]).long()
    scores = torch.tensor(arrays["prob_wodup"])
    new = [t for t in range(1, scores.shape[1]) if not (rows == t).any()][:6]
    target = torch.tensor(new)
    want = [1 + sum(scores[i, 1:] > scores[i, t]) for i, t in enumerate(new)]
    probability = torch.tensor(arrays["prob_all"])
    got = cpr_torch.ranks(probability, rows, target, without_repeats=True)
    assert got.tolist() == want


# --- Method and shapes --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("softmax", (False, False, (), None, False)),
        ("c", (True, False, (), None, False)),
        ("cp+mi", (True, True, (), None, True)),
        ("cpr:20,100,500", (True, True, (500, 100, 20), None, False)),
        ("mos:max", (False, False, (), "max", False)),
        ("mos:dynamic+mi", (False, False, (), "dynamic", True)),
    ],
)
def test_method_is_read(text, want):
    assert cpr_torch.read_method(text) == want


@pytest.mark.parametrize("text", ["", "cpr", "cpr:", "cpr:0", "mos", "c+mi+mi", "+mi"])
def test_says_what_method_was_given(text):
    with pytest.raises(ValueError, match=re.escape(f"Received: text={text!r}.")):
        cpr_torch.read_method(text)


@pytest.mark.parametrize(
    ("encoder", "method", "want"),
    [  # by hand for width 64: a facet has 64 * 64 + 64 weights, with Mi 128 * 64 + 64
        ("sasrec", "softmax", 4160),
        ("sasrec", "c", 2 * 4160),
        ("sasrec", "cpr:100", 5 * 4160),
        ("sasrec", "mos:max", 3 * 4160),
        ("sasrec", "mos:dynamic", 3 * 4160 + 3 * 64 + 3),
        ("sasrec", "mos:static", 3 * 4160 + 3),
        ("sasrec", "cpr:20,100,500+mi", 7 * 8256 + 6 * 64 * 64 + 64),
        ("gru4rec", "cpr:100+mi", 5 * 8256 + 3 * 64 * 64 + 64),
    ],
)
def test_number_of_weights_of_the_output_layer(encoder, method, want):
    layers = {"sasrec": 2, "gru4rec": 1}[encoder]
    output = cpr_torch.OutputLayer(cpr_torch.read_method(method), 64, layers)
    assert sum(weight.numel() for weight in output.parameters()) == want


@pytest.mark.parametrize("encoder", ["sasrec", "gru4rec"])
@pytest.mark.parametrize("method", METHODS)
def test_probabilities_sum_to_one_and_every_weight_learns(encoder, method):
    torch.manual_seed(0)
    made = cpr_torch.ENCODERS[encoder](40, 4, 5)
    model = cpr_torch.Recommender(made, cpr_torch.read_method(method))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    rows = torch.tensor([[0, 0, 3, 1, 3], [2, 2, 4, 5, 6], [0, 0, 0, 0, 8]])
    probability = model(rows)
    assert probability.shape == (3, 40)
    assert_same(probability.sum(dim=1), np.ones(3))
    cpr_torch.cross_entropy(probability, torch.tensor([3, 7, 1])).backward()
    for name, weight in model.named_parameters():
        assert torch.isfinite(weight.grad).all(), name
        if not name.endswith("attn_key.bias"):  # shifts all scores alike
            assert weight.grad.abs().max() > 0, name


def context_layer(method, facets):
    """An output layer of width 1 whose facets are the constants of a dict."""
    output = cpr_torch.OutputLayer(cpr_torch.read_method(method), 1, 1)
    for name, proj in output.proj.items():
        torch.nn.init.zeros_(proj.weight)
        torch.nn.init.constant_(proj.bias, facets[name])
    return output


def test_item_that_repeats_gets_its_context_logit_once():
    # By hand: table 0 to 5, f_V = 1 and f_C = 1/2; the row holds 3, 5, 3.
    table = torch.arange(6.0).unsqueeze(1)
    output = context_layer("c", {"V": 1.0, "C": 0.5})
    got = output.logits(torch.zeros(1, 3, 1), torch.tensor([[3, 5, 3]]), table)
    assert_same(got, [[0.0, 1.0, 2.0, 1.5, 4.0, 2.5]])


def test_pointer_is_averaged_over_the_occurrences():
    # By hand: f_L(t) = query of slot t, f_P = 10; slots of item 3: (1 + 5) / 2 = 3.
    table = torch.arange(6.0).unsqueeze(1)
    output = context_layer("cp", {"V": 1.0, "C": 0.5, "P": 10.0, "L": 0.0})
    torch.nn.init.ones_(output.proj["L"].weight)
    queries = torch.tensor([[[1.0], [2.0], [5.0]]])
    got = output.logits(queries, torch.tensor([[3, 5, 3]]), table)
    assert_same(got, [[0.0, 1.0, 2.0, 1.5 + 30.0, 4.0, 2.5 + 20.0]])


def test_smaller_candidate_set_wins_and_is_chosen_after_the_larger_one():
    # By hand: f_V = 1 gives 0 to 5. The best 3 are 3, 4, 5, which f_R3 = -1 makes -3,
    # -4, -5; the best 1 is now item 2, which f_R1 = 7 makes 14. Item 4 is in the row.
    table = torch.arange(6.0).unsqueeze(1)
    facets = {"V": 1.0, "R3": -1.0, "R1": 7.0, "C": 0.5, "P": 0.0, "L": 0.0}
    output = context_layer("cpr:1,3", facets)
    got = output.logits(torch.zeros(1, 1, 1), torch.tensor([[4]]), table)
    assert_same(got, [[0.0, 1.0, 14.0, -3.0, 2.0, -5.0]])


def test_more_candidates_than_ids_are_capped():
    table = torch.arange(6.0).unsqueeze(1)
    facets = {"V": 1.0, "R100": -1.0, "C": 0.5, "P": 0.0, "L": 0.0}
    output = context_layer("cpr:100", facets)
    got = output.logits(torch.zeros(1, 1, 1), torch.tensor([[4]]), table)
    assert_same(got, [[0.0, -1.0, -2.0, -3.0, 2.0, -5.0]])


def test_initial_weights_of_sasrec():
    torch.manual_seed(0)
    made = cpr_torch.SASRec(2000, 32, 5)
    model = cpr_torch.Recommender(made, cpr_torch.read_method("cpr:3+mi"))
    for name, (weight, _) in cpr_torch.golden_weights(model).items():
        if name.endswith(("bias", "beta")):
            assert not weight.any(), name
        elif name.endswith("gamma"):
            assert (weight == 1).all(), name
        else:
            assert weight.std().item() == pytest.approx(0.02, rel=0.2), name
    assert made.item_embedding.weight[0].any()


def test_initial_weights_of_gru4rec():
    torch.manual_seed(0)
    made = cpr_torch.GRU4Rec(2000, 32, 5)
    model = cpr_torch.Recommender(made, cpr_torch.read_method("cpr:3"))
    std = made.item_embedding.weight.std().item()
    assert std == pytest.approx(math.sqrt(2 / 2032), rel=0.05)
    limit = math.sqrt(6 / 128)  # kernels of 3 * 32 rows and 32 columns
    for weight in made.gru_layers.parameters():
        assert 0.9 * limit < weight.abs().max().item() <= limit
    limit = 1 / math.sqrt(32)
    for weight in model.output.parameters():
        assert 0.8 * limit < weight.abs().max().item() <= limit


# --- Ranking ------------------------------------------------------------------------


def test_ranks_leave_id_0_out_and_put_repeats_last():
    scores = [[0.5, 0.1, 0.2, 0.15, 0.05]] * 3
    rows = torch.tensor([[0, 2], [0, 2], [0, 3]])
    target = torch.tensor([1, 2, 1])
    assert cpr_torch.ranks(torch.tensor(scores), rows, target).tolist() == [3, 1, 3]
    got = cpr_torch.ranks(torch.tensor(scores), rows, target, without_repeats=True)
    assert got.tolist() == [2, 4, 2]  # the repeated target is behind 1, 3 and 4


def test_metrics_by_hand():
    repeated = torch.tensor([True, False, False, True])
    got = cpr_torch.ranking_metrics(torch.tensor([1, 3, 11, 10]), repeated)
    last = 1 / math.log2(11)
    assert got == pytest.approx(
        {
            "hr": 3 / 4,
            "ndcg": (1 + 1 / 2 + last) / 4,
            "mrr": (1 + 1 / 3 + 1 / 10) / 4,
            "repeated": 1 / 2,
            "ndcg_repeated": (1 + last) / 2,
            "ndcg_new": 1 / 4,
        }
    )


def test_metrics_without_repeated_targets():
    got = cpr_torch.ranking_metrics(torch.tensor([1]), torch.tensor([False]))
    assert got["ndcg_repeated"] is None
    assert got["ndcg_new"] == 1.0


# --- Commands -----------------------------------------------------------------------


def runner(*words):
    """A runner of small models with the arguments given."""
    small = "--num-ids 12 --length 4 --width 8 --batch-size 3 --learning-rate 0.01"
    return cpr_torch.Runner(
        cpr_torch.make_parser().parse_args([*small.split(), *words])
    )


@pytest.fixture
def rows(tmp_path):
    """The path of a file whose 7 targets are the last item of the row plus 1."""
    item_ids = np.zeros((7, 4), "int32")
    item_ids[:, 3] = np.arange(1, 8)
    item_ids[3:, 2] = 11
    np.savez(tmp_path / "rows.npz", item_ids=item_ids, target=item_ids[:, 3] + 1)
    return str(tmp_path / "rows.npz")


def test_defaults_of_the_arguments():
    assert vars(cpr_torch.make_parser().parse_args([])) == {
        "encoder": "sasrec",
        "num_ids": 12102,
        "length": 50,
        "width": 64,
        "batch_size": 128,
        "learning_rate": 1e-3,
        "threads": None,
    }


@pytest.mark.parametrize("encoder", ["sasrec", "gru4rec"])
def test_epochs_learn_the_rows(encoder, rows):
    run = runner("--encoder", encoder)
    run.build("cpr:3+mi", "1")
    first = run.epoch("cpr:3+mi", rows)
    assert first["steps"] == 3  # 3 + 3 + 1 rows
    for _ in range(60):
        last = run.epoch("cpr:3+mi", rows)
    assert last["loss"] < 0.5 < 2.0 < first["loss"]
    metrics = run.evaluate("cpr:3+mi", rows)
    assert (metrics["hr"], metrics["ndcg"], metrics["repeated"]) == (1.0, 1.0, 0.0)
    assert run.epoch("cpr:3+mi", rows, "2")["steps"] == 2


def test_a_seed_gives_the_same_epoch(rows):
    losses = []
    for seed in ("1", "1", "2"):
        run = runner()
        run.build("c", seed)
        losses.append(run.epoch("c", rows)["loss"])
    assert losses[0] == losses[1] != losses[2]


def test_repeated_targets_come_last_without_repeats(tmp_path):
    path = str(tmp_path / "rows.npz")
    np.savez(path, item_ids=np.array([[0, 3, 5, 4]]), target=np.array([3]))
    run = runner()
    run.build("softmax")
    assert run.evaluate("softmax", path)["repeated"] == 1.0
    got = run.evaluate("softmax", path, "without_repeats")
    assert got["mrr"] == 1 / 9  # behind the 8 items that the row lacks
    with pytest.raises(ValueError, match="`scoring`.*Received: scoring='some'"):
        run.evaluate("softmax", path, "some")


def test_commands_are_served(monkeypatch, rows):
    lines = "build c\nbuild mos:max\nstep c 2\nstep mos:max\npredict c 3\nversions\n"
    lines += f"epoch c {rows}\nevaluate c {rows}\nstep cp\nbuild cpr\nquit\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    reply = io.StringIO()
    protocol.serve(runner().handlers(), reply)
    ready, *built, step, mos, predict, versions, epoch, metrics, missing, wrong = map(
        json.loads, reply.getvalue().splitlines()
    )
    assert ready == {"ready": True}
    more = built[1]["parameters"] - built[0]["parameters"]
    assert more == 8 * 8 + 8  # three facets against two
    for answer in (step, mos, epoch):
        assert 0 < answer["loss"] < 5
    assert predict.keys() == {"seconds"}
    assert versions["torch"] == torch.__version__
    assert {"hr", "ndcg", "mrr", "seconds"} <= metrics.keys()
    assert "KeyError" in missing["error"]
    assert "`text` must be" in wrong["error"]


def test_runner_answers_in_a_process(tmp_path, monkeypatch):
    python = tmp_path / "torch" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("KERAS_RECSYS_PEERS", str(tmp_path))
    words = ["--num-ids", 12, "--length", 4, "--width", 8, "--threads", 1]
    with peers.PeerProcess("torch", "cpr_torch.py", *words) as process:
        process.ask("build cpr:3")
        assert process.seconds("step cpr:3 2")() > 0
        with pytest.raises(peers.PeerMissing, match="`text` must be"):
            process.ask("build cpr")
