import dataclasses

import keras
import numpy as np
import pytest
from helpers import array, field_table

from keras_recsys import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
    TimeGapFeature,
    layers,
    memory,
)
from keras_recsys.features import (
    compress_features,
    embed_fields,
    make_inputs,
    make_table,
    normalize_numbers,
)


def embed(features, data, dim=3, **arguments):
    inputs = make_inputs(features)
    fields = embed_fields(inputs, features, dim, **arguments)
    model = keras.Model(inputs, fields)
    return model, array(model(data))


def test_inputs_have_names_shapes_and_dtypes():
    inputs = make_inputs(
        [
            CategoricalFeature("city", 9, dtype="int64"),
            SequenceFeature("seen", 9),
            SequenceFeature("genres", 9, max_len=4),
            NumericFeature("age"),
        ]
    )
    got = {name: (x.name, x.shape, x.dtype) for name, x in inputs.items()}
    assert got == {
        "city": ("city", (None,), "int64"),
        "seen": ("seen", (None, None), "int32"),
        "genres": ("genres", (None, 4), "int32"),
        "age": ("age", (None,), "float32"),
    }


def test_inputs_of_another_model_are_taken():
    features = [CategoricalFeature("city", 9), NumericFeature("age")]
    first = make_inputs(features)
    second = make_inputs(features, {**first, "other": None})
    assert all(second[name] is first[name] for name in first)
    with pytest.raises(ValueError, match=r"`inputs\['age'\]` must be float32.*int32"):
        make_inputs(features, {"age": first["city"]})


def test_inputs_of_another_model_must_fit():
    features = [CategoricalFeature("a", 9), CategoricalFeature("b", 9)]
    x = keras.Input((), dtype="int32")
    with pytest.raises(ValueError, match="of its own.*one for 'a' and 'b'"):
        make_inputs(features, {"a": x, "b": x})
    with pytest.raises(TypeError, match="`inputs` must be a dict"):
        make_inputs(features, [x])
    with pytest.raises(ValueError, match=r"must be of length 3.*\(None, 9\)"):
        make_inputs(
            [SequenceFeature("s", 5, max_len=3)],
            {"s": keras.Input((9,), dtype="int32")},
        )


def test_fields_follow_the_order_of_the_features():
    features = [
        NumericFeature("age", normalization="zscore", mean=30.0, std=10.0),
        SequenceFeature("genres", 4, pooling="sum"),
        CategoricalFeature("city", 5),
    ]
    data = {
        "age": np.array([50.0, 30.0], "float32"),
        "genres": np.array([[1, 3], [0, 0]], "int32"),
        "city": np.array([4, 0], "int32"),
    }
    model, fields = embed(features, data)
    age = array(model.get_layer("fields-vectors").kernel)
    genres = array(model.get_layer("fields_genres").embeddings)
    city = field_table(model, "fields-tables", "city")
    want = [
        [2 * age[0], genres[1] + genres[3], city[4]],
        [0 * age[0], [0] * 3, city[0]],
    ]
    np.testing.assert_allclose(fields, want, rtol=1e-6, atol=1e-7)


def test_a_table_is_shared_by_name():
    features = [
        CategoricalFeature("target", 6, table="item"),
        SequenceFeature("history", 6, table="item"),
    ]
    data = {"target": np.array([3], "int32"), "history": np.array([[3, 0]], "int32")}
    model, fields = embed(features, data)
    assert [w.path for w in model.weights] == ["fields_item/embeddings"]
    np.testing.assert_allclose(fields[0, 0], fields[0, 1], rtol=1e-6)


@pytest.mark.parametrize(
    "other",
    [
        {"vocab_size": 7},
        {"embedding": "qr"},
        {"out_of_range": "zero"},
    ],
)
def test_features_that_share_a_table_agree(other):
    feature = CategoricalFeature("target", 6, table="item")
    second = dataclasses.replace(feature, name="history", **other)
    (key,) = other
    with pytest.raises(ValueError, match=f"`{key}` must be the same.*'item'.*history"):
        embed([feature, second], {})


def test_numbers_can_be_normalized_once_for_several_uses():
    features = [
        CategoricalFeature("city", 5),
        NumericFeature("age", normalization="zscore", mean=5.0, std=2.0),
        NumericFeature("count", normalization="log"),
    ]
    inputs = make_inputs(features)
    numbers = normalize_numbers(inputs, features, name="once")
    fields = embed_fields(inputs, features, 3, numbers=numbers)
    model = keras.Model(inputs, [numbers, fields])
    kinds = [type(layer).__name__ for layer in model.layers]
    assert kinds.count("NumericNormalization") == 1
    data = {"city": [1], "age": [9.0], "count": [np.e - 1]}
    numbers, fields = model({name: np.array(x) for name, x in data.items()})
    np.testing.assert_allclose(array(numbers), [[2.0, 1.0]], rtol=1e-6)
    age, count = array(model.get_layer("fields-vectors").kernel)
    np.testing.assert_allclose(array(fields)[0, 1:], [2 * age, count], rtol=1e-6)
    assert normalize_numbers(inputs, features[:1]) is None


def test_mixed_features_keep_their_order():
    features = [
        CategoricalFeature("a", 5),
        NumericFeature("x"),
        SequenceFeature("s", 4),
        CategoricalFeature("b", 6, out_of_range="oov"),
        CategoricalFeature("c", 7),
        CategoricalFeature("d", 4, table="s"),
        NumericFeature("y"),
        CategoricalFeature("e", 3, out_of_range="oov"),
    ]
    data = {
        "a": np.array([4, 1], "int32"),
        "x": np.array([2.0, 3.0], "float32"),
        "s": np.array([[1, 0], [2, 2]], "int32"),
        "b": np.array([5, 9], "int32"),
        "c": np.array([6, 0], "int32"),
        "d": np.array([3, 1], "int32"),
        "y": np.array([-1.0, 4.0], "float32"),
        "e": np.array([-1, 2], "int32"),
    }
    model, fields = embed(features, data)
    a, c = (field_table(model, "fields-tables", name) for name in "ac")
    b, e = (field_table(model, "fields-tables-oov", name) for name in "be")
    oov = array(model.get_layer("fields-tables-oov").oov_embeddings)
    x, y = array(model.get_layer("fields-vectors").kernel)
    s = array(model.get_layer("fields_s").embeddings)
    want = [
        [a[4], 2 * x, s[1], b[5], c[6], s[3], -y, oov[1]],
        [a[1], 3 * x, s[2], oov[0], c[0], s[1], 4 * y, e[2]],
    ]
    np.testing.assert_allclose(fields, want, rtol=1e-5, atol=1e-7)


def test_kinds_of_tables():
    made = []

    def factory(input_dim, output_dim, name):
        made.append((input_dim, output_dim, name))
        return layers.QREmbedding(input_dim, output_dim, combiner="concat", name=name)

    features = [
        CategoricalFeature("a", 100),
        CategoricalFeature("b", 100, embedding="qr", num_buckets=7),
        CategoricalFeature("c", 100, embedding=factory),
    ]
    data = {name: np.array([99], "int32") for name in "abc"}
    model, _ = embed(features, data, dim=4, name="m")
    assert made == [(100, 4, "m_c")]
    assert model.get_layer("m-tables").field_names == ("a",)
    assert model.get_layer("m_b").num_buckets == 7
    assert model.get_layer("m_c").combiner == "concat"


def test_regularizer_of_qr_acts_on_the_vectors():
    features = [CategoricalFeature("b", 100, embedding="qr")]
    data = {"b": np.array([5, 5], "int32")}
    model, fields = embed(features, data, embeddings_regularizer="l2")
    (loss,) = model.losses
    want = 0.01 * (fields.astype("float64") ** 2).sum() / 2
    np.testing.assert_allclose(array(loss), want, rtol=1e-5)


def test_fit_of_numbers():
    values = [1.0, 3.0, 8.0]
    got = NumericFeature.fit("x", values)
    assert (got.mean, got.std) == (4.0, np.std(values))
    got = NumericFeature.fit("x", [-1.0, np.e - 1], normalization="log")
    assert (got.mean, got.std) == (0.5, 0.5)
    assert NumericFeature.fit("x", [7.0, 7.0]).std == 1.0
    assert NumericFeature.fit("x", [0.1] * 1000).std == 1.0  # but for rounding
    assert NumericFeature.fit("x", [-0.001, 0.001]).std == 0.001
    with pytest.raises(ValueError, match=r"'x' must be.*finite.*shape \(2,\) with 1"):
        NumericFeature.fit("x", [1.0, np.nan])
    with pytest.raises(ValueError, match="'x' must be a non-empty"):
        NumericFeature.fit("x", [])


@pytest.mark.parametrize("name", ["", "a b", "a/b", "1a", "größe", "_a", 3, None])
@pytest.mark.parametrize(
    "make",
    [
        lambda name: CategoricalFeature(name, 3),
        lambda name: SequenceFeature(name, 3),
        NumericFeature,
    ],
)
def test_names_must_be_servable(make, name):
    with pytest.raises(
        ValueError, match=r"`name` of a feature must be.*Received: name"
    ):
        make(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 0}, "`vocab_size` must be at least 1.*vocab_size=0"),
        ({"embedding": "md5"}, "`embedding` must be 'full', 'qr', 'hash' or.*'md5'"),
        ({"embedding": "hash"}, "`num_buckets` must be given.*num_buckets=None"),
        ({"num_buckets": 3}, "`num_buckets` must be None unless.*embedding='full'"),
        ({"embedding": "qr", "num_buckets": 0}, "`num_buckets` must be at least 1"),
        ({"out_of_range": "clip"}, "`out_of_range` must be one of.*'clip'"),
        (
            {"embedding": layers.QREmbedding, "out_of_range": "zero"},
            "`out_of_range` must be left at 'error'",
        ),
        ({"dtype": "float32"}, "`dtype` must be one of 'int32', 'int64'.*'float32'"),
        ({"vocab_size": 2**31}, "`dtype` must be 'int64'"),
        ({"table": "a b"}, "`table` of a feature must be.*'a b'"),
    ],
)
def test_says_what_was_given(arguments, message):
    for make in (CategoricalFeature, SequenceFeature):
        with pytest.raises(ValueError, match=message):
            make(**{"name": "a", "vocab_size": 3, **arguments})


def test_says_what_else_was_given():
    with pytest.raises(TypeError, match="`vocab_size` must be an integer.*2.5"):
        CategoricalFeature("a", 2.5)
    with pytest.raises(ValueError, match="`pooling` must be one of.*'max'"):
        SequenceFeature("a", 3, pooling="max")
    with pytest.raises(ValueError, match="`max_len` must be at least 1"):
        SequenceFeature("a", 3, max_len=0)
    with pytest.raises(ValueError, match="`normalization` must be one of.*'minmax'"):
        NumericFeature("a", normalization="minmax")
    with pytest.raises(ValueError, match="`std` must be positive.*std=-1.0"):
        NumericFeature("a", normalization="log", std=-1.0)
    with pytest.raises(ValueError, match="`mean` and `std` must be left out"):
        NumericFeature("a", mean=3.0)
    with pytest.raises(TypeError, match="must be an integer.*embedding_dim=2.5"):
        embed([CategoricalFeature("a", 3)], {}, dim=2.5)


def test_compress_features_changes_large_full_tables_alone():
    features = [
        CategoricalFeature("a", 200),
        CategoricalFeature("b", 201),
        CategoricalFeature("c", 999, embedding="hash", num_buckets=3),
        SequenceFeature("d", 300, pooling="sum"),
        NumericFeature("e"),
    ]
    got = compress_features(features, num_buckets=4)
    assert [getattr(f, "embedding", None) for f in got] == [
        "full",
        "qr",
        "hash",
        "qr",
        None,
    ]
    assert (got[1].num_buckets, got[3].pooling) == (4, "sum")
    assert compress_features(features)[1].num_buckets is None
    with pytest.raises(ValueError, match="`threshold` must be at least 0.*=-1"):
        compress_features(features, -1)


@pytest.mark.parametrize("initializer", ["ones", "dlrm"])
def test_words_of_qr_start_other_tables_plainly(initializer):
    features = [
        CategoricalFeature("a", 50),
        CategoricalFeature("b", 50, embedding="hash", num_buckets=9),
        NumericFeature("n"),
        CategoricalFeature("q", 50, embedding="qr"),
    ]
    inputs = make_inputs(features)
    fields = embed_fields(inputs, features, 8, embeddings_initializer=initializer)
    model = keras.Model(inputs, fields)
    for name in ("fields-tables", "fields_b", "fields-vectors"):
        (weights,) = model.get_layer(name).get_weights()
        assert np.abs(weights).max() <= 0.05
        assert np.abs(weights).std() > 0
    _, remainders = model.get_layer("fields_q").get_weights()
    assert remainders.mean() > 0.4


def test_times_of_a_history_are_a_feature():
    feature = TimeGapFeature("age", time_unit=60, num_buckets=5, max_len=3)
    assert (feature.shape, feature.dtype) == ((3,), "int64")
    assert TimeGapFeature("age").shape == (None,)
    features = [feature, TimeGapFeature("gap", dtype="float32")]
    got = {name: (x.shape, x.dtype) for name, x in make_inputs(features).items()}
    assert got == {"age": ((None, 3), "int64"), "gap": ((None, None), "float32")}
    with pytest.raises(dataclasses.FrozenInstanceError):
        feature.max_len = 4
    assert compress_features([feature], 0) == (feature,)
    with pytest.raises(ValueError, match=r"`inputs\['age'\]` must be of length 3"):
        make_inputs([feature], {"age": keras.Input((4,), dtype="int64")})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "a b"}, ValueError, "`name` of a feature must be.*'a b'"),
        ({"time_unit": 0}, ValueError, "`time_unit` must be a number above 0.*=0"),
        ({"num_buckets": 1}, ValueError, "`num_buckets` must be at least 2.*=1"),
        ({"num_buckets": 2.0}, TypeError, "`num_buckets` must be an integer.*2.0"),
        ({"max_len": 0}, ValueError, "`max_len` must be at least 1.*=0"),
        ({"dtype": "int8"}, ValueError, "`dtype` must be one of.*'float32'.*'int8'"),
    ],
)
def test_says_what_times_were_given(arguments, error, message):
    with pytest.raises(error, match=message):
        TimeGapFeature(**{"name": "age", **arguments})


def test_times_are_no_field_and_have_no_table():
    features = [CategoricalFeature("city", 5), TimeGapFeature("age")]
    with pytest.raises(TypeError, match="no TimeGapFeature where there is no history"):
        embed(features, {})
    got = memory.summary(features, 4).parameters
    assert got == memory.summary(features[:1], 4).parameters
    with pytest.raises(ValueError, match="at least one feature with ids"):
        memory.summary(features[1:], 4)
    with pytest.raises(
        ValueError, match="name of a feature without ids.*'age' for 'b'"
    ):
        make_inputs([*features, CategoricalFeature("b", 5, table="age")])


@pytest.mark.parametrize("name", ["items", "seen"])
def test_tables_that_a_model_has_are_read(name):
    """One that features name, and one that has the name of a feature."""
    features = [
        CategoricalFeature("city", 5),
        SequenceFeature(
            "seen", 6, pooling="sum", table=None if name == "seen" else name
        ),
        CategoricalFeature("last", 6, table=name),
    ]
    table = make_table(features[2], 3, combiner="multiply", name="mine")
    data = {
        "city": np.array([4]),
        "seen": np.array([[3, 0, 5]]),
        "last": np.array([2]),
    }
    model, fields = embed(features, data, tables={name: table})
    assert sorted(w.path for w in model.weights) == [
        "fields-tables/embeddings",
        "mine/embeddings",
    ]
    rows = array(table.embeddings)
    np.testing.assert_allclose(fields[0, 1], rows[3] + rows[5], rtol=1e-6)
    np.testing.assert_allclose(fields[0, 2], rows[2], rtol=1e-6)


def test_a_categorical_feature_reads_the_table_of_its_name():
    feature = CategoricalFeature("city", 5)
    table = make_table(feature, 3, combiner="multiply", name="mine")
    model, fields = embed([feature], {"city": np.array([4])}, tables={"city": table})
    assert [w.path for w in model.weights] == ["mine/embeddings"]
    np.testing.assert_array_equal(fields[0, 0], array(table.embeddings)[4])
