"""`InterestEvolution`, the two recurrences of DIEN."""

import keras
from keras import ops

from keras_recsys._checks import (
    check_choice,
    check_int,
    check_non_negative,
    check_widths,
)
from keras_recsys._dtypes import wide_dtype
from keras_recsys._initializers import clone
from keras_recsys.layers.behavior._attention import (
    as_kept,
    attention_weights,
    check_history,
    first_layer,
    output_spec,
    without_padding,
)
from keras_recsys.layers.behavior._gru import gru_gates

UPDATES = ("paper", "released")


@keras.saving.register_keras_serializable(package="keras_recsys")
class InterestEvolution(keras.layers.Layer):
    """Follows how the interest in a target item evolved along a history.

    A GRU extracts an interest state `s_t` from each item `e_t`. The target `q` attends
    to the states, and a second GRU, whose update gate `u_t` is scaled by the attention
    weight `a_t`, runs over them:

        s_t = GRU(e_t, s_{t-1})
        a_t = softmax_t(MLP([q; s_t; q - s_t; q * s_t]))
        h_t = (1 - a_t u_t) * h_{t-1} + a_t u_t * candidate(s_t, h_{t-1})

    The output is the last `h_t`. With `update="released"` the last line is

        h_t = keep * h_{t-1} + (1 - keep) * candidate,  keep = (1 - a_t) u_t

    where a weight of 0 still writes, and a weight of 1 overwrites the state.

    With `auxiliary_loss_weight` above 0 the states also learn to tell the next item
    from a sampled one `n_{t+1}`. With `D(s, e)` a second MLP that ends in a logit, the
    layer adds that weight times the mean, over all steps followed by a real one, of

        -log sigmoid(D(s_t, e_{t+1})) - log(1 - sigmoid(D(s_t, n_{t+1})))

    Args:
        units: Optional positive int, width of both recurrences. Defaults to the width
            of `value`. If it is not the width of `query`, a linear map without bias
            brings `query` to it before the attention.
        hidden_units: Widths of the hidden layers of the attention, at least one, with
            sigmoid. Defaults to `(80, 40)`.
        update: `"paper"` or `"released"`. Defaults to `"paper"`.
        auxiliary_loss_weight: Float of at least 0. Defaults to `0.0`, no such loss.
        auxiliary_hidden_units: Widths of the hidden layers of `D`, at least one, with
            sigmoid. Defaults to `(100, 50)`.
        kernel_initializer: Initializer of all kernels but the recurrent ones. Defaults
            to `"glorot_uniform"`.
        recurrent_initializer: Initializer of the recurrent kernels. Defaults to
            `"orthogonal"`.
        kernel_regularizer: Regularizer of all kernels but the recurrent ones. Defaults
            to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        query: Float tensor, `(batch_size, query_dim)`, the target item.
        value: Float tensor, `(batch_size, seq_len, dim)`, the history, oldest first;
            of one step at least, which may be padding.
        value_mask: Optional boolean tensor, `(batch_size, seq_len)`; `True` is a real
            item, in any pattern. Read from the Keras mask of `value` if not given.
        negatives: Optional float tensor of the shape of `value`: the sampled item at
            `t` stands against `value` at `t`. Needed in training with an auxiliary
            loss; a call without it adds no loss.
        negatives_mask: Optional boolean tensor, `(batch_size, seq_len)`; where it is
            `False`, a step adds no loss. Read from the Keras mask of `negatives` if not
            given.
        return_attention_scores: Whether to return the attention weights too. Defaults
            to `False`.
        training: Whether the call is one of training.

    Returns:
        Tensor of shape `(batch_size, units)`, in the compute dtype. Padded steps hold
        the state, whatever their values, NaN included; a history without a real item
        gives 0. With `return_attention_scores` a tuple of that and the weights,
        `(batch_size, seq_len)`, in float32 or wider; they are 0 at padded steps and
        sum to 1, or are all 0 if no item is real. The recurrences run in float32 or
        wider. The output has no mask.

    Raises:
        TypeError: If a width is not an integer.
        ValueError: If a width is not positive, no hidden layer is given, `update` is
            unknown, `auxiliary_loss_weight` is negative, `query` is not of rank 2 or
            `value` not of rank 3 with a static last axis, `negatives` is not of the
            shape of `value`, is given without an auxiliary loss, or is missing in
            training with one.

    Example:
    >>> layer = InterestEvolution()
    >>> query, value = np.ones((2, 8), "float32"), np.ones((2, 5, 8), "float32")
    >>> tuple(layer(query, value).shape)
    (2, 8)

    Reference:
        Zhou et al., "Deep Interest Evolution Network for Click-Through Rate
        Prediction", AAAI 2019, Eq. 2 to 7 and the AUGRU. `"released"` is the update of
        the code that its authors published. Differs from the paper: the scores come
        from an MLP, as in that code, not from one bilinear form; the reset gate acts on
        the state before the recurrent product (`reset_after=False` of
        `keras.layers.GRU`), as there too; `D` is an MLP, not a dot product. Gate biases
        start at 0. cuDNN is not used, so that any mask gives the same on any device.
    """

    def __init__(
        self,
        units=None,
        *,
        hidden_units=(80, 40),
        update="paper",
        auxiliary_loss_weight=0.0,
        auxiliary_hidden_units=(100, 50),
        kernel_initializer="glorot_uniform",
        recurrent_initializer="orthogonal",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = None if units is None else check_int("units", units)
        self.hidden_units = check_widths("hidden_units", hidden_units)
        self.update = check_choice("update", update, UPDATES)
        self.auxiliary_loss_weight = check_non_negative(
            "auxiliary_loss_weight", auxiliary_loss_weight
        )
        self.auxiliary_hidden_units = check_widths(
            "auxiliary_hidden_units", auxiliary_hidden_units
        )
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.recurrent_initializer = keras.initializers.get(recurrent_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, query_shape, value_shape, negatives_shape=None):
        dim = check_history(self, value_shape, query_shape, any_width=True)
        self._check_negatives(value_shape, negatives_shape)
        units = self.units or dim
        self._num_kernels = 0
        self.extraction_kernel, self.extraction_bias = self._add_linear(
            "extraction", dim, 3 * units
        )
        self.query_kernel = None
        if query_shape[-1] != units:
            self.query_kernel, _ = self._add_linear(
                "query", query_shape[-1], units, use_bias=False
            )
        self.attention_kernel, self.attention_bias = self._add_linear(
            "attention", 4 * units, self.hidden_units[0]
        )
        self.evolution_kernel, self.evolution_bias = self._add_linear(
            "evolution", units, 3 * units
        )
        if self.auxiliary_loss_weight:
            self.auxiliary_kernel, self.auxiliary_bias = self._add_linear(
                "auxiliary", units + dim, self.auxiliary_hidden_units[0]
            )
        dtype = wide_dtype(self.compute_dtype)
        self.extractor = keras.layers.RNN(
            InterestCell(
                units, initializer=clone(self.recurrent_initializer, 0), dtype=dtype
            ),
            return_sequences=True,
            dtype=dtype,
            name="extractor",
        )
        self.evolver = keras.layers.RNN(
            InterestCell(
                units,
                update=self.update,
                initializer=clone(self.recurrent_initializer, 1),
                dtype=dtype,
            ),
            dtype=dtype,
            name="evolver",
        )
        self.extractor.build((None, None, 3 * units))
        self.evolver.build((None, None, 3 * units + 1))
        # The softmax takes out a bias of the score.
        self.attention_layers = self._make_layers(
            "attention", self.hidden_units, score_bias=False
        )
        if self.auxiliary_loss_weight:
            self.auxiliary_layers = self._make_layers(
                "auxiliary", self.auxiliary_hidden_units
            )

    def call(
        self,
        query,
        value,
        value_mask=None,
        negatives=None,
        negatives_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        value = without_padding(value, value_mask)
        inputs = ops.matmul(value, self.extraction_kernel) + self.extraction_bias
        states = self.extractor(inputs, mask=value_mask)
        states = ops.cast(states, self.compute_dtype)
        weights = self._attend(query, states, value_mask)

        inputs = ops.matmul(states, self.evolution_kernel) + self.evolution_bias
        inputs = ops.cast(inputs, weights.dtype)
        inputs = ops.concatenate([inputs, ops.expand_dims(weights, -1)], axis=-1)
        output = self.evolver(inputs, mask=value_mask)
        output = ops.cast(output, self.compute_dtype)

        if negatives is not None:
            self._check_negatives(value.shape, negatives.shape)
            kept = as_kept(value_mask, value)
            # Padding between two items holds the state of the first.
            before = ops.minimum(ops.cumsum(kept, axis=1)[:, :-1], 1.0)
            pairs = before * kept[:, 1:]
            if negatives_mask is not None:
                pairs = pairs * as_kept(negatives_mask, value)[:, 1:]
                negatives = without_padding(negatives, negatives_mask)
            negatives = without_padding(negatives, value_mask)
            loss = self._auxiliary_loss(states, value, negatives, pairs)
            self.add_loss(self.auxiliary_loss_weight * loss)
        elif self.auxiliary_loss_weight and training:
            raise ValueError(
                "`negatives` must be given in training with an auxiliary loss. "
                "Received: negatives=None, "
                f"auxiliary_loss_weight={self.auxiliary_loss_weight!r}."
            )
        return (output, weights) if return_attention_scores else output

    def compute_mask(self, *args, **kwargs):
        return None

    def compute_output_shape(self, query_shape, value_shape, negatives_shape=None):
        return (value_shape[0], self.units or value_shape[-1])

    def compute_output_spec(
        self,
        query,
        value,
        value_mask=None,
        negatives=None,
        negatives_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        shape = self.compute_output_shape(query.shape, value.shape)
        return output_spec(self, shape, value.shape[:2], return_attention_scores)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "hidden_units": list(self.hidden_units),
            "update": self.update,
            "auxiliary_loss_weight": self.auxiliary_loss_weight,
            "auxiliary_hidden_units": list(self.auxiliary_hidden_units),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "recurrent_initializer": keras.initializers.serialize(
                self.recurrent_initializer
            ),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _add_linear(self, name, rows, columns, *, use_bias=True):
        """Kernel and bias, or `None`, of one linear map."""
        kernel = self.add_weight(
            name=f"{name}_kernel",
            shape=(rows, columns),
            initializer=self._next_initializer(),
            regularizer=self.kernel_regularizer,
        )
        if not use_bias:
            return kernel, None
        bias = self.add_weight(
            name=f"{name}_bias", shape=(columns,), initializer="zeros"
        )
        return kernel, bias

    def _make_layers(self, name, hidden_units, *, score_bias=True):
        """The layers of an MLP behind its first, down to one score."""
        widths = [*hidden_units, 1]
        layers = []
        for i in range(1, len(widths)):
            layer = keras.layers.Dense(
                widths[i],
                activation="sigmoid" if i < len(hidden_units) else None,
                use_bias=i < len(hidden_units) or score_bias,
                kernel_initializer=self._next_initializer(),
                kernel_regularizer=self.kernel_regularizer,
                dtype=self.dtype_policy,
                name=f"{name}_dense_{i}",
            )
            layer.build((None, None, widths[i - 1]))
            layers.append(layer)
        return layers

    def _next_initializer(self):
        self._num_kernels += 1
        return clone(self.kernel_initializer, self._num_kernels - 1)

    def _attend(self, query, states, mask):
        """Attention weights, `(batch_size, seq_len)`."""
        if self.query_kernel is not None:
            query = ops.matmul(query, self.query_kernel)
        matrix, bias = first_layer(query, self.attention_kernel, self.attention_bias)
        hidden = ops.matmul(states, matrix) + ops.expand_dims(bias, 1)
        scores = _apply_layers(ops.sigmoid(hidden), self.attention_layers)
        kept = as_kept(mask, states)
        scores = ops.cast(scores, kept.dtype)
        return attention_weights(scores, kept, "softmax", None)[0]

    def _auxiliary_loss(self, states, value, negatives, pairs):
        """Mean loss over the pairs of steps that count, `(batch_size, seq_len - 1)`."""
        units = states.shape[-1]
        of_state = ops.matmul(states[:, :-1], self.auxiliary_kernel[:units])
        of_state = of_state + self.auxiliary_bias
        losses = 0.0
        for items, sign in ((value, -1.0), (negatives, 1.0)):
            of_item = ops.matmul(items[:, 1:], self.auxiliary_kernel[units:])
            hidden = ops.sigmoid(of_state + of_item)
            logits = _apply_layers(hidden, self.auxiliary_layers)
            logits = ops.cast(logits, wide_dtype(self.compute_dtype))
            losses = losses + ops.softplus(sign * logits)
        return ops.sum(losses * pairs) / ops.maximum(ops.sum(pairs), 1.0)

    def _check_negatives(self, value_shape, negatives_shape):
        if negatives_shape is None:
            return
        if not self.auxiliary_loss_weight:
            raise ValueError(
                "`negatives` must be None without an auxiliary loss. Received: "
                f"negatives of shape {tuple(negatives_shape)}, "
                f"auxiliary_loss_weight={self.auxiliary_loss_weight!r}."
            )
        if len(negatives_shape) != 3 or any(
            None not in (a, b) and a != b
            for a, b in zip(negatives_shape, value_shape, strict=True)
        ):
            raise ValueError(
                "`negatives` must be of the shape of `value`. Received: "
                f"negatives_shape={tuple(negatives_shape)}, "
                f"value_shape={tuple(value_shape)}."
            )


class InterestCell(keras.layers.Layer):
    """One step of a GRU, or of one with an attentional update gate.

    Its inputs are projected before: `[x_z; x_r; x_c]`, and with an `update` also the
    attention weight, as the last column.

    Args:
        units: Positive int, width of the state.
        update: `None` for a GRU, or `"paper"` or `"released"`.
        initializer: Initializer of the recurrent kernel.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.
    """

    def __init__(self, units, *, update=None, initializer="orthogonal", **kwargs):
        super().__init__(**kwargs)
        self.state_size = units
        self.update = update
        self.initializer = initializer

    def build(self, input_shape):
        self.recurrent_kernel = self.add_weight(
            name="recurrent_kernel",
            shape=(self.state_size, 3 * self.state_size),
            initializer=self.initializer,
        )

    def call(self, inputs, states):
        (state,) = states
        projected = inputs[:, : 3 * self.state_size]
        keep, candidate = gru_gates(projected, state, self.recurrent_kernel)
        if self.update is not None:
            weight = inputs[:, 3 * self.state_size :]
            paper = self.update == "paper"
            keep = 1.0 - weight * keep if paper else (1.0 - weight) * keep
        state = keep * state + (1.0 - keep) * candidate
        return state, [state]


def _apply_layers(x, layers):
    """The score that the layers end in, without its last axis."""
    for layer in layers:
        x = layer(x)
    return ops.squeeze(x, -1)
