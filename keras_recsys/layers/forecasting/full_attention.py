"""`FullAttention`, every query with every key."""

import keras

from keras_recsys.layers.forecasting._multi_head import MultiHeadLayer
from keras_recsys.ops.prob_sparse import attend


@keras.saving.register_keras_serializable(package="keras_recsys")
class FullAttention(MultiHeadLayer):
    """Multi-head attention with the weights of `ProbSparseAttention`.

    Each of `num_heads` heads gives

        output_i = sum_j softmax_j(query_i . key_j / sqrt(key_dim)) value_j

    and a dense layer joins them. `keras.layers.MultiHeadAttention` does the same, and
    more; this layer has the `mix` of Informer's decoder and can take the place of
    `ProbSparseAttention`, weights included.

    Args:
        num_heads: Positive int.
        key_dim: Positive int, the width of a head of the queries and keys.
        value_dim: Positive int, the width of a head of the values. Defaults to `None`,
            which is `key_dim`.
        output_dim: Positive int, the width of the output. Defaults to `None`, which is
            that of `query`.
        causal: Whether a query attends only to steps up to its own. Defaults to
            `False`.
        mix: Whether the heads are joined head after head, not step after step, so that
            a row of the output holds `num_heads` steps of one head, as in the decoder
            of the authors' code. It breaks the order of the steps and what `causal`
            promises. Defaults to `False`.
        dropout: Float in `[0, 1)`, applied to the weights of the attention. Defaults to
            `0.0`.
        seed: Optional int of the dropout. Defaults to `None`.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of the biases. Defaults to `"zeros"`.
        kernel_regularizer: Regularizer of the kernels. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        query: Float tensor, `(batch_size, query_len, dim)`.
        value: Float tensor, `(batch_size, key_len, value_width)`.
        key: Float tensor, `(batch_size, key_len, key_width)`. Defaults to `None`, which
            is `value`.
        query_mask: Optional boolean tensor, `(batch_size, query_len)`; `True` keeps a
            step. Read from the Keras mask of `query` if not given.
        value_mask: Optional boolean tensor, `(batch_size, key_len)`, likewise.
        return_attention_scores: Whether to return the weights too. Defaults to `False`.
        training: Whether dropout acts.

    Returns:
        Tensor, `(batch_size, query_len, output_dim)`, in the compute dtype; masked
        queries are exactly 0, and their mask is passed on. With
        `return_attention_scores` a tuple of it and the weights before dropout,
        `(batch_size, num_heads, query_len, key_len)`, in float32 or wider.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range, a shape does not fit, or a mask
            comes with `mix`.

    Example:
    >>> layer = FullAttention(num_heads=2, key_dim=4, causal=True)
    >>> x = np.ones((2, 5, 8), "float32")
    >>> tuple(layer(x, x).shape)
    (2, 5, 8)

    Reference:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017, Section 3.2; as used
        by Zhou et al., "Informer", AAAI 2021. Time and memory grow with the product of
        both lengths.
    """

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        masks = query_mask, value_mask
        return self._run(query, value, key, masks, return_attention_scores, training)

    def compute_output_spec(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        return self._spec(query, value, return_attention_scores)

    def _attend(self, query, key, value, **options):
        return attend(query, key, value, causal=self.causal, **options)
