"""`BehaviorRetrieval`, a choice among the items of a history."""

import keras
from keras import ops

from keras_recsys._checks import check_int, check_widths
from keras_recsys._dtypes import wide_dtype
from keras_recsys._initializers import clone
from keras_recsys.layers.behavior._attention import check_history
from keras_recsys.layers.behavior.self_attention_block import SelfAttentionBlock


@keras.saving.register_keras_serializable(package="keras_recsys")
class BehaviorRetrieval(keras.layers.Layer):
    """Decides for every item of a history whether it is kept, and learns by reward.

    The history and behind it the target go through self-attention, so that each item
    sees the others and the target; a network gives each its chance:

        [x_1 ... x_L, x_target] = self_attention([value_1 ... value_L, query])
        p_j = sigmoid(score(hidden(x_j)))
        log_probability = sum_j log(p_j if item j is kept else 1 - p_j)

    In training item `j` is kept with probability `p_j`; else where `p_j >= 1/2`. No
    gradient passes through a choice: whoever trains the layer adds `advantage *
    log_probability` to the loss, with the loss of a sample above its usual one as
    `advantage` (REINFORCE), as the model of `build_ubr4ctr` does.

    Args:
        hidden_units: Non-empty sequence of positive ints, the widths of the hidden
            layers of the network. Defaults to `(20,)`.
        num_heads: Positive int, heads of the self-attention, a divisor of `dim`.
            Defaults to `1`.
        activation: Activation of the hidden layers. Defaults to `"relu"`.
        seed: Optional int of the choices in training. Defaults to `None`.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.
        kernel_regularizer: Regularizer of the kernels. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        query: Float tensor, `(batch_size, dim)`, the target item.
        value: Float tensor, `(batch_size, seq_len, dim)`, the history.
        value_mask: Optional boolean tensor, `(batch_size, seq_len)`, of any pattern;
            `True` marks a real item. Read from the Keras mask of `value` if not given.
        return_log_probability: Whether to return it too. Defaults to `False`.
        return_probabilities: Whether to return those of the items too. Defaults to
            `False`.
        training: Whether to draw. Defaults to `None`, which follows the caller.

    Returns:
        Boolean tensor, `(batch_size, seq_len)`: `True` at items that are real and
        kept, to be used as `value_mask` of the next layer. With further results asked
        for a tuple of it, the log-probability of the choice, `(batch_size, 1)`, summed
        over the real items, 0 for an empty history; and the probabilities of the items,
        `(batch_size, seq_len)`, 0 where masked. Both are float32 or wider.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is not positive, or `query` and `value` do not have the
            shapes above with one static `dim`.

    Example:
    >>> layer = BehaviorRetrieval()
    >>> target, history = np.ones((2, 4), "float32"), np.ones((2, 5, 4), "float32")
    >>> kept, log_probability = layer(target, history, return_log_probability=True)
    >>> tuple(kept.shape), tuple(log_probability.shape)
    ((2, 5), (2, 1))

    Reference:
        Qin et al., "User Behavior Retrieval for Click-Through Rate Prediction", SIGIR
        2020, cut down to the choice among the items of one history, as in Lin et al.,
        "Sparse Attentive Memory Network for Click-through Rate Prediction with Long
        Sequences", CIKM 2022. The self-attention makes time and memory grow
        with the square of `seq_len`. Differs from the papers: it is one
        `SelfAttentionBlock`, with residuals and normalization, and reads the target.
    """

    def __init__(
        self,
        hidden_units=(20,),
        *,
        num_heads=1,
        activation="relu",
        seed=None,
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.hidden_units = check_widths("hidden_units", hidden_units)
        self.num_heads = check_int("num_heads", num_heads)
        self.activation = keras.activations.get(activation)
        self.seed = seed
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.supports_masking = True

    def build(self, query_shape, value_shape):
        dim = check_history(self, value_shape, query_shape)
        self.self_attention = SelfAttentionBlock(
            self.num_heads,
            kernel_initializer=self.kernel_initializer,
            kernel_regularizer=self.kernel_regularizer,
            dtype=self.dtype_policy,
            name="self_attention",
        )
        self.self_attention.build((value_shape[0], None, dim))
        self.hidden = []
        for i, units in enumerate(self.hidden_units):
            dense = self._dense(f"hidden_{i}", i, units, self.activation)
            dense.build((*value_shape[:-1], dim))
            self.hidden.append(dense)
            dim = units
        self.score = self._dense("score", len(self.hidden_units), 1)
        self.score.build((*value_shape[:-1], dim))

    def call(
        self,
        query,
        value,
        value_mask=None,
        return_log_probability=False,
        return_probabilities=False,
        training=None,
    ):
        logits = self._logits(query, value, value_mask)
        probabilities = ops.sigmoid(logits)
        if training:
            drawn = keras.random.uniform(
                ops.shape(logits), dtype=logits.dtype, seed=self.seed_generator
            )
            kept = ops.logical_not(drawn >= probabilities)
        else:
            kept = ops.logical_not(logits < 0)  # a NaN is kept, and goes on
        if value_mask is not None:
            kept = ops.logical_and(kept, value_mask)
        outputs = [kept]
        if return_log_probability:
            # The probability of the other choice is the sigmoid of minus the logit.
            chances = ops.log_sigmoid(ops.where(kept, logits, -logits))
            chances = self._real(chances, value_mask)
            outputs.append(ops.sum(chances, axis=-1, keepdims=True))
        if return_probabilities:
            outputs.append(self._real(probabilities, value_mask))
        return tuple(outputs) if len(outputs) > 1 else kept

    def compute_mask(self, *args, **kwargs):
        return None

    def compute_output_shape(self, query_shape, value_shape):
        return tuple(value_shape)[:2]

    def compute_output_spec(
        self,
        query,
        value,
        value_mask=None,
        return_log_probability=False,
        return_probabilities=False,
        training=None,
    ):
        shape = value.shape[:2]
        wide = wide_dtype(self.compute_dtype)
        outputs = [keras.KerasTensor(shape, dtype="bool")]
        if return_log_probability:
            outputs.append(keras.KerasTensor((shape[0], 1), dtype=wide))
        if return_probabilities:
            outputs.append(keras.KerasTensor(shape, dtype=wide))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def get_config(self):
        return {
            **super().get_config(),
            "hidden_units": list(self.hidden_units),
            "num_heads": self.num_heads,
            "activation": keras.activations.serialize(self.activation),
            "seed": self.seed,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _dense(self, name, index, units, activation=None):
        # The block has used the first six clones of the initializer.
        return keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=clone(self.kernel_initializer, 6 + index),
            kernel_regularizer=self.kernel_regularizer,
            dtype=self.dtype_policy,
            name=name,
        )

    def _logits(self, query, value, value_mask):
        """Logit of each item, finite where masked, `(batch_size, seq_len)`."""
        x = ops.concatenate([value, ops.expand_dims(query, 1)], axis=1)
        mask = None
        if value_mask is not None:
            real = ops.ones((ops.shape(query)[0], 1), dtype="bool")
            mask = ops.concatenate([value_mask, real], axis=1)
        x = self.self_attention(x, mask=mask)[:, :-1]
        for dense in self.hidden:
            x = dense(x)
        logits = ops.cast(self.score(x), wide_dtype(self.compute_dtype))
        return ops.squeeze(logits, -1)

    def _real(self, x, value_mask):
        """`x` with 0 where masked."""
        return x if value_mask is None else ops.where(value_mask, x, ops.zeros_like(x))
