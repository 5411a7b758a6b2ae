"""ProbSparse attention: time and memory by length, and a training step of Informer.

    python benchmarks/bench_prob_sparse.py [--quick] [--json OUT] [--case REGEX]

The attention alone, without projections: 4 rows, 8 heads of width 64, as many queries
as keys, factor 5, float32, forward and backward to query, key and value, two threads.
Ours is `keras_recsys.ops.prob_sparse_attention`; all sparse forms get the same sample
of the keys, which is drawn before. Each side has its best mode, TensorFlow's graph or
XLA, found in a few rounds before the race; with `--quick` it is the graph. Ours is
streamed in XLA and has its default in the graph.

`gather_{L}_time`: against the form as it was published, which gathers the sampled keys
of all queries as one tensor. Its measure gives indices alone, so that there is no
gradient through it, and what it gathers is not kept for the way back. `full_{L}_time`:
against full attention written out. `sdpa_{L}_time`: against
`keras.ops.dot_product_attention`. `causal_...`: the same with the causal mask.

`{form}_{L}_memory`: peak memory of a fresh process at the length less that at length 8,
each form in the mode that needs less; `held` is what any form has to hold of
it, the three inputs, the output and the four gradients.

`stream_{L}_time`: ours by features of the sample, whatever the length, against ours by
blocks of scores, each in its best mode; which is taken by itself depends on the
length, the sample and the width.

`exponent_1440_2880`: the power of the length that the time of ours grows with, by
features at both lengths; the base is 1.

`torch_train_step`: a training step of Informer, the peer of `runners/informer_torch.py`
against ours: 96 steps of history, 48 of them for the decoder, a horizon of 24, 7
channels, width 512, 8 heads, inner width 2048, two encoder layers and one decoder
layer, dropout 0.05, batches of 32, mean squared error and Adam, two threads each. Both
draw a new sample of the keys in each step; the peer gathers them as above, takes its
full attention and its Adam fused, and is not compiled. Ours leaves out of the last
decoder layer what is not in the forecast.

The full run takes about an hour. `--quick` drops what `suite.drops` lists.
"""

import gc
import math
import os
import statistics

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from attention_peers import BATCH, DIM, HEADS, MODES, attention_call, run_attention
from harness import Suite, clock, interleave, peak_memory, rested
from peers import PeerProcess
from softmax_models import THREADS, limit_threads

LENGTHS = (96, 336, 720, 1440, 2880)
CAUSAL_LENGTHS = (336, 1440)
EXPONENT_LENGTHS = (1440, 2880)
PEERS = {
    "gather": "published form",
    "full": "full attention",
    "sdpa": "keras.ops.dot_product_attention",
}
SMALL_LENGTH = 8
TRAINING = {
    "seq_len": 96,
    "label_len": 48,
    "pred_len": 24,
    "hidden_dim": 512,
    "num_heads": 8,
    "intermediate_dim": 2048,
    "dropout": 0.05,
}
CHANNELS, FEATURES, WINDOWS, RATE = 7, 4, 32, 1e-4

suite = Suite(
    "prob_sparse",
    drops={
        "*_1440*": "a step of the peers takes seconds",
        "*_2880*": "a step of the peers takes many seconds",
        "*_96_memory": "a fresh process each",
        "*_336_memory": "a fresh process each",
    },
)


# --- Attention ----------------------------------------------------------------------


def best_call(form, length, run, causal=False):
    """The faster mode of a form, timed, and its name."""
    modes = ["graph"] if run.quick else list(MODES)
    calls = {mode: clock(attention_call(form, length, mode, causal)) for mode in modes}
    if len(calls) == 1:
        return calls["graph"], "graph"
    times = interleave(calls, 3, warmup=1, budget=60, min_runs=1)
    mode = min(calls, key=lambda name: statistics.median(times[name]))
    return calls[mode], mode


def race(run, forms, length, causal=False):
    """Times of forms in turn, and the modes that they ran in."""
    best = {form: best_call(form, length, run, causal) for form in forms}
    calls = {form: call for form, (call, _) in best.items()}
    times = run.interleave(calls, budget=900)
    gc.collect()
    return times, {form: mode for form, (_, mode) in best.items()}


@suite.cases(
    *(f"{peer}_{length}_time" for length in LENGTHS for peer in PEERS),
    *(f"causal_{peer}_{length}_time" for length in CAUSAL_LENGTHS for peer in PEERS),
)
def times(run):
    """Ours against every other form."""
    for causal, lengths in ((False, LENGTHS), (True, CAUSAL_LENGTHS)):
        start = "causal_" if causal else ""
        for length in lengths:
            cases = {peer: f"{start}{peer}_{length}_time" for peer in PEERS}
            raced = [peer for peer, case in cases.items() if run.wants(case)]
            if not raced:
                continue
            found, modes = race(run, ["ours", *raced], length, causal)
            for peer in raced:
                yield run.row(
                    cases[peer],
                    found["ours"],
                    "ms",
                    PEERS[peer],
                    found[peer],
                    note=f"ours {modes['ours']}, peer {modes[peer]}",
                )


@suite.cases(*(f"stream_{length}_time" for length in LENGTHS))
def paths(run):
    """The two paths of ours."""
    for length in LENGTHS:
        case = f"stream_{length}_time"
        if not run.wants(case):
            continue
        found, modes = race(run, ["stream", "blocks"], length)
        yield run.row(
            case,
            found["stream"],
            "ms",
            "ours by blocks",
            found["blocks"],
            note=f"by features {modes['stream']}, by blocks {modes['blocks']}",
        )


@suite.cases("exponent_{}_{}".format(*EXPONENT_LENGTHS))
def exponent(run):
    """How the time of ours grows with the length."""
    short, long = EXPONENT_LENGTHS
    ours, mode = best_call("stream", long, run)
    calls = {short: clock(attention_call("stream", short, mode)), long: ours}
    found = run.interleave(calls, budget=400)
    powers = [
        math.log(b / a) / math.log(long / short)
        for a, b in zip(found[short], found[long], strict=True)
    ]
    yield run.row(
        f"exponent_{short}_{long}",
        powers,
        "power",
        "linear",
        [1.0],
        note=f"by features, {mode}",
    )
    gc.collect()


# --- Memory -------------------------------------------------------------------------


def lightest(run, form, length, small):
    """Bytes of a form above those of the small length, and its mode.

    Args:
        run: A `Run`.
        form: A key of `attention_peers.FORMS`.
        length: Number of queries and of keys.
        small: Dict of the bytes that are known at the small length, which is filled.
    """
    modes = ["graph"] if run.quick else list(MODES)
    sizes = {}
    for mode in modes:
        if (form, mode) not in small:
            small[form, mode] = peak(form, SMALL_LENGTH, mode)
        sizes[mode] = [peak(form, length, mode) - small[form, mode]]
    mode = min(sizes, key=lambda name: sizes[name][0])
    more = 0 if run.quick else 2
    sizes[mode] += [peak(form, length, mode) - small[form, mode] for _ in range(more)]
    return sizes[mode], mode


def peak(form, length, mode):
    """Peak bytes of a fresh process."""
    return peak_memory(run_attention, form=form, length=length, mode=mode)


@suite.cases(*(f"{peer}_{length}_memory" for length in LENGTHS for peer in PEERS))
def memory(run):
    """Peak memory of ours and of every other form."""
    small = {}
    for length in LENGTHS:
        cases = {peer: f"{peer}_{length}_memory" for peer in PEERS}
        if not run.wants(*cases.values()):
            continue
        ours, mode = lightest(run, "ours", length, small)
        for peer, case in cases.items():
            if not run.wants(case):
                continue
            theirs, peer_mode = lightest(run, peer, length, small)
            yield run.row(
                case,
                ours,
                "MB",
                PEERS[peer],
                theirs,
                held=8 * 4e-6 * BATCH * length * HEADS * DIM,
                note=f"ours {mode}, peer {peer_mode}",
            )


# --- The model ----------------------------------------------------------------------


def train_calls():
    """A training step of ours in the graph and in XLA, on one model, not timed."""
    import keras
    import numpy as np
    import tensorflow as tf

    from keras_recsys.models import build_informer

    rng = np.random.default_rng(0)
    steps = TRAINING["seq_len"] + TRAINING["pred_len"]
    rows = rng.normal(size=(WINDOWS, steps, CHANNELS)).astype("float32")
    calendar = rng.random((WINDOWS, steps, FEATURES)).astype("float32") - 0.5
    history = rows[:, : TRAINING["seq_len"]]
    batch = (
        {"values": tf.constant(history), "calendar": tf.constant(calendar)},
        tf.constant(rows[:, TRAINING["seq_len"] :]),
    )
    model = build_informer(CHANNELS, **TRAINING)
    optimizer = keras.optimizers.Adam(RATE, epsilon=1e-8)
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)

    def call(xla):
        step = tf.function(model.train_step, jit_compile=xla)
        return lambda: step(batch)["loss"].numpy()

    return model, {mode: call(xla) for mode, xla in MODES.items()}


@suite.cases("torch_train_step")
def torch_train_step(run):
    """The PyTorch peer and ours in turn."""
    model, calls = train_calls()
    calls = {mode: clock(call) for mode, call in calls.items()}
    mode = "graph"
    if not run.quick:
        found = interleave(calls, 3, warmup=2, budget=120, min_runs=2)
        mode = min(calls, key=lambda name: statistics.median(found[name]))
    with PeerProcess("torch", "informer_torch.py", f"--threads={THREADS}") as peer:
        built = peer.ask("build")
        found = run.interleave(
            {"ours": rested(calls[mode]), "peer": rested(peer.seconds("step"))}
        )
        yield run.row(
            "torch_train_step",
            found["ours"],
            "ms",
            "PyTorch",
            found["peer"],
            peer_versions={"torch": peer.ask("versions")["torch"]},
            parameters=sum(math.prod(x.shape) for x in model.trainable_variables),
            peer_parameters=built["parameters"],
            note=mode,
        )


if __name__ == "__main__":
    limit_threads()
    suite.main()
