"""`TimeBucketEmbedding`, a vector for how long ago an event was."""

import math
import numbers

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_int, check_positive
from keras_recsys._lookup import has_int64, read_rows, zero_or_nan


@keras.saving.register_keras_serializable(package="keras_recsys")
class TimeBucketEmbedding(keras.layers.Layer):
    """Embeds elapsed times in buckets that double in width.

    In units of `time_unit`, the buckets are

        [0, 1) -> 0, [1, 2) -> 1, [2, 4) -> 2, ..., [2^k, 2^(k+1)) -> k + 1

    They are found by comparison with exact powers of two: a logarithm in float32 puts
    `2^k - 1` into the wrong bucket from about `k = 21` on. A negative time, of clocks
    that disagree, is in bucket 0, and all that is past the last bucket in the last.

    Args:
        output_dim: Positive int, width of a vector.
        num_buckets: Int, at least 2. 33 hold every time of 32 bits. Defaults to `33`.
        time_unit: Positive number, width of the first bucket in the units of the
            input. Defaults to `1`, a second where times are seconds.
        embeddings_initializer: Initializer of the table, of shape `(num_buckets,
            output_dim)`. Defaults to `"uniform"`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor of any shape, the time between each event and the request, of
            any integer or float dtype.

    Returns:
        Tensor of shape `inputs.shape + (output_dim,)`, in the compute dtype. A NaN
        gives NaN.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range.

    Example:
    >>> layer = TimeBucketEmbedding(4, time_unit=60)
    >>> layer.buckets(np.array([-5, 0, 59, 60, 120, 3600])).numpy().tolist()
    [0, 0, 0, 1, 2, 6]

    Reference:
        Lin et al., "Sparse Attentive Memory Network for Click-through Rate Prediction
        with Long Sequences", CIKM 2022, section on the sequence encoding, which gives
        no unit.
    """

    def __init__(
        self,
        output_dim,
        num_buckets=33,
        *,
        time_unit=1,
        embeddings_initializer="uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.output_dim = check_int("output_dim", output_dim)
        self.num_buckets = check_int("num_buckets", num_buckets, minimum=2)
        check_positive("time_unit", time_unit)
        whole = isinstance(time_unit, numbers.Integral)
        self.time_unit = int(time_unit) if whole else float(time_unit)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        # Exact whatever the unit: Python's integers have no bounds.
        powers = [2**k for k in range(self.num_buckets - 1)]
        self.bounds = [power * self.time_unit for power in powers]
        self.autocast = False

    def build(self, input_shape=None):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_buckets, self.output_dim),
            initializer=self.embeddings_initializer,
            autocast=False,
        )

    def __call__(self, inputs, *args, **kwargs):
        """Embeds `inputs`; see the class."""
        return super().__call__(self._narrowed(inputs), *args, **kwargs)

    def call(self, inputs):
        vectors = read_rows(self.embeddings, self.buckets(inputs), self.compute_dtype)
        if "float" in keras.backend.standardize_dtype(inputs.dtype):
            known = ops.expand_dims(ops.logical_not(ops.isnan(inputs)), -1)
            vectors = vectors + zero_or_nan(known, self.compute_dtype)
        return vectors

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.output_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "num_buckets": self.num_buckets,
            "time_unit": self.time_unit,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
        }

    def buckets(self, inputs):
        """The bucket of each time, int32, of the shape of `inputs`."""
        inputs = self._narrowed(inputs)
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if "float" in dtype:
            wide = "float64" if dtype == "float64" else "float32"
            largest = float(np.finfo(wide).max)
            bounds = [x if x <= largest else math.inf for x in self.bounds]
        else:
            wide = "int64"
            if not has_int64():
                wide = "uint32" if dtype == "uint32" else "int32"
            bounds = self._whole_bounds(np.iinfo(wide).max)
        x = ops.cast(inputs, wide)
        if dtype == "uint64":  # the cast of the largest is negative
            x = ops.where(x < 0, ops.full_like(x, np.iinfo(wide).max), x)
        bounds = ops.convert_to_tensor(np.array(bounds, wide), dtype=wide)
        found = ops.searchsorted(bounds, ops.reshape(x, (-1,)), side="right")
        return ops.reshape(ops.cast(found, "int32"), ops.shape(inputs))

    def _whole_bounds(self, largest):
        """A whole number is past a bound if it is past the next whole number."""
        bounds = [-int(-bound // 1) for bound in self.bounds]
        return [bound for bound in bounds if bound <= largest]

    def _narrowed(self, inputs):
        """Times of a NumPy array, in a dtype that the backend has.

        Without 64 bits each becomes the bound of its bucket, as a float.
        """
        if not isinstance(inputs, np.ndarray):
            return inputs
        if inputs.dtype == "uint64":
            inputs = np.minimum(inputs, np.iinfo("int64").max).astype("int64")
        elif inputs.dtype == "uint32":
            inputs = inputs.astype("int64")
        if inputs.dtype not in ("int64", "float64") or has_int64():
            return inputs
        bounds = np.array(self.bounds, "float64")
        starts = np.append(-1.0, bounds)
        if inputs.dtype == "int64":
            bounds = np.array(self._whole_bounds(np.iinfo("int64").max), "int64")
        starts = starts[np.searchsorted(bounds, inputs, side="right")]
        return np.where(np.isnan(inputs), np.nan, starts).astype("float32")
