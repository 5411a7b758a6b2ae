"""What all models with a history share, tried on each builder."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
from behavior_twins import FEATURES, FIXED, HISTORY, MASK, SMALL, X
from helpers import BACKEND, array, randomize

from keras_recsys import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
    TimeGapFeature,
    models,
)
from keras_recsys.layers import CompositionalEmbedding
from keras_recsys.models import (
    build_bst,
    build_dien,
    build_din,
    build_mimn,
    build_sam,
    build_ubr4ctr,
    build_youtube_dnn,
)

BUILDERS = {
    "sam": (build_sam, {"num_steps": 1, "attention_dim": 3}),
    "youtube_dnn": (build_youtube_dnn, {}),
    "din": (build_din, {"attention_units": (3,)}),
    "dien": (build_dien, {"attention_units": (3,)}),
    "mimn": (build_mimn, {"num_slots": 2}),
    "ubr4ctr": (build_ubr4ctr, {"retrieval_units": (3,), "attention_units": (3,)}),
    "bst": (build_bst, {"num_heads": 2}),
}
CLICK_BUILDERS = [
    build
    for name, build in vars(models).items()
    if name.startswith("build_") and ".ctr" in build.__module__
]


@functools.cache
def make(kind):
    """A model of random weights; tests leave these as they are."""
    build, settings = BUILDERS[kind]
    model = build(FEATURES, **SMALL, **settings)
    randomize(model, np.random.default_rng(5))
    return model


def answer(model, x):
    return array(model(x)["probability"])


def changed(**columns):
    return {**X, **columns}


@pytest.mark.parametrize("kind", BUILDERS)
def test_only_what_stands_at_events_counts(kind):
    model = make(kind)
    want = answer(model, X)
    noise = {
        "genre_history": np.where(MASK, X["genre_history"], 5),
        "age_history": np.where(MASK, X["age_history"], 10**6),
    }
    np.testing.assert_array_equal(answer(model, changed(**noise)), want)
    # Without events the rest of the row alone is read; with some it is not.
    for name in ("genre_history", "age_history"):
        moved = np.abs(answer(model, changed(**{name: X[name][::-1]})) - want)[:, 0]
        assert moved[0] > 1e-6
        assert not moved[4]
    for name in ("item", "genre", "user", "price", "liked"):
        moved = np.abs(answer(model, changed(**{name: X[name][::-1]})) - want)
        assert moved[[0, 4]].min() > 1e-7, name


@pytest.mark.parametrize("kind", BUILDERS)
def test_place_and_amount_of_padding_do_not_matter(kind):
    """Positions are counted from the last event, whatever stands between."""
    model = make(kind)
    rows = {name: np.repeat(x[:1], 4, axis=0) for name, x in X.items()}
    places = ([0, 1, 2, 3], [3, 4, 5, 6], [0, 2, 3, 6], [1, 2, 4, 5])
    for name in HISTORY | {"age_history": None}:
        wide = np.full((4, 7), 0 if name == "item_history" else 2, X[name].dtype)
        for row, place in enumerate(places):
            wide[row, place] = X[name][0]
        rows[name] = wide
    want = np.repeat(answer(model, X)[:1], 4, axis=0)
    np.testing.assert_allclose(answer(model, rows), want, rtol=1e-6)


@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.skipif(BACKEND != "tensorflow", reason="traces a TensorFlow graph")
def test_length_may_be_unknown(kind):
    import tensorflow as tf

    model = make(kind)
    specs = {
        name: tf.TensorSpec((None,) * values.ndim, values.dtype)
        for name, values in X.items()
    }
    traced = tf.function(lambda x: model(x)["probability"], [specs])
    for length in (3, 7):
        x = {
            name: np.resize(values, (5, length)) if name.endswith("history") else values
            for name, values in X.items()
        }
        np.testing.assert_allclose(traced(x), answer(model, x), rtol=1e-5, atol=1e-6)
    assert traced.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("kind", BUILDERS)
def test_missing_number_is_loud(kind):
    price = X["price"].copy()
    price[2] = np.nan
    got = answer(make(kind), changed(price=price))
    assert np.flatnonzero(np.isnan(got)).tolist() == [2]


@pytest.mark.parametrize("kind", BUILDERS)
def test_history_and_target_may_be_all_there_is(kind):
    build, settings = BUILDERS[kind]
    features = [CategoricalFeature("item", 9), SequenceFeature("seen", 9, table="item")]
    arguments = {"history": {"seen": "item"}, "embedding_dim": 2, **settings}
    model = build(features, **arguments, hidden_units=())
    (table,) = [w for w in model.weights if tuple(w.shape) == (9, 2)]
    assert table.path == f"{model.name}_fields_item/embeddings"
    x = {"item": X["item"], "seen": X["item_history"]}
    assert np.isfinite(answer(model, x)).all()


@pytest.mark.parametrize("embedding", ["qr", "hash", "callable"])
def test_tables_of_any_kind_are_shared(embedding):
    kind = {
        "qr": {"embedding": "qr", "num_buckets": 3},
        "hash": {"embedding": "hash", "num_buckets": 4},
        "callable": {
            "embedding": lambda n, dim, name: CompositionalEmbedding(n, dim, name=name)
        },
    }[embedding]
    features = [
        dataclasses.replace(feature, **kind)
        if getattr(feature, "table", None) == "items"
        else feature
        for feature in FEATURES
    ]
    model = build_sam(features, **SMALL)
    layers = [x for x in model.layers if x.name == "sam_fields_items"]
    assert len(layers) == 1
    assert np.isfinite(answer(model, X)).all()


def test_tables_of_the_history_may_be_read_by_other_features():
    """A second target of the same table, and a table that others alone share."""
    features = (
        *FEATURES,
        CategoricalFeature("last", 9, table="items"),
        CategoricalFeature("home", 4, table="cities"),
        CategoricalFeature("shop", 4, table="cities"),
    )
    model = build_youtube_dnn(features, **SMALL)
    names = [weight.path for weight in model.weights if "fields" in weight.path]
    assert sorted(names) == [
        "youtube_dnn_fields-tables/embeddings",
        "youtube_dnn_fields_age_history/embeddings",
        "youtube_dnn_fields_cities/embeddings",
        "youtube_dnn_fields_genres/embeddings",
        "youtube_dnn_fields_items/embeddings",
    ]
    more = {name: np.array([1, 2, 3, 0, 1]) for name in ("last", "home", "shop")}
    assert np.isfinite(answer(model, {**X, **more})).all()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow has sparse ones")
def test_gradients_of_tables_are_sparse():
    import tensorflow as tf

    model = build_sam(FEATURES, **SMALL, embeddings_regularizer="l2")
    tables = [
        w for w in model.trainable_weights if getattr(w, "is_embedding_table", False)
    ]
    assert len(tables) == 3
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(X)["probability"]) + sum(model.losses)
    for gradient in tape.gradient(loss, [table.value for table in tables]):
        assert isinstance(gradient, tf.IndexedSlices)


def test_regularizer_leaves_padding_out():
    """By hand: `sum of squares / rows`, once for each use of a table."""
    features = [CategoricalFeature("item", 9), SequenceFeature("seen", 9, table="item")]
    arguments = {"history": {"seen": "item"}, "embedding_dim": 2, "hidden_units": ()}
    regularizer = keras.regularizers.L2(1.0)
    model = build_youtube_dnn(
        features, **arguments, embeddings_regularizer=regularizer, name="m"
    )
    randomize(model, np.random.default_rng(0))
    (table,) = model.get_layer("m_fields_item").get_weights()
    square = (table**2).sum(1)
    x = {"item": X["item"], "seen": X["item_history"]}
    want = (square[x["item"]].sum() + square[x["seen"]][MASK].sum()) / 5
    for seen in (x["seen"], np.pad(x["seen"], ((0, 0), (3, 1)))):
        model({**x, "seen": seen})
        got = sum(float(array(loss)) for loss in model.losses)
        assert got == pytest.approx(want, rel=1e-5)


@pytest.mark.filterwarnings(
    "ignore:Explicitly requested dtype int64"
)  # by Keras on JAX
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_times_past_the_dtype_are_in_the_last_bucket(dtype):
    """Id inputs make -1 of what they cannot hold, which is a time of bucket 0."""
    features = [
        dataclasses.replace(feature, dtype=dtype) if "age" in feature.name else feature
        for feature in FEATURES
    ]
    model = build_youtube_dnn(features, **SMALL)
    randomize(model, np.random.default_rng(0))

    def ages(value, of="int64"):
        return answer(model, changed(age_history=np.full((5, 4), value, of)))

    last, first = ages(480), ages(0)
    assert np.abs(last - first).max() > 1e-4
    for value in (2**31 - 1, 2**31, 2**40, 2**62):
        np.testing.assert_array_equal(ages(value), last)
    for value in (-1, -(2**31), -(2**40)):
        np.testing.assert_array_equal(ages(value), first)
    np.testing.assert_array_equal(ages(2**32 - 1, "uint32"), last)
    np.testing.assert_array_equal(ages(2**64 - 1, "uint64"), last)
    np.testing.assert_array_equal(ages(100, "int8"), ages(100))
    if dtype != "float32":
        with pytest.raises(TypeError, match="Input 'age_history' must hold ids.*float"):
            ages(480.0, "float64")


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tensors of 64 bits")
def test_times_of_tensors_past_the_dtype():
    import tensorflow as tf

    features = [
        dataclasses.replace(feature, dtype="int32")
        if "age" in feature.name
        else feature
        for feature in FEATURES
    ]
    model = build_youtube_dnn(features, **SMALL)
    randomize(model, np.random.default_rng(0))

    def ages(value, dtype):
        return answer(
            model, changed(age_history=tf.constant(np.full((5, 4), value, dtype)))
        )

    last = ages(480, "int32")
    for value, dtype in (
        (2**40, "int64"),
        (2**32 - 1, "uint32"),
        (2**64 - 1, "uint64"),
        (480.5, "float32"),
        (1e30, "float32"),
    ):
        np.testing.assert_array_equal(ages(value, dtype), last)
    np.testing.assert_array_equal(ages(59.5, "float32"), ages(0, "int32"))
    np.testing.assert_array_equal(ages(-(2**40), "int64"), ages(0, "int32"))
    # `fit` and `predict` give tensors too, and a loaded model knows its times.
    x = changed(age_history=np.full((5, 4), 2**40))
    again = type(model).from_config(model.get_config())
    again.set_weights(model.get_weights())
    got = again.predict(x, verbose=0)["probability"]
    np.testing.assert_allclose(got, last, rtol=1e-6)


def test_ids_past_int32_stay_out_of_range():
    with pytest.raises(ValueError, match=r"\[0, 9\).*id -1"):
        make("youtube_dnn")(changed(item=X["item"].astype("int64") + 2**32))


def with_(**new):
    """`FEATURES` with other ones in place of their namesakes, or none."""
    kept = [new.pop(f.name) if f.name in new else f for f in FEATURES]
    return [feature for feature in (*kept, *new.values()) if feature is not None]


@pytest.mark.parametrize(
    ("features", "history", "message"),
    [
        (FEATURES, {}, r"`history` must be a dict.*history=\{\}"),
        (FEATURES, None, "`history` must be a dict.*history=None"),
        (FEATURES, ["item_history"], r"`history` must be a dict.*\['item_history'\]"),
        (
            FEATURES,
            {"item": "item_history"},
            "from a SequenceFeature.*'item' is a Categ",
        ),
        (FEATURES, {"item_history": "liked"}, "'liked' is a SequenceFeature"),
        (FEATURES, {"item_history": "price"}, "'price' is a NumericFeature"),
        (FEATURES, {"age_history": "item"}, "'age_history' is a TimeGapFeature"),
        ([*FEATURES, "x"], HISTORY, "`features` must hold CategoricalFeature.*'x'"),
    ],
)
def test_says_what_history_was_given(features, history, message):
    with pytest.raises(TypeError, match=message):
        build_din(features, history=history)


@pytest.mark.parametrize(
    ("features", "history", "message"),
    [
        ([], HISTORY, "`features` must hold at least one feature"),
        (
            FEATURES,
            {"x": "item"},
            r"must hold names of features, \['user'.*Received: 'x'",
        ),
        (FEATURES, {"item_history": "x"}, "must hold names of features.*Received: 'x'"),
        (
            FEATURES,
            {"item_history": "item", "liked": "item"},
            r"name each feature of the target once.*\['item', 'item'\]",
        ),
        (
            FEATURES,
            {"item_history": "genre"},
            "share a table; give both `table='genres'`.*'items' for 'item_history'",
        ),
        (
            with_(item_history=SequenceFeature("item_history", 9)),
            HISTORY,
            "give both `table='items'`.*'item_history' for 'item_history', 'items' for",
        ),
        (
            with_(item_history=SequenceFeature("item_history", 8, table="items")),
            HISTORY,
            "`vocab_size` must be the same.*'items'.*9 for 'item', 8 for 'item_hist",
        ),
        (
            with_(liked=SequenceFeature("liked", 8, table="items")),
            HISTORY,
            "`vocab_size` must be the same.*'items'.*9 for 'item', 8 for 'liked'",
        ),
        (
            with_(more=TimeGapFeature("more")),
            HISTORY,
            r"at most one TimeGapFeature.*\['age_history', 'more'\]",
        ),
        (
            with_(item_history=FIXED[2]),
            HISTORY,
            r"`max_len` must be the same.*'item_history': 4, 'genre_history': None",
        ),
        (
            with_(item_history=FIXED[2], genre_history=FIXED[6]),
            HISTORY,
            "`max_len` must be the same.*'age_history': None",
        ),
    ],
)
def test_says_what_features_were_given(features, history, message):
    with pytest.raises(ValueError, match=message):
        build_din(features, history=history)


@pytest.mark.parametrize("build", CLICK_BUILDERS)
def test_times_without_a_history_are_refused(build):
    features = [
        CategoricalFeature("a", 5),
        TimeGapFeature("age"),
        NumericFeature("price"),
        CategoricalFeature("b", 5),
    ]
    with pytest.raises(TypeError, match="no TimeGapFeature where there is no history"):
        build(features)


TWO_COLUMNS = [
    CategoricalFeature("item", 9, table="item"),
    SequenceFeature("history", 9, table="item"),
    CategoricalFeature("genre", 5, table="genre"),
    SequenceFeature("genres", 5, table="genre"),
]
PAIRS = {"history": "item", "genres": "genre"}


def test_nothing_is_broadcast_along_a_history():
    features = [
        CategoricalFeature("item", 9, table="item"),
        SequenceFeature("history", 9, table="item"),
        TimeGapFeature("gap"),
    ]
    model = build_sam(features, history={"history": "item"}, embedding_dim=4)
    for gaps, history in (([[9, 9, 9]], [[1]]), ([[9]], [[1, 2, 3]])):
        rows = {
            "item": np.array([1], "int32"),
            "history": np.array(history, "int32"),
            "gap": np.array(gaps, "int32" if BACKEND == "jax" else "int64"),
        }
        with pytest.raises(Exception, match="(?i)reshape|shape"):
            model(rows)


@pytest.mark.parametrize("genres", [[[2]], [[2, 2, 2, 2]], [[]]])
def test_says_that_histories_have_two_lengths(genres):
    model = build_din(TWO_COLUMNS, history=PAIRS, embedding_dim=4)
    rows = {"item": [1], "genre": [2], "history": [[1, 2, 3]], "genres": genres}
    rows = {name: np.array(x, "int32") for name, x in rows.items()}
    message = f"one length.* 3. Received: length {len(genres[0])} at .*genres-padded"
    with pytest.raises(ValueError, match=message):
        model(rows)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        # Lengths that a graph does not know are compared when it runs.
        graph = tf.function(model, reduce_retracing=True, autograph=False)
        specs = {
            name: tf.TensorSpec([None] * x.ndim, x.dtype) for name, x in rows.items()
        }
        step = graph.get_concrete_function(specs)
        with pytest.raises(tf.errors.InvalidArgumentError, match="genres-padded"):
            step({name: tf.constant(x) for name, x in rows.items()})


def test_ids_under_the_padding_of_a_second_column_have_no_effect():
    model = build_din(TWO_COLUMNS, history=PAIRS, embedding_dim=4)
    rows = {"item": [1], "genre": [2], "history": [[1, 0, 3]], "genres": [[1, 0, 2]]}
    rows = {name: np.array(x) for name, x in rows.items()}
    want = array(model(rows)["probability"])
    rows["genres"][0, 1] = 99
    np.testing.assert_array_equal(array(model(rows)["probability"]), want)


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_a_nan_of_the_history_is_not_swallowed(name):
    shared = {"table": "item", "out_of_range": "nan"}
    features = [
        CategoricalFeature("item", 9, **shared),
        SequenceFeature("history", 9, **shared),
    ]
    build = getattr(models, f"build_{name.removeprefix('build_')}")
    model = build(features, history={"history": "item"}, embedding_dim=8)
    rows = {"item": np.array([1, 1]), "history": np.array([[1, 99, 0], [1, 2, 0]])}
    got = array(model(rows)["probability"])[:, 0]
    np.testing.assert_array_equal(np.isnan(got), [True, False])
