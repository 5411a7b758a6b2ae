"""`FullEmbedding`, one row an id."""

import keras
from keras import ops

from keras_recsys._initializers import PretrainedTable, table_initializer
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
        embeddings_initializer: Initializer of the table; or the table itself, an array
            of shape `(input_dim, output_dim)` of pretrained vectors, which is kept as a
            weight alone and never in the config (a layer made of the config is NaN
            until its weights are loaded); or `"dlrm"`, `U(-1 / sqrt(input_dim),
            1 / sqrt(input_dim))`. Defaults to `"uniform"`.
        embeddings_regularizer: Regularizer of the vectors of each batch, divided by its
            rows. On the whole table, as in Keras, it would make the gradient as large
            as the table. Defaults to `None`.
        embeddings_constraint: Constraint of the table, which Keras applies to all of
            it after each step. Defaults to `None`.
        out_of_range: What an id outside `[0, input_dim)` does. `"error"` raises, and
            gives NaN where a compiled graph cannot raise; `"nan"` gives NaN; `"zero"`
            gives 0 and no gradient; `"mod"` reads id `i mod input_dim`; `"oov"` reads
            one learned vector kept for such ids. Defaults to `"error"`.
        mask_zero: Whether id 0 is padding, which makes a Keras mask. Defaults to
            `False`.
        zero_masked: Whether padding gives the zero vector; needs `mask_zero`. Defaults
            to `False`.
        pooling: `None`, or `"sum"`, `"mean"` or `"sqrtn"` to pool the last axis of the
            ids, without padding if `mask_zero`. Defaults to `None`.
        **kwargs: `name`, `dtype`, `trainable` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor of ids of any shape, int32 or int64; other integer types are
            widened, floats are taken while they count exactly to `input_dim`.
        weights: Optional float tensor of the shape of `inputs`, factors of the vectors
            of a bag; with `pooling="sum"` only.
        source: Optional str, the feature that the ids come from, named where an id is
            refused.
        padding_mask: Optional boolean tensor of the shape of `inputs`, `True` keeps:
            what is pooled and regularized. Made by `mask_zero` if not given.
        return_table: Whether to return the whole table too, for a layer that scores
            all ids by the vectors of the lookup: one weight serves input and output.
            Defaults to `False`.

    Returns:
        Tensor of shape `inputs.shape + (output_dim,)`, or `inputs.shape[:-1] +
        (output_dim,)` with `pooling`, in the compute dtype. An empty bag gives 0. With
        `return_table` a tuple of it and the table, `(input_dim, output_dim)`, in
        the dtype of the weight.

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
        self.embeddings_initializer = table_initializer(
            embeddings_initializer, self.table_shapes["embeddings"]
        )

    @property
    def table_shapes(self):
        return {"embeddings": (self.input_dim, self.output_dim)}

    def build(self, input_shape=None):
        initializer = self.embeddings_initializer
        if initializer == "dlrm":
            bound = self.input_dim**-0.5
            initializer = keras.initializers.RandomUniform(-bound, bound)
        self.embeddings = self._add_table("embeddings", initializer)
        super().build(input_shape)

    def call(
        self,
        inputs,
        weights=None,
        source=None,
        padding_mask=None,
        return_table=False,
    ):
        vectors = super().call(inputs, weights, source, padding_mask)
        if not return_table:
            return vectors
        # Reshaped it is a tensor, which a variable of TensorFlow is not.
        return vectors, ops.reshape(self.embeddings, self.embeddings.shape)

    def compute_output_spec(self, inputs, *args, return_table=False, **kwargs):
        vectors = keras.KerasTensor(
            self.compute_output_shape(inputs.shape), dtype=self.compute_dtype
        )
        if not return_table:
            return vectors
        table = self.table_shapes["embeddings"]
        return vectors, keras.KerasTensor(table, dtype=self.variable_dtype)

    def get_config(self):
        initializer = self.embeddings_initializer
        if initializer != "dlrm":
            initializer = keras.initializers.serialize(initializer)
        return {**super().get_config(), "embeddings_initializer": initializer}

    def grown_config(self, input_dim):
        config = super().grown_config(input_dim)
        if isinstance(self.embeddings_initializer, PretrainedTable):
            config["embeddings_initializer"] = "uniform"  # there are no rows to add
        return config

    def read(self, ids):
        return read_rows(self.embeddings, ids, self.compute_dtype)
