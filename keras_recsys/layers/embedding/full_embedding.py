"""`FullEmbedding`, one row an id."""

import keras

from keras_recsys._lookup import read_rows
from keras_recsys.layers.embedding._id_embedding import IdEmbedding


@keras.saving.register_keras_serializable(package="keras_recsys")
class FullEmbedding(IdEmbedding):
    """One row of a table for each id: `keras.layers.Embedding` with checked ids.

    The table is read row by row, so that neither the lookup nor the sparse gradient
    ever has the size of the vocabulary, and ids outside it are never answered with
    another id's row.

    Args:
        input_dim: Positive int, number of ids, `0 .. input_dim - 1`.
        output_dim: Positive int, width of a vector.
        embeddings_initializer: Initializer of the table. Defaults to `"uniform"`.
        embeddings_regularizer: Regularizer of the whole table; it makes the gradient of
            the table dense. Defaults to `None`.
        embeddings_constraint: Constraint of the table. Defaults to `None`.
        out_of_range: What an id outside `[0, input_dim)` does. `"error"` raises, and
            gives NaN where a compiled graph cannot raise; `"nan"` gives NaN; `"zero"`
            gives 0 and no gradient; `"mod"` reads id `i mod input_dim`; `"oov"` reads
            one extra learned row. Defaults to `"error"`.
        mask_zero: Whether id 0 is padding, which makes a Keras mask. Defaults to
            `False`.
        zero_masked: Whether padding gives the zero vector; needs `mask_zero`. Defaults
            to `False`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor of ids of any shape, int32 or int64; other integer types are
            widened, floats are taken while they count exactly to `input_dim`.
        source: Optional str, the feature that the ids come from, named where an id is
            refused.

    Returns:
        Tensor of shape `inputs.shape + (output_dim,)`, in the compute dtype.

    Raises:
        TypeError: If `input_dim` or `output_dim` is not an integer.
        ValueError: If an argument is out of its range, or an id is.

    Example:
    >>> tuple(FullEmbedding(10, 4)(np.array([[1, 2, 9]])).shape)
    (1, 3, 4)
    """

    def __init__(
        self,
        input_dim,
        output_dim,
        *,
        embeddings_initializer="uniform",
        embeddings_regularizer=None,
        embeddings_constraint=None,
        out_of_range="error",
        mask_zero=False,
        zero_masked=False,
        **kwargs,
    ):
        super().__init__(
            input_dim,
            output_dim,
            out_of_range=out_of_range,
            mask_zero=mask_zero,
            zero_masked=zero_masked,
            **kwargs,
        )
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)

    def build(self, input_shape=None):
        self.embeddings = self._add_table(
            "embeddings",
            self.num_ids,
            self.output_dim,
            self.embeddings_initializer,
            self.embeddings_regularizer,
        )

    def get_config(self):
        return {
            **super().get_config(),
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
            "embeddings_regularizer": keras.regularizers.serialize(
                self.embeddings_regularizer
            ),
            "embeddings_constraint": keras.constraints.serialize(
                self.embeddings_constraint
            ),
        }

    def read(self, ids):
        """Reads the rows of ids that are in range."""
        return read_rows(self.embeddings, ids, self.compute_dtype)
