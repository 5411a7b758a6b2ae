"""Writes a model of the next item as a SavedModel that gives the best `k` items."""

import keras
import numpy as np

from keras_recsys._checks import check_int
from keras_recsys.layers import ExcludeSeen
from keras_recsys.layers.sequential._steps import LOWEST
from keras_recsys.models.sequential.two_stage import candidate_head
from keras_recsys.serving._interface import Interface
from keras_recsys.serving._place import check_path, move_into_place, workspace
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
from keras_recsys.serving.export import ExportReport

ITEMS = "item_ids"


def export_next_item(
    model,
    path,
    *,
    item_values=None,
    exclude_seen=False,
    num_candidates=None,
    overwrite=False,
    verbose=True,
):
    """Writes a model as a SavedModel that gives the best `k` next items.

    The signature `serving_default` takes `item_ids`, `(batch_size, seq_len)`, the
    histories, and `k`, an int32 scalar that each call chooses. Its outputs are
    `item_ids` and `scores`, both `(batch_size, k)`, best first. Padding, id 0, is never
    an answer: a row with fewer items than `k`, which only `exclude_seen` makes, ends in
    id 0 with -1e9. A `k` below 1 is an error, as is one above the number of items, or
    of candidates.

    Before anything is put at `path`, a fresh process loads the SavedModel and is asked
    batches of 1 and 7 rows, of two lengths where they are open. Scores must be within
    `1e-6 + 1e-5 * abs(expected)` of those of the model, see `export`, and items whose
    scores are as near to each other may change places.

    Args:
        model: A functional `keras.Model` with the one input `"item_ids"`, integers of
            shape `(batch_size, seq_len)`, and an output `"logits"`, `(batch_size,
            num_items + 1)`, as the builders of next-item models return.
        path: Where to write, a directory that does not exist. Missing parents are made.
        item_values: Optional sequence of the raw values of ids 1, 2, ..., strings or
            integers, each once, such as the `values` of a `Vocabulary` with `padding`
            and `num_oov=0`. The signature then takes raw values, where one that is not
            among them is no item, and gives them; in place of id 0 there is an empty
            string or 0, which cannot be values. Defaults to `None`, ids.
        exclude_seen: Whether the items of the history are left out, and others given
            for them. Defaults to `False`.
        num_candidates: Optional positive int: of so many items, found by one search,
            and of the history the scores are worked out, see `build_two_stage`, which
            says when the answers are the same. Defaults to `None`, of all.
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
        TypeError: If `model`, `item_values` or `num_candidates` is of another type, or
            `model` is no `NextItemModel` where `num_candidates` is given.
        ValueError: If the model is not functional, has other inputs or outputs, or its
            head has no scores of candidates; or `item_values` do not fit it.

    Example:
    >>> ids = keras.Input((None,), dtype="int32", name="item_ids")
    >>> x = keras.layers.GlobalMaxPooling1D()(keras.layers.Embedding(5, 5)(ids))
    >>> model = keras.Model({"item_ids": ids}, {"logits": x})
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_next_item(model, folder + "/1", verbose=False)
    >>> report.signatures["serving_default"]["inputs"]
    {'item_ids': ('int32', (None, None)), 'k': ('int32', ())}
    """
    if keras.config.backend() != "tensorflow":
        raise RuntimeError(
            "`export_next_item` writes a SavedModel and must run on the TensorFlow "
            "backend: save the model, set KERAS_BACKEND=tensorflow and load it there. "
            f"Received: backend={keras.config.backend()!r}."
        )
    interface = Interface(model)
    num_items = _check_interface(interface)
    if num_candidates is not None:
        candidate_head(model)
        num_candidates = min(check_int("num_candidates", num_candidates), num_items)
    if item_values is not None:
        item_values = _check_values(item_values, num_items)
    path = check_path(path, overwrite)
    scorer = _make_scorer(interface, bool(exclude_seen), num_candidates)
    most = num_candidates or num_items
    signature = _signature(interface, item_values)
    with workspace(path) as room, quiet():
        cases = _make_cases(scorer, item_values, num_items, most)
        folder = room / "model"  # not the room itself, which is closed to others
        _save(scorer, item_values, most, signature, folder)
        signatures = {DEFAULT: signature}
        max_difference = check_in_fresh_process(
            folder, room, signatures, cases, tolerances(model)
        )
        move_into_place(folder, path, room)
    snippet = make_snippet(path, signatures, cases)
    if verbose:
        print(snippet, end="")  # noqa: T201
    return ExportReport(path, signatures, max_difference, snippet)


def _check_interface(interface):
    """The number of items of a model.

    Raises:
        ValueError: If it has other inputs than a history, or no logits.
    """
    inputs, outputs = interface.tensors, interface.output_tensors
    ids, logits = inputs.get(ITEMS), outputs.get("logits")
    if (
        len(inputs) != 1
        or ids is None
        or not ids.dtype.startswith(("int", "uint"))
        or len(ids.shape) != 2
    ):
        shapes = {name: (x.dtype, tuple(x.shape)) for name, x in inputs.items()}
        raise ValueError(
            f"`model` must have the one input {ITEMS!r}, integers of shape "
            f"(batch_size, seq_len). Received: inputs={shapes}."
        )
    if logits is None or len(logits.shape) != 2 or (logits.shape[1] or 0) < 2:
        shapes = {name: tuple(x.shape) for name, x in outputs.items()}
        raise ValueError(
            "`model` must have an output 'logits' of shape (batch_size, num_items + "
            f"1). Received: outputs={shapes}."
        )
    return logits.shape[1] - 1


def _check_values(item_values, num_items):
    """The raw value of each id as an array, that of id 0 included.

    Raises:
        TypeError: If they are neither strings nor integers.
        ValueError: If they are not one for each item, or one cannot be told from
            padding.
    """
    values = item_values
    if not isinstance(values, np.ndarray):
        values = np.array(list(values) if not isinstance(values, str) else values)
    if values.dtype.kind == "O" and all(isinstance(x, str) for x in values.ravel()):
        values = values.astype(str)
    if values.ndim != 1 or values.dtype.kind not in "iuU":
        raise TypeError(
            "`item_values` must be a sequence of strings or of integers. Received: "
            f"dtype {values.dtype}, shape {values.shape}."
        )
    if len(values) != num_items:
        raise ValueError(
            f"`item_values` must hold one value for each of the {num_items} items of "
            f"the model. Received: {len(values)} values."
        )
    values = values if values.dtype.kind == "U" else values.astype("int64")
    values = np.concatenate([np.zeros(1, values.dtype), values])
    kinds, counts = np.unique(values, return_counts=True)
    if len(kinds) != len(values):
        raise ValueError(
            "`item_values` must hold each value once, and not that of padding, "
            f"{values[0].item()!r}. Received: {kinds[counts > 1].tolist()[:5]}."
        )
    return values


def _make_scorer(interface, exclude_seen, num_candidates):
    """A model of the scores of what may be given, the lowest for what may not.

    Its outputs are `"logits"`, `(batch_size, any)`, and with `num_candidates` their
    `"ids"`.
    """
    ids = interface.tensors[ITEMS]
    if num_candidates is None:
        excluded = ids if exclude_seen else ids[:, :0]
        logits = ExcludeSeen()(interface.output_tensors["logits"], excluded)
        return keras.Model({ITEMS: ids}, {"logits": logits})
    head = candidate_head(interface.model)
    logits, items = head(
        *head.input,
        candidates=num_candidates,
        excluded=ids if exclude_seen else None,
    )
    return keras.Model({ITEMS: ids}, {"logits": logits, "ids": items})


def _make_cases(scorer, item_values, num_items, most):
    """Rows to ask the signature, with the answers of the model."""
    rng = np.random.default_rng(0)
    spec = scorer.input[ITEMS]
    rows, k = max(BATCH_SIZES), min(5, most)
    cases = []
    for length in [spec.shape[1]] if spec.shape[1] else LENGTHS:
        ids = rng.integers(1, num_items + 1, size=(rows, length)).astype(spec.dtype)
        ids[1, ::2] = 0
        ids[rows // 2] = 0  # no history
        with full_precision():
            found = scorer({ITEMS: ids}, training=False)
        found = {name: keras.ops.convert_to_numpy(x) for name, x in found.items()}
        logits = found["logits"]
        every = np.broadcast_to(np.arange(num_items + 1), (rows, num_items + 1))
        ranked = {"ids": found.get("ids", every), "scores": logits}
        inputs = {ITEMS: ids, "k": np.array(k, "int32")}
        if item_values is not None:
            ranked["values"], inputs[ITEMS] = item_values, item_values[ids]
        scores = -np.sort(-logits, axis=1)[:, :k]
        outputs = {ITEMS: scores, "scores": scores}
        cases.append(Case(DEFAULT, inputs, outputs, ranked, ITEMS))
    return cases


def _signature(interface, item_values):
    """Names, dtypes and shapes, as they are to be."""
    ids = interface.tensors[ITEMS]
    dtype = ids.dtype
    if item_values is not None:
        dtype = "string" if item_values.dtype.kind == "U" else "int64"
    inputs = {ITEMS: (dtype, tuple(ids.shape)), "k": ("int32", ())}
    outputs = {ITEMS: (dtype, (None, None)), "scores": ("float32", (None, None))}
    return {"inputs": inputs, "outputs": outputs}


def _save(scorer, item_values, most, signature, folder):
    """Writes the signature as a SavedModel."""
    import tensorflow as tf

    id_dtype = scorer.input[ITEMS].dtype
    tables = []
    if item_values is not None:
        values = tf.constant(item_values)
        every = tf.range(len(item_values), dtype="int64")
        pairs = (values[1:], every[1:], 0), (every[1:], values[1:], values[0])
        tables = [
            tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(keys, results), default
            )
            for keys, results, default in pairs
        ]

    def answer(item_ids, k):
        if tables:
            item_ids = tf.cast(tables[0].lookup(item_ids), id_dtype)
        found = scorer({ITEMS: item_ids}, training=False)
        with tf.control_dependencies(_assertions(k, most)):
            scores, places = tf.math.top_k(found["logits"], k)
        if "ids" in found:
            places = tf.gather(found["ids"], places, batch_dims=1)
        ids = tf.where(scores > LOWEST, places, 0)
        if tables:
            ids = tables[1].lookup(tf.cast(ids, "int64"))
        else:
            ids = tf.cast(ids, id_dtype)
        return {ITEMS: ids, "scores": scores}

    specs = {
        name: tf.TensorSpec(shape, dtype, name=name)
        for name, (dtype, shape) in signature["inputs"].items()
    }
    function = tf.function(answer, autograph=False).get_concrete_function(**specs)
    write({DEFAULT: function}, folder, [scorer], tables)


def _assertions(k, most):
    """Operations that fail where `k` is not from 1 to `most`."""
    import tensorflow as tf

    few = tf.strings.format("`k` must be at least 1. Received: k={}.", k)
    many = tf.strings.format(
        f"`k` must be at most {most}. Received: k={{}}; {{}} > {most} candidates.",
        (k, k),
    )
    return [
        tf.debugging.Assert(k >= 1, [few]),
        tf.debugging.Assert(k <= most, [many]),
    ]
