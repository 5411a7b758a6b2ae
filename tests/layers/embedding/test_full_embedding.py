import keras
import numpy as np
import pytest
from helpers import BACKEND, array, check_layer, output_and_gradients, tensor

from keras_recsys.layers import FullEmbedding

IDS = np.array([[0, 3, 9], [5, 0, 10]], "int32")


@pytest.mark.parametrize("out_of_range", ["error", "nan", "zero", "mod", "oov"])
def test_contract(out_of_range, tmp_path):
    check_layer(
        lambda: FullEmbedding(11, 4, out_of_range=out_of_range, mask_zero=True),
        IDS,
        tmp_path,
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


def test_oov_is_one_more_row():
    layer = FullEmbedding(3, 2, out_of_range="oov")
    layer.build()
    layer.set_weights([np.array([[1, 1], [2, 2], [3, 3], [7, 7]])])
    got = array(layer(np.array([2, 3, -5, 2**31 - 1])))
    np.testing.assert_array_equal(got[:, 0], [3, 7, 7, 7])


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


def test_regularizer_and_constraint_see_the_table():
    layer = FullEmbedding(
        3, 1, embeddings_regularizer="l2", embeddings_constraint="non_neg"
    )
    layer.build()
    layer.set_weights([np.array([[1.0], [2.0], [3.0]])])
    (loss,) = layer.losses
    assert float(array(loss)) == pytest.approx(0.01 * 14)
    assert layer.embeddings.constraint is not None
