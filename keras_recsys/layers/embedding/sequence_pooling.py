"""`SequencePooling`, a bag of vectors as one."""

import keras
from keras import ops

from keras_recsys._checks import POOLINGS, check_choice
from keras_recsys.layers.embedding._pooling import pool


@keras.saving.register_keras_serializable(package="keras_recsys")
class SequencePooling(keras.layers.Layer):
    """Pools the vectors of a sequence into one, leaving out masked steps.

    With `n` the number of steps that the mask keeps,

        sum:   sum of the kept vectors
        mean:  sum / n
        sqrtn: sum / sqrt(n)

    Args:
        pooling: `"mean"`, `"sum"` or `"sqrtn"`. Defaults to `"mean"`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, seq_len, dim)`.
        mask: Optional boolean tensor, `(batch_size, seq_len)`; `True` keeps a step.
            Read from the Keras mask of `inputs` if not given; without one every step
            counts.

    Returns:
        Tensor of shape `(batch_size, dim)`, in the compute dtype. A sequence with no
        kept step gives 0. Values of masked steps have no effect, NaN included. The
        output has no mask.

    Raises:
        ValueError: If `pooling` is unknown, or `inputs` is not of rank 3.

    Example:
    >>> x = np.array([[[1.0], [3.0], [9.0]]], "float32")
    >>> float(SequencePooling()(x, mask=np.array([[True, True, False]]))[0, 0])
    2.0
    """

    def __init__(self, pooling="mean", **kwargs):
        super().__init__(**kwargs)
        self.pooling = check_choice("pooling", pooling, POOLINGS)
        self.supports_masking = True

    def build(self, input_shape):
        if len(input_shape) != 3:
            raise ValueError(
                "`SequencePooling` takes inputs of shape (batch_size, seq_len, dim). "
                f"Received: input_shape={tuple(input_shape)}."
            )

    def call(self, inputs, mask=None):
        inputs = ops.cast(inputs, self.compute_dtype)
        return pool(inputs, mask, self.pooling)

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[2])

    def get_config(self):
        return {**super().get_config(), "pooling": self.pooling}
