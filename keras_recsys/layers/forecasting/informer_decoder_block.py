"""`InformerDecoderBlock`, one layer of the decoder."""

import keras

from keras_recsys._checks import check_int
from keras_recsys.layers.forecasting._informer_block import InformerBlock
from keras_recsys.layers.forecasting._multi_head import zero_masked


@keras.saving.register_keras_serializable(package="keras_recsys")
class InformerDecoderBlock(InformerBlock):
    """Lets the steps of a decoder attend to earlier ones, then to those of the encoder.

        x = self_attention_norm(inputs + self_attention(inputs))
        x = cross_attention_norm(x + cross_attention(x, memory))
        output = feed_forward_norm(x + outer(activation(inner(x))))

    The self-attention is causal, the cross-attention is full and sees all of `memory`.

    Args:
        mix: Whether the heads of the self-attention are joined head after head, see
            `FullAttention`. The authors' code does, since forecasts were better with
            it; they advise against it where training is stuck. Defaults to `True`.
        output_len: Positive int: only the last `output_len` steps are worked out after
            the self-attention, and returned. Defaults to `None`, all.
        num_heads: As in `InformerEncoderBlock`. Defaults to `8`.
        key_dim: As in `InformerEncoderBlock`.
        intermediate_dim: As in `InformerEncoderBlock`.
        attention: Kind of the self-attention, `"prob_sparse"` or `"full"`. Defaults to
            `"prob_sparse"`.
        factor: As in `InformerEncoderBlock`. Defaults to `5`.
        attention_options: As in `InformerEncoderBlock`, for the self-attention.
        activation: As in `InformerEncoderBlock`. Defaults to `"gelu"`.
        dropout: As in `InformerEncoderBlock`. Defaults to `0.0`.
        attention_dropout: As in `InformerEncoderBlock`.
        epsilon: As in `InformerEncoderBlock`. Defaults to `1e-5`.
        seed: As in `InformerEncoderBlock`.
        kernel_initializer: As in `InformerEncoderBlock`.
        bias_initializer: As in `InformerEncoderBlock`.
        kernel_regularizer: As in `InformerEncoderBlock`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, seq_len, dim)`, with a static `seq_len`
            unless the attention is full.
        memory: Float tensor, `(batch_size, memory_len, memory_dim)`, the output of the
            encoder.
        inputs_mask: Optional boolean tensor, `(batch_size, seq_len)`; `True` keeps a
            step. Read from the Keras mask of `inputs` if not given. Refused with `mix`.
        memory_mask: Optional boolean tensor, `(batch_size, memory_len)`, likewise.
        key_index: Optional sample of the self-attention. Defaults to `None`.
        training: Whether dropout acts and a new sample is drawn.

    Returns:
        Tensor, `(batch_size, output_len, dim)`, in the compute dtype; masked steps are
        exactly 0, and the mask of these steps of `inputs` is passed on.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range, `inputs` is not of rank 3 with a
            static last axis or of fewer steps than `output_len`, or a mask of `inputs`
            comes with `mix`.

    Example:
    >>> layer = InformerDecoderBlock(num_heads=2)
    >>> x, memory = np.ones((2, 36, 8), "float32"), np.ones((2, 24, 8), "float32")
    >>> tuple(layer(x, memory).shape)
    (2, 36, 8)

    Reference:
        Zhou et al., "Informer", AAAI 2021, Section 3. The cross-attention is full, as
        in the authors' code. Differs from the code: dropout also acts on the weights of
        the sparse attention.
    """

    def __init__(self, num_heads=8, *, mix=True, output_len=None, **kwargs):
        super().__init__(num_heads, **kwargs)
        self.mix = bool(mix)
        if output_len is not None:
            output_len = check_int("output_len", output_len)
        self.output_len = output_len

    def build(self, inputs_shape, memory_shape):
        self._check_length(inputs_shape[1] if len(inputs_shape) == 3 else None)
        self._build_attention(
            "self_attention",
            0,
            self.attention,
            inputs_shape,
            causal=True,
            mix=self.mix,
        )
        self._build_attention("cross_attention", 1, "full", inputs_shape, memory_shape)
        self._build_feed_forward(2, inputs_shape)

    def call(
        self,
        inputs,
        memory,
        inputs_mask=None,
        memory_mask=None,
        key_index=None,
        training=None,
    ):
        self._check_length(inputs.shape[1])
        inputs = zero_masked(inputs, inputs_mask)
        given = {} if key_index is None else {"key_index": key_index}
        attended = self.self_attention(
            inputs,
            inputs,
            query_mask=inputs_mask,
            value_mask=inputs_mask,
            training=training,
            **given,
        )
        if self.output_len is not None:
            inputs, attended = self._last(inputs), self._last(attended)
            inputs_mask = self._last(inputs_mask)
        x = self._add("self_attention", inputs, attended, training)
        attended = self.cross_attention(
            x, memory, query_mask=inputs_mask, value_mask=memory_mask, training=training
        )
        x = self._add("cross_attention", x, attended, training)
        return zero_masked(self._feed_forward(x, training), inputs_mask)

    def compute_mask(self, inputs, previous_mask=None):
        return self._last(previous_mask)

    def compute_output_shape(self, inputs_shape, memory_shape):
        batch_size, seq_len, dim = inputs_shape
        return (batch_size, self.output_len or seq_len, dim)

    def get_config(self):
        return {
            **super().get_config(),
            "mix": self.mix,
            "output_len": self.output_len,
        }

    def _check_length(self, seq_len):
        if seq_len is not None and seq_len < (self.output_len or 0):
            raise ValueError(
                f"`output_len` must be at most the number of steps, {seq_len}. "
                f"Received: output_len={self.output_len!r}."
            )

    def _last(self, x):
        """The steps that are returned."""
        return x if x is None or self.output_len is None else x[:, -self.output_len :]
