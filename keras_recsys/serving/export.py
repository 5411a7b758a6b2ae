"""Writes a model as a SavedModel and checks it in a process with TensorFlow alone."""

import dataclasses

import keras
import numpy as np

from keras_recsys.data._base_vocabulary import check_vocabularies
from keras_recsys.serving._interface import Interface
from keras_recsys.serving._place import check_path, move_into_place, workspace
from keras_recsys.serving._rows import (
    check_sample,
    made_inputs,
    raw_values,
    sample_inputs,
)
from keras_recsys.serving._saved_model import (
    BATCH_SIZES,
    DEFAULT,
    LENGTHS,
    Case,
    check_in_fresh_process,
    full_precision,
    make_snippet,
    quiet,
    tolerances,
    write,
)

RAW = "raw"


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What `export` wrote and how well it answers.

    Args:
        path: Absolute path of the SavedModel.
        signatures: Dict from signature name to `{"inputs": ..., "outputs": ...}`, each
            a dict from tensor name to `(dtype, shape)`, where `None` in a shape is any
            size.
        max_difference: Float, the largest absolute difference between the answers of
            the SavedModel in the fresh process and `model.predict`.
        snippet: Python source of a client, which needs TensorFlow alone.
    """

    path: str
    signatures: dict
    max_difference: float
    snippet: str


def _check_vocabularies(vocabularies, interface):
    """Checks that each vocabulary fits the input that it is given for.

    Raises:
        TypeError: If it is no dict of vocabularies.
        ValueError: If a name is no input, or an input cannot hold the ids.
    """
    check_vocabularies(vocabularies)
    unknown = sorted(set(vocabularies) - set(interface.tensors), key=str)
    if unknown:
        raise ValueError(
            "`vocabularies` must be for inputs of the model, which are "
            f"{sorted(interface.tensors)}. Received: {unknown}."
        )
    for name, vocabulary in vocabularies.items():
        tensor = interface.tensors[name]
        if not tensor.dtype.startswith(("int", "uint")):
            raise ValueError(
                f"`vocabularies[{name!r}]` must be for an input of integers, its ids. "
                f"Received: an input of dtype {tensor.dtype!r}."
            )
        if vocabulary.separator is not None and len(tensor.shape) != 2:
            raise ValueError(
                f"`vocabularies[{name!r}]` must have no separator, unless the input is "
                "of shape (batch_size, length). Received: "
                f"separator={vocabulary.separator!r}, shape={tuple(tensor.shape)}."
            )
        sizes = sorted(set(interface.table_sizes(name)) - {vocabulary.size})
        if sizes:
            raise ValueError(
                f"`vocabularies[{name!r}]` must be the one that the model was built "
                f"with: its `size` must be the {sizes[0]} ids of the embedding. "
                f"Received: size={vocabulary.size!r}."
            )


def _raw_case(interface, vocabularies, inputs):
    """The case of `inputs` in raw values, with one that is in no vocabulary."""
    raw, encoded = dict(inputs), dict(inputs)
    for name, vocabulary in vocabularies.items():
        ids = inputs[name]
        raw[name] = raw_values(vocabulary, ids)
        if vocabulary.separator:
            read = vocabulary.encode(raw[name], max_len=ids.shape[1])
        else:
            read = vocabulary.encode(raw[name].reshape(-1)).reshape(ids.shape)
        encoded[name] = read.astype(ids.dtype)
    return Case(RAW, raw, interface.predict(encoded))


def _make_cases(interface, vocabularies, sample):
    """Rows to ask the signatures, with the answers of `model.predict`.

    Raises:
        ValueError: If the model does not take rows that were made up.
    """
    import tensorflow as tf

    rows = max(BATCH_SIZES)
    if sample is not None:
        batches = sample_inputs(sample, interface, rows)
    else:
        rng = np.random.default_rng(0)
        is_open = any(None in tensor.shape[1:] for tensor in interface.tensors.values())
        batches = [
            made_inputs(interface, vocabularies, rows, length, rng)
            for length in LENGTHS[: 1 + is_open]
        ]
    try:
        with full_precision():
            cases = [
                Case(DEFAULT, batch, interface.predict(batch)) for batch in batches
            ]
            if vocabularies:
                cases.append(_raw_case(interface, vocabularies, batches[0]))
    except (ValueError, TypeError, tf.errors.OpError) as error:
        raise ValueError(
            "`model` must answer `model.predict` for the rows of the check; give rows "
            f"that it takes in `sample`. Received: {type(error).__name__}: {error}"
        ) from error
    return cases


def _signatures(interface, vocabularies):
    """The signatures as they are to be: names, dtypes and shapes, by signature name."""

    def describe(tensors):
        return {
            name: (tensor.dtype, tuple(tensor.shape))
            for name, tensor in tensors.items()
        }

    outputs = describe(interface.output_tensors)
    inputs = describe(interface.tensors)
    signatures = {DEFAULT: {"inputs": inputs, "outputs": outputs}}
    if vocabularies:
        raw = {
            name: (
                vocabulary.dtype,
                inputs[name][1][: 1 if vocabulary.separator else None],
            )
            for name, vocabulary in vocabularies.items()
        }
        signatures[RAW] = {"inputs": {**inputs, **raw}, "outputs": dict(outputs)}
    return signatures


def _save(interface, vocabularies, signatures, folder):
    """Writes the signatures as a SavedModel."""
    import tensorflow as tf

    lookups = {}
    for name, vocabulary in vocabularies.items():
        size = interface.tensors[name].shape[1] if vocabulary.separator else None
        lookups[name] = vocabulary.lookup(max_len=size)

    def answer(inputs):
        return interface.call(inputs)

    def answer_raw(inputs):
        ids = {
            name: tf.cast(lookup(inputs[name]), interface.tensors[name].dtype)
            for name, lookup in lookups.items()
        }
        return interface.call({**inputs, **ids})

    functions = {}
    for name, function in ((DEFAULT, answer), (RAW, answer_raw)):
        if name in signatures:
            specs = {
                key: tf.TensorSpec(shape, dtype, name=key)
                for key, (dtype, shape) in signatures[name]["inputs"].items()
            }
            function = tf.function(function, autograph=False)
            functions[name] = function.get_concrete_function(specs)
    write(functions, folder, [interface.model, *lookups.values()])


def export(
    model,
    path,
    *,
    vocabularies=None,
    sample=None,
    overwrite=False,
    verbose=True,
):
    """Writes a model as a SavedModel, checked in a process with TensorFlow alone.

    The signature `serving_default` takes the inputs of the model by name, with their
    dtypes, any batch size, and any length where the model leaves it open. Its outputs
    are named by the keys of the model's output dict, or else by the layers that make
    them. With `vocabularies` there is a signature `raw` too, which takes the raw
    values of those inputs and looks the ids up inside the graph.

    Before anything is put at `path`, a fresh process loads the SavedModel and is asked
    batches of 1 and 7 rows, of two lengths where they are open. Each answer must be
    within `1e-6 + 1e-5 * abs(expected)` of `model.predict`; `1e-2` both if a layer
    computes in half precision, and ten times as much if `predict` runs on a GPU, since
    the fresh process runs on the CPU. It holds a second copy of the weights in memory.

    Args:
        model: A functional `keras.Model`, whose inputs are preferably a dict from
            feature name to tensor, and outputs a dict too. Other inputs take the names
            of their input layers.
        path: Where to write, a directory that does not exist. Missing parents are made.
        vocabularies: Optional dict from input name to `keras_recsys.data.Vocabulary` or
            `HashedVocabulary`. In `raw` such an input takes strings or int64 values in
            its own shape, or one text a row, `(batch_size,)`, if the vocabulary has a
            separator. An input of fixed length keeps the first values of a longer text.
            Without a separator a raw sequence has no padding. Defaults to `None`, no
            `raw`.
        sample: Optional dict from input name to array, at least one row of inputs of
            the model (ids, not raw values), for the check. Defaults to rows made up:
            ids within their embedding table, or 0 and 1 where none is found, and
            normal numbers.
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
            not answer as `model.predict` does; nothing is left at `path` then, or what
            was there before.
        TypeError: If `model`, `vocabularies` or `sample` is of another type.
        ValueError: If the model is not functional, has inputs that cannot be served, or
            `vocabularies` or `sample` do not fit it.

    Example:
    >>> user = keras.Input((), dtype="int32", name="user")
    >>> x = keras.layers.Embedding(10, 4)(user)
    >>> x = keras.layers.Dense(1, activation="sigmoid")(x)
    >>> model = keras.Model({"user": user}, {"probability": x})
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export(model, folder + "/1", verbose=False)
    >>> report.signatures["serving_default"]["inputs"]
    {'user': ('int32', (None,))}
    """
    if keras.config.backend() != "tensorflow":
        raise RuntimeError(
            "`export` writes a SavedModel and must run on the TensorFlow backend: save "
            "the model, set KERAS_BACKEND=tensorflow and load it there. "
            f"Received: backend={keras.config.backend()!r}."
        )
    interface = Interface(model)
    vocabularies = {} if vocabularies is None else vocabularies
    _check_vocabularies(vocabularies, interface)
    if sample is not None:
        sample = check_sample(sample, interface)
    path = check_path(path, overwrite)
    signatures = _signatures(interface, vocabularies)
    with workspace(path) as room, quiet():
        cases = _make_cases(interface, vocabularies, sample)
        folder = room / "model"  # not the room itself, which is closed to others
        _save(interface, vocabularies, signatures, folder)
        max_difference = check_in_fresh_process(
            folder, room, signatures, cases, tolerances(model)
        )
        move_into_place(folder, path, room)
    snippet = make_snippet(path, signatures, cases)
    if verbose:
        print(snippet, end="")  # noqa: T201
    return ExportReport(path, signatures, max_difference, snippet)
