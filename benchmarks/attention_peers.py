"""The forms of attention that `bench_prob_sparse` races, and the calls that it times.

All take `query` of shape `(batch_size, num_queries, heads, key_dim)`, `key` and `value`
of shape `(batch_size, num_keys, heads, dim)`, and give `(batch_size, num_queries,
heads, dim)`. Scores are multiplied with `scale`, by default `1 / sqrt(key_dim)`.
"""

import math
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from softmax_models import limit_threads

BATCH, HEADS, DIM, FACTOR = 4, 8, 64, 5
MODES = {"graph": False, "XLA": True}
STREAMED = {"stream": True, "blocks": False}
"""What a form of ours sets; `"ours"` streams what XLA compiles."""


# --- Forms --------------------------------------------------------------------------


def gathered_measure(query, key, key_index):
    """The measure that ranks the queries, from all sampled keys in one tensor.

    Args:
        query: Tensor, `(batch_size, heads, num_queries, key_dim)`.
        key: Tensor, `(batch_size, heads, num_keys, key_dim)`.
        key_index: Integers, `(num_queries, num_samples)`.

    Returns:
        Tensor, `(batch_size, heads, num_queries)`.
    """
    from keras import ops

    sampled = ops.take(key, key_index, axis=2)
    scores = ops.matmul(sampled, ops.expand_dims(query, -1))[..., 0]
    return ops.max(scores, axis=-1) - ops.sum(scores, axis=-1) / key.shape[2]


def gather_attention(
    query, key, value, key_index, *, factor=FACTOR, causal=False, scale=None
):
    """Sparse attention as it was published: the sampled keys are gathered.

    What is selected are indices, so that no gradient goes through the measure, here as
    there, and a graph keeps nothing of it for the way back.

    Args:
        query: See above.
        key: See above.
        value: See above.
        key_index: Integers, `(num_queries, num_samples)`.
        factor: Sampling factor, of the number of queries that attend.
        causal: Whether keys behind a query are hidden, and other queries get the
            running sum of the values in place of their mean.
        scale: See above.
    """
    from keras import ops

    batch_size, num_queries, heads, width = query.shape
    query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    count = max(1, min(factor * math.ceil(math.log(num_queries)), num_queries))
    _, top = ops.top_k(gathered_measure(query, key, key_index), count, sorted=False)
    top = ops.cast(top, "int32")
    chosen = ops.take_along_axis(query, top[..., None], axis=2)
    scores = ops.matmul(chosen, ops.transpose(key, (0, 1, 3, 2)))
    scores = scores * (width**-0.5 if scale is None else scale)
    if causal:
        future = ops.arange(key.shape[2], dtype="int32") > top[..., None]
        scores = ops.where(future, -math.inf, scores)
        lazy = ops.cumsum(value, axis=2)
    else:
        lazy = ops.broadcast_to(
            ops.mean(value, axis=2, keepdims=True),
            (batch_size, heads, num_queries, value.shape[-1]),
        )
    attended = ops.matmul(ops.softmax(scores, axis=-1), value)
    rows = [
        ops.broadcast_to(ops.arange(batch_size)[:, None, None], top.shape),
        ops.broadcast_to(ops.arange(heads)[:, None], top.shape),
        top,
    ]
    places = ops.reshape(ops.stack(rows, axis=-1), (-1, 3))
    attended = ops.reshape(attended, (-1, value.shape[-1]))
    context = ops.scatter_update(lazy, places, attended)
    return ops.transpose(context, (0, 2, 1, 3))


def full_attention(query, key, value, *, causal=False, scale=None):
    """Full attention, written out.

    Args:
        query: See above.
        key: See above.
        value: See above.
        causal: Whether keys behind a query are hidden.
        scale: See above.
    """
    from keras import ops

    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * ops.einsum("bqhe,bkhe->bhqk", query, key)
    if causal:
        past = ops.arange(key.shape[1]) <= ops.arange(query.shape[1])[:, None]
        scores = ops.where(past, scores, -math.inf)
    return ops.einsum("bhqk,bkhd->bqhd", ops.softmax(scores, axis=-1), value)


def fused_attention(query, key, value, *, causal=False, scale=None):
    """Full attention of `keras.ops`; arguments as in `full_attention`."""
    from keras import ops

    return ops.dot_product_attention(query, key, value, is_causal=causal, scale=scale)


def our_attention(*args, **kwargs):
    """The sparse attention of this library; arguments as in `gather_attention`."""
    from keras_recsys.ops import prob_sparse_attention

    return prob_sparse_attention(*args, **kwargs)


# The function of a form, and whether it takes a sample of the keys.
FORMS = {
    "ours": (our_attention, True),
    "stream": (our_attention, True),
    "blocks": (our_attention, True),
    "gather": (gather_attention, True),
    "full": (full_attention, False),
    "sdpa": (fused_attention, False),
}


# --- Calls --------------------------------------------------------------------------


def random_inputs(length):
    """Query, key, value and the gradient of the output, and a sample of the keys."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    shape = (BATCH, length, HEADS, DIM)
    heads = [tf.constant(rng.standard_normal(shape, "float32")) for _ in range(4)]
    count = max(1, min(FACTOR * math.ceil(math.log(length)), length))
    index = rng.integers(0, length, (length, count)).astype("int32")
    return heads, tf.constant(index)


def attention_call(form, length, mode, causal=False):
    """Output and gradients of query, key and value, in the graph or in XLA.

    Args:
        form: A key of `FORMS`.
        length: Number of queries and of keys.
        mode: A key of `MODES`.
        causal: Whether keys behind a query are hidden. Defaults to `False`.

    Returns:
        A function of no argument, traced, that ends when the work is done and gives the
        output and the three gradients.
    """
    import tensorflow as tf

    function, is_sparse = FORMS[form]
    heads, index = random_inputs(length)

    @tf.function(jit_compile=MODES[mode])
    def backward(query, key, value, gradient, index):
        inputs = query, key, value
        options = {"key_index": index, "factor": FACTOR} if is_sparse else {}
        if function is our_attention:
            options["streamed"] = STREAMED.get(form, MODES[mode] or None)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = function(*inputs, causal=causal, **options)
        return output, *tape.gradient(output, inputs, output_gradients=gradient)

    def call():
        results = backward(*heads, index)
        results[-1][0, 0, 0, 0].numpy()  # waits for all of them
        return results

    call()
    return call


def run_attention(form, length, mode, causal=False):
    """What a process of a memory case does."""
    limit_threads()
    call = attention_call(form, length, mode, causal)
    call()
