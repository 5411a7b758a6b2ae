"""The quickstart of clicks: FiBiNET on movie ratings, and what it must beat."""

import dataclasses
import json
import os
import time

import keras

from keras_recsys import data, models, serving
from keras_recsys._quickstart.common import one_line, plot_history, progress
from keras_recsys.features import CategoricalFeature, SequenceFeature

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
NEXT = """The notebooks build it
step by step (notebooks/01_quickstart.ipynb), and others from its layers."""


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
    model = build_fibinet(task.features, options.seed)
    start = time.perf_counter()
    history = model.fit(
        train,
        epochs=options.epochs,
        shuffle=False,  # the data set shuffles
        verbose=progress(),
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
    """Writes all `FILES` into `folder`, which will be moved to `out`."""
    panels = {
        "log loss, training rows": {"training": history["log_loss"]},
        "AUC, training rows": {"training": history["auc"]},
    }
    plot_history(panels, folder / "history.png")
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


def run(options, folder, out):
    """Trains, compares, and writes all `FILES`.

    Args:
        options: The options of the command line.
        folder: `pathlib.Path` of an empty folder to write into.
        out: Path that the folder will have in the end.
    """
    with one_line(ImportError, OSError, TypeError, ValueError):
        task = make_task(load_ratings(options.data, options.rows))
    print(f"{len(task.train):,} ratings to train on, {len(task.test):,} to test")
    model, history, lines = compare(task, options)
    print(f"\nThe last tenth of each user's ratings, {len(task.test):,} test rows:")
    print(format_table(lines, task.test["liked"]))
    print("\nWriting and checking the SavedModel ...", flush=True)
    write_results(task, model, history, folder, out)
