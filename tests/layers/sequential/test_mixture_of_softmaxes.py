import numpy as np
import pytest
from helpers import array, check_head, randomize
from sequential_twins import (
    DIM,
    IDS,
    LOWEST,
    TARGETS,
    inputs_of,
    last_logits,
    log_softmax_of_items,
    losses_of,
    softmax,
    weights_of,
)

from keras_recsys.layers import MixtureOfSoftmaxes

RNG = np.random.default_rng(0)
STATES, _, TABLE = inputs_of(RNG)
MODES = ("dynamic", "static", "uniform", "max")


def mixture_loop(layer, weights, table):
    """Function from a history to the logits of its next item."""

    def logits_of(states, ids):
        count = layer.num_components
        scores = [
            table @ (states[-1] @ weights[f"component_{i}_kernel"])
            + table @ weights[f"component_{i}_bias"]
            for i in range(count)
        ]
        if layer.mode == "max":
            logits = np.max(scores, axis=0)
            logits[0] = LOWEST
            return logits
        logits = np.zeros(count)
        if layer.mode == "dynamic":
            logits = states[-1] @ weights["mixture_kernel"] + weights["mixture_bias"]
        elif layer.mode == "static":
            logits = weights["mixture_logits"]
        parts = zip(softmax(logits), scores, strict=True)
        total = sum(w * np.exp(log_softmax_of_items(z)) for w, z in parts)
        return np.concatenate([[LOWEST], np.log(total[1:])])

    return logits_of


def build(mode, **kwargs):
    layer = MixtureOfSoftmaxes(mode=mode, **kwargs)
    layer.build(STATES.shape, IDS.shape, TABLE.shape)
    randomize(layer, np.random.default_rng(1), scale=1.0)
    return layer


@pytest.mark.parametrize("mode", MODES)
def test_contract(mode, tmp_path):
    check_head(lambda **more: MixtureOfSoftmaxes(2, mode, **more), tmp_path)


@pytest.mark.parametrize("mode", MODES)
def test_equals_the_loop(mode):
    layer = build(mode)
    loop = mixture_loop(layer, weights_of(layer), TABLE.astype("float64"))
    want = last_logits(loop, STATES, IDS)
    got = array(layer(STATES, IDS, TABLE))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    want = losses_of(loop, STATES, IDS, TARGETS)
    got = array(layer.step_losses(STATES, IDS, TABLE, TARGETS))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "want"),
    [
        # softmax (0.8, 0.2) and (0.2, 0.8), each the half
        ("uniform", [0.5, 0.5]),
        ("static", [0.5, 0.5]),
        # weights softmax(log 3, 0) = (3/4, 1/4)
        ("dynamic", [0.75 * 0.8 + 0.25 * 0.2, 0.75 * 0.2 + 0.25 * 0.8]),
    ],
)
def test_two_items_by_hand(mode, want):
    layer = MixtureOfSoftmaxes(2, mode)
    layer.build((1, 1, 1), (1, 1), (3, 1))
    half = np.log(4) / 2
    layer.kernels[0].assign([[half]])
    layer.kernels[1].assign([[-half]])
    if mode == "dynamic":
        layer.mixture_kernel.assign([[np.log(3), 0.0]])
    table = np.array([[9.0], [1.0], [-1.0]], "float32")
    logits = layer(np.ones((1, 1, 1), "float32"), np.array([[2]]), table)
    np.testing.assert_allclose(np.exp(array(logits)[0, 1:]), want, rtol=1e-5)
    assert array(logits)[0, 0] == LOWEST


def test_max_takes_the_largest_product_of_the_user_vectors():
    layer = build("max")
    logits, vectors = layer(STATES, IDS, TABLE, return_user_vector=True)
    assert vectors.shape == (len(IDS), 3, DIM)
    want = (array(vectors) @ TABLE.T).max(axis=1)
    np.testing.assert_allclose(array(logits)[:, 1:], want[:, 1:], rtol=1e-5, atol=1e-5)


def test_probabilities_add_up_to_one_for_sure_scores():
    layer = build("dynamic")
    logits = array(layer(100 * STATES, IDS, TABLE)).astype("float64")
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(np.exp(logits).sum(axis=1), 1.0, rtol=1e-4)


@pytest.mark.parametrize("mode", ["dynamic", "max"])
def test_mask_and_padding_have_no_effect(mode):
    layer = build(mode)
    want = array(layer(STATES, IDS, TABLE))
    noise = np.where(IDS[..., None] > 0, STATES, np.nan)
    ids, high = np.where(IDS > 0, IDS, 11), TABLE.copy()
    high[0] = 100.0
    got = array(layer(noise, ids, high, inputs_mask=IDS > 0))
    np.testing.assert_array_equal(got, want)
    assert np.isfinite(array(layer(noise, np.zeros_like(IDS), TABLE))).all()


def test_says_what_mode_was_given():
    with pytest.raises(ValueError, match="`mode` must be one of.*mode='mean'"):
        MixtureOfSoftmaxes(mode="mean")


@pytest.mark.parametrize("num_components", [0, 1.5])
def test_says_what_num_components_was_given(num_components):
    match = f"`num_components`.*={num_components}"
    with pytest.raises((TypeError, ValueError), match=match):
        MixtureOfSoftmaxes(num_components)


def test_says_what_shapes_were_given():
    with pytest.raises(ValueError, match="`MixtureOfSoftmaxes` takes.*shapes"):
        MixtureOfSoftmaxes()(STATES, IDS, TABLE[0])
