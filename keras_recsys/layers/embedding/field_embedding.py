"""`FieldEmbedding`, the vectors of many fields from one table."""

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import OUT_OF_RANGE, check_choice, check_int, shapes_of
from keras_recsys._initializers import RowBlocks
from keras_recsys._lookup import has_int64, id_dtype, read_rows, safe_ids, settle
from keras_recsys.layers.embedding._id_embedding import (
    batch_loss,
    copy_rows,
    grow_layer,
    prepared,
)


@keras.saving.register_keras_serializable(package="keras_recsys")
class FieldEmbedding(keras.layers.Layer):
    """Embeds one id of each field, with all tables one below the other in one weight.

    With `offset_f` the number of ids of the fields before `f`,

        output_f = embeddings[offset_f + id_f]

    It computes what one `FullEmbedding` a field computes, in one lookup and with one
    sparse update: a model of 26 fields is built and traced several times faster, and
    steps faster.

    Args:
        vocab_sizes: Non-empty sequence of positive ints below `2**31`, the number of
            ids of each field, `0 .. vocab_sizes[f] - 1`.
        output_dim: Positive int, width of a vector.
        field_names: Sequence of str, what errors call the fields. Defaults to their
            numbers.
        embeddings_initializer: Initializer of the table of each field. Defaults to
            `"uniform"`.
        embeddings_regularizer: Regularizer of the vectors of each batch, divided by its
            rows, which keeps the gradient sparse. Defaults to `None`.
        embeddings_constraint: Constraint of the table, which Keras applies to all of
            it after each step. Defaults to `None`.
        out_of_range: What an id outside its vocabulary does, see `FullEmbedding`; with
            `"oov"` each field has a learned vector of its own for such ids. Defaults to
            `"error"`.
        **kwargs: `name`, `dtype`, `trainable` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor of ids, `(batch_size, num_fields)`; or a list of one tensor a
            field, `(batch_size,)`. Dtypes as in `FullEmbedding`.

    Returns:
        Tensor of shape `(batch_size, num_fields, output_dim)`, in the compute dtype.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range, the number of fields differs
            from that of `vocab_sizes`, or an id is out of range.

    Example:
    >>> layer = FieldEmbedding([3, 5], 4, field_names=["city", "hour"])
    >>> tuple(layer(np.array([[2, 4], [0, 0]])).shape)
    (2, 2, 4)
    >>> tuple(layer.embeddings.shape)
    (8, 4)
    """

    def __init__(
        self,
        vocab_sizes,
        output_dim,
        *,
        field_names=None,
        embeddings_initializer="uniform",
        embeddings_regularizer=None,
        embeddings_constraint=None,
        out_of_range="error",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocab_sizes = tuple(check_int("vocab_sizes", n) for n in vocab_sizes)
        if not self.vocab_sizes or max(self.vocab_sizes) > 2**31 - 1:
            raise ValueError(
                "`vocab_sizes` must hold at least one size, all below 2**31. "
                f"Received: vocab_sizes={vocab_sizes!r}."
            )
        self.output_dim = check_int("output_dim", output_dim)
        if field_names is None:
            field_names = map(str, range(len(self.vocab_sizes)))
        self.field_names = tuple(field_names)
        if len(set(self.field_names)) != len(self.vocab_sizes):
            raise ValueError(
                f"`field_names` must hold {len(self.vocab_sizes)} distinct names, one "
                f"for each of `vocab_sizes`. Received: {list(self.field_names)}."
            )
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)
        self.out_of_range = check_choice("out_of_range", out_of_range, OUT_OF_RANGE)
        self.offsets = np.cumsum([0, *self.vocab_sizes[:-1]])
        id_dtype(sum(self.vocab_sizes))  # refused now where the backend has no int64
        self.autocast = False
        if self.out_of_range == "error" and keras.config.backend() == "tensorflow":
            # XLA drops the check, so `jit_compile="auto"` must not choose it.
            self.supports_jit = False

    @property
    def weight_shapes(self):
        """Dict from the name of every trainable weight to its shape."""
        shapes = {"embeddings": (sum(self.vocab_sizes), self.output_dim)}
        if self.out_of_range == "oov":
            shapes["oov_embeddings"] = (len(self.vocab_sizes), self.output_dim)
        return shapes

    def build(self, input_shape=None):
        if input_shape is not None:
            self._check_shape(input_shape)
        shapes = self.weight_shapes
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=shapes["embeddings"],
            initializer=RowBlocks(self.embeddings_initializer, self.vocab_sizes),
            constraint=self.embeddings_constraint,
            autocast=False,
        )
        self.embeddings.is_embedding_table = True  # what `SplitOptimizer` looks for
        if self.out_of_range == "oov":
            self.oov_embeddings = self.add_weight(
                name="oov_embeddings",
                shape=shapes["oov_embeddings"],
                initializer=RowBlocks(
                    self.embeddings_initializer, [1] * len(self.vocab_sizes)
                ),
                autocast=False,
            )

    def __call__(self, inputs, *args, **kwargs):
        """Embeds `inputs`; see the class."""
        # At each call: ids of one field would be taken for those of all.
        self._check_shape(
            keras.tree.map_structure(lambda x: tuple(np.shape(x)), inputs)
        )
        if isinstance(inputs, (list, tuple)):
            inputs = [
                prepared(x, size, self.out_of_range)
                for x, size in zip(inputs, self.vocab_sizes, strict=True)
            ]
        else:
            inputs = prepared(inputs, self.vocab_sizes, self.out_of_range)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs):
        ids, in_range, inputs = self._safe_ids(inputs)
        dtype = id_dtype(sum(self.vocab_sizes))
        rows = ops.cast(ids, dtype) + ops.convert_to_tensor(self.offsets, dtype=dtype)
        vectors = settle(
            read_rows(self.embeddings, rows, self.compute_dtype),
            inputs,
            in_range,
            self.vocab_sizes,
            self.out_of_range,
            repr(self.name),
            self.field_names,
        )
        if self.out_of_range == "oov":
            oov = ops.cast(self.oov_embeddings, self.compute_dtype)
            vectors = ops.where(ops.expand_dims(in_range, -1), vectors, oov)
        if self.embeddings_regularizer is not None:
            self.add_loss(
                batch_loss(vectors, self.embeddings_regularizer, self.compute_dtype)
            )
        return vectors

    def compute_output_shape(self, input_shape):
        batch_size = self._check_shape(input_shape)
        return (batch_size, len(self.vocab_sizes), self.output_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_sizes": list(self.vocab_sizes),
            "output_dim": self.output_dim,
            "field_names": list(self.field_names),
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
            "embeddings_regularizer": keras.regularizers.serialize(
                self.embeddings_regularizer
            ),
            "embeddings_constraint": keras.constraints.serialize(
                self.embeddings_constraint
            ),
            "out_of_range": self.out_of_range,
        }

    def rows_of(self, field_name):
        """The rows of `embeddings` that a field has, a slice.

        Raises:
            ValueError: If there is no such field.
        """
        field = self._index(field_name)
        start = int(self.offsets[field])
        return slice(start, start + self.vocab_sizes[field])

    def grown_config(self, vocab_sizes):
        """Config of this layer for more ids.

        Args:
            vocab_sizes: Dict from the name of a field to its new number of ids.

        Raises:
            ValueError: If a field is unknown, or would have fewer ids than now.
        """
        sizes = list(self.vocab_sizes)
        for name, size in vocab_sizes.items():
            field = self._index(name)
            if check_int("vocab_sizes", size) < sizes[field]:
                raise ValueError(
                    f"`vocab_sizes` of field {name!r} must be at least the size of "
                    f"now, {sizes[field]}. Received: {size}."
                )
            sizes[field] = size
        return {**self.get_config(), "vocab_sizes": sizes}

    def grow(self, vocab_sizes):
        """Makes a layer of more ids in which every old id has its old vector.

        New rows get values of the initializer. `keras_recsys.models.grow_vocabulary`
        does this to the layers of a model.

        Args:
            vocab_sizes: Dict from the name of a field to its new number of ids.

        Returns:
            A built layer of the same name.

        Raises:
            ValueError: If a field is unknown, would have fewer ids than now, or the
                layer is not built.
        """
        return grow_layer(self, vocab_sizes)

    def moved_rows(self, smaller):
        """Where the rows of the layer that this one has grown from are now."""
        return np.concatenate(
            [
                np.arange(size) + offset
                for size, offset in zip(smaller.vocab_sizes, self.offsets, strict=True)
            ]
        )

    def take_rows(self, smaller):
        """Copies the weights of the layer that this one has grown from."""
        copy_rows(self.embeddings, smaller.embeddings, self.moved_rows(smaller))
        if self.out_of_range == "oov":
            self.oov_embeddings.assign(smaller.oov_embeddings)

    def _index(self, field_name):
        if field_name not in self.field_names:
            raise ValueError(
                f"`field_name` must be one of {list(self.field_names)}. "
                f"Received: field_name={field_name!r}."
            )
        return self.field_names.index(field_name)

    def _safe_ids(self, inputs):
        """`safe_ids` of all fields, and the ids as they came in, one tensor."""
        dtypes = set()
        if isinstance(inputs, (list, tuple)):
            dtypes = {keras.backend.standardize_dtype(x.dtype) for x in inputs}
        if len(dtypes) == 1:
            inputs = ops.stack(inputs, axis=1)
        if len(dtypes) < 2:
            return *safe_ids(inputs, self.vocab_sizes, self.out_of_range), inputs
        if all("int" in dtype and dtype != "uint64" for dtype in dtypes):
            dtype = keras.backend.result_type(*dtypes) if has_int64() else "int32"
            stacked = ops.stack([ops.cast(x, dtype) for x in inputs], axis=1)
            return *safe_ids(stacked, self.vocab_sizes, self.out_of_range), stacked
        # Field by field: a cast would make ids of fractions and of booleans.
        safe = [
            safe_ids(x, size, self.out_of_range)
            for x, size in zip(inputs, self.vocab_sizes, strict=True)
        ]
        ids, in_range = (ops.stack(parts, axis=1) for parts in zip(*safe, strict=True))
        dtype = keras.backend.result_type(*dtypes, "float32")
        stacked = ops.stack([ops.cast(x, dtype) for x in inputs], axis=1)
        return ids, in_range, stacked

    def _check_shape(self, input_shape):
        """Returns the batch size."""
        count = len(self.vocab_sizes)
        shapes = shapes_of(input_shape)
        if input_shape and isinstance(input_shape[0], (list, tuple)):
            fits = len(shapes) == count and all(len(shape) == 1 for shape in shapes)
        else:
            fits = len(shapes[0]) == 2 and shapes[0][1] == count
        if not fits:
            raise ValueError(
                f"`FieldEmbedding` takes ids of shape (batch_size, {count}), or a list "
                f"of {count} tensors of shape (batch_size,). "
                f"Received: input_shape={input_shape}."
            )
        return shapes[0][0]
