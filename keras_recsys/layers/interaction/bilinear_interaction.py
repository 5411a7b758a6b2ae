"""`BilinearInteraction`, products of all pairs of fields."""

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_choice
from keras_recsys._dtypes import wide_dtype
from keras_recsys._initializers import Stacked
from keras_recsys.layers.interaction._pairs import (
    BILINEAR_TYPES,
    as_tensor,
    but_last,
    check_fields,
    multiply_pairs_by_matrix,
    num_matrices,
    take_fields,
)


@keras.saving.register_keras_serializable(package="keras_recsys")
class BilinearInteraction(keras.layers.Layer):
    """Multiplies all pairs of fields through a learned matrix.

    With `v_i` the row vector of field `i`, for every pair `i < j`, row by row of the
    upper triangle,

        p_ij = (v_i W) * v_j

    where the lower-index vector is the one multiplied by the matrix.

    Args:
        bilinear_type: Which matrix a pair has. `"all"`: one `W` for all pairs;
            `"each"`: `W_i` of the left field; `"interaction"`: its own `W_ij`;
            `"hadamard"`: none, `p_ij = v_i * v_j`. Defaults to `"interaction"`.
        reduction: `None` returns the pairs; `"sum"` returns the sum of all their
            entries, without ever building the pairs. Defaults to `None`.
        kernel_initializer: Initializer of each matrix. Defaults to `"glorot_normal"`,
            a deviation of `1 / sqrt(embedding_dim)`.
        kernel_regularizer: Regularizer of `kernel`. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, num_fields, embedding_dim)`.
        mask: Optional boolean tensor, `(batch_size, num_fields)`; `True` keeps a field.
            Read from the Keras mask of `inputs` if not given.

    Returns:
        Tensor of shape `(batch_size, num_pairs, embedding_dim)` with `num_pairs =
        num_fields * (num_fields - 1) / 2`, or `(batch_size, 1)` for `"sum"`, in the
        compute dtype. Pairs with a masked field are exactly 0, and masked in the mask
        that is passed on.

    Raises:
        ValueError: If an argument is unknown, or `inputs` is not of rank 3 with at
            least two fields and static `num_fields` and `embedding_dim`.

    Example:
    >>> x = np.array([[[1, 2], [3, 4], [5, 6]]], "float32")
    >>> BilinearInteraction("hadamard")(x)[0, 2].numpy().tolist()
    [15.0, 24.0]
    >>> tuple(BilinearInteraction("each")(x).shape)
    (1, 3, 2)

    Reference:
        Huang et al., "FiBiNET: Combining Feature Importance and Bilinear feature
        Interaction for Click-Through Rate Prediction", RecSys 2019, Eq. 5. Differs
        from the paper: `"each"` has no matrix for the last field, which is never on the
        left.
    """

    def __init__(
        self,
        bilinear_type="interaction",
        *,
        reduction=None,
        kernel_initializer="glorot_normal",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.bilinear_type = check_choice(
            "bilinear_type", bilinear_type, BILINEAR_TYPES
        )
        if reduction not in (None, "sum"):
            raise ValueError(
                f"`reduction` must be None or 'sum'. Received: reduction={reduction!r}."
            )
        self.reduction = reduction
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, input_shape):
        num_fields, dim = check_fields(self, input_shape)
        self.lefts, self.rights = np.triu_indices(num_fields, k=1)
        count = num_matrices(self.bilinear_type, num_fields)
        if count:
            shape = (dim, dim) if self.bilinear_type == "all" else (count, dim, dim)
            initializer = self.kernel_initializer
            self.kernel = self.add_weight(
                name="kernel",
                shape=shape,
                initializer=initializer if len(shape) == 2 else Stacked(initializer),
                regularizer=self.kernel_regularizer,
            )

    def call(self, inputs, mask=None):
        if mask is not None:
            mask = ops.expand_dims(mask, -1)
            inputs = ops.where(mask, inputs, ops.zeros_like(inputs))
        if self.reduction == "sum":
            return self._sum(inputs)
        if self.bilinear_type == "interaction":
            return multiply_pairs_by_matrix(inputs, as_tensor(self.kernel))
        left = take_fields(self._project(inputs), self.lefts, axis=1)
        return left * take_fields(inputs, self.rights, axis=1)

    def compute_mask(self, inputs, mask=None):
        if mask is None or self.reduction == "sum":
            return None
        left = ops.take(mask, self.lefts, axis=1)
        return ops.logical_and(left, ops.take(mask, self.rights, axis=1))

    def compute_output_shape(self, input_shape):
        batch_size, num_fields, dim = input_shape
        if self.reduction == "sum":
            return (batch_size, 1)
        return (batch_size, num_fields * (num_fields - 1) // 2, dim)

    def get_config(self):
        return {
            **super().get_config(),
            "bilinear_type": self.bilinear_type,
            "reduction": self.reduction,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _project(self, inputs):
        """`v_i W` of all fields but the last, which is never on the left."""
        left = but_last(inputs, axis=1)
        if self.bilinear_type == "all":
            return ops.einsum("bfk,kl->bfl", left, self.kernel)
        if self.bilinear_type == "each":
            return ops.einsum("bfk,fkl->bfl", left, self.kernel)
        return left

    def _sum(self, inputs):
        """Sum of the entries of all pairs, `sum_i (v_i W) . sum_{j > i} v_j`."""
        wide = wide_dtype(self.compute_dtype)
        if self.bilinear_type == "interaction":
            _, num_fields, dim = inputs.shape
            # One (F k, F k) matrix with W_ij in block (i, j) and zeros elsewhere.
            index = np.zeros((num_fields, num_fields), "int32")
            index[self.lefts, self.rights] = np.arange(1, len(self.lefts) + 1)
            blocks = ops.pad(self.kernel, ((1, 0), (0, 0), (0, 0)))
            blocks = ops.take(blocks, index, axis=0)  # (F, F, k, k)
            blocks = ops.transpose(blocks, (0, 2, 1, 3))
            matrix = ops.reshape(blocks, (num_fields * dim, num_fields * dim))
            flat = ops.reshape(inputs, (-1, num_fields * dim))
            terms = ops.cast(ops.matmul(flat, matrix), wide) * ops.cast(flat, wide)
            total = ops.sum(terms, axis=-1, keepdims=True)
        else:
            x = ops.cast(inputs, wide)
            later = ops.flip(ops.cumsum(ops.flip(x[:, 1:], axis=1), axis=1), axis=1)
            terms = ops.cast(self._project(inputs), wide) * later
            total = ops.expand_dims(ops.sum(terms, axis=(1, 2)), -1)
        return ops.cast(total, self.compute_dtype)
