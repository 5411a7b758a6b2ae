"""`DistillConv`, which halves a time series between two layers of an encoder."""

import keras
from keras import ops

from keras_recsys._checks import check_choice, check_positive, check_rate
from keras_recsys._initializers import bias_for, clone
from keras_recsys.layers.forecasting._steps import (
    PADDINGS,
    check_series,
    pad_steps,
    refuse_mask,
)

# Below all that an ELU gives, which is at least -1: a padded step never is the maximum.
_BELOW_ELU = -2.0


@keras.saving.register_keras_serializable(package="keras_recsys")
class DistillConv(keras.layers.Layer):
    """Halves the number of steps and keeps what stands out.

        hidden = ELU(batch_norm(conv(inputs)))
        output_t = max(hidden_{2t-1}, hidden_{2t}, hidden_{2t+1})

    with `conv` of width 3 from all channels to as many, and `hidden` at the steps that
    exist.

    Args:
        padding: What the convolution sees beyond the ends: `"circular"`, the step of
            the other end, or `"same"`, zeros. Defaults to `"circular"`.
        momentum: Float in `[0, 1)`, the share that the moving averages of the batch
            normalization keep in a training step. Defaults to `0.9`.
        epsilon: Positive float, added to the variances. Defaults to `1e-5`.
        kernel_initializer: Initializer of the kernel of the convolution, of shape `(3,
            num_channels, num_channels)`. Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of its bias. Defaults to `"zeros"`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, seq_len, num_channels)`, of one step at
            least. A Keras mask is refused: convolution, pooling and the statistics of
            the batch would all need to leave steps out.
        training: Whether to normalize by the batch and move the averages.

    Returns:
        Tensor of shape `(batch_size, ceil(seq_len / 2), num_channels)`, in the compute
        dtype.

    Raises:
        ValueError: If an argument is out of its range, `inputs` is not of rank 3 with a
            static last axis, or it has a mask.

    Example:
    >>> tuple(DistillConv()(np.ones((2, 9, 4), "float32")).shape)
    (2, 5, 4)

    Reference:
        Zhou et al., "Informer: Beyond Efficient Transformer for Long Sequence
        Time-Series Forecasting", AAAI 2021, Eq. 5. The batch normalization is that of
        the code of its authors, not in the equation. Differs from that code: the moving
        variance follows the biased variance of a batch, as everywhere in Keras, a
        factor `1 - 1 / (batch_size * seq_len)` below the unbiased one.
    """

    def __init__(
        self,
        padding="circular",
        *,
        momentum=0.9,
        epsilon=1e-5,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.padding = check_choice("padding", padding, PADDINGS)
        self.momentum = check_rate("momentum", momentum)
        self.epsilon = check_positive("epsilon", epsilon)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.supports_masking = True  # to refuse one by name

    def build(self, input_shape):
        num_channels = check_series(self, input_shape)
        self.conv = keras.layers.Conv1D(
            num_channels,
            3,
            kernel_initializer=clone(self.kernel_initializer, 0),
            bias_initializer=bias_for(self.bias_initializer, 3 * num_channels),
            dtype=self.dtype_policy,
            name="conv",
        )
        self.conv.build((None, None, num_channels))
        self.norm = keras.layers.BatchNormalization(
            momentum=self.momentum,
            epsilon=self.epsilon,
            dtype=self.dtype_policy,
            name="norm",
        )
        self.norm.build((None, None, num_channels))

    def call(self, inputs, training=None):
        x = self.conv(pad_steps(inputs, self.padding))
        x = ops.elu(self.norm(x, training=training))
        # Padding of our own: "same" would shift the windows of an even `seq_len`.
        x = ops.pad(x, [[0, 0], [1, 1], [0, 0]], constant_values=_BELOW_ELU)
        return ops.max_pool(x, 3, strides=2)

    def compute_mask(self, inputs, mask=None):
        refuse_mask(self, mask)

    def compute_output_shape(self, input_shape):
        batch_size, seq_len, num_channels = input_shape
        if seq_len is not None:
            seq_len = (seq_len + 1) // 2
        return (batch_size, seq_len, num_channels)

    def get_config(self):
        return {
            **super().get_config(),
            "padding": self.padding,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }
