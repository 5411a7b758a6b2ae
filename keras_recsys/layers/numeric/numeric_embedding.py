"""`NumericEmbedding`, numbers as fields."""

import keras
from keras import ops

from keras_recsys._checks import check_int


@keras.saving.register_keras_serializable(package="keras_recsys")
class NumericEmbedding(keras.layers.Layer):
    """Makes a field of each number: a learned vector times the number.

        output_f = x_f kernel_f

    Args:
        output_dim: Positive int, width of a vector.
        kernel_initializer: Initializer of `kernel`, `(num_numbers, output_dim)`.
            Defaults to `"uniform"`, as embedding tables have.
        kernel_regularizer: Regularizer of `kernel`. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, num_numbers)`, best normalized.

    Returns:
        Tensor of shape `(batch_size, num_numbers, output_dim)`, in the compute dtype.

    Raises:
        TypeError: If `output_dim` is not an integer.
        ValueError: If `inputs` is not of rank 2 with static `num_numbers`.

    Example:
    >>> layer = NumericEmbedding(2, kernel_initializer="ones")
    >>> layer(np.array([[3.0, 4.0]])).numpy().tolist()
    [[[3.0, 3.0], [4.0, 4.0]]]
    """

    def __init__(
        self,
        output_dim,
        *,
        kernel_initializer="uniform",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.output_dim = check_int("output_dim", output_dim)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, input_shape):
        if len(input_shape) != 2 or input_shape[1] is None:
            raise ValueError(
                "`NumericEmbedding` takes inputs of shape (batch_size, num_numbers) "
                "with static num_numbers. "
                f"Received: input_shape={tuple(input_shape)}."
            )
        self.input_spec = keras.layers.InputSpec(shape=(None, *input_shape[1:]))
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[1], self.output_dim),
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
        )

    def call(self, inputs):
        return ops.expand_dims(inputs, -1) * self.kernel

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.output_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }
