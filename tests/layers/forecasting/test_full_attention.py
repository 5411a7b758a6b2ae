import keras
import numpy as np
import pytest
from helpers import array, check_layer, output_and_gradients, randomize
from prob_sparse_twins import multi_head_loop
from twins import DTYPE, check_twin

from keras_recsys.layers import FullAttention

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 5, 4)).astype("float32")
MEMORY = RNG.normal(size=(3, 3, 5)).astype("float32")
# All real; holes, with the first step missing; no step.
MASK = np.array([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [0, 0, 0, 0, 0]], bool)
MEMORY_MASK = np.array([[1, 1, 0], [0, 0, 0], [1, 1, 1]], bool)


def made(*args, shapes=(X.shape, X.shape), **options):
    """A layer with random weights, the same each time."""
    layer = FullAttention(*args, **options)
    layer.build(*shapes)
    randomize(layer, np.random.default_rng(1), scale=1.0)
    return layer


@pytest.mark.parametrize("mix", [False, True])
def test_contract(mix, tmp_path):
    check_layer(
        lambda: FullAttention(
            2,
            3,
            value_dim=2,
            output_dim=6,
            causal=not mix,
            mix=mix,
            dropout=0.2,
            seed=1,
            kernel_initializer="he_normal",
            bias_initializer="ones",
            kernel_regularizer="l2",
        ),
        (X, MEMORY) if mix else (X, X),
        tmp_path,
        call={} if mix else {"query_mask": MASK, "value_mask": MASK},
    )


@pytest.mark.parametrize(
    ("causal", "mix", "masked"),
    [(False, False, True), (True, False, True), (False, True, False)],
)
def test_equals_the_loop(causal, mix, masked):
    x, value = X[:2, :, :2], X[:2] if causal else MEMORY[:2]
    masks = {}
    if masked:
        value_mask = MASK[:2] if causal else MEMORY_MASK[:2]
        masks = {"query_mask": MASK[:2], "value_mask": value_mask}

    def twin(query, value, *weights):
        output = multi_head_loop(
            query,
            value,
            weights,
            num_heads=2,
            mix=mix,
            factor=100,
            causal=causal,
            query_mask=masks.get("query_mask"),
            key_mask=masks.get("value_mask"),
        )
        return np.where(MASK[:2, :, None], output, 0.0) if masked else output

    layer = FullAttention(2, 1, value_dim=2, causal=causal, mix=mix, dtype=DTYPE)
    check_twin(layer, (x, value), twin, call=masks)


def test_by_hand():
    """One head whose projections do nothing, scores 0 and ln 3, values 0 and 1."""
    layer = FullAttention(1, 1)
    query = np.array([[[0.0], [np.log(3)]]], "float32")
    value = np.array([[[0.0], [1.0]]], "float32")
    layer.build(query.shape, value.shape)
    layer.set_weights([np.ones((1, 1)), np.zeros(1)] * 4)
    output, weights = layer(query, value, return_attention_scores=True)
    np.testing.assert_allclose(array(output).ravel(), [1 / 2, 3 / 4])
    np.testing.assert_allclose(array(weights)[0, 0], [[1 / 2, 1 / 2], [1 / 4, 3 / 4]])


def test_mix_by_hand():
    """Two heads without queries: step 1 has the mean of the first, step 2 that of both.

    Steps are 1 to 4 in the first head and 5 to 8 in the second, of which the running
    means are 1, 1.5, 2, 2.5 and 5, 5.5, 6, 6.5. Mixed, a row holds two steps of a head.
    """
    x = np.array([[[1.0, 5.0], [2.0, 6.0], [3.0, 7.0], [4.0, 8.0]]], "float32")
    none, identity, bias = np.zeros((2, 2)), np.eye(2), np.zeros(2)
    weights = [none, bias, none, bias, identity, bias, identity, bias]
    for mix, want in (
        (False, [[1, 5], [1.5, 5.5], [2, 6], [2.5, 6.5]]),
        (True, [[1, 1.5], [2, 2.5], [5, 5.5], [6, 6.5]]),
    ):
        layer = FullAttention(2, 1, causal=True, mix=mix)
        layer.build(x.shape, x.shape)
        layer.set_weights(weights)
        np.testing.assert_allclose(array(layer(x, x))[0], want, rtol=1e-6)


def test_equals_that_of_keras():
    ours = made(2, 3, value_dim=2, output_dim=6, causal=True)
    keras_layer = keras.layers.MultiHeadAttention(2, 3, value_dim=2, output_shape=6)
    keras_layer.build(X.shape, X.shape)
    shapes = [w.shape for w in keras_layer.weights]
    keras_layer.set_weights(
        [w.reshape(s) for w, s in zip(ours.get_weights(), shapes, strict=True)]
    )
    np.testing.assert_allclose(
        array(ours(X, X)),
        array(keras_layer(X, X, use_causal_mask=True)),
        rtol=1e-5,
        atol=1e-5,
    )


def test_lengths_may_be_unknown_and_one():
    x = keras.Input((None, 4))
    layer = FullAttention(2, 3, causal=True)
    outputs = layer(x, x, return_attention_scores=True)
    assert [tuple(o.shape) for o in outputs] == [(None, None, 4), (None, 2, None, None)]
    model = keras.Model(x, outputs)
    for length in (5, 1, 3):
        part = X[:, :length].copy()
        got = model.predict(part, verbose=0)
        want = layer(part, part, return_attention_scores=True)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, array(b), rtol=1e-5, atol=1e-6)


def test_noise_under_the_masks_changes_nothing():
    layer = made(2, 3, shapes=(X.shape, MEMORY.shape))
    call = {"query_mask": MASK, "value_mask": MEMORY_MASK}
    runs = []
    for noise in (0.0, np.nan, np.inf):
        x = (
            np.where(MASK[..., None], X, noise).astype("float32"),
            np.where(MEMORY_MASK[..., None], MEMORY, noise).astype("float32"),
        )
        runs.append(output_and_gradients(layer, x, call=call, wrt_inputs=True))
    for output, gradients in runs:
        assert not output[~MASK].any()
        np.testing.assert_array_equal(output, runs[0][0])
        for got, want in zip(gradients, runs[0][1], strict=True):
            np.testing.assert_array_equal(got, want)
    # The second row has no key: its real steps get the bias of the projection.
    _, weights = layer(X, MEMORY, return_attention_scores=True, **call)
    kept = MASK[:, None, :, None] & MEMORY_MASK[:, None, None]
    assert not array(weights)[~np.broadcast_to(kept, weights.shape)].any()
    np.testing.assert_allclose(
        array(weights).sum(-1),
        np.broadcast_to(kept.any(-1), weights.shape[:3]),
        rtol=1e-5,
    )
    bias = array(layer.output_projection.bias)
    np.testing.assert_array_equal(runs[0][0][1, MASK[1]], np.tile(bias, (3, 1)))


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_causal_steps_do_not_see_what_follows(dropout):
    other = X.copy()
    other[:, 4] = 9.0
    first, second = (
        array(made(2, 3, causal=True, dropout=dropout, seed=3)(x, x, training=True))
        for x in (X, other)
    )
    np.testing.assert_allclose(first[:, :4], second[:, :4], rtol=1e-5, atol=1e-6)
    assert np.abs(first[:, 4] - second[:, 4]).max() > 0.1


def test_dropout_acts_on_the_weights_in_training_alone():
    layer = made(2, 3, dropout=0.5, seed=1)
    want = array(layer(X, X))
    np.testing.assert_array_equal(want, array(layer(X, X, training=False)))
    first, second = (array(layer(X, X, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 0.1
    _, weights = layer(X, X, training=True, return_attention_scores=True)
    np.testing.assert_allclose(array(weights).sum(-1), 1.0, rtol=1e-5)
    again = made(2, 3, dropout=0.5, seed=1)
    np.testing.assert_array_equal(array(again(X, X, training=True)), first)


def test_scores_are_wide_in_half_precision():
    layer = made(2, 3, dtype="mixed_float16")
    for dense in (layer.query, layer.key):
        dense.set_weights([40 * np.ones((4, 6)), np.zeros(6)])
    one = np.ones_like(X)  # a product is 3 * 160 ** 2, above the largest float16
    output, weights = layer(one, one, return_attention_scores=True)
    assert np.isfinite(array(output)).all()
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    np.testing.assert_allclose(array(weights).sum(-1), 1.0, rtol=1e-5)


def test_says_what_was_given():
    with pytest.raises(TypeError, match=r"`num_heads` must be an integer.*=2.5"):
        FullAttention(2.5, 3)
    with pytest.raises(ValueError, match=r"`key_dim` must be at least 1.*key_dim=0"):
        FullAttention(2, 0)
    with pytest.raises(ValueError, match=r"`dropout` must be .*dropout=-0.1"):
        FullAttention(2, 3, dropout=-0.1)
    with pytest.raises(ValueError, match=r"static dim.*value_shape=\(3, 5, None\)"):
        FullAttention(2, 3).build((3, 5, 4), (3, 5, None))
    with pytest.raises(ValueError, match=r"`FullAttention` takes no mask where `mix`"):
        FullAttention(2, 3, mix=True)(X, X, value_mask=MASK)
