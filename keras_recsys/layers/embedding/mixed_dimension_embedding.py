"""`MixedDimensionEmbedding`, a narrow table and a projection."""

import keras
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys._lookup import read_rows
from keras_recsys.layers.embedding._id_embedding import IdEmbedding


@keras.saving.register_keras_serializable(package="keras_recsys")
class MixedDimensionEmbedding(IdEmbedding):
    """Embeds ids in a narrow table and projects the rows to the common width.

        output = embeddings[i] @ projection

    Rare ids are given less width than frequent ones:
    `keras_recsys.memory.mixed_dimensions` finds the widths of a list of vocabularies.
    Without a projection, where both widths are equal, it is a `FullEmbedding`.

    Args:
        input_dim: Positive int, number of ids, `0 .. input_dim - 1`.
        output_dim: Positive int, width of the output vector.
        table_dim: Positive int, width of the table, at most `output_dim`.
        embeddings_initializer: Initializer of the table. Defaults to `"uniform"`.
        projection_initializer: Initializer of the projection. The default keeps the
            spread of the table. Defaults to `"lecun_uniform"`.
        embeddings_regularizer: As in `FullEmbedding`; it acts on the projected vectors.
            Defaults to `None`.
        embeddings_constraint: As in `FullEmbedding`. Defaults to `None`.
        out_of_range: As in `FullEmbedding`. Defaults to `"error"`.
        mask_zero: As in `FullEmbedding`. Defaults to `False`.
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
    >>> layer = MixedDimensionEmbedding(1_000_000, 16, table_dim=2)
    >>> tuple(layer(np.array([7, 999_999])).shape), layer.count_params()
    ((2, 16), 2000032)

    Reference:
        Ginart et al., "Mixed Dimension Embeddings with Application to Memory-Efficient
        Recommendation Systems", 2019. Differs from DLRM's code: the projection starts
        by LeCun's rule instead of Glorot's, which would shrink the vectors.
    """

    def __init__(
        self,
        input_dim,
        output_dim,
        *,
        table_dim,
        embeddings_initializer="uniform",
        projection_initializer="lecun_uniform",
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
        self.table_dim = check_int("table_dim", table_dim)
        if self.table_dim > self.output_dim:
            raise ValueError(
                f"`table_dim` must be at most `output_dim`, {self.output_dim}. "
                f"Received: table_dim={table_dim!r}."
            )
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.projection_initializer = keras.initializers.get(projection_initializer)

    @property
    def table_shapes(self):
        return {"embeddings": (self.input_dim, self.table_dim)}

    @property
    def weight_shapes(self):
        shapes = super().weight_shapes
        if self.table_dim < self.output_dim:
            shapes["projection"] = (self.table_dim, self.output_dim)
        return shapes

    def build(self, input_shape=None):
        self.embeddings = self._add_table("embeddings", self.embeddings_initializer)
        self.projection = None
        if self.table_dim < self.output_dim:
            self.projection = self.add_weight(
                name="projection",
                shape=self.weight_shapes["projection"],
                initializer=self.projection_initializer,
                autocast=False,
            )
        super().build(input_shape)

    def get_config(self):
        serialize = keras.initializers.serialize
        return {
            **super().get_config(),
            "table_dim": self.table_dim,
            "embeddings_initializer": serialize(self.embeddings_initializer),
            "projection_initializer": serialize(self.projection_initializer),
        }

    def read(self, ids):
        vectors = read_rows(self.embeddings, ids, self.compute_dtype)
        if self.projection is None:
            return vectors
        return ops.matmul(vectors, ops.cast(self.projection, self.compute_dtype))
