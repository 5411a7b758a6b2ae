"""Attention of a few vectors to a long history.

The network that scores an item reads products of the item with the queries. Split by
rows, the kernel of its first layer makes one small matrix and one bias a sample, and
this layer is one batched matrix product for all items.

TensorFlow keeps every intermediate of a history for the backward pass. `attend` keeps
nothing but the weights: its backward pass goes through the samples in blocks, and
computes each again.
"""

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_choice
from keras_recsys._dtypes import wide_dtype

ATTENTION_ACTIVATIONS = ("linear", "sigmoid", "softmax")
ATTENTION_NORMALIZATIONS = ("sum", "sqrt_len")
INTERACTIONS = ("query", "value", "difference", "product")

# What is held for one of eight blocks is small beside the history, and a block of it
# fits in the cache of a core. Short histories are one block.
_BLOCKS = 8
_SHORT = 64


def check_history(layer, value_shape, *vector_shapes, any_width=False):
    """Returns the width of a history.

    Args:
        layer: The layer that the error names.
        value_shape: Shape of the history.
        *vector_shapes: Shapes of the vectors that come with it.
        any_width: Whether the vectors may be of other static widths.

    Raises:
        ValueError: If the history is not `(batch_size, seq_len, dim)` with static
            `dim`, or a vector not `(batch_size, dim)`.
    """
    dim = value_shape[-1] if len(value_shape) == 3 else None
    if dim is None or any(
        len(shape) != 2 or shape[1] is None or not (any_width or shape[1] == dim)
        for shape in vector_shapes
    ):
        width = "any static width" if any_width else "dim"
        shapes = [tuple(shape) for shape in vector_shapes]
        raise ValueError(
            f"`{type(layer).__name__}` takes `value` of shape (batch_size, seq_len, "
            f"dim) with a static `dim` and vectors of shape (batch_size, {width}). "
            f"Received: value_shape={tuple(value_shape)}, vectors {shapes}."
        )
    return dim


def check_weighting(attention_activation, normalize):
    """Checks the arguments that say how scores become weights.

    Raises:
        ValueError: If one is unknown, or they do not go together.
    """
    check_choice("attention_activation", attention_activation, ATTENTION_ACTIVATIONS)
    if normalize is None:
        return
    if normalize not in ATTENTION_NORMALIZATIONS:
        raise ValueError(
            "`normalize` must be None, 'sum' or 'sqrt_len'. "
            f"Received: normalize={normalize!r}."
        )
    if attention_activation == "softmax" or (
        attention_activation == "linear" and normalize == "sum"
    ):
        raise ValueError(
            "`normalize` must be None where `attention_activation` is 'softmax', and "
            "must not be 'sum' where it is 'linear', since linear weights may add up "
            f"to 0. Received: normalize={normalize!r}, "
            f"attention_activation={attention_activation!r}."
        )


def output_spec(layer, output_shape, weights_shape, return_attention_scores):
    """The symbolic output of a layer that returns its weights if it is asked to."""
    output = keras.KerasTensor(output_shape, dtype=layer.compute_dtype)
    if not return_attention_scores:
        return output
    dtype = wide_dtype(layer.compute_dtype)
    return output, keras.KerasTensor(weights_shape, dtype=dtype)


def without_padding(value, mask):
    """The history with 0 where the mask is `False`, so that no NaN is left there."""
    if mask is None:
        return value
    mask = ops.expand_dims(_checked(mask, value), -1)
    return ops.where(mask, value, ops.zeros_like(value))


def softmax(scores):
    """Softmax of the last axis; that of Keras warns about an axis of one."""
    if scores.shape[-1] == 1:
        return ops.exp(scores - scores)
    return ops.softmax(scores, axis=-1)


def first_layer(query, kernel, bias, interactions=INTERACTIONS):
    """What the first layer of a network on items and a target is for each sample.

    With the rows of `kernel` in a block for each of `interactions`, `A` to `D`,

        matrix = B - C + diag(query) D
        bias = query (A + C) + bias

    Args:
        query: Float tensor, `(batch_size, dim)`.
        kernel: Tensor, `(len(interactions) * dim, units)`.
        bias: Tensor, `(units,)`.
        interactions: Some of `INTERACTIONS`, in their order.

    Returns:
        Tuple of the matrix, `(batch_size, dim, units)`, and the bias, `(batch_size,
        units)`.
    """
    blocks = ops.split(kernel, len(interactions))
    blocks = dict(zip(interactions, blocks, strict=True))
    bias = ops.zeros_like(query[:, :1]) + bias
    matrix = ops.zeros_like(query[:, :1, None])
    if "query" in blocks:
        bias = bias + ops.matmul(query, blocks["query"])
    if "value" in blocks:
        matrix = matrix + blocks["value"]
    if "difference" in blocks:
        matrix = matrix - blocks["difference"]
        bias = bias + ops.matmul(query, blocks["difference"])
    if "product" in blocks:
        matrix = matrix + ops.expand_dims(query, -1) * blocks["product"]
    return matrix, bias


def attention_weights(scores, kept, activation, normalize):
    """Weights of the items of a history.

    Args:
        scores: Float tensor, `(batch_size, seq_len)`, of float32 at least.
        kept: Tensor of the shape and dtype of `scores`, 1 for an item and 0 for
            padding.
        activation: One of `ATTENTION_ACTIVATIONS`.
        normalize: `None`, or one of `ATTENTION_NORMALIZATIONS`.

    Returns:
        Tuple of the weights, of the shape of `scores`, 0 for padding; of the same
        before they are divided; and of the divisor, `(batch_size, 1)`.
    """
    if activation == "softmax":
        lowest = ops.full_like(scores, float(np.finfo("float32").min))
        weights = softmax(ops.where(kept > 0, scores, lowest))
    else:
        weights = ops.sigmoid(scores) if activation == "sigmoid" else scores
    weights = ops.where(kept > 0, weights, ops.zeros_like(weights))
    divisor = ops.ones_like(kept[:, :1])
    if normalize == "sum":
        total = ops.sum(weights, axis=-1, keepdims=True)
        divisor = ops.where(total > 0, total, ops.ones_like(total))
    elif normalize == "sqrt_len":
        divisor = ops.sqrt(ops.maximum(ops.sum(kept, axis=-1, keepdims=True), 1.0))
    return weights / divisor, weights, divisor


def as_kept(mask, value):
    """The mask as ones and zeros, `(batch_size, seq_len)`, of float32 at least."""
    dtype = wide_dtype(keras.backend.standardize_dtype(value.dtype))
    if mask is None:
        return ops.ones_like(value[:, :, 0], dtype=dtype)
    return ops.cast(_checked(mask, value), dtype)


def _checked(mask, value):
    """The mask as booleans.

    Raises:
        ValueError: If it is not known to be of the shape of the history.
    """
    shapes = tuple(mask.shape), tuple(value.shape[:2])
    if len(shapes[0]) != 2 or any(
        None not in pair and pair[0] != pair[1] for pair in zip(*shapes, strict=True)
    ):
        raise ValueError(
            "`value_mask` must be of shape (batch_size, seq_len), that of `value` "
            f"without its last axis, {shapes[1]}. Received: shape {shapes[0]}."
        )
    return ops.cast(mask, "bool")


def attend(value, mask, matrix, bias, kernel, offset, activation, normalize):
    """Weights a history by a network of one hidden layer of sigmoids, and sums it.

        score_j = sigmoid(value_j matrix + bias) kernel + offset
        pooled = sum over j of weights_j(score) value_j

    As `sigmoid(x) = (1 + tanh(x / 2)) / 2`, the hyperbolic tangent is computed, which
    is cheaper, and the rest goes into the weights of the network.

    Args:
        value: Float tensor, `(batch_size, seq_len, dim)`.
        mask: Boolean tensor, `(batch_size, seq_len)`, or `None`. What it leaves out has
            no effect, NaN included.
        matrix: Tensor, `(batch_size, dim, units)`.
        bias: Tensor, `(batch_size, units)`.
        kernel: Tensor, `(units, 1)`.
        offset: Tensor, `(1,)`.
        activation: One of `ATTENTION_ACTIVATIONS`.
        normalize: `None`, or one of `ATTENTION_NORMALIZATIONS`.

    Returns:
        Tuple of the sum, `(batch_size, dim)`, and of the weights, `(batch_size,
        seq_len)`, both of float32 at least.
    """
    kept = as_kept(mask, value)
    wide, dim, units = kept.dtype, value.shape[-1], bias.shape[-1]
    half = ops.cast(kernel, wide) / 2
    offset = ops.cast(offset, wide) + ops.sum(half)

    # One output, since a custom gradient on torch has no more.
    @ops.custom_gradient
    def run(value, kept, matrix, bias, kernel, offset):
        def forward(block, token=None):
            items, of_block, real = value[block], matrix[block], kept[block] > 0
            if token is not None:
                of_block, real = _after(of_block, token), _after(real, token)
            if mask is not None:  # block by block, or there were two histories
                items = without_padding(items, real)
            x = ops.matmul(items, of_block) + bias[block][:, None]
            hidden = ops.cast(ops.tanh(x), wide)
            scores = ops.squeeze(ops.matmul(hidden, kernel), -1) + offset
            weights = attention_weights(scores, kept[block], activation, normalize)
            return items, hidden, *weights

        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            d_pooled, d_returned = upstream[:, :dim], upstream[:, dim:]
            d_value, d_matrix, d_bias, d_kernel, d_offset = [], [], [], [], []
            row = ops.reshape(kernel, (1, -1))
            token = upstream
            for block in _blocks(value):
                items, hidden, weights, raw, divisor = forward(block, token)
                x = ops.cast(items, wide)
                d_weights = ops.squeeze(ops.matmul(x, d_pooled[block][:, :, None]), -1)
                d_scores = _gradient_of_scores(
                    d_weights + d_returned[block],
                    weights,
                    raw,
                    divisor,
                    kept[block],
                    activation,
                    normalize,
                )
                flat = ops.reshape(d_scores, (1, -1))
                d_kernel.append(ops.matmul(flat, ops.reshape(hidden, (-1, units))))
                d_offset.append(ops.sum(flat, axis=1))
                # The kernel multiplies small tensors, not those of the history.
                slope = (1.0 - hidden * hidden) * ops.expand_dims(d_scores, -1)
                token = ops.sum(slope, axis=1)
                d_bias.append(token * row)
                d_matrix.append(ops.einsum("bld,blh->bdh", x, slope) * row)
                back = ops.cast(matrix[block], wide) * row
                d_x = ops.matmul(slope, ops.transpose(back, (0, 2, 1)))
                d_x = d_x + ops.expand_dims(weights, -1) * d_pooled[block][:, None]
                d_value.append(ops.cast(d_x, value.dtype))
            d_value = ops.concatenate(d_value, axis=0)
            # What follows from the matrices is the pass before: not yet.
            d_matrix = _after(ops.concatenate(d_matrix, axis=0), d_value[:1, :1])
            return (
                d_value,
                ops.zeros_like(kept),
                ops.cast(d_matrix, matrix.dtype),
                ops.cast(ops.concatenate(d_bias, axis=0), bias.dtype),
                ops.reshape(sum(d_kernel), (-1, 1)),
                sum(d_offset),
            )

        items, _, weights, _, _ = forward(slice(None))
        pooled = weighted_sum(items, weights)
        return ops.concatenate([pooled, weights], axis=1), gradient

    # One row for each sample also where one query, or one history, stands for all.
    zeros = ops.sum(ops.zeros_like(kept[:, :1]), axis=1, keepdims=True)
    zeros = ops.cast(zeros, value.dtype) + ops.zeros_like(bias[:, :1])
    matrix, bias = matrix / 2 + ops.expand_dims(zeros, -1), bias / 2 + zeros
    value = _for_each_row(value, ops.expand_dims(zeros, -1))
    kept = _for_each_row(kept, ops.cast(zeros, wide))
    packed = run(value, kept, matrix, bias, half, offset)
    return packed[:, :dim], packed[:, dim:]


def _after(x, token):
    """`x`, but not before `token` is there.

    TensorFlow runs what it can as early as it can: it would compute all blocks of all
    passes again at once, as soon as the forward pass is done, and hold them.
    """
    return ops.where(ops.sum(token) > 0, x, x)


def weighted_sum(value, weights):
    """`sum over j of weights_j value_j`, summed in the dtype of the weights.

    Its gradient is written down, as TensorFlow's, a matrix product over an axis of one,
    is joined with the addition of other gradients of `value` to a kernel of oneDNN that
    writes past its output.
    """

    @ops.custom_gradient
    def run(value, weights):
        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            d_value = ops.expand_dims(weights, -1) * ops.expand_dims(upstream, 1)
            d_weights = ops.matmul(value, ops.expand_dims(upstream, -1))
            return d_value, ops.squeeze(d_weights, -1)

        return ops.squeeze(ops.matmul(ops.expand_dims(weights, 1), value), 1), gradient

    value = ops.cast(value, weights.dtype)
    return run(_for_each_row(value, ops.zeros_like(weights[:, :1, None])), weights)


def _for_each_row(x, zeros):
    """`x`, once for each row of `zeros` where it has one that may stand for all."""
    return x + zeros if x.shape[0] == 1 else x


def linked(value):
    """The same history as a tensor of its own.

    Where a history is read several times, TensorFlow adds up the gradients of one
    tensor when it has them all; through links they are added one by one.
    """
    shape = ops.shape(value)
    return ops.reshape(value, (shape[0], shape[1], value.shape[2]))


def _gradient_of_scores(d_weights, weights, raw, divisor, kept, activation, normalize):
    """The gradient of `attention_weights`."""
    if normalize == "sum":
        d_weights = d_weights - ops.sum(weights * d_weights, axis=-1, keepdims=True)
    d_raw = d_weights / divisor
    if activation == "softmax":
        return raw * (d_raw - ops.sum(raw * d_raw, axis=-1, keepdims=True))
    if activation == "sigmoid":
        return raw * (1.0 - raw) * d_raw
    return kept * d_raw


def _blocks(value):
    """Slices of the samples, a fixed number of them so that graphs stay small."""
    count = 1 if (value.shape[1] or _SHORT + 1) <= _SHORT else _BLOCKS
    batch_size = ops.shape(value)[0]
    if isinstance(batch_size, int):
        count = max(1, min(count, batch_size))
    cuts = [batch_size * i // count for i in range(count + 1)]
    return [slice(start, stop) for start, stop in zip(cuts[:-1], cuts[1:], strict=True)]
