"""How a SavedModel is written, checked in a fresh process, and asked by a client."""

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np

from keras_recsys.serving._interface import HALF

DEFAULT = "serving_default"
BATCH_SIZES = (1, 7)
LENGTHS = (4, 7)  # of the check inputs, where the model leaves a length open


@dataclasses.dataclass(frozen=True)
class Case:
    """Rows to ask one signature, and what `model.predict` says to them.

    Args:
        signature: Name of the signature.
        inputs: Dict from input name to array; a scalar is for all rows.
        outputs: Dict from output name to array.
        ranked: Optional dict of arrays, by which ids are compared that stand in the
            order of their scores: `"ids"` and `"scores"` of what may be given, both
            `(num_rows, any)`, and with raw values `"values"`, that of each id. The
            output in `outputs` is then the scores that the ids ought to have.
        ranking: Name of the output of ids that are so compared.
    """

    signature: str
    inputs: dict
    outputs: dict
    ranked: dict = dataclasses.field(default_factory=dict)
    ranking: str = ""


@contextlib.contextmanager
def quiet():
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
def full_precision():
    """Turns TensorFloat-32 off, which the fresh process, on the CPU, does not have."""
    import tensorflow as tf

    experimental = tf.config.experimental
    enabled = experimental.tensor_float_32_execution_enabled()
    experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        experimental.enable_tensor_float_32_execution(enabled)


def tolerances(model):
    """Absolute and relative tolerance of the check, by the precision of the model."""
    import tensorflow as tf

    layers = model._flatten_layers()
    if any(getattr(layer, "compute_dtype", None) in HALF for layer in layers):
        return 1e-2, 1e-2
    if tf.config.list_logical_devices("GPU"):  # `predict` sums in another order there
        return 1e-5, 1e-4
    return 1e-6, 1e-5


def write(functions, folder, layers, tables=()):
    """Writes the SavedModel with nothing in it but what the signatures use.

    Args:
        functions: Dict from signature name to a concrete function.
        folder: Where to write.
        layers: List of layers and models, in which the weights and tables are found.
        tables: Further lookup tables.
    """
    import tensorflow as tf

    captured = {id(x) for f in functions.values() for x in f.captured_inputs}
    variables = {id(x): x for layer in layers for x in layer.variables}
    module = tf.Module()
    module.weights = [
        variable.value
        for variable in variables.values()
        if any(id(part.handle) in captured for part in _parts(variable.value))
    ]
    found = [table for layer in layers for table in _tables(layer)]
    module.tables = [
        table for table in (*found, *tables) if id(table.resource_handle) in captured
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


def check_in_fresh_process(folder, room, signatures, cases, tolerances):
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
            (number, case.signature, batch_size, case.ranking)
            for number, case in enumerate(cases)
            for batch_size in BATCH_SIZES
        ],
    }
    arrays = {
        f"{number}/{kind}/{name}": array
        for number, case in enumerate(cases)
        for kind in ("inputs", "outputs", "ranked")
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


def make_snippet(path, signatures, cases):
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
            value = _literal(case.inputs[key], dtype)
            lines.append(f"    {key!r}: {value},")
        lines += ["}", f"outputs = loaded.signatures[{name!r}](**rows)"]
        for key in signature["outputs"]:
            lines.append(f"print({key!r}, outputs[{key!r}].numpy())")
    return "\n".join(lines) + "\n"


def _literal(array, dtype):
    """Source of a scalar or of the first two rows as a tensor, zeros if large."""
    array = array[:2] if array.ndim else array
    if array.size > 100:
        return f"tf.zeros({list(array.shape)}, tf.{dtype})"
    if array.dtype.kind == "f":
        array = array.astype("float64").round(3)
    return f"tf.constant({array.tolist()}, tf.{dtype})"
