"""Forecasts of ETTh1: Informer against its published table and the linear models.

    python benchmarks/bench_forecasting.py [--quick] [--json OUT] [--case REGEX]

`etth1_{task}_{horizon}_{model}`: mean squared error on the test, mean of the seeds,
against the published table of Informer; above 1 is better than published. Tasks: `M`
forecasts all 7 columns, `S` the oil temperature from itself. Horizons are hours.
`spread` holds the least and the largest of the seeds, `mae` the mean absolute error.
`etth1_{task}_{horizon}_{model}_seed{n}` is one training.

All windows of the test count, on standardised values, with the scaler of the training
rows. Informer has the settings of the authors' scripts (history, start of the decoder,
factor; Adam at 1e-4, halved after each epoch from the third on, batches of 32, 6 epochs
at most, an end after three without a better validation, the best weights), but for the
width: `informer` is 128 wide with an inner width of 512, `informer_512` has the 512 and
2048 of the scripts. `dlinear` and `nlinear` read 336 hours, as
their authors do, at a rate of 1e-3 for 10 epochs at most. `repeat_last` and
`seasonal_naive`, the last day again, are not trained.

The full run takes less than two hours and goes on where it was stopped. `--quick` drops
what `suite.drops` lists. The file is read from the folder `ett` of
`KERAS_RECSYS_DATA`, by default `../shared/data`.
"""

import dataclasses
import os
import pathlib
import statistics
import tempfile
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from harness import PeerMissing, Suite
from softmax_models import limit_threads

FOLDER = (
    pathlib.Path(
        os.environ.get("KERAS_RECSYS_DATA")
        or pathlib.Path(__file__).parent.parent.parent / "shared" / "data"
    )
    / "ett"
)
SEEDS = (0, 1, 2)
BATCH_SIZE, PATIENCE = 32, 3
LINEAR_LEN, DAY = 336, 24


@dataclasses.dataclass(frozen=True)
class Script:
    """What the authors' scripts set for a table row, and what the table says.

    Args:
        seq_len: Known hours.
        label_len: Those that the decoder starts with.
        mse: Published mean squared error.
        mae: Published mean absolute error.
        factor: Sampling factor.
    """

    seq_len: int
    label_len: int
    mse: float
    mae: float
    factor: int = 5


SCRIPTS = {
    ("M", 24): Script(48, 48, 0.577, 0.549, factor=3),
    ("M", 48): Script(96, 48, 0.685, 0.625),
    ("M", 168): Script(168, 168, 0.931, 0.752),
    ("S", 24): Script(720, 168, 0.098, 0.247),
    ("S", 48): Script(720, 168, 0.158, 0.319),
    ("S", 168): Script(720, 336, 0.183, 0.346),
}
WIDTHS = {
    "informer": {"hidden_dim": 128, "intermediate_dim": 512},
    "informer_512": {"hidden_dim": 512, "intermediate_dim": 2048},
}
LINEAR = ("dlinear", "nlinear")
UNTRAINED = ("repeat_last", "seasonal_naive")
MODELS = {
    (task, horizon): ("informer", *LINEAR, *UNTRAINED) for task, horizon in SCRIPTS
}
MODELS["M", 24] = ("informer", "informer_512", *LINEAR, *UNTRAINED)

suite = Suite(
    "forecasting",
    drops={
        "*_informer*": "trainings of more than an hour",
        "*_168_*": "a minute each",
    },
)


def seeds_of(model):
    """The seeds of a model; the wide one is trained once."""
    if model in UNTRAINED:
        return ()
    return SEEDS[:1] if model == "informer_512" else SEEDS


def name_of(task, horizon, model, seed=None):
    """Name of a case."""
    end = "" if seed is None else f"_seed{seed}"
    return f"etth1_{task}_{horizon}_{model}{end}"


def series():
    """ETTh1.

    Raises:
        PeerMissing: If the file is not there.
    """
    from keras_recsys.data import load_ett

    if not (FOLDER / "ETTh1.csv").exists():
        raise PeerMissing(f"no ett/ETTh1.csv in {FOLDER.parent.name}/")
    return load_ett("ETTh1", FOLDER)


def make(task, horizon, model, seed):
    """A model, compiled, and how many epochs it is trained at most."""
    import keras

    from keras_recsys import models

    channels = 7 if task == "M" else 1
    sizes = {"seq_len": seq_len_of(task, horizon, model), "pred_len": horizon}
    if model in UNTRAINED:
        more = {"period": DAY} if model == "seasonal_naive" else {}
        built = getattr(models, f"build_{model}")(channels, **sizes, **more)
        built.compile(loss="mse")
        return built, 0
    keras.utils.set_random_seed(seed)
    if model in LINEAR:
        built = getattr(models, f"build_{model}")(channels, **sizes)
        built.compile(keras.optimizers.Adam(1e-3), loss="mse")
        return built, 10
    script = SCRIPTS[task, horizon]
    built = models.build_informer(
        channels,
        label_len=script.label_len,
        factor=script.factor,
        seed=seed,
        **sizes,
        **WIDTHS[model],
    )
    built.compile(
        keras.optimizers.Adam(1e-4, epsilon=1e-8), loss="mse", jit_compile=False
    )
    return built, 6


def seq_len_of(task, horizon, model):
    """Known hours of a model."""
    if model in LINEAR:
        return LINEAR_LEN
    return SCRIPTS[task, horizon].seq_len


def rate_of(epoch, rate):
    """The rate of an epoch, counted from 0: halved from the third epoch on."""
    return rate if epoch < 2 else rate / 2


def measure(task, horizon, model, seed=0):
    """Trains a model and evaluates it on all windows of the test.

    Returns:
        Dict of `mse`, `mae`, and, of a training, `epochs`, `best_epoch` and
        `seconds_per_epoch`.
    """
    import keras

    from keras_recsys import data
    from keras_recsys.analysis import evaluate_forecasts

    seq_len = seq_len_of(task, horizon, model)
    parts = data.split_time_series(
        series(), seq_len=seq_len, borders=data.ett_borders("ETTh1")
    )
    scaler = data.SeriesScaler.fit(parts[0])
    built, epochs = make(task, horizon, model, seed)
    train, validation, test = (
        data.make_window_dataset(
            part,
            seq_len=seq_len,
            pred_len=horizon,
            task=task,
            scaler=scaler,
            embedding="timeF" if "calendar" in built.input else None,
            batch_size=BATCH_SIZE if part is parts[0] else 256,
            shuffle=part is parts[0],
            seed=seed,
        )
        for part in parts
    )
    outcome = {}
    if epochs:
        with tempfile.TemporaryDirectory() as folder:
            best = os.path.join(folder, "best.weights.h5")
            callbacks = [
                keras.callbacks.ModelCheckpoint(
                    best, save_best_only=True, save_weights_only=True
                ),
                keras.callbacks.EarlyStopping(patience=PATIENCE),
            ]
            if model in WIDTHS:
                callbacks.append(keras.callbacks.LearningRateScheduler(rate_of))
            start = time.perf_counter()
            losses = built.fit(
                train,
                validation_data=validation,
                epochs=epochs,
                shuffle=False,
                callbacks=callbacks,
                verbose=0,
            ).history["val_loss"]
            seconds = time.perf_counter() - start
            built.load_weights(best)
        outcome = {
            "epochs": len(losses),
            "best_epoch": losses.index(min(losses)) + 1,
            "seconds_per_epoch": seconds / len(losses),
        }
    figures = evaluate_forecasts(built, test)
    return {"mse": figures["mse"], "mae": figures["mae"], **outcome}


def row_of(run, case, outcomes, script, **more):
    """A row of one training or of all."""
    errors = [outcome["mse"] for outcome in outcomes]
    mean = statistics.mean(errors)
    more |= {
        "value": mean,
        "spread": [min(errors), max(errors)],
        "peer_value": script.mse,
        "ratio": script.mse / mean,
        "mae": statistics.mean(outcome["mae"] for outcome in outcomes),
        "peer_mae": script.mae,
    }
    return run.row(case, errors, "MSE", "published Informer", **more)


@suite.cases(
    *(
        name_of(task, horizon, model, seed)
        for (task, horizon), models in MODELS.items()
        for model in models
        for seed in (*seeds_of(model), None)
    )
)
def forecasts(run):
    """Every model of every row of the table."""
    limit_threads()
    for (task, horizon), models in MODELS.items():
        script = SCRIPTS[task, horizon]
        for model in models:
            case = name_of(task, horizon, model)
            if not seeds_of(model):
                if run.wants(case):
                    outcome = measure(task, horizon, model)
                    yield row_of(run, case, [outcome], script)
                continue
            for seed in seeds_of(model):
                one = name_of(task, horizon, model, seed)
                if run.wants(one):
                    outcome = measure(task, horizon, model, seed)
                    yield row_of(
                        run,
                        one,
                        [outcome],
                        script,
                        **{
                            key: outcome[key]
                            for key in ("epochs", "best_epoch", "seconds_per_epoch")
                        },
                    )
            if run.wants(case):
                kept = [
                    suite.rows.get(name_of(task, horizon, model, seed))
                    for seed in seeds_of(model)
                ]
                if None in kept:
                    yield run.row(
                        case, None, "MSE", "published Informer", reason="not all seeds"
                    )
                    continue
                outcomes = [{"mse": r["value"], "mae": r["mae"]} for r in kept]
                yield row_of(
                    run,
                    case,
                    outcomes,
                    script,
                    seconds_per_epoch=statistics.mean(
                        r["seconds_per_epoch"] for r in kept
                    ),
                    width=WIDTHS.get(model, {}).get("hidden_dim"),
                )


if __name__ == "__main__":
    suite.main()
