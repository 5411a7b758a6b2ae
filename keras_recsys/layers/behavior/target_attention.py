"""`TargetAttention`, a history weighted by a target: the activation unit of DIN."""

import keras
from keras import ops

from keras_recsys._checks import check_widths
from keras_recsys._initializers import clone
from keras_recsys.layers.behavior._attention import (
    INTERACTIONS,
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


@keras.saving.register_keras_serializable(package="keras_recsys")
class TargetAttention(keras.layers.Layer):
    """Sums a history, each item weighted by a network that reads it and a target.

    With `q` the target and `k_j` the items of the history,

        x_j = [q ; k_j ; q - k_j ; q * k_j]
        score_j = network(x_j)
        output = sum over j of attention_activation(score_j) k_j

    `x` is never built: with the rows of the first kernel in four blocks `A`, `B`, `C`,
    `D`, the first layer is one product of the history with a small matrix a sample,

        x_j kernel = k_j (B - C + diag(q) D) + q (A + C)

    Args:
        hidden_units: Non-empty sequence of positive ints, the widths of the hidden
            layers. Defaults to `(80, 40)`.
        interactions: Which parts `x_j` has, in the order of `"query"`, `"value"`,
            `"difference"` and `"product"`; at least one of the last three. Defaults to
            all four.
        activation: Activation of the hidden layers. One hidden layer of `"sigmoid"` is
            fastest, and keeps nothing of the size of the history for the backward
            pass. Defaults to `"sigmoid"`.
        attention_activation: `"linear"`, raw scores; `"sigmoid"`; or `"softmax"` over
            the history. Defaults to `"linear"`.
        normalize: What weights are divided by: `None`, nothing; `"sum"`, their sum
            (with `"sigmoid"` only); `"sqrt_len"`, the root of the number of items.
            Defaults to `None`.
        kernel_initializer: Initializer of the kernels. Defaults to
            `"glorot_uniform"`.
        bias_initializer: Initializer of the biases. Defaults to `"zeros"`.
        kernel_regularizer: Regularizer of the kernels. Defaults to `None`.
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
        Tensor of shape `(batch_size, dim)`, in the compute dtype; scores, weights and
        the sum are of float32 at least. With `return_attention_scores=True` a tuple of
        it and the weights, `(batch_size, seq_len)`, of float32 at least: exactly 0 at
        masked items, and of sum 1 with `"softmax"` or `"sum"`. A history without items
        gives 0. Values at masked items have no effect, NaN included. The output has no
        mask.

    Raises:
        TypeError: If a width is not an integer.
        ValueError: If an argument is out of its range, or the shapes do not fit.

    Example:
    >>> layer = TargetAttention((8,), attention_activation="softmax")
    >>> target, history = np.ones((2, 4), "float32"), np.ones((2, 3, 4), "float32")
    >>> _, weights = layer(target, history, return_attention_scores=True)
    >>> float(weights[0, 0] / weights[0, 1])
    1.0

    Reference:
        Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD
        2018, section 4.3. The four parts, the widths and the sigmoid are those of the
        authors' code; the paper has Dice for activation, and its outer product is the
        elementwise one of the code.
    """

    def __init__(
        self,
        hidden_units=(80, 40),
        *,
        interactions=INTERACTIONS,
        activation="sigmoid",
        attention_activation="linear",
        normalize=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.hidden_units = check_widths("hidden_units", hidden_units)
        self.interactions = tuple(interactions)
        if (
            list(self.interactions) != [x for x in INTERACTIONS if x in interactions]
            or not set(interactions) - {"query"}
        ):  # fmt: skip
            raise ValueError(
                f"`interactions` must be some of {INTERACTIONS} in this order, not "
                f"'query' alone. Received: interactions={interactions!r}."
            )
        check_weighting(attention_activation, normalize)
        self.activation = keras.activations.get(activation)
        self.attention_activation = attention_activation
        self.normalize = normalize
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, query_shape, value_shape):
        dim = check_history(self, value_shape, query_shape)
        widths = [len(self.interactions) * dim, *self.hidden_units, 1]
        self.kernels, self.biases = [], []
        for i, shape in enumerate(zip(widths[:-1], widths[1:], strict=True)):
            self.kernels.append(
                self.add_weight(
                    name=f"kernel_{i}",
                    shape=shape,
                    initializer=clone(self.kernel_initializer, i),
                    regularizer=self.kernel_regularizer,
                )
            )
            self.biases.append(
                self.add_weight(
                    name=f"bias_{i}",
                    shape=shape[1:],
                    initializer=self.bias_initializer,
                )
            )

    def call(self, query, value, value_mask=None, return_attention_scores=False):
        matrix, bias = first_layer(
            query, self.kernels[0], self.biases[0], self.interactions
        )
        weighting = (self.attention_activation, self.normalize)
        one_layer = len(self.hidden_units) == 1
        if one_layer and self.activation is keras.activations.sigmoid:
            pooled, weights = attend(
                value,
                value_mask,
                matrix,
                bias,
                self.kernels[1],
                self.biases[1],
                *weighting,
            )
        else:
            value = without_padding(value, value_mask)
            kept = as_kept(value_mask, value)
            x = self.activation(ops.matmul(value, matrix) + ops.expand_dims(bias, 1))
            for kernel, bias in zip(self.kernels[1:-1], self.biases[1:-1], strict=True):
                x = self.activation(ops.matmul(x, kernel) + bias)
            kernel, bias = (
                ops.cast(weight, kept.dtype)
                for weight in (self.kernels[-1], self.biases[-1])
            )
            scores = ops.matmul(ops.cast(x, kept.dtype), kernel)
            scores = ops.squeeze(scores, -1) + bias
            weights, _, _ = attention_weights(scores, kept, *weighting)
            pooled = weighted_sum(value, weights)
        pooled = ops.cast(pooled, self.compute_dtype)
        return (pooled, weights) if return_attention_scores else pooled

    def compute_mask(self, query, *args, **kwargs):
        return None

    def compute_output_shape(self, query_shape, value_shape):
        return (value_shape[0], value_shape[2])

    def compute_output_spec(
        self, query, value, value_mask=None, return_attention_scores=False
    ):
        shape = self.compute_output_shape(query.shape, value.shape)
        return output_spec(self, shape, value.shape[:2], return_attention_scores)

    def get_config(self):
        return {
            **super().get_config(),
            "hidden_units": list(self.hidden_units),
            "interactions": list(self.interactions),
            "activation": keras.activations.serialize(self.activation),
            "attention_activation": self.attention_activation,
            "normalize": self.normalize,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }
