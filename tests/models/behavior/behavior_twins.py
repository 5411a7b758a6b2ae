"""What the tests of models with a history share: features, rows, parts in NumPy."""

import dataclasses

import keras
import numpy as np
from helpers import array, field_table, randomize

from keras_recsys import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
    TimeGapFeature,
)

# An event is an item, its genre and its age; `liked` is no history, but has the table.
FEATURES = (
    CategoricalFeature("user", 5),
    CategoricalFeature("item", 9, table="items"),
    SequenceFeature("item_history", 9, table="items"),
    NumericFeature("price", normalization="zscore", mean=2.0, std=4.0),
    CategoricalFeature("genre", 6, table="genres"),
    SequenceFeature("liked", 9, table="items", pooling="sqrtn"),
    SequenceFeature("genre_history", 6, table="genres"),
    TimeGapFeature("age_history", time_unit=60, num_buckets=5, dtype="int32"),
)
FIXED = tuple(
    dataclasses.replace(feature, max_len=4)
    if feature.name.endswith("history")
    else feature
    for feature in FEATURES
)
HISTORY = {"item_history": "item", "genre_history": "genre"}
# All events, padding in front, a hole, padding behind, none. What stands beside
# padding has no effect.
X = {
    "user": np.array([0, 4, 2, 1, 3], "int32"),
    "item": np.array([1, 8, 3, 5, 2], "int32"),
    "item_history": np.array(
        [[1, 2, 3, 4], [0, 0, 5, 6], [7, 0, 8, 1], [4, 2, 0, 0], [0, 0, 0, 0]], "int32"
    ),
    "price": np.array([0.5, -1.0, 2.0, 9.0, 3.0], "float32"),
    "genre": np.array([3, 1, 5, 2, 4], "int32"),
    "liked": np.array([[1, 0], [0, 0], [8, 2], [0, 3], [4, 4]], "int32"),
    "genre_history": np.array(
        [[1, 2, 3, 4], [5, 1, 5, 1], [2, 3, 3, 4], [1, 5, 0, 2], [0, 1, 0, 0]], "int32"
    ),
    "age_history": np.array(
        [
            [9000, 300, 120, 59],
            [7, 100, 60, -5],
            [480, 0, 479, 119],
            [2**31 - 1, 1, 77, 1],
            [0, 1, 9, 99],
        ],
        "int32",
    ),
}
AGES = (60, 120, 240, 480)  # the first seconds of buckets 1 to 4
MASK = X["item_history"] > 0
SMALL = {
    "history": HISTORY,
    "embedding_dim": 2,
    "num_positions": 3,
    "hidden_units": (5, 4),
}


class Twin:
    """The parts of a model for one row of `X`, in float64.

    Args:
        model: Model of a builder, of `FEATURES` or `FIXED`, and `SMALL`.
        row: Number of the row.
    """

    def __init__(self, model, row):
        self.model = model
        self.x = {name: values[row] for name, values in X.items()}
        self.mask = MASK[row][None]
        self.target = self._joined("item", "genre")
        self.value = np.zeros((1, 4, len(self.target)))
        for place in np.flatnonzero(MASK[row]):
            self.value[0, place] = self._event(place)

    def weights(self, part):
        """Weights of the layer `{name}_{part}`."""
        layer = self.model.get_layer(f"{self.model.name}_{part}")
        return [weight.astype("float64") for weight in layer.get_weights()]

    def by_layer(self, part, *inputs, **arguments):
        """What the layer `{name}_{part}` gives for inputs in float32."""
        layer = self.model.get_layer(f"{self.model.name}_{part}")
        inputs = [x.astype("float32") for x in inputs]
        return array(layer(*inputs, **arguments)).astype("float64")

    def logit(self, interests):
        """The network on interests, target and all other features, without a bias."""
        user = field_table(self.model, f"{self.model.name}_fields-tables", "user")
        (items,) = self.weights("fields_items")
        liked = [items[item] for item in self.x["liked"] if item]
        liked = np.sum(liked, axis=0) / len(liked) ** 0.5 if liked else np.zeros(2)
        price = [(float(self.x["price"]) - 2) / 4]
        others = [user[self.x["user"]], liked, price]
        x = np.concatenate([*interests, self.target, *others])
        for part in ("dense_0", "dense_1"):
            kernel, bias = self.weights(part)
            x = np.maximum(x @ kernel + bias, 0)
        (kernel,) = self.weights("deep_logit")
        return x @ kernel[:, 0]

    def _joined(self, item, genre, place=()):
        (items,), (genres,) = (
            self.weights("fields_items"),
            self.weights("fields_genres"),
        )
        return np.concatenate(
            [items[self.x[item][place]], genres[self.x[genre][place]]]
        )

    def _event(self, place):
        age, ago = self.x["age_history"][place], self.mask[0, place:].sum()
        bucket = sum(age >= first for first in AGES)
        (ages,) = self.weights("fields_age_history")
        (positions,) = self.weights("history-positions")
        item = self._joined("item_history", "genre_history", place)
        return item + ages[bucket] + positions[min(ago, 3)]


def check_twin(model, interests):
    """Compares a model of random weights with its formula, row by row.

    Args:
        model: Model of a builder, of `FEATURES` or `FIXED`, and `SMALL`.
        interests: Callable from a `Twin` to the list of interests.
    """
    randomize(model, np.random.default_rng(3))
    twins = [Twin(model, row) for row in range(5)]
    (bias,) = twins[0].weights("probability")[0]
    logits = np.array([twin.logit(interests(twin)) for twin in twins]) + bias
    assert np.ptp(logits) > 0.05
    got = array(model(X)["probability"])[:, 0]
    np.testing.assert_allclose(got, 1 / (1 + np.exp(-logits)), rtol=5e-5, atol=1e-6)


def copy_weights(model, other):
    """Gives each layer of a model the weights of its namesake in another model."""
    for layer in model.layers:
        if layer.weights:
            name = layer.name.replace(model.name, other.name, 1)
            layer.set_weights(other.get_layer(name).get_weights())


def part_of(model, part):
    """The model up to the layer `{name}_{part}`."""
    return keras.Model(model.input, model.get_layer(f"{model.name}_{part}").output)
