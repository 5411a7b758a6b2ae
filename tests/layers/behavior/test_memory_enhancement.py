import keras
import numpy as np
import pytest
from attention_twins import enhancement_loop
from helpers import array, check_layer
from twins import DTYPE, check_twin

from keras_recsys.layers import MemoryEnhancement

RNG = np.random.default_rng(0)
MEMORY, QUERY = RNG.normal(size=(2, 3, 4)).astype("float32")
SEEDED = keras.initializers.HeNormal(seed=2)


def test_contract(tmp_path):
    check_layer(
        lambda: MemoryEnhancement(
            2,
            share_step_transform=False,
            transform_bias=True,
            reset_after=True,
            gate_bias_initializer="zeros",
            kernel_initializer=SEEDED,
            kernel_regularizer="l2",
        ),
        (MEMORY, QUERY),
        tmp_path,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"transform_bias": True, "reset_after": True},
        {"share_step_transform": False, "num_steps": 2},
        {"share_step_transform": False, "transform_bias": True, "num_steps": 2},
    ],
    ids=["shared", "shared_bias_after", "own", "own_bias"],
)
def test_equals_the_loop(arguments):
    num_steps = arguments.get("num_steps", 3)
    check_twin(
        MemoryEnhancement(dtype=DTYPE, **arguments),
        (MEMORY[:2], QUERY[:2]),
        lambda *x: enhancement_loop(*x, num_steps=num_steps),
    )


def test_by_hand():
    """A GRU without weights but those of the candidate: m goes half to tanh(m + v)."""
    layer = MemoryEnhancement(1, gate_bias_initializer="zeros")
    memory, query = np.array([[0.5]], "float32"), np.array([[2.0]], "float32")
    layer.build((1, 1), (1, 1))
    kernel = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    layer.set_weights([np.ones((1, 1)), kernel, np.zeros((1, 3)), np.zeros(3)])
    want = 0.5 * 0.5 + 0.5 * np.tanh(0.5 + 2.0)
    np.testing.assert_allclose(array(layer(memory, query)), [[want]], rtol=1e-6)


def test_more_steps_are_one_step_again():
    one, three = MemoryEnhancement(1), MemoryEnhancement(3)
    for layer in (one, three):
        layer.build(MEMORY.shape, QUERY.shape)
    three.set_weights(one.get_weights())
    x = MEMORY
    for _ in range(3):
        x = array(one(x, QUERY))
    np.testing.assert_allclose(array(three(MEMORY, QUERY)), x, rtol=1e-5, atol=1e-6)
    for rows in (1, 0):
        got = array(three(MEMORY[:rows], QUERY[:rows]))
        np.testing.assert_allclose(got, x[:rows], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reset_after", [False, True])
def test_gates_start_open_and_kernels_differ(reset_after):
    layer = MemoryEnhancement(
        3,
        share_step_transform=False,
        transform_bias=True,
        reset_after=reset_after,
        kernel_initializer=keras.initializers.RandomNormal(seed=1),
    )
    layer.build((None, 4), (None, 4))
    bias = array(layer.gru.bias)
    want = np.repeat([1.0, 1.0, 0.0], 4)
    np.testing.assert_array_equal(bias, [want, 0 * want] if reset_after else want)
    kernels = [array(transform.kernel) for transform in layer.transforms]
    kernels.append(array(layer.gru.kernel))
    starts = {tuple(kernel.ravel()[:4].round(6)) for kernel in kernels}
    assert len(layer.transforms) == 3
    assert len(starts) == 4
    assert not any(array(transform.bias).any() for transform in layer.transforms)


def test_mask_of_the_target_ends_here(recwarn):
    embedding = keras.layers.Embedding(5, 4, mask_zero=True)
    target = embedding(keras.Input((), dtype="int32"))
    output = MemoryEnhancement()(target, target)
    assert output.shape == (None, 4)
    assert getattr(output, "_keras_mask", None) is None
    assert not list(recwarn)


def test_says_what_was_given():
    with pytest.raises(TypeError, match="`num_steps` must be an integer.*=2.5"):
        MemoryEnhancement(2.5)
    with pytest.raises(ValueError, match="`num_steps` must be at least 1.*=0"):
        MemoryEnhancement(0)


@pytest.mark.parametrize(
    "shapes", [((2, 3), (2, 4)), ((2, 5, 3), (2, 3)), ((2, None), (2, None))]
)
def test_says_what_shapes_were_given(shapes):
    with pytest.raises(ValueError, match=r"`MemoryEnhancement` takes.*shapes \(\("):
        MemoryEnhancement().build(*shapes)
