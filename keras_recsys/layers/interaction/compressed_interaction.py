"""`CompressedInteraction`, the network of xDeepFM that multiplies vectors."""

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys._dtypes import wide_dtype
from keras_recsys._initializers import clone
from keras_recsys.layers.interaction._pairs import as_tensor, check_fields

ROWS_AT_ONCE = 512  # products in memory at a time, of each entry of the batch


@keras.saving.register_keras_serializable(package="keras_recsys")
class CompressedInteraction(keras.layers.Layer):
    """Compressed interaction network: products of growing degree, field by field.

    With `X^0` the embeddings, of `num_fields` rows, and `X^l` the output of layer `l`,
    of `units[l]` rows,

        X^l_h = activation(sum_{i, j} kernel^l_{i,j,h} (X^0_i * X^{l-1}_j) + bias^l_h)
        output = [sum of the entries of each row that is not handed on]

    The products of all `i` and `j` never exist at once: they are made and multiplied by
    the kernel a few fields at a time, going back as well. The first layer has each
    product of two fields once instead of twice.

    Args:
        units: Non-empty tuple of ints, rows of each layer. Defaults to `(128, 128)`.
        split_half: Whether half of the rows of each layer but the last go on to the
            next layer and the other half to the output, instead of all to both.
            Defaults to `True`.
        activation: Activation of the rows. Defaults to `"relu"`.
        use_bias: Whether rows have a bias. Defaults to `True`.
        kernel_initializer: Initializer of the kernels, of shape `(num_fields,
            previous_rows, units)`, whose fans are taken as `num_fields * previous_rows`
            and `units`. Defaults to `"glorot_uniform"`.
        kernel_regularizer: Regularizer of the kernels. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, num_fields, embedding_dim)`.
        mask: Optional boolean tensor, `(batch_size, num_fields)`; `True` keeps a field.
            Read from the Keras mask of `inputs` if not given. A masked field is 0.

    Returns:
        Tensor of shape `(batch_size, output_dim)` in the compute dtype, with
        `output_dim = sum(units)`, or with `split_half` the half of all `units` but the
        last, and the last. It has no mask.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If `units` is empty or, with `split_half`, odd before the last, or
            `inputs` is not of rank 3 with at least two fields and static `num_fields`
            and `embedding_dim`.

    Example:
    >>> layer = CompressedInteraction((4, 3))
    >>> tuple(layer(np.ones((2, 5, 8), "float32")).shape)
    (2, 5)

    Reference:
        Lian et al., "xDeepFM: Combining Explicit and Implicit Feature Interactions for
        Recommender Systems", KDD 2018, Eq. 6 to 8. Differs from the paper, which has
        neither bias nor activation nor split: `split_half=False`,
        `activation="linear"`, `use_bias=False` give its network.
    """

    def __init__(
        self,
        units=(128, 128),
        *,
        split_half=True,
        activation="relu",
        use_bias=True,
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = tuple(check_int("units", size) for size in units)
        if not self.units:
            raise ValueError(
                f"`units` must hold at least one size. Received: units={units!r}."
            )
        self.split_half = bool(split_half)
        if self.split_half and any(size % 2 for size in self.units[:-1]):
            raise ValueError(
                "`units` must be even before the last where `split_half` is True. "
                f"Received: units={units!r}."
            )
        self.activation = keras.activations.get(activation)
        self.use_bias = bool(use_bias)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, input_shape):
        num_fields, _ = check_fields(self, input_shape)
        self.kernels, self.biases = [], []
        rows = num_fields
        for layer, size in enumerate(self.units):
            self.kernels.append(
                self.add_weight(
                    name=f"kernel_{layer}",
                    shape=(num_fields, rows, size),
                    initializer=_Flat(clone(self.kernel_initializer, layer)),
                    regularizer=self.kernel_regularizer,
                )
            )
            if self.use_bias:
                self.biases.append(
                    self.add_weight(
                        name=f"bias_{layer}", shape=(size,), initializer="zeros"
                    )
                )
            rows = self._handed_on(layer)
        # The first layer: pairs of fields, `j` from `i` on, and the places of both
        # orders of a pair in its kernel.
        lefts, rights = np.triu_indices(num_fields)
        self._orders = (lefts * num_fields + rights, rights * num_fields + lefts)
        self._is_twice = (lefts != rights)[:, None]

    def call(self, inputs, mask=None):
        _, num_fields, dim = inputs.shape
        if mask is not None:
            kept = ops.expand_dims(mask, -1)
            inputs = ops.where(kept, inputs, ops.zeros_like(inputs))
        # Fields first, then all entries of the batch: every product is of long rows.
        first = ops.reshape(ops.transpose(inputs, (1, 0, 2)), (num_fields, -1))
        x, outputs = first, []
        for layer, size in enumerate(self.units):
            kernel = ops.reshape(self.kernels[layer], (-1, size))
            if layer == 0:
                starts = list(range(num_fields))
                once, again = (ops.take(kernel, o, axis=0) for o in self._orders)
                twice = ops.convert_to_tensor(self._is_twice, dtype=kernel.dtype)
                kernel = once + again * twice
            else:
                starts = [0] * num_fields
            x = compress_products(first, x, as_tensor(kernel), starts)
            if self.use_bias:
                x = x + ops.expand_dims(self.biases[layer], -1)
            x = self.activation(x)
            handed_on = self._handed_on(layer)
            is_last = layer == len(self.units) - 1
            done = x[handed_on:] if self.split_half and not is_last else x
            outputs.append(self._summed(done, dim))
            x = x[:handed_on]
        return ops.concatenate(outputs, axis=-1)

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_shape(self, input_shape):
        halves = [size // 2 for size in self.units[:-1]]
        sizes = halves if self.split_half else self.units[:-1]
        return (input_shape[0], sum(sizes) + self.units[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "units": list(self.units),
            "split_half": self.split_half,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _handed_on(self, layer):
        """How many rows of a layer the next one reads."""
        size = self.units[layer]
        return size // 2 if self.split_half else size

    def _summed(self, x, dim):
        """Sums over the entries of an embedding: `(batch_size, rows)`."""
        x = ops.reshape(x, (x.shape[0], -1, dim))
        total = ops.sum(ops.cast(x, wide_dtype(self.compute_dtype)), axis=-1)
        return ops.cast(ops.transpose(total), self.compute_dtype)


class _Flat(keras.initializers.Initializer):
    """Draws a kernel as a matrix from all pairs of rows to the units."""

    def __init__(self, initializer):
        self.initializer = initializer

    def __call__(self, shape, dtype=None):
        flat = (shape[0] * shape[1], shape[2])
        return ops.reshape(self.initializer(flat, dtype=dtype), shape)


def compress_products(first, x, kernel, starts):
    """`sum_i sum_{j >= starts[i]} kernel_{i,j} first_i * x_j`, in blocks of `i`.

    The hand-made gradient makes the products of a block anew instead of keeping those
    of all blocks.

    Args:
        first: Tensor, `(num_fields, size)`.
        x: Tensor, `(rows, size)`.
        kernel: Tensor, `(num_products, units)`, a row for each product, `i` by `i`.
        starts: List of ints, one for each row of `first`.

    Returns:
        Tensor, `(units, size)`.
    """
    rows = x.shape[0]
    counts = [rows - start for start in starts]
    bounds = np.cumsum([0, *counts]).tolist()
    step = max(1, ROWS_AT_ONCE // rows)
    blocks = [range(i, min(i + step, len(starts))) for i in range(0, len(starts), step)]

    def products(first, x, block):
        if starts[block[0]] == starts[block[-1]]:
            few = ops.expand_dims(first[block[0] : block[-1] + 1], 1)
            made = few * ops.expand_dims(x[starts[block[0]] :], 0)
            return ops.reshape(made, (bounds[block[-1] + 1] - bounds[block[0]], -1))
        return ops.concatenate([first[i : i + 1] * x[starts[i] :] for i in block])

    def part(kernel, block):
        return kernel[bounds[block[0]] : bounds[block[-1] + 1]]

    @ops.custom_gradient
    def compress(first, x, kernel):
        output = None
        for block in blocks:
            weights = ops.transpose(part(kernel, block))
            made = ops.matmul(weights, products(first, x, block))
            output = made if output is None else output + made

        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            sideways = ops.transpose(upstream)
            d_first, d_kernel = [], []
            d_x = ops.zeros_like(x)
            for block in blocks:
                d_kernel.append(ops.matmul(products(first, x, block), sideways))
                d_products = ops.matmul(part(kernel, block), upstream)
                if starts[block[0]] == starts[block[-1]] == 0:
                    d_products = ops.reshape(d_products, (len(block), rows, -1))
                    few = first[block[0] : block[-1] + 1]
                    d_first.append(ops.sum(d_products * ops.expand_dims(x, 0), axis=1))
                    d_x = d_x + ops.sum(d_products * ops.expand_dims(few, 1), axis=0)
                    continue
                begin = 0
                for i in block:
                    one = d_products[begin : begin + counts[i]]
                    begin += counts[i]
                    d_first.append(ops.sum(one * x[starts[i] :], axis=0, keepdims=True))
                    grown = one * first[i : i + 1]
                    d_x = d_x + ops.pad(grown, ((starts[i], 0), (0, 0)))
            return (
                ops.concatenate(d_first, axis=0),
                d_x,
                ops.concatenate(d_kernel, axis=0),
            )

        return output, gradient

    return compress(first, x, kernel)
