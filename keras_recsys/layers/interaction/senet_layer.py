"""`SENETLayer`, the importance of fields."""

import keras
from keras import ops

from keras_recsys._checks import check_choice
from keras_recsys._initializers import clone


@keras.saving.register_keras_serializable(package="keras_recsys")
class SENETLayer(keras.layers.Layer):
    """Scales each field embedding by its importance in this sample.

    With `v_i` the embedding of field `i` and `R = max(1, floor(num_fields /
    reduction_ratio))`,

        squeeze     z_i = mean(v_i)
        excitation  a = activation(hidden_activation(z @ reduction_kernel)
                                   @ expansion_kernel)
        re-weight   output_i = a_i * v_i

    Args:
        reduction_ratio: Positive number, fields per unit of the bottleneck. Defaults to
            `3`.
        squeeze: `"mean"` or `"max"` over the entries of an embedding. Defaults to
            `"mean"`, the better one in the paper.
        hidden_activation: Activation of the bottleneck. Defaults to `"relu"`.
        activation: Activation of the weights. ReLU can switch a field off for a sample,
            and a bottleneck unit that is dead gets no gradient; `"sigmoid"` never does
            the first. Defaults to `"relu"`.
        kernel_initializer: Initializer of both kernels. Defaults to `"glorot_normal"`.
        kernel_regularizer: Regularizer of both kernels. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, num_fields, embedding_dim)`.
        mask: Optional boolean tensor, `(batch_size, num_fields)`; `True` keeps a field.
            Read from the Keras mask of `inputs` if not given. A masked field is
            squeezed to 0.
        return_weights: Whether to return the weights as well. Defaults to `False`.

    Returns:
        Tensor of the shape of `inputs`, in the compute dtype; masked fields are exactly
        0, and the mask is passed on. With `return_weights=True`, a tuple of it and of
        the weights `a`, `(batch_size, num_fields)`, 0 at masked fields.

    Raises:
        ValueError: If `reduction_ratio` is not positive, `squeeze` is unknown, or
            `inputs` is not of rank 3 with static `num_fields` and `embedding_dim`.

    Example:
    >>> layer = SENETLayer()
    >>> tuple(layer(np.ones((2, 6, 4), "float32")).shape)
    (2, 6, 4)
    >>> tuple(layer.reduction_kernel.shape)
    (6, 2)

    Reference:
        Huang et al., "FiBiNET: Combining Feature Importance and Bilinear feature
        Interaction for Click-Through Rate Prediction", RecSys 2019, Eq. 1 to 4.
    """

    def __init__(
        self,
        reduction_ratio=3,
        *,
        squeeze="mean",
        hidden_activation="relu",
        activation="relu",
        kernel_initializer="glorot_normal",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not reduction_ratio > 0 or reduction_ratio == float("inf"):
            raise ValueError(
                "`reduction_ratio` must be a positive number. "
                f"Received: reduction_ratio={reduction_ratio!r}."
            )
        self.reduction_ratio = reduction_ratio
        self.squeeze = check_choice("squeeze", squeeze, ("mean", "max"))
        self.hidden_activation = keras.activations.get(hidden_activation)
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, input_shape):
        if len(input_shape) != 3 or None in input_shape[1:]:
            raise ValueError(
                "`SENETLayer` takes inputs of shape (batch_size, num_fields, "
                "embedding_dim) with the last two static. "
                f"Received: input_shape={tuple(input_shape)}."
            )
        self.input_spec = keras.layers.InputSpec(shape=(None, *input_shape[1:]))
        num_fields = input_shape[1]
        units = max(1, int(num_fields // self.reduction_ratio))
        self.reduction_kernel = self.add_weight(
            name="reduction_kernel",
            shape=(num_fields, units),
            initializer=clone(self.kernel_initializer, 0),
            regularizer=self.kernel_regularizer,
        )
        self.expansion_kernel = self.add_weight(
            name="expansion_kernel",
            shape=(units, num_fields),
            initializer=clone(self.kernel_initializer, 1),
            regularizer=self.kernel_regularizer,
        )

    def call(self, inputs, mask=None, return_weights=False):
        if mask is not None:
            kept = ops.expand_dims(mask, -1)
            inputs = ops.where(kept, inputs, ops.zeros_like(inputs))
        reduce = ops.mean if self.squeeze == "mean" else ops.max
        squeezed = reduce(inputs, axis=-1)
        hidden = self.hidden_activation(ops.matmul(squeezed, self.reduction_kernel))
        weights = self.activation(ops.matmul(hidden, self.expansion_kernel))
        if mask is not None:
            weights = ops.where(mask, weights, ops.zeros_like(weights))
        output = inputs * ops.expand_dims(weights, -1)
        return (output, weights) if return_weights else output

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def compute_output_spec(self, inputs, mask=None, return_weights=False):
        output = keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)
        if not return_weights:
            return output
        return output, keras.KerasTensor(inputs.shape[:2], dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "reduction_ratio": self.reduction_ratio,
            "squeeze": self.squeeze,
            "hidden_activation": keras.activations.serialize(self.hidden_activation),
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }
