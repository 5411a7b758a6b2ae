"""Slow twins of ProbSparse attention and of the layers made of it, in float64."""

import math

import numpy as np

LOWEST = np.finfo("float32").min


def measure_loop(
    query,
    key,
    index=None,
    divisor="key_len",
    causal=False,
    query_mask=None,
    key_mask=None,
):
    """The formulas of the docstring, one query at a time, in float64."""
    batch_size, query_len, num_heads, dim = query.shape
    key_len = key.shape[1]
    measure = np.full((batch_size, num_heads, query_len), float(LOWEST))
    for b, h, i in np.ndindex(*measure.shape):
        real = [
            j
            for j in range(key_len)
            if (key_mask is None or key_mask[b, j]) and (not causal or j <= i)
        ]
        if not real or (query_mask is not None and not query_mask[b, i]):
            continue
        if index is None:
            scores = key[b, real, h] @ query[b, i, h] / dim**0.5
            measure[b, h, i] = np.log(np.exp(scores).sum()) - scores.mean()
            continue
        row = index if index.ndim == 1 else index[i]
        row = [j for j in row if key_mask is None or key_mask[b, j]]
        if row:
            scores = key[b, row, h] @ query[b, i, h]
            count = len(real) if divisor == "key_len" else len(row)
            measure[b, h, i] = scores.max() - scores.sum() / count
    return measure


def attention_loop(
    query,
    key,
    value,
    index=None,
    *,
    factor=5,
    causal=False,
    scale=None,
    divisor="key_len",
    lazy="cumsum",
    causal_sampling=False,
    query_mask=None,
    key_mask=None,
    dropout=None,
):
    """Output and weights, one query at a time, in float64."""
    batch_size, query_len, num_heads, dim = query.shape
    key_len = key.shape[1]
    scale = dim**-0.5 if scale is None else scale
    num_queries = min(factor * int(np.ceil(np.log(query_len))), query_len)
    measure = measure_loop(
        query, key, index, divisor, causal_sampling, query_mask, key_mask
    )
    output = np.zeros((batch_size, query_len, num_heads, value.shape[-1]))
    weights = np.zeros((batch_size, num_heads, query_len, key_len))
    for b, h in np.ndindex(batch_size, num_heads):
        selected = np.argsort(-measure[b, h], kind="stable")[:num_queries]
        real = [j for j in range(key_len) if key_mask is None or key_mask[b, j]]
        for i in range(query_len):
            if query_mask is not None and not query_mask[b, i]:
                continue
            past = [j for j in real if not causal or j <= i]
            if i in selected:
                shares = np.exp(scale * key[b, past, h] @ query[b, i, h])
                shares /= shares.sum()
                weights[b, h, i, past] = shares
                shares = shares if dropout is None else dropout(shares)
                output[b, i, h] = shares @ value[b, past, h]
                continue
            weights[b, h, i, real] = 1 / max(len(real), 1)
            output[b, i, h] = value[b, past, h].sum(0)
            if not causal or lazy == "cummean":
                output[b, i, h] /= max(len(past), 1)
    return output, weights


def multi_head_loop(query, value, weights, *, num_heads, mix=False, **options):
    """The whole layer: `weights` are kernels and biases in the order of the layer."""
    kernels, biases = weights[::2], weights[1::2]
    heads = [
        (x @ kernels[i] + biases[i]).reshape(*x.shape[:2], num_heads, -1)
        for i, x in enumerate((query, value, value))
    ]
    context, _ = attention_loop(*heads, **options)
    batch_size, query_len, _, dim = context.shape
    joined = np.zeros((batch_size, query_len, num_heads * dim))
    for b, t, channel in np.ndindex(*joined.shape):
        h, step, e = channel // dim, t, channel % dim
        if mix:  # the place in head after head, step after step
            flat = t * num_heads * dim + channel
            h, step, e = flat // (query_len * dim), flat // dim % query_len, flat % dim
        joined[b, t, channel] = context[b, step, h, e]
    return joined @ kernels[3] + biases[3]


def norm_loop(x, gamma, beta, epsilon):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def block_loop(inputs, memory, weights, *, epsilon, output_len=None, **options):
    """An encoder block, or a decoder block if `memory` is given."""
    x, weights = inputs, list(weights)

    def take(count):
        taken = weights[:count]
        del weights[:count]
        return taken

    attended = multi_head_loop(x, x, take(8), **options)
    if output_len is not None:
        x, attended = x[:, -output_len:], attended[:, -output_len:]
    x = norm_loop(x + attended, *take(2), epsilon)
    if memory is not None:
        heads = options["num_heads"]
        attended = multi_head_loop(x, memory, take(8), num_heads=heads, factor=100)
        x = norm_loop(x + attended, *take(2), epsilon)
    kernel, bias = take(2)
    inner = x @ kernel + bias
    inner *= 0.5 * (1 + np.vectorize(math.erf)(inner / 2**0.5))
    kernel, bias = take(2)
    return norm_loop(x + inner @ kernel + bias, *take(2), epsilon)
