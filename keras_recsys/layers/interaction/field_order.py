"""`FieldOrder`, fields in another order."""

import keras

from keras_recsys._checks import check_int
from keras_recsys.layers.interaction._pairs import take_fields


@keras.saving.register_keras_serializable(package="keras_recsys")
class FieldOrder(keras.layers.Layer):
    """Chooses fields: brings them to another order, leaves some out, repeats some.

        output_f = input_{order[f]}

    Args:
        order: Non-empty sequence of ints, the numbers of the fields to give.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, num_fields, embedding_dim)`.

    Returns:
        Tensor of shape `(batch_size, len(order), embedding_dim)`.

    Raises:
        TypeError: If an entry of `order` is not an integer.
        ValueError: If `order` is empty or holds a number that is no field.

    Example:
    >>> FieldOrder([2, 0])(np.array([[[1.0], [3.0], [9.0]]])).numpy().tolist()
    [[[9.0], [1.0]]]
    """

    def __init__(self, order, **kwargs):
        super().__init__(**kwargs)
        self.order = [check_int("order", field, minimum=0) for field in order]
        if not self.order:
            raise ValueError(
                f"`order` must hold at least one field. Received: order={order!r}."
            )

    def build(self, input_shape):
        if len(input_shape) != 3 or max(self.order) >= (input_shape[1] or 0):
            raise ValueError(
                "`FieldOrder` takes inputs of shape (batch_size, num_fields, "
                f"embedding_dim) with more than {max(self.order)} fields. "
                f"Received: input_shape={tuple(input_shape)}."
            )
        self.input_spec = keras.layers.InputSpec(shape=(None, *input_shape[1:]))

    def call(self, inputs):
        return take_fields(inputs, self.order, axis=1)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], len(self.order), input_shape[2])

    def get_config(self):
        return {**super().get_config(), "order": self.order}
