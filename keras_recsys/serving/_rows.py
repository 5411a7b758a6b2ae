"""Rows to check an export with: from a sample, or made up; as ids, or raw."""

import itertools

import numpy as np

from keras_recsys.data.hashed_vocabulary import HashedVocabulary


def check_sample(sample, interface):
    """The sample as arrays of the dtypes of the inputs.

    Raises:
        TypeError: If `sample` is no dict.
        ValueError: If its names, shapes or dtypes are not those of the model.
    """
    if not isinstance(sample, dict):
        raise TypeError(
            "`sample` must be a dict from input name to array. "
            f"Received: sample={sample!r}."
        )
    if set(sample) != set(interface.tensors):
        raise ValueError(
            f"`sample` must hold the inputs {sorted(interface.tensors)}. "
            f"Received: {sorted(sample, key=str)}."
        )
    arrays = {}
    for name, tensor in interface.tensors.items():
        array = np.asarray(sample[name])
        shape = tuple(tensor.shape)
        if len(array.shape) != len(shape) or any(
            want is not None and want != got
            for want, got in zip(shape, array.shape, strict=True)
        ):
            raise ValueError(
                f"`sample[{name!r}]` must have shape {shape}. "
                f"Received: shape {array.shape}."
            )
        integers = tensor.dtype.startswith(("int", "uint"))
        if array.dtype.kind not in ("iu" if integers else "iufb"):
            raise ValueError(
                f"`sample[{name!r}]` must hold {tensor.dtype} values, as the model "
                f"takes. Received: dtype {array.dtype}."
            )
        arrays[name] = array.astype(_stored_dtype(tensor.dtype))
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise ValueError(
            "`sample` must have at least one row, and as many for each input. "
            f"Received: rows={counts!r}."
        )
    return arrays


def sample_inputs(sample, interface, rows):
    """Check inputs from the sample, repeated or cut to `rows` rows.

    Returns:
        A list of dicts: the sample, and with open lengths also another length.
    """
    index = np.arange(rows) % len(next(iter(sample.values())))
    first = {name: array[index] for name, array in sample.items()}
    second = dict(first)
    for name, tensor in interface.tensors.items():
        for axis, size in enumerate(tensor.shape):
            if axis == 0 or size is not None:
                continue
            array = second[name]
            if array.shape[axis] > 1:
                second[name] = np.delete(array, -1, axis=axis)
            else:
                widths = [(0, int(at == axis)) for at in range(array.ndim)]
                second[name] = np.pad(array, widths)
    changed = any(first[name].shape != second[name].shape for name in first)
    return [first, second] if changed else [first]


def made_inputs(interface, vocabularies, rows, length, rng):
    """Check inputs by drawing: ids within their tables, normal numbers."""
    arrays = {}
    for name, tensor in interface.tensors.items():
        shape = (rows, *(size or length for size in tensor.shape[1:]))
        dtype = _stored_dtype(tensor.dtype)
        if "float" in dtype:
            arrays[name] = rng.normal(size=shape).astype(dtype)
            continue
        default = vocabularies[name].size if name in vocabularies else 2
        limit = min(interface.table_sizes(name), default=default)
        ids = rng.integers(0, limit, size=shape)
        ids[-1] = limit - 1
        if len(shape) == 2:
            ids = _pad_some(np.maximum(ids, min(1, limit - 1)), rng)
        arrays[name] = ids.astype(dtype)
    return arrays


def raw_values(vocabulary, ids):
    """Raw values that stand for `ids`, an unseen one in the second row.

    With a separator the first row gets no padding, so that alone it is as long as all
    of them together.
    """
    unseen = _unseen_value(vocabulary)
    if isinstance(vocabulary, HashedVocabulary):
        values = _hashable_values(vocabulary, ids)
    else:
        values = vocabulary.decode(ids)
    if vocabulary.separator is None:
        values[values == np.array(None)] = unseen
        values[(1,) + (0,) * (ids.ndim - 1)] = unseen
        return values.astype(str if vocabulary.dtype == "string" else "int64")
    cells = []
    for row, (parts, used) in enumerate(zip(values, ids != 0, strict=True)):
        parts[parts == np.array(None)] = unseen
        if row == 0:
            used[:] = True
        elif row == 1:
            parts[0], used[0] = unseen, True
        cells.append(vocabulary.separator.join(parts[used]))
    return np.array(cells, str)


def _stored_dtype(dtype):
    """The dtype itself, or float32 for bfloat16, which `.npz` files cannot hold."""
    return "float32" if dtype == "bfloat16" else dtype


def _pad_some(ids, rng):
    """Puts padding, 0, behind the ids: none in the first row, nothing else in one."""
    rows, length = ids.shape
    counts = rng.integers(1, length + 1, size=rows)
    counts[0] = length
    counts[rows // 2] = 0
    return np.where(np.arange(length) < counts[:, None], ids, 0)


def _hashable_values(vocabulary, ids):
    """Values of the shape of `ids`, the same for equal ids: letters, or the ids."""
    if vocabulary.dtype == "int64":
        return ids.astype(object)
    letters = (chr(code) for code in itertools.count(ord("a")))
    allowed = (x for x in letters if x not in (vocabulary.separator or ""))
    allowed = np.array(list(itertools.islice(allowed, 26)), object)
    return allowed[ids % len(allowed)]


def _unseen_value(vocabulary):
    """A value out of the vocabulary, or its first value if it takes no others."""
    if isinstance(vocabulary, HashedVocabulary):
        known = set()  # any value will do
    elif not vocabulary.num_oov:
        return vocabulary.values[0]
    else:
        known = set(vocabulary.values)
    if vocabulary.dtype == "int64":
        return next(n for n in itertools.count(2**40) if n not in known)
    words = itertools.chain(["unseen"], (2 * chr(code) for code in itertools.count(33)))
    separator = vocabulary.separator or "\n"
    return next(word for word in words if word not in known and separator not in word)
