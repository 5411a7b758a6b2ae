"""What embeddings of several small tables share."""

import inspect
import math

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_choice, check_int
from keras_recsys._initializers import clone
from keras_recsys._lookup import has_int64, read_rows
from keras_recsys.layers.embedding._id_embedding import IdEmbedding
from keras_recsys.layers.embedding._pooling import pool
from keras_recsys.layers.embedding.full_embedding import FullEmbedding

COMBINERS = ("multiply", "add", "concat", "stack")
MODES = ("uniform", "ones", "dlrm")
# Bound of Keras' "uniform", the usual start of an embedding table.
_BOUND = 0.05


class PartitionedEmbedding(IdEmbedding):
    """Base of the embeddings that read one row in each of several tables.

    A subclass names its tables and their rows in `table_rows`, and gives the row of
    each id in each table, in the same order, in `split`.
    """

    def __init__(
        self,
        input_dim,
        output_dim,
        *,
        combiner="multiply",
        embeddings_initializer="uniform",
        pool_first=False,
        shuffle_seed=None,
        **kwargs,
    ):
        super().__init__(input_dim, output_dim, **kwargs)
        self.combiner = check_choice("combiner", combiner, COMBINERS)
        if hasattr(embeddings_initializer, "__array__"):
            raise ValueError(
                "`embeddings_initializer` must be no array for a layer of several "
                "tables; `FullEmbedding` takes pretrained vectors. Received: an array "
                f"of shape {np.shape(embeddings_initializer)}."
            )
        if embeddings_initializer not in MODES:
            embeddings_initializer = keras.initializers.get(embeddings_initializer)
        if embeddings_initializer == "ones" and self.combiner != "multiply":
            raise ValueError(
                "`embeddings_initializer` must not be 'ones' where `combiner` is not "
                "'multiply': the ones would only shift the vectors. "
                f"Received: combiner={combiner!r}."
            )
        self.embeddings_initializer = embeddings_initializer
        self.pool_first = bool(pool_first)
        if pool_first and (self.pooling is None or self.out_of_range == "oov"):
            raise ValueError(
                "`pool_first` must be False where `pooling` is None or `out_of_range` "
                f"is 'oov'. Received: pool_first={pool_first!r}, "
                f"pooling={self.pooling!r}, out_of_range={self.out_of_range!r}."
            )
        if self.combiner == "stack" and self.out_of_range == "oov":
            raise ValueError(
                "`out_of_range` must not be 'oov' where `combiner` is 'stack'. "
                f"Received: out_of_range={self.out_of_range!r}."
            )
        self.shuffle_seed = shuffle_seed
        self._shuffle = None
        if shuffle_seed is not None:
            check_int("shuffle_seed", shuffle_seed, minimum=0)
            self._shuffle = _bijection(self.input_dim, shuffle_seed)

    @classmethod
    def for_vocab(cls, input_dim, output_dim, *, threshold=200, **kwargs):
        """Makes this layer for a large vocabulary, and a plain table for a small one.

        Args:
            input_dim: Number of ids.
            output_dim: Width of the output, the same either way.
            threshold: Largest `input_dim` that gets a `FullEmbedding`, as in DLRM.
                Defaults to `200`.
            **kwargs: Other arguments of the class. Those that a plain table has not
                are dropped for one; `"ones"` starts it as `"uniform"`.

        Returns:
            A layer of this class, or a `FullEmbedding`.
        """
        check_int("threshold", threshold, minimum=0)
        if kwargs.get("combiner") == "stack":
            raise ValueError(
                "`combiner` must not be 'stack', which a plain table has not. "
                "Received: combiner='stack'."
            )
        if check_int("input_dim", input_dim) > threshold:
            return cls(input_dim, output_dim, **kwargs)
        own = set(inspect.signature(cls.__init__).parameters)
        own -= set(inspect.signature(FullEmbedding.__init__).parameters)
        kwargs = {key: value for key, value in kwargs.items() if key not in own}
        if kwargs.get("embeddings_initializer") == "ones":
            kwargs["embeddings_initializer"] = "uniform"
        return FullEmbedding(input_dim, output_dim, **kwargs)

    @property
    def table_rows(self):
        """Dict from the name of a table to its number of rows."""
        raise NotImplementedError

    @property
    def table_shapes(self):
        rows = self.table_rows
        widths = [self.output_dim] * len(rows)
        if self.combiner == "concat":
            width, wider = divmod(self.output_dim, len(rows))
            widths = [width + (i >= len(rows) - wider) for i in range(len(rows))]
        return {
            name: (count, width)
            for (name, count), width in zip(rows.items(), widths, strict=True)
        }

    def build(self, input_shape=None):
        shapes = self.table_shapes
        initializers = self._table_initializers(len(shapes))
        self.tables = [
            self._add_table(name, initializer)
            for name, initializer in zip(shapes, initializers, strict=True)
        ]
        super().build(input_shape)

    def compute_output_shape(self, input_shape):
        shape = super().compute_output_shape(input_shape)
        if self.combiner == "stack":
            return (*shape[:-1], len(self.table_rows), self.output_dim)
        return shape

    def get_config(self):
        initializer = self.embeddings_initializer
        if not isinstance(initializer, str):
            initializer = keras.initializers.serialize(initializer)
        return {
            **super().get_config(),
            "combiner": self.combiner,
            "embeddings_initializer": initializer,
            "pool_first": self.pool_first,
            "shuffle_seed": self.shuffle_seed,
        }

    def grown_config(self, input_dim):
        config = super().grown_config(input_dim)
        if self.shuffle_seed is not None and input_dim != self.input_dim:
            raise ValueError(
                "`shuffle_seed` must be None for a layer that grows, since the order "
                f"of the ids depends on their number. Received: layer {self.name!r} "
                f"with shuffle_seed={self.shuffle_seed!r}."
            )
        return config

    def split(self, ids):
        """List of the rows of ids that are in range, one tensor a table."""
        raise NotImplementedError

    def read(self, ids):
        return self._combine(self._read_parts(ids))

    def _check_concat(self):
        if self.combiner == "concat" and self.output_dim < len(self.table_rows):
            raise ValueError(
                f"`output_dim` must be at least {len(self.table_rows)}, the number of "
                "tables, where `combiner` is 'concat'. "
                f"Received: output_dim={self.output_dim!r}."
            )

    def _embed(self, ids, settled, mask, weights):
        if not self.pool_first:
            if self.combiner == "stack":
                return self._stacked(ids, settled, mask, weights)
            return super()._embed(ids, settled, mask, weights)
        parts = [
            pool(settled(part), mask, self.pooling, weights)
            for part in self._read_parts(ids)
        ]
        return self._regularized(self._combine(parts), None)

    def _stacked(self, ids, settled, mask, weights):
        """The vectors of all tables as fields of their own."""
        parts = [settled(part) for part in self._read_parts(ids)]
        stacked = self._regularized(self._combine(parts), mask)
        if self.pooling is None:
            return stacked
        return self._combine(
            [pool(part, mask, self.pooling, weights) for part in parts]
        )

    def _read_parts(self, ids):
        if self._shuffle is not None:
            ids = self._shuffled(ids)
        return [
            read_rows(table, rows, self.compute_dtype)
            for table, rows in zip(self.tables, self.split(ids), strict=True)
        ]

    def _combine(self, parts):
        if self.combiner == "concat":
            return ops.concatenate(parts, axis=-1)
        if self.combiner == "stack":
            return ops.stack(parts, axis=-2)
        total = parts[0]
        for part in parts[1:]:
            total = total * part if self.combiner == "multiply" else total + part
        return total

    def _shuffled(self, ids):
        """Another order of the ids, which separates neighbours."""
        factor, shift = self._shuffle
        dtype = keras.backend.standardize_dtype(ids.dtype)
        wide = factor * (self.input_dim - 1) + shift > np.iinfo("int32").max
        if wide and not has_int64():
            raise ValueError(
                "`shuffle_seed` must be None for so many ids on JAX without 64-bit "
                "integers; set `jax.config.update('jax_enable_x64', True)` first. "
                f"Received: input_dim={self.input_dim!r}."
            )
        x = ops.cast(ids, "int64" if wide else dtype)
        factor, shift, size = (
            ops.convert_to_tensor(n, dtype=x.dtype)
            for n in (factor, shift, self.input_dim)
        )
        return ops.cast((x * factor + shift) % size, dtype)

    def _table_initializers(self, count):
        """Initializers of the tables."""
        mode = self.embeddings_initializer
        if not isinstance(mode, str):
            return [clone(mode, i) for i in range(count)]
        if mode == "dlrm":
            bounds = [(self.input_dim**-0.5, 1.0)] * count
        elif mode == "ones":
            around_one = (1 - _BOUND, 1 + _BOUND)
            bounds = [(-_BOUND, _BOUND)] + [around_one] * (count - 1)
        else:
            # A uniform number within +-b has the deviation b / sqrt(3).
            std = _BOUND / math.sqrt(3)
            if self.combiner == "multiply":
                std **= 1 / count
            elif self.combiner == "add":
                std /= math.sqrt(count)
            bounds = [(-std * math.sqrt(3), std * math.sqrt(3))] * count
        return [keras.initializers.RandomUniform(*bound) for bound in bounds]


def _bijection(size, seed):
    """Factor and shift that map `0 .. size - 1` one to one by `(factor i + shift) mod`.

    Both are small enough for int64 products.
    """
    rng = np.random.default_rng(seed)
    limit = max(1, min(size - 1, (2**63 - 1) // size - 1))
    shift = int(rng.integers(0, size))
    factor = int(rng.integers((limit + 1) // 2, limit + 1))
    while math.gcd(factor, size) != 1:
        factor = factor % limit + 1
    return factor, shift
