"""The quickstart of forecasting: Informer on hourly weather, and what it must beat."""

import dataclasses
import json
import os
import pathlib
import time

import keras
import numpy as np

from keras_recsys import analysis, data, models, serving
from keras_recsys._calendar import SCALED, Frequency
from keras_recsys._quickstart.common import one_line, plot_history, progress
from keras_recsys.serving._saved_model import quiet

EPOCHS = 2  # with a third the validation loss rises
LINEAR_EPOCHS = 10  # which cost a fraction of one of Informer
SEQ_LEN = 96  # four days of hours
PRED_LEN = 24
BATCH_SIZE = 64
MIN_ROWS = 10 * PRED_LEN  # so that each part has windows
# Steps of a season by unit: of a day, a week of days, a year of more.
SEASONS = dict(zip("sthdbwmq", (86400, 1440, 24, 7, 5, 52, 12, 4), strict=True))
NUM_PANELS = 4
FILE_RULES = (
    "The file for --data is a CSV file with a line of column names, the time first and "
    "what to forecast last; its rows follow each other at equal steps, and empty cells "
    "are missing values"
)
FILES = {
    "history.png": "MSE and MAE of Informer, training and validation, by epoch",
    "forecasts.png": "some test windows: what was known, what came, what was forecast",
    "informer.keras": "the Keras model; it takes scaled values and calendar features",
    "scaler.json": "mean and standard deviation of each column, for SeriesScaler",
    "saved_model": "the served model; it takes raw values and needs TensorFlow alone",
    "recent.csv": f"{SEQ_LEN} rows of raw values, to forecast from",
    "client.py": "a client that does so",
}
NEXT = """Put your own
rows into recent.csv, or train on your own series: --data FILE.csv."""
CLIENT = """\
import csv

import tensorflow as tf

loaded = tf.saved_model.load({served!r})  # keep it: it owns the weights

# The last known rows as they were measured, oldest first: the time, then the values.
with open({recent!r}, encoding="utf-8", newline="") as file:
    names, *rows = csv.reader(file)
values = [[float(cell) for cell in cells] for _, *cells in rows]

outputs = loaded.signatures["serving_default"](
    values=tf.constant([values], tf.float64),
    time=tf.constant([rows[-1][0]]),
)
print(names[-1], "after", rows[-1][0])
times, forecast = outputs["time"][0].numpy(), outputs["forecast"][0].numpy()
for time, value in zip(times, forecast[:, 0]):
    print(time.decode(), value.round(2))
"""


@dataclasses.dataclass(frozen=True)
class Task:
    """The series, split by time, and how they are scaled.

    Args:
        parts: Dict from `"train"`, `"validation"` and `"test"` to a list of
            `TimeSeries`, one for each place.
        scaler: `SeriesScaler` of the training rows.
    """

    parts: dict
    scaler: data.SeriesScaler

    @property
    def series(self):
        """A series; all have the same columns and frequency."""
        return self.parts["train"][0]

    @property
    def unit(self):
        """Unit of the frequency."""
        return Frequency.parse(self.series.frequency).unit

    @property
    def calendar(self):
        """Kind of the calendar features; years have none."""
        return "timeF" if SCALED[self.unit] else None

    @property
    def season(self):
        """Steps of a season, or `None` where it is no whole number that fits."""
        count = Frequency.parse(self.series.frequency).count
        steps, rest = divmod(SEASONS.get(self.unit, 0), count)
        return steps if not rest and 1 < steps <= SEQ_LEN else None

    @property
    def sizes(self):
        """Arguments that all builders take."""
        return {
            "num_channels": len(self.series.columns),
            "seq_len": SEQ_LEN,
            "pred_len": PRED_LEN,
            "num_outputs": 1,
        }

    def windows(self, part, calendar=True, **options):
        """Batches of the windows of a part; those with a missing value are left out."""
        return data.make_window_dataset(
            self.parts[part],
            seq_len=SEQ_LEN,
            pred_len=PRED_LEN,
            task="MS",
            scaler=self.scaler,
            embedding=self.calendar if calendar else None,
            batch_size=BATCH_SIZE,
            missing="skip",
            **options,
        )

    def count(self, part):
        """Number of windows of a part."""
        return sum(len(y) for _, y in self.windows(part))


# Data.


def load_series(path, rows):
    """The series to forecast.

    Args:
        path: CSV file of a series, or `None` for the weather.
        rows: Number of rows of each to keep, the first ones, or `None` for all.

    Returns:
        A list of `TimeSeries`.
    """
    if path is None:
        series = list(data.load_weather().values())
    elif os.path.isfile(path):
        try:
            series = [data.read_time_series(path, missing="keep")]
        except ValueError as error:
            raise ValueError(f"{error} {FILE_RULES}") from error
    else:
        raise ValueError(f"--data must be a file, but is {path}. {FILE_RULES}")
    series = [part[:rows] for part in series]
    shortest = min(len(part) for part in series)
    if shortest < MIN_ROWS:
        raise ValueError(
            f"a series must have {MIN_ROWS} rows or more, to be split into training, "
            f"validation and test, but has {shortest}; give more rows"
        )
    return series


def make_task(series):
    """Splits the series by time and fits the scaler on the training part alone."""
    splits = [data.split_time_series(part, seq_len=SEQ_LEN) for part in series]
    names = ("train", "validation", "test")
    parts = dict(zip(names, map(list, zip(*splits, strict=True)), strict=True))
    task = Task(parts, data.SeriesScaler.fit(parts["train"]))
    for name in names:
        try:
            task.windows(name)
        except ValueError as error:
            raise ValueError(f"the {name} part: {error}") from error
    return task


# Models. Their settings were chosen on the validation windows.


def build_informer(task, options):
    """The model."""
    keras.utils.set_random_seed(options.seed)
    return models.build_informer(
        **task.sizes,
        frequency=task.series.frequency,
        calendar_embedding=task.calendar,
        hidden_dim=64,
        num_heads=4,
        intermediate_dim=128,
        normalization="last",
        dropout=0.2,  # a year of weather is soon learned by heart
        seed=options.seed,
    )


def build_baselines(task, options):
    """Dict from name to what a forecaster must beat; the first two have no weights."""
    keras.utils.set_random_seed(options.seed)
    baselines = {"repeat last": models.build_repeat_last(**task.sizes)}
    if task.season is not None:
        baselines[f"last {task.season} steps again"] = models.build_seasonal_naive(
            **task.sizes, period=task.season
        )
    baselines["DLinear"] = models.build_dlinear(**task.sizes)
    baselines["NLinear"] = models.build_nlinear(**task.sizes)
    return baselines


# Training and comparison.


def fit(model, task, epochs, seed, verbose=0):
    """Trains a model, which keeps the weights of its best epoch on validation.

    Returns:
        The training history, and the seconds that it took.
    """
    model.compile(keras.optimizers.Adam(1e-3), loss="mse", metrics=["mae"])
    keep_best = keras.callbacks.EarlyStopping(
        patience=epochs, restore_best_weights=True
    )
    calendar = "calendar" in model.input
    start = time.perf_counter()
    history = model.fit(
        task.windows("train", calendar, shuffle=True, seed=seed),
        validation_data=task.windows("validation", calendar),
        epochs=epochs,
        shuffle=False,  # the data set shuffles
        callbacks=[keep_best],
        verbose=verbose,
    ).history
    return history, time.perf_counter() - start


def compare(task, options):
    """Fits the model and the baselines.

    Returns:
        Dict from name to model, the training history of Informer, and the table of all
        on the test windows, a `pandas.DataFrame`, the best first.
    """
    forecasters = build_baselines(task, options)
    seconds = {}
    for name in ("DLinear", "NLinear"):
        _, seconds[name] = fit(forecasters[name], task, LINEAR_EPOCHS, options.seed)
    forecasters["Informer"] = build_informer(task, options)
    history, seconds["Informer"] = fit(
        forecasters["Informer"],
        task,
        options.epochs,
        options.seed,
        verbose=progress(),
    )
    with quiet():  # each model is traced once, of which TensorFlow warns
        table = analysis.compare_forecasters(
            forecasters, task.windows("test"), scaler=task.scaler
        )
    table["seconds"] = [seconds.get(name) for name in table.index]
    return forecasters, history, table


def format_table(table, target):
    """The table of models and their figures on the test windows."""
    raw = f"MAE {target}"
    width = max(11, len(raw) + 3)
    text = [f"{'':22}{'MSE':>8}{'MAE':>9}{raw:>{width}}{'training':>11}"]
    for name, row in table.iterrows():
        seconds = "-" if np.isnan(row["seconds"]) else f"{row['seconds']:,.1f} s"
        text.append(
            f"{name:22}{row['mse']:8.4f}{row['mae']:9.4f}"
            f"{row['raw_mae']:{width}.4g}{seconds:>11}"
        )
    return "\n".join(text)


def format_winner(table):
    """Says which model is the best, and where Informer stands."""
    best, mse = table.index[0], table["mse"]
    if best == "Informer":
        other = table.index[1]
        share = 1 - mse["Informer"] / mse[other]
        return f"Informer wins: its MSE is {share:.1%} below that of {other}."
    share = 1 - mse[best] / mse["Informer"]
    place = list(table.index).index("Informer") + 1
    return (
        f"{best} wins: its MSE is {share:.1%} below that of Informer, which is number "
        f"{place} of {len(table)}."
    )


# What is written.


def plot_forecasts(task, forecasters, path):
    """Draws what models forecast of some test windows, spread over the test."""
    places = np.linspace(0, task.count("test") - 1, NUM_PANELS + 2)[1:-1]
    figure = analysis.plot_forecasts(
        forecasters,
        task.windows("test"),
        windows=places.astype("int64").tolist(),
        scaler=task.scaler,
        num_known=SEQ_LEN // 2,
    )
    for axes in figure.axes:
        axes.set_ylabel(task.series.target)
    figure.savefig(path, dpi=100)


def recent_rows(task):
    """The last rows without a missing value, as many as a forecast reads."""
    for series in reversed(task.parts["test"]):
        complete = ~np.isnan(series.values).any(axis=1)
        counts = np.convolve(complete, np.ones(SEQ_LEN), "valid")
        starts = np.flatnonzero(counts == SEQ_LEN)
        if len(starts):
            return series[starts[-1] : starts[-1] + SEQ_LEN]
    raise ValueError("the test part has no window")  # which `make_task` has refused


def write_rows(series, path):
    """Writes a series as a CSV file, the time first."""
    import pandas

    times = pandas.Index(series.times, name="time")
    frame = pandas.DataFrame(series.values, index=times, columns=series.columns)
    frame.to_csv(path, date_format="%Y-%m-%d %H:%M:%S")


def write_results(task, forecasters, history, table, folder, out):
    """Writes all `FILES` into `folder`, which will be moved to `out`."""
    panels = {
        name: {"training": history[key], "validation": history[f"val_{key}"]}
        for name, key in (("MSE", "loss"), ("MAE", "mae"))
    }
    plot_history(panels, folder / "history.png")
    linear = next(name for name in table.index if name in ("DLinear", "NLinear"))
    drawn = {name: forecasters[name] for name in ("Informer", linear)}
    plot_forecasts(task, drawn, folder / "forecasts.png")
    model = forecasters["Informer"]
    model.save(folder / "informer.keras")
    config = json.dumps(task.scaler.to_dict())
    (folder / "scaler.json").write_text(config, encoding="utf-8")
    write_rows(recent_rows(task), folder / "recent.csv")
    serving.export_forecaster(
        model,
        folder / "saved_model",
        scaler=task.scaler,
        frequency=task.series.frequency,
        dtype="float64",
        verbose=False,
    )
    out = pathlib.Path(out)
    client = CLIENT.format(
        served=str(out / "saved_model"), recent=str(out / "recent.csv")
    )
    (folder / "client.py").write_text(client, encoding="utf-8")


def run(options, folder, out):
    """Trains, compares, and writes all `FILES`.

    Args:
        options: The options of the command line.
        folder: `pathlib.Path` of an empty folder to write into.
        out: Path that the folder will have in the end.
    """
    with one_line(ImportError, OSError, TypeError, ValueError):
        task = make_task(load_series(options.data, options.rows))
    series, test = task.series, task.parts["test"]
    what = series.target
    if options.data is None:
        what = f"the temperature in °F ({what}) at {len(test)} airports of New York"
    print(
        f"To forecast: {what}, {PRED_LEN} steps ({series.frequency}) at once, from "
        f"{SEQ_LEN} steps of: {', '.join(series.columns)}\n"
        f"{task.count('train'):,} windows to train on, {task.count('validation'):,} to "
        f"validate, {task.count('test'):,} to test; the test begins on "
        f"{test[0].times[SEQ_LEN].astype('datetime64[D]')}"
    )
    forecasters, history, table = compare(task, options)
    print(f"\nAll {task.count('test'):,} test windows; MSE and MAE of scaled values:")
    print(format_table(table, series.target))
    print(format_winner(table))
    print("\nWriting and checking the SavedModel ...", flush=True)
    write_results(task, forecasters, history, table, folder, out)
