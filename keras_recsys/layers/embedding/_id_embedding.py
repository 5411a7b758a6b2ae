"""What every layer from ids to vectors shares."""

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import OUT_OF_RANGE, check_choice, check_int
from keras_recsys._lookup import id_dtype, narrow_array, safe_ids, settle


class IdEmbedding(keras.layers.Layer):
    """Base of the embedding layers: id checks, masks, dtypes.

    A subclass makes its tables in `build`, for `num_ids` ids, and reads them in
    `read(ids)`, where every id is in range.
    """

    def __init__(
        self,
        input_dim,
        output_dim,
        *,
        out_of_range="error",
        mask_zero=False,
        zero_masked=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.input_dim = check_int("input_dim", input_dim)
        self.output_dim = check_int("output_dim", output_dim)
        self.out_of_range = check_choice("out_of_range", out_of_range, OUT_OF_RANGE)
        if zero_masked and not mask_zero:
            raise ValueError(
                "`zero_masked` must be False where `mask_zero` is False. "
                f"Received: zero_masked={zero_masked!r}, mask_zero={mask_zero!r}."
            )
        self.mask_zero = bool(mask_zero)
        self.zero_masked = bool(zero_masked)
        self.num_ids = self.input_dim + (self.out_of_range == "oov")
        id_dtype(self.num_ids)  # refused now where the backend has no int64
        self.supports_masking = self.mask_zero
        self.autocast = False
        if self.out_of_range == "error" and keras.config.backend() == "tensorflow":
            # XLA drops the check, so `jit_compile="auto"` must not choose it.
            self.supports_jit = False

    def __call__(self, inputs, *args, **kwargs):
        """Embeds `inputs`; see the class."""
        if isinstance(inputs, np.ndarray) and inputs.dtype.kind not in "iufb":
            raise TypeError(
                "`inputs` must be integers; `keras_recsys.data.Vocabulary` makes ids "
                f"of raw values. Received: inputs of dtype {inputs.dtype}."
            )
        return super().__call__(narrow_array(inputs), *args, **kwargs)

    def call(self, inputs, source=None):
        ids, in_range = safe_ids(inputs, self.input_dim, self.out_of_range)
        vectors = settle(
            self.read(ids),
            inputs,
            in_range,
            self.input_dim,
            self.out_of_range,
            f"{self.name!r}" + (f" for feature {source!r}" if source else ""),
        )
        if self.zero_masked:
            kept = ops.expand_dims(ops.not_equal(inputs, 0), -1)
            vectors = ops.where(kept, vectors, ops.zeros_like(vectors))
        return vectors

    def compute_mask(self, inputs, previous=None):
        return ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.output_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "out_of_range": self.out_of_range,
            "mask_zero": self.mask_zero,
            "zero_masked": self.zero_masked,
        }

    def _add_table(self, name, rows, dim, initializer, regularizer=None):
        """Adds a table whose rows alone are cast under mixed precision."""
        return self.add_weight(
            name=name,
            shape=(rows, dim),
            initializer=initializer,
            regularizer=regularizer,
            constraint=self.embeddings_constraint,
            autocast=False,
        )
