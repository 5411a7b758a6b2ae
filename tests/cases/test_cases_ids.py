"""Cases 11 to 19, 50 and 54: ids, tables and what they cost, growth, pretraining."""

import inspect
import os
import re
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from case_models import (
    BUILDERS,
    FEATURES,
    answer,
    make_labels,
    make_model,
    make_rows,
)
from helpers import array, output_and_gradients, randomize

from keras_recsys import memory
from keras_recsys.data import Vocabulary, make_dataset
from keras_recsys.features import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
    embed_fields,
    make_inputs,
)
from keras_recsys.layers import (
    CompositionalEmbedding,
    FullEmbedding,
    HashEmbedding,
    MixedDimensionEmbedding,
    QREmbedding,
)
from keras_recsys.models import build_dlrm, build_fibinet, grow_vocabulary

INT32, INT64 = np.iinfo("int32"), np.iinfo("int64")
ERRORS = (ValueError, tf.errors.InvalidArgumentError)
GOOD = np.arange(5)
# One past the end, which an odd size has rows for in both tables; the wrapped ones; the
# extremes of both dtypes; 2**32 and 2**32 + 3, which a cast to int32 makes 0 and 3.
BAD = [5, 6, 25, -1, -5, INT32.max, INT32.min, 2**32, 2**32 + 3, INT64.max, INT64.min]
TABLES = {
    "full": lambda **kw: FullEmbedding(5, 4, **kw),
    **{
        f"qr_{combiner}_{buckets}": (
            lambda combiner=combiner, buckets=buckets, **kw: QREmbedding(
                5, 4, num_buckets=buckets, combiner=combiner, **kw
            )
        )
        for combiner in ("multiply", "add", "concat")
        for buckets in (2, 3, 7)
    },
}


def make_table(table, **kwargs):
    layer = TABLES[table](**kwargs)
    layer.build()
    randomize(layer, np.random.default_rng(1))
    return layer


def modes(layer, tmp_path, dtype="int64"):
    """All the ways to ask a layer, but XLA; each takes an array of ids."""
    ids = keras.Input((None,), dtype=dtype, name="ids")
    model = keras.Model({"ids": ids}, {"vectors": layer(ids)})
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "exported"))
    graph = tf.function(layer)
    return {
        "eager": lambda x: array(layer(x)),
        "model": lambda x: array(model({"ids": x})["vectors"]),
        "graph": lambda x: graph(tf.constant(x)).numpy(),
        "predict": lambda x: model.predict({"ids": x}, verbose=0)["vectors"],
        "saved_model": lambda x: loaded.signatures["serving_default"](
            ids=tf.constant(x)
        )["vectors"].numpy(),
    }


def refusal(ask, *args, **kwargs):
    """The message with which ids are refused, without TensorFlow's brackets."""
    with pytest.raises(ERRORS) as caught:
        ask(*args, **kwargs)
    return str(caught.value).replace("\\", "").replace("] [", " ")


def test_case_11_input_of_the_report():
    layer = QREmbedding(input_dim=4, output_dim=2, num_buckets=2)
    with pytest.raises(ValueError, match=r"ids in \[0, 4\)\. Received: id 5\."):
        layer(np.array([[0, 3, 5]]))
    odd = QREmbedding(input_dim=5, output_dim=2, num_buckets=2)
    with pytest.raises(ValueError, match=r"ids in \[0, 5\)\. Received: id 5\."):
        odd(np.array([[0, 3, 5]]))


@pytest.mark.parametrize("table", ["full", "qr_multiply_2", "qr_concat_7"])
def test_case_11_error_in_every_mode(table, tmp_path):
    layer = make_table(table, name="city")
    want = array(layer(GOOD))
    for mode, ask in modes(layer, tmp_path).items():
        np.testing.assert_allclose(ask(GOOD[None])[0], want, rtol=1e-6, err_msg=mode)
        for bad in BAD:
            message = refusal(ask, np.array([[4, bad, 0]]))
            assert "'city' must be whole ids in [0, 5)" in message, mode
            assert re.search(rf"(id|from|to) {bad}\b", message), (mode, message[-300:])


@pytest.mark.parametrize("out_of_range", ["error", "nan"])
@pytest.mark.parametrize("table", TABLES)
def test_case_11_nan_where_xla_drops_the_check(table, out_of_range):
    layer = make_table(table, out_of_range=out_of_range)
    ids = np.array([*GOOD, *BAD])
    got = tf.function(layer, jit_compile=True)(tf.constant(ids)).numpy()
    np.testing.assert_allclose(got[:5], array(layer(GOOD)), rtol=1e-6)
    assert np.isnan(got[5:]).all()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("out_of_range", ["nan", "zero", "mod", "oov"])
def test_case_11_policies_by_the_word(table, out_of_range):
    layer = make_table(table, out_of_range=out_of_range)
    rows = array(layer(GOOD))
    ids = np.array([*GOOD, *BAD])
    compiled = tf.function(layer, jit_compile=True)
    for ask in (layer, tf.function(layer), compiled):
        got = array(ask(tf.constant(ids)))
        np.testing.assert_allclose(got[:5], rows, rtol=1e-6)
        outside = got[5:]
        if out_of_range == "nan":
            assert np.isnan(outside).all()
        elif out_of_range == "zero":
            np.testing.assert_array_equal(outside, 0.0)
        elif out_of_range == "mod":
            np.testing.assert_allclose(outside, rows[np.array(BAD) % 5], rtol=1e-6)
        else:  # one row for all of them, and no id's own
            np.testing.assert_array_equal(outside, np.tile(outside[:1], (len(BAD), 1)))
            assert np.abs(rows - outside[0]).max(axis=1).min() > 1e-3


@pytest.mark.parametrize("out_of_range", ["nan", "zero", "mod", "oov"])
def test_case_11_policies_hold_in_every_mode(out_of_range, tmp_path):
    layer = make_table("qr_multiply_2", out_of_range=out_of_range)
    ids = np.array([[*GOOD, *BAD]])
    want = array(layer(ids))
    for mode, ask in modes(layer, tmp_path).items():
        np.testing.assert_allclose(ask(ids), want, rtol=1e-6, err_msg=mode)


@pytest.mark.parametrize("table", ["full", "qr_multiply_2"])
@pytest.mark.parametrize(
    ("out_of_range", "touched"),
    [("zero", []), ("mod", [3]), ("oov", [])],
)
def test_case_11_no_policy_trains_another_row(table, out_of_range, touched):
    layer = make_table(table, out_of_range=out_of_range)
    _, gradients = output_and_gradients(layer, np.array([8]))
    if out_of_range == "oov":
        assert np.all(gradients.pop())  # the vector that all such ids share
    for i, gradient in enumerate(gradients):
        rows = touched
        if table != "full":
            rows = [t % 2 if i else t // 2 for t in touched]
        assert np.flatnonzero(np.any(gradient, axis=1)).tolist() == rows


@pytest.mark.parametrize("jit", [False, True, "auto"])
def test_case_11_training_never_goes_on_in_silence(jit):
    ids = keras.Input((), dtype="int32", name="ids")
    x = keras.layers.Dense(1)(QREmbedding(5, 2, num_buckets=2)(ids))
    model = keras.Model(ids, x)
    before = model.get_weights()
    data = (np.array([0, 5]), np.array([[1.0], [2.0]]))
    if jit is True:  # Keras says that it does not compile, and then the check is there
        with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
            model.compile("sgd", "mse", jit_compile=jit)
    else:
        model.compile("sgd", "mse", jit_compile=jit)
    message = refusal(model.fit, *data, verbose=0)
    assert "must be whole ids in [0, 5). Received: ids from 0 to 5" in message
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def city_model(**kwargs):
    features = [
        CategoricalFeature("city", vocab_size=2, **kwargs),
        CategoricalFeature("hour", vocab_size=24),
    ]
    return build_fibinet(features, embedding_dim=2, hidden_units=(2,)), features


CITY = {"city": np.array([0, 2]), "hour": np.array([3, 23])}


@pytest.mark.parametrize("embedding", ["full", "qr"])
def test_case_12_unseen_category_is_named(embedding, tmp_path):
    model, features = city_model(embedding=embedding)
    model.compile("sgd", "binary_crossentropy")
    labels = make_labels(2)
    model.export(tmp_path / "city", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "city"))
    tensors = {k: tf.constant(v, "int32") for k, v in CITY.items()}
    for ask in (
        lambda: model(CITY),
        lambda: model.predict(CITY, verbose=0),
        lambda: model.fit(CITY, labels, verbose=0),
        lambda: model.evaluate(CITY, labels, verbose=0),
        lambda: model.train_on_batch(CITY, labels),
        lambda: loaded.signatures["serving_default"](**tensors),
    ):
        message = refusal(ask)
        assert re.search(r"feature 'city' must be whole ids in \[0, 2\)", message)
        assert re.search(r"Received: (id 2\.|ids from 0 to 2 )", message)
        assert "largest id plus one" in message
    with pytest.raises(ValueError, match=r"\[0, 2\).*'city'.*id 2 at row 1"):
        make_dataset(CITY, features)


@pytest.mark.parametrize("bad", [-1, 9])
def test_case_12_feature_is_named_where_a_table_is_shared(bad):
    features = [
        CategoricalFeature("item", 9, table="items"),
        SequenceFeature("history", 9, table="items"),
    ]
    model = build_fibinet(features, embedding_dim=2, hidden_units=(2,))
    good = {"item": np.array([3]), "history": np.array([[1, 2, 0]])}
    model.predict(good, verbose=0)
    for name, value in (("item", [bad]), ("history", [[1, bad, 0]])):
        for ask in (model, lambda x: model.predict(x, verbose=0)):
            message = refusal(ask, {**good, name: np.array(value)})
            assert f"feature '{name}' must be whole ids in [0, 9)" in message


def test_case_12_unseen_values_have_an_id_of_their_own():
    vocabulary = Vocabulary.fit(["rome", "oslo"])
    model, _ = city_model()
    assert vocabulary.size == 3  # the two cities and the unseen one
    with pytest.raises(ERRORS, match="'city'"):
        model({**CITY, "city": vocabulary.encode(["rome", "oslo"])})
    features = [CategoricalFeature("city", vocab_size=vocabulary.size)]
    encoded = vocabulary.encode(["rome", "paris", None])
    inputs = make_inputs(features)
    model = keras.Model(inputs, embed_fields(inputs, features, 2))
    first, second, third = array(model({"city": encoded}))
    np.testing.assert_array_equal(second, third)
    assert np.abs(first - second).max() > 0
    assert encoded.max() < vocabulary.size
    make_dataset({"city": encoded}, features)


def test_case_12_docs_say_how_large_a_vocabulary_is():
    text = " ".join(CategoricalFeature.__doc__.split())
    assert "the largest id plus one, not the number of distinct ids" in text


@pytest.mark.parametrize("ids", [[-1], [-4], [-10], [[3, -1]], [INT32.min]])
def test_case_13_negative_ids_are_refused(ids):
    layer = QREmbedding(10, 2, num_buckets=4)
    low = int(np.min(ids))
    with pytest.raises(ValueError, match=rf"\[0, 10\)\. Received: id {low}\."):
        layer(np.array(ids))
    with pytest.raises(ValueError, match=rf"\[0, 10\)\. Received: id {low}\."):
        FullEmbedding(10, 2)(np.array(ids))


@pytest.mark.parametrize("make", [FullEmbedding, QREmbedding])
def test_case_13_negative_ids_have_one_meaning(make):
    ids = np.array([-1, -10, -11])
    for out_of_range, want in (("mod", [9, 0, 9]), ("oov", None), ("zero", None)):
        layer = make(10, 3, out_of_range=out_of_range)
        layer.build()
        randomize(layer, np.random.default_rng(2))
        got = array(layer(ids))
        if want:
            np.testing.assert_array_equal(got, array(layer(np.array(want))))
        else:
            np.testing.assert_array_equal(got, array(layer(np.array([10, 11, 99]))))
            assert not np.array_equal(got[0], array(layer(np.array([9])))[0])


def test_case_13_negative_id_is_no_padding():
    feature = SequenceFeature("history", 4, out_of_range="oov")
    inputs = make_inputs([feature])
    model = keras.Model(inputs, embed_fields(inputs, [feature], 2))
    randomize(model, np.random.default_rng(2))
    padded = array(model({"history": np.array([[1, 0]])}))
    unknown = array(model({"history": np.array([[1, -1]])}))
    assert np.abs(padded - unknown).max() > 1e-3


def test_case_14_ids_above_int32_stay_apart():
    layer = QREmbedding(input_dim=2**33, output_dim=1, num_buckets=2**20)
    layer.build()
    assert [tuple(w.shape) for w in layer.weights] == [(2**13, 1), (2**20, 1)]
    ids = np.array([5, 5 + 2**32], "int64")
    quotients, remainders = map(array, layer.split(tf.constant(ids)))
    assert quotients.tolist() == [0, 4096]
    assert remainders.tolist() == [5, 5]
    for ask in (layer, tf.function(layer), tf.function(layer, jit_compile=True)):
        first, second = array(ask(tf.constant(ids)))
        assert first != second
    model = keras.Model(x := keras.Input((), dtype="int64"), layer(x))
    first, second = model.predict(ids, verbose=0)
    assert first != second
    with pytest.raises(ValueError, match=r"Received: id 8589934592\."):
        layer(np.array([2**33]))


def test_case_14_a_feature_keeps_int64():
    features = [
        CategoricalFeature(
            "device", 2**33, embedding="qr", num_buckets=2**20, dtype="int64"
        ),
        CategoricalFeature("hour", 24),
    ]
    inputs = make_inputs(features)
    model = keras.Model(inputs, embed_fields(inputs, features, 1))
    rows = {"device": np.array([5, 5 + 2**32]), "hour": np.array([1, 1])}
    first, second = model.predict(rows, verbose=0)
    assert first[0] != second[0]
    batch = next(iter(make_dataset(rows, features)))
    assert batch["device"].dtype == tf.int64
    assert batch["device"].numpy().tolist() == rows["device"].tolist()
    with pytest.raises(ValueError, match="`dtype` must be 'int64'"):
        CategoricalFeature("device", 2**33)


WRAPPED = {"city": np.array([0, 1 + 2**32]), "hour": np.array([3, 23])}


def test_case_14_wide_id_of_an_int64_feature_is_refused():
    model, _ = city_model(dtype="int64")
    for ask in (model, lambda x: model.predict(x, verbose=0)):
        message = refusal(ask, WRAPPED)
        assert "'city' must be whole ids in [0, 2)" in message
        assert str(1 + 2**32) in message


def test_case_14_wide_id_of_an_int32_feature_is_refused_by_make_dataset():
    _, features = city_model()
    with pytest.raises(ValueError, match="'city'.*4294967297 at row 1"):
        make_dataset(WRAPPED, features)
    _, features = city_model(out_of_range="oov")
    with pytest.raises(ValueError, match="'city'.*int32.*4294967297 at row 1"):
        make_dataset(WRAPPED, features)


@pytest.mark.parametrize("ask", ["call", "predict"])
def test_case_14_wide_id_of_an_int32_feature_is_refused(ask):
    model, _ = city_model()
    run = model if ask == "call" else lambda x: model.predict(x, verbose=0)
    assert "city" in refusal(run, WRAPPED)


def test_case_15_no_two_ids_share_both_rows():
    assert len({(i // 4, i % 4) for i in range(10)}) == 10
    layer = QREmbedding(10, 4, num_buckets=4, combiner="concat")
    layer.build()
    assert [len(w) for w in layer.get_weights()] == [3, 4]
    assert sum(map(len, layer.get_weights())) == 7
    assert len(np.unique(array(layer(np.arange(10))), axis=0)) == 10


def test_case_15_divisor_of_the_report():
    # 7 and 12 were one pair there, by the divisor 100 and the modulus 5.
    layer = QREmbedding(100, 2, num_buckets=5, combiner="concat")
    layer.build()
    assert [len(w) for w in layer.get_weights()] == [20, 5]
    ids = tf.range(100)
    pairs = set(zip(*(array(part).tolist() for part in layer.split(ids)), strict=True))
    assert len(pairs) == 100
    assert len(np.unique(array(layer(ids)), axis=0)) == 100


def test_case_15_only_one_size_can_be_chosen():
    sizes = {"input_dim", "output_dim", "num_buckets"}
    arguments = set(inspect.signature(QREmbedding.__init__).parameters)
    assert {name for name in arguments if "dim" in name or "num" in name} == sizes


@pytest.mark.parametrize("num_buckets", [None, 1, 100, 3_000])
@pytest.mark.parametrize("combiner", ["multiply", "add", "concat"])
def test_case_16_starts_with_the_spread_of_a_plain_table(combiner, num_buckets):
    layer = QREmbedding(10_000, 16, num_buckets=num_buckets, combiner=combiner)
    plain = np.std(keras.layers.Embedding(10_000, 16)(np.arange(10_000)))
    assert plain == pytest.approx(0.029, abs=0.001)
    assert plain / 3 < np.std(array(layer(np.arange(10_000)))) < plain * 3


@pytest.mark.parametrize("combiner", ["multiply", "add", "concat"])
def test_case_16_first_loss_is_that_of_a_coin(combiner):
    def embedding(input_dim, output_dim, name):
        return QREmbedding(  # the linear part has one column, which cannot be cut
            input_dim,
            output_dim,
            combiner="add" if output_dim == 1 else combiner,
            name=name,
        )

    features = [
        CategoricalFeature(f"c{i}", 10_000, embedding=embedding) for i in range(8)
    ]
    rng = np.random.default_rng(0)
    x = {feature.name: rng.integers(0, 10_000, 512) for feature in features}
    labels = rng.integers(0, 2, (512, 1)).astype("float32")
    model = build_fibinet(features)
    loss = keras.losses.BinaryCrossentropy()(labels, model(x)["probability"])
    assert float(loss) == pytest.approx(0.69, abs=0.1)


def test_case_16_first_loss_of_the_default():
    features = [CategoricalFeature(f"c{i}", 10_000, embedding="qr") for i in range(8)]
    features += [NumericFeature("n", normalization="zscore")]
    rng = np.random.default_rng(0)
    x = {f"c{i}": rng.integers(0, 10_000, 512) for i in range(8)}
    x["n"] = rng.normal(size=512).astype("float32")
    labels = rng.integers(0, 2, (512, 1)).astype("float32")
    model = build_fibinet(features)
    loss = keras.losses.BinaryCrossentropy()(labels, model(x)["probability"])
    assert float(loss) == pytest.approx(0.69, abs=0.1)


@pytest.mark.parametrize(
    ("combiner", "initializer"),
    [
        ("multiply", "uniform"),
        ("add", "uniform"),
        ("concat", "uniform"),
        ("multiply", "ones"),
        ("multiply", "dlrm"),
    ],
)
def test_case_16_first_loss_of_dlrm(combiner, initializer):
    features = [CategoricalFeature(f"c{i}", 10_000) for i in range(8)]
    features += [NumericFeature(f"n{i}", normalization="zscore") for i in range(3)]
    rng = np.random.default_rng(0)
    x = {f"c{i}": rng.integers(0, 10_000, 512) for i in range(8)}
    x |= {f"n{i}": rng.normal(size=512).astype("float32") for i in range(3)}
    labels = rng.integers(0, 2, (512, 1)).astype("float32")
    model = build_dlrm(
        features,
        qr_threshold=200,
        combiner=combiner,
        embeddings_initializer=initializer,
    )
    loss = keras.losses.BinaryCrossentropy()(labels, model(x)["probability"])
    # DLRM's positive start with "add" makes large dots, and a first loss of 3: the
    # report. It has to be asked for by name.
    assert float(loss) == pytest.approx(0.69, abs=0.1)


def _table_gradients(layer, ids):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids)) + sum(layer.losses)
    return tape.gradient(loss, [table.value for table in layer.trainable_variables])


@pytest.mark.parametrize("regularizer", [None, "l2"])
@pytest.mark.parametrize(
    "make",
    [
        FullEmbedding,
        QREmbedding,
        CompositionalEmbedding,
        lambda n, d, **kw: HashEmbedding(n, d, num_buckets=3, **kw),
        lambda n, d, **kw: MixedDimensionEmbedding(n, d, table_dim=d, **kw),
    ],
)
def test_case_17_gradients_of_tables_are_sparse(make, regularizer):
    layer = make(50, 4, embeddings_regularizer=regularizer)
    ids = np.array([[3, 7], [3, 49]])
    layer(ids)
    for gradient in _table_gradients(layer, ids):
        assert isinstance(gradient, tf.IndexedSlices)
        assert gradient.values.shape == (4, 4)


@pytest.mark.parametrize("kind", BUILDERS)
def test_case_17_regularized_builders_stay_sparse(kind):
    part = "linear" if kind == "lr" else "embeddings"
    model = make_model(kind, **{f"{part}_regularizer": "l2"})
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(make_rows())["probability"]) + sum(model.losses)
    assert model.losses
    tables = [w for w in model.trainable_variables if is_table(w)]
    assert len(tables) >= 5
    for table, gradient in zip(
        tables, tape.gradient(loss, [t.value for t in tables]), strict=True
    ):
        assert isinstance(gradient, tf.IndexedSlices), table.path


def is_table(variable):
    return getattr(variable, "is_embedding_table", False)


def test_case_17_l2_of_the_batch_by_hand():
    layer = FullEmbedding(3, 1, embeddings_regularizer=keras.regularizers.L2(0.5))
    layer.build()
    layer.set_weights([np.array([[1.0], [2.0], [100.0]])])
    (gradient,) = _table_gradients(layer, np.array([0, 1, 1, 0]))
    dense = tf.convert_to_tensor(gradient).numpy()
    # d/dw of the sum is 1 for each reading; of the penalty 2 * 0.5 * w / 4
    np.testing.assert_allclose(dense[:, 0], [2 + 2 / 4, 2 + 4 / 4, 0])


@pytest.mark.slow
def test_case_18_sizes_and_memory():
    layer = QREmbedding(5_000_000, 16, num_buckets=2_250)
    layer.build()
    assert layer.count_params() == (2_223 + 2_250) * 16
    (row,) = [r for r in memory_rows() if r["method"] == "qr_multiply"]
    assert row["parameters"] == layer.count_params()
    assert 1 / row["share"] > 1000
    for gradient in _table_gradients(layer, np.array([0, 4_999_999])):
        assert isinstance(gradient, tf.IndexedSlices)


def memory_rows():
    features = [CategoricalFeature("id", 5_000_000)]
    return memory.summary(features, 16, num_buckets=2_250).rows()


PEAK = r"""
import re
import keras, numpy as np
from keras_recsys import layers

def peak(layer, size):
    # Of the process so far, in KiB, after some steps of a model.
    ids = keras.Input((), dtype="int32")
    model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
    model.compile("adam", "mse")
    rng = np.random.default_rng(0)
    for _ in range(3):
        model.train_on_batch(rng.integers(0, size, 1024), np.ones((1024, 1)))
    return re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1]

print(
    peak(keras.layers.Embedding(1_000, 16), 1_000),
    peak(layers.QREmbedding(5_000_000, 16, num_buckets=2_250), 5_000_000),
    peak(keras.layers.Embedding(5_000_000, 16), 5_000_000),
)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads /proc")
def test_case_18_peak_memory():
    done = subprocess.run(
        [sys.executable, "-c", PEAK],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=True,
    )
    base, small, full = (int(text) * 1024 for text in done.stdout.split())
    full, small = full - base, max(small - base, 1)
    assert full > 3 * 5_000_000 * 16 * 4
    assert full > 20 * small, (full, small)


@pytest.mark.parametrize("embedding", ["full", "qr"])
def test_case_19_target_and_history_read_one_table(embedding):
    features = [
        CategoricalFeature("item", 7, embedding=embedding, table="items"),
        SequenceFeature("history", 7, embedding=embedding, table="items"),
        CategoricalFeature("city", 3),
    ]
    inputs = make_inputs(features)
    model = keras.Model(inputs, embed_fields(inputs, features, 4))
    randomize(model, np.random.default_rng(0))
    x = {
        "item": np.array([5, 0]),
        "history": np.array([[5, 0, 0], [0, 0, 0]]),
        "city": np.array([1, 2]),
    }
    shapes = [tuple(w.shape) for w in model.weights]
    if embedding == "full":
        assert sorted(shapes) == [(3, 4), (7, 4)]
    else:  # ceil(sqrt(7)) = 3 buckets, 3 quotients
        assert sorted(shapes) == [(3, 4)] * 3
    before = array(model(x))
    np.testing.assert_allclose(before[0, 0], before[0, 1], rtol=1e-6)
    np.testing.assert_array_equal(before[1, 1], 0.0)  # nothing but padding

    table = model.get_layer("fields_items")
    table.set_weights([w + 1.0 for w in table.get_weights()])
    after = array(model(x))
    assert np.abs(after - before)[0, :2].min() > 1e-3  # both paths have moved
    np.testing.assert_allclose(after[0, 0], after[0, 1], rtol=1e-6)
    np.testing.assert_array_equal(after[:, 2], before[:, 2])
    np.testing.assert_array_equal(after[1, 1], 0.0)


@pytest.mark.parametrize("kind", ["deep", "shallow"])
def test_case_19_one_weight_in_a_builder_and_after_loading(kind, tmp_path):
    model = build_fibinet(FEATURES, embedding_dim=4, deep=kind == "deep")
    assert [tuple(w.shape) for w in model.weights].count((9, 4)) == 1
    assert [tuple(w.shape) for w in model.weights].count((9, 1)) == 1
    randomize(model, np.random.default_rng(0), scale=0.3)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    x = make_rows()
    x["history"][0] = 0
    before = answer(loaded, x)
    np.testing.assert_allclose(before, answer(model, x), atol=1e-6)
    for one in (model, loaded):  # row 0 is padding in the history, an item otherwise
        items = one.get_layer("fibinet_fields_items")
        (table,) = items.get_weights()
        table[0] = 100.0
        items.set_weights([table])
    x["item"] = np.maximum(x["item"], 1)
    np.testing.assert_allclose(answer(loaded, x), answer(model, x), atol=1e-6)


def test_case_19_padding_of_the_history_never_counts():
    features = [
        CategoricalFeature("item", 9, table="items"),
        SequenceFeature("history", 9, table="items"),
    ]
    model = build_fibinet(features, embedding_dim=4, hidden_units=(3,))
    randomize(model, np.random.default_rng(0))
    x = {"item": np.array([1, 8]), "history": np.array([[2, 0, 0], [4, 5, 0]])}
    before = answer(model, x)
    for name in ("fibinet_fields_items", "fibinet_linear_items"):
        (table,) = model.get_layer(name).get_weights()
        table[0] = 100.0
        model.get_layer(name).set_weights([table])
    np.testing.assert_array_equal(answer(model, x), before)
    x["history"] = np.array([[0, 2, 0, 0], [4, 0, 5, 0]])  # more padding, elsewhere
    np.testing.assert_allclose(answer(model, x), before, rtol=1e-6)


def test_case_19_features_that_disagree_are_named():
    features = [
        CategoricalFeature("item", 9, table="items"),
        SequenceFeature("history", 10, table="items"),
    ]
    with pytest.raises(
        ValueError, match="`vocab_size`.*9 for 'item', 10 for 'history'"
    ):
        build_fibinet(features)


def test_case_50_only_the_quotient_table_grows():
    layer = QREmbedding(1_000, 8, num_buckets=32)
    layer.build()
    grown = layer.grow(1_500)
    assert [len(w) for w in layer.get_weights()] == [32, 32]
    assert [len(w) for w in grown.get_weights()] == [47, 32]
    ids = np.arange(1_000)
    np.testing.assert_array_equal(array(grown(ids)), array(layer(ids)))
    assert array(grown(np.array([1_499]))).all()


@pytest.mark.parametrize("kind", BUILDERS)
def test_case_50_a_builder_grows(kind):
    model = make_model(kind)
    grown = grow_vocabulary(model, {"user": 1_500, "history": 11})
    x = make_rows()
    np.testing.assert_array_equal(answer(grown, x), answer(model, x))
    x["user"] += 500
    x["item"] += 2
    assert np.isfinite(answer(grown, x)).all()


@pytest.mark.parametrize("as_constant", [True, False])
def test_case_54_pretrained_vectors_stay(as_constant, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(2_000, 8)).astype("float32")
    initializer = keras.initializers.Constant(vectors) if as_constant else vectors
    ids = keras.Input((), dtype="int32")
    layer = FullEmbedding(
        2_000, 8, embeddings_initializer=initializer, trainable=False, name="pretrained"
    )
    model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
    model.compile("sgd", "mse")
    model.fit(np.arange(64), np.ones(64), verbose=0)
    (kept,) = layer.get_weights()
    np.testing.assert_array_equal(kept, vectors)
    assert len(model.to_json()) < 5_000
    model.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        assert archive.getinfo("config.json").file_size < 10_000
    loaded = keras.models.load_model(tmp_path / "m.keras")
    again = loaded.get_layer("pretrained")
    assert not again.trainable
    np.testing.assert_array_equal(again.get_weights()[0], vectors)
    # Without its weights the copy says so, instead of answering with other vectors.
    copy = keras.models.model_from_json(model.to_json())
    assert np.isnan(copy.predict(np.array([3]), verbose=0)).all()
