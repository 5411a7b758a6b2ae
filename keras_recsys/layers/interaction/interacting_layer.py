"""`InteractingLayer`, attention of fields to each other."""

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys._dtypes import wide_dtype
from keras_recsys._initializers import clone
from keras_recsys.layers.interaction._pairs import check_fields


@keras.saving.register_keras_serializable(package="keras_recsys")
class InteractingLayer(keras.layers.Layer):
    """Lets every field attend to all fields, and adds the field itself.

    With `e_m` the vector of field `m`, and in each head

        weight_mk = softmax_k((e_m query) . (e_k key))
        head_m = sum_k weight_mk (e_k value)

        output_m = relu([head_m of all heads] + e_m residual)

    Args:
        num_heads: Positive int. Defaults to `2`.
        key_dim: Positive int, width of one head. Defaults to `16`.
        use_residual: Whether to add `e_m residual`. Defaults to `True`.
        scale: Whether scores are divided by `sqrt(key_dim)`. Defaults to `False`, as in
            the paper.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.
        kernel_regularizer: Regularizer of the kernels. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, num_fields, dim)`.
        mask: Optional boolean tensor, `(batch_size, num_fields)`; `True` keeps a field.
            Read from the Keras mask of `inputs` if not given.

    Returns:
        Tensor of shape `(batch_size, num_fields, num_heads * key_dim)`, in the compute
        dtype; the softmax runs in float32. Masked fields get no weight and are exactly
        0, and the mask is passed on.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is not positive, or `inputs` is not of rank 3 with at
            least two fields and static `num_fields` and `dim`.

    Example:
    >>> layer = InteractingLayer(num_heads=2, key_dim=3)
    >>> tuple(layer(np.ones((4, 5, 8), "float32")).shape)
    (4, 5, 6)

    Reference:
        Song et al., "AutoInt: Automatic Feature Interaction Learning via Self-Attentive
        Neural Networks", CIKM 2019, Eq. 5 to 8. `keras.layers.MultiHeadAttention` has a
        projection of the joined heads, which is not in the paper.
    """

    def __init__(
        self,
        num_heads=2,
        key_dim=16,
        *,
        use_residual=True,
        scale=False,
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = check_int("num_heads", num_heads)
        self.key_dim = check_int("key_dim", key_dim)
        self.use_residual = bool(use_residual)
        self.scale = bool(scale)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, input_shape):
        _, dim = check_fields(self, input_shape, fixed=False)
        names = ["query", "key", "value", *(["residual"] if self.use_residual else [])]
        for i, name in enumerate(names):
            kernel = self.add_weight(
                name=f"{name}_kernel",
                shape=(dim, self.num_heads * self.key_dim),
                initializer=clone(self.kernel_initializer, i),
                regularizer=self.kernel_regularizer,
            )
            setattr(self, f"{name}_kernel", kernel)

    def call(self, inputs, mask=None):
        if mask is not None:
            kept = ops.expand_dims(mask, -1)
            inputs = ops.where(kept, inputs, ops.zeros_like(inputs))
        query, key, value = (
            self._heads(ops.matmul(inputs, kernel))
            for kernel in (self.query_kernel, self.key_kernel, self.value_kernel)
        )
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        scores = ops.cast(scores, wide_dtype(self.compute_dtype))
        if self.scale:
            scores = scores / self.key_dim**0.5
        if mask is not None:
            lowest = ops.full_like(scores, float(np.finfo("float32").min))
            scores = ops.where(ops.expand_dims(mask, (1, 2)), scores, lowest)
        weights = ops.cast(ops.softmax(scores, axis=-1), self.compute_dtype)
        heads = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))
        output = ops.reshape(
            heads, (-1, inputs.shape[1], self.num_heads * self.key_dim)
        )
        if self.use_residual:
            output = output + ops.matmul(inputs, self.residual_kernel)
        output = ops.relu(output)
        if mask is not None:
            output = ops.where(kept, output, ops.zeros_like(output))
        return output

    def compute_output_shape(self, input_shape):
        return (*input_shape[:2], self.num_heads * self.key_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "use_residual": self.use_residual,
            "scale": self.scale,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _heads(self, x):
        """`(batch_size, num_heads, num_fields, key_dim)` of the joined heads."""
        x = ops.reshape(x, (-1, x.shape[1], self.num_heads, self.key_dim))
        return ops.transpose(x, (0, 2, 1, 3))
