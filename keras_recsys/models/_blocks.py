"""Parts that several builders share."""

import keras
from keras import ops

from keras_recsys import layers
from keras_recsys._checks import check_rate
from keras_recsys._lookup import zero_or_nan
from keras_recsys.features import NumericFeature, embed_fields


def mlp(x, hidden_units, *, activation, dropout, seed, name, start=0):
    """Hidden layers `{name}_dense_{i}`, each followed by dropout.

    Args:
        x: Tensor, `(batch_size, dim)`.
        hidden_units: Widths of the layers.
        activation: Their activation.
        dropout: Rate of the dropout after each layer.
        seed: Optional int; layer `i` draws with `seed + i`.
        name: Prefix of the layer names.
        start: Number of the first layer.

    Returns:
        Tensor, `(batch_size, hidden_units[-1])`.
    """
    for i, units in enumerate(hidden_units, start):
        x = keras.layers.Dense(units, activation=activation, name=f"{name}_dense_{i}")(
            x
        )
        x = dropped(x, dropout, seed=seed, name=name, index=i)
    return x


def dropped(x, dropout, *, seed, name, index):
    """Dropout layer `{name}_dropout_{index}`, or `x` itself for rate 0."""
    if not check_rate("dropout", dropout):
        return x
    seed = None if seed is None else seed + index
    return keras.layers.Dropout(dropout, seed=seed, name=f"{name}_dropout_{index}")(x)


def join_numbers(columns, features, *, name):
    """All numbers side by side, `(batch_size, num_numeric)`, or `None` without any."""
    numbers = [columns[f.name] for f in features if isinstance(f, NumericFeature)]
    if len(numbers) > 1:
        return keras.layers.Concatenate(name=f"{name}_numbers")(numbers)
    return numbers[0] if numbers else None


def linear_logits(columns, features, numbers, *, regularizer, name):
    """Sum of one weight a feature value, without a bias.

    `"qr"` features have one weight a quotient and one a remainder, which are added.

    Args:
        columns: Dict as `normalize_numbers` makes it.
        features: Sequence of features.
        numbers: What `join_numbers` gave; numbers count with their value.
        regularizer: Regularizer of the weights.
        name: Prefix of the layer names.

    Returns:
        List of one or two tensors to add, `(batch_size, 1)`.
    """
    logits = []
    ids = [feature for feature in features if not isinstance(feature, NumericFeature)]
    if ids:
        weights = embed_fields(
            columns,
            ids,
            1,
            combiner="add",
            embeddings_initializer="zeros",
            embeddings_regularizer=regularizer,
            name=f"{name}_linear",
        )
        pooling = layers.SequencePooling("sum", name=f"{name}_linear-logit")
        logits.append(pooling(weights))
    if numbers is not None:
        dense = keras.layers.Dense(
            1,
            use_bias=False,
            kernel_initializer="zeros",
            kernel_regularizer=regularizer,
            name=f"{name}_linear-numbers",
        )
        logits.append(dense(numbers))
    return logits


@keras.saving.register_keras_serializable(package="keras_recsys")
class NotANumber(keras.layers.Layer):
    """Gives 0 for a row of finite numbers and NaN for any other, `(batch_size, 1)`.

    Added to a logit it keeps a missing number and an id outside a vocabulary loud:
    TensorFlow fuses a dense layer with its ReLU, and the ReLU of NaN is then 0.
    """

    def call(self, inputs):
        finite = [ops.all(ops.isfinite(x), axis=-1, keepdims=True) for x in inputs]
        kept = finite[0]
        for part in finite[1:]:
            kept = ops.logical_and(kept, part)
        return zero_or_nan(kept, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return (input_shape[0][0], 1)
