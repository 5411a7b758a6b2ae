import keras
import numpy as np
import pytest
from helpers import BACKEND, array, check_layer, output_and_gradients, tensor

from keras_recsys._initializers import RowBlocks
from keras_recsys._lookup import safe_ids
from keras_recsys.layers import FieldEmbedding, FullEmbedding
from keras_recsys.layers.embedding import field_embedding

SIZES = (3, 5, 4)
NAMES = ("city", "hour", "item")
POLICIES = ("error", "nan", "zero", "mod", "oov")
IDS = np.array([[2, 4, 0], [0, 0, 3], [2, 1, 3]], "int32")
# Inside the table of all fields, but of another field; and outside of it.
OUTSIDE = np.array([[3, 4, 4], [7, -1, 3], [2, 5, -9], [-1, 2**31 - 1, 0]], "int32")


def make(sizes=SIZES, dim=2, seed=0, **arguments):
    """A built layer with random weights."""
    layer = FieldEmbedding(sizes, dim, **arguments)
    layer.build()
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])
    return layer


def counted(**arguments):
    """A layer of width 1 in which every vector is the number of its row."""
    layer = make(dim=1, **arguments)
    rows = [np.arange(12.0)[:, None], np.array([[100.0], [200.0], [300.0]])]
    layer.set_weights(rows[: len(layer.weights)])
    return layer


def columns(ids):
    return [column.copy() for column in ids.T]


def one_a_field(layer, **arguments):
    """A `FullEmbedding` a field, with the weights of the fields of `layer`."""
    singles = []
    for f, (size, start) in enumerate(
        zip(layer.vocab_sizes, layer.offsets, strict=True)
    ):
        single = FullEmbedding(
            size, layer.output_dim, out_of_range=layer.out_of_range, **arguments
        )
        single.build()
        table, *oov = layer.get_weights()
        single.set_weights([table[start : start + size], *(x[f : f + 1] for x in oov)])
        singles.append(single)
    return singles


@pytest.mark.parametrize(
    ("out_of_range", "inputs"),
    [("error", columns(IDS)), ("oov", OUTSIDE), ("mod", columns(OUTSIDE))],
    ids=["error-list", "oov-tensor", "mod-list"],
)
def test_contract(out_of_range, inputs, tmp_path):
    check_layer(
        lambda: FieldEmbedding(
            SIZES,
            4,
            field_names=NAMES,
            embeddings_initializer="random_normal",
            embeddings_constraint="max_norm",
            out_of_range=out_of_range,
        ),
        inputs,
        tmp_path,
    )


@pytest.mark.parametrize("form", ["tensor", "list"])
@pytest.mark.parametrize("out_of_range", POLICIES)
def test_equals_one_embedding_a_field(out_of_range, form):
    ids = IDS if out_of_range == "error" else np.concatenate([IDS, OUTSIDE])
    layer = make(out_of_range=out_of_range)
    coef = np.random.default_rng(1).normal(size=(len(ids), 3, 2))
    inputs = columns(ids) if form == "list" else ids
    output, gradients = output_and_gradients(layer, inputs, coef)
    assert output.shape == (len(ids), 3, 2)
    for f, single in enumerate(one_a_field(layer)):
        want, grads = output_and_gradients(single, ids[:, f].copy(), coef[:, f])
        np.testing.assert_array_equal(output[:, f], want)
        rows = layer.rows_of(str(f))
        np.testing.assert_allclose(gradients[0][rows], grads[0], rtol=1e-5, atol=1e-6)
        if out_of_range == "oov":
            np.testing.assert_allclose(gradients[1][f], grads[1][0], rtol=1e-5)


def test_by_hand():
    layer = counted(field_names=NAMES)
    np.testing.assert_array_equal(
        array(layer(IDS))[..., 0], [[2, 7, 8], [0, 3, 11], [2, 4, 11]]
    )
    assert layer.rows_of("hour") == slice(3, 8)
    assert [layer.rows_of(name).stop for name in NAMES] == [3, 8, 12]


@pytest.mark.parametrize(
    ("out_of_range", "want"),
    [
        ("nan", [[np.nan, 7, np.nan], [np.nan, np.nan, 11], [2, np.nan, np.nan]]),
        ("zero", [[0, 7, 0], [0, 0, 11], [2, 0, 0]]),
        ("mod", [[0, 7, 8], [1, 7, 11], [2, 3, 11]]),
        ("oov", [[100, 7, 300], [100, 200, 11], [2, 200, 300]]),
    ],
)
def test_no_id_reads_a_row_of_another_field(out_of_range, want):
    layer = counted(out_of_range=out_of_range)
    got = array(layer(OUTSIDE))[:3, :, 0]
    np.testing.assert_array_equal(got, want)
    got = array(layer(columns(OUTSIDE)))[:3, :, 0]
    np.testing.assert_array_equal(got, want)


@pytest.mark.skipif(BACKEND == "torch", reason="torch compiles nothing here")
def test_compiled_code_that_cannot_raise_gives_nan():
    layer = counted()
    if BACKEND == "jax":
        import jax

        got = jax.jit(lambda x: layer(x))(OUTSIDE)
    else:
        import tensorflow as tf

        got = tf.function(layer, jit_compile=True)(tf.constant(OUTSIDE))
    want = [[np.nan, 7, np.nan], [np.nan, np.nan, 11], [2, np.nan, np.nan]]
    np.testing.assert_array_equal(array(got)[:3, :, 0], want)


@pytest.mark.parametrize("form", ["tensor", "list"])
@pytest.mark.parametrize(
    ("field", "bad", "allowed"), [(0, 3, 3), (1, -1, 5), (2, 4, 4), (2, 10**6, 4)]
)
def test_ids_outside_are_refused_by_name(field, bad, allowed, form):
    layer = make(field_names=NAMES, name="tables")
    ids = IDS.copy()
    ids[1, field] = bad
    with pytest.raises(
        ValueError,
        match=rf"'tables' for feature '{NAMES[field]}' must be .*\[0, {allowed}\)"
        rf"\. Received: id {bad}\. Make",
    ):
        layer(columns(ids) if form == "list" else ids)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow graphs can raise")
@pytest.mark.parametrize("form", ["tensor", "list"])
def test_ids_outside_are_refused_by_name_in_a_graph(form):
    import tensorflow as tf

    layer = make(field_names=NAMES, name="tables")
    graph = tf.function(layer)
    ids = IDS.copy()
    ids[1:, 1] = [-1, 2]
    ids = columns(ids) if form == "list" else ids
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        graph(keras.tree.map_structure(tf.constant, ids))
    told = str(caught.value).replace("\\'", "'")
    assert "'tables' for feature 'hour' must be whole ids in [0, 5)" in told
    assert "ids from] [-1] [to] [4]" in told
    assert "feature 'city'" not in told
    assert "feature 'item'" not in told


def test_integers_of_several_dtypes():
    layer = counted()
    want = array(layer(IDS))
    for dtypes in (("int32", "int64", "int64"), ("uint8", "int32", "int16")):
        inputs = [x.astype(d) for x, d in zip(columns(IDS), dtypes, strict=True)]
        np.testing.assert_array_equal(array(layer(inputs)), want)


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has no int64 by default")
def test_inputs_of_several_dtypes():
    layer = counted()
    inputs = [keras.Input((), dtype=dtype) for dtype in ("int32", "int64", "int32")]
    model = keras.Model(inputs, layer(inputs))
    got = model.predict(columns(IDS), verbose=0)
    np.testing.assert_array_equal(got, array(layer(IDS)))


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8", "uint16", "int64"])
def test_integers_of_one_dtype(dtype):
    layer = counted(sizes=(3, 5, 4))
    ids = IDS.astype(dtype)
    np.testing.assert_array_equal(array(layer(tensor(ids))), array(layer(IDS)))


def test_ids_beyond_32_bits():
    ids = [np.array([1, 2**32 + 1]), np.array([4, -(2**40)]), np.array([0, 2**32])]
    got = array(counted(out_of_range="nan")(ids))[..., 0]
    np.testing.assert_array_equal(got, [[1, 7, 8], [np.nan] * 3])
    got = array(counted(out_of_range="mod")(ids))[..., 0]
    wrapped = [(2**32 + 1) % 3, 3 + -(2**40) % 5, 8 + 2**32 % 4]
    np.testing.assert_array_equal(got, [[1, 7, 8], wrapped])
    got = array(counted(out_of_range="mod")(np.stack(ids, axis=1)))[..., 0]
    np.testing.assert_array_equal(got[1], wrapped)


@pytest.mark.parametrize("others", ["uint64", "int32"])
def test_mod_of_unsigned_ids(others):
    numbers = [2**63 + 5, 2**64 - 1, 7]
    ids = [
        np.array([number % 2**31 for number in numbers], others),
        np.array(numbers, "uint64"),
        np.array([3, 2, 9], others),
    ]
    want = [
        [start + int(i) % size for i in column]
        for start, size, column in zip([0, 3, 8], SIZES, ids, strict=True)
    ]
    want = np.transpose(want)
    layer = counted(out_of_range="mod")
    np.testing.assert_array_equal(array(layer(ids))[..., 0], want)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        got = array(layer([tf.constant(x) for x in ids]))[..., 0]
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("others", ["int32", "float32"])
def test_fractions_are_no_ids(others):
    inputs = [x.astype(others) for x in columns(IDS)]
    inputs[1] = np.array([4.0, 0.0, 1.5], "float32")
    with pytest.raises(ValueError, match=r"feature 'hour'.*\[0, 5\).*id 1\.5"):
        make(field_names=NAMES)(inputs)
    got = array(counted(out_of_range="nan")(inputs))[..., 0]
    np.testing.assert_array_equal(got, [[2, 7, 8], [0, 3, 11], [2, np.nan, 11]])
    with pytest.raises(ValueError, match="must be integers where .*'mod'.*float32"):
        make(out_of_range="mod")(inputs)


def test_floats_that_merge_ids_are_refused():
    layer = FieldEmbedding([3, 2**24 + 1], 1)
    layer.built = True  # the table is never read
    x = np.array([1.0], "float32")
    for inputs in ([x, x], [x.astype("int32"), x]):
        with pytest.raises(ValueError, match="float32 merges ids above 16777216"):
            layer(inputs)


@pytest.mark.parametrize("others", ["int32", "bool"])
def test_booleans_are_refused(others):
    inputs = [x.astype(others) for x in columns(IDS)]
    inputs[0] = np.array([True, False, True])
    with pytest.raises(ValueError, match="must be integers.*bool"):
        make()(inputs)


def test_texts_are_refused():
    with pytest.raises(TypeError, match="must be integers; .*Vocabulary.*<U1"):
        make()([np.array(["a"]), np.array([1]), np.array([2])])
    with pytest.raises(TypeError, match="must be integers; .*Vocabulary.*<U1"):
        make()(np.array([["a", "b", "c"]]))


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has no int64 by default")
def test_more_rows_than_int32(monkeypatch):
    read = []

    def read_rows(table, rows, dtype):
        read.append(rows)
        return keras.ops.zeros((*rows.shape, 1), dtype)

    monkeypatch.setattr(field_embedding, "read_rows", read_rows)
    largest = 2**31 - 1
    layer = FieldEmbedding([largest, largest, 5], 1)
    assert layer.weight_shapes == {"embeddings": (2**32 + 3, 1)}
    layer.embeddings = None
    layer.built = True  # the table itself would not fit
    layer(np.array([[largest - 1, largest - 1, 4]], "int32"))
    np.testing.assert_array_equal(array(read[0]), [[2**31 - 2, 2**32 - 3, 2**32 + 2]])
    with pytest.raises(ValueError, match="feature '1'.*id -1"):
        layer(np.array([[0, -1, 0]], "int32"))


@pytest.mark.skipif(BACKEND != "jax", reason="others have int64")
def test_more_rows_than_int32_are_refused():
    with pytest.raises(ValueError, match=r"2\*\*31 on JAX without 64-bit integers"):
        FieldEmbedding([2**31 - 1, 5], 1)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="IndexedSlices are TensorFlow's")
@pytest.mark.parametrize("out_of_range", POLICIES)
def test_gradient_never_has_the_size_of_the_table(out_of_range):
    import tensorflow as tf

    layer = FieldEmbedding(
        [1000, 234],
        4,
        dtype="mixed_bfloat16",
        embeddings_regularizer="l2",
        out_of_range=out_of_range,
    )
    layer.build()

    @tf.function
    def gradient(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(layer(ids), "float32")) + sum(layer.losses)
        return tape.gradient(loss, layer.embeddings.value)

    ids = tf.constant([[3, 3], [3, 0]])
    got = gradient(ids)
    assert isinstance(got, tf.IndexedSlices)
    assert sorted(tf.reshape(got.indices, [-1]).numpy()) == [3, 3, 1000, 1003]
    made = [
        op.name
        for op in gradient.get_concrete_function(ids).graph.get_operations()
        for output in op.outputs
        if output.dtype.is_floating and 1234 in output.shape.as_list()
    ]
    assert not made


@pytest.mark.parametrize("out_of_range", ["error", "oov"])
def test_regularizer_is_that_of_the_fields(out_of_range):
    regularizer = keras.regularizers.L1L2(0.1, 0.2)
    layer = make(
        embeddings_regularizer=regularizer,
        embeddings_constraint="non_neg",
        out_of_range=out_of_range,
    )
    assert not layer.losses
    ids = OUTSIDE if out_of_range == "oov" else IDS
    layer(ids)
    singles = one_a_field(layer, embeddings_regularizer=regularizer)
    for f, single in enumerate(singles):
        single(ids[:, f].copy())
    want = sum(float(array(single.losses[0])) for single in singles)
    assert float(array(layer.losses[0])) == pytest.approx(want, rel=1e-5)
    assert layer.embeddings.constraint is not None


def test_regularizer_by_hand():
    layer = counted(embeddings_regularizer="l2")
    layer(np.array([[1, 0, 2], [0, 0, 2]]))  # rows 1, 3, 10 and 0, 3, 10
    loss = float(array(layer.losses[0]))
    assert loss == pytest.approx(0.01 * (1 + 9 + 100 + 9 + 100) / 2)


@pytest.mark.parametrize("out_of_range", ["error", "oov"])
def test_grows_without_moving_a_vector(out_of_range):
    layer = make(field_names=NAMES, out_of_range=out_of_range, name="tables")
    grown = layer.grow({"city": 6, "item": 5})
    assert grown.name == "tables"
    assert grown.vocab_sizes == (6, 5, 5)
    assert grown.embeddings.shape == (16, 2)
    np.testing.assert_array_equal(array(grown(IDS)), array(layer(IDS)))
    np.testing.assert_array_equal(
        grown.moved_rows(layer), [0, 1, 2, *range(6, 11), *range(11, 15)]
    )
    fresh = array(grown(np.array([[3, 0, 4], [5, 0, 4]])))[:, [0, 2]]
    assert np.abs(fresh).max() <= 0.05  # as "uniform" starts
    assert fresh.std() > 0
    if out_of_range == "oov":
        ids = np.array([[6, 5, 5]])
        np.testing.assert_array_equal(array(grown(ids)), array(layer(ids)))
    same = layer.grow({})
    np.testing.assert_array_equal(same.get_weights()[0], layer.get_weights()[0])


def test_growth_says_what_was_given():
    layer = make(field_names=NAMES, name="tables")
    with pytest.raises(ValueError, match=r"'city', 'hour', 'item'\].*'town'"):
        layer.grow({"town": 9})
    with pytest.raises(ValueError, match="'hour' must be at least .*now, 5.*: 4"):
        layer.grow({"hour": 4})
    with pytest.raises(TypeError, match="`vocab_sizes` must be an integer.*=9.5"):
        layer.grow({"hour": 9.5})
    with pytest.raises(ValueError, match="`field_name` must be one of.*'town'"):
        layer.rows_of("town")
    with pytest.raises(ValueError, match="'new' must be built before it grows"):
        FieldEmbedding(SIZES, 2, name="new").grow({"0": 9})


def test_every_field_starts_as_a_table_of_its_own():
    layer = FieldEmbedding(
        [4000, 100, 4000],
        8,
        embeddings_initializer=keras.initializers.GlorotNormal(seed=1),
        out_of_range="oov",
    )
    layer.build()
    tables = [array(layer.embeddings)[layer.rows_of(name)] for name in "012"]
    for table in tables:
        fans = len(table) + 8
        assert table.std() == pytest.approx((2 / fans) ** 0.5, rel=0.1)
    assert np.abs(np.corrcoef(tables[0].ravel(), tables[2].ravel())[0, 1]) < 0.05
    oov = array(layer.oov_embeddings)
    assert np.abs(oov[0] - oov[2]).max() > 0.01
    assert 0.2 < oov.std() < 0.8  # of one row and 8 columns: (2 / 9) ** 0.5


def test_blocks_of_rows():
    drawn = array(RowBlocks(keras.initializers.Orthogonal(seed=1), [3, 2])((5, 4)))
    for block in (drawn[:3], drawn[3:]):
        np.testing.assert_allclose(block @ block.T, np.eye(len(block)), atol=1e-5)
    assert np.abs(drawn[3:] - drawn[:2]).max() > 0.1
    uniform = keras.initializers.RandomUniform(seed=1)
    np.testing.assert_array_equal(
        array(RowBlocks(uniform, [3, 2])((5, 4))), array(uniform((5, 4)))
    )

    def halves(shape, dtype=None):
        return keras.ops.full(shape, 1 / shape[0], dtype=dtype)

    got = array(RowBlocks(halves, [1, 4])((5, 1), dtype="float32"))
    np.testing.assert_array_equal(got[:, 0], [1, 0.25, 0.25, 0.25, 0.25])


def test_safe_ids_of_several_vocabularies():
    ids, in_range = safe_ids(tensor(OUTSIDE), SIZES, "zero")
    within = (OUTSIDE >= 0) & (np.array(SIZES) > OUTSIDE)
    np.testing.assert_array_equal(array(in_range), within)
    np.testing.assert_array_equal(array(ids), np.where(within, OUTSIDE, 0))
    ids, in_range = safe_ids(tensor(OUTSIDE), SIZES, "mod")
    np.testing.assert_array_equal(array(ids), OUTSIDE % np.array(SIZES))
    np.testing.assert_array_equal(array(in_range), within)


@pytest.mark.parametrize(
    "inputs",
    [
        np.ones((2, 1), "int32"),
        np.ones((2, 4), "int32"),
        np.ones(2, "int32"),
        np.ones((2, 3, 1), "int32"),
        [np.ones(2, "int32")] * 2,
        [np.ones(2, "int32")] * 4,
        [np.ones((2, 1), "int32")] * 3,
    ],
    ids=["one", "four", "vector", "cube", "two_columns", "four_columns", "columns_2d"],
)
@pytest.mark.parametrize("out_of_range", ["error", "mod"])
def test_says_what_shape_was_given(inputs, out_of_range):
    layer = FieldEmbedding(SIZES, 2, out_of_range=out_of_range)
    for _ in ("first call", "later call"):
        with pytest.raises(
            ValueError, match=r"\(batch_size, 3\), or a list of 3.*Received: .*\(2,"
        ):
            layer(inputs)
        layer(IDS)
    layer = FieldEmbedding((2,), 2)
    assert layer(np.array([[1], [0]])).shape == (2, 1, 2)
    assert layer([np.array([1, 0])]).shape == (2, 1, 2)
    with pytest.raises(ValueError, match=r"\(batch_size, 1\), or a list of 1"):
        layer(np.array([1, 0]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"vocab_sizes": []}, ValueError, r"at least one size.*vocab_sizes=\[\]"),
        ({"vocab_sizes": [3, 2**31]}, ValueError, r"below 2\*\*31.*2147483648"),
        ({"vocab_sizes": [3, 0]}, ValueError, "`vocab_sizes` must be at least 1.*=0"),
        ({"vocab_sizes": [2.5]}, TypeError, "`vocab_sizes` must be an integer.*=2.5"),
        ({"output_dim": 0}, ValueError, "`output_dim` must be at least 1.*=0"),
        ({"field_names": ["a"]}, ValueError, r"3 distinct names.*\['a'\]"),
        ({"field_names": list("aab")}, ValueError, "3 distinct names.*'a', 'a', 'b'"),
        ({"out_of_range": "clip"}, ValueError, "`out_of_range` must be one.*'clip'"),
    ],
)
def test_says_what_was_given(arguments, error, message):
    with pytest.raises(error, match=message):
        FieldEmbedding(**{"vocab_sizes": SIZES, "output_dim": 2, **arguments})
