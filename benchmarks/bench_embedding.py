"""Embedding tables at scale: what a training step costs, and what memory buys.

    python benchmarks/bench_embedding.py [--quick] [--json OUT] [--case REGEX]

A step is one call of the compiled function that `Model.fit` itself calls, on a batch of
1024 rows of 8 ids that is already in memory: ids, table of width 16, flattened, one
dense unit, mean squared error. Ids are uniform and different in each step, which is the
worst case for caches: about 8190 of 8192 rows are distinct at 10^7 ids.

Tables lie in huge pages on every side: the script starts itself again with
`GLIBC_TUNABLES=glibc.malloc.hugetlb=1` (Linux, glibc 2.35 or newer, transparent huge
pages not switched off), unless that variable is set: `GLIBC_TUNABLES= python ...`
measures with what the system gives. With pages of 4 KiB a random row of a large table
costs a walk through the page table, which is most of the difference between 10^5 and
10^7 ids.

`flat_{lazy_adam,rowwise_adagrad,sgd}_{full,qr}`: 10^7 ids over 10^5, `steps` has 10^6
too. SGD is Keras' own. QR has `ceil(sqrt(n))` buckets.

`stock_adam_1e7`: `keras.layers.Embedding` with `keras.optimizers.Adam` over
`FullEmbedding` with `LazyAdam`.

`torch_sparse_adam_1e7`: `torch.nn.Embedding(sparse=True)` with `SparseAdam`, in a
process of its own and eager as PyTorch users run it, over ours. PyTorch has 1 or 2
threads, whichever is faster. `moved_bytes` is what any step has to move (see that
function).

`qr_memory_5e6`: peak memory of three steps of QR with 2250 buckets and Adam, 5 million
ids, and of the full table with Adam, less that of a table of 1000 ids.

`step_1e9_{qr,mixed_radix}`: a step at 10^9 ids; `peak_bytes` is its peak memory less
that at 1000 ids.

`quality_*`: AUC on the test rows of the quickstart, seeds 0, 1, 2 (mean, and least and
largest as spread), of FiBiNET on user, movie and genres, with users and movies in full
tables, in `hash` and in `qr` tables: `_quarter` with a quarter of the rows of the full
table, `_root` with `2 sqrt(n)`. A hash table has as many rows as both QR tables
together. Each run has `EPOCHS` epochs, of which the best on the last tenth of each
user's training rows counts. The peer of `qr` is `hash`: values are AUC, and the ratio
is that of their errors, 1 - AUC, above 1 where QR is better.

The full run takes about 15 minutes. `--quick` drops what `suite.drops` lists.
"""

import contextlib
import gc
import os
import statistics
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from harness import Suite, clock, peak_memory, rested
from peers import PeerProcess

BATCH, IDS, DIM = 1024, 8, 16
SIZES = (10**5, 10**6, 10**7)
NUM_BATCHES = 32
HUGE_PAGES = "glibc.malloc.hugetlb=1"
SEEDS, EPOCHS = (0, 1, 2), 8
KINDS = ("full", "qr")
OPTIMIZERS = ("lazy_adam", "rowwise_adagrad", "sgd")
QUALITY = ("full", "hash_quarter", "qr_quarter", "hash_root", "qr_root")

suite = Suite(
    "embedding",
    drops={
        "quality_*": "fifteen trainings take six minutes",
        "step_1e9_*": "what is new in it is memory, which takes fresh processes",
    },
)

# --- Steps --------------------------------------------------------------------------


def make_layer(kind, num_ids):
    """The embedding layer of a case."""
    import keras

    from keras_recsys import layers

    if kind == "stock":
        return keras.layers.Embedding(num_ids, DIM)
    if kind == "full":
        return layers.FullEmbedding(num_ids, DIM)
    if kind == "qr":
        return layers.QREmbedding(num_ids, DIM)
    if kind == "qr_2250":
        return layers.QREmbedding(num_ids, DIM, num_buckets=2250)
    return layers.CompositionalEmbedding(num_ids, DIM, num_partitions=3)


def make_optimizer(name):
    """The optimizer of a case."""
    import keras

    from keras_recsys import optimizers

    return {
        "lazy_adam": lambda: optimizers.LazyAdam(1e-3),
        "rowwise_adagrad": lambda: optimizers.RowWiseAdagrad(1e-2),
        "sgd": lambda: keras.optimizers.SGD(1e-2),
        "adam": lambda: keras.optimizers.Adam(1e-3),
    }[name]()


def make_ids(num_ids, seed):
    """The ids of one batch."""
    import numpy as np

    return (
        np.random.default_rng(seed).integers(0, num_ids, (BATCH, IDS)).astype("int32")
    )


class Steps:
    """A compiled model and the batches that it goes through."""

    def __init__(self, kind, optimizer, num_ids):
        import keras
        import numpy as np
        import tensorflow as tf

        ids = keras.Input((IDS,), dtype="int32")
        x = keras.layers.Flatten()(make_layer(kind, num_ids)(ids))
        model = keras.Model(ids, keras.layers.Dense(1)(x))
        model.compile(make_optimizer(optimizer), "mse", jit_compile=False)
        labels = tf.constant(
            np.random.default_rng(0).normal(size=(BATCH, 1)), "float32"
        )
        self.batches = [
            (tf.constant(make_ids(num_ids, seed)), labels)
            for seed in range(NUM_BATCHES)
        ]
        self.done = 0
        model.make_train_function()
        self.function = model.train_function

    def step(self):
        """Runs one training step and waits for its loss."""
        batch = self.batches[self.done % NUM_BATCHES]
        self.done += 1
        return float(self.function(iter([batch]))["loss"])


def pages():
    """Says which pages the tables of this process are in."""
    return "huge pages" if os.environ.get("GLIBC_TUNABLES") else "pages of the system"


def moved_bytes():
    """Bytes that a step of Adam on a table has to move at least.

    Each row of the batch is read twice, by the lookup and by the update, and written
    once; so are both moments of Adam, but read once.
    """
    return BATCH * IDS * DIM * 4 * (2 + 1 + 2 * (1 + 1))


@suite.cases(*(f"flat_{opt}_{kind}" for opt in OPTIMIZERS for kind in KINDS))
def flat(run):
    """Steps at 10^5, 10^6 and 10^7 ids, in turn."""
    for optimizer in OPTIMIZERS:
        for kind in KINDS:
            case = f"flat_{optimizer}_{kind}"
            if not run.wants(case):
                continue
            steps = {n: clock(Steps(kind, optimizer, n).step) for n in SIZES}
            times = run.interleave(steps, warmup=5)
            medians = {f"{n:.0e}": statistics.median(t) * 1e3 for n, t in times.items()}
            yield run.row(
                case,
                times[SIZES[-1]],
                "ms",
                "10^5 ids",
                times[SIZES[0]],
                note=pages(),
                steps=medians,
            )
            del steps
            gc.collect()


@suite.cases("stock_adam_1e7")
def stock(run):
    """Keras' own layer and optimizer at 10^7 ids."""
    ours, peer = Steps("full", "lazy_adam", 10**7), Steps("stock", "adam", 10**7)
    times = run.interleave({"ours": clock(ours.step), "peer": clock(peer.step)})
    yield run.row(
        "stock_adam_1e7",
        times["ours"],
        "ms",
        "keras Embedding + Adam",
        times["peer"],
        note=pages(),
    )
    del ours, peer
    gc.collect()


@suite.cases("torch_sparse_adam_1e7")
def torch(run):
    """PyTorch's sparse table and optimizer at 10^7 ids."""
    arguments = ("torch", "torch_embedding.py", 10**7, BATCH, IDS, DIM)
    with contextlib.ExitStack() as stack:
        functions = {}
        for threads in ("1", "2"):
            env = {"OMP_NUM_THREADS": threads}
            process = stack.enter_context(PeerProcess(*arguments, env=env))
            versions = process.ask("versions")
            versions.pop("seconds")
            process.ask("build")
            functions[threads] = process.seconds("step")
        ours = Steps("full", "lazy_adam", 10**7)
        functions["ours"] = clock(ours.step)
        functions = {name: rested(f) for name, f in functions.items()}
        times = run.interleave(functions, warmup=5)
    threads = min("12", key=lambda name: statistics.median(times[name]))
    times = {"ours": times["ours"], "peer": times[threads]}
    moved = moved_bytes()
    rates = {name: moved / statistics.median(t) / 1e9 for name, t in times.items()}
    yield run.row(
        "torch_sparse_adam_1e7",
        times["ours"],
        "ms",
        "torch Embedding(sparse) + SparseAdam",
        times["peer"],
        peer_versions=versions,
        note=f"{pages()}, PyTorch with {threads} threads, the faster of 1 and 2",
        moved_bytes=moved,
        gigabytes_per_second=rates,
    )
    del ours
    gc.collect()


# --- Memory -------------------------------------------------------------------------


def three_steps(kind, optimizer, num_ids):
    """What a process of a memory case does."""
    steps = Steps(kind, optimizer, num_ids)
    for _ in range(3):
        steps.step()


@suite.cases("qr_memory_5e6")
def memory(run):
    """QR and a full table at five million ids, both with Adam."""
    sizes = {
        kind: run.memory(
            three_steps,
            {"kind": kind, "optimizer": "adam", "num_ids": 1_000},
            {"kind": kind, "optimizer": "adam", "num_ids": 5_000_000},
            env={"GLIBC_TUNABLES": ""},  # which would round sizes up
        )
        for kind in ("qr_2250", "stock")
    }
    # A difference of two processes can fall below a page.
    ours = [max(size, 4096.0) for size in sizes["qr_2250"]]
    yield run.row("qr_memory_5e6", ours, "MB", "keras Embedding + Adam", sizes["stock"])


@suite.cases("step_1e9_qr", "step_1e9_mixed_radix")
def billion(run):
    """A step at 10^9 ids, of which no full table exists here: 64 GB."""
    for kind in ("qr", "mixed_radix"):
        case = f"step_1e9_{kind}"
        if not run.wants(case):
            continue
        steps = Steps(kind, "lazy_adam", 10**9)
        times = run.interleave({"ours": clock(steps.step)}, warmup=5)["ours"]
        arguments = {"kind": kind, "optimizer": "lazy_adam"}
        arguments["env"] = {"GLIBC_TUNABLES": ""}
        peak = peak_memory(three_steps, num_ids=10**9, **arguments)
        base = peak_memory(three_steps, num_ids=1_000, **arguments)
        yield run.row(
            case,
            times,
            "ms",
            peak_bytes=peak - base,
            table_bytes=4 * make_parameters(kind, 10**9),
        )
        del steps
        gc.collect()


def make_parameters(kind, num_ids):
    """Weights of the tables of a layer, without building it."""
    import math

    return sum(map(math.prod, make_layer(kind, num_ids).weight_shapes.values()))


# --- Quality ------------------------------------------------------------------------


TABLES = ("user_id", "movie_id")


def quality_task():
    """Three parts of the ratings, and vocabularies of all values of the first."""
    from keras_recsys._quickstart.clicks import load_ratings
    from keras_recsys.data import Vocabulary, split_by_user_time

    train, test = split_by_user_time(load_ratings(None, None))
    train, valid = split_by_user_time(train)
    vocabularies = {name: Vocabulary.fit(train[name]) for name in TABLES}
    vocabularies["genres"] = Vocabulary.fit(train["genres"], separator="|")
    return (train, valid, test), vocabularies


def make_features(vocabularies, variant):
    """Features whose users and movies are stored as a variant says."""
    import math

    from keras_recsys.features import CategoricalFeature, SequenceFeature

    kind, _, size = variant.partition("_")
    features = []
    for name in TABLES:
        n = vocabularies[name].size
        buckets = math.isqrt(n - 1) + 1 if size == "root" else -(-n // 4)
        rows = {"full": None, "qr": buckets, "hash": buckets + -(-n // buckets)}[kind]
        features.append(CategoricalFeature(name, n, embedding=kind, num_buckets=rows))
    return [*features, SequenceFeature("genres", vocabularies["genres"].size)]


def train_and_score(parts, vocabularies, features, seed):
    """AUC and log loss of the test rows after the best epoch."""
    import keras
    from sklearn.metrics import log_loss, roc_auc_score

    from keras_recsys import data, models

    keras.utils.set_random_seed(seed)
    train, valid, test = (
        data.make_dataset(
            frame[[feature.name for feature in features]],
            features,
            labels=frame["liked"],
            vocabularies=vocabularies,
            batch_size=512,
            **({"shuffle": True, "seed": seed} if i == 0 else {}),
        )
        for i, frame in enumerate(parts)
    )
    model = models.build_fibinet(features, hidden_units=(64,))
    model.compile("auto", "binary_crossentropy")
    best = (0.0,)
    for _ in range(EPOCHS):
        model.fit(train, epochs=1, shuffle=False, verbose=0)
        figures = []
        for rows, frame in ((valid, parts[1]), (test, parts[2])):
            probability = model.predict(rows, verbose=0)["probability"][:, 0]
            figures.append(roc_auc_score(frame["liked"], probability))
        figures.append(log_loss(parts[2]["liked"], probability))
        best = max(best, tuple(figures))
    return best[1:]


@suite.cases(*(f"quality_{variant}" for variant in QUALITY))
def quality(run):
    """AUC of full, hash and QR tables."""
    from keras_recsys import memory

    parts, vocabularies = quality_task()
    errors = {}
    for variant in QUALITY:
        features = make_features(vocabularies, variant)
        figures = [
            train_and_score(parts, vocabularies, features, seed) for seed in SEEDS
        ]
        aucs, losses = zip(*figures, strict=True)
        errors[variant] = [1 - auc for auc in aucs]
        rows = memory.summary(features[: len(TABLES)], DIM).rows()
        more = {
            "value": statistics.mean(aucs),
            "spread": [min(aucs), max(aucs)],
            "log_loss": statistics.mean(losses),
            "parameters": rows[0]["parameters"],
        }
        peer = variant.replace("qr", "hash") if variant.startswith("qr") else None
        if peer:
            mean = statistics.mean
            more["peer_value"] = 1 - mean(errors[peer])
            more["ratio"] = mean(errors[peer]) / mean(errors[variant])
        yield run.row(f"quality_{variant}", list(aucs), "AUC", peer, **more)


if __name__ == "__main__":
    if "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = HUGE_PAGES  # read as a process starts
        os.execv(sys.executable, [sys.executable, *sys.argv])
    suite.main()
