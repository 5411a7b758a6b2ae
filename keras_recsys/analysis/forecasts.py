"""How good the forecasts of a time series are, and how they look."""

import collections.abc
import numbers

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys.analysis._columns import to_numbers
from keras_recsys.data._packages import import_package
from keras_recsys.data.series_scaler import check_scaler
from keras_recsys.models.forecasting.repeat_last import build_repeat_last
from keras_recsys.serving._saved_model import quiet

REPEAT_LAST = "repeat last"


def evaluate_forecasts(model, dataset, *, scaler=None):
    """Computes the errors of a forecaster over all windows of a dataset.

    With `e` the error of a window, step and output channel, means over all three of

        mse = mean(e^2)
        mae = mean(abs(e))
        rmse = sqrt(mse)

    Each window counts once, whatever the size of its batch, and the sums are in
    float64. Values are taken as the dataset has them: standardised ones give the
    figures that papers print. The dataset is read once and no forecasts are kept.

    A low error can be that of a flat line: look at the curves too, by `plot_forecasts`,
    and at what needs no model, by `compare_forecasters`.

    Args:
        model: A `keras.Model` whose output is a tensor of shape `(batch_size, pred_len,
            num_outputs)`, or a dict with `"forecast"`, as that of the builders. It
            reads those of the inputs that it has by name.
        dataset: A finite `tf.data.Dataset`, or another iterable, of batches `(inputs,
            y)`, as of `keras_recsys.data.make_window_dataset`.
        scaler: `SeriesScaler` that the values were scaled with, for figures in the
            units of the series too. These weigh the columns by their variance, so that
            they say most where there is one target. Defaults to `None`, none.

    Returns:
        A dict with `"num_windows"`, an int, and the floats `"mse"`, `"mae"`, `"rmse"`;
        with `scaler` also `"raw_mse"`, `"raw_mae"` and `"raw_rmse"`.

    Raises:
        TypeError: If `model`, `scaler` or an element of `dataset` is of a wrong type.
        ValueError: If the dataset is infinite or empty, `y` or the forecast is of a
            wrong shape, or `scaler` has fewer columns than `y`.

    Example:
    >>> values = keras.Input((2, 1), name="values")
    >>> model = keras.Model({"values": values}, {"forecast": values[:, -1:]})
    >>> batches = [({"values": np.array([[[1.0], [3.0]]])}, np.array([[[2.5]]]))]
    >>> from keras_recsys.data import SeriesScaler
    >>> evaluate_forecasts(model, batches, scaler=SeriesScaler([0.0], [4.0]))["mae"]
    0.5
    """
    _check_models({"model": model})
    return _evaluate({"model": model}, dataset, scaler)["model"]


def compare_forecasters(models, dataset, *, scaler=None):
    """Makes a table of the errors of several forecasters, the lowest MSE first.

    A line for the forecast that repeats the last known value is always there: it needs
    no training, and what is not better than it is of no use. Give a linear model too,
    `build_dlinear` or `build_nlinear`, before you trust a large one. With `skill` the
    share of the error of repeat-last that a model saves,

        skill = 1 - mse / mse of repeat-last

    The dataset is read once, each batch by all models.

    Args:
        models: Dict from name to `keras.Model`, as in `evaluate_forecasts`. A model
            named `"repeat last"` takes the place of that line.
        dataset: As in `evaluate_forecasts`. A model reads those inputs that it has, so
            that one without a calendar can stand beside one with it.
        scaler: As in `evaluate_forecasts`. Defaults to `None`.

    Returns:
        A `pandas.DataFrame`: a row a model by its name, and the columns `mse`, `mae`,
        `rmse`, with `scaler` `raw_mse`, `raw_mae`, `raw_rmse`, and `skill`.

    Raises:
        ImportError: If pandas is not installed.
        TypeError: If `models` is no dict of models, or as in `evaluate_forecasts`.
        ValueError: As in `evaluate_forecasts`.

    Example:
    >>> values = keras.Input((2, 1), name="values")
    >>> model = keras.Model({"values": values}, {"forecast": values[:, :1]})
    >>> batches = [({"values": np.array([[[1.0], [3.0]]])}, np.array([[[1.5]]]))]
    >>> table = compare_forecasters({"first": model}, batches)
    >>> print(table[["mse", "mae"]])
                  mse  mae
    first        0.25  0.5
    repeat last  2.25  1.5
    """
    pandas = import_package("pandas", "compare_forecasters")
    _check_models(models)
    figures = _evaluate(models, dataset, scaler, baseline=True)
    table = pandas.DataFrame.from_dict(figures, orient="index")
    table = table.drop(columns="num_windows").sort_values("mse", kind="stable")
    table["skill"] = 1 - table["mse"] / table.loc[REPEAT_LAST, "mse"]
    return table


def plot_forecasts(
    models, dataset, *, windows=(0,), channel=-1, scaler=None, num_known=None
):
    """Draws some windows: what is known, what came, and what models forecast.

    A step is numbered from the last known one, which is 0.

    Args:
        models: Dict from name to `keras.Model`, as in `evaluate_forecasts`, which may
            be empty.
        dataset: As in `evaluate_forecasts`, in the order in which windows are numbered:
            not a shuffled one.
        windows: Non-empty sequence of ints, numbers of the windows, one panel each.
            Defaults to `(0,)`.
        channel: Int, which output channel to draw, from the end if negative. Defaults
            to `-1`, the last one, which is the target.
        scaler: `SeriesScaler` that the values were scaled with, to draw them in the
            units of the series. Defaults to `None`, as the dataset has them.
        num_known: Positive int, how many of the last known steps are drawn. Defaults to
            `None`, all.

    Returns:
        A `matplotlib.figure.Figure`; its `savefig(path)` writes it.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If a number is no integer, or as in `compare_forecasters`.
        ValueError: If a window is not in the dataset, there is no such channel, a model
            is named `"known"` or `"truth"`, or as in `evaluate_forecasts`.

    Example:
    >>> batches = [({"values": np.array([[[1.0], [3.0]]])}, np.array([[[2.5]]]))]
    >>> figure = plot_forecasts({}, batches)
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['known', 'truth']
    """
    figure = import_package("matplotlib.figure", "plot_forecasts")
    _check_models(models)
    if {"known", "truth"} & set(models):
        raise ValueError(
            "`models` must have other names than 'known' and 'truth', which are drawn "
            f"beside them. Received: {list(models)}."
        )
    windows = [check_int("windows", window, 0) for window in windows]
    if not windows:
        raise ValueError(
            "`windows` must hold at least one number. Received: windows=[]."
        )
    if num_known is not None:
        num_known = check_int("num_known", num_known)
    if isinstance(channel, bool) or not isinstance(channel, numbers.Integral):
        raise TypeError(f"`channel` must be an integer. Received: channel={channel!r}.")
    inputs, truth = _take_windows(dataset, windows)
    num_outputs = truth.shape[2]
    if not -num_outputs <= channel < num_outputs:
        raise ValueError(
            f"`channel` must be one of the {num_outputs} output channels. "
            f"Received: channel={channel!r}."
        )
    column = channel % num_outputs - num_outputs  # from the end, as of all channels
    mean, std = 0.0, 1.0
    if scaler is not None:
        check_scaler(scaler, num_outputs, "output channels")
        mean, std = scaler.mean[column], scaler.std[column]
    known = to_numbers("dataset", inputs["values"])
    known = known[:, -(num_known or known.shape[1]) :]
    lines = {"known": known, "truth": truth}
    for name, model in models.items():
        lines[name] = _forecast(model, inputs, truth.shape)

    pred_len = truth.shape[1]
    figure = figure.Figure(figsize=(8, 2.6 * len(windows)), layout="constrained")
    panels = figure.subplots(len(windows), squeeze=False)[:, 0]
    for i, (axes, window) in enumerate(zip(panels, windows, strict=True)):
        for name, values in lines.items():
            steps = np.arange(1, pred_len + 1)
            style = {"linewidth": 1.2}
            if name == "known":
                steps = np.arange(1 - values.shape[1], 1)
                style = {"color": "grey"}
            elif name == "truth":
                style = {"color": "black"}
            axes.plot(
                steps,
                values[i, :, column] * std + mean,
                marker="." if len(steps) == 1 else None,
                label=name,
                **style,
            )
        axes.set(title=f"window {window}")
        axes.grid(alpha=0.3)
    panels[-1].set(xlabel="steps from the last known one")
    panels[0].legend()
    return figure


def _check_models(models):
    if not isinstance(models, collections.abc.Mapping) or not all(
        isinstance(model, keras.Model) for model in models.values()
    ):
        raise TypeError(
            "A forecaster must be a `keras.Model`, and several a dict from name to "
            f"`keras.Model`. Received: {models!r}."
        )


def _evaluate(models, dataset, scaler, baseline=False):
    """Dict from name to the dict of figures; `baseline` adds repeat-last."""
    models = dict(models)
    sums = {}  # of squares and of absolute errors, by channel
    num_windows = 0
    for inputs, y in _elements(dataset):
        if baseline and REPEAT_LAST not in models:
            _, seq_len, num_channels = inputs["values"].shape
            models[REPEAT_LAST] = build_repeat_last(
                num_channels,
                seq_len=seq_len,
                pred_len=y.shape[1],
                num_outputs=y.shape[2],
            )
        for name, model in models.items():
            error = _forecast(model, inputs, y.shape) - y
            parts = [(error**2).sum(axis=(0, 1)), np.abs(error).sum(axis=(0, 1))]
            sums[name] = sums.get(name, 0.0) + np.stack(parts)
        num_windows += len(y)
    if not num_windows:
        raise ValueError(
            "`dataset` must hold at least one window. Received: an empty dataset."
        )
    scales = {"": np.ones(y.shape[2])}
    if scaler is not None:
        check_scaler(scaler, y.shape[2], "output channels")
        scales["raw_"] = scaler.std[-y.shape[2] :]
    figures = {}
    for name, (squared, absolute) in sums.items():
        figures[name] = {"num_windows": num_windows}
        for prefix, std in scales.items():
            mse = float((squared * std**2).mean()) / (num_windows * y.shape[1])
            mae = float((absolute * std).mean()) / (num_windows * y.shape[1])
            figures[name] |= {
                f"{prefix}mse": mse,
                f"{prefix}mae": mae,
                f"{prefix}rmse": float(np.sqrt(mse)),
            }
    return figures


def _elements(dataset):
    """Inputs, and what they are to forecast in float64, of each batch with rows."""
    cardinality = getattr(dataset, "cardinality", None)
    if cardinality is not None and int(cardinality()) == -1:
        raise ValueError(
            "`dataset` must be finite; cut it with `dataset.take(n)`. "
            "Received: a dataset of infinite cardinality."
        )
    for element in dataset:
        if not isinstance(element, tuple | list) or len(element) != 2:
            raise TypeError(
                "`dataset` must have elements (inputs, y). "
                f"Received: an element of type {type(element).__name__}."
            )
        inputs, y = element
        names = list(inputs) if isinstance(inputs, collections.abc.Mapping) else []
        if "values" not in names:
            raise ValueError(
                "`dataset` must have inputs with the name 'values', the known steps. "
                f"Received: names {names}."
            )
        values = inputs["values"]
        if not hasattr(values, "shape"):
            values = np.asarray(values)
            inputs = {**inputs, "values": values}
        if len(values.shape) != 3:
            raise ValueError(
                "`dataset` must have values of shape (batch_size, seq_len, "
                f"num_channels). Received: shape {tuple(values.shape)}."
            )
        y = to_numbers("dataset", y)
        if y.ndim != 3:
            raise ValueError(
                "`dataset` must have y of shape (batch_size, pred_len, num_outputs). "
                f"Received: shape {y.shape}."
            )
        if len(y):
            yield inputs, y


def _forecast(model, inputs, shape):
    """The forecast in float64, by the function that Keras keeps with the model."""
    known = getattr(model, "input", None)  # which a subclassed model lacks
    names = [x for x in inputs if not isinstance(known, dict) or x in known]
    batch = {name: ops.convert_to_tensor(inputs[name]) for name in names}
    with quiet():  # each model is traced, for full batches and for the last one
        output = model.predict_on_batch(batch)
    if isinstance(output, collections.abc.Mapping):
        if "forecast" not in output:
            raise ValueError(
                "`model` must have the output 'forecast' where its output is a dict. "
                f"Received: outputs {list(output)}."
            )
        output = output["forecast"]
    forecast = to_numbers("forecast", output)
    if forecast.shape != shape:
        raise ValueError(
            f"`model` must forecast the shape of y, {shape}. "
            f"Received: a forecast of shape {forecast.shape}."
        )
    return forecast


def _take_windows(dataset, windows):
    """The inputs and y of some windows, in the order in which they are asked for."""
    found = {}
    first = 0
    for inputs, y in _elements(dataset):
        for window in windows:
            row = window - first
            if 0 <= row < len(y):
                inputs_of = {name: np.asarray(x[row]) for name, x in inputs.items()}
                found[window] = inputs_of, y[row]
        first += len(y)
        if len(found) == len(set(windows)):
            break
    else:
        raise ValueError(
            f"`windows` must be numbers of the {first} windows of `dataset`. "
            f"Received: windows={windows!r}."
        )
    inputs = {
        name: np.stack([found[window][0][name] for window in windows])
        for name in found[windows[0]][0]
    }
    return inputs, np.stack([found[window][1] for window in windows])
