"""`SelfAttentionBlock`, one Transformer block over a sequence."""

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_int, check_positive, check_rate
from keras_recsys._dtypes import wide_dtype
from keras_recsys._initializers import clone
from keras_recsys.layers.behavior._attention import softmax


@keras.saving.register_keras_serializable(package="keras_recsys")
class SelfAttentionBlock(keras.layers.Layer):
    """Lets each step of a sequence attend to all, then transforms each by itself.

    With `x` the sequence, each of `num_heads` heads of width `dim / num_heads` gives

        weight_ij = softmax_j(query_i . key_j / sqrt(dim / num_heads))
        head_i = sum_j weight_ij value_j

    where `query`, `key` and `value` are dense layers on the input of the attention, and
    `feed_forward` is two dense layers. With `pre_norm`

        y = x + attention(attention_norm(x))
        output = y + feed_forward(feed_forward_norm(y))

    and without

        y = attention_norm(x + attention(x))
        output = feed_forward_norm(y + feed_forward(y))

    Args:
        num_heads: Positive int, a divisor of `dim`. Defaults to `1`.
        intermediate_dim: Positive int, inner width of the feed-forward part. Defaults
            to `None`, which is `dim`.
        activation: Activation of its inner layer. Defaults to `"relu"`.
        projection_activation: Activation of `query`, `key` and `value`. Defaults to
            `None`, linear.
        use_output_projection: Whether a dense layer mixes the joined heads. Defaults to
            `False`.
        pre_norm: Whether the normalizations come first in each part. Defaults to
            `True`.
        causal: Whether a step attends only to itself and the steps before it. Defaults
            to `False`.
        dropout: Float in `[0, 1)`, applied to the results of both parts. Defaults to
            `0.0`.
        attention_dropout: Float in `[0, 1)`, applied to the weights of the attention.
            Defaults to `None`, which is `dropout`.
        epsilon: Positive float, added to the variances. Defaults to `1e-6`.
        seed: Optional int of the dropout. Defaults to `None`.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.
        kernel_regularizer: Regularizer of the kernels. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, seq_len, dim)`.
        mask: Optional boolean tensor, `(batch_size, seq_len)`, of any pattern; `True`
            keeps a step. Read from the Keras mask of `inputs` if not given.
        return_attention_scores: Whether to return the weights too. Defaults to `False`.
        training: Whether dropout acts.

    Returns:
        Tensor of the shape of `inputs`, in the compute dtype; masked steps are exactly
        0, and the mask is passed on. With `return_attention_scores` a tuple of it and
        the weights before dropout, `(batch_size, num_heads, seq_len, seq_len)`, in
        float32 or wider: masked keys and rows of masked queries are exactly 0.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range, `inputs` is not of rank 3 with a
            static `dim`, or `num_heads` does not divide `dim`.

    Example:
    >>> layer = SelfAttentionBlock(num_heads=2, causal=True)
    >>> tuple(layer(np.ones((2, 5, 4), "float32")).shape)
    (2, 5, 4)

    Reference:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017, Section 3; for
        histories Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM
        2018, Eq. 2 to 5. Time and memory grow with the square of `seq_len`. Differs
        from both: joined heads are not mixed unless `use_output_projection`; from the
        second: keys and values are made of the normalized sequence too.
    """

    def __init__(
        self,
        num_heads=1,
        *,
        intermediate_dim=None,
        activation="relu",
        projection_activation=None,
        use_output_projection=False,
        pre_norm=True,
        causal=False,
        dropout=0.0,
        attention_dropout=None,
        epsilon=1e-6,
        seed=None,
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = check_int("num_heads", num_heads)
        if intermediate_dim is not None:
            intermediate_dim = check_int("intermediate_dim", intermediate_dim)
        self.intermediate_dim = intermediate_dim
        self.activation = keras.activations.get(activation)
        self.projection_activation = keras.activations.get(projection_activation)
        self.use_output_projection = bool(use_output_projection)
        self.pre_norm = bool(pre_norm)
        self.causal = bool(causal)
        self.dropout = check_rate("dropout", dropout)
        if attention_dropout is not None:
            attention_dropout = check_rate("attention_dropout", attention_dropout)
        self.attention_dropout = attention_dropout
        self.epsilon = check_positive("epsilon", epsilon)
        self.seed = seed
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, input_shape):
        if len(input_shape) != 3 or input_shape[-1] is None:
            raise ValueError(
                "`SelfAttentionBlock` takes inputs of shape (batch_size, seq_len, dim) "
                f"with a static dim. Received: input_shape={tuple(input_shape)}."
            )
        dim = input_shape[-1]
        if dim % self.num_heads:
            raise ValueError(
                f"`num_heads` must be a divisor of dim, {dim}. "
                f"Received: num_heads={self.num_heads!r}."
            )
        inner = dim if self.intermediate_dim is None else self.intermediate_dim
        self.attention_norm = self._norm("attention_norm", input_shape)
        self.query, self.key, self.value = (
            self._dense(name, i, dim, input_shape, self.projection_activation)
            for i, name in enumerate(("query", "key", "value"))
        )
        if self.use_output_projection:
            self.output_projection = self._dense(
                "output_projection", 3, dim, input_shape
            )
        self.feed_forward_norm = self._norm("feed_forward_norm", input_shape)
        self.inner = self._dense("inner", 4, inner, input_shape, self.activation)
        self.outer = self._dense("outer", 5, dim, (*input_shape[:-1], inner))
        self.weight_dropout = self._dropout(
            "weight_dropout",
            0,
            self.dropout if self.attention_dropout is None else self.attention_dropout,
            wide_dtype(self.compute_dtype),
        )
        self.result_dropout, self.feed_forward_dropout = (
            self._dropout(name, i, self.dropout, self.dtype_policy)
            for i, name in enumerate(("result_dropout", "feed_forward_dropout"), 1)
        )

    def call(self, inputs, mask=None, return_attention_scores=False, training=None):
        x = inputs
        if mask is not None:
            kept = ops.expand_dims(mask, -1)
            x = ops.where(kept, x, ops.zeros_like(x))
        if self.pre_norm:
            attended, weights = self._attend(self.attention_norm(x), mask, training)
            x = x + attended
            x = x + self._feed_forward(self.feed_forward_norm(x), training)
        else:
            attended, weights = self._attend(x, mask, training)
            x = self.attention_norm(x + attended)
            x = self.feed_forward_norm(x + self._feed_forward(x, training))
        if mask is not None:
            x = ops.where(kept, x, ops.zeros_like(x))
        if not return_attention_scores:
            return x
        if mask is not None:
            rows = ops.expand_dims(kept, 1)  # (batch_size, 1, seq_len, 1)
            weights = ops.where(rows, weights, ops.zeros_like(weights))
        return x, weights

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def compute_output_spec(
        self, inputs, mask=None, return_attention_scores=False, training=None
    ):
        output = keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        batch_size, seq_len, _ = inputs.shape
        return output, keras.KerasTensor(
            (batch_size, self.num_heads, seq_len, seq_len),
            dtype=wide_dtype(self.compute_dtype),
        )

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.activations.serialize(self.activation),
            "projection_activation": keras.activations.serialize(
                self.projection_activation
            ),
            "use_output_projection": self.use_output_projection,
            "pre_norm": self.pre_norm,
            "causal": self.causal,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "epsilon": self.epsilon,
            "seed": self.seed,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _norm(self, name, shape):
        norm = keras.layers.LayerNormalization(
            epsilon=self.epsilon, dtype=self.dtype_policy, name=name
        )
        norm.build(shape)
        return norm

    def _dense(self, name, index, units, shape, activation=None):
        dense = keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=clone(self.kernel_initializer, index),
            kernel_regularizer=self.kernel_regularizer,
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build(shape)
        return dense

    def _dropout(self, name, index, rate, dtype):
        seed = None if self.seed is None else self.seed + index
        return keras.layers.Dropout(rate, seed=seed, dtype=dtype, name=name)

    def _attend(self, x, mask, training):
        """Result of the attention and its weights.

        Rows of masked queries hold any finite numbers: they end as zeros anyway.
        """
        query, key, value = (
            self._heads(dense(x)) for dense in (self.query, self.key, self.value)
        )
        # Scaled first, so that the products of half precisions do not overflow.
        query = query * query.shape[-1] ** -0.5
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2))
        wide = wide_dtype(self.compute_dtype)
        scores = ops.cast(scores, wide)
        allowed = None
        if self.causal:
            steps = ops.arange(ops.shape(x)[1])
            allowed = ops.expand_dims(steps, 1) >= steps  # (seq_len, seq_len)
        if mask is not None:
            keys = ops.expand_dims(mask, (1, 2))  # (batch_size, 1, 1, seq_len)
            allowed = keys if allowed is None else ops.logical_and(allowed, keys)
        if allowed is not None:
            lowest = ops.full_like(scores, float(np.finfo("float32").min))
            scores = ops.where(allowed, scores, lowest)
        weights = softmax(scores)
        shares = self.weight_dropout(weights, training=training)
        heads = ops.cast(ops.matmul(shares, ops.cast(value, wide)), self.compute_dtype)
        if self.num_heads == 1:
            joined = ops.squeeze(heads, 1)
        else:
            joined = ops.reshape(ops.swapaxes(heads, 1, 2), ops.shape(x))
        if self.use_output_projection:
            joined = self.output_projection(joined)
        return self.result_dropout(joined, training=training), weights

    def _heads(self, x):
        """`(batch_size, num_heads, seq_len, dim / num_heads)` of the joined heads."""
        if self.num_heads == 1:
            return ops.expand_dims(x, 1)
        batch_size, seq_len, dim = ops.shape(x)
        shape = (batch_size, seq_len, self.num_heads, dim // self.num_heads)
        return ops.swapaxes(ops.reshape(x, shape), 1, 2)

    def _feed_forward(self, x, training):
        return self.feed_forward_dropout(self.outer(self.inner(x)), training=training)
