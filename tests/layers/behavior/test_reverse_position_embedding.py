import keras
import numpy as np
import pytest
from helpers import BACKEND, array, check_layer, tensor
from twins import DTYPE, assert_near

from keras_recsys.layers import PaddingMask, ReversePositionEmbedding

MASK = np.array(
    [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]], bool
)
POSITIONS = [[3, 2, 1, 0, 0], [0, 0, 3, 2, 1], [3, 0, 2, 0, 1], [0, 0, 0, 0, 0]]


def position_loop(mask, most_recent_first=False):
    """Counts events from the most recent one, one at a time."""
    positions = np.zeros(mask.shape, int)
    for row, kept in zip(positions, mask, strict=True):
        count = 0
        steps = range(len(kept))
        for j in steps if most_recent_first else reversed(steps):
            count += kept[j]
            row[j] = count * kept[j]
    return positions


def test_contract(tmp_path):
    check_layer(
        lambda: ReversePositionEmbedding(
            2,
            3,
            most_recent_first=True,
            embeddings_initializer=keras.initializers.RandomNormal(seed=3),
        ),
        MASK,
        tmp_path,
    )


def test_positions_by_hand():
    # Padding behind, in front, between, and nothing else.
    layer = ReversePositionEmbedding(9, 1)
    np.testing.assert_array_equal(array(layer.positions(tensor(MASK))), POSITIONS)
    layer = ReversePositionEmbedding(9, 1, most_recent_first=True)
    want = [[1, 2, 3, 0, 0], [0, 0, 1, 2, 3], [1, 0, 2, 0, 3], [0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(array(layer.positions(tensor(MASK))), want)


@pytest.mark.parametrize("most_recent_first", [False, True])
def test_equals_the_loop(most_recent_first):
    rng = np.random.default_rng(0)
    mask = rng.random((6, 9)) < 0.6
    layer = ReversePositionEmbedding(
        4, 3, most_recent_first=most_recent_first, dtype=DTYPE
    )
    layer.build(mask.shape)
    table = rng.normal(size=(5, 3))
    layer.set_weights([table])
    rows = np.minimum(position_loop(mask, most_recent_first), 4)
    assert (rows == 4).sum() > 6  # those beyond share the last vector
    assert_near(array(layer(tensor(mask))), table[rows])


@pytest.mark.skipif(BACKEND != "tensorflow", reason="reads a sparse gradient")
def test_gradient_touches_the_rows_of_the_positions():
    import tensorflow as tf

    layer = ReversePositionEmbedding(9, 2)
    layer.build(MASK.shape)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(MASK))
    gradient = tape.gradient(loss, layer.embeddings.value)
    assert isinstance(gradient, tf.IndexedSlices)
    want = np.bincount(np.ravel(POSITIONS), minlength=10)
    dense = tf.convert_to_tensor(gradient).numpy()
    np.testing.assert_array_equal(dense, np.stack([want, want], 1))


def test_length_and_side_of_the_padding_do_not_matter():
    layer = ReversePositionEmbedding(3, 2)
    three = array(layer(tensor(np.ones((1, 3), bool))))
    for before, after in ((0, 2), (4, 0), (1, 1)):
        mask = np.pad(np.ones((1, 3), bool), ((0, 0), (before, after)))
        got = array(layer(tensor(mask)))
        np.testing.assert_array_equal(got[:, before : before + 3], three)
    assert array(layer(tensor(MASK[:0]))).shape == (0, 5, 2)
    assert array(layer(tensor(MASK[:, :0]))).shape == (4, 0, 2)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_counts_all_of_a_long_history(policy):
    mask = np.ones((1, 16_384), bool)
    layer = ReversePositionEmbedding(20_000, 1, dtype=policy)
    want = np.arange(16_384, 0, -1)
    np.testing.assert_array_equal(array(layer.positions(tensor(mask)))[0], want)
    layer.build(mask.shape)
    layer.set_weights([np.arange(20_001)[:, None] % 2])
    output = layer(tensor(mask))
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
    np.testing.assert_array_equal(array(output)[0, :, 0], want % 2)


def test_reads_the_padding_mask():
    ids = np.array([[4, 0, 7, 0]], "int32")
    x = keras.Input((None,), dtype="int32")
    layer = ReversePositionEmbedding(3, 2)
    model = keras.Model(x, layer(PaddingMask()(x)))
    got = array(model(ids))
    np.testing.assert_array_equal(got, array(layer.embeddings)[[[2, 0, 1, 0]]])


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_says_what_dtype_was_given(dtype):
    layer = ReversePositionEmbedding(3, 2)
    with pytest.raises(ValueError, match=f"`inputs` must be boolean.*dtype {dtype}"):
        layer(MASK.astype(dtype))


@pytest.mark.parametrize("shape", [(3,), (2, 3, 1)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"takes masks of shape.*input_shape=\("):
        ReversePositionEmbedding(3, 2)(np.ones(shape, bool))


@pytest.mark.parametrize("name", ["max_len", "output_dim"])
def test_says_what_was_given(name):
    sizes = {"max_len": 3, "output_dim": 2}
    with pytest.raises(TypeError, match=f"`{name}` must be an integer.*=2.5"):
        ReversePositionEmbedding(**{**sizes, name: 2.5})
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1.*=0"):
        ReversePositionEmbedding(**{**sizes, name: 0})
