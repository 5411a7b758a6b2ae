"""`ExcludeSeen`, scores without the items of the history."""

import keras
from keras import ops

from keras_recsys.layers.sequential._catalogue import put
from keras_recsys.layers.sequential._steps import LOWEST


@keras.saving.register_keras_serializable(package="keras_recsys")
class ExcludeSeen(keras.layers.Layer):
    """Lowers the scores of the items of the history below all others.

        output_x = -1e9        if x is one of the ids of the row, or 0
        output_x = logits_x    otherwise

    Scores are lowered and no item is dropped, so that the best `k` are `k` others. It
    is for scoring alone: in a loss, a target that stands in the history would count
    1e9 nats.

    Args:
        dtype: Defaults to `"float32"`, under mixed precision too: -1e9 is out of the
            range of float16.
        **kwargs: `name` and the rest of `keras.layers.Layer`.

    Call arguments:
        logits: Float tensor, `(batch_size, num_ids)`.
        ids: Integer tensor, `(batch_size, seq_len)`, the items of the history; 0 is
            padding. Masks are not read.

    Returns:
        Tensor of the shape of `logits`, in the compute dtype. A row without items
        loses id 0 alone.

    Raises:
        ValueError: If the inputs are not of rank 2, or `num_ids` is not static.

    Example:
    >>> logits = ExcludeSeen()(np.array([[4.0, 3.0, 2.0, 1.0]]), np.array([[1, 3, 1]]))
    >>> [float(x) for x in logits[0]]
    [-1000000000.0, -1000000000.0, 2.0, -1000000000.0]

    Reference:
        "Softmax w/o duplication" in Chang, Agarwal and McCallum, "To Copy, or not to
        Copy; That is a Critical Issue of the Output Softmax Layer in Neural Sequential
        Recommenders", WSDM 2024; after Li et al., "Repetition and
        Exploration in Sequential Recommendation", SIGIR 2023. Differs from the code of
        the former: logits become -1e9 where probabilities become 0, and id 0 is left
        out of rows without padding too.
    """

    def __init__(self, *, dtype="float32", **kwargs):
        super().__init__(dtype=dtype, **kwargs)

    def build(self, logits_shape, ids_shape):
        if len(logits_shape) != 2 or len(ids_shape) != 2 or logits_shape[1] is None:
            raise ValueError(
                "`ExcludeSeen` takes logits of shape (batch_size, num_ids), num_ids "
                "static, and ids of shape (batch_size, seq_len). Received: shapes "
                f"{tuple(logits_shape)}, {tuple(ids_shape)}."
            )

    def call(self, logits, ids):
        ids = ops.pad(ops.cast(ids, "int32"), ((0, 0), (1, 0)))  # and id 0
        lowest = ops.full_like(ops.cast(ids, logits.dtype), LOWEST)
        return put(logits, ids, lowest)

    def compute_output_shape(self, logits_shape, ids_shape):
        return tuple(logits_shape)
