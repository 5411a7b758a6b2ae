import keras
import numpy as np
import pytest
from helpers import array, check_layer, output_and_gradients
from twins import DTYPE, assert_near, check_twin

from keras_recsys.layers import InteractingLayer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 3)).astype("float32")
MASK = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]], bool)


def attention_loop(x, weights, num_heads, scale, mask):
    """The formulas of the docstring, one head and field at a time."""
    query, key, value, *residual = weights
    width = query.shape[1] // num_heads
    out = np.zeros((*x.shape[:2], query.shape[1]))
    for b, m, head in np.ndindex(*x.shape[:2], num_heads):
        part = slice(head * width, (head + 1) * width)
        others = [k for k in range(x.shape[1]) if mask[b, k]]
        if mask[b, m]:
            scores = [
                (x[b, m] @ query[:, part]) @ (x[b, k] @ key[:, part]) for k in others
            ]
            scores = np.array(scores) / (width**0.5 if scale else 1)
            shares = np.exp(scores - scores.max())
            shares /= shares.sum()
            for share, k in zip(shares, others, strict=True):
                out[b, m, part] += share * (x[b, k] @ value[:, part])
            if residual:
                out[b, m, part] += x[b, m] @ residual[0][:, part]
    return np.maximum(out, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_initializer": "he_normal", "kernel_regularizer": "l2"},
        {"use_residual": False, "scale": True},
    ],
    ids=["residual", "scaled"],
)
def test_contract(arguments, tmp_path):
    check_layer(
        lambda: InteractingLayer(3, 2, **arguments), X, tmp_path, call={"mask": MASK}
    )


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
@pytest.mark.parametrize(
    ("num_heads", "use_residual", "scale"),
    [(1, True, True), (3, True, False), (2, False, True)],
)
def test_equals_the_loop(num_heads, use_residual, scale, mask):
    kept = np.ones(X.shape[:2], bool) if mask is None else mask
    check_twin(
        InteractingLayer(
            num_heads, 2, use_residual=use_residual, scale=scale, dtype=DTYPE
        ),
        X,
        lambda x, *weights: attention_loop(x, weights, num_heads, scale, kept),
        call=None if mask is None else {"mask": mask},
    )


def test_by_hand():
    layer = InteractingLayer(1, 1)
    x = np.array([[[0.0, 1.0], [np.log(3.0), 2.0]]], "float32")
    layer.build(x.shape)
    # Only field 1 has a query: its scores are 0 and log 3, its weights 1/4 and 3/4.
    kernels = [[[1], [0]], [[1 / np.log(3.0)], [0]], [[0], [1]], [[0], [-1]]]
    layer.set_weights([np.array(kernel) for kernel in kernels])
    got = array(layer(x))
    np.testing.assert_allclose(got, [[[1.5 - 1.0], [0.0]]], rtol=1e-5)  # 1.75 - 2 < 0


def test_noise_at_masked_fields_changes_nothing():
    layer = InteractingLayer(2, 3)
    layer.build(X.shape)
    layer.set_weights([RNG.normal(size=w.shape) for w in layer.weights])
    kept = MASK[..., None]
    call = {"mask": MASK}
    want = output_and_gradients(layer, X, call=call, wrt_inputs=True)
    noisy = np.where(kept, X, np.nan).astype("float32")
    got = output_and_gradients(layer, noisy, call=call, wrt_inputs=True)
    assert_near(got[0], want[0])
    for a, b in zip(got[1], want[1], strict=True):
        assert_near(a, b)
    assert not got[0][~MASK].any()
    assert not got[1][0][~MASK].any()
    # A row of two fields is that row without the others.
    short = array(layer(X[1:2, [0, 2]]))
    np.testing.assert_allclose(got[0][1, [0, 2]], short[0], rtol=1e-5, atol=1e-6)
    masked = keras.ops.convert_to_tensor(MASK)
    np.testing.assert_array_equal(array(layer.compute_mask(X, masked)), MASK)


def test_masks_in_float16_stay_finite():
    layer = InteractingLayer(2, 3, dtype="mixed_float16")
    got = array(layer(100 * X, mask=MASK))
    assert np.isfinite(got).all()
    assert not got[~MASK].any()


def test_all_kernels_of_one_seeded_initializer_differ():
    seeded = keras.initializers.GlorotUniform(seed=1)
    layer = InteractingLayer(2, 30, kernel_initializer=seeded)
    layer.build((None, 4, 60))
    kernels = np.stack([kernel.ravel() for kernel in layer.get_weights()])
    assert np.abs(np.corrcoef(kernels) - np.eye(4)).max() < 0.1
    assert kernels.std() == pytest.approx((2 / 120) ** 0.5, rel=0.05)


@pytest.mark.parametrize("shape", [(2, 1, 4), (2, 4), (2, 3, 4, 5)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"at least two fields.*input_shape=\("):
        InteractingLayer()(np.ones(shape, "float32"))


@pytest.mark.parametrize("name", ["num_heads", "key_dim"])
def test_says_what_was_given(name):
    with pytest.raises(TypeError, match=f"`{name}` must be an integer.*{name}=2.5"):
        InteractingLayer(**{name: 2.5})
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1.*{name}=0"):
        InteractingLayer(**{name: 0})
