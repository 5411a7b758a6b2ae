"""Models of long histories: time and memory by length, the factored form, quality.

    python benchmarks/bench_behavior.py [--quick] [--json OUT] [--case REGEX]

A batch has 64 rows, vectors have width 32, and a history is full. Every model is the
one of its builder, from ids to the loss: a table of 100,000 items, shared by target and
history, the interest, and a head of (64, 32). `step` is the loss and the gradients of
all weights, those of the table sparse; no optimizer runs. Each side of a race has its
best mode, TensorFlow's graph or XLA (`out_of_range="nan"`), found in a few rounds
before it. The SAM here is 3P (three passes, no further steps) with 32 hidden units.

`factored_vs_plain_forward`, `_backward`: `DualQueryAttention` on a history of 1,000 in
memory against the same layer written as in the paper, with its four products of the
history side by side; `backward` is forward and backward, gradients of all inputs and
weights. `factored_vs_plain_memory`: what attention adds to the peak memory of a program
that has the history and its gradient anyway (a mean in place of the attention), at
16,000 items; `factored_vs_plain_peak`: peak memory at 16,000 less that at 8.

`sam_vs_din_time_{L}`, `_memory_{L}`: a step of SAM against one of DIN as published, the
same model with an attention that lays out `[q ; k ; q - k ; q * k]` and has layers of
80 and 40 sigmoids. `sam_vs_factored_din_...`: against our DIN of equal width, one
hidden layer of 32. The ratio of the first is SAM / DIN. Memory is the peak at the
length less that at length 8, in TensorFlow's graph.

`exponent_sam`, `exponent_din`: the power of the length that the time of a step grows
with between 1,000 and 16,000; the base is 1.

`{model}_{forward,step,memory}_{L}`: every model by itself, those lengths that it can.

`quality_ratings_{model}`: AUC on ranking samples of MovieLens, seeds 0, 1, 2 (mean, and
least and largest as spread): the last 50 ratings before, the movie that was rated next
against one that the user never rated, drawn as often as it was rated, so that what is
popular says nothing; the last tenth of the time for the test. Two epochs of LazyAdam at
a rate of 0.003, the defaults of all builders.
`quality_video_{model}`: the same on sequences of Amazon's video games, whose last two
items of each user are held out.

The full run takes about two hours, of which quality takes most, and goes on where it
was stopped. `--quick` drops what `suite.drops` lists. Sequences are read from the
folder that `KERAS_RECSYS_DATA` names, by default `../shared/data`.
"""

import functools
import gc
import math
import os
import pathlib
import statistics

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from harness import PeerMissing, Suite, clock, interleave

BATCH, DIM, ITEMS = 64, 32, 100_000
LENGTHS = (50, 200, 1000, 4000, 16000)
RACED = (1000, 4000, 16000)
SEEDS = (0, 1, 2)
DATA = pathlib.Path(
    os.environ.get("KERAS_RECSYS_DATA")
    or pathlib.Path(__file__).parent.parent.parent / "shared" / "data"
)

# The longest history of each model: attention of all pairs needs more memory beyond,
# and a recurrence more than a minute a step.
MODELS = {
    "youtube_dnn": 16000,
    "din": 16000,
    "sam": 16000,
    "sasrec_block": 1000,
    "dien": 1000,
    "mimn": 1000,
}

suite = Suite(
    "behavior",
    drops={
        "*_16000": "a step of the peers takes seconds",
        "*_4000": "a step of the peers takes seconds",
        "exponent_*": "needs the longest history",
        "dien_*": "a recurrence of a thousand steps",
        "mimn_*": "a recurrence of a thousand steps",
        "*_memory_*": "a fresh process each",
        "quality_*": "trainings of an hour",
    },
)


# --- The layer ----------------------------------------------------------------------


def plain_attention(weights):
    """The attention of SAM as the paper writes it, with the weights of our layer."""
    import tensorflow as tf

    kernel, bias, score_kernel, score_bias = map(tf.Variable, weights)

    def attend(query, memory, value):
        query, memory = query[:, None], memory[:, None]
        alpha = tf.concat(
            [query - value, query * value, memory - value, memory * value], axis=-1
        )
        hidden = tf.sigmoid(alpha @ kernel + bias)
        scores = tf.squeeze(hidden @ score_kernel + score_bias, -1)
        return tf.squeeze(tf.sigmoid(scores)[:, None] @ value, 1)

    return attend, [kernel, bias, score_kernel, score_bias]


def make_attention(kind):
    """A function of target, memory and history, and its weights."""
    import tensorflow as tf

    from keras_recsys.layers import DualQueryAttention

    if kind == "mean":
        return (
            lambda query, memory, value: tf.reduce_mean(value, 1) + query * memory,
            [],
        )
    layer = DualQueryAttention(DIM)
    layer.build((None, DIM), (None, DIM), (None, None, DIM))
    if kind == "factored":
        return layer, [weight.value for weight in layer.weights]
    return plain_attention(layer.get_weights())


def attention_calls(kind, length, xla):
    """Forward, and forward with backward, of one kind of attention."""
    import numpy as np
    import tensorflow as tf

    attend, weights = make_attention(kind)
    rng = np.random.default_rng(0)
    shapes = [(BATCH, DIM), (BATCH, DIM), (BATCH, length, DIM)]
    inputs = [tf.constant(rng.random(s, "float32") - 0.5) for s in shapes]

    @tf.function(jit_compile=xla)
    def forward(*inputs):
        return attend(*inputs)

    @tf.function(jit_compile=xla)
    def backward(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(attend(*inputs) ** 2)
        return tape.gradient(loss, [*inputs, *weights])

    return (
        lambda: forward(*inputs).numpy(),
        lambda: backward(*inputs)[0].numpy(),
    )


def run_attention(kind, length):
    """What a process of a memory case does."""
    _, backward = attention_calls(kind, length, xla=False)
    for _ in range(3):
        backward()


def fastest(candidates, rounds=3):
    """The name of the candidate of the least median time."""
    times = interleave(candidates, rounds, warmup=2, budget=60, min_runs=2)
    return min(candidates, key=lambda name: statistics.median(times[name]))


@suite.cases(
    "factored_vs_plain_forward",
    "factored_vs_plain_backward",
    "factored_vs_plain_memory",
    "factored_vs_plain_peak",
)
def layer_cases(run):
    """The factored layer against the plain form."""
    calls = {}
    for i, part in enumerate(("forward", "backward")):
        case = f"factored_vs_plain_{part}"
        if not run.wants(case):
            continue
        best = {}
        for kind in ("factored", "plain"):
            for xla in (False, True):
                calls[kind, xla] = clock(attention_calls(kind, 1000, xla)[i])
            mine = {key: call for key, call in calls.items() if key[0] == kind}
            best[kind] = fastest(mine)
        raced = {kind: calls[key] for kind, key in best.items()}
        times = run.interleave(raced)
        modes = [f"{kind} {'XLA' if xla else 'graph'}" for kind, xla in best.values()]
        yield run.row(
            case,
            times["factored"],
            "ms",
            "plain form",
            times["plain"],
            note=", ".join(modes),
        )
    for case, base in (
        ("factored_vs_plain_memory", {"kind": "mean", "length": 16000}),
        ("factored_vs_plain_peak", {"length": 8}),
    ):
        if run.wants(case):
            sizes = {
                kind: run.memory(
                    run_attention,
                    {"kind": kind, **base},
                    {"kind": kind, "length": 16000},
                )
                for kind in ("factored", "plain")
            }
            yield run.row(case, sizes["factored"], "MB", "plain form", sizes["plain"])


# --- Models -------------------------------------------------------------------------


def plain_target_attention():
    """The class of DIN's attention as published."""
    import keras
    from keras import ops

    class PlainTargetAttention(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.supports_masking = True
            self.network = keras.Sequential(
                [
                    keras.layers.Dense(80, activation="sigmoid"),
                    keras.layers.Dense(40, activation="sigmoid"),
                    keras.layers.Dense(1),
                ]
            )

        def build(self, query_shape, value_shape):
            self.network.build((None, None, 4 * value_shape[-1]))

        def call(self, query, value, mask):
            query = ops.broadcast_to(query[:, None], ops.shape(value))
            x = ops.concatenate([query, value, query - value, query * value], axis=-1)
            scores = ops.squeeze(self.network(x), -1)
            weights = ops.where(mask, scores, ops.zeros_like(scores))
            return ops.squeeze(ops.matmul(weights[:, None], value), 1)

        def compute_mask(self, *args):
            return None

        def compute_output_shape(self, query_shape, value_shape):
            return query_shape

    return PlainTargetAttention()


def make_features(length, xla):
    """A target and a history that share a table."""
    from keras_recsys import CategoricalFeature, SequenceFeature

    shared = {"table": "item", "out_of_range": "nan" if xla else "error"}
    return [
        CategoricalFeature("item", ITEMS, **shared),
        SequenceFeature("item_history", ITEMS, max_len=length, **shared),
    ]


def make_model(name, length, xla):
    """A model by name, not compiled."""
    from keras_recsys import models
    from keras_recsys.models.behavior._frame import BehaviorModel

    features = make_features(length, xla)
    settings = {"history": {"item_history": "item"}, "embedding_dim": DIM}
    if name == "plain_din":
        frame = BehaviorModel(
            features, settings["history"], embedding_dim=DIM, name="din"
        )
        interest = plain_target_attention()(frame.target, frame.events, frame.mask)
        return frame.model_of(
            [interest], (64, 32), activation="relu", dropout=0.0, seed=None
        )
    if name == "sam":
        settings |= {"num_steps": 0, "attention_dim": DIM}
    elif name == "equal_din":
        name, settings = "din", {**settings, "attention_units": (DIM,)}
    elif name == "sasrec_block":
        name, settings = "bst", {**settings, **SASREC}
    return getattr(models, f"build_{name}")(features, **settings)


# The SASRec of the paper on SAM, but for the mean in place of all steps side by side.
SASREC = {
    "num_heads": 1,
    "include_target": False,
    "pre_norm": True,
    "projection_activation": "relu",
    "block_activation": "relu",
    "use_output_projection": False,
}


def model_calls(name, length, xla):
    """Forward and step of a model, on one batch that is in memory."""
    import keras
    import numpy as np
    import tensorflow as tf

    model = make_model(name, length, xla)
    rng = np.random.default_rng(0)
    shapes = {"item": (BATCH,), "item_history": (BATCH, length)}
    ids = {
        key: tf.constant(rng.integers(1, ITEMS, shape).astype("int32"))
        for key, shape in shapes.items()
    }
    labels = tf.constant(rng.integers(0, 2, (BATCH, 1)).astype("float32"))
    weights = [weight.value for weight in model.trainable_variables]

    @tf.function(jit_compile=xla)
    def forward():
        return model(ids)["probability"]

    @tf.function(jit_compile=xla)
    def step():
        with tf.GradientTape() as tape:
            got = model(ids, training=True)["probability"]
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(labels, got))
        gradients = tape.gradient(loss, weights)
        # XLA would lay out the gradient of the table; its rows are what is wanted.
        parts = [g.values if hasattr(g, "values") else g for g in gradients]
        return [loss, *parts]

    return lambda: forward().numpy(), lambda: step()[0].numpy()


def run_model(name, length):
    """What a process of a memory case does."""
    _, step = model_calls(name, length, xla=False)
    for _ in range(2):
        step()


def best_call(name, length, part, quick):
    """The faster mode of a model, timed, and its name."""
    index = ("forward", "step").index(part)
    candidates = {
        mode: clock(model_calls(name, length, mode == "XLA")[index])
        for mode in ("graph", "XLA")
    }
    mode = fastest(candidates)
    return candidates[mode], mode


def race_models(run, name, base, length):
    """Times of a step of two models, each in its best mode."""
    (ours, mode), (theirs, base_mode) = (
        best_call(one, length, "step", run.quick) for one in (name, base)
    )
    times = run.interleave({name: ours, base: theirs}, budget=400, min_runs=7)
    gc.collect()
    return times, f"{name} {mode}, {base} {base_mode}"


BASES = {"sam_vs_din": "plain_din", "sam_vs_factored_din": "equal_din"}


@suite.cases(
    *(
        f"{race}_{part}_{length}"
        for race in BASES
        for part in ("time", "memory")
        for length in RACED
    )
)
def races(run):
    """SAM against DIN."""
    for race, base in BASES.items():
        for length in RACED:
            case = f"{race}_time_{length}"
            if run.wants(case):
                times, note = race_models(run, "sam", base, length)
                yield run.row(case, times["sam"], "ms", base, times[base], note=note)
            case = f"{race}_memory_{length}"
            if run.wants(case):
                sizes = {
                    name: run.memory(
                        run_model,
                        {"name": name, "length": 8},
                        {"name": name, "length": length},
                    )
                    for name in ("sam", base)
                }
                yield run.row(case, sizes["sam"], "MB", base, sizes[base])


@suite.cases("exponent_sam", "exponent_din")
def exponents(run):
    """How time grows with the length."""
    for case in ("exponent_sam", "exponent_din"):
        if not run.wants(case):
            continue
        name = case.removeprefix("exponent_")
        short, mode = best_call(name, RACED[0], "step", run.quick)
        long, _ = best_call(name, RACED[-1], "step", run.quick)
        times = run.interleave({"short": short, "long": long}, budget=400, min_runs=7)
        powers = [
            math.log(b / a) / math.log(RACED[-1] / RACED[0])
            for a, b in zip(times["short"], times["long"], strict=True)
        ]
        yield run.row(case, powers, "power", "linear", [1.0], note=mode)
        gc.collect()


@suite.cases(
    *(
        f"{model}_{part}_{length}"
        for model, longest in MODELS.items()
        for length in LENGTHS
        if length <= longest
        for part in ("forward", "step", "memory")
    )
)
def scaling(run):
    """Every model by itself."""
    for model, longest in MODELS.items():
        for length in LENGTHS:
            if length > longest:
                continue
            for part in ("forward", "step"):
                case = f"{model}_{part}_{length}"
                if run.wants(case):
                    call, mode = best_call(model, length, part, run.quick)
                    times = run.interleave({"ours": call}, budget=60, min_runs=5)
                    yield run.row(case, times["ours"], "ms", note=mode)
                    gc.collect()
            case = f"{model}_memory_{length}"
            if run.wants(case):
                sizes = run.memory(
                    run_model,
                    {"name": model, "length": 8},
                    {"name": model, "length": length},
                    runs=1,
                )
                yield run.row(case, sizes, "MB")


# --- Quality ------------------------------------------------------------------------

NO_STEPS = {"num_steps": 0}
NO_WALK = {**NO_STEPS, "use_iterative_walk": False}
DOT = {**NO_WALK, "score_mode": "dot", "attention_activation": "softmax"}
WITH_TIMES = {"num_positions": 50}

# Builder, its arguments, and whether it reads the times of events.
QUALITY = {
    "youtube_dnn": ("youtube_dnn", {}, False),
    "din": ("din", {}, False),
    "dien": ("dien", {}, False),
    "mimn": ("mimn", {}, False),
    "ubr4ctr": ("ubr4ctr", {}, False),
    "bst": ("bst", {"num_heads": 2}, False),
    "sasrec": ("bst", SASREC, False),
    "sam_2p": ("sam", {"num_passes": 2, **NO_STEPS}, False),
    "sam_3p": ("sam", NO_STEPS, False),
    "sam_3p_plus": ("sam", {}, False),
    "sam_3p_plus_ts": ("sam", WITH_TIMES, True),
    "sam_delayed_cross": ("sam", {**NO_STEPS, "use_target": False}, False),
    "sam_no_subtraction": ("sam", {"use_subtraction": False}, False),
    "sam_no_walk": ("sam", NO_WALK, False),
    "sam_dot_product": ("sam", DOT, False),
}
VIDEO = ("youtube_dnn", "din", "sasrec", "sam_2p", "sam_3p", "sam_3p_plus")
TASKS = {"ratings": tuple(QUALITY), "video": VIDEO}
EPOCHS, RATE, QUALITY_BATCH, MAX_LEN = 2, 0.003, 256, 50


def read_ratings():
    """Log of MovieLens, its last tenth of the time for the test."""
    import numpy as np

    from keras_recsys.data import Vocabulary, load_movielens

    frame = load_movielens()
    log = {
        "user": Vocabulary.fit(frame["user_id"]).encode(frame["user_id"]),
        "item": Vocabulary.fit(frame["movie_id"]).encode(frame["movie_id"]),
        "time": np.asarray(frame["timestamp"]),
    }
    return log, np.quantile(log["time"], 0.9)


def read_video():
    """Log of Amazon's video games, the last two items of each user for the test."""
    import numpy as np

    path = DATA / "sequences" / "Video.txt"
    if not path.exists():
        raise PeerMissing(f"no sequences/Video.txt in {DATA.name}/")
    user, item = np.loadtxt(path, dtype="int64").T
    # Grouped by user, oldest first; there are no times, so they count to the end.
    count = np.bincount(user)
    ends = np.cumsum(count)[user]
    return {"user": user, "item": item, "time": np.arange(len(user)) - ends}, -2


@functools.lru_cache(maxsize=1)
def quality_task(name):
    """The log of a task, and the time of its split."""
    return {"ratings": read_ratings, "video": read_video}[name]()


def train_and_score(task, model_name, seed):
    """AUC on the samples from the split on."""
    import keras

    from keras_recsys import (
        CategoricalFeature,
        SequenceFeature,
        TimeGapFeature,
        data,
        models,
        optimizers,
    )
    from keras_recsys.analysis import evaluate_model

    log, split = quality_task(task)
    builder, settings, with_times = QUALITY[model_name]
    size = int(log["item"].max()) + 1
    features = [
        CategoricalFeature("item", size, table="item"),
        SequenceFeature("item_history", size, table="item"),
    ]
    if with_times:
        features.append(TimeGapFeature("time_gap_history"))
    options = {"max_len": MAX_LEN, "min_len": 1, "batch_size": QUALITY_BATCH}
    options |= {"features": features, "seed": seed, "negatives": "popularity"}
    train = data.make_ranking_dataset(log, end=split, shuffle=True, **options)
    test = data.make_ranking_dataset(log, start=split, **{**options, "seed": 0})
    keras.utils.set_random_seed(seed)
    model = getattr(models, f"build_{builder}")(
        features, history={"item_history": "item"}, **settings
    )
    model.compile(optimizers.LazyAdam(RATE), "binary_crossentropy")
    model.fit(train, epochs=EPOCHS, shuffle=False, verbose=0)
    return evaluate_model(model, test).auc


@suite.cases(
    *(f"quality_{task}_{name}" for task, names in TASKS.items() for name in names)
)
def quality(run):
    """AUC of every model, and of every ablation of SAM."""
    for task, names in TASKS.items():
        for name in names:
            case = f"quality_{task}_{name}"
            if not run.wants(case):
                continue
            aucs = [train_and_score(task, name, seed) for seed in SEEDS]
            yield run.row(
                case,
                aucs,
                "AUC",
                value=statistics.mean(aucs),
                spread=[min(aucs), max(aucs)],
            )


if __name__ == "__main__":
    suite.main()
