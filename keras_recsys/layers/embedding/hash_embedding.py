"""`HashEmbedding`, one table that ids share."""

import keras

from keras_recsys._checks import check_int
from keras_recsys._lookup import read_rows, split_digits
from keras_recsys.layers.embedding._id_embedding import IdEmbedding


@keras.saving.register_keras_serializable(package="keras_recsys")
class HashEmbedding(IdEmbedding):
    """Embeds id `i` with row `i mod num_buckets`: the hashing trick.

        output = embeddings[i mod num_buckets]

    Every `ceil(input_dim / num_buckets)` ids share one vector and cannot be told apart:
    it is the baseline of `QREmbedding`, which costs as much and tells them apart.

    Args:
        input_dim: Positive int, number of ids, `0 .. input_dim - 1`.
        output_dim: Positive int, width of a vector.
        num_buckets: Positive int, rows of the table; rows above `input_dim` are never
            read.
        embeddings_initializer: Initializer of the table. Defaults to `"uniform"`.
        embeddings_regularizer: As in `FullEmbedding`. Defaults to `None`.
        embeddings_constraint: As in `FullEmbedding`. Defaults to `None`.
        out_of_range: As in `FullEmbedding`. Defaults to `"error"`.
        mask_zero: As in `FullEmbedding`; row 0 is shared with other ids. Defaults to
            `False`.
        zero_masked: As in `FullEmbedding`. Defaults to `False`.
        pooling: As in `FullEmbedding`. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: As in `FullEmbedding`.
        weights: As in `FullEmbedding`.
        source: As in `FullEmbedding`.
        padding_mask: As in `FullEmbedding`.

    Returns:
        As in `FullEmbedding`.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range, or an id is.

    Example:
    >>> layer = HashEmbedding(1_000_000, 8, num_buckets=1000)
    >>> same = layer(np.array([7, 1007]))
    >>> bool((same[0] == same[1]).numpy().all())
    True

    Reference:
        Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", ICML
        2009; the baseline of Shi et al., KDD 2020.
    """

    def __init__(
        self,
        input_dim,
        output_dim,
        *,
        num_buckets,
        embeddings_initializer="uniform",
        embeddings_regularizer=None,
        embeddings_constraint=None,
        out_of_range="error",
        mask_zero=False,
        zero_masked=False,
        pooling=None,
        **kwargs,
    ):
        super().__init__(
            input_dim,
            output_dim,
            embeddings_regularizer=embeddings_regularizer,
            embeddings_constraint=embeddings_constraint,
            out_of_range=out_of_range,
            mask_zero=mask_zero,
            zero_masked=zero_masked,
            pooling=pooling,
            **kwargs,
        )
        self.num_buckets = check_int("num_buckets", num_buckets)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    @property
    def table_shapes(self):
        return {"embeddings": (self.num_buckets, self.output_dim)}

    def build(self, input_shape=None):
        self.embeddings = self._add_table("embeddings", self.embeddings_initializer)
        super().build(input_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
        }

    def read(self, ids):
        rows, _ = split_digits(ids, [self.num_buckets])
        return read_rows(self.embeddings, rows, self.compute_dtype)
