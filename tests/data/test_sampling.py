import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recsys.data import downsample_negatives

ROWS = 20_000
LABELS = (np.arange(ROWS) % 4 == 0).astype("float32")[:, None]


def dataset(batch_size=500):
    columns = {"row": np.arange(ROWS), "text": np.arange(ROWS).astype(str)}
    return tf.data.Dataset.from_tensor_slices((columns, LABELS)).batch(batch_size)


def rows_of(sampled):
    rows = []
    for columns, labels in sampled:
        given = columns["row"].numpy()
        np.testing.assert_array_equal(labels, LABELS[given])
        assert columns["text"].numpy().tolist() == [b"%d" % row for row in given]
        rows += given.tolist()
    return rows


def test_keeps_positives_and_a_share_of_negatives():
    sampled = downsample_negatives(dataset(), 0.1, batch_size=64, seed=0)
    first, second = rows_of(sampled), rows_of(sampled)
    positives = list(range(0, ROWS, 4))
    for rows in (first, second):
        assert sorted(rows) == rows
        assert [row for row in rows if row % 4 == 0] == positives
        kept = len(rows) - len(positives)  # 1500 of 15000, std 37
        assert 1500 - 185 < kept < 1500 + 185
    assert first != second  # another draw in each epoch
    again = downsample_negatives(dataset(), 0.1, batch_size=64, seed=0)
    assert rows_of(again) == first
    assert rows_of(downsample_negatives(dataset(), 0.1, seed=1)) != first
    sizes = [int(labels.shape[0]) for _, labels in sampled]
    assert set(sizes[:-1]) == {64}


def test_ends_of_the_range():
    assert rows_of(downsample_negatives(dataset(), 1)) == list(range(ROWS))
    assert rows_of(downsample_negatives(dataset(1), 1e-12).take(1)) == list(
        range(0, 4096, 4)
    )


def test_weights_and_ragged_columns():
    columns = {"seen": tf.ragged.constant([[1, 2], [3], [], [4]])}
    labels = np.float32([[0], [1], [1], [0]])
    element = (columns, labels, np.float32([1, 2, 3, 4]))
    given = tf.data.Dataset.from_tensor_slices(element).batch(3)
    ((kept, kept_labels, weights),) = downsample_negatives(given, 1e-12)
    assert kept["seen"].to_list() == [[3], []]
    assert kept_labels.numpy().tolist() == [[1.0], [1.0]]
    assert weights.numpy().tolist() == [2.0, 3.0]


def test_keras_has_weights_of_classes():  # by hand: -log(1/2) weighted by 1 and 5
    inputs = keras.Input((1,), name="x")
    outputs = keras.layers.Dense(
        1, activation="sigmoid", kernel_initializer="zeros", name="probability"
    )(inputs)
    model = keras.Model({"x": inputs}, {"probability": outputs})
    model.compile(keras.optimizers.SGD(0.0), "binary_crossentropy")
    batch = {"x": tf.ones((2, 1))}, tf.constant([[0.0], [1.0]])
    data = tf.data.Dataset.from_tensors(batch)
    weights = {0: 1.0, 1: 5.0}
    history = model.fit(data, class_weight=weights, shuffle=False, verbose=0)
    want = np.log(2) * (1 + 5) / 2
    np.testing.assert_allclose(history.history["loss"], [want], rtol=1e-6)


@pytest.mark.parametrize("rate", [0, -0.5, 1.5, float("nan"), "0.1", True])
def test_says_what_rate_was_given(rate):
    with pytest.raises(ValueError, match=rf"`rate`.*={rate!r}"):
        downsample_negatives(dataset(), rate)


def test_says_what_is_wrong():
    for given in ([1], dataset().map(lambda columns, _: columns)):
        with pytest.raises(TypeError, match="`dataset` must be a `tf.data.Dataset` of"):
            downsample_negatives(given, 0.5)
    with pytest.raises(ValueError, match="`batch_size`.*=0"):
        downsample_negatives(dataset(), 0.5, batch_size=0)
    with pytest.raises(ValueError, match="`seed`.*=-1"):
        downsample_negatives(dataset(), 0.5, seed=-1)
