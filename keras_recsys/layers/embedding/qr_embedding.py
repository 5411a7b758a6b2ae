"""`QREmbedding`, the quotient-remainder trick."""

import math

import keras
from keras import ops

from keras_recsys._checks import check_choice, check_int
from keras_recsys._dtypes import wide_dtype
from keras_recsys._initializers import clone
from keras_recsys._lookup import read_rows
from keras_recsys.layers.embedding._id_embedding import IdEmbedding

COMBINERS = ("multiply", "add", "concat")
# Bound of Keras' "uniform", the usual start of an embedding table.
_BOUND = 0.05


@keras.saving.register_keras_serializable(package="keras_recsys")
class QREmbedding(IdEmbedding):
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
        combiner: `"multiply"`, `"add"` or `"concat"`, the quotient part first, which
            splits `output_dim` in `output_dim // 2` and the rest. Defaults to
            `"multiply"`.
        embeddings_initializer: `"uniform"` scales both tables so that the output has
            the spread of a plain `keras.layers.Embedding`, whatever the combiner;
            `"ones"` starts the quotient table plain and the remainder table around 1;
            `"dlrm"` draws both from `U(1 / sqrt(input_dim), 1)`, as DLRM does. Any
            other Keras initializer fills each table as it is. Zeros with `"multiply"`
            never train. Defaults to `"uniform"`.
        embeddings_regularizer: Regularizer of the combined vectors of each batch,
            divided by its rows. On the tables it would shrink a product twice and make
            their gradients dense. Defaults to `None`.
        embeddings_constraint: Constraint of each table. Defaults to `None`.
        out_of_range: What an id outside `[0, input_dim)` does, also one that both
            tables happen to have rows for. `"error"` raises, and gives NaN where a
            compiled graph cannot raise; `"nan"` gives NaN; `"zero"` gives 0 and no
            gradient; `"mod"` reads id `i mod input_dim`; `"oov"` reads one extra
            learned id. Defaults to `"error"`.
        mask_zero: Whether id 0 is padding, which makes a Keras mask. Both rows of id 0
            are shared with other ids, so its vector is not 0. Defaults to `False`.
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
        if num_buckets is None:
            num_buckets = math.isqrt(self.input_dim - 1) + 1
        self.num_buckets = check_int("num_buckets", num_buckets)
        self.combiner = check_choice("combiner", combiner, COMBINERS)
        if self.combiner == "concat" and self.output_dim < 2:
            raise ValueError(
                "`output_dim` must be at least 2 where `combiner` is 'concat'. "
                f"Received: output_dim={output_dim!r}."
            )
        if embeddings_initializer not in ("uniform", "ones", "dlrm"):
            embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_initializer = embeddings_initializer
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)

    def build(self, input_shape=None):
        quotient_dim = remainder_dim = self.output_dim
        if self.combiner == "concat":
            quotient_dim = self.output_dim // 2
            remainder_dim = self.output_dim - quotient_dim
        quotient, remainder = self._table_initializers()
        self.quotient_embeddings = self._add_table(
            "quotient_embeddings",
            -(-self.num_ids // self.num_buckets),
            quotient_dim,
            quotient,
        )
        self.remainder_embeddings = self._add_table(
            "remainder_embeddings", self.num_buckets, remainder_dim, remainder
        )

    def get_config(self):
        initializer = self.embeddings_initializer
        if not isinstance(initializer, str):
            initializer = keras.initializers.serialize(initializer)
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "combiner": self.combiner,
            "embeddings_initializer": initializer,
            "embeddings_regularizer": keras.regularizers.serialize(
                self.embeddings_regularizer
            ),
            "embeddings_constraint": keras.constraints.serialize(
                self.embeddings_constraint
            ),
        }

    def read(self, ids):
        """Reads and combines both rows of ids that are in range."""
        quotients, remainders = self.split(ids)
        quotient = read_rows(self.quotient_embeddings, quotients, self.compute_dtype)
        remainder = read_rows(self.remainder_embeddings, remainders, self.compute_dtype)
        if self.combiner == "multiply":
            vectors = quotient * remainder
        elif self.combiner == "add":
            vectors = quotient + remainder
        else:
            vectors = ops.concatenate([quotient, remainder], axis=-1)
        if self.embeddings_regularizer is not None:
            wide = ops.cast(vectors, wide_dtype(self.compute_dtype))
            rows = ops.maximum(ops.cast(ops.shape(wide)[0], wide.dtype), 1.0)
            self.add_loss(self.embeddings_regularizer(wide) / rows)
        return vectors

    def split(self, ids):
        """Quotients and remainders of ids that are in range, exact for every int64."""
        divisor = ops.convert_to_tensor(self.num_buckets, dtype=ids.dtype)
        quotients = ids // divisor  # `ops.floor_divide` makes int64 int32 on torch
        return quotients, ids - quotients * divisor

    def _table_initializers(self):
        """Initializers of the quotient and of the remainder table."""
        mode = self.embeddings_initializer
        if not isinstance(mode, str):
            return clone(mode, 0), clone(mode, 1)
        if mode == "dlrm":
            bounds = [(self.input_dim**-0.5, 1.0)] * 2
        elif mode == "ones":
            bounds = [(-_BOUND, _BOUND), (1 - _BOUND, 1 + _BOUND)]
        else:
            # A uniform number within +-b has the deviation b / sqrt(3).
            std = _BOUND / math.sqrt(3)
            factor = {
                "multiply": math.sqrt(std),
                "add": std / math.sqrt(2),
                "concat": std,
            }[self.combiner]
            bounds = [(-factor * math.sqrt(3), factor * math.sqrt(3))] * 2
        return [keras.initializers.RandomUniform(*bound) for bound in bounds]
