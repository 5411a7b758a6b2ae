"""`DualQueryAttention`, a history weighted by a target and by a memory."""

import keras
from keras import ops

from keras_recsys._checks import check_choice, check_int
from keras_recsys._initializers import clone
from keras_recsys.layers.behavior._attention import (
    as_kept,
    attend,
    attention_weights,
    check_history,
    check_weighting,
    first_layer,
    output_spec,
    weighted_sum,
    without_padding,
)

SCORE_MODES = ("feed_forward", "dot")


@keras.saving.register_keras_serializable(package="keras_recsys")
class DualQueryAttention(keras.layers.Layer):
    """Sums a history, each item weighted by its likeness to a target and a memory.

    With `v` the target, `m` the memory and `k_j` the items of the history,

        alpha_j = [v - k_j ; v * k_j ; m - k_j ; m * k_j]
        score_j = sigmoid(alpha_j kernel + bias) score_kernel + score_bias
        weight_j = attention_activation(score_j)
        output = sum over j of weight_j k_j

    `alpha` is never built: with the rows of `kernel` in four blocks `A`, `B`, `C`, `D`,

        alpha_j kernel = k_j (diag(v) B + diag(m) D - A - C) + v A + m C

    which is one product of the history with a small matrix a sample. Time and memory
    grow linearly with the history, and no path between two items is longer than one.

    Args:
        hidden_dim: Positive int, width of the hidden layer. Defaults to `32`.
        attention_activation: `"sigmoid"`, `"softmax"` over the history, or `"linear"`.
            Defaults to `"sigmoid"`.
        normalize: What weights are divided by: `None`, nothing; `"sum"`, their sum;
            `"sqrt_len"`, the root of the number of items. Without it the output grows
            with the history. Defaults to `None`.
        score_mode: `"feed_forward"`, as above; or `"dot"`, `score_j = k_j . (v + m) /
            sqrt(dim)`, which has no weights. Defaults to `"feed_forward"`.
        use_target: Whether the target has a part in the scores; otherwise `alpha_j =
            [m - k_j ; m * k_j]`, or `score_j = k_j . m / sqrt(dim)`. Defaults to
            `True`.
        use_subtraction: Whether there are differences; otherwise each becomes a second
            product, `alpha_j = [v * k_j ; v * k_j ; m * k_j ; m * k_j]`. Defaults to
            `True`.
        kernel_initializer: Initializer of both kernels. Defaults to
            `"glorot_uniform"`.
        bias_initializer: Initializer of both biases. Defaults to `"zeros"`.
        kernel_regularizer: Regularizer of both kernels. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        query: Float tensor, `(batch_size, dim)`, the target.
        memory: Float tensor, `(batch_size, dim)`.
        value: Float tensor, `(batch_size, seq_len, dim)`, the history. `seq_len` need
            not be static.
        value_mask: Optional boolean tensor, `(batch_size, seq_len)`; `True` keeps an
            item, in any pattern. Read from the Keras mask of `value` if not given;
            without one every item counts.
        return_attention_scores: Whether to return the weights too. Defaults to
            `False`.

    Returns:
        Tensor of shape `(batch_size, dim)`, in the compute dtype; scores, weights and
        the sum are of float32 at least. With `return_attention_scores=True` a tuple of
        it and the weights, `(batch_size, seq_len)`, of float32 at least: exactly 0 at
        masked items, and of sum 1 with `"softmax"` or `"sum"`. A history without items
        gives 0. Values at masked items have no effect, NaN included. The output has no
        mask.

    Raises:
        TypeError: If `hidden_dim` is not an integer.
        ValueError: If an argument is out of its range, or the shapes do not fit.

    Example:
    >>> layer = DualQueryAttention(hidden_dim=8)
    >>> target, history = np.ones((2, 4), "float32"), np.ones((2, 50, 4), "float32")
    >>> tuple(layer(target, target, history).shape)
    (2, 4)

    Reference:
        Lin et al., "Sparse Attentive Memory Network for Click-through Rate Prediction
        with Long Sequences", CIKM 2022, section "point-wise dual-query attention". The
        order of the operands is that of the authors' code. The paper gives no width of
        the hidden layer; their code has 8.
    """

    def __init__(
        self,
        hidden_dim=32,
        *,
        attention_activation="sigmoid",
        normalize=None,
        score_mode="feed_forward",
        use_target=True,
        use_subtraction=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.hidden_dim = check_int("hidden_dim", hidden_dim)
        check_weighting(attention_activation, normalize)
        self.attention_activation = attention_activation
        self.normalize = normalize
        self.score_mode = check_choice("score_mode", score_mode, SCORE_MODES)
        self.use_target = bool(use_target)
        self.use_subtraction = bool(use_subtraction)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, query_shape, memory_shape, value_shape):
        dim = check_history(self, value_shape, query_shape, memory_shape)
        if self.score_mode == "dot":
            return
        rows = (4 if self.use_target else 2) * dim
        self.kernel = self._add_kernel("kernel", (rows, self.hidden_dim), 0)
        self.bias = self.add_weight(
            name="bias", shape=(self.hidden_dim,), initializer=self.bias_initializer
        )
        self.score_kernel = self._add_kernel("score_kernel", (self.hidden_dim, 1), 1)
        self.score_bias = self.add_weight(
            name="score_bias", shape=(1,), initializer=self.bias_initializer
        )

    def call(
        self, query, memory, value, value_mask=None, return_attention_scores=False
    ):
        pooled, weights = self.attend(query, memory, value, value_mask)
        pooled = ops.cast(pooled, self.compute_dtype)
        return (pooled, weights) if return_attention_scores else pooled

    def compute_mask(self, query, *args, **kwargs):
        return None

    def compute_output_shape(self, query_shape, memory_shape, value_shape):
        return (value_shape[0], value_shape[2])

    def compute_output_spec(
        self, query, memory, value, value_mask=None, return_attention_scores=False
    ):
        shape = self.compute_output_shape(query.shape, memory.shape, value.shape)
        return output_spec(self, shape, value.shape[:2], return_attention_scores)

    def get_config(self):
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "attention_activation": self.attention_activation,
            "normalize": self.normalize,
            "score_mode": self.score_mode,
            "use_target": self.use_target,
            "use_subtraction": self.use_subtraction,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def attend(self, query, memory, value, mask):
        """The sum and the weights that `call` computes, both of float32 at least."""
        weighting = (self.attention_activation, self.normalize)
        if self.score_mode == "dot":
            kept = as_kept(mask, value)
            value = ops.cast(without_padding(value, mask), kept.dtype)
            vector = ops.cast(memory, kept.dtype)
            if self.use_target:
                vector = vector + ops.cast(query, kept.dtype)
            vector = vector / value.shape[-1] ** 0.5
            scores = ops.squeeze(ops.matmul(value, ops.expand_dims(vector, -1)), -1)
            weights, _, _ = attention_weights(scores, kept, *weighting)
            return weighted_sum(value, weights), weights
        matrix, bias = self.first_layer(query, memory)
        return attend(
            value, mask, matrix, bias, self.score_kernel, self.score_bias, *weighting
        )

    def first_layer(self, query, memory):
        """The matrix `(batch_size, dim, hidden_dim)` and the bias of each sample."""
        queries = [query, memory] if self.use_target else [memory]
        interactions = ("difference", "product")
        matrix, bias = 0.0, self.bias
        kernels = ops.split(self.kernel, len(queries))
        for x, kernel in zip(queries, kernels, strict=True):
            if not self.use_subtraction:  # both blocks are of the same product
                kernel, interactions = sum(ops.split(kernel, 2)), ("product",)
            one, bias = first_layer(x, kernel, bias, interactions)
            matrix = matrix + one
        return matrix, bias

    def _add_kernel(self, name, shape, index):
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=clone(self.kernel_initializer, index),
            regularizer=self.kernel_regularizer,
        )
