"""Writes a model as a SavedModel and checks it in a process with TensorFlow alone."""

import collections
import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys

import keras
import numpy as np

from keras_recsys.data._base_vocabulary import check_vocabularies
from keras_recsys.serving._place import check_path, move_into_place, workspace
from keras_recsys.serving._rows import (
    check_sample,
    made_inputs,
    raw_values,
    sample_inputs,
)

DEFAULT = "serving_default"
RAW = "raw"
BATCH_SIZES = (1, 7)
LENGTHS = (4, 7)  # of the check inputs, where the model leaves a length open
HALF = ("float16", "bfloat16")


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


@dataclasses.dataclass(frozen=True)
class _Case:
    """Rows to ask one signature, and what `model.predict` says to them."""

    signature: str
    inputs: dict
    outputs: dict


class _Interface:
    """Names, inputs and outputs of a functional model, whatever structure they have.

    Raises:
        TypeError: If `model` is no Keras model.
        ValueError: If it has no inputs yet, or inputs that cannot be served.
    """

    def __init__(self, model):
        if not isinstance(model, keras.Model):
            raise TypeError(
                f"`model` must be a `keras.Model`. Received: model={model!r}."
            )
        try:
            tensors, outputs = model.inputs, model.outputs
        except AttributeError:
            tensors = outputs = None
        if not tensors or not outputs:
            raise ValueError(
                "`model` must be functional, made as `keras.Model(inputs, outputs)`: "
                "only then are its inputs known by name. "
                f"Received: model={model!r}."
            )
        self.model = model
        if isinstance(model, keras.Sequential):
            self.structure, struct_out = tensors[0], outputs[0]
        else:
            self.structure, struct_out = model.input, model.output
        if _is_flat_dict(self.structure):
            self.tensors = dict(self.structure)
        else:
            flat = keras.tree.flatten(self.structure)
            self.tensors = dict(zip(_layer_names(flat), flat, strict=True))
        if _is_flat_dict(struct_out):
            self.output_tensors = dict(struct_out)
        else:
            flat = keras.tree.flatten(struct_out)
            self.output_tensors = dict(zip(_layer_names(flat), flat, strict=True))
        self._check_names()
        self._check_tensors()

    def _check_names(self):
        for name in self.tensors:
            if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", str(name)) or name == "self":
                raise ValueError(
                    "An input of `model` must have a name of ASCII letters, digits and "
                    "underscores that begins with a letter and is not 'self': "
                    "TensorFlow changes or refuses others in a signature. "
                    f"Received: name={name!r}."
                )
        lower = collections.Counter(name.lower() for name in self.tensors)
        twins = [name for name in self.tensors if lower[name.lower()] > 1]
        if twins:
            raise ValueError(
                "The inputs of `model` must have names that differ in more than case: "
                f"TensorFlow does not tell them apart. Received: names={twins!r}."
            )

    def _check_tensors(self):
        for name, tensor in self.tensors.items():
            if not re.match("bool|u?int|b?float", tensor.dtype):
                raise ValueError(
                    f"Input {name!r} of `model` must hold numbers; texts are served by "
                    "giving its `keras_recsys.data.Vocabulary` in `vocabularies`. "
                    f"Received: dtype={tensor.dtype!r}."
                )
            if not tensor.shape or tensor.shape[0] is not None:
                raise ValueError(
                    f"Input {name!r} of `model` must leave the batch size open. "
                    f"Received: shape={tuple(tensor.shape)}."
                )

    def call(self, inputs):
        """Outputs by name of inputs by name, as tensors."""
        outputs = self.model(self._pack(inputs), training=False)
        return self._unpack(outputs)

    def predict(self, inputs):
        """Outputs by name of inputs by name, as NumPy arrays."""
        rows = len(next(iter(inputs.values())))
        outputs = self.model.predict(self._pack(inputs), batch_size=rows, verbose=0)
        return {
            name: value.astype("float32") if value.dtype.name in HALF else value
            for name, value in self._unpack(outputs).items()
        }

    def table_sizes(self, name):
        """Sizes of the embedding tables that are read with the input, if any."""
        sizes = []
        for layer in self.model.layers:
            size = getattr(layer, "input_dim", None)
            if not isinstance(size, int):
                continue
            for node in layer._inbound_nodes:
                if any(tensor is self.tensors[name] for tensor in node.input_tensors):
                    sizes.append(size)
        return sizes

    def _pack(self, inputs):
        if _is_flat_dict(self.structure):
            return {name: inputs[name] for name in self.tensors}
        return keras.tree.pack_sequence_as(
            self.structure, [inputs[name] for name in self.tensors]
        )

    def _unpack(self, outputs):
        if isinstance(outputs, dict) and set(outputs) == set(self.output_tensors):
            return outputs
        return dict(zip(self.output_tensors, keras.tree.flatten(outputs), strict=True))


def _is_flat_dict(structure):
    return isinstance(structure, dict) and not any(
        isinstance(value, (dict, list, tuple)) for value in structure.values()
    )


def _layer_names(tensors):
    """Name of the layer that makes each tensor; a second one gets `_1`, and so on."""
    names = []
    for tensor in tensors:
        base = name = tensor._keras_history.operation.name
        count = 0
        while name in names:
            count += 1
            name = f"{base}_{count}"
        names.append(name)
    return names


@contextlib.contextmanager
def _quiet():
    """Keeps TensorFlow's notes on saving and retracing off the terminal."""
    loggers = [logging.getLogger(name) for name in ("tensorflow", "absl")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _full_precision():
    """Turns TensorFloat-32 off, which the fresh process, on the CPU, does not have."""
    import tensorflow as tf

    experimental = tf.config.experimental
    enabled = experimental.tensor_float_32_execution_enabled()
    experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        experimental.enable_tensor_float_32_execution(enabled)


def _tolerances(model):
    """Absolute and relative tolerance of the check, by the precision of the model."""
    import tensorflow as tf

    layers = model._flatten_layers()
    if any(getattr(layer, "compute_dtype", None) in HALF for layer in layers):
        return 1e-2, 1e-2
    if tf.config.list_logical_devices("GPU"):  # `predict` sums in another order there
        return 1e-5, 1e-4
    return 1e-6, 1e-5


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
    return _Case(RAW, raw, interface.predict(encoded))


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
        with _full_precision():
            cases = [
                _Case(DEFAULT, batch, interface.predict(batch)) for batch in batches
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
    """Writes the SavedModel with nothing in it but what the signatures use."""
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
    captured = {id(x) for f in functions.values() for x in f.captured_inputs}
    module = tf.Module()
    module.weights = [
        variable.value
        for variable in interface.model.variables
        if any(id(part.handle) in captured for part in _parts(variable.value))
    ]
    module.tables = [
        table
        for layer in (interface.model, *lookups.values())
        for table in _tables(layer)
        if id(table.resource_handle) in captured
    ]
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, folder, signatures=functions, options=options)
    _forget_gradients(pathlib.Path(folder) / "saved_model.pb")


def _forget_gradients(path):
    """Removes the marks of custom gradients, of which TensorFlow warns at each load.

    The gradients themselves are not in the file, and serving needs none.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for graph in saved.meta_graphs:
        functions = graph.graph_def.library.function
        for nodes in (graph.graph_def.node, *(f.node_def for f in functions)):
            for node in nodes:
                node.attr.pop("_gradient_op_type", None)
    path.write_bytes(saved.SerializeToString(deterministic=True))


def _parts(variable):
    """The copies of a variable that a distribution strategy mirrors, or itself."""
    return getattr(variable, "values", (variable,))


def _tables(layer):
    """The lookup tables that layers hold as attributes."""
    import tensorflow as tf

    resource = tf.saved_model.experimental.TrackableResource
    for part in layer._flatten_layers():
        for value in vars(part).values():
            if isinstance(value, resource):
                yield value


def _check_in_fresh_process(folder, room, signatures, cases, tolerances):
    """Asks the SavedModel in a process that imports TensorFlow alone.

    Returns:
        The largest absolute difference from `model.predict`.

    Raises:
        RuntimeError: If the process fails, or its answers or signatures are others.
    """
    job = {
        "model": str(folder),
        "atol": tolerances[0],
        "rtol": tolerances[1],
        "signatures": signatures,
        "calls": [
            (number, case.signature, batch_size)
            for number, case in enumerate(cases)
            for batch_size in BATCH_SIZES
        ],
    }
    arrays = {
        f"{number}/{kind}/{name}": array
        for number, case in enumerate(cases)
        for kind in ("inputs", "outputs")
        for name, array in getattr(case, kind).items()
    }
    job_folder = room / "job"
    job_folder.mkdir()
    # Run from a folder of its own, so that nothing beside it can be imported.
    script = shutil.copy(pathlib.Path(__file__).with_name("_check.py"), job_folder)
    (job_folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    np.savez(job_folder / "arrays.npz", **arrays)
    dropped = ("KERAS_BACKEND", "PYTHONWARNINGS", "TF_CONFIG")
    environment = {
        key: value for key, value in os.environ.items() if key not in dropped
    }
    environment["CUDA_VISIBLE_DEVICES"] = "-1"  # this process holds the GPU memory
    done = subprocess.run(
        [sys.executable, script, job_folder],
        cwd=job_folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            "The SavedModel must load and answer in a process with TensorFlow alone; "
            f"nothing was written. Signatures: {signatures}. Received: exit status "
            f"{done.returncode} and\n{done.stderr[-3000:]}"
        )
    result = json.loads((job_folder / "result.json").read_text(encoding="utf-8"))
    if result["problems"]:
        raise RuntimeError(
            "The SavedModel must answer as `model.predict` does; nothing was written. "
            f"Received: a largest difference of {result['max_difference']:.3g}; "
            f"{'; '.join(result['problems'])}. Signatures: {signatures}."
        )
    return result["max_difference"]


def _make_snippet(path, signatures, cases):
    """Source of a client that asks each signature two rows of the check."""
    lines = [
        "import tensorflow as tf",
        "",
        f"loaded = tf.saved_model.load({path!r})  # keep it: it owns the weights",
    ]
    for name, signature in signatures.items():
        case = next(case for case in cases if case.signature == name)
        lines += ["", "rows = {"]
        for key, (dtype, _) in signature["inputs"].items():
            value = _literal(case.inputs[key][:2], dtype)
            lines.append(f"    {key!r}: {value},")
        lines += ["}", f"outputs = loaded.signatures[{name!r}](**rows)"]
        for key in signature["outputs"]:
            lines.append(f"print({key!r}, outputs[{key!r}].numpy())")
    return "\n".join(lines) + "\n"


def _literal(array, dtype):
    """Source of the array as a tensor; large ones are zeros."""
    if array.size > 100:
        return f"tf.zeros({list(array.shape)}, tf.{dtype})"
    if array.dtype.kind == "f":
        array = array.astype("float64").round(3)
    return f"tf.constant({array.tolist()}, tf.{dtype})"


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
    interface = _Interface(model)
    vocabularies = {} if vocabularies is None else vocabularies
    _check_vocabularies(vocabularies, interface)
    if sample is not None:
        sample = check_sample(sample, interface)
    path = check_path(path, overwrite)
    signatures = _signatures(interface, vocabularies)
    with workspace(path) as room, _quiet():
        cases = _make_cases(interface, vocabularies, sample)
        folder = room / "model"  # not the room itself, which is closed to others
        _save(interface, vocabularies, signatures, folder)
        max_difference = _check_in_fresh_process(
            folder, room, signatures, cases, _tolerances(model)
        )
        move_into_place(folder, path, room)
    snippet = _make_snippet(path, signatures, cases)
    if verbose:
        print(snippet, end="")  # noqa: T201
    return ExportReport(path, signatures, max_difference, snippet)
