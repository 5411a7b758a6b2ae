"""`InformerEncoderBlock`, one layer of the encoder."""

import keras

from keras_recsys.layers.forecasting._informer_block import InformerBlock
from keras_recsys.layers.forecasting._multi_head import zero_masked


@keras.saving.register_keras_serializable(package="keras_recsys")
class InformerEncoderBlock(InformerBlock):
    """Lets the steps of a series attend to all, then transforms each by itself.

        x = attention_norm(inputs + attention(inputs))
        output = feed_forward_norm(x + outer(activation(inner(x))))

    Args:
        num_heads: Positive int. Defaults to `8`.
        key_dim: Positive int, width of a head. Defaults to `None`, the width of the
            inputs divided by `num_heads`.
        intermediate_dim: Positive int, width of `inner`. Defaults to `None`, four times
            that of the inputs.
        attention: `"prob_sparse"` for `ProbSparseAttention` or `"full"` for
            `FullAttention`. Defaults to `"prob_sparse"`.
        factor: Positive int, see `ProbSparseAttention`. Defaults to `5`.
        attention_options: Dict of further arguments of `ProbSparseAttention`, out of
            `measure`, `inference_measure`, `divisor`, `lazy`, `causal_sampling`,
            `shared_keys`, `streamed` and `value_dim`. Defaults to `None`.
        activation: Activation of `inner`. Defaults to `"gelu"`, the exact one.
        dropout: Float in `[0, 1)`, applied to the results of both parts and to that of
            `inner`. Defaults to `0.0`.
        attention_dropout: Float in `[0, 1)`, applied to the weights of the attention.
            Defaults to `None`, which is `dropout`.
        epsilon: Positive float, added to the variances. Defaults to `1e-5`.
        seed: Optional int of samples and dropout. Defaults to `None`.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of the biases. Defaults to `"zeros"`.
        kernel_regularizer: Regularizer of the kernels. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, seq_len, dim)`, with a static `seq_len`
            unless the attention is full.
        mask: Optional boolean tensor, `(batch_size, seq_len)`; `True` keeps a step.
            Read from the Keras mask of `inputs` if neither it nor `key_index` is given.
        key_index: Optional sample of `ProbSparseAttention`. Defaults to `None`.
        return_attention_scores: Whether to return the weights too. Defaults to `False`.
        training: Whether dropout acts and a new sample is drawn.

    Returns:
        Tensor of the shape of `inputs`, in the compute dtype; masked steps are exactly
        0, and the mask is passed on. With `return_attention_scores` a tuple of it and
        the weights of the attention.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range, or `inputs` is not of rank 3
            with a static last axis.

    Example:
    >>> layer = InformerEncoderBlock(num_heads=2)
    >>> tuple(layer(np.ones((2, 48, 8), "float32")).shape)
    (2, 48, 8)

    Reference:
        Zhou et al., "Informer", AAAI 2021, Section 3. Differs from the authors' code:
        dropout also acts on the weights of the sparse attention.
    """

    def build(self, input_shape):
        self._build_attention("self_attention", 0, self.attention, input_shape)
        self._build_feed_forward(1, input_shape)

    def call(
        self,
        inputs,
        mask=None,
        key_index=None,
        return_attention_scores=False,
        training=None,
    ):
        inputs = zero_masked(inputs, mask)
        given = {} if key_index is None else {"key_index": key_index}
        result = self.self_attention(
            inputs,
            inputs,
            query_mask=mask,
            value_mask=mask,
            return_attention_scores=return_attention_scores,
            training=training,
            **given,
        )
        attended = result[0] if return_attention_scores else result
        x = self._add("self_attention", inputs, attended, training)
        x = zero_masked(self._feed_forward(x, training), mask)
        return (x, result[1]) if return_attention_scores else x

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def compute_output_spec(
        self,
        inputs,
        mask=None,
        key_index=None,
        return_attention_scores=False,
        training=None,
    ):
        return self.self_attention.compute_output_spec(
            inputs, inputs, return_attention_scores=return_attention_scores
        )
