"""Click models: steps against DeepCTR and FuxiCTR, streams from disk, quality.

    python benchmarks/bench_ctr.py [--quick] [--json OUT] [--case REGEX]

The rows are generated in the shape of Criteo's: 26 columns of ids, drawn by a power
law, and 13 numbers. Vectors have width 10, networks the widths (256, 128, 64), a batch
has 1024 rows, the loss is binary cross-entropy and the optimizer Adam.

`{model}_vs_deepctr`, `{model}_vs_fuxictr`: a training step with 1,000 ids a column, in
rows a second, 5 steps a run on batches that are in memory. Both sides train the same
model: numbers stay out of the fields as in DeepCTR, or are fields as in FuxiCTR;
FiBiNET is of type `interaction`, DCN of version 1, xDeepFM has a CIN of (128, 128).
Each side has its best mode, found in a few rounds before the race: for ours `LazyAdam`
in TensorFlow's graph with checked ids, or compiled by XLA with `out_of_range="nan"`;
for DeepCTR both of tf_keras' Adam optimizers, and XLA (but for FiBiNET, which it
compiles for minutes); for FuxiCTR 1 and 2 threads, its pairs by products or by a gather
(FiBiNET) and `torch.compile` (DeepFM). `..._1e5`: the same with 100,000 ids a column,
without XLA and `torch.compile`.

`{model}_build`: building, compiling and the first step without XLA, in seconds, against
DeepCTR with its legacy Adam.

`input_share_{model}`: one epoch of a million rows from compressed Parquet files, in the
time that a step waits for its batch, over the time of a step; `rows_per_second` is the
rate of the whole epoch. With `deep` models `numeric_inputs` is `"dnn"`.

`memory_1e6`, `memory_1e7`: peak memory of an epoch of DeepFM over so many rows from
disk, less that of the same program on one batch.

`quality_{model}`: AUC on the test rows of the quickstart, seeds 0, 1, 2 (mean, and
least and largest as spread). The 2000 most rated movies have a row each, and the others
share one. The peer is the logistic regression of the quickstart (scikit-learn); the
ratio is that of errors, 1 - AUC, above 1 where the model is better.

The full run takes up to an hour and goes on where it was stopped. `--quick` drops what
`suite.drops` lists. Files lie in `benchmarks/.data`, or in the folder that
`KERAS_RECSYS_BENCH_DATA` names.
"""

import contextlib
import functools
import gc
import os
import pathlib
import statistics
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from harness import Suite, clock, interleave, rested
from peers import PeerMissing, PeerProcess

BATCH, DIM, UNITS = 1024, 10, (256, 128, 64)
IDS, NUMBERS = 26, 13
STEPS = 5  # in a run of a race
NUM_BATCHES = 8
SHARD = 250_000
SEEDS = (0, 1, 2)
FOLDER = pathlib.Path(
    os.environ.get("KERAS_RECSYS_BENCH_DATA") or pathlib.Path(__file__).parent / ".data"
)

MODELS = (
    "lr",
    "fm",
    "ffm",
    "fnn",
    "deepfm",
    "dcn",
    "xdeepfm",
    "fibinet",
    "fibinet_plus",
    "wide_deep",
    "autoint",
    "dlrm",
)
DEEPCTR = ("fibinet", "deepfm", "dcn", "xdeepfm")
FUXICTR = ("fibinet", "deepfm")
SIZES = {"": 1_000, "_1e5": 100_000}

suite = Suite(
    "ctr",
    drops={
        "*_vs_fuxictr*": "its environment and its compilation take minutes",
        "*_1e5": "a step of the peers takes seconds",
        "xdeepfm_vs_deepctr": "its steps and compilations take minutes",
        "fibinet_vs_deepctr": "its first step takes a minute",
        "*_build": "DeepCTR's builds take minutes",
        "input_share_*": "an epoch of a million rows takes minutes",
        "memory_1e7": "ten million rows",
        "quality_*": "36 trainings",
    },
)


# --- Data and models ----------------------------------------------------------------


def generate(rows, vocab_size, seed):
    """Ids by a power law, numbers, and labels that depend on both."""
    import numpy as np

    rng = np.random.default_rng(seed)
    ids = rng.random((rows, IDS), "float32") ** 3
    ids = (ids * vocab_size).astype("int32")
    numbers = rng.normal(size=(rows, NUMBERS)).astype("float32")
    logits = numbers[:, 0] + (ids[:, 0] % 7 == ids[:, 1] % 7) - 1.5
    labels = rng.random(rows) < 1 / (1 + np.exp(-logits))
    return ids, numbers, labels.astype("float32")


def columns_of(ids, numbers):
    """Dict of the columns of generated rows."""
    columns = {f"c{i}": ids[:, i] for i in range(IDS)}
    return columns | {f"n{i}": numbers[:, i] for i in range(NUMBERS)}


def make_features(vocab_size, out_of_range="error"):
    """The features of the generated rows."""
    from keras_recsys.features import CategoricalFeature, NumericFeature

    return [
        *(
            CategoricalFeature(f"c{i}", vocab_size, out_of_range=out_of_range)
            for i in range(IDS)
        ),
        *(NumericFeature(f"n{i}") for i in range(NUMBERS)),
    ]


def make_model(name, features, numeric_inputs="dnn"):
    """A model of a builder, not compiled."""
    from keras_recsys import models

    settings = {"embedding_dim": DIM, "hidden_units": UNITS}
    if name in ("fibinet", "deepfm", "xdeepfm"):
        settings["numeric_inputs"] = numeric_inputs
    elif name == "dcn":
        settings["version"] = "v1"
    elif name == "dlrm":
        settings = {"embedding_dim": DIM, "top_units": UNITS}
    elif name == "lr":
        settings = {}
    elif name in ("fm", "ffm"):
        settings = {"embedding_dim": DIM if name == "fm" else 4}
    elif name == "autoint":
        settings = {"embedding_dim": DIM}
    return getattr(models, f"build_{name}")(features, **settings)


class Ours:
    """A compiled model of ours, and batches that are in memory."""

    def __init__(self, name, vocab_size, numeric_inputs="dnn", xla=False):
        import tensorflow as tf

        start = time.perf_counter()
        features = make_features(vocab_size, "nan" if xla else "error")
        self.model = make_model(name, features, numeric_inputs)
        self.model.compile("auto", "binary_crossentropy", jit_compile=xla)
        self.built = time.perf_counter() - start
        self.batches = []
        for seed in range(NUM_BATCHES):
            ids, numbers, labels = generate(BATCH, vocab_size, seed)
            x = {k: tf.constant(v) for k, v in columns_of(ids, numbers).items()}
            self.batches.append((x, tf.constant(labels[:, None])))
        self.done = 0
        start = time.perf_counter()
        self.model.make_train_function()
        self.step()
        self.first = time.perf_counter() - start

    def step(self):
        """Runs one training step and waits for its loss."""
        batch = self.batches[self.done % NUM_BATCHES]
        self.done += 1
        return float(self.model.train_function(iter([batch]))["loss"])

    def steps(self):
        """Runs the steps of one run."""
        for _ in range(STEPS):
            self.step()


def data_file(vocab_size):
    """The generated rows as the runners of the peers read them."""
    import numpy as np

    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"rows_{vocab_size}.npz"
    if not path.exists():
        parts = [generate(BATCH, vocab_size, seed) for seed in range(NUM_BATCHES)]
        ids, numbers, labels = (
            np.concatenate(part) for part in zip(*parts, strict=True)
        )
        sizes = np.full(IDS, vocab_size)
        np.savez(path, ids=ids, numbers=numbers, labels=labels, vocab_sizes=sizes)
    return path


# --- Races --------------------------------------------------------------------------

# Name of a mode of a peer, to the options of its runner.
DEEPCTR_MODES = {
    "Adam": ["--optimizer", "adam"],
    "legacy Adam": ["--optimizer", "legacy_adam"],
    "Adam, XLA": ["--optimizer", "adam", "--jit"],
}
FUXICTR_MODES = {
    "2 threads": ["--threads", "2"],
    "1 thread": ["--threads", "1"],
    "2 threads, gather": ["--threads", "2", "--bilinear-form", "gather"],
    "2 threads, compiled": ["--threads", "2", "--compile"],
}


def peer_modes(peer, model, is_large):
    """The modes of a peer that are tried for a model."""
    if peer == "deepctr":
        modes = dict(DEEPCTR_MODES)
        if model == "fibinet" or is_large:
            del modes["Adam, XLA"]
    else:
        modes = dict(FUXICTR_MODES)
        if model == "deepfm" or is_large:
            del modes["2 threads, gather"]
        if model == "fibinet" or is_large:
            del modes["2 threads, compiled"]
        if model == "fibinet":
            for name in ("2 threads", "1 thread"):
                modes[name] = [*modes[name], "--bilinear-form", "pairs"]
    return modes


def race(run, case, peer, model, size, suffix):
    """Finds the best mode of each side and races the two."""
    script = f"{peer}_ctr.py"
    numeric_inputs = "dnn" if peer == "deepctr" else "field"
    arguments = [data_file(size), "--model", model, "--embedding-dim", DIM]
    arguments += ["--hidden-units", ",".join(map(str, UNITS))]
    with contextlib.ExitStack() as stack:
        theirs = {}
        for mode, options in peer_modes(peer, model, bool(suffix)).items():
            process = stack.enter_context(
                PeerProcess(peer, script, *arguments, *options)
            )
            process.ask("warm")
            parameters = process.ask("build")["parameters"]
            process.ask("first_step")
            theirs[mode] = process.seconds(f"step {STEPS}")
            versions = process.ask("versions")
            versions.pop("seconds")
        ours = {
            "no XLA": Ours(model, size, numeric_inputs),
            **({} if suffix else {"XLA": Ours(model, size, numeric_inputs, xla=True)}),
        }
        own = {name: rested(clock(one.steps)) for name, one in ours.items()}
        theirs = {name: rested(function) for name, function in theirs.items()}
        tried = interleave({**theirs, **own}, 3, warmup=2, budget=120)
        typical = {name: statistics.median(times) for name, times in tried.items()}
        best, best_peer = min(own, key=typical.get), min(theirs, key=typical.get)
        times = run.interleave(
            {"ours": own[best], "peer": theirs[best_peer]}, budget=300, min_runs=7
        )
        rates = {name: BATCH * STEPS / t for name, t in typical.items()}
        return run.row(
            case,
            times["ours"],
            "rows/s",
            peer,
            times["peer"],
            amount=BATCH * STEPS,
            peer_versions=versions,
            note=f"ours {best}; {peer} {best_peer}",
            tried=rates,
            parameters=[ours[best].model.count_params(), parameters],
        )


@suite.cases(
    *(f"{m}_vs_deepctr{s}" for s in SIZES for m in DEEPCTR),
    *(f"{m}_vs_fuxictr{s}" for s in SIZES for m in FUXICTR),
)
def races(run):
    """Steps against the peers."""
    for suffix, size in SIZES.items():
        for peer, names in (("deepctr", DEEPCTR), ("fuxictr", FUXICTR)):
            for model in names:
                case = f"{model}_vs_{peer}{suffix}"
                if not run.wants(case):
                    continue
                try:
                    yield race(run, case, peer, model, size, suffix)
                except PeerMissing as missing:
                    yield run.row(case, None, "rows/s", peer, reason=str(missing))
                gc.collect()


@suite.cases(*(f"{model}_build" for model in MODELS))
def builds(run):
    """Building, compiling and the first step."""
    for model in MODELS:
        case = f"{model}_build"
        if not run.wants(case):
            continue
        Ours("lr", 10)  # what TensorFlow does the first time only
        functions = {"ours": functools.partial(build_seconds, model)}
        versions, peer = {}, None
        with contextlib.ExitStack() as stack:
            if model in DEEPCTR:
                peer = "deepctr"
                options = ["--model", model, "--embedding-dim", DIM]
                options += ["--optimizer", "legacy_adam"]
                process = stack.enter_context(
                    PeerProcess("deepctr", "deepctr_ctr.py", data_file(1_000), *options)
                )
                process.ask("warm")
                versions = process.ask("versions")
                versions.pop("seconds")

                def theirs(process=process):
                    parts = (process.ask(part) for part in ("build", "first_step"))
                    return sum(float(part["seconds"]) for part in parts)

                functions["peer"] = theirs
            times = run.interleave(functions, warmup=0, budget=20)
        yield run.row(
            case, times["ours"], "s", peer, times.get("peer"), peer_versions=versions
        )


def build_seconds(model):
    """Seconds to build, compile and take the first step."""
    import keras

    keras.backend.clear_session()
    ours = Ours(model, 1_000)
    return ours.built + ours.first


# --- Streams ------------------------------------------------------------------------


def files(rows):
    """Paths of Parquet files of so many rows, generated where they are missing."""
    import tensorflow as tf

    from keras_recsys.data import write_parquet

    paths = []
    for shard in range(-(-rows // SHARD)):
        folder = FOLDER / f"shard_{shard:03}"
        if not folder.exists():
            ids, numbers, labels = generate(SHARD, 1_000, 1_000 + shard)
            dataset = tf.data.Dataset.from_tensor_slices(
                (columns_of(ids, numbers), labels[:, None])
            )
            write_parquet(dataset.batch(8192), folder)
        paths += sorted(map(str, folder.glob("*.parquet")))
    return paths


def stream(paths):
    """The training stream of some files: interleaved, shuffled, in batches."""
    from keras_recsys.data import read_parquet

    schema = {f"c{i}": "int32" for i in range(IDS)}
    schema |= {f"n{i}": "float32" for i in range(NUMBERS)}
    return read_parquet(
        paths, schema, label="label", batch_size=BATCH, shuffle_rows=65_536, seed=0
    )


@suite.cases(*(f"input_share_{model}" for model in MODELS))
def shares(run):
    """An epoch of a million rows from disk."""
    for model in MODELS:
        case = f"input_share_{model}"
        if not run.wants(case):
            continue
        ours = Ours(model, 1_000)
        waits, wholes = [], []
        batches = iter(stream(files(1_000_000)))
        start = time.perf_counter()
        while True:
            begin = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                break
            got = time.perf_counter()
            float(ours.model.train_function(iter([batch]))["loss"])
            waits.append(got - begin)
            wholes.append(time.perf_counter() - begin)
        seconds = time.perf_counter() - start
        yield run.row(
            case,
            waits,
            "ms",
            "whole step",
            wholes,
            ratio=sum(waits) / sum(wholes),
            rows_per_second=1_000_000 / seconds,
        )
        del ours
        gc.collect()


def train_from_disk(rows):
    """What a process of a memory case does."""
    model = make_model("deepfm", make_features(1_000))
    model.compile("auto", "binary_crossentropy")
    dataset = stream(files(max(rows, SHARD)))
    model.fit(dataset.take(-(-rows // BATCH)), verbose=0, shuffle=False)


@suite.cases("memory_1e6", "memory_1e7")
def memory(run):
    """Peak memory of an epoch from disk."""
    for case, rows in (("memory_1e6", 10**6), ("memory_1e7", 10**7)):
        if run.wants(case):
            files(rows)
            sizes = run.memory(train_from_disk, {"rows": BATCH}, {"rows": rows}, runs=1)
            yield run.row(case, sizes, "MB")


# --- Quality ------------------------------------------------------------------------


def quality_task():
    """The task of the quickstart, with a row for each of the same movies."""
    import dataclasses

    from keras_recsys._quickstart.clicks import load_ratings, make_task
    from keras_recsys.data import Vocabulary

    task = make_task(load_ratings(None, None))
    movies = Vocabulary.fit(task.train["movie_id"], max_size=2000)
    features = [
        dataclasses.replace(
            f, vocab_size=movies.size, embedding="full", num_buckets=None
        )
        if f.name == "movie_id"
        else f
        for f in task.features
    ]
    vocabularies = {**task.vocabularies, "movie_id": movies}
    return dataclasses.replace(task, features=features, vocabularies=vocabularies)


# Learning rate, weight decay and epochs of AdamW, chosen with seed 0 on the last tenth
# of each user's training rows.
TRAINING = {"lr": (0.02, 0.1, 8), "fm": (0.003, 1.0, 8), "ffm": (0.002, 1.0, 6)}
DEEP_TRAINING = (0.001, 2.0, 8)


def make_quality_model(name, features, seed):
    """A compiled model for the ratings."""
    import keras

    from keras_recsys import models

    settings = {"linear_regularizer": keras.regularizers.L2(2e-5)}
    if name != "lr":
        settings["embedding_dim"] = 4 if name == "ffm" else 16
        settings["embeddings_regularizer"] = keras.regularizers.L2(1e-5)
    if name not in ("lr", "fm", "ffm"):
        key = "top_units" if name == "dlrm" else "hidden_units"
        settings |= {key: (128, 64), "dropout": 0.1, "seed": seed}
    if name in ("dcn", "autoint", "fibinet_plus", "dlrm", "fnn"):
        del settings["linear_regularizer"]
    model = getattr(models, f"build_{name}")(features, **settings)
    rate, decay, _ = TRAINING.get(name, DEEP_TRAINING)
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=decay), "binary_crossentropy"
    )
    return model


def train_and_score(name, task, seed):
    """AUC and log loss of the test rows."""
    import keras

    from keras_recsys import data
    from keras_recsys.analysis import evaluate_clicks

    keras.utils.set_random_seed(seed)
    train, test = (
        data.make_dataset(
            task.encode(frame),
            task.features,
            labels=frame["liked"],
            batch_size=512,
            **options,
        )
        for frame, options in (
            (task.train, {"shuffle": True, "seed": seed}),
            (task.test, {}),
        )
    )
    model = make_quality_model(name, task.features, seed)
    *_, epochs = TRAINING.get(name, DEEP_TRAINING)
    model.fit(train, epochs=epochs, shuffle=False, verbose=0)
    return evaluate_clicks(task.test["liked"], model.predict(test, verbose=0))


@suite.cases(*(f"quality_{model}" for model in MODELS))
def quality(run):
    """AUC of every builder on the ratings."""
    from keras_recsys._quickstart.clicks import (
        make_logistic_regression,
        without_missing,
    )
    from keras_recsys.analysis import evaluate_clicks

    task = quality_task()
    baseline = make_logistic_regression()
    baseline.fit(without_missing(task.train), task.train["liked"])
    scores = baseline.predict_proba(without_missing(task.test))[:, 1]
    base = evaluate_clicks(task.test["liked"], scores)
    for name in MODELS:
        if not run.wants(f"quality_{name}"):
            continue
        reports = [train_and_score(name, task, seed) for seed in SEEDS]
        aucs = [report.auc for report in reports]
        auc = statistics.mean(aucs)
        yield run.row(
            f"quality_{name}",
            aucs,
            "AUC",
            "logistic regression",
            value=auc,
            spread=[min(aucs), max(aucs)],
            peer_value=base.auc,
            ratio=(1 - base.auc) / (1 - auc),
            log_loss=statistics.mean(report.log_loss for report in reports),
            peer_log_loss=base.log_loss,
        )


if __name__ == "__main__":
    suite.main()
