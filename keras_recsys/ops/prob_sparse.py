"""ProbSparse attention: only the queries that stand out attend to the keys.

Which do is read off a measure on a sample of the keys of each query. Gathered, that
sample would be larger than the whole matrix of scores for all but very long series. It
never exists here: the scores are computed by blocks of queries and read at the sampled
places, or, streamed, one feature of all sampled keys is read after the other.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_choice, check_int, check_positive
from keras_recsys._dtypes import wide_dtype

DIVISORS = ("key_len", "sample")
LAZY = ("cumsum", "cummean")

# Queries whose scores on all keys are held at once.
_BLOCK = 128
# Steps whose running sum is one product.
_SUMMED = 48

_LOWEST = float(np.finfo("float32").min)


def prob_sparse_counts(query_len, key_len, factor=5):
    """How many queries attend, and how many keys each is measured on.

        num_queries = min(factor * ceil(ln query_len), query_len)
        num_keys = min(factor * ceil(ln key_len), key_len)

    Both are at least 1.

    Args:
        query_len: Positive int, the number of queries.
        key_len: Positive int, the number of keys.
        factor: Positive int. Defaults to `5`.

    Returns:
        Tuple of two ints, `num_queries` and `num_keys`.

    Raises:
        TypeError: If an argument is not an integer.
        ValueError: If one is below 1.

    Example:
    >>> prob_sparse_counts(48, 96)
    (20, 25)

    Reference:
        Zhou et al., "Informer: Beyond Efficient Transformer for Long Sequence
        Time-Series Forecasting", AAAI 2021, Section 3. The ceiling is that of the
        authors' code. Differs from it: a length of 1 gives 1, where they fail.
    """
    factor = check_int("factor", factor)
    lengths = check_int("query_len", query_len), check_int("key_len", key_len)
    return tuple(max(1, min(factor * math.ceil(math.log(x)), x)) for x in lengths)


def sample_key_index(
    query_len, key_len, num_keys, *, causal=False, shared=False, seed=None
):
    """Draws the keys that each query is measured on, with replacement.

    Args:
        query_len: Positive int, the number of queries.
        key_len: Positive int, the number of keys.
        num_keys: Positive int, how many are drawn for each query.
        causal: Whether a query draws only from the keys up to its own step. Defaults to
            `False`.
        shared: Whether all queries share one sample. Defaults to `False`.
        seed: `keras.random.SeedGenerator`, int or `None`, as in `keras.random`.

    Returns:
        Int32 tensor, `(query_len, num_keys)`, or `(num_keys,)` if it is shared.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If a number is below 1, or a shared sample is asked to be causal.

    Example:
    >>> tuple(sample_key_index(48, 96, 25, seed=0).shape)
    (48, 25)
    """
    query_len = check_int("query_len", query_len)
    key_len = check_int("key_len", key_len)
    num_keys = check_int("num_keys", num_keys)
    if not causal:
        shape = (num_keys,) if shared else (query_len, num_keys)
        return keras.random.randint(shape, 0, key_len, dtype="int32", seed=seed)
    if shared:
        raise ValueError(
            "`causal` must be False where `shared` is True: one sample of keys is not "
            f"before every query. Received: causal={causal!r}, shared={shared!r}."
        )
    steps = np.minimum(np.arange(query_len), key_len - 1)[:, None]
    share = keras.random.uniform((query_len, num_keys), dtype="float32", seed=seed)
    index = ops.floor(share * ops.convert_to_tensor(steps + 1, dtype="float32"))
    steps = ops.convert_to_tensor(steps, dtype="int32")
    return ops.minimum(ops.cast(index, "int32"), steps)


def sparsity_measure(
    query,
    key,
    key_index=None,
    *,
    divisor="key_len",
    causal=False,
    query_mask=None,
    key_mask=None,
    streamed=None,
):
    """How far the attention of each query is from a uniform one.

    On the sampled keys `I_i` of query `i`, with `s_ij = query_i . key_j`,

        measure_i = max_{j in I_i} s_ij - sum_{j in I_i} s_ij / key_len

    and without a sample the exact measure, on all keys,

        measure_i = ln sum_j exp(s_ij / sqrt(dim)) - mean_j s_ij / sqrt(dim)

    No gradient flows through it. Streamed, its time grows with `query_len * num_keys *
    dim`, and `query_len * num_keys` scores of each row and head are held, but no key
    twice; else time grows with the product of both lengths, and memory does not.

    Args:
        query: Float tensor, `(batch_size, query_len, num_heads, dim)`.
        key: Float tensor, `(batch_size, key_len, num_heads, dim)`.
        key_index: Integer tensor, `(query_len, num_keys)`, the keys that each query is
            measured on; a key that stands twice counts twice. Or `(num_keys,)`, the
            same for all queries. In a graph a step that is none counts as the nearest.
            Defaults to `None`, all keys and the exact measure.
        divisor: What the sum is divided by: `"key_len"`, as the authors' code does, or
            `"sample"`, the number of sampled keys, which makes it a mean. Defaults to
            `"key_len"`.
        causal: Whether the keys of a query end with its own step: those of `key_index`
            must, and the length that `"key_len"` stands for does. Defaults to `False`.
        query_mask: Boolean tensor, `(batch_size, query_len)`; `False` makes the measure
            the lowest number. Defaults to `None`.
        key_mask: Boolean tensor, `(batch_size, key_len)`; `False` leaves a key out, of
            the sample and of the length. Defaults to `None`.
        streamed: Whether a sample for each query is read feature by feature, and not
            from scores on all keys. What XLA compiles (on JAX, or with `jit_compile`)
            is faster with it at any length. Defaults to `None`, where it is faster
            uncompiled: where `num_keys * dim` is at most `key_len`.

    Returns:
        Tensor, `(batch_size, num_heads, query_len)`, of float32 at least. A query
        without a key has the lowest number.

    Raises:
        TypeError: If `key_index` holds no integers.
        ValueError: If shapes do not fit or are not static, `causal` comes with one
            sample of all queries, or an array with a key that there is not.

    Example:
    >>> x = np.ones((2, 6, 1, 4), "float32")
    >>> tuple(sparsity_measure(x, x, np.zeros((6, 3), "int32")).shape)
    (2, 1, 6)

    Reference:
        Zhou et al., "Informer", AAAI 2021, Eq. 2 and Section 3. Differs from the paper:
        it takes the mean of the sample, the authors' code divides by all keys; they
        select different queries, and `divisor` chooses.
    """
    check_choice("divisor", divisor, DIVISORS)
    check_streamed(streamed)
    query_len, key_len = _check_lengths(query, key)
    query, key = ops.stop_gradient(query), ops.stop_gradient(key)
    dtype = keras.backend.standardize_dtype(query.dtype)
    wide, scale = wide_dtype(dtype), 1.0
    if key_index is None or dtype != wide:  # half precisions would overflow
        scale = query.shape[-1] ** -0.5
        query = query * ops.cast(scale, query.dtype)
    kept = None if key_mask is None else ops.cast(key_mask, wide)
    if key_index is None:
        measure = _exact_measure(query, key, kept, causal, wide)
    else:
        key_index = _check_index(key_index, query_len, key_len, causal)
        highest, total, count = _sampled(query, key, key_index, kept, streamed, wide)
        if divisor == "key_len":
            count = _key_count(query_len, key_len, kept, causal, wide)
        count = ops.maximum(ops.cast(count, wide), 1)
        measure = (highest - total / count) / scale
        if kept is not None:  # no key at all
            measure = ops.where(highest > _LOWEST, measure, _LOWEST)
    if query_mask is not None:
        measure = ops.where(ops.expand_dims(query_mask, 1), measure, _LOWEST)
    return ops.stop_gradient(measure)


def prob_sparse_attention(
    query,
    key,
    value,
    key_index=None,
    *,
    factor=5,
    causal=False,
    scale=None,
    divisor="key_len",
    lazy="cumsum",
    causal_sampling=False,
    query_mask=None,
    key_mask=None,
    streamed=None,
    dropout=None,
    return_attention_scores=False,
):
    """Attention of the queries whose `sparsity_measure` is largest.

    In each head `num_queries` of the queries, see `prob_sparse_counts`, give

        output_i = sum_j softmax_j(scale * query_i . key_j) value_j

    and the others, called lazy, what needs no query: the mean of the values, or, if
    `causal`, the sum of the values up to their own step. Gradients of `query` and `key`
    come through the selected queries alone.

    If `causal`, no value of a later step is ever read, but which queries are selected
    depends on later keys and queries: the output is causal in its values alone, and
    unsuited to decoding step by step. Where `num_queries` is `query_len`, this is full
    attention, causal in all.

    Args:
        query: Float tensor, `(batch_size, query_len, num_heads, dim)`.
        key: Float tensor, `(batch_size, key_len, num_heads, dim)`.
        value: Float tensor, `(batch_size, key_len, num_heads, value_dim)`.
        key_index: As in `sparsity_measure`; `None` selects by the exact measure.
        factor: Positive int, of `num_queries`. Defaults to `5`.
        causal: Whether a query attends only to steps up to its own. Needs as many keys
            as queries. Defaults to `False`.
        scale: Positive float, of the scores. Defaults to `None`, `1 / sqrt(dim)`.
        divisor: As in `sparsity_measure`. Defaults to `"key_len"`.
        lazy: What lazy queries get if `causal`: `"cumsum"`, the running sum, as in the
            authors' code, or `"cummean"`, the running mean. Defaults to `"cumsum"`.
        causal_sampling: Whether `key_index` holds no later step than that of each
            query; see `causal` of `sparsity_measure`. Queries are still ranked against
            later ones. Defaults to `False`.
        query_mask: Boolean tensor, `(batch_size, query_len)`; `False` gives 0 and takes
            no place among the selected while others are left. Defaults to `None`.
        key_mask: Boolean tensor, `(batch_size, key_len)`; `False` leaves a step out of
            the measure, of the weights, and of the mean or sum. Defaults to `None`.
        streamed: As in `sparsity_measure`. Defaults to `None`.
        dropout: Function applied to the weights of the selected queries. Defaults to
            `None`.
        return_attention_scores: Whether to return the weights too. Defaults to `False`.

    Returns:
        Tensor, `(batch_size, query_len, num_heads, value_dim)`, in the dtype of
        `value`. With `return_attention_scores` a tuple of it and the weights,
        `(batch_size, num_heads, query_len, key_len)`, in float32 or wider: those of
        lazy queries are `1 / key_len`, also where they got a running sum. That matrix
        is of the size that this attention otherwise saves.

    Raises:
        TypeError: If `key_index` holds no integers.
        ValueError: If an argument is out of its range, or shapes do not fit or are not
            static in all but the batch.

    Example:
    >>> x = np.ones((2, 48, 4, 8), "float32")
    >>> index = sample_key_index(48, 48, 20, seed=0)
    >>> tuple(prob_sparse_attention(x, x, x, index).shape)
    (2, 48, 4, 8)

    Reference:
        Zhou et al., "Informer", AAAI 2021, Algorithm 1. Differs from the authors' code:
        dropout acts, which theirs forgets; the gathered sample of keys is never made.
    """
    check_choice("lazy", lazy, LAZY)
    query_len, key_len = _check_lengths(query, key, value)
    if causal and query_len != key_len:
        raise ValueError(
            "`query` must have as many steps as `key` where `causal` is True. "
            f"Received: query_len={query_len}, key_len={key_len}."
        )
    if scale is not None:
        scale = check_positive("scale", scale)
    num_queries, _ = prob_sparse_counts(query_len, key_len, factor)
    selected = None
    if num_queries < query_len:
        measure = sparsity_measure(
            query,
            key,
            key_index,
            divisor=divisor,
            causal=causal_sampling,
            query_mask=query_mask,
            key_mask=key_mask,
            streamed=streamed,
        )
        selected = ops.top_k(measure, num_queries)[1]
    return attend(
        query,
        key,
        value,
        selected=selected,
        scale=scale,
        causal=causal,
        lazy=lazy,
        query_mask=query_mask,
        key_mask=key_mask,
        dropout=dropout,
        return_attention_scores=return_attention_scores,
    )


def attend(
    query,
    key,
    value,
    *,
    selected=None,
    scale=None,
    causal=False,
    lazy="cumsum",
    query_mask=None,
    key_mask=None,
    dropout=None,
    return_attention_scores=False,
):
    """Attention of some queries, or of all; see `prob_sparse_attention`.

    Args:
        query: Float tensor, `(batch_size, query_len, num_heads, dim)`.
        key: Float tensor, `(batch_size, key_len, num_heads, dim)`.
        value: Float tensor, `(batch_size, key_len, num_heads, value_dim)`.
        selected: Int32 tensor, `(batch_size, num_heads, num_queries)`, the steps of the
            queries that attend, no step twice; `None` for all.
        scale: Float, of the scores; `None` for `1 / sqrt(dim)`.
        causal: As there.
        lazy: As there.
        query_mask: As there.
        key_mask: As there.
        dropout: As there.
        return_attention_scores: As there.

    Returns:
        As there.
    """
    wide = wide_dtype(keras.backend.standardize_dtype(value.dtype))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    kept = None
    # No NaN of a step that is left out gets any further, nor into a gradient.
    if query_mask is not None:
        real = ops.expand_dims(ops.cast(query_mask, "bool"), (2, 3))
        query = ops.where(real, query, ops.zeros_like(query))
    if key_mask is not None:
        kept = ops.cast(key_mask, "bool")
        step = ops.expand_dims(kept, (2, 3))
        key = ops.where(step, key, ops.zeros_like(key))
        value = ops.where(step, value, ops.zeros_like(value))
    if selected is None:
        rows = ops.swapaxes(query, 1, 2)
        steps = ops.arange(ops.shape(query)[1], dtype="int32")
    else:
        places = _places(selected, query)
        rows = _read(query, places)
        steps = selected
    rows = rows * ops.cast(scale, rows.dtype)  # half precisions would overflow
    scores = ops.cast(ops.matmul(rows, ops.transpose(key, (0, 2, 3, 1))), wide)
    allowed = None if kept is None else ops.expand_dims(kept, (1, 2))
    if causal:
        past = ops.arange(ops.shape(key)[1], dtype="int32")
        past = past <= ops.expand_dims(steps, -1)
        allowed = past if allowed is None else ops.logical_and(allowed, past)
    if allowed is not None:
        scores = ops.where(allowed, scores, _LOWEST)
    # Keras warns of a softmax of one.
    weights = ops.softmax(scores, axis=-1) if key.shape[1] != 1 else ops.exp(0 * scores)
    if kept is not None:
        weights = ops.where(allowed, weights, ops.zeros_like(weights))
    shares = weights if dropout is None else dropout(weights)
    attended = ops.matmul(shares, ops.cast(ops.swapaxes(value, 1, 2), wide))
    attended = ops.cast(attended, value.dtype)
    if selected is None:
        output = ops.swapaxes(attended, 1, 2)
    else:
        context = _lazy_context(query, value, kept, causal, lazy, wide)
        output = _write(context, places, attended)
    if query_mask is not None:
        output = ops.where(real, output, ops.zeros_like(output))
    if not return_attention_scores:
        return output
    if selected is not None:
        weights = _spread(weights, selected, query, kept)
    if query_mask is not None:
        real = ops.swapaxes(real, 1, 2)
        weights = ops.where(real, weights, ops.zeros_like(weights))
    return output, weights


def check_streamed(streamed):
    """Returns `streamed`.

    Raises:
        ValueError: If it is neither `None` nor a bool.
    """
    if streamed not in (None, True, False):
        raise ValueError(
            f"`streamed` must be None, True or False. Received: streamed={streamed!r}."
        )
    return streamed


def _check_lengths(query, key, value=None):
    """Returns the numbers of queries and keys.

    Raises:
        ValueError: If a tensor is not `(batch_size, length, num_heads, dim)`, static in
            all but the batch, or they do not fit.
    """
    tensors = [query, key] if value is None else [query, key, value]
    shapes = [tuple(x.shape) for x in tensors]
    fits = all(len(shape) == 4 and None not in shape[1:] for shape in shapes) and (
        shapes[0][2:] == shapes[1][2:]
        and shapes[1][1:3] == shapes[-1][1:3]
        and len({shape[0] for shape in shapes} - {None}) < 2
    )
    if not fits or not all(shape[1] for shape in shapes):
        raise ValueError(
            "`query`, `key` and `value` must be of shape (batch_size, length, "
            "num_heads, dim), static but for the batch and not empty: `key` as wide as "
            "`query`, `value` as long as `key`, and all of as many rows and heads. "
            f"Received: shapes {', '.join(map(str, shapes))}."
        )
    return shapes[0][1], shapes[1][1]


def _check_index(key_index, query_len, key_len, causal):
    """The sampled keys as an int32 tensor.

    Raises:
        TypeError: If they are no integers.
        ValueError: If it is of another shape, or an array with a key that is not there;
            or one sample for all queries, if `causal`.
    """
    if not hasattr(key_index, "shape"):
        key_index = np.asarray(key_index)
    shape = tuple(key_index.shape)
    dtype = keras.backend.standardize_dtype(key_index.dtype)
    if "int" not in dtype:
        raise TypeError(
            f"`key_index` must hold integers. Received: key_index of dtype {dtype}."
        )
    if (
        len(shape) not in (1, 2)
        or None in shape
        or (len(shape) == 2 and shape[0] != query_len)
    ):
        raise ValueError(
            f"`key_index` must be of shape ({query_len}, num_keys), a row for each "
            f"query, or (num_keys,). Received: shape {shape}."
        )
    if causal and len(shape) == 1:
        raise ValueError(
            f"`key_index` must be of shape ({query_len}, num_keys) where its keys end "
            "with the step of each query: one sample of keys is not before every "
            f"query. Received: shape {shape}."
        )
    known = _known(key_index)
    if known is not None:
        key_index, last = known, key_len - 1
        if causal:
            last = np.minimum(np.arange(query_len), last)[:, None]
        bad = np.argwhere((key_index < 0) | (key_index > last))
        if len(bad) or not key_index.size:
            place = bad[0].tolist() if len(bad) else []
            received = f"{key_index[tuple(place)]} at {place}" if place else "no key"
            raise ValueError(
                f"`key_index` must hold steps of the keys, 0 to {key_len - 1}"
                f"{', none behind its query' if causal else ''}. Received: {received}."
            )
    # Of a tensor in a graph: another place would be the score of another query.
    return ops.clip(ops.cast(key_index, "int32"), 0, key_len - 1)


def _known(x):
    """A tensor as an array, or `None` in a graph."""
    try:
        return np.asarray(x)
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        return None


def _key_count(query_len, key_len, kept, causal, wide):
    """How many keys each query has, to be broadcast to the measure."""
    if not causal:
        return key_len if kept is None else ops.sum(kept, axis=1)[:, None, None]
    if kept is None:
        steps = np.minimum(np.arange(1, query_len + 1), key_len)
        return ops.convert_to_tensor(steps, dtype=wide)
    count = ops.cumsum(kept, axis=1)[:, None]
    steps = np.minimum(np.arange(query_len), key_len - 1)
    return ops.take(count, steps, axis=-1)


def _exact_measure(query, key, kept, causal, wide):
    """`ln sum exp - mean` of the scores on all keys, by blocks of queries."""
    query_len, key_len = query.shape[1], key.shape[1]
    key = ops.transpose(key, (0, 2, 3, 1))
    count = _key_count(query_len, key_len, kept, causal, wide)
    allowed = None if kept is None else kept[:, None, None] > 0

    def of_block(start, queries):
        scores = ops.cast(ops.matmul(queries, key), wide)
        some = allowed
        if causal:
            steps = np.arange(start, start + queries.shape[2])[:, None]
            past = ops.convert_to_tensor(np.arange(key_len) <= steps)
            some = past if some is None else ops.logical_and(some, past)
        if some is None:
            total = ops.sum(scores, axis=-1)
        else:
            total = ops.sum(ops.where(some, scores, ops.zeros_like(scores)), axis=-1)
            scores = ops.where(some, scores, _LOWEST)
        return ops.logsumexp(scores, axis=-1), total

    spread, total = _by_blocks(query, of_block)
    count = ops.cast(count, wide)
    measure = spread - total / ops.maximum(count, 1)
    if kept is None:
        return measure
    return ops.where(ops.broadcast_to(count, ops.shape(measure)) > 0, measure, _LOWEST)


def _sampled(query, key, key_index, kept, streamed, wide):
    """Largest and sum of the scores on the sampled keys, and how many were kept.

    The first two are `(batch_size, num_heads, query_len)`, the last may be broadcast.
    """
    if len(key_index.shape) == 1:
        key = ops.take(key, key_index, axis=1)
        scores = ops.einsum("bqhe,bkhe->bhqk", query, key)
        some = (
            None if kept is None else ops.take(kept, key_index, axis=1)[:, None, None]
        )
        return _reduced(ops.cast(scores, wide), some)
    if streamed is None:
        streamed = key_index.shape[1] * key.shape[3] <= key.shape[1]
    if streamed:
        return _sampled_by_features(query, key, key_index, kept, wide)
    return _sampled_by_blocks(query, key, key_index, kept, wide)


def _reduced(scores, some, axis=-1):
    """Largest, sum and count along an axis, of those where `some` is not 0."""
    if some is None:
        count = scores.shape[axis]
        return _highest(scores, axis), ops.sum(scores, axis=axis), count
    real = some > 0
    total = ops.sum(ops.where(real, scores, ops.zeros_like(scores)), axis=axis)
    highest = _highest(ops.where(real, scores, _LOWEST), axis)
    return highest, total, ops.sum(some, axis=axis)


def _highest(scores, axis):
    """Largest along an axis, of no rows too."""
    if 0 in tuple(scores.shape):  # where Keras forgets the shape on PyTorch
        return ops.sum(scores, axis=axis)
    return ops.max(scores, axis=axis, initial=_LOWEST)


def _sampled_by_blocks(query, key, key_index, kept, wide):
    """By scores on all keys, of which those of the sample are read."""
    key_len, num_keys = key.shape[1], key_index.shape[1]
    key = ops.transpose(key, (0, 2, 3, 1))

    def of_block(start, queries):
        size = queries.shape[2]
        scores = ops.matmul(queries, key)
        batch_size, num_heads = ops.shape(scores)[:2]
        places = key_index[start : start + size]
        flat = places + ops.arange(size, dtype="int32")[:, None] * key_len
        scores = ops.reshape(scores, (batch_size * num_heads, size * key_len))
        scores = ops.take(scores, ops.reshape(flat, (-1,)), axis=1)
        scores = ops.reshape(scores, (batch_size, num_heads, size, num_keys))
        some = None if kept is None else ops.take(kept, places, axis=1)[:, None]
        return _reduced(ops.cast(scores, wide), some)

    return _by_blocks(query, of_block)


def _sampled_by_features(query, key, key_index, kept, wide):
    """By one feature of the sampled keys after the other, added up.

    With rows and heads last each read is of neighbours, and a compiler makes one loop
    of all reads, products and sums.
    """
    query_len, num_heads, dim = query.shape[1:]
    query = ops.transpose(ops.cast(query, wide), (1, 3, 0, 2))
    query = ops.reshape(query, (query_len, dim, -1))
    key = ops.transpose(ops.cast(key, wide), (1, 3, 0, 2))
    key = ops.reshape(key, (key.shape[0] * dim, -1))
    scores, places = None, key_index * dim
    for i in range(dim):
        if i:  # only when the last is done, or TensorFlow reads several at once
            done = ops.sum(scores[:1, :1, :1]) > 0
            places = ops.where(done, places, places) + 1
        product = ops.take(key, places, axis=0) * query[:, None, i]
        scores = scores + product if i else product
    some = None
    if kept is not None:
        scores = ops.reshape(scores, (query_len, key_index.shape[1], -1, num_heads))
        some = ops.take(ops.transpose(kept), key_index, axis=0)[..., None]
    highest, total, count = _reduced(scores, some, axis=1)

    def by_query(x, width):
        return ops.transpose(ops.reshape(x, (query_len, -1, width)), (1, 2, 0))

    count = count if some is None else by_query(count, 1)
    return by_query(highest, num_heads), by_query(total, num_heads), count


def _by_blocks(query, of_block):
    """Joins what `of_block(start, queries)` gives for blocks of the queries.

    One block comes after the other, so that one is held at a time.
    """
    query = ops.swapaxes(query, 1, 2)
    parts = []
    for start in range(0, query.shape[2], _BLOCK):
        queries = query[:, :, start : start + _BLOCK]
        if parts:
            done = ops.sum(parts[-1][1]) > 0
            queries = ops.where(done, queries, queries)
        parts.append(of_block(start, queries))
    return tuple(
        ops.concatenate(part, axis=-1) if hasattr(part[0], "shape") else part[0]
        for part in zip(*parts, strict=True)
    )


def _places(selected, query):
    """Rows of the selected queries among all, batch, step and head in this order."""
    batch_size, query_len, num_heads, _ = ops.shape(query)
    first = ops.arange(batch_size, dtype="int32") * (query_len * num_heads)
    head = ops.arange(num_heads, dtype="int32")[:, None]
    return first[:, None, None] + ops.cast(selected, "int32") * num_heads + head


def _read(x, places):
    """`(batch_size, num_heads, num_queries, dim)`, the selected rows."""
    return ops.take(ops.reshape(x, (-1, x.shape[-1])), places, axis=0)


def _write(x, places, rows):
    """`x` with the selected rows replaced."""
    dim = x.shape[-1]
    flat = ops.scatter_update(
        ops.reshape(x, (-1, dim)),
        ops.reshape(places, (-1, 1)),
        ops.reshape(rows, (-1, dim)),
    )
    return ops.reshape(flat, ops.shape(x))


def _lazy_context(query, value, kept, causal, lazy, wide):
    """What every query gets before the selected ones are written over it."""
    long = ops.cast(value, wide)
    if causal:
        context = _running_sum(long, wide)
        if lazy == "cummean":
            count = ops.arange(1, value.shape[1] + 1, dtype=wide)[None]
            if kept is not None:
                count = ops.maximum(ops.cumsum(ops.cast(kept, wide), axis=1), 1)
            context = context / ops.expand_dims(count, (2, 3))
        return ops.cast(context, value.dtype)
    if kept is None:
        context = ops.mean(long, axis=1, keepdims=True)
    else:
        count = ops.maximum(ops.sum(ops.cast(kept, wide), axis=1), 1)
        context = ops.sum(long, axis=1, keepdims=True) / count[:, None, None, None]
    batch_size, query_len, num_heads, _ = ops.shape(query)
    shape = (batch_size, query_len, num_heads, value.shape[-1])
    return ops.broadcast_to(ops.cast(context, value.dtype), shape)


def _running_sum(x, dtype):
    """Sum over the steps up to each, by products with triangles of ones.

    `ops.cumsum` over an axis that is not the last takes many times as long.
    """
    length, num_heads, dim = x.shape[1:]
    size = min(length, _SUMMED)
    count = -(-length // size)
    x = ops.pad(x, [[0, 0], [0, count * size - length], [0, 0], [0, 0]])
    blocks = ops.reshape(x, (-1, count, size, num_heads * dim))
    sums = ops.matmul(_triangle(size, dtype), blocks)
    if count > 1:
        before = ops.matmul(_triangle(count, dtype, -1), sums[:, :, -1])
        sums = sums + ops.expand_dims(before, 2)
    return ops.reshape(sums, (-1, count * size, num_heads, dim))[:, :length]


def _triangle(size, dtype, diagonal=0):
    return ops.convert_to_tensor(np.tri(size, k=diagonal), dtype=dtype)


def _spread(weights, selected, query, kept):
    """The weights of all queries, those of lazy ones uniform."""
    query_len, key_len = query.shape[1], weights.shape[-1]
    batch_size, num_heads = ops.shape(weights)[:2]
    shape = (batch_size, query_len, num_heads, key_len)
    uniform = ops.ones(shape, dtype=weights.dtype) / key_len
    if kept is not None:
        share = ops.cast(kept, weights.dtype)
        share = share / ops.maximum(ops.sum(share, axis=-1, keepdims=True), 1)
        uniform = ops.broadcast_to(share[:, None, None], shape)
    return ops.swapaxes(_write(uniform, _places(selected, query), weights), 1, 2)
