"""`grow_vocabulary`: more ids, and nothing of the old ones moves."""

import keras
import numpy as np
import pytest
from helpers import array, randomize

from keras_recsys.features import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
    embed_fields,
    make_inputs,
)
from keras_recsys.layers import CompositionalEmbedding, FullEmbedding
from keras_recsys.models import build_dlrm, build_fibinet, build_fm, grow_vocabulary
from keras_recsys.optimizers import (
    LazyAdam,
    RowWiseAdagrad,
    SparseLossScaleOptimizer,
    SplitOptimizer,
)

FEATURES = (
    CategoricalFeature("user", 1000, embedding="qr", num_buckets=30),
    CategoricalFeature("item", 9, table="items", out_of_range="oov"),
    SequenceFeature("history", 9, table="items", out_of_range="oov"),
    NumericFeature("price"),
)
RNG = np.random.default_rng(0)
X = {
    "user": RNG.integers(0, 1000, 8).astype("int32"),
    "item": RNG.integers(0, 9, 8).astype("int32"),
    "history": RNG.integers(0, 9, (8, 3)).astype("int32"),
    "price": RNG.normal(size=8).astype("float32"),
}
Y = (np.arange(8) % 2).astype("float32")[:, None]


@pytest.mark.parametrize("build", [build_dlrm, build_fibinet])
def test_old_ids_are_answered_as_before(build):
    model = build(FEATURES, embedding_dim=4)
    randomize(model, np.random.default_rng(1), scale=0.3)
    grown = grow_vocabulary(model, {"user": 1500, "item": 12})
    np.testing.assert_array_equal(
        array(grown(X)["probability"]), array(model(X)["probability"])
    )
    assert type(grown) is type(model)
    assert grown.name == model.name
    new = {**X, "user": X["user"] + 500, "item": X["item"] + 3}
    assert np.isfinite(array(grown(new)["probability"])).all()
    with pytest.raises(ValueError, match=r"'user'.*\[0, 1000\)"):
        model(new)
    prefix = f"{model.name}_fields"
    tables = [w.shape for w in grown.get_layer(f"{prefix}_user").get_weights()]
    assert tables == [(50, 4), (30, 4)]  # only quotients were added
    assert grown.get_layer(f"{prefix}_items").input_dim == 12


def test_training_goes_on():
    """A grown model trains on old ids exactly as the one that did not grow."""
    for make in (
        lambda: LazyAdam(0.05),
        lambda: SparseLossScaleOptimizer(LazyAdam(0.05)),
        lambda: SplitOptimizer(RowWiseAdagrad(0.05), keras.optimizers.Adam(0.05)),
        lambda: keras.optimizers.Adagrad(0.05),
    ):
        model = build_dlrm(FEATURES, embedding_dim=4, top_units=(8,))
        model.compile(make(), "binary_crossentropy", metrics=["AUC"])
        for _ in range(3):
            model.train_on_batch(X, Y)
        grown = grow_vocabulary(model, {"user": 1500, "history": 12})
        assert int(grown.optimizer.iterations) == 3
        for _ in range(2):
            first = model.train_on_batch(X, Y)
            second = grown.train_on_batch(X, Y)
            np.testing.assert_array_equal(first[0], second[0])
        np.testing.assert_array_equal(
            array(grown(X)["probability"]), array(model(X)["probability"])
        )


def test_new_ids_learn():
    model = build_dlrm(FEATURES, embedding_dim=4)
    grown = grow_vocabulary(model, {"item": 12})
    grown.compile(LazyAdam(0.05), "binary_crossentropy")
    x = {**X, "item": np.full(8, 11, "int32")}
    layer = grown.get_layer("dlrm_fields_items")
    before = array(layer.embeddings)
    grown.train_on_batch(x, Y)
    moved = np.flatnonzero((array(layer.embeddings) != before).any(axis=1))
    assert 11 in moved
    assert set(moved.tolist()) <= {11, *X["history"].ravel().tolist()}


def test_a_model_of_your_own():
    ids = keras.Input((3,), dtype="int32", name="ids")
    shifted = keras.layers.Maximum()([ids, ids])
    x = CompositionalEmbedding(11, 4, sizes=(2, 3, 2), name="table")(shifted)
    model = keras.Model(ids, keras.layers.Dense(1)(x))
    grown = grow_vocabulary(model, {"ids": 40})
    assert grown.get_layer("table").sizes == (2, 3, 7)
    x = np.array([[0, 4, 10]])
    np.testing.assert_array_equal(array(grown(x)), array(model(x)))


def test_saved_after_growing(tmp_path):
    model = build_dlrm(FEATURES, embedding_dim=4)
    grown = grow_vocabulary(model, {"user": 1500})
    grown.save(tmp_path / "grown.keras")
    loaded = keras.models.load_model(tmp_path / "grown.keras")
    np.testing.assert_array_equal(
        array(loaded(X)["probability"]), array(grown(X)["probability"])
    )


def test_pretrained_vectors_stay():
    vectors = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    ids = keras.Input((), dtype="int32", name="ids")
    layer = FullEmbedding(5, 4, embeddings_initializer=vectors, name="table")
    grown = grow_vocabulary(keras.Model(ids, layer(ids)), {"ids": 7})
    (table,) = grown.get_layer("table").get_weights()
    np.testing.assert_array_equal(table[:5], vectors)
    assert np.isfinite(table).all()
    assert table[5:].std() > 0


def test_says_what_was_given():
    model = build_dlrm(FEATURES, embedding_dim=4)
    with pytest.raises(ValueError, match=r"names of inputs, \[.*'user'\].*'users'"):
        grow_vocabulary(model, {"users": 5})
    with pytest.raises(ValueError, match="'price', which feeds none"):
        grow_vocabulary(model, {"price": 5})
    with pytest.raises(ValueError, match="one size for table 'dlrm_fields_items'"):
        grow_vocabulary(model, {"item": 12, "history": 13})
    with pytest.raises(ValueError, match="at least that of now, 1000.*=999"):
        grow_vocabulary(model, {"user": 999})
    with pytest.raises(TypeError, match=r"`vocab_sizes\['user'\]` must be an integer"):
        grow_vocabulary(model, {"user": 1500.0})


def test_averages_of_new_rows_start_from_the_rows():
    model = build_dlrm(FEATURES, embedding_dim=4)
    optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, "binary_crossentropy")
    model.fit(X, Y, epochs=3, verbose=0)
    grown = grow_vocabulary(model, {"item": 12})
    layer = grown.get_layer("dlrm_fields_items")
    before = array(layer.embeddings)
    grown.fit(X, Y, verbose=0)  # which ends with the averages in the table
    np.testing.assert_allclose(array(layer.embeddings)[9:], before[9:], rtol=1e-5)


def test_what_cannot_be_copied_is_said():
    model = build_dlrm(FEATURES, embedding_dim=4)

    def my_loss(y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred))

    model.compile("sgd", my_loss)
    with pytest.raises(ValueError, match="register_keras_serializable"):
        grow_vocabulary(model, {"item": 12})
    model.compile("adam", "binary_crossentropy")
    model.train_on_batch(X, Y)
    model.get_layer("dlrm_fields_user").trainable = False
    with pytest.raises(ValueError, match="compiled anew after layers were frozen"):
        grow_vocabulary(model, {"item": 12})
    model.compile("adam", "binary_crossentropy")
    assert grow_vocabulary(model, {"item": 12}).optimizer is not model.optimizer


def test_only_functional_models_grow():
    layer = FullEmbedding(5, 2)
    for model in (
        keras.Sequential([keras.Input((2,), dtype="int32"), layer]),
        keras.Model(),
    ):
        with pytest.raises(ValueError, match="`model` must be a functional model"):
            grow_vocabulary(model, {"ids": 7})
    with pytest.raises(ValueError, match="must be built before it grows"):
        FullEmbedding(5, 2).grow(7)


def test_weights_of_a_bag_are_no_ids():
    ids = keras.Input((3,), dtype="int32", name="ids")
    weights = keras.Input((3,), name="weights")
    layer = FullEmbedding(5, 2, pooling="sum", name="table")
    model = keras.Model([ids, weights], layer(ids, weights=weights))
    with pytest.raises(ValueError, match="'weights', which feeds none"):
        grow_vocabulary(model, {"weights": 9})
    assert grow_vocabulary(model, {"ids": 9}).get_layer("table").input_dim == 9


def answers(model, x):
    return array(model(x)["probability"])


def test_fields_in_the_middle_of_one_table_grow():
    """Old answers and the states of old rows stay, bit by bit."""
    features = [
        CategoricalFeature("a", 4),
        CategoricalFeature("b", 3, out_of_range="oov"),
        CategoricalFeature("c", 5),
        CategoricalFeature("d", 6, out_of_range="oov"),
    ]
    model = build_fm(features, embedding_dim=3)
    model.compile("auto", "binary_crossentropy")
    rng = np.random.default_rng(0)
    x = {f.name: rng.integers(0, f.vocab_size, 16) for f in features}
    y = rng.integers(0, 2, (16, 1)).astype("float32")
    model.fit(x, y, epochs=2, verbose=0)
    grown = grow_vocabulary(model, {"a": 7, "b": 4})
    np.testing.assert_array_equal(answers(grown, x), answers(model, x))
    table = grown.get_layer("fm_fields-tables")
    assert table.vocab_sizes == (7, 5)
    assert grown.get_layer("fm_linear-tables-oov").vocab_sizes == (4, 6)
    for new, old in zip(
        grown.optimizer.variables, model.optimizer.variables, strict=True
    ):
        if new.path.endswith("fm_fields-tables_embeddings_momentum_velocity"):
            new, old = array(new), array(old)
            np.testing.assert_array_equal(new[:4], old[:4])
            np.testing.assert_array_equal(new[4:7], 0.0)
            np.testing.assert_array_equal(new[7:], old[4:])
            assert old.any()
            break
    else:
        pytest.fail("no state of the table")
    for both in (model, grown):  # and they train on alike
        both.fit(x, y, verbose=0, shuffle=False)
    np.testing.assert_allclose(answers(grown, x), answers(model, x), rtol=1e-5)
    grown.fit({**x, "a": np.full(16, 6)}, y, verbose=0)


def test_a_model_with_plain_operations_grows():
    features = [CategoricalFeature("a", 4), CategoricalFeature("b", 3)]
    inputs = make_inputs(features)
    fields = embed_fields(inputs, features, 2)
    model = keras.Model(inputs, keras.ops.sum(fields, axis=1))
    grown = grow_vocabulary(model, {"b": 9})
    x = {"a": np.array([3, 0]), "b": np.array([2, 1])}
    np.testing.assert_array_equal(array(grown(x)), array(model(x)))
    assert grown.get_layer("fields-tables").vocab_sizes == (4, 9)
