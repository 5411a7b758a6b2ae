import math

import keras
import numpy as np
import pytest
from golden_files import golden, load
from helpers import BACKEND, array, check_layer, tensor
from twins import DTYPE, check_twin

from keras_recsys.layers import PositionalEncoding

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 3)).astype("float32")


def position_loop(seq_len, dim):
    """The formulas of the docstring, one number at a time."""
    out = np.zeros((seq_len, dim))
    for t, j in np.ndindex(out.shape):
        angle = t * 10000 ** (-2 * (j // 2) / dim)
        out[t, j] = math.cos(angle) if j % 2 else math.sin(angle)
    return out


def test_contract_of_sinusoids(tmp_path):
    check_layer(lambda: PositionalEncoding(), X, tmp_path, gradients=False)


def test_contract_of_a_table(tmp_path):
    check_layer(
        lambda: PositionalEncoding(
            True,
            max_len=6,
            embeddings_initializer=keras.initializers.RandomNormal(seed=1),
        ),
        X,
        tmp_path,
    )


@pytest.mark.parametrize("dim", [1, 2, 5, 6])
def test_equals_the_loop(dim):
    check_twin(
        PositionalEncoding(dtype=DTYPE),
        RNG.normal(size=(2, 4, dim)),
        lambda x: x + position_loop(4, dim),
    )


def test_table_equals_the_loop():
    check_twin(
        PositionalEncoding(True, max_len=5, dtype=DTYPE),
        RNG.normal(size=(2, 4, 3)),
        lambda x, table: x + np.array([table[t] for t in range(4)]),
    )


def test_by_hand():
    # Width 4: the second pair turns by 10000 ** -0.5 = 0.01 a step.
    want = [
        [0, 1, 0, 1],
        [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)],
        [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)],
    ]
    got = array(PositionalEncoding()(np.zeros((1, 3, 4), "float32")))
    np.testing.assert_allclose(got[0], want, rtol=1e-6)


def test_far_steps_are_exact_where_the_length_is_known():
    got = array(PositionalEncoding()(np.zeros((1, 8000, 8), "float32")))[0]
    np.testing.assert_allclose(got, position_loop(8000, 8), atol=1e-6)


@pytest.mark.parametrize("learned", [False, True])
def test_length_may_be_unknown(learned):
    layer = PositionalEncoding(learned, max_len=700 if learned else None)
    model = keras.Model(x := keras.Input((None, 3)), layer(x))
    assert model.output.shape == (None, None, 3)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        call = tf.function(layer, input_signature=[tf.TensorSpec((None, None, 3))])
    else:
        call = layer
    for seq_len in (1, 4, 700):
        x = np.zeros((1, seq_len, 3), "float32")
        got = array(call(tensor(x)))
        np.testing.assert_allclose(got, array(layer(x)), atol=5e-5)


@golden("informer/embed", having=["pos_*.rows"])
def test_golden_positions(path):
    arrays = load(path)
    names = [name[:-5] for name in arrays if name.startswith("pos_") and "rows" in name]
    assert names
    for name in names:
        positions, rows = arrays[f"{name}.positions"], arrays[f"{name}.rows"]
        x = np.zeros((1, positions.max() + 1, rows.shape[1]), "float32")
        got = array(PositionalEncoding()(x))[0, positions]
        np.testing.assert_allclose(got, rows, rtol=0, atol=3e-4)
        near = positions <= 100
        np.testing.assert_allclose(got[near], rows[near], rtol=0, atol=1e-5)


def test_mask_is_passed_on():
    x = keras.Input((4,), dtype="int32")
    steps = keras.layers.Embedding(9, 3, mask_zero=True)(x)
    encoded = PositionalEncoding()(steps)
    pooled = keras.layers.GlobalAveragePooling1D()(encoded)
    model = keras.Model(x, [encoded, pooled])
    every, mean = model(np.array([[0, 5, 7, 0]]))
    want = array(every)[:, 1:3].mean(axis=1)
    np.testing.assert_allclose(array(mean), want, rtol=1e-5, atol=1e-6)


def test_longer_than_the_table_is_refused():
    layer = PositionalEncoding(True, max_len=3)
    for build in (lambda: layer.build(X.shape), lambda: layer(X)):
        with pytest.raises(ValueError, match=r"at most max_len=3.*4 steps"):
            build()
    layer(X[:, :2])
    with pytest.raises(ValueError, match=r"at most max_len=3.*4 steps"):
        layer(X)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="lengths are always known there")
@pytest.mark.parametrize("jit", [False, True])
def test_beyond_the_table_is_nan_where_the_length_is_unknown(jit):
    import tensorflow as tf

    layer = PositionalEncoding(True, max_len=3)
    layer.build((None, None, 3))
    call = tf.function(
        layer, input_signature=[tf.TensorSpec((None, None, 3))], jit_compile=jit
    )
    got = array(call(tensor(X)))
    np.testing.assert_allclose(got[:, :3], array(layer(X[:, :3])), rtol=1e-6)
    assert np.isnan(got[:, 3]).all()


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, None)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"`PositionalEncoding` takes.*input_shape=\("):
        PositionalEncoding().build(shape)


def test_says_what_max_len_was_given():
    with pytest.raises(ValueError, match=r"`max_len` must be given.*max_len=None"):
        PositionalEncoding(learned=True)
    with pytest.raises(ValueError, match=r"`max_len` must.*max_len=5, learned=False"):
        PositionalEncoding(max_len=5)
    with pytest.raises(ValueError, match="`max_len` must be at least 1.*=0"):
        PositionalEncoding(True, max_len=0)
    with pytest.raises(TypeError, match="`max_len` must be an integer.*=2.5"):
        PositionalEncoding(True, max_len=2.5)


def test_says_that_the_width_is_another():
    layer = PositionalEncoding(True, max_len=5)
    layer(np.ones((2, 4, 3), "float32"))
    with pytest.raises(ValueError, match="it was built for, 3. Received: width 1"):
        layer(np.ones((2, 4, 1), "float32"))
