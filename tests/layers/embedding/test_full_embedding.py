import keras
import numpy as np
import pytest
from helpers import BACKEND, array, check_layer, output_and_gradients, tensor

from keras_recsys.layers import FullEmbedding

IDS = np.array([[0, 3, 9], [5, 0, 10]], "int32")
OUTSIDE = np.array([[0, 3, 11], [5, -1, 10]], "int32")


@pytest.mark.parametrize("out_of_range", ["error", "nan", "zero", "mod", "oov"])
def test_contract(out_of_range, tmp_path):
    check_layer(
        lambda: FullEmbedding(11, 4, out_of_range=out_of_range, mask_zero=True),
        OUTSIDE if out_of_range == "oov" else IDS,
        tmp_path,
    )


@pytest.mark.parametrize("pooling", ["sum", "mean", "sqrtn"])
def test_contract_of_bags(pooling, tmp_path):
    check_layer(
        lambda: FullEmbedding(
            11, 4, embeddings_initializer="dlrm", mask_zero=True, pooling=pooling
        ),
        IDS,
        tmp_path,
    )


def test_contract_of_weighted_bags(tmp_path):
    weights = np.array([[1, -2, 0.5], [0, 3, 1]], "float32")
    check_layer(
        lambda: FullEmbedding(11, 4, pooling="sum"),
        IDS,
        tmp_path,
        call={"weights": weights},
    )


def test_is_a_keras_embedding():
    table = np.random.default_rng(0).normal(size=(11, 4))
    ours, stock = FullEmbedding(11, 4), keras.layers.Embedding(11, 4)
    for layer in (ours, stock):
        layer.build()
        layer.set_weights([table])
    np.testing.assert_array_equal(array(ours(IDS)), array(stock(IDS)))


def test_row_by_row():
    layer = FullEmbedding(3, 2, mask_zero=True, zero_masked=True)
    layer.build()
    layer.set_weights([np.array([[9, 9], [1, 2], [3, 4]])])
    got = array(layer(np.array([2, 0, 1])))
    np.testing.assert_array_equal(got, [[3, 4], [0, 0], [1, 2]])


def test_oov_is_one_more_vector():
    layer = FullEmbedding(3, 2, out_of_range="oov")
    layer.build()
    layer.set_weights([np.array([[1, 1], [2, 2], [3, 3]]), np.array([[7, 7]])])
    ids = np.array([2, 3, -5, 2**31 - 1])
    got = array(layer(ids))
    np.testing.assert_array_equal(got[:, 0], [3, 7, 7, 7])
    _, (table, oov) = output_and_gradients(layer, ids, np.ones((4, 2)))
    np.testing.assert_array_equal(table, [[0, 0], [0, 0], [1, 1]])
    np.testing.assert_array_equal(oov, [[3, 3]])


def bag_loop(ids, table, pooling, mask_zero):
    """One bag at a time, in float64."""
    out = np.zeros((len(ids), table.shape[1]))
    for b, bag in enumerate(ids.tolist()):
        kept = [table[i] for i in bag if i or not mask_zero]
        divisor = {"sum": 1, "mean": len(kept), "sqrtn": len(kept) ** 0.5}[pooling]
        out[b] = sum(kept) / divisor if kept else 0
    return out


@pytest.mark.parametrize("pooling", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("mask_zero", [True, False])
def test_bags_equal_the_loop(pooling, mask_zero):
    ids = np.array([[0, 3, 9], [5, 5, 1], [0, 0, 0]], "int32")
    layer = FullEmbedding(11, 4, pooling=pooling, mask_zero=mask_zero)
    layer.build()
    table = np.random.default_rng(1).normal(size=(11, 4))
    layer.set_weights([table])
    want = bag_loop(ids, table, pooling, mask_zero)
    np.testing.assert_allclose(array(layer(ids)), want, rtol=1e-5, atol=1e-6)
    assert layer.compute_mask(tensor(ids)) is None
    assert array(layer(ids[None])).shape == (1, 3, 4)


def test_weights_of_a_bag_by_hand():
    layer = FullEmbedding(3, 1, pooling="sum", mask_zero=True)
    layer.build()
    layer.set_weights([np.array([[9], [10], [100]])])
    ids = np.array([[1, 2, 0]])
    got = array(layer(ids, weights=np.array([[2.0, -1.0, 5.0]], "float32")))
    np.testing.assert_array_equal(got, [[-80]])


def test_weights_need_a_sum():
    layer = FullEmbedding(3, 1, pooling="mean")
    with pytest.raises(ValueError, match="`weights` must be None.*pooling='mean'"):
        layer(np.array([[1]]), weights=np.array([[2.0]], "float32"))


def test_bags_need_two_axes():
    with pytest.raises(ValueError, match=r"bag_len\) where `pooling` is 'sum'.*\(1,\)"):
        FullEmbedding(3, 1, pooling="sum")(np.array([1]))


def test_mod_wraps_around():
    layer = FullEmbedding(3, 1, out_of_range="mod")
    layer.build()
    layer.set_weights([np.array([[10], [11], [12]])])
    got = array(layer(np.array([-1, 3, 5, -3])))
    np.testing.assert_array_equal(got[:, 0], [12, 10, 12, 10])


def test_gradient_counts_repeated_ids():
    layer = FullEmbedding(3, 1)
    layer.build()
    ids = np.array([1, 1, 2])
    _, (gradient,) = output_and_gradients(layer, ids, np.array([[1.0], [2.0], [5.0]]))
    np.testing.assert_array_equal(gradient, [[0], [3], [5]])


@pytest.mark.skipif(BACKEND != "tensorflow", reason="IndexedSlices are TensorFlow's")
def test_gradient_never_has_the_size_of_the_table():
    import tensorflow as tf

    layer = FullEmbedding(1000, 4, dtype="mixed_bfloat16")
    layer.build()

    @tf.function
    def gradient(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids))
        return tape.gradient(loss, layer.embeddings.value)

    got = gradient(tf.constant([3, 3]))
    assert isinstance(got, tf.IndexedSlices)
    assert got.values.shape == (2, 4)
    graph = gradient.get_concrete_function(tf.constant([3, 3])).graph
    made = [
        op.name
        for op in graph.get_operations()
        for output in op.outputs
        if output.dtype.is_floating and 1000 in output.shape.as_list()
    ]
    assert not made


@pytest.mark.parametrize("bad", [-1, 11])
def test_ids_outside_are_refused_by_name(bad):
    layer = FullEmbedding(11, 4, name="city")
    with pytest.raises(ValueError, match=rf"'city' must be .*\[0, 11\).*id {bad}"):
        layer(np.array([[0, bad]]))


def test_booleans_are_refused():
    with pytest.raises(ValueError, match="must be integers.*bool"):
        FullEmbedding(2, 1)(np.array([True]))


def test_texts_are_refused():
    with pytest.raises(TypeError, match="must be integers; .*Vocabulary.*<U1"):
        FullEmbedding(2, 1)(np.array(["a"]))


def test_mod_takes_no_floats():
    with pytest.raises(ValueError, match="must be integers where .*'mod'.*float32"):
        FullEmbedding(3, 1, out_of_range="mod")(np.array([1.0], "float32"))


def test_mask():
    layer = FullEmbedding(11, 4, mask_zero=True)
    np.testing.assert_array_equal(array(layer.compute_mask(tensor(IDS))), IDS != 0)


def test_regularizer_sees_the_vectors_of_the_batch():
    layer = FullEmbedding(
        4, 1, embeddings_regularizer="l2", embeddings_constraint="non_neg"
    )
    layer.build()
    assert not layer.losses
    layer.set_weights([np.array([[1.0], [2.0], [3.0], [50.0]])])
    layer(np.array([[0, 2], [2, 1]]))
    (loss,) = layer.losses
    assert float(array(loss)) == pytest.approx(0.01 * (1 + 9 + 9 + 4) / 2)
    assert layer.embeddings.constraint is not None


def test_start_of_dlrm():
    layer = FullEmbedding(400, 64, embeddings_initializer="dlrm")
    layer.build()
    (table,) = layer.get_weights()
    assert np.abs(table).max() <= 1 / 20
    assert np.abs(table).max() > 0.9 / 20
    assert abs(table.mean()) < 0.001


def test_table_of_another_shape_is_refused():
    with pytest.raises(
        ValueError, match=r"of shape \(4, 2\).*Received: shape \(2, 4\)"
    ):
        FullEmbedding(4, 2, embeddings_initializer=np.zeros((2, 4)))


@pytest.mark.parametrize("out_of_range", ["error", "oov"])
def test_grows_without_moving_a_vector(out_of_range):
    layer = FullEmbedding(11, 4, out_of_range=out_of_range, name="city")
    layer.build()
    grown = layer.grow(20)
    assert grown.name == "city"
    assert grown.input_dim == 20
    np.testing.assert_array_equal(array(grown(IDS)), array(layer(IDS)))
    assert array(grown(np.array([11, 19]))).std() > 0
    if out_of_range == "oov":
        np.testing.assert_array_equal(
            array(grown(np.array([20]))), array(layer(np.array([11])))
        )
    with pytest.raises(ValueError, match="at least that of now, 11.*'city'.*10"):
        layer.grow(10)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "uint32"])
def test_mod_of_ids_beyond_the_backend(dtype):
    ids = {
        "int64": [2**32 + 1, 2**40, -1],
        "uint64": [2**63 + 5, 2**64 - 1, 7],
        "uint32": [2**32 - 1, 3, 0],
    }[dtype]
    layer = FullEmbedding(1000, 1, out_of_range="mod")
    layer.build()
    layer.set_weights([np.arange(1000.0)[:, None]])
    got = array(layer(np.array(ids, dtype)))[:, 0]
    np.testing.assert_array_equal(got, [i % 1000 for i in ids])
    if BACKEND == "tensorflow":
        import tensorflow as tf

        got = array(layer(tf.constant(ids, dtype)))[:, 0]
        np.testing.assert_array_equal(got, [i % 1000 for i in ids])


def test_mask_by_hand():
    layer = FullEmbedding(4, 1, pooling="sum", embeddings_regularizer="l2")
    layer.build()
    layer.set_weights([np.array([[1.0], [2.0], [3.0], [4.0]])])
    mask = np.array([[True, False, True]])
    got = array(layer(np.array([[3, 1, 0]]), padding_mask=mask))
    np.testing.assert_array_equal(got, [[5.0]])
    (loss,) = layer.losses
    assert float(array(loss)) == pytest.approx(0.01 * (16 + 1))


def test_padding_is_not_regularized():
    layer = FullEmbedding(4, 1, mask_zero=True, embeddings_regularizer="l2")
    losses = []
    for width in (1, 5):
        ids = np.zeros((2, width), "int32")
        ids[:, 0] = 2
        layer(ids)
        losses.append(float(array(layer.losses[0])))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("shape", [(3, 3, 1), (3,), (3, 1), (1, 3)])
def test_weights_have_the_shape_of_the_ids(shape):
    layer = FullEmbedding(4, 1, pooling="sum")
    with pytest.raises(ValueError, match=r"shape of `inputs`, \(3, 3\)"):
        layer(np.ones((3, 3), "int32"), weights=np.ones(shape, "float32"))


def test_weight_of_padding_may_be_anything():
    layer = FullEmbedding(4, 1, pooling="sum", mask_zero=True)
    layer.build()
    weights = np.array([[2.0, np.nan]], "float32")
    ids = np.array([[1, 0]])
    got, (gradient,) = output_and_gradients(
        layer, ids, np.ones((1, 1)), call={"weights": weights}
    )
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(gradient[:, 0], [0, 2, 0, 0])


def test_oov_starts_as_the_table():
    layer = FullEmbedding(4, 1, embeddings_initializer="ones", out_of_range="oov")
    np.testing.assert_array_equal(array(layer(np.array([9])))[0], [1.0])


def test_more_ids_than_int64_are_refused():
    with pytest.raises(ValueError, match=r"at most 2\*\*63 - 1"):
        FullEmbedding(2**63, 1)
