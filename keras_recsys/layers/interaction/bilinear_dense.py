"""`BilinearDense`, a dense layer on pair products that are never laid out."""

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_choice, check_int, shapes_of
from keras_recsys._initializers import Stacked, clone
from keras_recsys.layers.interaction._pairs import (
    BILINEAR_TYPES,
    as_tensor,
    check_fields,
    num_matrices,
    take_fields,
)


@keras.saving.register_keras_serializable(package="keras_recsys")
class BilinearDense(keras.layers.Layer):
    """`Dense` on the flattened pairs of `BilinearInteraction`, in one step.

    With `p_b` the pairs of branch `b`, flattened to `num_pairs * embedding_dim`
    numbers,

        output = activation(p_0 @ projection_0 + p_1 @ projection_1 + ... + bias)

    which is a dense layer on `[p_0 ; p_1 ; ...]` with its kernel cut in as many parts.

    It computes what `BilinearInteraction`, `Flatten`, `Concatenate` and `Dense` do, but
    keeps the batch on the last axis, so that pairs are whole rows, the matrix product
    reads them where they are, and neither they nor their gradients are copied.

    Args:
        units: Positive int, width of the output.
        bilinear_type: As in `BilinearInteraction`: `"all"`, `"each"`, `"interaction"`
            or `"hadamard"`; or a tuple of them, one a branch. Defaults to
            `"interaction"`.
        share_kernel: Whether all branches use the same matrices; they must then be of
            one type. Defaults to `False`.
        activation: Activation of the output. Defaults to `None`.
        use_bias: Whether to add a bias. Defaults to `True`.
        kernel_initializer: Initializer of each bilinear matrix. Defaults to
            `"glorot_normal"`.
        kernel_regularizer: Regularizer of the bilinear matrices. Defaults to `None`.
        projection_initializer: Initializer of each `projection_b`, of shape
            `(num_pairs * embedding_dim, units)`. Defaults to `"glorot_uniform"`.
        projection_regularizer: Regularizer of the projections. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, num_fields, embedding_dim)`, or a list of
            such tensors of one shape, one a branch.

    Returns:
        Tensor of shape `(batch_size, units)`, in the compute dtype.

    Raises:
        TypeError: If `units` is not an integer.
        ValueError: If a type is unknown, the number of types is not that of the inputs,
            types differ under `share_kernel`, or an input is not of rank 3 with at
            least two fields and static `num_fields` and `embedding_dim`.

    Example:
    >>> x = np.ones((2, 3, 4), "float32")
    >>> tuple(BilinearDense(8)([x, x]).shape)
    (2, 8)

    Reference:
        Huang et al., RecSys 2019, Eq. 5 to 8: the combination layer and the first layer
        of the network on it.
    """

    def __init__(
        self,
        units,
        bilinear_type="interaction",
        *,
        share_kernel=False,
        activation=None,
        use_bias=True,
        kernel_initializer="glorot_normal",
        kernel_regularizer=None,
        projection_initializer="glorot_uniform",
        projection_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = check_int("units", units)
        if not isinstance(bilinear_type, str):
            bilinear_type = tuple(bilinear_type)
        for one in (
            (bilinear_type,) if isinstance(bilinear_type, str) else bilinear_type
        ):
            check_choice("bilinear_type", one, BILINEAR_TYPES)
        if share_kernel and len({*self._types(bilinear_type, 1)}) > 1:
            raise ValueError(
                "`bilinear_type` must be one type where `share_kernel` is True. "
                f"Received: bilinear_type={bilinear_type!r}."
            )
        self.bilinear_type = bilinear_type
        self.share_kernel = bool(share_kernel)
        self.activation = keras.activations.get(activation)
        self.use_bias = bool(use_bias)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.projection_initializer = keras.initializers.get(projection_initializer)
        self.projection_regularizer = keras.regularizers.get(projection_regularizer)

    @staticmethod
    def _types(bilinear_type, num_branches):
        if isinstance(bilinear_type, str):
            return (bilinear_type,) * num_branches
        return bilinear_type

    def build(self, input_shape):
        shapes = shapes_of(input_shape)
        types = self._types(self.bilinear_type, len(shapes))
        num_fields, dim = check_fields(self, shapes[0])
        if len(types) != len(shapes) or any(
            shape[1:] != (num_fields, dim) for shape in shapes
        ):
            raise ValueError(
                "`inputs` must be one tensor a branch, all of one shape, and "
                "`bilinear_type` one string or one a branch. Received: "
                f"bilinear_type={self.bilinear_type!r}, input_shape={input_shape}."
            )
        self.lefts, self.rights = np.triu_indices(num_fields, k=1)
        self.kernels = []
        for i, bilinear_type in enumerate(types):
            count = num_matrices(bilinear_type, num_fields)
            if i and self.share_kernel:
                self.kernels.append(self.kernels[0])
            elif count:
                self.kernels.append(
                    self.add_weight(
                        name=f"kernel_{i}",
                        shape=(count, dim, dim),
                        initializer=Stacked(clone(self.kernel_initializer, i)),
                        regularizer=self.kernel_regularizer,
                    )
                )
            else:
                self.kernels.append(None)
        self.projections = [
            self.add_weight(
                name=f"projection_{i}",
                shape=(len(self.lefts) * dim, self.units),
                initializer=clone(self.projection_initializer, i),
                regularizer=self.projection_regularizer,
            )
            for i in range(len(shapes))
        ]
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias", shape=(self.units,), initializer="zeros"
            )

    def call(self, inputs):
        branches = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        parts = [
            _project(self._pairs(fields, kernel), as_tensor(projection))
            for fields, kernel, projection in zip(
                branches, self.kernels, self.projections, strict=True
            )
        ]
        output = sum(parts[1:], parts[0])
        if self.use_bias:
            output = output + self.bias
        return self.activation(output)

    def compute_output_shape(self, input_shape):
        return (shapes_of(input_shape)[0][0], self.units)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "bilinear_type": self.bilinear_type,
            "share_kernel": self.share_kernel,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "projection_initializer": keras.initializers.serialize(
                self.projection_initializer
            ),
            "projection_regularizer": keras.regularizers.serialize(
                self.projection_regularizer
            ),
        }

    def _pairs(self, fields, kernel):
        """Pair products, `(num_pairs * embedding_dim, batch_size)`."""
        fields = ops.transpose(fields, (1, 2, 0))  # (num_fields, dim, batch_size)
        right = take_fields(fields, self.rights, axis=0)
        if kernel is None:
            left = take_fields(fields, self.lefts, axis=0)
        else:
            matrices = ops.transpose(kernel, (0, 2, 1))
            if kernel.shape[0] == len(self.lefts) and kernel.shape[0] > 1:
                left = ops.matmul(matrices, take_fields(fields, self.lefts, axis=0))
            else:  # one matrix, or one a left field
                left = ops.matmul(matrices, fields[:-1])
                left = take_fields(left, self.lefts, axis=0)
        return ops.reshape(left * right, (len(self.lefts) * fields.shape[1], -1))


def _project(pairs, projection):
    """`transpose(pairs) @ projection`, with gradients in the layout of `pairs`."""

    @ops.custom_gradient
    def project(pairs, projection):
        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            return (
                ops.matmul(projection, ops.transpose(upstream)),
                ops.matmul(pairs, upstream),
            )

        return ops.matmul(ops.transpose(pairs), projection), gradient

    return project(pairs, projection)
