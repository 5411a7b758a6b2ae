"""`MultiInputState`, states of several layers and steps in one."""

import keras
from keras import ops

from keras_recsys._checks import check_int, shapes_of


@keras.saving.register_keras_serializable(package="keras_recsys")
class MultiInputState(keras.layers.Layer):
    """Joins the state of a step with those of the layers below and the steps before.

    One state limits what an output layer can tell apart. With `h_l_t` the state of
    layer `l` at step `t`, and `M` the top layer,

        u_t = [h_M_t ; h_M_t-1 ; h_M_t-2 ; h_M-1_t ; h_M-1_t-1 ; ...]
        output_t = [h_M_t ; gelu(u_t kernel + bias)]

    `u` is never built: a convolution over the steps gives the same.

    Args:
        window: Positive int, how many steps are joined: a step itself and those before
            it. Defaults to `3`.
        kernel_initializer: Initializer of `kernel`, of shape `(num_layers * window *
            dim, dim)`. Defaults to `None`, normal with a standard deviation of 0.02.
        bias_initializer: Initializer of `bias`, of shape `(dim,)`. Defaults to
            `"zeros"`.
        kernel_regularizer: Regularizer of `kernel`. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: List of float tensors, each `(batch_size, seq_len, dim)`: the outputs of
            the layers of an encoder, the bottom first; or one such tensor.
        mask: Optional boolean tensor, `(batch_size, seq_len)`, of any pattern, or a
            list of such tensors and `None`, which a step must pass in all; `True` keeps
            a step. Read from the Keras masks of `inputs` if not given.

    Returns:
        Tensor of shape `(batch_size, seq_len, 2 * dim)`, in the compute dtype. Steps
        before the first and masked ones count as zeros, and the step before `t` is
        that of the tensor, masked or not: padding between items parts them. Masked
        steps are exactly 0, and the mask is passed on.

    Raises:
        TypeError: If `window` is not an integer.
        ValueError: If `window` is below 1, or `inputs` are not of rank 3 with one
            static `dim`.

    Example:
    >>> states = np.ones((2, 5, 4), "float32")
    >>> tuple(MultiInputState(window=2)([states, states]).shape)
    (2, 5, 8)

    Reference:
        Chang, Agarwal and McCallum, "To Copy, or not to Copy; That is a Critical Issue
        of the Output Softmax Layer in Neural Sequential Recommenders", WSDM 2024,
        Section 3, "Mi"; GELU in the form with a hyperbolic tangent, as in the authors'
        code. Differs from the code: masked steps are zeros, where it reads what stands
        in the padding.
    """

    def __init__(
        self,
        window=3,
        *,
        kernel_initializer=None,
        bias_initializer="zeros",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.window = check_int("window", window)
        if kernel_initializer is None:
            kernel_initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, input_shape):
        shapes = shapes_of(input_shape)
        if (
            {len(shape) for shape in shapes} != {3}
            or len({shape[-1] for shape in shapes}) != 1
            or shapes[0][-1] is None
        ):
            raise ValueError(
                "`MultiInputState` takes inputs of shape (batch_size, seq_len, dim), "
                "with one static dim for all. Received: shapes "
                f"{', '.join(str(shape) for shape in shapes)}."
            )
        self.num_layers, dim = len(shapes), shapes[0][-1]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.num_layers * self.window * dim, dim),
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
        )
        self.bias = self.add_weight(
            name="bias", shape=(dim,), initializer=self.bias_initializer
        )

    def call(self, inputs, mask=None):
        states = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        real = _joined(mask)
        if real is not None:
            kept = ops.expand_dims(real, -1)
            states = [ops.where(kept, x, ops.zeros_like(x)) for x in states]
        dim = states[0].shape[-1]
        # From layers, the top first, and steps, the last first, to those of a
        # convolution: steps, the first first, and the channels of the layers.
        kernel = ops.reshape(self.kernel, (self.num_layers, self.window, dim, dim))
        kernel = ops.transpose(ops.flip(kernel, axis=(0, 1)), (1, 0, 2, 3))
        kernel = ops.reshape(kernel, (self.window, self.num_layers * dim, dim))
        x = ops.concatenate(states, axis=-1)
        x = ops.pad(x, ((0, 0), (self.window - 1, 0), (0, 0)))
        x = ops.conv(x, kernel, padding="valid", data_format="channels_last")
        x = ops.gelu(x + self.bias, approximate=True)
        if real is not None:
            x = ops.where(kept, x, ops.zeros_like(x))
        return ops.concatenate([states[-1], x], axis=-1)

    def compute_mask(self, inputs, mask=None):
        return _joined(mask)

    def compute_output_shape(self, input_shape):
        *steps, dim = shapes_of(input_shape)[0]
        return (*steps, 2 * dim)

    def get_config(self):
        return {
            **super().get_config(),
            "window": self.window,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }


def _joined(mask):
    """One mask of one or a list of several; `None` where there is none."""
    masks = mask if isinstance(mask, (list, tuple)) else [mask]
    masks = [ops.cast(one, "bool") for one in masks if one is not None]
    if not masks:
        return None
    joined = masks[0]
    for one in masks[1:]:
        joined = ops.logical_and(joined, one)
    return joined
