import keras
import numpy as np
import pytest
from helpers import array, check_head, output_and_gradients, randomize, tensor
from sequential_twins import (
    DIM,
    IDS,
    LOWEST,
    NUM_IDS,
    STATE_DIM,
    TARGETS,
    check_candidates,
    inputs_of,
    losses_of,
    weights_of,
)

from keras_recsys.layers import SampledSoftmax
from keras_recsys.layers.sequential.sampled_softmax import sampled_losses

RNG = np.random.default_rng(0)
STATES, _, TABLE = inputs_of(RNG)
SAMPLINGS = ("uniform", "log_uniform")


def sampled_loop(queries, table, targets, sampled, counts_targets, counts_sampled):
    """The docstring of `sampled_losses`, one row at a time, in float64."""
    losses = np.zeros(len(queries))
    for row, target in enumerate(targets):
        if not target:
            continue
        hit = queries[row] @ table[target] - counts_targets[row]
        total = np.exp(hit)
        for item, count in zip(sampled, counts_sampled, strict=True):
            if item != target:
                total += np.exp(queries[row] @ table[item] - count)
        losses[row] = np.log(total) - hit
    return losses


def expected_shares(sampling):
    """Probability to be drawn, of the items without id 0."""
    items = np.arange(1, NUM_IDS)
    shares = np.ones(len(items)) if sampling == "uniform" else np.log(1 + 1 / items)
    return shares / shares.sum()


def build(num_sampled, **kwargs):
    layer = SampledSoftmax(num_sampled, **kwargs)
    layer.build(STATES.shape, IDS.shape, TABLE.shape)
    randomize(layer, np.random.default_rng(1))
    return layer


class Losses(keras.layers.Layer):
    """Losses of every step, with gradients."""

    def __init__(self, head, training):
        super().__init__()
        self.head, self.sampling, self.built = head, training, True

    def call(self, states, table):
        return self.head.step_losses(
            states, IDS, table, TARGETS, training=self.sampling
        )


@pytest.mark.parametrize(
    "arguments", [{"sampling": "log_uniform"}, {"use_projection": False}]
)
def test_contract(arguments, tmp_path):
    check_head(lambda **more: SampledSoftmax(3, seed=1, **arguments, **more), tmp_path)


def test_equals_the_loop():
    layer = build(3)
    weights = weights_of(layer)

    def logits_of(states, ids):
        logits = TABLE @ (states[-1] @ weights["kernel"] + weights["bias"])
        return np.concatenate([[LOWEST], logits[1:]])

    got = array(layer.step_losses(STATES, IDS, TABLE, TARGETS, training=False))
    want = losses_of(logits_of, STATES, IDS, TARGETS)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_candidates_have_the_logits_of_a_call():
    check_candidates(build(3), STATES, IDS, TABLE)


def test_sampled_losses_equal_the_loop():
    rng = np.random.default_rng(2)
    queries = rng.normal(size=(6, DIM)).astype("float32")
    targets = np.array([3, 0, 7, 3, 11, 1], "int32")
    sampled = np.array([3, 7, 3, 5], "int32")
    counts = [rng.normal(size=n).astype("float32") for n in (6, 4)]
    inputs = queries, TABLE, targets, sampled, *counts
    got = array(sampled_losses(*map(tensor, inputs)))
    np.testing.assert_allclose(got, sampled_loop(*inputs), rtol=1e-5, atol=1e-6)


def test_case_48_the_correction_is_subtracted():
    # One other item, of logit 2 and probability 0.25: 2 - log(0.25) = 3.386294.
    table = np.array([[0.0], [0.0], [2.0]], "float32")
    one = np.ones((1, 1), "float32")
    targets, sampled = np.array([1], "int32"), np.array([2], "int32")
    zero, count = np.zeros(1, "float32"), np.log([0.25]).astype("float32")
    losses = sampled_losses(*map(tensor, (one, table, targets, sampled, zero, count)))
    np.testing.assert_allclose(array(losses), np.log1p(np.exp(3.386294)), rtol=1e-6)
    # And as the target, against an item of logit 0 without a correction.
    losses = sampled_losses(*map(tensor, (one, table, sampled, targets, count, zero)))
    np.testing.assert_allclose(array(losses), np.log1p(np.exp(-3.386294)), rtol=1e-5)


def test_case_49_a_target_is_no_negative_of_its_own_row():
    # The batch is its own sample: rows 0 and 2 have two others, rows 1 and 3 three.
    targets = np.array([101, 102, 101, 104], "int32")
    queries, table = np.ones((4, 1), "float32"), np.zeros((105, 1), "float32")
    zeros = np.zeros(4, "float32")
    inputs = queries, table, targets, targets, zeros, zeros
    got = array(sampled_losses(*map(tensor, inputs)))
    np.testing.assert_allclose(got, np.log([3.0, 4.0, 3.0, 4.0]), rtol=1e-6)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_draws_have_the_shares_of_the_sampling(sampling):
    layer = build(40_000, sampling=sampling, seed=1)
    drawn = array(layer._draw(NUM_IDS - 1))
    assert drawn.min() == 1
    assert drawn.max() == NUM_IDS - 1
    shares = np.bincount(drawn, minlength=NUM_IDS)[1:] / len(drawn)
    np.testing.assert_allclose(shares, expected_shares(sampling), atol=0.01)
    items = tensor(np.arange(1, NUM_IDS).astype("int32"))
    counts = np.exp(array(layer._log_counts(items, NUM_IDS - 1, "float32")))
    np.testing.assert_allclose(counts, 40_000 * expected_shares(sampling), rtol=1e-4)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_many_draws_give_the_loop_over_all_items(sampling):
    layer = build(20_000, sampling=sampling, seed=1)
    coef = np.random.default_rng(2).normal(size=TARGETS.shape)
    (got, gradients), (want, full) = (
        output_and_gradients(
            Losses(layer, training), (STATES, TABLE), coef, wrt_inputs=True
        )
        for training in (True, False)
    )
    np.testing.assert_allclose(got, want, atol=0.05)
    assert (got[TARGETS > 0] != want[TARGETS > 0]).all()
    for a, b in zip(gradients, full, strict=True):
        np.testing.assert_allclose(a, b, atol=0.05 * np.abs(b).max())


def test_seed_gives_the_same_draws_and_each_call_others():
    first, again = (build(5, seed=3) for _ in range(2))
    inputs = STATES, IDS, TABLE, TARGETS
    one = array(first.step_losses(*inputs))
    np.testing.assert_array_equal(array(again.step_losses(*inputs)), one)
    assert (array(first.step_losses(*inputs)) != one).any()


def test_mask_and_padding_have_no_effect():
    high = TABLE.copy()
    high[0] = 100.0
    noise = np.where(IDS[..., None] > 0, STATES, np.nan)
    ids = np.where(IDS > 0, IDS, 11)
    want = array(build(50, seed=1).step_losses(STATES, IDS, TABLE, TARGETS))
    got = array(
        build(50, seed=1).step_losses(noise, ids, high, TARGETS, inputs_mask=IDS > 0)
    )
    np.testing.assert_array_equal(got, want)
    assert not want[TARGETS == 0].any()
    nothing = np.zeros_like(IDS)
    assert np.isfinite(
        array(build(5).step_losses(noise, nothing, TABLE, TARGETS))
    ).all()


def test_says_what_sampling_was_given():
    with pytest.raises(ValueError, match="`sampling` must be one of.*'zipf'"):
        SampledSoftmax(5, sampling="zipf")


@pytest.mark.parametrize("num_sampled", [0, 1.5])
def test_says_what_num_sampled_was_given(num_sampled):
    match = f"`num_sampled`.*={num_sampled}"
    with pytest.raises((TypeError, ValueError), match=match):
        SampledSoftmax(num_sampled)


def test_says_that_other_widths_need_a_projection():
    with pytest.raises(ValueError, match=f"`use_projection`.*{STATE_DIM} and {DIM}"):
        SampledSoftmax(5, use_projection=False)(STATES, IDS, TABLE)
