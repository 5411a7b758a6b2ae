"""`SENETPlus`, the importance of the entries of fields."""

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_int, check_positive
from keras_recsys._dtypes import wide_dtype
from keras_recsys._initializers import clone


@keras.saving.register_keras_serializable(package="keras_recsys")
class SENETPlus(keras.layers.Layer):
    """Weighs every entry of every field, adds the fields themselves, and normalizes.

    Each embedding is cut into `num_groups` parts, and with `R = max(1, floor(2
    num_groups num_fields / reduction_ratio))` units,

        squeeze     z = for each field the maxima of its parts, then their means
        excitation  a = activation(relu(z W_1 + b_1) W_2 + b_2), one weight an entry
        output      layer_norm(a * x + x), over all entries of the row

    Args:
        num_groups: Positive int that divides `embedding_dim`. Defaults to `2`.
        reduction_ratio: Positive number, squeezed numbers per unit of the bottleneck.
            Defaults to `3`.
        activation: Activation of the weights. Defaults to `"linear"`.
        epsilon: Positive float of the normalization. Defaults to `0.001`.
        kernel_initializer: Initializer of both kernels. Defaults to `"glorot_normal"`.
        kernel_regularizer: Regularizer of both kernels. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, num_fields, embedding_dim)`.
        mask: Optional boolean tensor, `(batch_size, num_fields)`; `True` keeps a field.
            Read from the Keras mask of `inputs` if not given. A masked field counts as
            0 before the normalization.

    Returns:
        Tensor of the shape of `inputs`, in the compute dtype; the normalization runs in
        float32. Masked fields are exactly 0, and the mask is passed on.

    Raises:
        TypeError: If `num_groups` is not an integer.
        ValueError: If an argument is out of its range, `num_groups` does not divide
            `embedding_dim`, or `inputs` is not of rank 3 with static `num_fields` and
            `embedding_dim`.

    Example:
    >>> layer = SENETPlus(num_groups=2)
    >>> tuple(layer(np.ones((2, 6, 4), "float32")).shape)
    (2, 6, 4)
    >>> tuple(layer.reduction_kernel.shape)
    (24, 8)

    Reference:
        Zhang et al., "FiBiNet++: Reducing Model Size by Low Rank Feature Interaction
        Layer for CTR Prediction", CIKM 2023.
    """

    def __init__(
        self,
        num_groups=2,
        reduction_ratio=3,
        *,
        activation="linear",
        epsilon=1e-3,
        kernel_initializer="glorot_normal",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_groups = check_int("num_groups", num_groups)
        self.reduction_ratio = check_positive("reduction_ratio", reduction_ratio)
        self.activation = keras.activations.get(activation)
        self.epsilon = check_positive("epsilon", epsilon)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, input_shape):
        if len(input_shape) != 3 or None in input_shape[1:]:
            raise ValueError(
                "`SENETPlus` takes inputs of shape (batch_size, num_fields, "
                "embedding_dim) with the last two static. "
                f"Received: input_shape={tuple(input_shape)}."
            )
        self.input_spec = keras.layers.InputSpec(shape=(None, *input_shape[1:]))
        _, num_fields, dim = input_shape
        if dim % self.num_groups:
            raise ValueError(
                f"`num_groups` must divide the embedding_dim of `inputs`, {dim}. "
                f"Received: num_groups={self.num_groups!r}."
            )
        squeezed = 2 * self.num_groups * num_fields
        units = max(1, int(squeezed // self.reduction_ratio))
        sizes = (squeezed, units, num_fields * dim)
        for i, name in enumerate(("reduction", "expansion")):
            kernel = self.add_weight(
                name=f"{name}_kernel",
                shape=(sizes[i], sizes[i + 1]),
                initializer=clone(self.kernel_initializer, i),
                regularizer=self.kernel_regularizer,
            )
            bias = self.add_weight(
                name=f"{name}_bias", shape=(sizes[i + 1],), initializer="zeros"
            )
            setattr(self, f"{name}_kernel", kernel)
            setattr(self, f"{name}_bias", bias)
        self.gamma = self.add_weight(
            name="gamma", shape=(num_fields * dim,), initializer="ones"
        )
        self.beta = self.add_weight(
            name="beta", shape=(num_fields * dim,), initializer="zeros"
        )

    def call(self, inputs, mask=None):
        _, num_fields, dim = inputs.shape
        if mask is not None:
            kept = ops.expand_dims(mask, -1)
            inputs = ops.where(kept, inputs, ops.zeros_like(inputs))
        parts = ops.reshape(
            inputs, (-1, num_fields, self.num_groups, dim // self.num_groups)
        )
        largest = ops.max(parts, axis=-1, initial=-np.inf)  # of no rows too
        squeezed = ops.concatenate([largest, ops.mean(parts, axis=-1)], axis=-1)
        squeezed = ops.reshape(squeezed, (-1, 2 * self.num_groups * num_fields))
        hidden = ops.matmul(squeezed, self.reduction_kernel) + self.reduction_bias
        weights = ops.matmul(ops.relu(hidden), self.expansion_kernel)
        weights = self.activation(weights + self.expansion_bias)
        flat = ops.reshape(inputs, (-1, num_fields * dim))
        output = self._normalized(weights * flat + flat)
        output = ops.reshape(output, (-1, num_fields, dim))
        if mask is not None:
            output = ops.where(kept, output, ops.zeros_like(output))
        return output

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "num_groups": self.num_groups,
            "reduction_ratio": self.reduction_ratio,
            "activation": keras.activations.serialize(self.activation),
            "epsilon": self.epsilon,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _normalized(self, x):
        wide = ops.cast(x, wide_dtype(self.compute_dtype))
        mean = ops.mean(wide, axis=-1, keepdims=True)
        centered = wide - mean
        variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
        normal = centered * ops.rsqrt(variance + self.epsilon)
        return ops.cast(normal, self.compute_dtype) * self.gamma + self.beta
