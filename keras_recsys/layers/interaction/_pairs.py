"""Pairs of fields: which they are, and how to read them with a cheap gradient.

Pairs run over the upper triangle row by row: (0, 1), (0, 2), ..., (1, 2), ...
"""

import keras
import numpy as np
from keras import ops

BILINEAR_TYPES = ("all", "each", "interaction", "hadamard")


def num_matrices(bilinear_type, num_fields):
    """How many `(embedding_dim, embedding_dim)` matrices the type has."""
    return {
        "all": 1,
        "each": num_fields - 1,
        "interaction": num_fields * (num_fields - 1) // 2,
        "hadamard": 0,
    }[bilinear_type]


def check_fields(layer, input_shape, *, fixed=True):
    """Returns `(num_fields, embedding_dim)` of an input of fields.

    Args:
        layer: The layer.
        input_shape: Shape of its input.
        fixed: Whether later inputs must have the same fields.

    Raises:
        ValueError: If the shape is not `(batch_size, num_fields, embedding_dim)` with
            at least two fields, the last two dimensions static.
    """
    if len(input_shape) != 3 or None in input_shape[1:] or input_shape[1] < 2:
        raise ValueError(
            f"`{type(layer).__name__}` takes inputs of shape (batch_size, num_fields, "
            "embedding_dim) with the last two static and at least two fields. "
            f"Received: input_shape={tuple(input_shape)}."
        )
    if fixed:
        layer.input_spec = keras.layers.InputSpec(shape=(None, *input_shape[1:]))
    return input_shape[1], input_shape[2]


def as_tensor(weight):
    """The value of a weight; a custom gradient takes tensors, not variables."""
    return ops.reshape(weight, weight.shape)


def but_last(x, axis):
    """All fields but the last; the gradient of a split is faster than a slice's."""
    return ops.split(x, [x.shape[axis] - 1], axis=axis)[0]


def take_fields(x, index, axis):
    """`ops.take(x, index, axis)` with a matrix product for a gradient.

    The gradient of a plain gather is a scatter-add, several times slower on a CPU than
    this product with a constant matrix of zeros and ones.

    Args:
        x: Tensor with fields on `axis`; of rank 3 where that is 1.
        index: NumPy int array of field numbers.
        axis: 0 or 1.

    Returns:
        Tensor like `x` with `len(index)` entries on `axis`.
    """
    shape = x.shape
    chosen = np.equal.outer(np.arange(shape[axis]), index)

    @ops.custom_gradient
    def take(x):
        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            selection = ops.convert_to_tensor(chosen, dtype=upstream.dtype)
            if axis == 1:
                return ops.matmul(selection, upstream)
            flat = ops.reshape(upstream, (len(index), -1))
            return ops.reshape(ops.matmul(selection, flat), (*shape[:-1], -1))

        return ops.take(x, index, axis=axis), gradient

    return take(x)


def multiply_pairs_by_matrix(fields, kernel):
    """`(v_i W_ij) * v_j` for a matrix a pair, one block of pairs a left field.

    A block is one matrix product of `(batch_size, dim)` and `(dim, pairs * dim)`. The
    hand-made gradient goes block by block as well, which scatters nothing and stays in
    the cache: a third faster than gathers of both factors, compiled or not.

    Args:
        fields: Tensor, `(batch_size, num_fields, dim)`.
        kernel: Tensor, `(num_pairs, dim, dim)`.

    Returns:
        Tensor, `(batch_size, num_pairs, dim)`.
    """
    _, num_fields, dim = fields.shape
    num_pairs = kernel.shape[0]
    cuts = (np.cumsum(np.arange(num_fields - 1, 0, -1)) * dim)[:-1].tolist()

    @ops.custom_gradient
    def multiply(fields, kernel):
        flat = ops.reshape(fields, (-1, num_fields * dim))
        columns = ops.split(flat, num_fields, axis=1)
        matrices = ops.reshape(ops.transpose(kernel, (1, 0, 2)), (dim, -1))
        matrices = _cut(matrices, cuts)
        rights = [flat[:, (i + 1) * dim :] for i in range(num_fields - 1)]
        lefts = [
            ops.matmul(column, matrix)
            for column, matrix in zip(columns[:-1], matrices, strict=True)
        ]
        output = ops.concatenate(
            [left * right for left, right in zip(lefts, rights, strict=True)], axis=1
        )

        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            upstream = ops.reshape(upstream, (-1, num_pairs * dim))
            blocks = _cut(upstream, cuts)
            d_left = []
            d_matrices = []
            d_right = None
            for i in reversed(range(num_fields - 1)):
                d_products = blocks[i] * rights[i]
                d_left.append(ops.matmul(d_products, ops.transpose(matrices[i])))
                d_matrices.append(ops.matmul(ops.transpose(columns[i]), d_products))
                grown = blocks[i] * lefts[i]
                if d_right is not None:
                    grown = grown + ops.pad(d_right, ((0, 0), (dim, 0)))
                d_right = grown
            d_left = ops.concatenate(d_left[::-1], axis=1)
            d_flat = ops.pad(d_left, ((0, 0), (0, dim))) + ops.pad(
                d_right, ((0, 0), (dim, 0))
            )
            d_kernel = ops.concatenate(d_matrices[::-1], axis=1)
            d_kernel = ops.reshape(d_kernel, (dim, num_pairs, dim))
            return (
                ops.reshape(d_flat, (-1, num_fields, dim)),
                ops.transpose(d_kernel, (1, 0, 2)),
            )

        return ops.reshape(output, (-1, num_pairs, dim)), gradient

    return multiply(fields, kernel)


def _cut(x, cuts):
    """The parts of axis 1 between the cuts; `x` itself where there is none."""
    return ops.split(x, cuts, axis=1) if cuts else [x]
