"""`ReversePositionEmbedding`, a vector for how many events ago an event was."""

import keras
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys._lookup import read_rows


@keras.saving.register_keras_serializable(package="keras_recsys")
class ReversePositionEmbedding(keras.layers.Layer):
    """Embeds the place of each item of a history, counted from the most recent one.

    The most recent item has position 1, the one before it 2, and so on; padding, which
    may stand anywhere, is not counted and has position 0. An item keeps its vector
    whatever the length of the batch and the side of the padding.

        position_j = mask_j * (number of items at j and after)
        output_j = embeddings[min(position_j, max_len)]

    Args:
        max_len: Positive int, the largest position that has a vector of its own; all
            older items share it.
        output_dim: Positive int, width of a vector.
        most_recent_first: Whether histories run from the most recent item to the
            oldest. Defaults to `False`.
        embeddings_initializer: Initializer of the table, of shape `(max_len + 1,
            output_dim)`. Defaults to `"uniform"`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Boolean tensor, `(batch_size, seq_len)`, `True` at items: the output of
            `PaddingMask`.

    Returns:
        Tensor of shape `(batch_size, seq_len, output_dim)`, in the compute dtype.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is not positive, or `inputs` is not boolean and of rank 2.

    Example:
    >>> layer = ReversePositionEmbedding(4, 1)
    >>> layer.positions(np.array([[False, True, False, True]])).numpy().tolist()
    [[0, 2, 0, 1]]

    Reference:
        Lin et al., "Sparse Attentive Memory Network for Click-through Rate Prediction
        with Long Sequences", CIKM 2022, section on the sequence encoding.
    """

    def __init__(
        self,
        max_len,
        output_dim,
        *,
        most_recent_first=False,
        embeddings_initializer="uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.max_len = check_int("max_len", max_len)
        self.output_dim = check_int("output_dim", output_dim)
        self.most_recent_first = bool(most_recent_first)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.autocast = False

    def build(self, input_shape):
        if len(input_shape) != 2:
            raise ValueError(
                "`ReversePositionEmbedding` takes masks of shape (batch_size, seq_len)."
                f" Received: input_shape={tuple(input_shape)}."
            )
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_len + 1, self.output_dim),
            initializer=self.embeddings_initializer,
            autocast=False,
        )

    def call(self, inputs):
        rows = ops.minimum(self.positions(inputs), self.max_len)
        return read_rows(self.embeddings, rows, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.output_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "max_len": self.max_len,
            "output_dim": self.output_dim,
            "most_recent_first": self.most_recent_first,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
        }

    def positions(self, inputs):
        """The position of each item, int32, of the shape of `inputs`."""
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if dtype != "bool":
            raise ValueError(
                "`inputs` must be boolean, `True` at items. "
                f"Received: inputs of dtype {dtype}."
            )
        kept = ops.cast(inputs, "int32")
        before = ops.cumsum(kept, axis=1)
        if not self.most_recent_first:
            before = before[:, -1:] - before + kept
        return before * kept
