"""`ClickProbability`, the last layer of a click model."""

import keras
from keras import ops

from keras_recsys._checks import shapes_of


@keras.saving.register_keras_serializable(package="keras_recsys")
class ClickProbability(keras.layers.Layer):
    """Adds logits and a global bias and applies the sigmoid, in float32.

        output = sigmoid(logit_1 + logit_2 + ... + bias)

    Args:
        bias_initializer: Initializer of the bias; a constant `log(p / (1 - p))` starts
            the model at base rate `p`. Defaults to `"zeros"`.
        dtype: Defaults to `"float32"`, under mixed precision too.
        **kwargs: `name` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, 1)`, or a list of such tensors.

    Returns:
        Tensor of shape `(batch_size, 1)`, in `dtype`.

    Raises:
        ValueError: If an input is not of shape `(batch_size, 1)`.

    Example:
    >>> float(ClickProbability()(np.zeros((1, 1), "float32"))[0, 0])
    0.5
    """

    def __init__(self, *, bias_initializer="zeros", dtype="float32", **kwargs):
        super().__init__(dtype=dtype, **kwargs)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, input_shape):
        shapes = shapes_of(input_shape)
        if any(len(shape) != 2 or shape[1] != 1 for shape in shapes):
            raise ValueError(
                "`ClickProbability` takes inputs of shape (batch_size, 1). "
                f"Received: input_shape={input_shape}."
            )
        self.bias = self.add_weight(
            name="bias", shape=(1,), initializer=self.bias_initializer
        )

    def call(self, inputs):
        logits = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        return ops.sigmoid(sum(logits[1:], logits[0]) + self.bias)

    def compute_output_shape(self, input_shape):
        return shapes_of(input_shape)[0]

    def get_config(self):
        return {
            **super().get_config(),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }
