"""`FactorizationMachine`, the sum of the products of all pairs of fields."""

import keras
from keras import ops

from keras_recsys._dtypes import wide_dtype
from keras_recsys.layers.interaction._pairs import check_fields


@keras.saving.register_keras_serializable(package="keras_recsys")
class FactorizationMachine(keras.layers.Layer):
    """Second-order part of a factorization machine, in time linear in the fields.

    With `v_i` the embedding of field `i`,

        pooled = sum_{i < j} v_i * v_j = ((sum_i v_i)^2 - sum_i v_i^2) / 2
        output = sum of the entries of pooled

    Args:
        reduction: `"sum"` gives the sum, one number a row; `None` gives `pooled`, the
            bi-interaction of neural factorization machines. Defaults to `"sum"`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, num_fields, embedding_dim)`.
        mask: Optional boolean tensor, `(batch_size, num_fields)`; `True` keeps a field.
            Read from the Keras mask of `inputs` if not given.

    Returns:
        Tensor of shape `(batch_size, 1)`, or `(batch_size, embedding_dim)` for
        `reduction=None`, in the compute dtype; the sums run in float32 under mixed
        precision. It has no mask.

    Raises:
        ValueError: If `reduction` is unknown, or `inputs` is not of rank 3 with at
            least two fields and static `num_fields` and `embedding_dim`.

    Example:
    >>> x = np.array([[[1, 2], [3, 4], [5, 6]]], "float32")
    >>> FactorizationMachine()(x).numpy().tolist()
    [[67.0]]
    >>> FactorizationMachine(reduction=None)(x).numpy().tolist()
    [[23.0, 44.0]]

    Reference:
        Rendle, "Factorization Machines", ICDM 2010, Lemma 3.1; He and Chua, "Neural
        Factorization Machines for Sparse Predictive Analytics", SIGIR 2017, Eq. 4. The
        linear part and the bias are not here: builders add them.
    """

    def __init__(self, *, reduction="sum", **kwargs):
        super().__init__(**kwargs)
        if reduction not in (None, "sum"):
            raise ValueError(
                f"`reduction` must be None or 'sum'. Received: reduction={reduction!r}."
            )
        self.reduction = reduction
        self.supports_masking = True

    def build(self, input_shape):
        check_fields(self, input_shape, fixed=False)

    def call(self, inputs, mask=None):
        x = ops.cast(inputs, wide_dtype(self.compute_dtype))
        if mask is not None:
            x = ops.where(ops.expand_dims(mask, -1), x, ops.zeros_like(x))
        total = ops.sum(x, axis=1)
        pooled = 0.5 * (ops.square(total) - ops.sum(ops.square(x), axis=1))
        if self.reduction == "sum":
            pooled = ops.sum(pooled, axis=-1, keepdims=True)
        return ops.cast(pooled, self.compute_dtype)

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], 1 if self.reduction == "sum" else input_shape[2])

    def get_config(self):
        return {**super().get_config(), "reduction": self.reduction}
