"""The data, trainings and rankings of the quality cases of `bench_softmax`."""

import dataclasses
import functools
import os
import pathlib
import time

from harness import PeerMissing
from softmax_models import make_model

FOLDER = (
    pathlib.Path(
        os.environ.get("KERAS_RECSYS_DATA")
        or pathlib.Path(__file__).parent.parent.parent / "shared" / "data"
    )
    / "sequences"
)

# Reader and files. The first two are the data in which users copy.
SOURCES = {
    "yoochoose": (
        "read_sequence_sessions",
        ["yoochoose-clicks-100k_train_full.txt", "yoochoose-clicks-100k_test.txt"],
    ),
    "tms": ("read_sequence_baskets", ["TMS.json"]),
    "beauty": ("read_sequence_lines", ["Beauty.txt"]),
    "toys": ("read_sequence_lines", ["Toys_and_Games.txt"]),
    "video": ("read_sequence_pairs", ["Video.txt"]),
}
MIN_EVENTS = 5
NUM_VALIDATION_USERS = 4000
SPLIT_SEED = 2020


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a model is trained; the best epoch of the validation is kept.

    Args:
        batch_size: Rows in a batch.
        rate: Learning rate of Adam.
        epochs: The most epochs.
        steps: Batches of an epoch, `None` for all.
        max_len: Longest input.
        width: Width of items and states.
        align: Where SASRec counts positions from.
        targets: `"last"`, a row for each target, or `"all"`, a target for each step.
        patience: Epochs without a better one after which training ends, or `None`.
    """

    batch_size: int
    rate: float
    epochs: int
    steps: int | None = None
    max_len: int = 20
    width: int = 32
    align: str = "last"
    targets: str = "last"
    patience: int | None = None

    def settings(self, encoder):
        """Arguments of the builder of an encoder."""
        settings = {"embedding_dim": self.width, "max_len": self.max_len}
        if encoder == "sasrec":
            return {**settings, "intermediate_dim": 256, "align": self.align}
        return {**settings, "hidden_dim": self.width}


@functools.lru_cache(maxsize=2)
def read(name):
    """The sequences of a data set, those of fewer than 5 events left out."""
    from keras_recsys import data

    reader, files = SOURCES[name]
    paths = [FOLDER / file for file in files]
    for path in paths:
        if not path.exists():
            raise PeerMissing(f"no sequences/{path.name} in {FOLDER.parent.name}/")
    source = [str(path) for path in paths]
    sequences = getattr(data, reader)(source if len(source) > 1 else source[0])
    return sequences.select(sequences.lengths >= MIN_EVENTS)


def validation_users(sequences):
    """The first 4,000 of a fixed random order of the sequences."""
    import numpy as np

    order = np.random.default_rng(SPLIT_SEED).permutation(len(sequences))
    kept = np.zeros(len(sequences), bool)
    kept[order[:NUM_VALIDATION_USERS]] = True
    return sequences.select(kept)


def make_datasets(sequences, plan, seed, **options):
    """Rows of the training, of the validation and of the test."""
    from keras_recsys.data import make_sequence_dataset

    options |= {"max_len": plan.max_len}
    train = make_sequence_dataset(
        sequences,
        targets=plan.targets,
        batch_size=plan.batch_size,
        seed=seed,
        **options,
    )
    if plan.steps is not None:
        train = train.take(plan.steps)
    users = {"validation": validation_users(sequences), "test": sequences}
    ranked = [
        make_sequence_dataset(some, split, batch_size=256, **options)
        for split, some in users.items()
    ]
    return train, *ranked


@dataclasses.dataclass
class Outcome:
    """What a training gives.

    Args:
        reports: Dict from `"all"`, and `"wodup"` where it is asked for, to the report
            of the test: of all items, and of those that the row does not hold.
        best_epoch: The epoch that is kept, from 1 on.
        epochs: How many were run.
        seconds: Of each epoch but the first, which is traced; of that if there is none.
    """

    reports: dict
    best_epoch: int
    epochs: int
    seconds: list


def train_and_rank(model, datasets, plan, *, wodup=False, score=None):
    """Trains a model, keeps its best epoch, and ranks the targets of the test.

    Args:
        model: A model that is not compiled.
        datasets: What `make_datasets` returns.
        plan: A `Plan`.
        wodup: Whether to rank without the items of the row too. Defaults to `False`.
        score: Function from the logits to those that are ranked. Defaults to `None`,
            all.
    """
    import keras
    import tensorflow as tf

    from keras_recsys.analysis import evaluate_next_item

    train, validation, test = datasets

    ids = tf.TensorSpec((None, None), "int32")

    @functools.partial(tf.function, input_signature=[{"item_ids": ids}])
    def logits(inputs):
        found = model(inputs, training=False)["logits"]
        return found if score is None else score(found)

    model.compile(keras.optimizers.Adam(plan.rate), jit_compile=False)
    best, best_epoch, weights, seconds = -1.0, 0, None, []
    for epoch in range(1, plan.epochs + 1):
        start = time.perf_counter()
        model.fit(train, epochs=1, shuffle=False, verbose=0)
        seconds.append(time.perf_counter() - start)
        ndcg = evaluate_next_item(logits, validation).ndcg
        if ndcg > best:
            best, best_epoch, weights = ndcg, epoch, model.get_weights()
        elif plan.patience is not None and epoch - best_epoch >= plan.patience:
            break
    model.set_weights(weights)
    reports = {"all": evaluate_next_item(logits, test)}
    if wodup:
        reports["wodup"] = evaluate_next_item(logits, test, exclude_seen=True)
    return Outcome(reports, best_epoch, epoch, seconds[1:] or seconds)


def measure(name, encoder, head, plan, seed, **options):
    """The outcome of a head on a data set."""
    import keras

    sequences = read(name)
    keras.utils.set_random_seed(seed)
    model = make_model(head, sequences.num_items, encoder, **plan.settings(encoder))
    datasets = make_datasets(sequences, plan, seed, **options)
    return train_and_rank(model, datasets, plan, wodup=head == "softmax")


def measure_last_slot(name, head, plan, seed):
    """The outcome of a SASRec that reads the last slot, an item or not.

    Rows are filled up behind with an item of their own, the last id, which attention,
    history and softmax take for an item like the others; it is not ranked.
    """
    import keras
    import tensorflow as tf

    sequences = read(name)
    filler = sequences.num_items + 1
    keras.utils.set_random_seed(seed)
    settings = {**plan.settings("sasrec"), "align": "first"}
    model = make_model(head, filler, **settings)

    def filled(inputs, targets):
        ids = inputs["item_ids"]
        return {"item_ids": tf.where(ids == 0, filler, ids)}, targets

    datasets = make_datasets(sequences, plan, seed, bucket=False, pad_to_max_len=True)
    datasets = [dataset.map(filled) for dataset in datasets]
    return train_and_rank(model, datasets, plan, score=lambda logits: logits[:, :-1])


def fields_of(outcomes, kind="all"):
    """Means over seeds of the figures of a row, beside NDCG, and seconds of an epoch.

    Args:
        outcomes: List of `Outcome`, one a seed.
        kind: `"all"` or `"wodup"`.
    """
    reports = [outcome.reports[kind] for outcome in outcomes]

    def mean(values):
        values = list(values)
        return sum(values) / len(values)

    return {
        "hr": mean(report.hit_rate for report in reports),
        "mrr": mean(report.mrr for report in reports),
        "ndcg_repeated": _known(mean(report.repeated.ndcg for report in reports)),
        "ndcg_new": _known(mean(report.new.ndcg for report in reports)),
        "epochs": [outcome.epochs for outcome in outcomes],
        "best_epochs": [outcome.best_epoch for outcome in outcomes],
        "seconds_per_epoch": mean(s for one in outcomes for s in one.seconds),
    }


def _known(value):
    """`None` for the figure of no users, which JSON has no word for."""
    return None if value != value else value


def write_rows(sequences, plan, path):
    """Writes the training rows to a file that the peer reads, padded on the left."""
    import numpy as np

    from keras_recsys.data import make_sequence_dataset

    rows = make_sequence_dataset(
        sequences,
        max_len=plan.max_len,
        batch_size=4096,
        padding="left",
        shuffle=False,
        pad_to_max_len=True,
    )
    ids, targets = zip(
        *((inputs["item_ids"].numpy(), y.numpy()) for inputs, y in rows), strict=True
    )
    np.savez(path, item_ids=np.concatenate(ids), target=np.concatenate(targets))
    return sum(map(len, targets))
