"""`PaddingMask`, which steps of a sequence are real."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_recsys")
class PaddingMask(keras.layers.Layer):
    """Makes the boolean mask of a sequence of ids, in which id 0 is padding.

    Args:
        **kwargs: `name` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Integer tensor of any shape, usually `(batch_size, seq_len)`.

    Returns:
        Boolean tensor of the shape of `inputs`, `True` where the id is not 0.

    Example:
    >>> PaddingMask()(np.array([[5, 0]])).numpy().tolist()
    [[True, False]]
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.autocast = False

    def call(self, inputs):
        return ops.not_equal(inputs, 0)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, dtype="bool")
