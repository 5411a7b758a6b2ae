"""What the tests of click models share: features, rows, and parts in NumPy."""

import keras
import numpy as np
from helpers import array, field_table, randomize

from keras_recsys.features import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
)

# A feature of each kind, the numbers among the ids.
FEATURES = (
    CategoricalFeature("user", 40, embedding="qr", num_buckets=6),
    NumericFeature("price", normalization="zscore", mean=20.0, std=4.0),
    CategoricalFeature("item", 9),
    SequenceFeature("genres", 6, pooling="sqrtn"),
    NumericFeature("count", normalization="log", mean=1.0, std=0.5),
    CategoricalFeature("city", 5, out_of_range="oov"),
)
NUMBERS = ("price", "count")
IDS = ("user", "item", "genres", "city")
_RNG = np.random.default_rng(0)
X = {
    "user": np.array([0, 39, 7, 12, 23, 30], "int32"),
    "price": _RNG.normal(20, 4, 6).astype("float32"),
    "item": _RNG.integers(0, 9, 6).astype("int32"),
    "genres": np.array(
        [[1, 2, 0], [0, 0, 0], [5, 0, 3], [4, 4, 1], [0, 2, 0], [3, 1, 2]], "int32"
    ),
    "count": np.array([-1.0, 0.0, 3.0, 50.0, 7.0, 1.0], "float32"),
    "city": np.array([0, 4, 99, 2, 1, 3], "int32"),  # 99 is in no vocabulary
}


def chosen(names):
    """The features and the columns of some names."""
    features = [feature for feature in FEATURES if feature.name in names]
    return features, {feature.name: X[feature.name] for feature in features}


def simple(count=3, vocab_size=10):
    return [CategoricalFeature(f"c{i}", vocab_size) for i in range(count)]


class Twin:
    """The parts of a model for one row of `X`, in float64.

    Args:
        model: Model of a builder, of features of `FEATURES`.
        row: Number of the row.
    """

    def __init__(self, model, row):
        self.model = model
        self.x = {name: X[name][row] for name in model.input}

    def weights(self, part):
        """Weights of the layer `{name}_{part}`."""
        layer = self.model.get_layer(f"{self.model.name}_{part}")
        return [weight.astype("float64") for weight in layer.get_weights()]

    def numbers(self, names=NUMBERS):
        """The normalized numbers, in the order of the features."""
        normal = {}
        if "price" in self.x:
            normal["price"] = (float(self.x["price"]) - 20) / 4
        if "count" in self.x:
            normal["count"] = (np.log1p(max(float(self.x["count"]), 0)) - 1) / 0.5
        return np.array([value for name, value in normal.items() if name in names])

    def vector(self, name, part="fields", combine=np.multiply):
        """The vector of one feature of ids."""
        value = self.x[name]
        prefix = f"{self.model.name}_{part}"
        if name == "user":
            quotients, remainders = self.weights(f"{part}_user")
            return combine(quotients[value // 6], remainders[value % 6])
        if name == "item":
            return field_table(self.model, f"{prefix}-tables", "item")[value]
        if name == "city":
            table = field_table(self.model, f"{prefix}-tables-oov", "city")
            return (
                table[value] if value < 5 else self.weights(f"{part}-tables-oov")[1][0]
            )
        (table,) = self.weights(f"{part}_genres")
        kept = [table[genre] for genre in value if genre != 0]
        if not kept:
            return np.zeros(table.shape[1])
        return np.sum(kept, axis=0) / len(kept) ** 0.5

    def fields(self, part="fields", combine=np.multiply, names=None):
        """All vectors, `(num_fields, embedding_dim)`."""
        names = list(self.x) if names is None else names
        numbers = [name for name in self.x if name in NUMBERS]
        vectors = []
        for name in names:
            if name in NUMBERS:
                (kernel,) = self.weights(f"{part}-vectors")
                place = numbers.index(name)
                vectors.append(self.numbers()[place] * kernel[place])
            else:
                vectors.append(self.vector(name, part, combine))
        return np.array(vectors)

    def linear(self, names=None):
        """Sum of the linear weights, without the bias."""
        names = list(self.x) if names is None else names
        total = sum(
            self.vector(name, "linear", np.add)[0] for name in names if name in IDS
        )
        if set(names) & set(NUMBERS):
            (kernel,) = self.weights("linear-numbers")
            total += self.numbers(names) @ kernel[:, 0]
        return total

    def hidden(self, x, layers, activate=lambda x: np.maximum(x, 0)):
        """Hidden layers `0 .. layers - 1`."""
        for i in range(layers):
            kernel, bias = self.weights(f"dense_{i}")
            x = activate(x @ kernel + bias)
        return x

    def unit(self, x, part="deep_logit"):
        """A linear unit without a bias."""
        (kernel,) = self.weights(part)
        return x @ kernel[:, 0]


def check_twin(model, logit):
    """Compares a model of random weights with its formula, row by row.

    Args:
        model: Model of a builder.
        logit: Callable from a `Twin` to the logit without the bias of the head.
    """
    randomize(model, np.random.default_rng(3), scale=0.5)
    (bias,) = Twin(model, 0).weights("probability")[0]
    logits = np.array([logit(Twin(model, row)) for row in range(6)]) + bias
    assert np.ptp(logits) > 0.05
    got = array(model({name: X[name] for name in model.input})["probability"])
    want = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(got[:, 0], want, rtol=5e-5, atol=1e-6)


def check_missing_number_is_loud(build, names=("item", *NUMBERS), **settings):
    """NaN in exactly the row of the number, and NaN as the loss of training."""
    features, x = chosen(names)
    x["price"] = x["price"].copy()
    model = build(features, **settings)
    want = model.predict(x, verbose=0)["probability"]
    assert np.isfinite(want).all()
    x["price"][2] = np.nan
    got = model.predict(x, verbose=0)["probability"]
    assert np.flatnonzero(np.isnan(got)).tolist() == [2]
    np.testing.assert_allclose(np.delete(got, 2), np.delete(want, 2), rtol=1e-6)
    model.compile("sgd", "binary_crossentropy")
    assert np.isnan(model.train_on_batch(x, np.zeros((6, 1), "float32")))


def check_sparse_gradients(model, tables):
    """No gradient of the tables is dense, that of a regularizer included."""
    import tensorflow as tf

    found = [
        w for w in model.trainable_variables if getattr(w, "is_embedding_table", False)
    ]
    assert len(found) == tables
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(X)["probability"]) + sum(model.losses)
    for gradient in tape.gradient(loss, [table.value for table in found]):
        assert isinstance(gradient, tf.IndexedSlices)


def learned_auc(build, epochs=12, learning_rate=0.05, **settings):
    """AUC on labels that only the product of two features tells: equal parity."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 6, (2, 1000))
    labels = ((a % 2) == (b % 2)).astype("float32")
    x = {"a": a.astype("int32"), "b": b.astype("int32")}
    model = build([CategoricalFeature(name, 6) for name in "ab"], **settings)
    model.compile("auto", "binary_crossentropy")
    model.optimizer.learning_rate = learning_rate
    model.fit(x, labels[:, None], batch_size=100, epochs=epochs, verbose=0)
    return auc(labels, array(model(x)["probability"])[:, 0])


def auc(labels, scores):
    """Share of the pairs of a 1 and a 0 that the scores put right; ties are halves."""
    gaps = scores[labels == 1][:, None] - scores[labels == 0]
    return np.mean(gaps > 0) + np.mean(gaps == 0) / 2


def output_of(model, part):
    """The model up to the layer `{name}_{part}`."""
    return keras.Model(model.input, model.get_layer(f"{model.name}_{part}").output)


def golden_model(build, embeddings, **settings):
    """A model whose fields are the vectors of a golden file: one id a sample.

    Returns:
        Tuple of the model, named `"m"`, and its inputs.
    """
    batch_size, num_fields, _ = embeddings.shape
    features = simple(num_fields, batch_size)
    model = build(features, **settings, name="m")
    layer = model.get_layer("m_fields-tables")
    layer.set_weights([np.concatenate(np.moveaxis(embeddings, 1, 0))])
    ids = np.arange(batch_size, dtype="int32")
    return model, {feature.name: ids for feature in features}
