"""`PositionalEncoding`, which adds to each step a vector for its place."""

import keras
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys._lookup import read_rows, zero_or_nan
from keras_recsys.layers.forecasting._steps import check_series, sinusoids, waves


@keras.saving.register_keras_serializable(package="keras_recsys")
class PositionalEncoding(keras.layers.Layer):
    """Adds to each step a vector for its place, counted from 0 at the first step.

        output_t = inputs_t + position_t
        position_t[2i] = sin(t w_i),  position_t[2i + 1] = cos(t w_i)
        w_i = 10000 ** (-2i / dim)

    An odd `dim` ends with a sine. With `learned` the vectors are rows of a table.

    Args:
        learned: Whether the vectors are trained. Defaults to `False`.
        max_len: Positive int, rows of the table, in steps; needed with `learned`, and
            `None` without, where any length goes. Defaults to `None`.
        embeddings_initializer: Initializer of the table, of shape `(max_len, dim)`.
            Defaults to `"uniform"`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, seq_len, dim)`. Masked steps count as steps
            and get their vectors too; the mask is passed on.

    Returns:
        Tensor of the shape of `inputs`, in the compute dtype. The sinusoids are those
        of float64 where `seq_len` is static; elsewhere they are computed in float32,
        whose error grows to 2e-4 at step 5000.

    Raises:
        TypeError: If `max_len` is not an integer.
        ValueError: If `max_len` is not positive, is missing with `learned`, or is given
            without, or if `inputs` is not of rank 3 with a static last axis, or is
            longer than `max_len`. Where that is not known before the run, the steps
            beyond are NaN.

    Example:
    >>> x = np.array([[[1.0, 2.0, 3.0]]], "float32")
    >>> PositionalEncoding()(x).numpy().tolist()
    [[[1.0, 3.0, 3.0]]]

    Reference:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.5. Differs
        from the Informer paper, which has `2 * seq_len` in place of 10000; the code of
        its authors has 10000 too.
    """

    def __init__(
        self,
        learned=False,
        *,
        max_len=None,
        embeddings_initializer="uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.learned = bool(learned)
        self.max_len = None if max_len is None else check_int("max_len", max_len)
        if self.learned != (self.max_len is not None):
            raise ValueError(
                "`max_len` must be given where `learned` is True, and only there. "
                f"Received: max_len={max_len!r}, learned={learned!r}."
            )
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.supports_masking = True

    def build(self, input_shape):
        dim = check_series(self, input_shape)
        self._check_length(input_shape[1])
        if self.learned:
            self.positions = self.add_weight(
                name="positions",
                shape=(self.max_len, dim),
                initializer=self.embeddings_initializer,
                autocast=False,
            )

    def call(self, inputs):
        _, seq_len, dim = inputs.shape
        if self.learned:
            self._check_length(seq_len)
            if dim != self.positions.shape[1]:
                raise ValueError(
                    "`inputs` of `PositionalEncoding` must be as wide as it was built "
                    f"for, {self.positions.shape[1]}. Received: width {dim}."
                )
            rows = ops.arange(ops.shape(inputs)[1], dtype="int32")
            known = ops.expand_dims(rows < self.max_len, -1)
            rows = ops.minimum(rows, self.max_len - 1)
            vectors = read_rows(self.positions, rows, self.compute_dtype)
            vectors = vectors + zero_or_nan(known, vectors.dtype)
        elif seq_len is not None:
            vectors = ops.convert_to_tensor(
                sinusoids(seq_len, dim), dtype=self.compute_dtype
            )
        else:
            vectors = ops.cast(self._sinusoids(inputs), self.compute_dtype)
        return inputs + vectors

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "learned": self.learned,
            "max_len": self.max_len,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
        }

    def _check_length(self, seq_len):
        if self.learned and seq_len is not None and seq_len > self.max_len:
            raise ValueError(
                "`inputs` of `PositionalEncoding` must have at most max_len="
                f"{self.max_len} steps. Received: {seq_len} steps."
            )

    def _sinusoids(self, inputs):
        """The vectors for a number of steps that is known in the run alone."""
        seq_len, dim = ops.shape(inputs)[1:]
        steps = ops.arange(seq_len, dtype="float32")
        angles = ops.expand_dims(steps, -1) * waves(dim).astype("float32")
        pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
        return ops.reshape(pairs, (seq_len, 2 * -(-dim // 2)))[:, :dim]
