"""`BilinearDense`, a dense layer on pair products that are never laid out."""

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_choice, check_int
from keras_recsys._initializers import Stacked, clone
from keras_recsys.layers.interaction._pairs import (
    BILINEAR_TYPES,
    as_tensor,
    but_last,
    check_fields,
    num_matrices,
    take_fields,
)


@keras.saving.register_keras_serializable(package="keras_recsys")
class BilinearDense(keras.layers.Layer):
    """`Dense` on the flattened pairs of `BilinearInteraction`, in one step.

    With `p` the pairs of the fields and `q` those of the fields times their weights
    `a`, each flattened to `num_pairs * embedding_dim` numbers,

        output = activation(p @ projection + q @ weighed_projection + bias)

    which is a dense layer on `[p ; q]` with its kernel cut in two; without weights it
    is one on `p` alone. A pair of weighed fields is `q_ij = a_i a_j ((v_i W') * v_j)`,
    so both halves read the same fields. The batch is on the last axis, so that a pair
    is a whole row, the matrix products read the pairs where they are, and neither they
    nor their gradients are copied.

    Args:
        units: Positive int, width of the output.
        bilinear_type: As in `BilinearInteraction`: `"all"`, `"each"`, `"interaction"`
            or `"hadamard"`; or a tuple of two, one for `p` and one for `q`. Defaults to
            `"interaction"`.
        share_kernel: Whether `q` has the matrices of `p`; both must then be of one
            type. Defaults to `False`.
        activation: Activation of the output. Defaults to `None`.
        use_bias: Whether to add a bias. Defaults to `True`.
        kernel_initializer: Initializer of each bilinear matrix. Defaults to
            `"glorot_normal"`.
        kernel_regularizer: Regularizer of the bilinear matrices. Defaults to `None`.
        projection_initializer: Initializer of each projection, of shape `(num_pairs *
            embedding_dim, units)`. Defaults to `"glorot_uniform"`.
        projection_regularizer: Regularizer of the projections. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, num_fields, embedding_dim)`.
        field_weights: Optional float tensor, `(batch_size, num_fields)`, such as
            `SENETLayer` returns. Once given it is always given.

    Returns:
        Tensor of shape `(batch_size, units)`, in the compute dtype.

    Raises:
        TypeError: If `units` is not an integer.
        ValueError: If a type is unknown, the types differ under `share_kernel`, two are
            given without `field_weights`, or `inputs` is not of rank 3 with at least
            two fields and static `num_fields` and `embedding_dim`.

    Example:
    >>> x = np.ones((2, 3, 4), "float32")
    >>> weights = np.ones((2, 3), "float32")
    >>> tuple(BilinearDense(8)(x, field_weights=weights).shape)
    (2, 8)

    Reference:
        Huang et al., "FiBiNET: Combining Feature Importance and Bilinear feature
        Interaction for Click-Through Rate Prediction", RecSys 2019, Eq. 5 to 8: the
        combination layer and the first layer of the network on it.
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
        one = isinstance(bilinear_type, str)
        types = (bilinear_type,) * 2 if one else tuple(bilinear_type)
        for each in types:
            check_choice("bilinear_type", each, BILINEAR_TYPES)
        if len(types) != 2:
            raise ValueError(
                "`bilinear_type` must be one type or a tuple of two. "
                f"Received: bilinear_type={bilinear_type!r}."
            )
        if share_kernel and types[0] != types[1]:
            raise ValueError(
                "`bilinear_type` must be one type where `share_kernel` is True. "
                f"Received: bilinear_type={bilinear_type!r}."
            )
        self.bilinear_type = bilinear_type if one else types
        self.share_kernel = bool(share_kernel)
        self.activation = keras.activations.get(activation)
        self.use_bias = bool(use_bias)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.projection_initializer = keras.initializers.get(projection_initializer)
        self.projection_regularizer = keras.regularizers.get(projection_regularizer)
        self._types = types

    def build(self, inputs_shape, field_weights_shape=None):
        num_fields, dim = check_fields(self, inputs_shape)
        if field_weights_shape is None and not isinstance(self.bilinear_type, str):
            raise ValueError(
                "`bilinear_type` must be one type where no `field_weights` are given. "
                f"Received: bilinear_type={self.bilinear_type!r}."
            )
        self.lefts, self.rights = np.triu_indices(num_fields, k=1)
        rows = len(self.lefts) * dim
        self.kernel = self._add_kernel("kernel", 0, num_fields, dim)
        self.projection = self._add_projection("projection", 0, rows)
        if field_weights_shape is not None:
            if self.share_kernel:
                self.weighed_kernel = self.kernel
            else:
                self.weighed_kernel = self._add_kernel(
                    "weighed_kernel", 1, num_fields, dim
                )
            self.weighed_projection = self._add_projection(
                "weighed_projection", 1, rows
            )
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias", shape=(self.units,), initializer="zeros"
            )

    def call(self, inputs, field_weights=None):
        fields = ops.transpose(inputs, (1, 2, 0))  # (num_fields, dim, batch_size)
        right = take_fields(fields, self.rights, axis=0)
        if field_weights is None:
            (left,) = self._lefts(fields, [self.kernel])
            output = _project(left * right, self.projection)
        else:
            left, weighed_left = self._lefts(fields, [self.kernel, self.weighed_kernel])
            weights = ops.transpose(field_weights)
            weights = take_fields(weights, self.lefts, axis=0) * take_fields(
                weights, self.rights, axis=0
            )
            weighed_right = right * ops.expand_dims(weights, 1)
            output = _project(left * right, self.projection) + _project(
                weighed_left * weighed_right, self.weighed_projection
            )
        if self.use_bias:
            output = output + self.bias
        return self.activation(output)

    def compute_output_shape(self, inputs_shape, field_weights_shape=None):
        return (inputs_shape[0], self.units)

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

    def _add_kernel(self, name, branch, num_fields, dim):
        count = num_matrices(self._types[branch], num_fields)
        if not count:
            return None
        return self.add_weight(
            name=name,
            shape=(count, dim, dim),
            initializer=Stacked(clone(self.kernel_initializer, branch)),
            regularizer=self.kernel_regularizer,
        )

    def _add_projection(self, name, branch, rows):
        return self.add_weight(
            name=name,
            shape=(rows, self.units),
            initializer=clone(self.projection_initializer, branch),
            regularizer=self.projection_regularizer,
        )

    def _lefts(self, fields, kernels):
        """`v_i W` of every pair for each kernel, `(num_pairs, dim, batch_size)`."""
        gathered = None
        lefts = []
        for bilinear_type, kernel in zip(self._types, kernels, strict=False):
            if lefts and kernel is kernels[0]:
                lefts.append(lefts[0])
                continue
            if bilinear_type in ("all", "each"):
                matrices = ops.transpose(kernel, (0, 2, 1))
                left = ops.matmul(matrices, but_last(fields, axis=0))
                lefts.append(take_fields(left, self.lefts, axis=0))
                continue
            if gathered is None:
                gathered = take_fields(fields, self.lefts, axis=0)
            if bilinear_type == "interaction":
                matrices = ops.transpose(kernel, (0, 2, 1))
                lefts.append(ops.matmul(matrices, gathered))
            else:
                lefts.append(gathered)
        return lefts


def _project(pairs, projection):
    """Dense product of pairs, `(num_pairs, dim, batch_size)`, with a projection.

    The gradient of the pairs comes in their own layout.
    """

    @ops.custom_gradient
    def project(pairs, projection):
        flat = ops.reshape(pairs, (projection.shape[0], -1))

        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            d_flat = ops.matmul(projection, ops.transpose(upstream))
            return ops.reshape(d_flat, (*pairs.shape[:2], -1)), ops.matmul(
                flat, upstream
            )

        # Of the two, the projection is the cheaper one to read across.
        return ops.transpose(ops.matmul(ops.transpose(projection), flat)), gradient

    return project(pairs, as_tensor(projection))
