"""`QREmbedding`, the quotient-remainder trick."""

import math

import keras

from keras_recsys._checks import check_int
from keras_recsys._lookup import split_digits
from keras_recsys.layers.embedding._partitioned_embedding import PartitionedEmbedding


@keras.saving.register_keras_serializable(package="keras_recsys")
class QREmbedding(PartitionedEmbedding):
    """Embeds many ids with two small tables, one by quotient and one by remainder.

    With `m = num_buckets`, id `i` reads row `i // m` of the quotient table and row
    `i % m` of the remainder table,

        output = combine(quotient_embeddings[i // m], remainder_embeddings[i % m])

    No two ids share both rows, and `m` need not divide `input_dim`: the tables have
    `ceil(input_dim / m)` and `m` rows, about `2 sqrt(input_dim)` together at the
    default.

    Args:
        input_dim: Positive int, number of ids, `0 .. input_dim - 1`.
        output_dim: Positive int, width of the output vector.
        num_buckets: Positive int, rows of the remainder table; DLRM's
            `num_collisions`. Defaults to `ceil(sqrt(input_dim))`, the smallest sum of
            both tables.
        combiner: `"multiply"`, `"add"`, or `"concat"`, the quotient part first, which
            splits `output_dim` in `output_dim // 2` and the rest; or `"stack"`, which
            gives the vectors of both tables as two fields. Defaults to `"multiply"`.
        embeddings_initializer: `"uniform"` scales both tables so that the output has
            the spread of a plain `keras.layers.Embedding`, whatever the combiner;
            `"ones"`, for `"multiply"` alone, starts the quotient table plain and the
            remainder table around 1; `"dlrm"` draws both from
            `U(1 / sqrt(input_dim), 1)`, as DLRM does. Any other Keras initializer fills
            each table as it is. Zeros with `"multiply"` never train. Defaults to
            `"uniform"`.
        embeddings_regularizer: Regularizer of the combined vectors of each batch,
            divided by its rows. On the tables it would shrink a product twice and make
            their gradients dense. Defaults to `None`.
        embeddings_constraint: Constraint of each table, which Keras applies to all of
            it after each step. Defaults to `None`.
        out_of_range: What an id outside `[0, input_dim)` does, also one that both
            tables happen to have rows for. `"error"` raises, and gives NaN where a
            compiled graph cannot raise; `"nan"` gives NaN; `"zero"` gives 0 and no
            gradient; `"mod"` reads id `i mod input_dim`; `"oov"` reads one learned
            vector kept for such ids. Defaults to `"error"`.
        mask_zero: Whether id 0 is padding, which makes a Keras mask. Both rows of id 0
            are shared with other ids, so its vector is not 0. Defaults to `False`.
        zero_masked: Whether padding gives the zero vector; needs `mask_zero`. Defaults
            to `False`.
        pooling: `None`, or `"sum"`, `"mean"` or `"sqrtn"` to pool the last axis of the
            ids, without padding if `mask_zero`. Defaults to `None`.
        pool_first: Whether the rows of each table are pooled before they are combined,
            as in DLRM, which is another number with `"multiply"`; needs `pooling`.
            Defaults to `False`.
        shuffle_seed: Int that puts the ids in another fixed order, so that neighbours
            do not share a quotient; `None` keeps the order, which is structure where
            ids are sorted by frequency or category. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor of ids of any shape, int32 or int64; other integer types are
            widened, floats are taken while they count exactly to `input_dim`.
        weights: Optional float tensor of the shape of `inputs`, factors of the vectors
            of a bag; with `pooling="sum"` only. With `pool_first` they are factors of
            the rows of each table, so that `"multiply"` has them twice, as in DLRM.
        source: Optional str, the feature that the ids come from, named where an id is
            refused.
        padding_mask: Optional boolean tensor of the shape of `inputs`, `True` keeps:
            what is pooled and regularized. Made by `mask_zero` if not given.

    Returns:
        Tensor of shape `inputs.shape + (output_dim,)`, or `inputs.shape + (2,
        output_dim)` with `"stack"`, in the compute dtype; with `pooling` the last axis
        of `inputs` is gone, and an empty bag gives 0.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range, an id is, or `input_dim` needs
            int64 on a backend without it.

    Example:
    >>> layer = QREmbedding(1_000_000, 8)
    >>> tuple(layer(np.array([[3, 999_999]])).shape)
    (1, 2, 8)
    >>> layer.count_params()
    16000

    Reference:
        Shi et al., "Compositional Embeddings Using Complementary Partitions for
        Memory-Efficient Recommendation Systems", KDD 2020. Differs from the paper: the
        default start is scaled to a plain table's, ids outside the vocabulary are
        refused, and the division is exact for every int64 id.
    """

    def __init__(
        self,
        input_dim,
        output_dim,
        *,
        num_buckets=None,
        combiner="multiply",
        embeddings_initializer="uniform",
        embeddings_regularizer=None,
        embeddings_constraint=None,
        out_of_range="error",
        mask_zero=False,
        zero_masked=False,
        pooling=None,
        pool_first=False,
        shuffle_seed=None,
        **kwargs,
    ):
        super().__init__(
            input_dim,
            output_dim,
            combiner=combiner,
            embeddings_initializer=embeddings_initializer,
            embeddings_regularizer=embeddings_regularizer,
            embeddings_constraint=embeddings_constraint,
            out_of_range=out_of_range,
            mask_zero=mask_zero,
            zero_masked=zero_masked,
            pooling=pooling,
            pool_first=pool_first,
            shuffle_seed=shuffle_seed,
            **kwargs,
        )
        if num_buckets is None:
            num_buckets = math.isqrt(self.input_dim - 1) + 1
        self.num_buckets = check_int("num_buckets", num_buckets)
        self._check_concat()

    @property
    def table_rows(self):
        return {
            "quotient_embeddings": -(-self.input_dim // self.num_buckets),
            "remainder_embeddings": self.num_buckets,
        }

    def get_config(self):
        return {**super().get_config(), "num_buckets": self.num_buckets}

    def split(self, ids):
        """Quotients and remainders of ids that are in range, exact for every int64."""
        return split_digits(ids, [self.num_buckets])[::-1]
