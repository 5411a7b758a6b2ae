"""`FieldAwareFactorizationMachine`, pairs of vectors that face each other."""

import keras
import numpy as np
from keras import ops

from keras_recsys._dtypes import wide_dtype


@keras.saving.register_keras_serializable(package="keras_recsys")
class FieldAwareFactorizationMachine(keras.layers.Layer):
    """Second-order part of a field-aware factorization machine.

    With `v_{i,j}` the vector of field `i` that faces field `j`,

        output = sum_{i < j} v_{i,j} . v_{j,i}

    Args:
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, num_fields, num_fields, embedding_dim)`,
            `inputs[:, i, j]` is `v_{i,j}`; or `(batch_size, num_fields, num_fields *
            embedding_dim)`, as an embedding of that width gives it. The vectors on the
            diagonal have no part.
        mask: Optional boolean tensor, `(batch_size, num_fields)`; `True` keeps a field.

    Returns:
        Tensor of shape `(batch_size, 1)`, in the compute dtype; the sums run in float32
        under mixed precision. It has no mask.

    Raises:
        ValueError: If `inputs` is of another shape or has less than two fields.

    Example:
    >>> x = np.zeros((1, 2, 2, 1), "float32")
    >>> x[0, 0, 1], x[0, 1, 0] = 3.0, 5.0
    >>> float(FieldAwareFactorizationMachine()(x)[0, 0])
    15.0

    Reference:
        Juan et al., "Field-aware Factorization Machines for CTR Prediction", RecSys
        2016, Eq. 4.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape):
        shape = tuple(input_shape)
        fields = shape[1] if len(shape) > 1 else None
        square = len(shape) == 4 and shape[2] == fields and shape[3] is not None
        flat = len(shape) == 3 and shape[2] is not None and fields
        if not (fields or 0) > 1 or not (square or (flat and shape[2] % fields == 0)):
            raise ValueError(
                "`FieldAwareFactorizationMachine` takes inputs of shape (batch_size, "
                "num_fields, num_fields, embedding_dim), the last two as one if you "
                "like, with at least two fields. "
                f"Received: input_shape={shape}."
            )

    def call(self, inputs, mask=None):
        num_fields = inputs.shape[1]
        x = ops.reshape(inputs, (-1, num_fields, num_fields, self._dim(inputs.shape)))
        x = ops.cast(x, wide_dtype(self.compute_dtype))
        if mask is not None:
            x = ops.where(ops.expand_dims(mask, (2, 3)), x, ops.zeros_like(x))
        # Each pair stands twice in the products: half of both, none of the diagonal.
        products = ops.sum(x * ops.transpose(x, (0, 2, 1, 3)), axis=-1)
        halves = ops.convert_to_tensor(
            0.5 * (1.0 - np.eye(num_fields)), dtype=products.dtype
        )
        total = ops.sum(products * halves, axis=(1, 2))
        return ops.cast(ops.expand_dims(total, -1), self.compute_dtype)

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], 1)

    @staticmethod
    def _dim(shape):
        return shape[3] if len(shape) == 4 else shape[2] // shape[1]
