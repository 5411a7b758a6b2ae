"""Parts that several builders share."""

import keras
from keras import ops

from keras_recsys import layers
from keras_recsys._checks import check_choice, check_rate
from keras_recsys._lookup import zero_or_nan
from keras_recsys.features import (
    NumericFeature,
    check_features,
    embed_fields,
    make_inputs,
    normalize_numbers,
)
from keras_recsys.models._named_model import NamedModel

NUMERIC_INPUTS = ("field", "dnn")


class ClickModel:
    """The frame of a click model: inputs, numbers, fields, linear part and head.

    A builder takes from it what it needs, computes logits, and ends with `model`.

    Args:
        features: Sequence of features.
        inputs: Optional dict from feature name to `KerasTensor`, see `make_inputs`.
        name: Name of the model and prefix of its layer names.
    """

    def __init__(self, features, *, inputs=None, name):
        self.features = check_features(features)
        self.inputs = make_inputs(self.features, inputs)
        self.name = name
        self.numbers = normalize_numbers(
            self.inputs, self.features, name=f"{name}_numbers"
        )
        self.with_ids = [f for f in self.features if not isinstance(f, NumericFeature)]
        self._watched = [] if self.numbers is None else [self.numbers]
        self._is_linear = False

    def fields(
        self,
        embedding_dim,
        *,
        numeric_inputs="field",
        min_fields=1,
        part="fields",
        **kwargs,
    ):
        """Embeds the features as fields.

        Args:
            embedding_dim: Positive int, width of every field.
            numeric_inputs: `"field"` makes fields of numbers too; `"dnn"` does not.
            min_fields: How many fields the model needs at least, 1 or 2.
            part: Name of the layer of the stacked fields, behind that of the model.
            **kwargs: Further arguments of `embed_fields`.

        Returns:
            Tensor, `(batch_size, num_fields, embedding_dim)`.

        Raises:
            ValueError: If there are too few fields.
        """
        check_choice("numeric_inputs", numeric_inputs, NUMERIC_INPUTS)
        features = self.features if numeric_inputs == "field" else self.with_ids
        if len(features) < min_fields:
            count = {1: "one field", 2: "two fields"}[min_fields]
            raise ValueError(
                f"`features` must give at least {count}. "
                f"Received: {[feature.name for feature in features]}."
            )
        return self._embedded(features, embedding_dim, part, **kwargs)

    def flat(self, fields, numeric_inputs="field"):
        """Fields side by side, behind them the numbers where they are no fields."""
        x = keras.layers.Flatten(name=f"{self.name}_flatten")(fields)
        if numeric_inputs == "field" or self.numbers is None:
            return x
        joined = keras.layers.Concatenate(name=f"{self.name}_dnn-input")
        return joined([x, self.numbers])

    def dense_input(self, embedding_dim, features=None, **kwargs):
        """The vectors of ids side by side, and behind them the normalized numbers.

        Args:
            embedding_dim: Positive int, width of a vector.
            features: The features that count. Defaults to all.
            **kwargs: Further arguments of `embed_fields`.

        Returns:
            Tensor, `(batch_size, dim)`.
        """
        features = self.features if features is None else features
        parts = []
        ids = [f for f in features if not isinstance(f, NumericFeature)]
        if ids:
            fields = self._embedded(ids, embedding_dim, "fields", **kwargs)
            flatten = keras.layers.Flatten(name=f"{self.name}_flatten")
            parts.append(flatten(fields))
        if len(ids) < len(features):
            parts.append(self._chosen_numbers(features, "dnn"))
        if len(parts) == 1:
            return parts[0]
        return keras.layers.Concatenate(name=f"{self.name}_dnn-input")(parts)

    def linear(self, regularizer=None, features=None):
        """Sum of one weight a feature value, without a bias.

        `"qr"` features have one weight a quotient and one a remainder, which are added.

        Args:
            regularizer: Regularizer of the weights.
            features: The features that count. Defaults to all.

        Returns:
            List of one or two logits, `(batch_size, 1)`.
        """
        features = self.features if features is None else features
        logits = []
        ids = [f for f in features if not isinstance(f, NumericFeature)]
        if ids:
            weights = embed_fields(
                self.inputs,
                ids,
                1,
                combiner="add",
                embeddings_initializer="zeros",
                embeddings_regularizer=regularizer,
                name=f"{self.name}_linear",
            )
            pooling = layers.SequencePooling("sum", name=f"{self.name}_linear-logit")
            logits.append(pooling(weights))
        if len(ids) < len(features):
            dense = keras.layers.Dense(
                1,
                use_bias=False,
                kernel_initializer="zeros",
                kernel_regularizer=regularizer,
                name=f"{self.name}_linear-numbers",
            )
            logits.append(dense(self._chosen_numbers(features, "linear")))
        self._is_linear = self._is_linear or len(features) == len(self.features)
        return logits

    def deep_logit(
        self, x, hidden_units, *, activation, dropout, seed, extra=None, start=0
    ):
        """Logit of a network on `x`, without a bias: the head has it.

        Args:
            x: Tensor, `(batch_size, dim)`.
            hidden_units: Widths of the hidden layers.
            activation: Their activation.
            dropout: Rate of the dropout after each.
            seed: Optional int of the dropout.
            extra: Optional tensor, `(batch_size, dim)`, that the logit reads beside the
                last hidden layer.
            start: Number of the first hidden layer.

        Returns:
            Tensor, `(batch_size, 1)`.
        """
        x = mlp(
            x,
            hidden_units,
            activation=activation,
            dropout=dropout,
            seed=seed,
            name=self.name,
            start=start,
        )
        if extra is not None:
            x = keras.layers.Concatenate(name=f"{self.name}_joined")([extra, x])
        return self.logit(x, "deep_logit")

    def logit(self, x, part):
        """Layer `{name}_{part}`, one linear unit without a bias."""
        return keras.layers.Dense(1, use_bias=False, name=f"{self.name}_{part}")(x)

    def model(self, logits):
        """The model whose probability is the sigmoid of the sum of the logits.

        Where no linear part reads every feature, a term of 0 or NaN does, so that a
        missing number or an id outside a vocabulary is loud.
        """
        logits = list(logits)
        if not self._is_linear:
            guard = NotANumber(name=f"{self.name}_not-a-number")
            logits.append(guard(self._watched))
        head = layers.ClickProbability(name=f"{self.name}_probability")
        return NamedModel(self.inputs, {"probability": head(logits)}, name=self.name)

    def _embedded(self, features, embedding_dim, part, **kwargs):
        fields = embed_fields(
            self.inputs,
            features,
            embedding_dim,
            numbers=self.numbers,
            name=f"{self.name}_{part}",
            **kwargs,
        )
        self._watched.append(fields)
        return fields

    def _chosen_numbers(self, features, part):
        """The normalized numbers of some features."""
        chosen = [f for f in features if isinstance(f, NumericFeature)]
        if len(chosen) == self.numbers.shape[1]:
            return self.numbers
        return normalize_numbers(
            self.inputs, chosen, name=f"{self.name}_{part}-numbers"
        )


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


@keras.saving.register_keras_serializable(package="keras_recsys")
class NotANumber(keras.layers.Layer):
    """Gives 0 for a row of finite numbers and NaN for any other, `(batch_size, 1)`.

    Added to a logit it keeps a missing number and an id outside a vocabulary loud:
    TensorFlow fuses a dense layer with its ReLU, and the ReLU of NaN is then 0.
    """

    def call(self, inputs):
        finite = [
            ops.expand_dims(
                ops.all(ops.isfinite(x), axis=tuple(range(1, len(x.shape)))), -1
            )
            for x in inputs
        ]
        kept = finite[0]
        for part in finite[1:]:
            kept = ops.logical_and(kept, part)
        return zero_or_nan(kept, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return (input_shape[0][0], 1)
