"""What every layer from ids to vectors shares."""

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import OUT_OF_RANGE, POOLINGS, check_choice, check_int
from keras_recsys._dtypes import wide_dtype
from keras_recsys._initializers import PretrainedTable, clone
from keras_recsys._lookup import id_dtype, narrow_array, safe_ids, settle
from keras_recsys.layers.embedding._pooling import pool


def copy_rows(new, old, rows=None):
    """Assigns a variable to one that has the same shape or more rows.

    Args:
        new: The larger variable.
        old: The smaller one.
        rows: Integer array, the new places of the old rows. Defaults to the first ones.
    """
    values = ops.convert_to_numpy(old)
    if tuple(new.shape) != values.shape:
        grown = np.array(ops.convert_to_numpy(new))
        grown[np.arange(len(values)) if rows is None else rows] = values
        values = grown
    new.assign(values)


def grow_layer(layer, sizes):
    """Makes the layer of more ids that `grown_config` describes, with the old rows.

    Raises:
        ValueError: If the layer is not built.
    """
    if not layer.built:
        raise ValueError(
            f"Layer {layer.name!r} must be built before it grows: it has no rows to "
            "keep yet. Received: an unbuilt layer."
        )
    grown = type(layer).from_config(layer.grown_config(sizes))
    grown.build()
    grown.take_rows(layer)
    return grown


def prepared(inputs, num_ids, out_of_range):
    """Ids of a NumPy array as the backend takes them without loss; others as they are.

    Args:
        inputs: What a layer was called with.
        num_ids: Number of ids, or an array of those of the last axis.
        out_of_range: The policy; `"mod"` wraps before ids are cut to what the backend
            has.

    Raises:
        TypeError: If an array holds neither integers, floats nor booleans.
    """
    if not isinstance(inputs, np.ndarray):
        return inputs
    if inputs.dtype.kind not in "iufb":
        raise TypeError(
            "`inputs` must be integers; `keras_recsys.data.Vocabulary` makes ids "
            f"of raw values. Received: inputs of dtype {inputs.dtype}."
        )
    if out_of_range == "mod" and inputs.dtype.kind in "iu":
        wide = "uint64" if inputs.dtype == "uint64" else "int64"
        inputs = np.mod(inputs.astype(wide), np.asarray(num_ids, wide)).astype("int64")
    return narrow_array(inputs)


def batch_loss(vectors, regularizer, dtype, mask=None):
    """The regularizer on the vectors of a batch, divided by its rows.

    Args:
        vectors: Tensor, `(batch_size, ..., dim)`.
        regularizer: The regularizer.
        dtype: Compute dtype of the layer; the sum is in float32 at least.
        mask: Optional boolean tensor of the first axes, `True` keeps.
    """
    wide = ops.cast(vectors, wide_dtype(dtype))
    if mask is not None:
        while len(mask.shape) < len(wide.shape):
            mask = ops.expand_dims(mask, -1)
        wide = ops.where(mask, wide, ops.zeros_like(wide))
    rows = ops.maximum(ops.cast(ops.shape(wide)[0], wide.dtype), 1.0)
    return regularizer(wide) / rows


def _same_shape(first, second):
    """Whether two shapes agree in all that is known of them."""
    first, second = tuple(first), tuple(second)
    return len(first) == len(second) and all(
        a == b or a is None or b is None for a, b in zip(first, second, strict=True)
    )


class IdEmbedding(keras.layers.Layer):
    """Base of the embedding layers: id checks, masks, bags, dtypes, growth.

    A subclass says in `table_shapes` which tables it has for how many ids, makes them
    in `build`, and reads them in `read(ids)`, where every id is in range.
    """

    def __init__(
        self,
        input_dim,
        output_dim,
        *,
        embeddings_regularizer=None,
        embeddings_constraint=None,
        out_of_range="error",
        mask_zero=False,
        zero_masked=False,
        pooling=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.input_dim = check_int("input_dim", input_dim)
        self.output_dim = check_int("output_dim", output_dim)
        if self.input_dim > 2**63 - 1:
            raise ValueError(
                "`input_dim` must fit int64, at most 2**63 - 1. "
                f"Received: input_dim={input_dim!r}."
            )
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)
        self.out_of_range = check_choice("out_of_range", out_of_range, OUT_OF_RANGE)
        if zero_masked and not mask_zero:
            raise ValueError(
                "`zero_masked` must be False where `mask_zero` is False. "
                f"Received: zero_masked={zero_masked!r}, mask_zero={mask_zero!r}."
            )
        if pooling is not None:
            check_choice("pooling", pooling, POOLINGS)
        self.mask_zero = bool(mask_zero)
        self.zero_masked = bool(zero_masked)
        self.pooling = pooling
        id_dtype(self.input_dim)  # refused now where the backend has no int64
        self.supports_masking = self.mask_zero
        self.autocast = False
        if self.out_of_range == "error" and keras.config.backend() == "tensorflow":
            # XLA drops the check, so `jit_compile="auto"` must not choose it.
            self.supports_jit = False

    @property
    def table_shapes(self):
        """Dict from the name of a table to its shape, known before anything is made."""
        raise NotImplementedError

    @property
    def weight_shapes(self):
        """Dict from the name of every trainable weight to its shape."""
        shapes = dict(self.table_shapes)
        if self.out_of_range == "oov":
            shapes["oov_embedding"] = (1, self.output_dim)
        return shapes

    def build(self, input_shape=None):
        if self.out_of_range == "oov":
            self.oov_embedding = self.add_weight(
                name="oov_embedding",
                shape=self.weight_shapes["oov_embedding"],
                initializer=self._oov_initializer(),
                autocast=False,
            )

    def __call__(self, inputs, *args, **kwargs):
        """Embeds `inputs`; see the class."""
        inputs = prepared(inputs, self.input_dim, self.out_of_range)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs, weights=None, source=None, padding_mask=None):
        ids, in_range = safe_ids(inputs, self.input_dim, self.out_of_range)
        self._check_bag(inputs, weights)
        mask = padding_mask
        if mask is None and self.mask_zero:
            mask = ops.not_equal(inputs, 0)
        name = f"{self.name!r}" + (f" for feature {source!r}" if source else "")

        def settled(vectors):
            vectors = settle(
                vectors, inputs, in_range, self.input_dim, self.out_of_range, name
            )
            if self.out_of_range == "oov":
                oov = ops.cast(self.oov_embedding, self.compute_dtype)[0]
                vectors = ops.where(ops.expand_dims(in_range, -1), vectors, oov)
            if self.zero_masked:
                kept = ops.expand_dims(mask, -1)
                vectors = ops.where(kept, vectors, ops.zeros_like(vectors))
            return vectors

        return self._embed(ids, settled, mask, weights)

    def compute_mask(self, inputs, previous=None):
        if not self.mask_zero or self.pooling is not None:
            return None
        return ops.not_equal(inputs, 0)

    def compute_output_shape(self, input_shape):
        if self.pooling is not None:
            input_shape = input_shape[:-1]
        return (*input_shape, self.output_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_regularizer": keras.regularizers.serialize(
                self.embeddings_regularizer
            ),
            "embeddings_constraint": keras.constraints.serialize(
                self.embeddings_constraint
            ),
            "out_of_range": self.out_of_range,
            "mask_zero": self.mask_zero,
            "zero_masked": self.zero_masked,
            "pooling": self.pooling,
        }

    def grown_config(self, input_dim):
        """Config of this layer for more ids, in which the old ids keep their rows.

        Raises:
            ValueError: If `input_dim` is smaller than now, or old rows would move.
        """
        check_int("input_dim", input_dim)
        if input_dim < self.input_dim:
            raise ValueError(
                f"`input_dim` must be at least that of now, {self.input_dim}, for "
                f"layer {self.name!r}. Received: input_dim={input_dim!r}."
            )
        return {**self.get_config(), "input_dim": input_dim}

    def grow(self, input_dim):
        """Makes a layer like this one for more ids; the vectors of the old ones stay.

        New rows get values of the initializer. `keras_recsys.models.grow_vocabulary`
        does this to the layers of a model.

        Args:
            input_dim: Number of ids, at least that of now.

        Returns:
            A built layer of the same name.

        Raises:
            ValueError: If `input_dim` is smaller than now, old rows would move, or the
                layer is not built.
        """
        return grow_layer(self, input_dim)

    def take_rows(self, smaller):
        """Copies the weights of the layer that this one has grown from."""
        for new, old in zip(self.weights, smaller.weights, strict=True):
            copy_rows(new, old)

    def read(self, ids):
        """Reads the vectors of ids that are in range."""
        raise NotImplementedError

    def _embed(self, ids, settled, mask, weights):
        """Reads, settles ids that are out of range, and pools."""
        vectors = self._regularized(settled(self.read(ids)), mask)
        if self.pooling is None:
            return vectors
        return pool(vectors, mask, self.pooling, weights)

    def _regularized(self, vectors, mask):
        """Adds the loss on the vectors of the batch, which keeps gradients sparse."""
        if self.embeddings_regularizer is not None:
            self.add_loss(
                batch_loss(
                    vectors, self.embeddings_regularizer, self.compute_dtype, mask
                )
            )
        return vectors

    def _check_bag(self, inputs, weights):
        if self.pooling is not None and len(inputs.shape) < 2:
            raise ValueError(
                "`inputs` must be of shape (batch_size, ..., bag_len) where `pooling` "
                f"is {self.pooling!r}. Received: shape {tuple(inputs.shape)}."
            )
        if weights is not None and self.pooling != "sum":
            raise ValueError(
                "`weights` must be None where `pooling` is not 'sum'. "
                f"Received: pooling={self.pooling!r}."
            )
        if weights is not None and not _same_shape(weights.shape, inputs.shape):
            raise ValueError(
                f"`weights` must be of the shape of `inputs`, {tuple(inputs.shape)}. "
                f"Received: shape {tuple(weights.shape)}."
            )

    def _oov_initializer(self):
        """How the vector of ids outside the vocabulary starts: as the tables do."""
        initializer = self.embeddings_initializer
        if isinstance(initializer, (str, PretrainedTable)):
            return "uniform"
        return clone(initializer, len(self.table_shapes))

    def _add_table(self, name, initializer):
        """Adds a table whose rows alone are cast under mixed precision."""
        table = self.add_weight(
            name=name,
            shape=self.table_shapes[name],
            initializer=initializer,
            constraint=self.embeddings_constraint,
            autocast=False,
        )
        table.is_embedding_table = True  # what `SplitOptimizer` looks for
        return table
