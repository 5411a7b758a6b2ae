import keras
import numpy as np
import pytest
from helpers import array, check_layer, output_and_gradients
from twins import DTYPE, assert_near, check_twin

from keras_recsys.layers import SENETPlus

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 3, 4)).astype("float32")
MASK = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 0]], bool)
ACTIVATIONS = {"linear": lambda x: x, "sigmoid": lambda x: 1 / (1 + np.exp(-x))}


def senet_plus_loop(x, weights, num_groups, activation, epsilon, mask):
    """The formulas of the docstring, one row and part at a time."""
    reduction, reduction_bias, expansion, expansion_bias, gamma, beta = weights
    out = np.zeros(x.shape)
    for b, fields in enumerate(x * mask[..., None]):
        z = []
        for field in fields:
            parts = np.split(field, num_groups)
            z += [part.max() for part in parts] + [part.mean() for part in parts]
        hidden = np.maximum(z @ reduction + reduction_bias, 0)
        a = ACTIVATIONS[activation](hidden @ expansion + expansion_bias)
        entries = a * fields.ravel() + fields.ravel()
        spread = np.sqrt(np.mean((entries - entries.mean()) ** 2) + epsilon)
        normal = (entries - entries.mean()) / spread * gamma + beta
        out[b] = normal.reshape(fields.shape)
    return out * mask[..., None]


def test_contract(tmp_path):
    check_layer(
        lambda: SENETPlus(
            4,
            1.5,
            activation="sigmoid",
            epsilon=0.1,
            kernel_initializer="he_normal",
            kernel_regularizer="l2",
        ),
        X,
        tmp_path,
        call={"mask": MASK},
    )


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
@pytest.mark.parametrize(
    ("num_groups", "activation", "epsilon"),
    [(1, "linear", 1e-3), (2, "sigmoid", 0.1), (4, "linear", 1.0)],
)
def test_equals_the_loop(num_groups, activation, epsilon, mask):
    kept = np.ones(X.shape[:2], bool) if mask is None else mask
    x = X + 0.1 * ~kept[..., None]  # what is masked is no number of its own
    check_twin(
        SENETPlus(num_groups, 2, activation=activation, epsilon=epsilon, dtype=DTYPE),
        x,
        lambda x, *weights: senet_plus_loop(
            x, weights, num_groups, activation, epsilon, kept
        ),
        call=None if mask is None else {"mask": mask},
    )


def test_by_hand():
    layer = SENETPlus(1, 4, epsilon=1e-9)
    x = np.array([[[1.0, 3.0]]], "float32")
    layer.build(x.shape)  # squeezed to the maximum 3 and the mean 2
    assert layer.reduction_kernel.shape == (2, 1)
    weights = [[[1], [2]], [-6], [[1, 2]], [0, -1], [10, 10], [0, 5]]
    layer.set_weights([np.array(w) for w in weights])
    # One unit relu(3 + 4 - 6) = 1; weights 1 and 1; entries 2 and 6, normalized -1, 1.
    np.testing.assert_allclose(array(layer(x)), [[[-10, 15]]], rtol=1e-5)


@pytest.mark.parametrize(
    ("num_groups", "ratio", "units"), [(2, 3, 8), (1, 100, 1), (4, 1.5, 32)]
)
def test_ratio_divides_the_squeezed_numbers(num_groups, ratio, units):
    layer = SENETPlus(num_groups, ratio)
    layer.build((None, 6, 4))
    shapes = [tuple(w.shape) for w in layer.weights]
    squeezed = 2 * num_groups * 6
    assert shapes == [(squeezed, units), (units,), (units, 24), (24,), (24,), (24,)]


def test_noise_at_masked_fields_changes_nothing():
    layer = SENETPlus(2, 2)
    layer.build(X.shape)
    layer.set_weights([RNG.normal(size=w.shape) for w in layer.weights])
    kept = MASK[..., None]
    call = {"mask": MASK}
    want = output_and_gradients(layer, np.where(kept, X, 0), call=call, wrt_inputs=True)
    noisy = np.where(kept, X, np.nan).astype("float32")
    got = output_and_gradients(layer, noisy, call=call, wrt_inputs=True)
    assert_near(got[0], want[0])
    for a, b in zip(got[1], want[1], strict=True):
        assert_near(a, b)
    assert not got[0][~MASK].any()
    # The others are as beside a field of zeros.
    zeroed = array(layer(np.where(kept, X, 0)))
    np.testing.assert_allclose(got[0][MASK], zeroed[MASK], rtol=1e-6)
    masked = keras.ops.convert_to_tensor(MASK)
    np.testing.assert_array_equal(array(layer.compute_mask(X, masked)), MASK)


def test_half_precision_normalizes_in_float32():
    x = RNG.normal(size=(2, 8, 8)).astype("float32") * 300  # squares above float16
    layer = SENETPlus(dtype="mixed_float16", kernel_initializer="zeros")
    got = array(layer(x)).reshape(2, -1)
    np.testing.assert_allclose(got.mean(axis=1), 0, atol=1e-2)
    np.testing.assert_allclose(got.std(axis=1), 1, rtol=1e-2)


def test_both_kernels_of_one_seeded_initializer_differ():
    seeded = keras.initializers.GlorotNormal(seed=1)
    layer = SENETPlus(2, 1, kernel_initializer=seeded)
    layer.build((None, 6, 4))
    first, _, second, _, gamma, beta = layer.get_weights()
    assert first.shape == second.shape
    assert np.abs(first - second).max() > 0.01
    assert first.std() == pytest.approx((2 / 48) ** 0.5, rel=0.1)
    assert (gamma == 1).all()
    assert (beta == 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_groups": 0}, "`num_groups` must be at least 1.*num_groups=0"),
        ({"reduction_ratio": 0}, "`reduction_ratio` must be a number above 0.*=0"),
        ({"epsilon": -1.0}, "`epsilon` must be a number above 0.*epsilon=-1.0"),
    ],
)
def test_says_what_was_given(arguments, message):
    with pytest.raises(ValueError, match=message):
        SENETPlus(**arguments)


def test_says_what_else_was_given():
    with pytest.raises(TypeError, match="`num_groups` must be an integer.*=1.5"):
        SENETPlus(1.5)
    with pytest.raises(
        ValueError, match="must divide the embedding_dim of `inputs`, 4"
    ):
        SENETPlus(3)(X)
    with pytest.raises(ValueError, match=r"with the last two static.*\(2, 3\)"):
        SENETPlus()(np.ones((2, 3), "float32"))
