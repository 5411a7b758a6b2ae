"""`RepeatHead`, an output layer that repeats or explores."""

import keras
from keras import ops

from keras_recsys._checks import check_rate
from keras_recsys._initializers import clone
from keras_recsys.layers.sequential._catalogue import Catalogue, put
from keras_recsys.layers.sequential._next_item_head import NextItemHead
from keras_recsys.layers.sequential._steps import LOWEST

DECODERS = ("gate", "repeat", "explore")


@keras.saving.register_keras_serializable(package="keras_recsys")
class RepeatHead(NextItemHead):
    """Scores the next item as one of the history or as a new one.

    With `m_t` the state of step `t`, and `m` that of the last item, three attentions
    on the history have weights

        weight_A_t = softmax_t(tanh(m query_A + m_t memory_A) score_A),
            A one of gate, repeat, explore; that of explore has a bias in the tanh

    and give the probability of repeating and those of the items,

        (repeat, explore) = softmax((sum over t of weight_gate_t m_t) gate)
        P_x = repeat * (sum of weight_repeat_t of its steps t)    for x of the history
        feature = [sum over t of weight_explore_t m_t ; m]
        P_x = explore * softmax_x(feature output)                 for all others
        logit_x = log(P_x)

    Args:
        dropout: Float in `[0, 1)`, applied in training to both terms within the tanh
            and to the features. Defaults to `0.0`.
        seed: Optional int of the dropout. Defaults to `None`.
        chunk_size: Optional int, the number of steps whose logits a loss holds at a
            time. Defaults to `None`, as many as make 8 MiB. The attentions are held
            for all steps, `(batch_size, seq_len, seq_len, state_dim)` each where all
            have a target.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_normal"`.
        bias_initializer: Initializer of the bias. Defaults to `"zeros"`.
        kernel_regularizer: Regularizer of the kernels. Defaults to `None`.
        dtype: Defaults to `"float32"`, under mixed precision too.
        **kwargs: `name` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, seq_len, state_dim)`: the states of an
            encoder, oldest step first, of which step `t` has seen no later item.
        ids: Integer tensor, `(batch_size, seq_len)`, the items of the steps; 0 is
            padding, wherever it stands, and has no weight in any attention.
        table: Float tensor, `(num_ids, dim)`, of which only the number of ids is read:
            items have vectors of their own here, in `output_kernel`, `(2 * state_dim,
            num_ids)`.
        inputs_mask: Optional boolean tensor, `(batch_size, seq_len)`; `False` makes
            padding of a step too. Read from the Keras mask of `inputs` if not given.
        return_user_vector: Whether to return the features too. Defaults to `False`.
        training: Whether dropout acts.

    Returns:
        Logits of the item after the last step, `(batch_size, num_ids)`, in float32 or
        wider: logarithms of the probabilities; that of id 0 is -1e9. With
        `return_user_vector` a tuple of them and the features, `(batch_size, 2 *
        state_dim)`, whose products with `output_kernel` order the items that are not
        in the history. A row without items has features of zeros, and explores.

    Raises:
        ValueError: If `dropout` is out of its range, or the shapes do not fit.

    Example:
    >>> states, table = np.ones((2, 3, 4), "float32"), np.ones((6, 4), "float32")
    >>> logits = RepeatHead()(states, np.array([[5, 1, 5], [2, 0, 0]]), table)
    >>> tuple(logits.shape)
    (2, 6)

    Reference:
        Ren et al., "RepeatNet: A Repeat Aware Neural Recommendation Machine for
        Session-Based Recommendation", AAAI 2019, Section "RepeatNet". Differs from the
        published code: padding has no weight in the gate either; id 0 has no
        probability; dropout acts on the features and not on the logits made of them;
        biases that no softmax sees, those of the scores, are left out, and the two
        within the tanh of the explore attention are one; the loss has no floor.
    """

    def __init__(
        self,
        *,
        dropout=0.0,
        seed=None,
        chunk_size=None,
        kernel_initializer="glorot_normal",
        bias_initializer="zeros",
        kernel_regularizer=None,
        dtype="float32",
        **kwargs,
    ):
        super().__init__(chunk_size=chunk_size, dtype=dtype, **kwargs)
        self.dropout = check_rate("dropout", dropout)
        self.seed = seed
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.drop = keras.layers.Dropout(
            self.dropout, seed=seed, dtype=self.dtype_policy, name="dropout"
        )

    def build(self, inputs_shape, ids_shape, table_shape):
        state_dim, _ = self.check_shapes(inputs_shape, ids_shape, table_shape)
        shapes = {}
        for name in DECODERS:
            shapes[f"{name}_query_kernel"] = (state_dim, state_dim)
            shapes[f"{name}_memory_kernel"] = (state_dim, state_dim)
            shapes[f"{name}_score_kernel"] = (state_dim, 1)
        shapes["gate_kernel"] = (state_dim, 2)
        shapes["output_kernel"] = (2 * state_dim, table_shape[0])
        self.kernels = {
            name: self.add_weight(
                name=name,
                shape=shape,
                initializer=clone(self.kernel_initializer, i),
                regularizer=self.kernel_regularizer,
            )
            for i, (name, shape) in enumerate(shapes.items())
        }
        self.explore_bias = self.add_weight(
            name="explore_bias", shape=(state_dim,), initializer=self.bias_initializer
        )

    def score(self, queries, table, training):
        rows = self._rows(queries, training)
        logits = Catalogue(1, (), True).logits(self._vectors(), rows)
        log_repeat, log_explore = self._log_gate(queries, training)
        logits = logits - ops.logsumexp(logits, axis=1, keepdims=True) + log_explore
        # Items of the history stand here at their first step, id 0 at the others.
        _, _, ids = rows
        weights = self._log_weights("repeat", queries, training)
        steps = ops.expand_dims(weights[:, 0], 1)  # (batch_size, 1, seq_len)
        lowest = ops.full_like(steps, LOWEST)
        steps = ops.where(queries.same, steps, lowest)
        repeats = ops.logsumexp(steps, axis=2) + log_repeat
        repeats = ops.where(ids > 0, repeats, lowest[:, 0])
        ids = ops.pad(ids, ((0, 0), (1, 0)))
        repeats = ops.pad(repeats, ((0, 0), (1, 0)), constant_values=LOWEST)
        return put(logits, ids, repeats)

    def query_losses(self, queries, table, targets, training):
        rows = self._rows(queries, training)
        explores = Catalogue(1, (), True).losses(
            self._vectors(),
            rows,
            targets,
            self.chunk_size,
            hold=queries.queries.shape[1] == 1,
        )
        log_repeat, log_explore = self._log_gate(queries, training)
        weights = self._log_weights("repeat", queries, training)
        seq_len = ops.shape(queries.ids)[1]
        weights = ops.reshape(weights, (-1, seq_len))
        of_target = ops.reshape(targets, (-1, ops.shape(queries.queries)[1], 1))
        hits = ops.equal(of_target, ops.expand_dims(queries.ids, 1))
        hits = ops.logical_and(hits, queries.visible)
        hits = ops.reshape(hits, (-1, seq_len))
        # Where the target is not in the history this is finite, and not taken.
        repeats = ops.where(hits, weights, ops.full_like(weights, LOWEST))
        repeats = -ops.logsumexp(repeats, axis=1) - log_repeat[:, 0]
        explores = explores - log_explore[:, 0]
        losses = ops.where(ops.any(hits, axis=1), repeats, explores)
        return ops.where(targets > 0, losses, ops.zeros_like(losses))

    def user_vectors(self, queries):
        return self._features(queries, False)

    def user_vector_shape(self, inputs_shape, table_shape):
        """Shape of the features, without the batch."""
        return (2 * inputs_shape[-1],)

    def get_config(self):
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "seed": self.seed,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _vectors(self):
        """The vectors of all items, `(num_ids, 2 * state_dim)`."""
        return ops.transpose(self.kernels["output_kernel"])

    def _rows(self, queries, training):
        """Features, and for the items of the history the lowest logit and their ids.

        An item stands at its first step, and 0 at the others, see `Catalogue`.
        """
        features = self.drop(self._features(queries, training), training=training)
        ids = queries.items()
        ids = ops.reshape(ids, (-1, ops.shape(ids)[2]))
        lowest = ops.full_like(ops.cast(ids, features.dtype), LOWEST)
        return ops.reshape(features, (-1, features.shape[-1])), lowest, ids

    def _features(self, queries, training):
        """`[sum over t of weight_explore_t m_t ; m]` of each query."""
        read = _weighted(queries, self._log_weights("explore", queries, training))
        return ops.concatenate([read, queries.queries], axis=-1)

    def _log_gate(self, queries, training):
        """Logarithms of the probabilities to repeat and to explore, `(num_rows, 1)`."""
        read = _weighted(queries, self._log_weights("gate", queries, training))
        logits = ops.matmul(read, self.kernels["gate_kernel"])
        gate = logits - ops.logsumexp(logits, axis=-1, keepdims=True)
        repeat, explore = gate[..., :1], gate[..., 1:]
        nothing = ops.logical_not(ops.any(queries.visible, axis=-1, keepdims=True))
        explore = ops.where(nothing, ops.zeros_like(explore), explore)
        return ops.reshape(repeat, (-1, 1)), ops.reshape(explore, (-1, 1))

    def _log_weights(self, name, queries, training):
        """Logarithms of the weights of the steps, `(batch_size, num_queries, seq_len)`.

        Steps that are not visible have the lowest; without one that is, all are equal.
        """
        query = ops.matmul(queries.queries, self.kernels[f"{name}_query_kernel"])
        memory = ops.matmul(queries.states, self.kernels[f"{name}_memory_kernel"])
        if name == "explore":
            memory = memory + self.explore_bias
        query = self.drop(query, training=training)
        memory = self.drop(memory, training=training)
        hidden = ops.tanh(ops.expand_dims(query, 2) + ops.expand_dims(memory, 1))
        scores = ops.squeeze(
            ops.matmul(hidden, self.kernels[f"{name}_score_kernel"]), -1
        )
        scores = ops.where(queries.visible, scores, ops.full_like(scores, LOWEST))
        return scores - ops.logsumexp(scores, axis=-1, keepdims=True)


def _weighted(queries, log_weights):
    """`sum over t of weight_t m_t` of each query.

    One query takes no matrix product, as the gradient of that would be a product over
    an axis of one: TensorFlow joins it with the addition of other gradients to a kernel
    of oneDNN that writes past its output.
    """
    weights = ops.exp(log_weights)
    if weights.shape[1] != 1:
        return ops.matmul(weights, queries.states)
    weights = ops.expand_dims(weights[:, 0], -1)
    return ops.sum(weights * queries.states, axis=1, keepdims=True)
