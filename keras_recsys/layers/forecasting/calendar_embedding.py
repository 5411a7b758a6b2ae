"""`CalendarEmbedding`, a vector for the time of each step."""

import keras
import numpy as np
from keras import ops

from keras_recsys._calendar import (
    EMBEDDINGS,
    INTEGER,
    SCALED,
    TABLE_SIZES,
    Frequency,
)
from keras_recsys._checks import check_choice, check_int
from keras_recsys._initializers import bias_for, clone
from keras_recsys._lookup import read_rows, safe_ids, zero_or_nan
from keras_recsys.layers.forecasting._steps import sinusoids


@keras.saving.register_keras_serializable(package="keras_recsys")
class CalendarEmbedding(keras.layers.Layer):
    """Embeds the calendar features of each step, known for the future as well.

    With `"timeF"`, and `c` the scaled features, and with `"fixed"` and `"learned"`,
    and `m_f` the integer of field `f`,

        output = c kernel + bias
        output = sum over f of table_f[m_f]

    Args:
        output_dim: Positive int, width of a vector.
        frequency: Step of the series, such as `"h"` or `"15min"`; its unit says which
            fields there are. Defaults to `"h"`.
        embedding: `"timeF"`, one linear map of the scaled features; `"fixed"`, a table
            of sinusoids for each field, not trained; or `"learned"`, a trained table
            for each field. Defaults to `"timeF"`.
        kernel_initializer: Initializer of the kernel of `"timeF"`, of shape
            `(num_features, output_dim)`. Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of its bias. Defaults to `"zeros"`.
        embeddings_initializer: Initializer of the tables of `"learned"`, of shape
            `(number of values, output_dim)`. Defaults to `None`, normal with a standard
            deviation of 1.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor, `(batch_size, seq_len, num_features)`, as
            `keras_recsys.data.calendar_features` makes it for the same `frequency` and
            `embedding`: float for `"timeF"`, integer for the others. A mask is passed
            on; masked steps get vectors like all others.

    Returns:
        Tensor of shape `(batch_size, seq_len, output_dim)`, in the compute dtype. A
        step with an integer outside the table of its field is NaN.

    Raises:
        TypeError: If `output_dim` is not an integer.
        ValueError: If an argument is out of its range, `frequency` is yearly, which
            leaves no field, or `inputs` is not of rank 3 with the features of
            `frequency`, or is integer for `"timeF"` or float for the others.

    Example:
    >>> layer = CalendarEmbedding(8, "15min", embedding="learned")
    >>> layer.fields
    ('month', 'day', 'weekday', 'hour', 'minute')
    >>> tuple(layer(np.ones((2, 3, 5), "int32")).shape)
    (2, 3, 8)

    Reference:
        Zhou et al., "Informer: Beyond Efficient Transformer for Long Sequence
        Time-Series Forecasting", AAAI 2021, the global time stamp of its input
        representation; the three kinds are those of the code of its authors. Differs
        from that code: each unit has tables for its own fields, where the code reads
        month, day, weekday and hour always.
    """

    def __init__(
        self,
        output_dim,
        frequency="h",
        *,
        embedding="timeF",
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        embeddings_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.output_dim = check_int("output_dim", output_dim)
        parsed = Frequency.parse(frequency)
        self.frequency = str(parsed)
        self.embedding = check_choice("embedding", embedding, EMBEDDINGS)
        self.fields = (SCALED if embedding == "timeF" else INTEGER)[parsed.unit]
        if not self.fields:
            raise ValueError(
                "`frequency` must be of a unit below a year, which has no calendar "
                f"fields. Received: frequency={frequency!r}."
            )
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        if embeddings_initializer is None:
            embeddings_initializer = keras.initializers.RandomNormal(stddev=1.0)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.autocast = embedding == "timeF"
        self.supports_masking = True

    def build(self, input_shape):
        if len(input_shape) != 3 or input_shape[-1] != len(self.fields):
            raise ValueError(
                "`CalendarEmbedding` takes inputs of shape (batch_size, seq_len, "
                f"{len(self.fields)}), the features {', '.join(self.fields)} of "
                f"frequency {self.frequency!r}. "
                f"Received: input_shape={tuple(input_shape)}."
            )
        if self.embedding == "timeF":
            self.dense = keras.layers.Dense(
                self.output_dim,
                kernel_initializer=clone(self.kernel_initializer, 0),
                bias_initializer=bias_for(self.bias_initializer, len(self.fields)),
                dtype=self.dtype_policy,
                name="dense",
            )
            self.dense.build(input_shape)
            return
        self.sizes = tuple(TABLE_SIZES[field] for field in self.fields)
        if self.embedding == "fixed":
            self.tables = [sinusoids(size, self.output_dim) for size in self.sizes]
            return
        self.tables = [
            self.add_weight(
                name=f"{field}_embeddings",
                shape=(size, self.output_dim),
                initializer=clone(self.embeddings_initializer, i),
                autocast=False,
            )
            for i, (field, size) in enumerate(zip(self.fields, self.sizes, strict=True))
        ]

    def call(self, inputs):
        self._check_dtype(inputs)
        if self.embedding == "timeF":
            return self.dense(inputs)
        rows, in_range = safe_ids(inputs, self.sizes, "nan")
        known = ops.all(in_range, axis=-1, keepdims=True)
        total = zero_or_nan(known, self.compute_dtype)
        for i, table in enumerate(self.tables):
            total = total + self._read(table, rows[..., i])
        return total

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.output_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "frequency": self.frequency,
            "embedding": self.embedding,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
        }

    def _read(self, table, rows):
        if isinstance(table, np.ndarray):
            table = ops.convert_to_tensor(table, dtype=self.compute_dtype)
            return ops.take(table, rows, axis=0)
        return read_rows(table, rows, self.compute_dtype)

    def _check_dtype(self, inputs):
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if ("float" in dtype) != (self.embedding == "timeF"):
            kind = "floats" if self.embedding == "timeF" else "integers"
            raise ValueError(
                f"`inputs` must be {kind} where `embedding` is {self.embedding!r}. "
                f"Received: inputs of dtype {dtype}."
            )
