"""`BilinearPlus`, a few numbers from the bilinear forms of all pairs of fields."""

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_choice, check_int
from keras_recsys._initializers import Stacked, clone
from keras_recsys.layers.interaction._pairs import (
    as_tensor,
    check_fields,
    multiply_pairs_by_matrix,
    num_matrices,
)

TYPES = ("all", "each", "interaction")


@keras.saving.register_keras_serializable(package="keras_recsys")
class BilinearPlus(keras.layers.Layer):
    """Projects the bilinear forms of all pairs of fields to a low rank.

    With `v_i` the row vector of field `i`, for every pair `i < j`,

        s_ij = v_i W v_j^T
        output = s projection

    Args:
        output_dim: Positive int, width of the output, or `None` for the forms `s`
            themselves. Defaults to `50`.
        bilinear_type: Which matrix a pair has, see `BilinearInteraction`: `"all"`,
            `"each"` or `"interaction"`. Defaults to `"all"`.
        kernel_initializer: Initializer of each matrix and of the projection. Defaults
            to `"glorot_normal"`.
        kernel_regularizer: Regularizer of both. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, num_fields, embedding_dim)`.
        mask: Optional boolean tensor, `(batch_size, num_fields)`; `True` keeps a field.
            Read from the Keras mask of `inputs` if not given. Forms with a masked field
            are 0.

    Returns:
        Tensor of shape `(batch_size, output_dim)`, or `(batch_size, num_pairs)` for
        `output_dim=None`, in the compute dtype. It has no mask.

    Raises:
        TypeError: If `output_dim` is not an integer.
        ValueError: If an argument is out of its range, or `inputs` is not of rank 3
            with at least two fields and static `num_fields` and `embedding_dim`.

    Example:
    >>> layer = BilinearPlus(None, kernel_initializer="ones")
    >>> layer(np.array([[[1, 2], [3, 4], [5, 6]]], "float32")).numpy().tolist()
    [[21.0, 33.0, 77.0]]

    Reference:
        Zhang et al., "FiBiNet++: Reducing Model Size by Low Rank Feature Interaction
        Layer for CTR Prediction", CIKM 2023. The pairs are never built for `"all"` and
        `"each"`.
    """

    def __init__(
        self,
        output_dim=50,
        bilinear_type="all",
        *,
        kernel_initializer="glorot_normal",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.output_dim = (
            None if output_dim is None else check_int("output_dim", output_dim)
        )
        self.bilinear_type = check_choice("bilinear_type", bilinear_type, TYPES)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, input_shape):
        num_fields, dim = check_fields(self, input_shape)
        self.lefts, self.rights = np.triu_indices(num_fields, k=1)
        count = num_matrices(self.bilinear_type, num_fields)
        shape = (dim, dim) if self.bilinear_type == "all" else (count, dim, dim)
        initializer = self.kernel_initializer
        self.kernel = self.add_weight(
            name="kernel",
            shape=shape,
            initializer=initializer if len(shape) == 2 else Stacked(initializer),
            regularizer=self.kernel_regularizer,
        )
        if self.output_dim is not None:
            self.projection = self.add_weight(
                name="projection",
                shape=(len(self.lefts), self.output_dim),
                initializer=clone(initializer, count),
                regularizer=self.kernel_regularizer,
            )

    def call(self, inputs, mask=None):
        if mask is not None:
            kept = ops.expand_dims(mask, -1)
            inputs = ops.where(kept, inputs, ops.zeros_like(inputs))
        if self.bilinear_type == "interaction":
            pairs = multiply_pairs_by_matrix(inputs, as_tensor(self.kernel))
            forms = ops.sum(pairs, axis=-1)
            if self.output_dim is None:
                return forms
            return ops.matmul(forms, self.projection)
        num_fields = inputs.shape[1]
        letters = "kl" if self.bilinear_type == "all" else "fkl"
        left = ops.einsum(f"bfk,{letters}->bfl", inputs[:, :-1], self.kernel)
        gram = ops.matmul(left, ops.transpose(inputs, (0, 2, 1)))
        gram = ops.reshape(gram, (-1, (num_fields - 1) * num_fields))
        places = self.lefts * num_fields + self.rights
        if self.output_dim is None:
            return ops.take(gram, places, axis=1)
        # Rows of 0 for what is no pair: cheaper than to take the pairs of each row.
        index = np.zeros(gram.shape[1], "int32")
        index[places] = np.arange(1, len(places) + 1)
        rows = ops.pad(self.projection, ((1, 0), (0, 0)))
        return ops.matmul(gram, ops.take(rows, index, axis=0))

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_shape(self, input_shape):
        num_fields = input_shape[1]
        num_pairs = num_fields * (num_fields - 1) // 2
        return (input_shape[0], self.output_dim or num_pairs)

    def get_config(self):
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "bilinear_type": self.bilinear_type,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }
