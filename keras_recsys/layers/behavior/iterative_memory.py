"""`IterativeMemory`, several passes of attention over a history."""

import keras
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys._initializers import GateBias, clone
from keras_recsys.layers.behavior._attention import (
    check_history,
    linked,
    output_spec,
)
from keras_recsys.layers.behavior.dual_query_attention import DualQueryAttention
from keras_recsys.layers.embedding._pooling import pool


@keras.saving.register_keras_serializable(package="keras_recsys")
class IterativeMemory(keras.layers.Layer):
    """Reads a history several times, with a memory that each pass updates.

    With `v` the target, `K` the history and one GRU for all passes,

        m_0 = v
        u_n = DualQueryAttention(v, m_(n-1), K)
        m_n = GRU(input=u_n, state=m_(n-1))        n = 1 .. num_passes

    Args:
        num_passes: Positive int. Defaults to `3`.
        hidden_dim: Positive int, width of the hidden layer of the attention. Defaults
            to `32`.
        attention_activation: See `DualQueryAttention`. Defaults to `"sigmoid"`.
        normalize: See `DualQueryAttention`. With `None` the input of the GRU grows
            with the history, and saturates it for long ones. Defaults to `None`.
        score_mode: See `DualQueryAttention`. Defaults to `"feed_forward"`.
        use_target: Whether the target has a part in the passes; otherwise the memory
            starts as the mean of the history and is the only query. Defaults to `True`.
        use_subtraction: See `DualQueryAttention`. Defaults to `True`.
        share_pass_weights: Whether all passes have one attention. Defaults to `True`.
        return_memories: Whether the output is the memory after every pass. Defaults to
            `False`, the last one.
        reset_after: Form of the GRU, as in `keras.layers.GRU`, but `False` by default.
        gate_bias_initializer: Initializer of the biases of both gates of the GRU.
            Defaults to `"ones"`.
        kernel_initializer: Initializer of the kernels of the attention and of the
            input of the GRU. Defaults to `"glorot_uniform"`.
        kernel_regularizer: Regularizer of the kernels of the attention. Defaults to
            `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        query: Float tensor, `(batch_size, dim)`, the target.
        value: Float tensor, `(batch_size, seq_len, dim)`, the history. `seq_len` need
            not be static.
        value_mask: Optional boolean tensor, `(batch_size, seq_len)`; `True` keeps an
            item, in any pattern. Read from the Keras mask of `value` if not given;
            without one every item counts.
        return_attention_scores: Whether to return the weights too. Defaults to
            `False`.

    Returns:
        Tensor of shape `(batch_size, dim)`, or `(batch_size, num_passes, dim)` with
        `return_memories`, in the compute dtype. With `return_attention_scores=True` a
        tuple of it and the weights of all passes, `(batch_size, num_passes, seq_len)`,
        of float32 at least, 0 at masked items. Of a history without items the weights
        are 0 and the memory is finite: the GRU steps on from the target with inputs of
        0. Values at masked items have no effect, NaN included. The order of the items
        has none either. The output has no mask.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range, or the shapes do not fit.

    Example:
    >>> target, history = np.ones((2, 4), "float32"), np.ones((2, 50, 4), "float32")
    >>> tuple(IterativeMemory(num_passes=2)(target, history).shape)
    (2, 4)

    Reference:
        Lin et al., "Sparse Attentive Memory Network for Click-through Rate Prediction
        with Long Sequences", CIKM 2022. The authors' code has an attention a pass
        (`share_pass_weights=False`) and, but for one mode that nothing calls, never
        feeds the memory back to the attention; this layer does, as the paper says. The
        biases of the gates start at 1, as in TensorFlow 1.
    """

    def __init__(
        self,
        num_passes=3,
        hidden_dim=32,
        *,
        attention_activation="sigmoid",
        normalize=None,
        score_mode="feed_forward",
        use_target=True,
        use_subtraction=True,
        share_pass_weights=True,
        return_memories=False,
        reset_after=False,
        gate_bias_initializer="ones",
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_passes = check_int("num_passes", num_passes)
        self.share_pass_weights = bool(share_pass_weights)
        self.return_memories = bool(return_memories)
        self.reset_after = bool(reset_after)
        self.use_target = bool(use_target)
        self.gate_bias_initializer = keras.initializers.get(gate_bias_initializer)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        count = 1 if self.share_pass_weights else self.num_passes
        self.attentions = [
            DualQueryAttention(
                hidden_dim,
                attention_activation=attention_activation,
                normalize=normalize,
                score_mode=score_mode,
                use_target=use_target,
                use_subtraction=use_subtraction,
                kernel_initializer=clone(self.kernel_initializer, 2 * i),
                kernel_regularizer=kernel_regularizer,
                dtype=self.dtype_policy,
                name="attention" if count == 1 else f"attention_{i}",
            )
            for i in range(count)
        ]
        self.supports_masking = True

    def build(self, query_shape, value_shape):
        dim = check_history(self, value_shape, query_shape)
        for attention in self.attentions:
            attention.build(query_shape, query_shape, value_shape)
        self.gru = keras.layers.GRUCell(
            dim,
            reset_after=self.reset_after,
            kernel_initializer=clone(self.kernel_initializer, 2 * len(self.attentions)),
            bias_initializer=GateBias(self.gate_bias_initializer),
            dtype=self.dtype_policy,
            name="gru",
        )
        self.gru.build((query_shape[0], dim))

    def call(self, query, value, value_mask=None, return_attention_scores=False):
        memory = query if self.use_target else pool(value, value_mask, "mean")
        memories, scores = [], []
        for i in range(self.num_passes):
            attention = self.attentions[0 if self.share_pass_weights else i]
            pooled, weights = attention.attend(query, memory, value, value_mask)
            pooled = ops.cast(pooled, self.compute_dtype)
            memory, _ = self.gru(pooled, [memory])
            memories.append(memory)
            scores.append(weights)
            value = linked(value)
        output = ops.stack(memories, axis=1) if self.return_memories else memory
        if return_attention_scores:
            return output, ops.stack(scores, axis=1)
        return output

    def compute_mask(self, query, *args, **kwargs):
        return None

    def compute_output_shape(self, query_shape, value_shape):
        batch_size, _, dim = value_shape
        if self.return_memories:
            return (batch_size, self.num_passes, dim)
        return (batch_size, dim)

    def compute_output_spec(
        self, query, value, value_mask=None, return_attention_scores=False
    ):
        shape = self.compute_output_shape(query.shape, value.shape)
        weights_shape = (value.shape[0], self.num_passes, value.shape[1])
        return output_spec(self, shape, weights_shape, return_attention_scores)

    def get_config(self):
        attention = self.attentions[0].get_config()
        shared = (
            "hidden_dim",
            "attention_activation",
            "normalize",
            "score_mode",
            "use_target",
            "use_subtraction",
            "kernel_regularizer",
        )
        return {
            **super().get_config(),
            **{key: attention[key] for key in shared},
            "num_passes": self.num_passes,
            "share_pass_weights": self.share_pass_weights,
            "return_memories": self.return_memories,
            "reset_after": self.reset_after,
            "gate_bias_initializer": keras.initializers.serialize(
                self.gate_bias_initializer
            ),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
