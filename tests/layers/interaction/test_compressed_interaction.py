import keras
import numpy as np
import pytest
from helpers import BACKEND, array, check_layer, output_and_gradients, tensor
from twins import DTYPE, assert_near, check_twin

from keras_recsys.layers import CompressedInteraction
from keras_recsys.layers.interaction import compressed_interaction

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 4, 3)).astype("float32")
MASK = np.array([[1, 1, 0, 1], [0, 1, 0, 0]], bool)
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "linear": lambda x: x,
}


def cin_loop(x, weights, split_half, activation, use_bias):
    """The formulas of the docstring, one product at a time."""
    weights = list(weights)
    previous, sums = x, []
    while weights:
        kernel = weights.pop(0)
        bias = weights.pop(0) if use_bias else np.zeros(kernel.shape[2])
        rows = np.zeros((len(x), len(bias), x.shape[2]))
        for i, j, h in np.ndindex(kernel.shape):
            rows[:, h] += kernel[i, j, h] * x[:, i] * previous[:, j]
        rows = ACTIVATIONS[activation](rows + bias[:, None])
        handed_on = len(bias) // 2 if split_half else len(bias)
        is_split = split_half and weights
        sums.append(rows[:, handed_on if is_split else 0 :].sum(axis=2))
        previous = rows[:, :handed_on]
    return np.concatenate(sums, axis=1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"split_half": False, "activation": "tanh", "use_bias": False},
        {
            "activation": "sigmoid",
            "kernel_initializer": "he_normal",
            "kernel_regularizer": "l2",
        },
    ],
    ids=["whole", "split"],
)
def test_contract(arguments, tmp_path):
    check_layer(
        lambda: CompressedInteraction((4, 2, 3), **arguments),
        X,
        tmp_path,
        call={"mask": MASK},
    )


@pytest.mark.parametrize(
    ("units", "split_half", "activation", "use_bias", "rows_at_once"),
    [
        ((3,), True, "linear", True, 1),
        ((4, 3), True, "tanh", True, 8),
        ((3, 2), False, "linear", False, 8),
        ((3, 2), False, "linear", False, 256),
        ((2, 4, 1), True, "relu", True, 256),
    ],
)
def test_equals_the_loop(
    units, split_half, activation, use_bias, rows_at_once, monkeypatch
):
    monkeypatch.setattr(compressed_interaction, "ROWS_AT_ONCE", rows_at_once)
    check_twin(
        CompressedInteraction(
            units,
            split_half=split_half,
            activation=activation,
            use_bias=use_bias,
            dtype=DTYPE,
        ),
        X,
        lambda x, *weights: cin_loop(x, weights, split_half, activation, use_bias),
    )


@pytest.mark.parametrize("rows_at_once", [1, 6, 256])
@pytest.mark.parametrize("starts", [[0, 0, 0, 0], [0, 1, 2, 2]])
def test_blocks_of_products_equal_the_sum(starts, rows_at_once, monkeypatch):
    monkeypatch.setattr(compressed_interaction, "ROWS_AT_ONCE", rows_at_once)
    first, x = (RNG.normal(size=(n, 5)).astype("float32") for n in (4, 3))
    pairs = [(i, j) for i, start in enumerate(starts) for j in range(start, 3)]
    kernel = RNG.normal(size=(len(pairs), 2)).astype("float32")
    got = compressed_interaction.compress_products(
        tensor(first), tensor(x), tensor(kernel), starts
    )
    want = sum(
        np.outer(row, first[i] * x[j])
        for (i, j), row in zip(pairs, kernel, strict=True)
    )
    np.testing.assert_allclose(array(got), want, rtol=1e-4, atol=1e-5)


def test_by_hand():
    layer = CompressedInteraction(
        (1, 1), split_half=False, activation="linear", use_bias=False
    )
    x = np.array([[[1, 2], [3, 4]]], "float32")
    layer.build(x.shape)
    # X^1 = 10 v_0 v_1 + 1 v_1 v_0 = 11 [3, 8]; X^2 = v_0 X^1 + 2 v_1 X^1
    layer.set_weights([np.array([[[0], [10]], [[1], [0]]]), np.array([[[1]], [[2]]])])
    want = [[11 * 11, 33 * (1 + 6) + 88 * (2 + 8)]]
    np.testing.assert_array_equal(array(layer(x)), want)


@pytest.mark.parametrize(
    ("units", "split_half", "shapes", "width"),
    [
        ((6, 4), True, [(5, 5, 6), (5, 3, 4)], 3 + 4),
        ((6, 4), False, [(5, 5, 6), (5, 6, 4)], 6 + 4),
        ((7,), True, [(5, 5, 7)], 7),
    ],
)
def test_shapes(units, split_half, shapes, width):
    layer = CompressedInteraction(units, split_half=split_half, use_bias=False)
    output = layer(np.ones((2, 5, 3), "float32"))
    assert [tuple(w.shape) for w in layer.weights] == shapes
    assert output.shape == (2, width)


def test_noise_at_masked_fields_changes_nothing():
    layer = CompressedInteraction((4, 2), use_bias=False, activation="tanh")
    layer.build(X.shape)
    layer.set_weights([RNG.normal(size=w.shape) for w in layer.weights])
    kept = MASK[..., None]
    noisy = np.where(kept, X, np.nan).astype("float32")
    want = output_and_gradients(layer, np.where(kept, X, 0), wrt_inputs=True)
    got = output_and_gradients(layer, noisy, call={"mask": MASK}, wrt_inputs=True)
    assert_near(got[0], want[0])
    assert_near(got[1][0], np.where(kept, want[1][0], 0))
    for a, b in zip(got[1][1:], want[1][1:], strict=True):
        assert_near(a, b)
    assert layer.compute_mask(X, MASK) is None


def test_kernels_start_as_matrices_of_all_pairs():
    seeded = keras.initializers.GlorotUniform(seed=1)
    layer = CompressedInteraction((20, 20), split_half=False, kernel_initializer=seeded)
    layer.build((None, 20, 4))
    first, _, second, _ = layer.get_weights()
    for kernel in (first, second):
        assert kernel.std() == pytest.approx((2 / (400 + 20)) ** 0.5, rel=0.05)
        assert abs(kernel.mean()) < 0.01
    assert np.abs(first - second).max() > 0.01


@pytest.mark.skipif(
    BACKEND != "tensorflow", reason="reads the shapes of a TensorFlow graph"
)
def test_products_never_exist_at_once(monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(compressed_interaction, "ROWS_AT_ONCE", 32)
    layer = CompressedInteraction((16, 2), split_half=False)
    layer.build((None, 16, 5))
    x = tf.ones((30, 16, 5))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x))
        return tape.gradient(loss, [x, *(w.value for w in layer.weights)])

    graph = step.get_concrete_function(x).graph
    sizes = [
        output.shape.num_elements() or 0
        for op in graph.get_operations()
        for output in op.outputs
        if output.dtype.is_floating
    ]
    # Rows have 30 * 5 entries; all products would be 16 * 16 of them.
    assert max(sizes) <= 32 * 30 * 5


@pytest.mark.parametrize("shape", [(2, 1, 4), (2, 4), (2, 3, 4, 5)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"at least two fields.*input_shape=\("):
        CompressedInteraction()(np.ones(shape, "float32"))


def test_says_what_was_given():
    with pytest.raises(TypeError, match="`units` must be an integer.*=2.5"):
        CompressedInteraction((2, 2.5))
    with pytest.raises(ValueError, match="`units` must be at least 1.*=0"):
        CompressedInteraction((0, 2))
    with pytest.raises(ValueError, match=r"at least one size. Received: units=\(\)"):
        CompressedInteraction(())
    with pytest.raises(ValueError, match=r"must be even before the last.*\(3, 2\)"):
        CompressedInteraction((3, 2))
