"""`CrossNetwork`, all layers of the cross part of DCN at once."""

import keras
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys._initializers import RowBlocks


@keras.saving.register_keras_serializable(package="keras_recsys")
class CrossNetwork(keras.layers.Layer):
    """The cross layers of DCN with a vector of weights each.

    With `x_0` the input and `x_L` the output,

        x_{l+1} = x_0 (x_l . kernel_l) + bias_l + x_l

    Every `x_l` is `a_l x_0 + b_l`, a number of the row times the input plus a vector
    that is the same for all rows. So the layers need one product of the input with all
    kernels, and then

        a_{l+1} = a_l + a_l (x_0 . kernel_l) + b_l . kernel_l,    b_{l+1} = b_l + bias_l

    The layers of DCN-v2, with a matrix each, are `keras_rs.layers.FeatureCross`, whose
    bias is inside the product with `x_0`: it cannot express these.

    Args:
        num_layers: Positive int, how many layers. Defaults to `2`.
        kernel_initializer: Initializer of each row of `kernel`, `(num_layers, dim)`.
            Defaults to `"glorot_normal"`.
        bias_initializer: Initializer of `bias`, `(num_layers, dim)`. Defaults to
            `"zeros"`.
        kernel_regularizer: Regularizer of `kernel`. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, dim)`.

    Returns:
        Tensor of the shape of `inputs`, in the compute dtype.

    Raises:
        TypeError: If `num_layers` is not an integer.
        ValueError: If `num_layers` is not positive, or `inputs` is not of rank 2 with
            static `dim`.

    Example:
    >>> layer = CrossNetwork(1, kernel_initializer="ones", bias_initializer="ones")
    >>> layer(np.array([[1.0, 2.0]])).numpy().tolist()
    [[5.0, 9.0]]

    Reference:
        Wang et al., "Deep & Cross Network for Ad Click Predictions", ADKDD 2017, Eq. 3.
    """

    def __init__(
        self,
        num_layers=2,
        *,
        kernel_initializer="glorot_normal",
        bias_initializer="zeros",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_layers = check_int("num_layers", num_layers)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, input_shape):
        if len(input_shape) != 2 or input_shape[1] is None:
            raise ValueError(
                "`CrossNetwork` takes inputs of shape (batch_size, dim) with static "
                f"dim. Received: input_shape={tuple(input_shape)}."
            )
        self.input_spec = keras.layers.InputSpec(shape=(None, *input_shape[1:]))
        shape = (self.num_layers, input_shape[1])
        self.kernel = self.add_weight(
            name="kernel",
            shape=shape,
            initializer=RowBlocks(self.kernel_initializer, [1] * self.num_layers),
            regularizer=self.kernel_regularizer,
        )
        self.bias = self.add_weight(
            name="bias", shape=shape, initializer=self.bias_initializer
        )

    def call(self, inputs):
        products = ops.matmul(inputs, ops.transpose(self.kernel))
        # Row `l` of the sums is `b_l`, of which `kernel_l` makes one number.
        later = ops.cumsum(self.bias, axis=0)
        earlier = ops.pad(later, ((1, 0), (0, 0)))[:-1]
        offsets = ops.sum(earlier * self.kernel, axis=1)
        factor = ops.ones_like(products[:, :1])
        for layer in range(self.num_layers):
            step = products[:, layer : layer + 1]
            factor = factor + factor * step + offsets[layer]
        return factor * inputs + later[-1]

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }
