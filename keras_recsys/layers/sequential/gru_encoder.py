"""`GRUEncoder`, the recurrent network of GRU4Rec and RepeatNet."""

import keras
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys._initializers import clone


@keras.saving.register_keras_serializable(package="keras_recsys")
class GRUEncoder(keras.layers.Layer):
    """Encodes each step of a sequence by a GRU, and a dense layer after it.

        h_t = gru(h_{t-1}, input_t)
        output_t = h_t kernel + bias

    The reset gate is applied after the recurrent product. Padding is not fed to the
    GRU: the real steps of a row follow each other, so that no mask of a backend and no
    kernel of a GPU has to know of it, and a row without steps is as good as any.

    Args:
        units: Positive int, width of the state of the GRU.
        output_dim: Optional positive int, width of the dense layer. Defaults to `None`,
            which leaves it out.
        use_bias: Whether the GRU has biases. Defaults to `False`.
        kernel_initializer: Initializer of the input kernel. Defaults to
            `"glorot_uniform"`.
        recurrent_initializer: Initializer of the recurrent kernel. Defaults to
            `"glorot_uniform"`.
        dense_initializer: Initializer of the kernel of the dense layer. Defaults to
            `"glorot_uniform"`.
        kernel_regularizer: Regularizer of all kernels. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, seq_len, dim)`, oldest step first.
        mask: Optional boolean tensor, `(batch_size, seq_len)`, of any pattern; `True`
            keeps a step. Read from the Keras mask of `inputs` if not given. Rows whose
            padding is all behind need none: no step sees it.

    Returns:
        Tensor of shape `(batch_size, seq_len, output_dim)`, or `(batch_size, seq_len,
        units)` without the dense layer, in the compute dtype; masked steps are exactly
        0, and the mask is passed on.

    Raises:
        TypeError: If a width is not an integer.
        ValueError: If a width is below 1, or `inputs` is not of rank 3 with a static
            `dim`.

    Example:
    >>> tuple(GRUEncoder(8, 4)(np.ones((2, 5, 3), "float32")).shape)
    (2, 5, 4)

    Reference:
        Hidasi et al., "Session-based Recommendations with Recurrent Neural Networks",
        ICLR 2016, in the form of RecBole: one layer, no biases, a dense layer after it.
        Differs from the paper: the loss is that of the head, and a session is a row.
    """

    def __init__(
        self,
        units,
        output_dim=None,
        *,
        use_bias=False,
        kernel_initializer="glorot_uniform",
        recurrent_initializer="glorot_uniform",
        dense_initializer="glorot_uniform",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = check_int("units", units)
        if output_dim is not None:
            output_dim = check_int("output_dim", output_dim)
        self.output_dim = output_dim
        self.use_bias = bool(use_bias)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.recurrent_initializer = keras.initializers.get(recurrent_initializer)
        self.dense_initializer = keras.initializers.get(dense_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, input_shape):
        if len(input_shape) != 3 or input_shape[-1] is None:
            raise ValueError(
                "`GRUEncoder` takes inputs of shape (batch_size, seq_len, dim) with a "
                f"static dim. Received: input_shape={tuple(input_shape)}."
            )
        self.gru = keras.layers.GRU(
            self.units,
            use_bias=self.use_bias,
            reset_after=True,
            return_sequences=True,
            kernel_initializer=clone(self.kernel_initializer, 0),
            recurrent_initializer=clone(self.recurrent_initializer, 1),
            kernel_regularizer=self.kernel_regularizer,
            recurrent_regularizer=self.kernel_regularizer,
            dtype=self.dtype_policy,
            name="gru",
        )
        self.gru.build(input_shape)
        if self.output_dim is not None:
            self.dense = keras.layers.Dense(
                self.output_dim,
                kernel_initializer=clone(self.dense_initializer, 2),
                kernel_regularizer=self.kernel_regularizer,
                dtype=self.dtype_policy,
                name="dense",
            )
            self.dense.build((*input_shape[:-1], self.units))

    def call(self, inputs, mask=None):
        if mask is None:
            return self._encoded(inputs)
        mask = ops.cast(mask, "bool")
        kept = ops.expand_dims(mask, -1)
        inputs = ops.where(kept, inputs, ops.zeros_like(inputs))
        # The place of each step once the real ones are in front, and back from there.
        real = ops.cast(mask, "int32")
        count = ops.sum(real, axis=1, keepdims=True)
        behind = count + ops.cumsum(1 - real, axis=1) - 1
        place = ops.where(mask, ops.cumsum(real, axis=1) - 1, behind)
        order = ops.argsort(place, axis=1)
        packed = ops.take_along_axis(inputs, ops.expand_dims(order, -1), axis=1)
        states = self._encoded(packed)
        states = ops.take_along_axis(states, ops.expand_dims(place, -1), axis=1)
        return ops.where(kept, states, ops.zeros_like(states))

    def compute_output_shape(self, input_shape):
        width = self.units if self.output_dim is None else self.output_dim
        return (*input_shape[:-1], width)

    def compute_mask(self, inputs, mask=None):
        return mask

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "output_dim": self.output_dim,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "recurrent_initializer": keras.initializers.serialize(
                self.recurrent_initializer
            ),
            "dense_initializer": keras.initializers.serialize(self.dense_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _encoded(self, inputs):
        states = self.gru(inputs)
        return states if self.output_dim is None else self.dense(states)
