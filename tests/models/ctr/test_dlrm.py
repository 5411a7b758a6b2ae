import keras
import numpy as np
import pytest
from helpers import array, check_model, field_table, randomize

from keras_recsys.features import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
)
from keras_recsys.layers import FullEmbedding, QREmbedding
from keras_recsys.models import build_dlrm

FEATURES = (
    CategoricalFeature("user", 300),
    NumericFeature("price", normalization="zscore", mean=20.0, std=4.0),
    SequenceFeature("genres", 6, pooling="sum"),
    CategoricalFeature("city", 5, embedding="qr", num_buckets=2),
    NumericFeature("count", normalization="log"),
)
RNG = np.random.default_rng(0)
X = {
    "user": RNG.integers(0, 300, 6).astype("int32"),
    "price": RNG.normal(20, 4, 6).astype("float32"),
    "genres": RNG.integers(0, 6, (6, 4)).astype("int32"),
    "city": RNG.integers(0, 5, 6).astype("int32"),
    "count": RNG.integers(0, 50, 6).astype("float32"),
}
SETTINGS = {"embedding_dim": 4, "bottom_units": (7,), "top_units": (6, 3)}


@pytest.mark.parametrize("combiner", ["multiply", "add", "concat"])
def test_contract(combiner, tmp_path):
    check_model(
        lambda **kw: build_dlrm(
            FEATURES,
            **SETTINGS,
            combiner=combiner,
            dropout=0.3,
            seed=1,
            embeddings_regularizer="l2",
            **kw,
        ),
        X,
        tmp_path,
    )


@pytest.mark.parametrize("numeric", [0, 1, 2])
def test_equals_the_loop(numeric):
    """The formula of the docstring, one row at a time, in float64."""
    features = [f for f in FEATURES if not isinstance(f, NumericFeature)]
    features += [NumericFeature(f"n{i}") for i in range(numeric)]
    x = {f.name: X[f.name] for f in features if f.name in X}
    x |= {f"n{i}": RNG.normal(size=6).astype("float32") for i in range(numeric)}
    model = build_dlrm(features, **SETTINGS)
    randomize(model, np.random.default_rng(3), scale=0.6)

    def weights(name):
        layer = model.get_layer(f"dlrm_{name}")
        return [w.astype("float64") for w in layer.get_weights()]

    def dense(v, name, relu=True):
        kernel, *bias = weights(name)
        v = v @ kernel + (bias[0] if bias else 0)
        return np.maximum(v, 0) if relu else v

    users = field_table(model, "dlrm_fields-tables", "user")
    (genres,) = weights("fields_genres")
    quotients, remainders = weights("fields_city")
    (bias,) = weights("probability")
    want = []
    for r in range(6):
        vectors = [
            users[x["user"][r]],
            sum((genres[g] for g in x["genres"][r] if g), np.zeros(4)),
            quotients[x["city"][r] // 2] * remainders[x["city"][r] % 2],
        ]
        z = []
        if numeric:
            numbers = np.array([x[f"n{i}"][r] for i in range(numeric)], "float64")
            z = dense(dense(numbers, "bottom_dense_0"), "bottom")
            vectors = [z, *vectors]
        dots = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
        h = np.concatenate([z, dots])
        h = dense(dense(h, "top_dense_0"), "top_dense_1")
        logit = dense(h, "logit", relu=False) + bias
        want.append(1 / (1 + np.exp(-logit)))
    got = array(model(x)["probability"])
    np.testing.assert_allclose(got, np.array(want).reshape(6, 1), rtol=2e-5)


def test_threshold_makes_qr_tables():
    model = build_dlrm(FEATURES, **SETTINGS, qr_threshold=200, qr_num_buckets=4)
    user = model.get_layer("dlrm_fields_user")
    assert isinstance(user, QREmbedding)
    assert user.num_buckets == 4
    assert isinstance(model.get_layer("dlrm_fields_genres"), FullEmbedding)
    assert model.get_layer("dlrm_fields_city").num_buckets == 2
    model = build_dlrm(FEATURES, **SETTINGS, qr_threshold=300)  # strictly above
    assert model.get_layer("dlrm_fields-tables").field_names == ("user",)


def test_numbers_alone_or_one_vector_are_refused():
    for features in ([NumericFeature("a")], [CategoricalFeature("a", 3)]):
        with pytest.raises(ValueError, match=r"at least two vectors.*\['a'\]"):
            build_dlrm(features)


def test_buckets_need_a_threshold():
    with pytest.raises(ValueError, match="`qr_num_buckets` must be None.*=4"):
        build_dlrm(FEATURES, qr_num_buckets=4)


def test_no_gradient_of_a_table_is_dense():
    import tensorflow as tf

    model = build_dlrm(FEATURES, **SETTINGS, embeddings_regularizer="l2")
    tables = [
        w for w in model.trainable_variables if getattr(w, "is_embedding_table", False)
    ]
    assert len(tables) == 4
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(X)["probability"]) + sum(model.losses)
    for gradient in tape.gradient(loss, [table.value for table in tables]):
        assert isinstance(gradient, tf.IndexedSlices)


def test_learns_a_product_of_two_features():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 10, (2, 2000))
    labels = ((a % 2) == (b % 2)).astype("float32")[:, None]
    features = [CategoricalFeature("a", 10), CategoricalFeature("b", 10)]
    model = build_dlrm(features, embedding_dim=4, top_units=(8,), seed=0)
    model.compile("auto", "binary_crossentropy", metrics=["AUC"])
    model.optimizer.learning_rate = 0.02
    x = {"a": a.astype("int32"), "b": b.astype("int32")}
    model.fit(x, labels, batch_size=100, epochs=15, verbose=0)
    assert model.evaluate(x, labels, verbose=0, return_dict=True)["AUC"] > 0.97


def test_dots_are_named():
    model = build_dlrm(FEATURES, **SETTINGS)
    inner = keras.Model(model.input, model.get_layer("dlrm_dots").output)
    assert array(inner(X)).shape == (6, 6)  # four vectors make six pairs


@pytest.mark.parametrize("numbers", [("price",), ("price", "count")])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_missing_number_is_loud(numbers, bad):
    features = [f for f in FEATURES if f.name in ("user", "city", *numbers)]
    model = build_dlrm(features, **SETTINGS)
    x = {f.name: X[f.name].copy() for f in features}
    want = model.predict(x, verbose=0)["probability"]
    assert np.isfinite(want).all()
    x["price"][2] = bad
    got = model.predict(x, verbose=0)["probability"]
    assert np.flatnonzero(np.isnan(got)).tolist() == [2]
    np.testing.assert_allclose(np.delete(got, 2), np.delete(want, 2), rtol=1e-6)
    model.compile("auto", "binary_crossentropy")
    loss = model.train_on_batch(x, np.zeros((6, 1), "float32"))
    assert np.isnan(loss)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_an_id_outside_is_loud_where_it_is_nan(jit_compile):
    features = [
        CategoricalFeature("user", 300, out_of_range="nan"),
        CategoricalFeature("city", 5, out_of_range="nan"),
    ]
    model = build_dlrm(features, **SETTINGS)
    x = {"user": X["user"].copy(), "city": X["city"]}
    x["user"][4] = 999
    model.compile("auto", "binary_crossentropy", jit_compile=jit_compile)
    got = model.predict(x, verbose=0)["probability"]
    assert np.flatnonzero(np.isnan(got)).tolist() == [4]
    assert np.isnan(model.train_on_batch(x, np.zeros((6, 1), "float32")))


def test_padding_is_not_regularized():
    features = [
        CategoricalFeature("user", 300),
        SequenceFeature("genres", 6),
    ]
    model = build_dlrm(features, **SETTINGS, embeddings_regularizer="l2")
    losses = []
    for width in (1, 2, 20):
        genres = np.zeros((6, width), "int32")
        genres[:, 0] = 3
        model({"user": X["user"], "genres": genres})
        losses.append(float(sum(model.losses)))
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)


def test_stacked_tables_have_no_dots():
    with pytest.raises(ValueError, match="`combiner` must be one of.*'stack'"):
        build_dlrm(FEATURES, combiner="stack")
