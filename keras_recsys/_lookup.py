"""Reading embedding tables: the ids that are safe to read, and the read itself.

This is the one place of the layers that looks at the backend.
"""

import keras
import numpy as np
from keras import ops

# Integers above these are not all representable in a float of the type.
_EXACT_BELOW = {
    "bfloat16": 2**8,
    "float16": 2**11,
    "float32": 2**24,
    "float64": 2**53,
}
_INT32_MAX = 2**31 - 1


def id_dtype(num_ids):
    """Integer dtype that holds the ids `0 .. num_ids - 1`.

    Raises:
        ValueError: If they need int64 and the backend has none.
    """
    if num_ids - 1 <= _INT32_MAX:
        return "int32"
    if not has_int64():
        raise ValueError(
            "`input_dim` must be at most 2**31 on JAX without 64-bit integers; set "
            "`jax.config.update('jax_enable_x64', True)` first. "
            f"Received: input_dim={num_ids!r}."
        )
    return "int64"


def has_int64():
    """Whether the backend has 64-bit integers, which JAX must be asked for."""
    if keras.config.backend() != "jax":
        return True
    import jax

    return jax.config.jax_enable_x64


def narrow_array(ids):
    """Keeps 64-bit ids of a NumPy array from being cut to 32 bits on JAX.

    Ids that do not fit become -1, which no table holds.
    """
    if (
        isinstance(ids, np.ndarray)
        and ids.dtype in ("int64", "uint64", "uint32")
        and not has_int64()
    ):
        fits = (ids >= -(2**31)) & (ids <= _INT32_MAX)
        return np.where(fits, ids, -1).astype("int32")
    return ids


def safe_ids(ids, num_ids, out_of_range):
    """Replaces the ids that cannot be read.

    Args:
        ids: Tensor of any integer dtype, or of a float dtype that can count to
            `num_ids`.
        num_ids: Number of ids in the vocabulary; or a tuple of ints below 2**31, one
            for each vocabulary that the last axis of `ids` runs over.
        out_of_range: `"mod"` wraps; all others read row 0 and leave the answer to
            `settle` and the layer.

    Returns:
        Tuple of the ids in `id_dtype` of the largest `num_ids` and a boolean tensor of
        the same shape, `True` where the id was in `[0, num_ids)`.

    Raises:
        ValueError: If the dtype of `ids` cannot hold the ids.
    """
    dtype = keras.backend.standardize_dtype(ids.dtype)
    largest = max(num_ids) if isinstance(num_ids, tuple) else num_ids
    if dtype in _EXACT_BELOW and largest > _EXACT_BELOW[dtype]:
        raise ValueError(
            f"`inputs` must be integers: {dtype} merges ids above "
            f"{_EXACT_BELOW[dtype]}. Received: inputs of dtype {dtype} for {largest} "
            "ids. Declare the input with `dtype='int32'` or `'int64'`."
        )
    if dtype == "bool":
        raise ValueError("`inputs` must be integers. Received: inputs of dtype bool.")
    target = id_dtype(largest)
    beyond = None
    if dtype == "uint64" and out_of_range == "mod":
        # The cast takes 2**64 from those above int64.
        rest = np.array(2**64 % np.array(num_ids, object), "int64")
        beyond = ops.cast(ops.cast(ids, "int64") < 0, "int64") * rest
    if dtype.startswith("uint"):
        dtype = "int64" if dtype in ("uint32", "uint64") else "int32"
        ids = ops.cast(ids, dtype)
    elif dtype in ("int8", "int16"):
        dtype = "int32"
        ids = ops.cast(ids, dtype)
    if dtype == "int32" and largest > _INT32_MAX:
        in_range = ids >= 0
    else:
        sizes = ops.convert_to_tensor(num_ids, dtype=dtype)
        in_range = ops.logical_and(ids >= 0, ids < sizes)
    if dtype in _EXACT_BELOW:
        in_range = ops.logical_and(in_range, ids == ops.floor(ids))
        if out_of_range == "mod":
            raise ValueError(
                "`inputs` must be integers where `out_of_range` is 'mod'. "
                f"Received: inputs of dtype {dtype}."
            )
    if out_of_range == "mod":
        wide = (
            "int64" if "int64" in (dtype, target) or largest > _INT32_MAX else "int32"
        )
        modulus = ops.convert_to_tensor(num_ids, dtype=wide)
        # `ops.mod` makes int64 int32 on torch.
        ids = ops.cast(ids, wide) % modulus
        if beyond is not None:
            ids = (ids + beyond) % modulus
        return ops.cast(ids, target), in_range
    ids = ops.where(in_range, ids, ops.zeros_like(ids))
    return ops.cast(ids, target), in_range


def split_digits(ids, sizes):
    """Digits of ids that are not negative, exact for every int64.

    Args:
        ids: Integer tensor.
        sizes: List of ints, how many values each digit has, the least significant
            first; one more digit takes what is left.

    Returns:
        List of `len(sizes) + 1` tensors like `ids`.
    """
    digits = []
    for size in sizes:
        divisor = ops.convert_to_tensor(size, dtype=ids.dtype)
        rest = ids // divisor  # `ops.floor_divide` makes int64 int32 on torch
        digits.append(ids - rest * divisor)
        ids = rest
    return [*digits, ids]


def read_rows(table, ids, dtype):
    """Reads rows of an embedding table and casts them, never the table.

    On TensorFlow the gradient is an `IndexedSlices`, and the update that follows
    touches these rows alone.

    Args:
        table: `keras.Variable` of shape `(rows, dim)`, made with `autocast=False`.
        ids: Integer tensor of any shape, every id in `[0, rows)`.
        dtype: Dtype of the result.

    Returns:
        Tensor of shape `ids.shape + (dim,)`.
    """
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        return ops.cast(tf.gather(table.value, ids), dtype)
    return ops.cast(ops.take(table, ids, axis=0), dtype)


def settle(vectors, ids, in_range, num_ids, out_of_range, name, fields=None):
    """Gives ids outside the vocabulary the answer that `out_of_range` asks for.

    Args:
        vectors: What was read, `ids.shape + (dim,)`.
        ids: The ids as they came in.
        in_range: Boolean tensor, `ids.shape`.
        num_ids: Number of ids in the vocabulary, or a tuple as in `safe_ids`.
        out_of_range: The policy.
        name: What the message calls the layer.
        fields: Tuple of the names of the vocabularies where `num_ids` is a tuple.

    Returns:
        Tensor like `vectors`: untouched by `"mod"` and `"oov"`, 0 for `"zero"`, NaN
        for `"nan"`, and for `"error"` where a compiled graph cannot raise.

    Raises:
        ValueError: Under `"error"`, when the values are at hand. A TensorFlow graph
            raises `InvalidArgumentError` as it runs.
    """
    if out_of_range in ("mod", "oov"):
        return vectors
    keep = ops.expand_dims(in_range, -1)
    if out_of_range == "zero":
        return ops.where(keep, vectors, ops.zeros_like(vectors))
    if out_of_range == "error":
        in_range = _require(in_range, ids, num_ids, name, fields)
        keep = ops.expand_dims(in_range, -1)
    # An addition, so that the gradient of the vectors passes without a further step.
    return vectors + zero_or_nan(keep, vectors.dtype)


def zero_or_nan(kept, dtype):
    """0 where the boolean tensor `kept` is `True`, and NaN elsewhere."""
    zero = ops.zeros((), dtype)
    return ops.where(kept, zero, zero + float("nan"))


def _require(in_range, ids, num_ids, name, fields):
    """Raises where the backend can; returns `in_range`, tied to the check."""
    cure = (
        ". Make the vocabulary as large as the largest id plus one, or choose another "
        "`out_of_range`. (An id that the dtype of an input cannot hold counts as -1.)"
    )
    backend = keras.config.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        if not tf.executing_eagerly():
            check = _assert(in_range, ids, num_ids, name, fields, cure)
            with tf.control_dependencies([check]):
                return tf.identity(in_range)
    elif backend == "jax":
        import jax

        if isinstance(in_range, jax.core.Tracer):
            return in_range
    elif getattr(getattr(in_range, "device", None), "type", None) == "meta":
        return in_range
    kept = ops.convert_to_numpy(in_range)
    if not kept.all():
        bad = np.argwhere(~kept)[0]
        if fields is not None:
            name += f" for feature {fields[bad[-1]]!r}"
            num_ids = num_ids[bad[-1]]
        bad = ops.convert_to_numpy(ids)[tuple(bad)]
        raise ValueError(f"{_allowed(name, num_ids)} Received: id {bad}{cure}")
    return in_range


def _assert(in_range, ids, num_ids, name, fields, cure):
    """The check of a TensorFlow graph; what it says is computed when it fails."""
    import tensorflow as tf

    def fail():
        if fields is None:
            told = [(name, num_ids, False, tf.reduce_min(ids), tf.reduce_max(ids))]
        else:
            names = [f"{name} for feature {field!r}" for field in fields]
            parts = (tf.reduce_all(in_range, 0), tf.reduce_min(ids, 0))
            parts = map(tf.unstack, (*parts, tf.reduce_max(ids, 0)))
            told = zip(names, num_ids, *parts, strict=True)
        for called, size, kept, low, high in told:
            data = [f"{_allowed(called, size)} Received: ids from", low, "to", high]
            tf.raw_ops.Assert(condition=kept, data=[*data, cure])
        return False

    return tf.cond(tf.reduce_all(in_range), lambda: True, fail)


def _allowed(name, num_ids):
    return f"`inputs` of layer {name} must be whole ids in [0, {num_ids})."
