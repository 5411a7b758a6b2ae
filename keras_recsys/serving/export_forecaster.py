"""Writes a forecaster as a SavedModel of raw values and time stamps."""

import keras
import numpy as np

from keras_recsys._calendar import (
    INTEGER,
    SCALED,
    Frequency,
    add_steps,
    civil_from_days,
    days_from_civil,
    integer_fields,
    scaled_fields,
)
from keras_recsys._checks import check_choice
from keras_recsys.data.calendar_features import ISO, calendar_features
from keras_recsys.data.series_scaler import SeriesScaler, check_scaler
from keras_recsys.layers import CalendarEmbedding
from keras_recsys.serving._interface import Interface
from keras_recsys.serving._place import check_path, move_into_place, workspace
from keras_recsys.serving._saved_model import (
    BATCH_SIZES,
    DEFAULT,
    Case,
    check_in_fresh_process,
    full_precision,
    make_snippet,
    quiet,
    tolerances,
    write,
)
from keras_recsys.serving.export import ExportReport

DTYPES = ("float32", "float64")
ROUNDING = 0.01  # of a standard deviation, the most that float32 may lose


def export_forecaster(
    model,
    path,
    *,
    scaler=None,
    frequency=None,
    dtype="float32",
    overwrite=False,
    verbose=True,
):
    """Writes a forecaster as a SavedModel that takes and gives raw values and times.

    The signature `serving_default` takes `values`, `(batch_size, seq_len,
    num_channels)`, the last known rows as they were measured, oldest first, and `time`,
    `(batch_size,)`, for each row of the batch the time stamp of its last known step, a
    string such as `"2016-07-01 00:00:00"`. Seconds, or the whole clock, may be left
    out, and a `T` stand between day and clock, as in the times of a `TimeSeries`. The
    steps before it and after it are worked out from `frequency`: rows of `values` must
    follow each other without a gap. Its outputs are `forecast`, `(batch_size, pred_len,
    num_outputs)`, in the units of the series, and `time`, `(batch_size, pred_len)`, the
    time stamps of its steps, `"2016-07-01 01:00:00"`.

    The scaler and the calendar features are in the graph, and run in float64 and int64.
    `values` of another length or number of channels, a value that is NaN or infinite, a
    string that is no time stamp, and a day that `frequency` never meets, such as a
    Saturday for `"b"`, are errors that name it. Without a calendar in the model and
    without `frequency` there is no `time`.

    Before anything is put at `path`, the SavedModel is asked for 7 forecasts, which
    must be within `1e-6 + 1e-5 * abs(expected)` of those of `model.predict` in units of
    the standard deviation of their column, see `export`; then a fresh process that
    imports TensorFlow alone loads it and is asked batches of 1 and 7 rows.

    Args:
        model: A functional `keras.Model` with the input `"values"`, `(batch_size,
            seq_len, num_channels)`, and maybe `"calendar"`, `(batch_size, seq_len +
            pred_len, num_features)`, and the output `"forecast"`, `(batch_size,
            pred_len, num_outputs)`, as the builders of forecasters return.
        path: Where to write, a directory that does not exist. Missing parents are made.
        scaler: `SeriesScaler` that the model was trained with. With more columns than
            the model its last ones count, and those of a forecast are the last ones of
            the values. Defaults to `None`, for a model of raw values.
        frequency: Step of the series, as in `TimeSeries`, such as its `frequency`.
            Needed for ends of months, and for multiples of a unit where the model was
            built with the unit alone. Defaults to `None`, that of the model's
            `CalendarEmbedding`, or no times where there is none.
        dtype: `"float32"` or `"float64"`, the dtype of `values` and `forecast`; the
            second for columns whose level is far above their spread. Defaults to
            `"float32"`.
        overwrite: Whether an earlier export at `path` is replaced, once the new one has
            passed its check. Defaults to `False`.
        verbose: Whether to print a client for the SavedModel, ready to run. Defaults to
            `True`.

    Returns:
        An `ExportReport`.

    Raises:
        FileExistsError: If `path` exists and `overwrite` is `False`, or it is no
            SavedModel.
        NotADirectoryError: If a parent of `path` is a file.
        PermissionError: If the parent of `path` cannot be written to.
        RuntimeError: If the backend of Keras is not TensorFlow, or the SavedModel does
            not answer as the model does; nothing is left at `path` then, or what was
            there before.
        TypeError: If `model` or `scaler` is of another type.
        ValueError: If the model is not functional, or has other inputs or outputs;
            `scaler` has too few columns, `frequency` is unknown or not that of the
            model, or `dtype` is unknown, or is `"float32"` and rounds the mean of a
            column by more than 1 % of its standard deviation.

    Example:
    >>> values = keras.Input((3, 1), name="values")
    >>> model = keras.Model({"values": values}, {"forecast": values[:, -1:]})
    >>> scaler = SeriesScaler([20.0], [5.0])
    >>> import tempfile
    >>> import tensorflow as tf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_forecaster(
    ...         model, folder + "/1", scaler=scaler, frequency="h", verbose=False
    ...     )
    ...     loaded = tf.saved_model.load(report.path)
    >>> outputs = loaded.signatures["serving_default"](
    ...     values=tf.constant([[[19.0], [22.0], [21.0]]]),
    ...     time=tf.constant(["2023-12-31 23:00"]),
    ... )
    >>> outputs["forecast"].numpy().tolist(), outputs["time"].numpy().tolist()
    ([[[21.0]]], [[b'2024-01-01 00:00:00']])
    """
    if keras.config.backend() != "tensorflow":
        raise RuntimeError(
            "`export_forecaster` writes a SavedModel and must run on the TensorFlow "
            "backend: save the model, set KERAS_BACKEND=tensorflow and load it there. "
            f"Received: backend={keras.config.backend()!r}."
        )
    interface = Interface(model)
    _check_interface(interface)
    frequency = _check_frequency(frequency, interface)
    check_choice("dtype", dtype, DTYPES)
    scaler = _check_scaler(scaler, interface, dtype)
    path = check_path(path, overwrite)
    signature = _signature(interface, frequency, dtype)
    signatures = {DEFAULT: signature}
    with workspace(path) as room, quiet():
        case, expected = _make_case(interface, scaler, frequency, dtype)
        folder = room / "model"  # not the room itself, which is closed to others
        _save(interface, scaler, frequency, signature, folder)
        atol, rtol = tolerances(model)
        _check_columns(folder, case, expected, scaler, (atol, rtol))
        # One tolerance for all columns: that of the largest.
        atol *= float(scaler.std.max())
        max_difference = check_in_fresh_process(
            folder, room, signatures, [case], (atol, rtol)
        )
        move_into_place(folder, path, room)
    snippet = make_snippet(path, signatures, [case])
    if verbose:
        print(snippet, end="")  # noqa: T201
    return ExportReport(path, signatures, max_difference, snippet)


def _check_interface(interface):
    """Checks the inputs and outputs of a model.

    Raises:
        ValueError: If it is no forecaster.
    """
    inputs, outputs = interface.tensors, interface.output_tensors
    values, forecast = inputs.get("values"), outputs.get("forecast")
    good = (
        set(inputs) in ({"values"}, {"values", "calendar"})
        and set(outputs) == {"forecast"}
        and all(
            len(x.shape) == 3 and None not in x.shape[1:]
            for x in (*inputs.values(), forecast)
        )
        and "float" in values.dtype
        and forecast.shape[2] <= values.shape[2]
    )
    if good and "calendar" in inputs:
        good = inputs["calendar"].shape[1] == values.shape[1] + forecast.shape[1]
    if not good:
        shapes = [
            {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()}
            for tensors in (inputs, outputs)
        ]
        raise ValueError(
            "`model` must have the input 'values', floats of shape (batch_size, "
            "seq_len, num_channels), maybe 'calendar', (batch_size, seq_len + "
            "pred_len, num_features), and the output 'forecast', (batch_size, "
            f"pred_len, num_outputs). Received: inputs={shapes[0]}, "
            f"outputs={shapes[1]}."
        )


def _check_frequency(frequency, interface):
    """The `Frequency` of the time stamps, or `None` where there are none.

    Raises:
        ValueError: If it is unknown, needed, or not that of the model.
    """
    calendar = interface.tensors.get("calendar")
    own = {
        layer.frequency
        for layer in interface.model._flatten_layers()
        if isinstance(layer, CalendarEmbedding)
    }
    parsed = None
    if frequency is not None:
        parsed = Frequency.parse(frequency)
    elif len(own) == 1:
        parsed = Frequency.parse(*own)
    if calendar is None:
        return parsed
    if parsed is None:
        raise ValueError(
            "`frequency` must be given for a model with the input 'calendar' and no "
            f"single `CalendarEmbedding`. Received: frequency={frequency!r}."
        )
    built = [Frequency.parse(x) for x in own]
    num_features = len(_fields(calendar)[0][parsed.unit])
    fits = all(x.unit == parsed.unit and x.count in (1, parsed.count) for x in built)
    if not fits or num_features != calendar.shape[2]:
        raise ValueError(
            "`frequency` must be that which the model was built with, "
            f"{sorted(own)}, of {calendar.shape[2]} calendar features. "
            f"Received: frequency={frequency!r}, of {num_features}."
        )
    return parsed


def _fields(calendar):
    """Names of the calendar features by unit, the function and kind that make them."""
    if "float" in calendar.dtype:
        return SCALED, scaled_fields, "timeF"
    return INTEGER, integer_fields, "fixed"


def _check_scaler(scaler, interface, dtype):
    """The scaler of the channels of a model.

    Raises:
        TypeError: If it is no `SeriesScaler`.
        ValueError: If it has too few columns, or `dtype` rounds their values.
    """
    num_channels = interface.tensors["values"].shape[2]
    if scaler is None:
        return SeriesScaler(np.zeros(num_channels), np.ones(num_channels))
    check_scaler(scaler, num_channels, "channels")
    scaler = SeriesScaler(scaler.mean[-num_channels:], scaler.std[-num_channels:])
    rounding = np.abs(scaler.mean) * np.finfo(dtype).eps / 2 / scaler.std
    worst = int(rounding.argmax())
    if dtype == "float32" and rounding[worst] > ROUNDING:
        raise ValueError(
            f"`dtype` must be 'float64' for values of mean {scaler.mean[worst]} and "
            f"standard deviation {scaler.std[worst]}, those of channel {worst}, which "
            f"float32 rounds too much. Received: dtype={dtype!r}."
        )
    return scaler


def _signature(interface, frequency, dtype):
    """Names, dtypes and shapes, as they are to be."""
    forecast = tuple(interface.output_tensors["forecast"].shape)
    inputs = {"values": (dtype, tuple(interface.tensors["values"].shape))}
    outputs = {"forecast": (dtype, forecast)}
    if frequency is not None:
        inputs["time"] = ("string", (None,))
        outputs["time"] = ("string", forecast[:2])
    return {"inputs": inputs, "outputs": outputs}


def _make_case(interface, scaler, frequency, dtype):
    """Rows to ask the signature, with the answers of `model.predict`.

    Returns:
        A `Case`, and a dict from output name to what is expected in its own dtype.
    """
    rows = max(BATCH_SIZES)
    _, seq_len, num_channels = interface.tensors["values"].shape
    pred_len = interface.output_tensors["forecast"].shape[1]
    values = np.random.default_rng(0).normal(size=(rows, seq_len, num_channels))
    values = scaler.inverse_transform(values).astype(dtype)
    given = {"values": values}
    inputs = {"values": scaler.transform(values.astype("float64")).astype("float32")}
    expected, ranked, ranking = {}, {}, ""
    if frequency is not None:
        start = np.datetime64("2023-12-25", "s").astype("int64")  # a Monday
        last = add_steps(start, frequency, 29 * np.arange(rows))
        given["time"] = _texts(last)
        steps = np.arange(1 - seq_len, pred_len + 1)
        seconds = add_steps(last[:, None], frequency, steps)
        expected["time"] = _texts(seconds[:, seq_len:])
        if "calendar" in interface.tensors:
            kind = _fields(interface.tensors["calendar"])[2]
            inputs["calendar"] = calendar_features(seconds, frequency, kind)
        # The fresh process compares texts by their places among those of the row.
        ranking = "time"
        known, ids = np.unique(expected["time"], return_inverse=True)
        places = np.broadcast_to(np.arange(float(pred_len)), (rows, pred_len))
        ranked = {"ids": ids.reshape(rows, -1), "scores": places, "values": known}
    with full_precision():
        forecast = interface.predict(inputs)["forecast"].astype("float64")
    expected["forecast"] = scaler.inverse_transform(forecast)
    outputs = {"forecast": expected["forecast"]}
    if ranking:
        outputs["time"] = places
    return Case(DEFAULT, given, outputs, ranked, ranking), expected


def _texts(seconds):
    """Strings of NumPy times."""
    texts = np.datetime_as_string(seconds.astype("datetime64[s]"))
    return np.char.replace(texts, "T", " ")


def _check_columns(folder, case, expected, scaler, tolerances):
    """Checks the answers column by column, each in units of its standard deviation.

    Raises:
        RuntimeError: If one is another than expected.
    """
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder))  # kept: it owns the weights
    with full_precision():
        outputs = loaded.signatures[DEFAULT](
            **{name: tf.constant(x) for name, x in case.inputs.items()}
        )
    problems = []
    if "time" in expected:
        got = outputs["time"].numpy().astype(str)
        if got.shape != expected["time"].shape or (got != expected["time"]).any():
            problems.append(f"times {got.tolist()}")
    want = expected["forecast"]
    std = scaler.std[-want.shape[2] :]
    got = outputs["forecast"].numpy()
    difference = np.abs(got.astype("float64") - want)
    allowed = tolerances[0] + tolerances[1] * np.abs(scaler.transform(want))
    allowed = std * allowed + np.finfo(got.dtype).eps * np.abs(want)
    if not (difference <= allowed).all():
        largest = (difference / std).max(axis=(0, 1))
        problems.append(f"differences of {largest} standard deviations by column")
    if problems:
        raise RuntimeError(
            "The SavedModel must answer as `model.predict` does; nothing was written. "
            f"Received: {'; '.join(problems)}."
        )


def _save(interface, scaler, frequency, signature, folder):
    """Writes the signature as a SavedModel."""
    import tensorflow as tf

    calendar = interface.tensors.get("calendar")
    dtype, (_, seq_len, _) = signature["inputs"]["values"]
    _, (_, pred_len, num_outputs) = signature["outputs"]["forecast"]
    steps = np.arange(1 - seq_len, pred_len + 1)
    mean, std = scaler.mean, scaler.std

    def answer(values, time=None):
        checks = [_assert_shape(values, (seq_len, len(mean)))]
        with tf.control_dependencies(checks):
            checks = [_assert_finite(values)]
        if time is not None:
            checks += [_assert_rows(values, time)]
            seconds, more = _read_times(time, frequency)
            checks += more
        with tf.control_dependencies(checks):
            scaled = (tf.cast(values, "float64") - mean) / std
        inputs = {"values": tf.cast(scaled, interface.tensors["values"].dtype)}
        if time is not None:
            every = add_steps(seconds[:, None], frequency, steps)
        if calendar is not None:
            fields = _fields(calendar)[1](every, frequency.unit)
            inputs["calendar"] = tf.cast(tf.stack(fields, axis=-1), calendar.dtype)
        forecast = tf.cast(interface.call(inputs)["forecast"], "float64")
        forecast = forecast * std[-num_outputs:] + mean[-num_outputs:]
        outputs = {"forecast": tf.cast(forecast, dtype)}
        if time is not None:
            outputs["time"] = _write_times(every[:, seq_len:])
        return outputs

    specs = {
        name: tf.TensorSpec(shape, dtype, name=name)
        for name, (dtype, shape) in signature["inputs"].items()
    }
    function = tf.function(answer, autograph=False).get_concrete_function(**specs)
    write({DEFAULT: function}, folder, [interface.model])


def _assert_shape(values, shape):
    """Operation that fails where `values` are of another length or width.

    A loaded signature does not check it, and one column would be stretched to many.
    """
    import tensorflow as tf

    given = tf.shape(values)[1:]
    return _assertion(
        tf.reduce_all(tf.equal(given, shape)),
        f"`values` must be of shape (batch_size, {shape[0]}, {shape[1]})",
        "(batch_size, ",
        tf.strings.reduce_join(tf.strings.as_string(given), separator=", "),
        ")",
    )


def _assert_finite(values):
    """Operation that fails where a value is not finite, and names the first."""
    import tensorflow as tf

    bad = tf.logical_not(tf.math.is_finite(values))
    value = tf.strings.as_string(tf.boolean_mask(values, bad)[:1])
    place = tf.strings.as_string(tf.where(bad)[:1])
    return _assertion(
        tf.logical_not(tf.reduce_any(bad)),
        "`values` must be finite numbers",
        value,
        " at row, step, channel ",
        tf.strings.reduce_join(place, axis=1, separator=", "),
    )


def _assert_rows(values, time):
    """Operation that fails where there are more or fewer time stamps than rows."""
    import tensorflow as tf

    counts = [tf.shape(x)[0] for x in (time, values)]
    return _assertion(
        tf.equal(*counts),
        "`time` must hold a time stamp for each row of `values`",
        tf.strings.as_string(counts[0]),
        " time stamps, rows: ",
        tf.strings.as_string(counts[1]),
    )


def _assertion(condition, allowed, *received):
    """Operation that fails unless `condition`; what was received are strings."""
    import tensorflow as tf

    parts = [f"{allowed}. Received: ", *received, "."]
    parts = [tf.strings.reduce_join(part) for part in parts]
    return tf.debugging.Assert(condition, [tf.strings.join(parts)])


def _read_times(texts, frequency):
    """Int64 seconds of time stamps, and operations that fail where they are none."""
    import tensorflow as tf

    formed = tf.strings.regex_full_match(texts, ISO.pattern)
    whole = tf.where(formed, texts, "1970-01-01")
    length = tf.strings.length(whole)
    rest = tf.fill(tf.shape(whole), "0000-01-01 00:00:00")
    rest = tf.strings.substr(rest, length, 19 - length)
    whole = tf.strings.regex_replace(tf.strings.join([whole, rest]), "T", " ")
    year, month, day, hour, minute, second = (
        tf.strings.to_number(tf.strings.substr(whole, first, size), "int64")
        for first, size in ((0, 4), (5, 2), (8, 2), (11, 2), (14, 2), (17, 2))
    )
    seconds = 86400 * days_from_civil(year, month, day)
    seconds = seconds + 3600 * hour + 60 * minute + second
    # Written again, a day or minute that there is not is another one.
    is_time = formed & tf.equal(_write_times(seconds), whole)
    is_step = tf.equal(add_steps(seconds, frequency, np.int64(0)), seconds)
    checks = []
    for good, allowed in (
        (is_time, "time stamps such as 2016-07-01 00:00:00, with no time zone"),
        (is_step | ~is_time, f"time stamps that are steps of {frequency}"),
    ):
        check = _assertion(
            tf.reduce_all(good),
            f"`time` must hold {allowed}",
            "time=",  # no quotes, which TensorFlow shows with backslashes
            tf.boolean_mask(texts, ~good)[:1],
            " at row ",
            tf.strings.as_string(tf.where(~good)[:1]),
        )
        checks.append(check)
    return seconds, checks


def _write_times(seconds):
    """Strings of int64 seconds."""
    import tensorflow as tf

    year, month, day = civil_from_days(seconds // 86400)
    clock = seconds % 86400
    return tf.strings.join(
        [
            tf.strings.as_string(year, width=4, fill="0"),
            *(
                sign + tf.strings.as_string(part, width=2, fill="0")
                for sign, part in (
                    ("-", month),
                    ("-", day),
                    (" ", clock // 3600),
                    (":", clock // 60 % 60),
                    (":", clock % 60),
                )
            ),
        ]
    )
