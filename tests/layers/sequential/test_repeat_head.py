import numpy as np
import pytest
from helpers import array, check_head, randomize
from sequential_twins import (
    IDS,
    LOWEST,
    NUM_IDS,
    STATE_DIM,
    TARGETS,
    inputs_of,
    last_logits,
    losses_of,
    softmax,
    weights_of,
)

from keras_recsys.layers import RepeatHead

RNG = np.random.default_rng(0)
STATES, _, TABLE = inputs_of(RNG)


def repeat_loop(weights):
    """Function from a history to the logarithms of the probabilities."""

    def attention(name, states):
        bias = weights["explore_bias"] if name == "explore" else 0.0
        query = states[-1] @ weights[f"{name}_query_kernel"]
        memory = states @ weights[f"{name}_memory_kernel"]
        return softmax(
            (np.tanh(query + memory + bias) @ weights[f"{name}_score_kernel"])[:, 0]
        )

    def logits_of(states, ids):
        gate = softmax(attention("gate", states) @ states @ weights["gate_kernel"])
        feature = np.concatenate([attention("explore", states) @ states, states[-1]])
        new = np.setdiff1d(np.arange(1, NUM_IDS), ids)
        p = np.zeros(NUM_IDS)
        p[new] = gate[1] * softmax(feature @ weights["output_kernel"][:, new])
        for weight, item in zip(attention("repeat", states), ids, strict=True):
            p[item] += gate[0] * weight
        return np.concatenate([[LOWEST], np.log(p[1:])])

    return logits_of


def build(**kwargs):
    layer = RepeatHead(**kwargs)
    layer.build(STATES.shape, IDS.shape, TABLE.shape)
    randomize(layer, np.random.default_rng(1), scale=1.0)
    return layer


def test_contract(tmp_path):
    check_head(
        lambda **more: RepeatHead(dropout=0.2, seed=3, **more),
        tmp_path,
        table_matters=False,
    )


def test_equals_the_loop():
    layer = build()
    loop = repeat_loop(weights_of(layer))
    want = last_logits(loop, STATES, IDS)
    got = array(layer(STATES, IDS, TABLE))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    want = losses_of(loop, STATES, IDS, TARGETS)
    got = array(layer.step_losses(STATES, IDS, TABLE, TARGETS))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_zero_kernels_by_hand():
    # Half of the probability on three steps, half on the items 1, 2 and 4.
    layer = RepeatHead(kernel_initializer="zeros")
    ids = np.array([[3, 5, 3, 0]])
    table = np.zeros((6, 2), "float32")
    logits = array(layer(np.ones((1, 4, 2), "float32"), ids, table))[0]
    want = [1 / 6, 1 / 6, 1 / 3, 1 / 6, 1 / 6]
    np.testing.assert_allclose(np.exp(logits[1:]), want, rtol=1e-5)
    assert logits[0] == LOWEST


def test_user_vector_orders_the_items_that_are_new():
    layer = build()
    logits, vector = layer(STATES, IDS, TABLE, return_user_vector=True)
    assert vector.shape == (len(IDS), 2 * STATE_DIM)
    scores = array(vector) @ array(layer.kernels["output_kernel"])
    for row, (a, b) in enumerate(zip(array(logits), scores, strict=True)):
        new = np.setdiff1d(np.arange(1, NUM_IDS), IDS[row])
        np.testing.assert_array_equal(np.argsort(a[new]), np.argsort(b[new]))


def test_mask_and_padding_have_no_effect():
    layer = build()
    want = array(layer(STATES, IDS, TABLE))
    noise = np.where(IDS[..., None] > 0, STATES, np.nan)
    got = array(layer(noise, np.where(IDS > 0, IDS, 11), TABLE, inputs_mask=IDS > 0))
    np.testing.assert_array_equal(got, want)


def test_mask_of_all_steps_explores():
    layer = build()
    nothing = np.full_like(STATES, np.nan), np.zeros_like(IDS), TABLE
    got = array(layer(*nothing))
    want = np.full((len(IDS), NUM_IDS - 1), -np.log(NUM_IDS - 1))
    np.testing.assert_allclose(got[:, 1:], want, rtol=1e-5)
    losses = array(layer.step_losses(*nothing, TARGETS))
    np.testing.assert_allclose(losses[TARGETS > 0], np.log(NUM_IDS - 1), rtol=1e-5)


def test_losses_are_finite_where_weights_vanish():
    layer = build()
    losses = array(layer.step_losses(1e4 * STATES, IDS, TABLE, TARGETS))
    assert np.isfinite(losses).all()


def test_dropout_acts_in_training_alone():
    plain, dropped = build(), build(dropout=0.5, seed=1)
    want = array(plain(STATES, IDS, TABLE, training=True))
    np.testing.assert_array_equal(array(dropped(STATES, IDS, TABLE)), want)
    assert (array(dropped(STATES, IDS, TABLE, training=True)) != want).any()
    want = array(plain.step_losses(STATES, IDS, TABLE, TARGETS))
    got = array(dropped.step_losses(STATES, IDS, TABLE, TARGETS, training=False))
    np.testing.assert_array_equal(got, want)
    first, second = (
        array(build(dropout=0.5, seed=1).step_losses(STATES, IDS, TABLE, TARGETS))
        for _ in range(2)
    )
    assert (first != want).any()
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("dropout", [1.0, -0.1])
def test_says_what_dropout_was_given(dropout):
    with pytest.raises(ValueError, match=f"`dropout`.*={dropout}"):
        RepeatHead(dropout=dropout)


def test_says_what_shapes_were_given():
    with pytest.raises(ValueError, match="`RepeatHead` takes.*shapes"):
        RepeatHead()(STATES, IDS[:, :4], TABLE)
