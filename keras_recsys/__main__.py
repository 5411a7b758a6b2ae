"""The quickstart: `python -m keras_recsys quickstart`.

It trains a click model on real ratings, compares it with a logistic regression, and
leaves a folder with plots, the model and a SavedModel that is ready to serve.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # for what TensorFlow has yet to say

import keras

from keras_recsys import data, models, serving
from keras_recsys.features import CategoricalFeature, SequenceFeature
from keras_recsys.serving._place import move_into_place, workspace
from keras_recsys.version import __version__

LIKED = 4.0  # stars from which on a rating counts as a click
EPOCHS = 8
BATCH_SIZE = 512
SENET_KERNELS = ["reduction_kernel", "expansion_kernel"]
FILES = {
    "history.png": "log loss and AUC of the training rows, epoch by epoch",
    "senet_weights.png": "how much each feature counts, as SENET weighs it",
    "fibinet.keras": "the Keras model; it takes the ids of vocabularies.json",
    "vocabularies.json": "the maps from raw values to ids",
    "saved_model": "the served model; it takes raw values and needs TensorFlow alone",
    "client.py": "a client for it",
}


class QuickstartError(Exception):
    """What went wrong in one line, for the user to mend."""


@dataclasses.dataclass(frozen=True)
class Task:
    """The ratings, split, and what the columns of the model are.

    Args:
        train: `pandas.DataFrame` of raw columns and `liked`, the label.
        test: The last tenth of the ratings of each user, likewise.
        vocabularies: Dict from column to the `Vocabulary` of its training values.
        features: List of features, in the order of the fields.
    """

    train: object
    test: object
    vocabularies: dict
    features: list

    def encode(self, frame):
        """Columns of the model: raw values that have a vocabulary become ids."""
        columns = {}
        for feature in self.features:
            column = frame[feature.name]
            vocabulary = self.vocabularies.get(feature.name)
            columns[feature.name] = (
                vocabulary.encode(column) if vocabulary else column.to_numpy()
            )
        return columns


# Data.


def load_ratings(path, rows):
    """Ratings with the columns that the models read.

    Args:
        path: Folder for `load_movielens`, or `None`.
        rows: Number of ratings to keep, the first ones, or `None` for all.

    Returns:
        A `pandas.DataFrame`.
    """
    ratings = data.load_movielens(path)[:rows]
    seconds = ratings["timestamp"]
    return ratings.assign(
        hour=seconds // 3600 % 24,
        weekday=(seconds // 86400 + 3) % 7,  # from Monday; 1970 began on a Thursday
        liked=ratings["rating"] >= LIKED,
    )


def make_task(ratings):
    """Splits the ratings by time and fits vocabularies on the training part alone."""
    train, test = data.split_by_user_time(ratings)
    for part, frame in (("training", train), ("test", test)):
        if frame["liked"].nunique() < 2:
            raise ValueError(
                f"the {part} part must hold ratings below {LIKED:g} stars and others, "
                f"but has {len(frame)} rows of one kind; give more ratings"
            )

    def fit(column, **options):
        try:
            return data.Vocabulary.fit(train[column], **options)
        except ValueError as error:
            raise ValueError(f"column {column!r} of the ratings: {error}") from error

    vocabularies = {
        "user_id": fit("user_id"),
        # Movies with few ratings share the id for unseen ones, which is thereby
        # trained. Ids are ordered by count, so the 1000 most rated movies have a
        # remainder row that only rarer ones read as well.
        "movie_id": fit("movie_id", max_size=2000),
        "genres": fit("genres", separator="|"),
        "year": fit("year"),
    }
    size = {name: vocabulary.size for name, vocabulary in vocabularies.items()}
    features = [
        CategoricalFeature("user_id", size["user_id"]),
        CategoricalFeature(
            "movie_id", size["movie_id"], embedding="qr", num_buckets=1000
        ),
        SequenceFeature("genres", size["genres"]),
        CategoricalFeature("year", size["year"]),
        CategoricalFeature("hour", 24),
        CategoricalFeature("weekday", 7),
    ]
    return Task(train, test, vocabularies, features)


# Models. Their settings were chosen on the last tenth of each user's training ratings.


def build_fibinet(features, seed):
    """The click model, compiled."""
    model = models.build_fibinet(
        features,
        embedding_dim=16,
        hidden_units=(128, 64),
        reduction_ratio=1,
        senet_squeeze="max",
        senet_activation="sigmoid",
        embeddings_regularizer=keras.regularizers.L2(1e-5),
        linear_regularizer=keras.regularizers.L2(2e-5),
        seed=seed,
    )
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=2.0)
    optimizer.exclude_from_weight_decay(var_names=SENET_KERNELS)
    model.compile(
        optimizer,
        loss="binary_crossentropy",
        metrics=[
            keras.metrics.BinaryCrossentropy(name="log_loss"),
            keras.metrics.AUC(name="auc"),
        ],
    )
    return model


BUILDERS = {"fibinet": build_fibinet}


def make_logistic_regression():
    """The baseline: one weight for each user, movie, genre and year."""
    from sklearn.compose import make_column_transformer
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    one_hot = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["user_id", "movie_id", "year"]),
        (CountVectorizer(token_pattern=r"[^|]+", lowercase=False), "genres"),
    )
    return make_pipeline(one_hot, LogisticRegression(C=0.3, solver="liblinear"))


def without_missing(frame):
    """The frame as scikit-learn takes it: missing values are values of their own."""
    year = frame["year"].fillna(0).astype("int64")
    return frame.assign(year=year, genres=frame["genres"].fillna("").astype(object))


# Training and comparison.


def compare(task, options):
    """Fits the baselines and the model.

    Returns:
        The model, its training history, and the rows of the table: name, probabilities
        of the test rows, training rows read a second.
    """
    base_rate = task.train["liked"].mean()
    lines = [("base rate", [base_rate] * len(task.test), None)]

    baseline = make_logistic_regression()
    start = time.perf_counter()
    baseline.fit(without_missing(task.train), task.train["liked"])
    speed = len(task.train) / (time.perf_counter() - start)
    probability = baseline.predict_proba(without_missing(task.test))[:, 1]
    lines.append(("logistic regression", probability, speed))

    keras.utils.set_random_seed(options.seed)
    train = data.make_dataset(
        task.encode(task.train),
        task.features,
        labels=task.train["liked"],
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=options.seed,
    )
    test = data.make_dataset(task.encode(task.test), task.features)
    model = BUILDERS[options.model](task.features, options.seed)
    start = time.perf_counter()
    history = model.fit(
        train,
        epochs=options.epochs,
        shuffle=False,  # the data set shuffles
        verbose=1 if sys.stdout.isatty() else 2,
    ).history
    speed = options.epochs * len(task.train) / (time.perf_counter() - start)
    probability = model.predict(test, verbose=0)["probability"][:, 0]
    lines.append(("FiBiNET", probability, speed))
    return model, history, lines


def format_table(lines, liked):
    """The table of models and their figures on the test rows."""
    from sklearn.metrics import log_loss, roc_auc_score

    text = [f"{'':20}{'AUC':>8}{'log loss':>11}{'rows/s':>10}"]
    for name, probability, speed in lines:
        auc = roc_auc_score(liked, probability)
        loss = log_loss(liked, probability)
        rows = "-" if speed is None else f"{speed:,.0f}"
        text.append(f"{name:20}{auc:8.4f}{loss:11.4f}{rows:>10}")
    return "\n".join(text)


# What is written.


def plot_history(history, path):
    """Draws log loss and AUC of the training rows by epoch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    epochs = range(1, len(history["loss"]) + 1)
    names = {"log_loss": "log loss", "auc": "AUC"}
    for axes, (key, name) in zip(figure.subplots(1, 2), names.items(), strict=True):
        axes.plot(epochs, history[key], marker="o")
        axes.set(title=f"{name}, training rows", xlabel="epoch")
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path, dpi=100)


def field_weights(model, columns):
    """SENET weights of rows, `(num_rows, num_fields)`."""
    fields = keras.Model(model.input, model.get_layer("fibinet_fields").output)
    senet = model.get_layer("fibinet_senet")
    return senet(fields.predict(columns, verbose=0), return_weights=True)[1].numpy()


def plot_field_weights(weights, names, path):
    """Draws the mean SENET weight of each field and its spread over the rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    places = range(1, len(names) + 1)
    axes.bar(places, weights.mean(axis=0), alpha=0.4, label="mean")
    axes.axhline(0.5, color="grey", linestyle="--", label="at the start")
    axes.boxplot(weights, whis=(5, 95), showfliers=False)
    axes.set_xticks(places, names)
    axes.set(
        title="SENET weights of the test rows (boxes: quartiles, whiskers: 5 to 95 %)",
        ylabel="weight",
    )
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=100)


def write_results(task, model, history, folder, out):
    """Writes all `FILES` into `folder`, from where they will be moved to `out`."""
    plot_history(history, folder / "history.png")
    columns = task.encode(task.test)
    plot_field_weights(
        field_weights(model, columns),
        [feature.name for feature in task.features],
        folder / "senet_weights.png",
    )
    model.save(folder / "fibinet.keras")
    configs = {name: v.get_config() for name, v in task.vocabularies.items()}
    (folder / "vocabularies.json").write_text(json.dumps(configs), encoding="utf-8")
    report = serving.export(
        model,
        folder / "saved_model",
        vocabularies=task.vocabularies,
        sample={name: column[:100] for name, column in columns.items()},
        verbose=False,
    )
    served = os.path.join(out, "saved_model")
    client = report.snippet.replace(repr(report.path), repr(served))
    (folder / "client.py").write_text(client, encoding="utf-8")


def check_out(out, overwrite):
    """Absolute path of the folder to write, if the quickstart may.

    Raises:
        QuickstartError: If something is there that may not be replaced.
    """
    if not out:
        raise QuickstartError("--out must name a folder")
    path = os.path.realpath(out)
    if not os.path.lexists(path):
        return path
    if not os.path.isdir(path):
        raise QuickstartError(f"--out must be a folder, but {out} is a file")
    if os.path.commonpath([path, os.getcwd()]) == path:
        raise QuickstartError(f"--out must not be the folder you are in, but is {out}")
    present = os.listdir(path)
    if present and not overwrite:
        raise QuickstartError(
            f"--out {out} is not empty; choose another folder, or give --overwrite to "
            "replace an earlier quickstart"
        )
    strange = sorted(set(present) - set(FILES))
    if strange:
        raise QuickstartError(
            f"--overwrite replaces an earlier quickstart only, but {out} also holds "
            f"{strange[0]!r}"
        )
    return path


def check_packages():
    """Checks that what is imported only later is installed."""
    for name in ("matplotlib", "pandas", "sklearn"):
        if importlib.util.find_spec(name) is None:
            raise QuickstartError(
                f"the quickstart needs the package {name}; install it with: "
                'pip install "keras-recsys[data]"'
            )


@contextlib.contextmanager
def one_line(*errors):
    """Turns errors that the user can mend into a `QuickstartError`."""
    try:
        yield
    except errors as error:
        raise QuickstartError(" ".join(str(error).split())) from error


def quickstart(options):
    """Runs the quickstart and prints what it does; see `--help`."""
    check_packages()
    out = check_out(options.out, options.overwrite)
    with one_line(OSError), workspace(out) as room:
        with one_line(ImportError, OSError, TypeError, ValueError):
            task = make_task(load_ratings(options.data, options.rows))
        print(f"{len(task.train):,} ratings to train on, {len(task.test):,} to test")
        model, history, lines = compare(task, options)
        print(f"\nThe last tenth of each user's ratings, {len(task.test):,} test rows:")
        print(format_table(lines, task.test["liked"]))
        print("\nWriting and checking the SavedModel ...", flush=True)
        folder = room / "out"
        folder.mkdir()
        write_results(task, model, history, folder, out)
        move_into_place(folder, out, room)
    print(f"\nIn {options.out}:")
    for name, what in FILES.items():
        print(f"  {name:18} {what}")
    client = os.path.join(options.out, "client.py")
    print(
        f"\nNext: `python {client}` asks the served model. The notebooks build it\n"
        "step by step (notebooks/01_quickstart.ipynb), and others from its layers."
    )


# The command line.


class Parser(argparse.ArgumentParser):
    """Tells an error in one line and without the usage."""

    def error(self, message):
        """Ends the program with status 2."""
        self.exit(2, f"error: {message}\n")


def positive_int(text):
    """Reads an integer of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"must be a positive integer. Received: {text!r}"
        )
    return value


def seed_int(text):
    """Reads an integer of 32 bits."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(
            f"must be an integer from 0 to 2**32 - 1. Received: {text!r}"
        )
    return value


def parse(argv):
    """Reads the command line."""
    parser = Parser(
        prog="python -m keras_recsys",
        description="Keras 3 layers and models for recommenders and forecasting.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    command = commands.add_parser(
        "quickstart",
        help="train, compare and export a click model on real ratings",
        description=(
            "Trains a click model on the 100,004 MovieLens ratings of 1995 to 2016 (a "
            "click is a rating of 4 stars or more), compares it with a logistic "
            "regression on the last tenth of each user's ratings, and writes plots, "
            "the Keras model and a checked SavedModel. Takes about a minute on two "
            "cores."
        ),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument(
        "--model", choices=sorted(BUILDERS), default="fibinet", help="model to train"
    )
    command.add_argument(
        "--epochs",
        type=positive_int,
        default=EPOCHS,
        metavar="N",
        help="passes over the training rows",
    )
    command.add_argument(
        "--out", default="quickstart_out", metavar="DIR", help="folder to write"
    )
    command.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the folder of an earlier quickstart",
    )
    command.add_argument(
        "--seed",
        type=seed_int,
        default=0,
        metavar="S",
        help="seed of all that is random",
    )
    command.add_argument(
        "--data",
        metavar="PATH",
        help="folder of an unpacked ml-100k, ml-1m or ml-latest-small instead of the "
        "built-in ratings",
    )
    command.add_argument(
        "--rows",
        type=positive_int,
        metavar="N",
        help="use the first N ratings only, for a quick try",
    )
    return parser.parse_args(argv)


def main(argv=None):
    """Runs the command line.

    Args:
        argv: List of arguments, or `None` for those of the process.

    Returns:
        The exit status: 0, or 1 after an error, which is told in one line.
    """
    options = parse(argv)
    try:
        quickstart(options)
    except QuickstartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted, nothing was written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
