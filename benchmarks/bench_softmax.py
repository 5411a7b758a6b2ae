"""Softmax-CPR: time of a step, memory, the PyTorch peer, and quality.

    python benchmarks/bench_softmax.py [--quick] [--json OUT] [--case REGEX] [--seeds N]

A batch has 128 rows of 50 items without padding, vectors have width 64, and the encoder
is SASRec with two layers and the defaults of its builder, or GRU4Rec where it is named.
Each side of a race has its best mode, TensorFlow's graph or XLA, found in a few rounds
before it; with `--quick` it is the graph, which on a CPU wins nearly always.
TensorFlow and the peer have two threads each.

`{head}_vs_softmax_train_{items}`: a whole step, the loss of the item after the last
one, all gradients, and the Adam of Keras, over that of our own plain softmax.
`_head_`: the head and its loss alone, given the states: gradients of the states, the
table and all weights. `_score_`: the logits of all items. `mos` is the form of
the published runs, the maximum of three softmaxes, `mos_dynamic` the learned mixture.

`all_positions_vs_prefix`: targets a second in training with a target for each step,
over one target a row, 12,000 items; `all_positions_cpr100_vs_prefix` with CPR:100 on
both sides.

`memory_cpr100_200000`: peak memory of training with CPR:100, 200,000 items and a batch
of 256, less that with 1,000 items, 8 rows and 8 steps; `_logits`: the same less what
the table and the two slots of Adam hold alone, and as a number of copies of the logits
of one batch. `_xla`: both in XLA, not in the graph.

`torch_{head}_{train,score}_12000`, `torch_gru4rec_{head}_train_12000`: the peer of
`runners/cpr_torch.py` over ours, in turn; its scores are probabilities.

`epoch_{head}_beauty`: an epoch of the reference setting below, `fit` on
`make_sequence_dataset` against the peer on the same rows.

`reference_{data}_{head}`: NDCG@10 on the test, mean of the seeds, in the setting in
which the published classes were measured for this project: width 32, 20 items, one row
a target, positions counted from the end; the ratio is ours over that figure, and the
spread the least and the largest. `--seeds` says how many there are, 1 to 3, by default
3. `softmax_wodup` is softmax, ranked without the items of the row.

`quality_{data}_{encoder}_{head}`: NDCG@10 on the test among all items, over softmax. A
target for each step, one seed, and the epochs of `PLANS`, with an end after three that
were no better. `geomean_{copying,excluding}_{encoder}_{head}`: the geometric mean over
yoochoose and tms, in which users copy, and over beauty, toys and video, in which
nobody takes an item twice.

`lastslot_yoochoose_{head}`: the reference setting, but reading the last slot of rows
that are filled up behind, as the published code does, over reading the last item. The
fillers are an item more, see `measure_last_slot`. The published code hides them from
the attention; it does not hide them from the head, nor do we here.

Rows of quality say HR@10, MRR@10, NDCG@10 of repeated and of new targets, and seconds
of an epoch too. The full run takes some hours, of which quality takes most, and goes on
where it was stopped. `--quick` drops what `suite.drops` lists. Sequences are read from
the folder that `KERAS_RECSYS_DATA` names, by default `../shared/data`.
"""

import argparse
import functools
import gc
import json
import os
import pathlib
import statistics
import tempfile

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import softmax_models as models
import softmax_quality as quality
from harness import Suite, clock, interleave, rested
from peers import PeerProcess
from softmax_models import BATCH, DIM, LENGTH, PEER_METHODS, THREADS
from softmax_quality import Plan

ITEMS = (12_000, 200_000)
PARTS = {
    "train": models.train_calls,
    "head": models.head_calls,
    "score": models.score_calls,
}
# Names in the cases of time, and the heads that they stand for.
RACED = {
    "c": "c",
    "cp": "cp",
    "cpr100": "cpr100",
    "cpr100_mi": "cpr100_mi",
    "cpr3_mi": "cpr3_mi",
    "mos": "mos_max",
    "mos_dynamic": "mos_dynamic",
}


class SoftmaxSuite(Suite):
    """A suite with seeds, whose cases can read the rows that are there."""

    seeds = (0, 1, 2)
    json = None

    def main(self, argv=None):
        """Takes `--seeds`, and leaves the rest to `Suite`."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--seeds", type=int, choices=(1, 2, 3), default=3)
        known, rest = parser.parse_known_args(argv)
        self.seeds = tuple(range(known.seeds))
        self.json = self._parse(rest).json
        self.made = {}
        models.limit_threads()
        return super().main(rest)

    def keep(self, row):
        """Remembers a row for the cases that are made of it."""
        self.made[row["case"]] = row["value"]
        return row

    def value_of(self, case):
        """The value of a row of this run or of the file, `None` if there is none."""
        if case not in self.made and self.json is not None and self.json.exists():
            rows = json.loads(self.json.read_text())
            return {row["case"]: row["value"] for row in rows}.get(case)
        return self.made.get(case)


suite = SoftmaxSuite(
    "softmax",
    drops={
        "*_200000*": "takes a quarter of an hour",
        "epoch_*": "an epoch takes a minute",
        "reference_*": "trainings of half an hour",
        "quality_*": "trainings of more than an hour",
        "geomean_*": "made of the quality cases",
        "lastslot_*": "trainings of some minutes",
    },
)


# --- Time ---------------------------------------------------------------------------


def best_call(part, head, num_items, *, encoder="sasrec", quick=False):
    """The faster mode of a part of the work, timed, and its name."""
    more = () if part == "head" else (encoder,)
    return fastest(PARTS[part](head, num_items, *more), quick)


def fastest(calls, quick):
    """The call of the least median time among modes, timed, and its name."""
    calls = {mode: clock(call) for mode, call in calls.items()}
    if quick:
        return calls["graph"], "graph"
    times = interleave(calls, 3, warmup=2, budget=40, min_runs=2)
    mode = min(calls, key=lambda name: statistics.median(times[name]))
    return calls[mode], mode


# The cases of the peer race calls of the first group again.
kept_call = functools.cache(best_call)


def call_for(part, head, num_items, **options):
    """`best_call`; those of small tables are kept."""
    make = kept_call if num_items == ITEMS[0] else best_call
    return make(part, head, num_items, **options)


@suite.cases(
    *(
        f"{name}_vs_softmax_{part}_{items}"
        for items in ITEMS
        for part in PARTS
        for name in RACED
    )
)
def races(run):
    """Every head against the plain softmax."""
    for items in ITEMS:
        for part in PARTS:
            cases = {
                f"{name}_vs_softmax_{part}_{items}": head
                for name, head in RACED.items()
            }
            if not run.wants(*cases):
                continue
            base, base_mode = call_for(part, "softmax", items, quick=run.quick)
            for case, head in cases.items():
                if not run.wants(case):
                    continue
                ours, mode = call_for(part, head, items, quick=run.quick)
                times = run.interleave({"ours": ours, "base": base}, budget=200)
                yield run.row(
                    case,
                    times["ours"],
                    "ms",
                    "softmax",
                    times["base"],
                    note=f"{mode}, softmax {base_mode}",
                )
                del ours
                gc.collect()


@suite.cases("all_positions_vs_prefix", "all_positions_cpr100_vs_prefix")
def positions(run):
    """A target for each step against a target a row."""
    for case, head in (
        ("all_positions_vs_prefix", "softmax"),
        ("all_positions_cpr100_vs_prefix", "cpr100"),
    ):
        if not run.wants(case):
            continue
        sides = {
            kind: fastest(models.prefix_calls(head, ITEMS[0], kind == "all"), run.quick)
            for kind in ("all", "prefix")
        }
        times = run.interleave(
            {kind: call for kind, (call, _) in sides.items()}, budget=200
        )
        yield run.row(
            case,
            [seconds / (BATCH * LENGTH) for seconds in times["all"]],
            "targets/s",
            "one target a row",
            [seconds / BATCH for seconds in times["prefix"]],
            note=", ".join(f"{kind} {mode}" for kind, (_, mode) in sides.items()),
        )
        gc.collect()


# --- Memory -------------------------------------------------------------------------

LARGE = {"name": "cpr100", "num_items": ITEMS[1], "batch_size": 256, "length": LENGTH}
SMALL = {"name": "cpr100", "num_items": 1000, "batch_size": 8, "length": 8}
MEMORY = "memory_cpr100_200000"


@suite.cases(MEMORY, f"{MEMORY}_logits", f"{MEMORY}_xla", f"{MEMORY}_xla_logits")
def memory(run):
    """Peak memory of training, with the weights and without."""
    logits_bytes = 4 * LARGE["batch_size"] * LARGE["num_items"]
    held = None
    for mode, case in ((False, MEMORY), (True, f"{MEMORY}_xla")):
        if not run.wants(case, f"{case}_logits"):
            continue
        sizes = run.memory(
            models.run_steps, {**SMALL, "xla": mode}, {**LARGE, "xla": mode}
        )
        copies = statistics.median(sizes) / logits_bytes
        yield run.row(case, sizes, "bytes", copies=copies)
        if held is None:  # the weights and the two slots of Adam
            held = run.memory(
                models.hold_weights,
                {"name": "cpr100", "num_items": SMALL["num_items"], "num_copies": 3},
                {"name": "cpr100", "num_items": LARGE["num_items"], "num_copies": 3},
                runs=1,
            )[0]
        sizes = [size - held for size in sizes]
        copies = statistics.median(sizes) / logits_bytes
        yield run.row(
            f"{case}_logits",
            sizes,
            "bytes",
            weights_bytes=held,
            copies=copies,
            note=f"{copies:.2f} copies of the logits, float32",
        )


# --- The peer -----------------------------------------------------------------------

GRU_HEADS = ("softmax", "cpr100_mi")
PEER_CASES = {
    **{
        f"torch_{name}_{part}_{ITEMS[0]}": ("sasrec", head, part)
        for name, head in {"softmax": "softmax", **RACED}.items()
        if name != "mos_dynamic"
        for part in ("train", "score")
    },
    **{
        f"torch_gru4rec_{head}_train_{ITEMS[0]}": ("gru4rec", head, "train")
        for head in GRU_HEADS
    },
}
PEER_COMMANDS = {"train": "step", "score": "predict"}


def open_peer(encoder, num_items, **sizes):
    """The PyTorch peer, with arguments of the runner in `sizes`."""
    sizes = {"num_ids": num_items + 1, "threads": THREADS, **sizes}
    words = [f"--{name.replace('_', '-')}={size}" for name, size in sizes.items()]
    return PeerProcess("torch", "cpr_torch.py", f"--encoder={encoder}", *words)


@suite.cases(*PEER_CASES)
def torch_races(run):
    """The PyTorch peer and ours in turn."""
    for encoder in ("sasrec", "gru4rec"):
        cases = {case: key for case, key in PEER_CASES.items() if key[0] == encoder}
        if not run.wants(*cases):
            continue
        sizes = {"length": LENGTH, "width": DIM, "batch_size": BATCH}
        with open_peer(encoder, ITEMS[0], **sizes) as peer:
            versions = {"torch": peer.ask("versions")["torch"]}
            for case, (_, head, part) in cases.items():
                if not run.wants(case):
                    continue
                ours, mode = call_for(
                    part, head, ITEMS[0], encoder=encoder, quick=run.quick
                )
                method = PEER_METHODS[head]
                peer.ask(f"build {method}")
                theirs = peer.seconds(f"{PEER_COMMANDS[part]} {method}")
                times = run.interleave(
                    {"ours": rested(ours), "peer": rested(theirs)}, budget=200
                )
                yield run.row(
                    case,
                    times["ours"],
                    "ms",
                    "PyTorch",
                    times["peer"],
                    peer_versions=versions,
                    note=mode,
                )


# --- The reference setting ----------------------------------------------------------

REFERENCE_PLANS = {
    "beauty": Plan(batch_size=256, rate=1e-3, epochs=3),
    "tms": Plan(batch_size=256, rate=2e-3, epochs=2, steps=700),
    "yoochoose": Plan(batch_size=128, rate=2e-3, epochs=10),
}
# The figure of Softmax + C on yoochoose is of another width.
WIDE_PLAN = Plan(batch_size=128, rate=1e-3, epochs=6, width=64)
REFERENCE_HEADS = ("softmax", "c", "cpr100_mi")
FIGURES = {
    ("beauty", "softmax"): 0.0186,
    ("beauty", "softmax_wodup"): 0.0207,
    ("beauty", "c"): 0.0213,
    ("beauty", "cpr100_mi"): 0.0216,
    ("tms", "softmax"): 0.3562,
    ("tms", "softmax_wodup"): 0.1173,
    ("tms", "cpr100_mi"): 0.4317,
    ("yoochoose", "softmax"): 0.3845,
    ("yoochoose", "softmax_wodup"): 0.1145,
    ("yoochoose", "c"): 0.3854,
    ("yoochoose", "cpr100_mi"): 0.3811,
}
LAST_SLOT_FIGURES = {"softmax": 0.2546, "cpr100_mi": 0.3587}


def rows_of(head):
    """The names of the rows that the training of a head gives, and their kinds."""
    names = {head: "all"}
    return {**names, f"{head}_wodup": "wodup"} if head == "softmax" else names


def reference_plan(name, head):
    """The plan of a head on a data set."""
    wide = (name, head) == ("yoochoose", "c")
    return WIDE_PLAN if wide else REFERENCE_PLANS[name]


def quality_row(run, case, outcomes, kind, peer=None, figure=None, **more):
    """A row of NDCG@10, whose ratio is ours over that of the peer."""
    values = [outcome.reports[kind].ndcg for outcome in outcomes]
    mean = statistics.mean(values)
    more |= quality.fields_of(outcomes, kind)
    more |= {"peer_value": figure, "value": mean, "spread": [min(values), max(values)]}
    if figure is not None:
        more["ratio"] = mean / figure
    return suite.keep(run.row(case, values, "NDCG@10", peer, **more))


@functools.cache
def reference_outcomes(name, head, seeds):
    """The outcomes of a head in the reference setting, one a seed."""
    plan = reference_plan(name, head)
    options = {"bucket": False, "pad_to_max_len": True}
    return [
        quality.measure(name, "sasrec", head, plan, seed, **options) for seed in seeds
    ]


@suite.cases("epoch_softmax_beauty", "epoch_cpr100_mi_beauty")
def epochs(run):
    """An epoch of training, ours and the peer's, on the same rows."""
    from keras_recsys.data import make_sequence_dataset

    plan = REFERENCE_PLANS["beauty"]
    sequences = quality.read("beauty")
    rows = make_sequence_dataset(
        sequences, max_len=plan.max_len, batch_size=plan.batch_size, seed=0
    )
    sizes = {
        "length": plan.max_len,
        "width": plan.width,
        "batch_size": plan.batch_size,
        "learning_rate": plan.rate,
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        open_peer("sasrec", sequences.num_items, **sizes) as peer,
    ):
        path = pathlib.Path(folder) / "rows.npz"
        num_rows = quality.write_rows(sequences, plan, path)
        versions = {"torch": peer.ask("versions")["torch"]}
        for head in ("softmax", "cpr100_mi"):
            case = f"epoch_{head}_beauty"
            if not run.wants(case):
                continue
            model = models.make_model(
                head, sequences.num_items, **plan.settings("sasrec")
            )
            model.compile(optimizer="adam", jit_compile=False)
            fit = functools.partial(model.fit, rows, epochs=1, shuffle=False, verbose=0)
            method = PEER_METHODS[head]
            peer.ask(f"build {method}")
            fit(steps_per_epoch=50)  # traced, not timed
            peer.ask(f"epoch {method} {path} 50")
            times = run.interleave(
                {
                    "ours": rested(clock(fit)),
                    "peer": rested(peer.seconds(f"epoch {method} {path}")),
                },
                warmup=0,
                budget=240,
            )
            yield run.row(
                case,
                times["ours"],
                "s",
                "PyTorch",
                times["peer"],
                peer_versions=versions,
                rows=num_rows,
                note="graph, rows of like length together; the peer on rows of 20",
            )


@suite.cases(
    *(
        f"reference_{name}_{row}"
        for name in REFERENCE_PLANS
        for head in REFERENCE_HEADS
        for row in rows_of(head)
    )
)
def reference(run):
    """NDCG@10 against what the published classes reached."""
    for name in REFERENCE_PLANS:
        for head in REFERENCE_HEADS:
            cases = {f"reference_{name}_{row}": row for row in rows_of(head)}
            if not run.wants(*cases):
                continue
            outcomes = reference_outcomes(name, head, suite.seeds)
            for case, row in cases.items():
                figure = FIGURES.get((name, row))
                yield quality_row(
                    run,
                    case,
                    outcomes,
                    rows_of(head)[row],
                    figure and "published classes",
                    figure,
                )


@suite.cases("lastslot_yoochoose_softmax", "lastslot_yoochoose_cpr100_mi")
def last_slot(run):
    """What reading the last slot, padding or not, does to a model."""
    for head, published in LAST_SLOT_FIGURES.items():
        case = f"lastslot_yoochoose_{head}"
        if not run.wants(case):
            continue
        plan = REFERENCE_PLANS["yoochoose"]
        outcomes = [
            quality.measure_last_slot("yoochoose", head, plan, seed)
            for seed in suite.seeds
        ]
        item = suite.value_of(f"reference_yoochoose_{head}")
        if item is None:
            base = reference_outcomes("yoochoose", head, suite.seeds)
            item = statistics.mean(one.reports["all"].ndcg for one in base)
        yield quality_row(
            run,
            case,
            outcomes,
            "all",
            "last item",
            item,
            published_classes=published,
        )


# --- Quality ------------------------------------------------------------------------

COPYING, EXCLUDING = ("yoochoose", "tms"), ("beauty", "toys", "video")
GROUPS = {"copying": COPYING, "excluding": EXCLUDING}
ENCODERS = ("sasrec", "gru4rec")
FEW = ("softmax", "c", "cpr100_mi")
MANY = (*FEW, "cp", "cpr100", "cpr3_mi", "mos_dynamic", "mos_max")
QUALITY_HEADS = {
    "yoochoose": MANY,
    "beauty": MANY,
    "tms": FEW,
    "toys": FEW,
    "video": FEW,
}
TRAINING = {"max_len": 50, "width": 64, "align": "first", "targets": "all"}
# Epochs that all trainings together can afford: the time of an epoch grows with items
# times targets. Batches are small, for 1,400 steps or more.
PLANS = {
    "yoochoose": Plan(32, 2e-3, 10, patience=3, **TRAINING),
    "tms": Plan(32, 2e-3, 4, patience=3, **TRAINING),
    "beauty": Plan(32, 2e-3, 4, patience=3, **TRAINING),
    "toys": Plan(32, 2e-3, 4, patience=3, **TRAINING),
    "video": Plan(32, 2e-3, 2, patience=3, **TRAINING),
}
# What `quality` calls the heads.
NAMES = {"mos_dynamic": "mos"}


def heads_of(name, encoder):
    """The heads of a data set; RepeatNet is a head of the GRU."""
    more = (
        ("repeatnet",) if encoder == "gru4rec" and QUALITY_HEADS[name] == MANY else ()
    )
    return (*QUALITY_HEADS[name], *more)


def quality_cases(name, encoder, head):
    """Cases that one training gives, and the kinds of their rankings."""
    start = f"quality_{name}_{encoder}_"
    return {start + NAMES.get(row, row): kind for row, kind in rows_of(head).items()}


@suite.cases(
    *(
        case
        for name in PLANS
        for encoder in ENCODERS
        for head in heads_of(name, encoder)
        for case in quality_cases(name, encoder, head)
    )
)
def qualities(run):
    """NDCG@10 of every head."""
    for name, plan in PLANS.items():
        for encoder in ENCODERS:
            for head in heads_of(name, encoder):
                cases = quality_cases(name, encoder, head)
                if not run.wants(*cases):
                    continue
                outcomes = [quality.measure(name, encoder, head, plan, seed=0)]
                base = f"quality_{name}_{encoder}_softmax"
                for case, kind in cases.items():
                    figure = None if case == base else suite.value_of(base)
                    peer = None if figure is None else "softmax"
                    yield quality_row(run, case, outcomes, kind, peer, figure)
                gc.collect()


GEOMEANS = {
    f"geomean_{group}_{encoder}_{row}": [
        f"quality_{name}_{encoder}_{row}" for name in names
    ]
    for group, names in GROUPS.items()
    for encoder in ENCODERS
    for row in ("softmax", "softmax_wodup", "c", "cpr100_mi")
}


@suite.cases(*GEOMEANS)
def geomeans(run):
    """Geometric means of the quality rows."""
    from keras_recsys.analysis import geometric_mean

    for case, parts in GEOMEANS.items():
        if not run.wants(case):
            continue
        values = [suite.value_of(part) for part in parts]
        if None in values:
            missing = [p for p, v in zip(parts, values, strict=True) if v is None]
            yield run.row(
                case, None, "NDCG@10", "softmax", reason=f"no {', '.join(missing)}"
            )
            continue
        value = geometric_mean(values)
        group, encoder = case.split("_")[1:3]
        base = suite.value_of(f"geomean_{group}_{encoder}_softmax")
        more = {"value": value, "spread": [min(values), max(values)], "parts": values}
        if base is not None:
            more |= {"peer_value": base, "ratio": value / base if base else None}
        yield suite.keep(run.row(case, values, "NDCG@10", base and "softmax", **more))


if __name__ == "__main__":
    suite.main()
