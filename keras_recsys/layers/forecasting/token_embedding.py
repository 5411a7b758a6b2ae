"""`TokenEmbedding`, a vector for the values of each step."""

import keras

from keras_recsys._checks import check_choice, check_int
from keras_recsys._initializers import FanInUniform, bias_for, clone
from keras_recsys.layers.forecasting._steps import (
    PADDINGS,
    check_series,
    pad_steps,
    refuse_mask,
)


@keras.saving.register_keras_serializable(package="keras_recsys")
class TokenEmbedding(keras.layers.Layer):
    """Embeds the values of each step with those of the steps before and after it.

        output_t = x_{t-1} kernel_0 + x_t kernel_1 + x_{t+1} kernel_2 + bias

    Args:
        output_dim: Positive int, width of a vector.
        padding: What stands beyond the ends: `"circular"`, the step of the other end,
            or `"same"`, zeros. Defaults to `"circular"`.
        kernel_initializer: Initializer of the kernel, of shape `(3, num_channels,
            output_dim)`. Defaults to `None`, normal with variance `2 / (3 *
            num_channels)`.
        bias_initializer: Initializer of the bias. Defaults to `None`, uniform between
            plus and minus `1 / sqrt(3 * num_channels)`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, seq_len, num_channels)`, of one step at
            least. A Keras mask is refused: a missing step would enter its neighbours.

    Returns:
        Tensor of shape `(batch_size, seq_len, output_dim)`, in the compute dtype.

    Raises:
        TypeError: If `output_dim` is not an integer.
        ValueError: If an argument is out of its range, `inputs` is not of rank 3 with a
            static last axis, or it has a mask.

    Example:
    >>> tuple(TokenEmbedding(8)(np.ones((2, 5, 3), "float32")).shape)
    (2, 5, 8)

    Reference:
        Zhou et al., "Informer: Beyond Efficient Transformer for Long Sequence
        Time-Series Forecasting", AAAI 2021, the scalar projection of its input
        representation, with the initial values of the code of its authors. Differs from
        the paper: there is no weight `alpha` on it, which is 1 for standardised series.
    """

    def __init__(
        self,
        output_dim,
        *,
        padding="circular",
        kernel_initializer=None,
        bias_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.output_dim = check_int("output_dim", output_dim)
        self.padding = check_choice("padding", padding, PADDINGS)
        if kernel_initializer is None:  # Keras' He normal is a truncated one
            kernel_initializer = keras.initializers.VarianceScaling(
                2.0, "fan_in", "untruncated_normal"
            )
        if bias_initializer is None:
            bias_initializer = FanInUniform()
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.supports_masking = True  # to refuse one by name

    def build(self, input_shape):
        num_channels = check_series(self, input_shape)
        self.conv = keras.layers.Conv1D(
            self.output_dim,
            3,
            kernel_initializer=clone(self.kernel_initializer, 0),
            bias_initializer=bias_for(self.bias_initializer, 3 * num_channels),
            dtype=self.dtype_policy,
            name="conv",
        )
        self.conv.build((None, None, num_channels))

    def call(self, inputs):
        return self.conv(pad_steps(inputs, self.padding))

    def compute_mask(self, inputs, mask=None):
        refuse_mask(self, mask)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.output_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "padding": self.padding,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }
