"""`CompactIds`, rows of items without holes."""

import keras
from keras import ops

from keras_recsys._checks import check_int


@keras.saving.register_keras_serializable(package="keras_recsys")
class CompactIds(keras.layers.Layer):
    """Moves the items of each row to its front, in their order, and keeps the last.

    Whatever the side of the padding, and with holes, equal items give equal rows.

    Args:
        max_len: Optional positive int: of more items in a row the last `max_len` are
            kept. Defaults to `None`, all.
        **kwargs: `name` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Integer tensor, `(batch_size, seq_len)`; 0 is padding.

    Returns:
        Tensor of the dtype of `inputs`, `(batch_size, min(seq_len, max_len))`, with the
        padding behind.

    Raises:
        TypeError: If `max_len` is not an integer.
        ValueError: If `max_len` is below 1, or `inputs` is not of rank 2.

    Example:
    >>> CompactIds(2)(np.array([[0, 5, 0, 6], [7, 8, 9, 0]])).numpy().tolist()
    [[5, 6], [8, 9]]
    """

    def __init__(self, max_len=None, **kwargs):
        super().__init__(**kwargs)
        self.max_len = None if max_len is None else check_int("max_len", max_len)
        self.autocast = False

    def build(self, input_shape):
        if len(input_shape) != 2:
            raise ValueError(
                "`CompactIds` takes inputs of shape (batch_size, seq_len). "
                f"Received: input_shape={tuple(input_shape)}."
            )

    def call(self, inputs):
        return ops.take_along_axis(inputs, self.order(inputs), axis=1)

    def compute_output_shape(self, input_shape):
        batch_size, seq_len = input_shape
        if seq_len is not None and self.max_len is not None:
            seq_len = min(seq_len, self.max_len)
        return (batch_size, seq_len)

    def compute_output_spec(self, inputs):
        shape = self.compute_output_shape(inputs.shape)
        return keras.KerasTensor(shape, dtype=inputs.dtype)

    def get_config(self):
        return {**super().get_config(), "max_len": self.max_len}

    def order(self, inputs):
        """The step of `inputs` that each step of the output is, of its shape, int32.

        What belongs to the steps is moved by it as they are.
        """
        seq_len = ops.shape(inputs)[1]
        real = ops.not_equal(inputs, 0)
        steps = ops.arange(seq_len, dtype="int32")
        # Items before padding, each in order: the keys are all different.
        keys = ops.sort(ops.where(real, steps, steps + seq_len), axis=1)
        order = ops.where(keys < seq_len, keys, keys - seq_len)
        if self.max_len is None:
            return order
        length = ops.sum(ops.cast(real, "int32"), axis=1, keepdims=True)
        skipped = ops.maximum(length - self.max_len, 0)
        if inputs.shape[1] is None:
            width = ops.minimum(seq_len, self.max_len)
        else:
            width = min(inputs.shape[1], self.max_len)
        places = ops.arange(width, dtype="int32") + skipped
        return ops.take_along_axis(order, places, axis=1)
