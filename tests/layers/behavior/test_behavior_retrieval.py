import keras
import numpy as np
import pytest
from helpers import FLOATS, array, check_layer, output_and_gradients, randomize
from twins import assert_near

from keras_recsys.layers.behavior.behavior_retrieval import BehaviorRetrieval

RNG = np.random.default_rng(0)
QUERY = RNG.normal(size=(4, 4)).astype("float32")
VALUE = RNG.normal(size=(4, 5, 4)).astype("float32")
# All real; holes, with padding first; a prefix; no history.
MASK = np.array(
    [[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], bool
)
ALL = {"return_log_probability": True, "return_probabilities": True}


def made(seed=0, **arguments):
    layer = BehaviorRetrieval((6,), seed=seed, **arguments)
    layer.build(QUERY.shape, VALUE.shape)
    randomize(layer, np.random.default_rng(seed))
    # About half of the items are kept.
    layer.score.bias.assign(array(layer.score.bias) + 0.5)
    return layer


class LogProbability(keras.layers.Layer):
    """The second result of a retrieval as the only one."""

    def __init__(self, retrieval, training=False):
        super().__init__()
        self.retrieval = retrieval
        self.training = training
        self.build(QUERY.shape, VALUE.shape)

    def build(self, query_shape, value_shape):
        self.built = True

    def call(self, query, value, value_mask=None):
        return self.retrieval(
            query,
            value,
            value_mask=value_mask,
            return_log_probability=True,
            training=self.training,
        )[1]


def probability_loop(layer, query, value, mask):
    """The formulas of the docstring, one history without its padding at a time."""
    (kernel, bias), (last, last_bias) = (
        [array(w).astype("float64") for w in dense.weights]
        for dense in (*layer.hidden, layer.score)
    )
    out = np.zeros(mask.shape)
    for b in range(len(value)):
        steps = np.concatenate([value[b, mask[b]], query[b : b + 1]])
        steps = array(layer.self_attention(steps[None]))[0].astype("float64")
        real = np.flatnonzero(mask[b])
        for j, step in zip(real, steps[:-1], strict=True):
            logit = np.maximum(step @ kernel + bias, 0) @ last + last_bias
            out[b, j] = 1 / (1 + np.exp(-logit[0]))
    return out


def choice_loop(kept, probabilities, mask):
    """Log-probability of each row of choices."""
    out = np.zeros((len(kept), 1))
    for b, j in zip(*np.nonzero(mask), strict=True):
        p = probabilities[b, j]
        out[b] += np.log(p if kept[b, j] else 1 - p)
    return out


def test_contract(tmp_path):
    check_layer(
        lambda: BehaviorRetrieval(
            (3, 2),
            num_heads=2,
            activation="tanh",
            seed=4,
            kernel_initializer="he_normal",
            kernel_regularizer="l2",
        ),
        (QUERY, VALUE),
        tmp_path,
        call={"value_mask": MASK},
        gradients=False,
    )


@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_loop(masked):
    layer = made()
    mask = MASK if masked else np.ones_like(MASK)
    call = {"value_mask": MASK} if masked else {}
    want = probability_loop(layer, QUERY, VALUE, mask)
    for training in (False, True):
        got = layer(QUERY, VALUE, training=training, **ALL, **call)
        kept, log_probability, probabilities = map(array, got)
        assert kept.dtype == bool
        assert not kept[~mask].any()
        np.testing.assert_allclose(probabilities, want, rtol=1e-4, atol=1e-6)
        choice = choice_loop(kept, want, mask)
        np.testing.assert_allclose(log_probability, choice, rtol=1e-4, atol=1e-6)
        if not training:
            np.testing.assert_array_equal(kept, (want >= 0.5) & mask)
            assert 0 < kept.sum() < mask.sum()
    kept = array(layer(QUERY, VALUE, **call))
    np.testing.assert_array_equal(kept, (want >= 0.5) & mask)


def test_by_hand():
    """Of a zero kernel all have probability 3/4, or 1/2, which is kept."""
    layer = made()
    layer.score.set_weights([np.zeros((6, 1)), np.log([3.0])])
    kept, log_probability, probabilities = map(array, layer(QUERY, VALUE, MASK, **ALL))
    np.testing.assert_array_equal(kept, MASK)
    np.testing.assert_allclose(probabilities, 0.75 * MASK, rtol=1e-6)
    want = np.array([[5], [3], [2], [0]]) * np.log(0.75)
    np.testing.assert_allclose(log_probability, want, rtol=1e-5)
    layer.score.bias.assign([-np.log(3.0)])
    kept, log_probability, _ = map(array, layer(QUERY, VALUE, MASK, **ALL))
    assert not kept.any()
    np.testing.assert_allclose(log_probability, want, rtol=1e-5)
    layer.score.bias.assign([0.0])
    np.testing.assert_array_equal(array(layer(QUERY, VALUE, MASK)), MASK)


def test_draws_as_often_as_the_probabilities_say():
    layer = made()
    rows = 5_000
    query, value = (np.repeat(x[:1], rows, axis=0) for x in (QUERY, VALUE))
    kept, _, probabilities = map(array, layer(query, value, training=True, **ALL))
    p = probabilities[0]
    assert np.ptp(p) > 0.1
    np.testing.assert_allclose(kept.mean(0), p, atol=4 * 0.5 / rows**0.5)
    # Items are drawn apart from each other: as often both as the product says.
    both = (kept[:, 0] & kept[:, 1]).mean()
    assert both == pytest.approx(p[0] * p[1], abs=4 * 0.5 / rows**0.5)


def test_seed_repeats_the_choices():
    runs = []
    for seed in (5, 5, 6):
        layer = BehaviorRetrieval(seed=seed)
        layer.build(QUERY.shape, VALUE.shape)
        for weight in layer.weights:
            weight.assign(np.ones(weight.shape) * (weight.name == "gamma"))
        runs.append([array(layer(QUERY, VALUE, training=True)) for _ in range(2)])
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0][0] != runs[0][1]).any()
    assert (runs[0][0] != runs[2][0]).any()
    np.testing.assert_array_equal(
        array(layer(QUERY, VALUE)), array(layer(QUERY, VALUE, training=False))
    )


@pytest.mark.parametrize("training", [False, True])
def test_gradient_is_that_of_the_loop(training):
    """Slope by the last bias: kept items less the sum of the probabilities."""
    layer = made()
    again = made()
    kept, _, probabilities = map(
        array, again(QUERY, VALUE, MASK, training=training, **ALL)
    )
    coef = RNG.normal(size=(4, 1))
    _, gradients = output_and_gradients(
        LogProbability(layer, training),
        (QUERY, VALUE),
        coef,
        call={"value_mask": MASK},
        wrt_inputs=True,
    )
    want = np.sum(coef * np.sum(kept - probabilities, axis=1, keepdims=True))
    assert gradients[-1][0] == pytest.approx(want, rel=1e-4)
    assert all(np.isfinite(g).all() and g.any() for g in gradients)
    assert not gradients[1][~MASK].any()


def test_noise_under_the_mask_changes_nothing():
    layer = LogProbability(made())
    clean = np.where(MASK[..., None], VALUE, 0).astype("float32")
    noisy = np.where(MASK[..., None], VALUE, np.nan).astype("float32")
    noisy[1, 0] = np.inf
    want, got = (
        output_and_gradients(
            layer, (QUERY, x), call={"value_mask": MASK}, wrt_inputs=True
        )
        for x in (clean, noisy)
    )
    assert_near(got[0], want[0])
    for a, b in zip(got[1], want[1], strict=True):
        assert_near(a, b)
    assert got[0][3] == 0  # the empty history
    kept, _, probabilities = map(
        array, layer.retrieval(QUERY, noisy, MASK, training=True, **ALL)
    )
    assert not kept[~MASK].any()
    assert not probabilities[~MASK].any()


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_log_probability_of_a_long_history_in_half_precision(policy):
    """2,048 items of probability 1/2, beyond which bfloat16 and float16 do not count.

    16,384 items squared would take more memory than a test should.
    """
    layer = BehaviorRetrieval(dtype=policy, kernel_initializer="zeros")
    got = layer(np.ones((1, 4)), np.ones((1, 2048, 4)), training=True, **ALL)
    kept, log_probability, probabilities = map(array, got)
    np.testing.assert_allclose(log_probability, 2048 * np.log(0.5), rtol=1e-5)
    assert abs(kept.mean() - 0.5) < 0.06
    for x in got[1:]:
        assert keras.backend.standardize_dtype(x.dtype) == "float32"


@pytest.mark.parametrize("dtype", FLOATS)
def test_all_results_of_any_length_in_a_saved_model(dtype, tmp_path):
    query, value = keras.Input((4,), dtype=dtype), keras.Input((None, 4), dtype=dtype)
    mask = keras.Input((None,), dtype="bool")
    outputs = made(dtype=dtype)(query, value, value_mask=mask, **ALL)
    assert [(tuple(x.shape), x.dtype) for x in outputs] == [
        ((None, None), "bool"),
        ((None, 1), dtype),
        ((None, None), dtype),
    ]
    model = keras.Model([query, value, mask], outputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    x = [QUERY.astype(dtype), VALUE.astype(dtype), MASK]
    for got, want in zip(loaded(x), model(x), strict=True):
        np.testing.assert_array_equal(array(got), array(want))


def test_mask_of_the_value_is_read():
    layer = made()
    masking = keras.layers.Masking()
    padded = np.where(MASK[..., None], VALUE, 0).astype("float32")
    got = layer(QUERY, masking(padded))
    np.testing.assert_array_equal(array(got), array(layer(QUERY, VALUE, MASK)))
    assert getattr(got, "_keras_mask", None) is None


@pytest.mark.parametrize(
    ("query", "value"), [((2, 4), (2, 4)), ((2, 1, 4), (2, 3, 4)), ((2, 3), (2, 3, 4))]
)
def test_says_what_shape_was_given(query, value):
    with pytest.raises(
        ValueError, match=r"`BehaviorRetrieval`.*value_shape=\(2.*vectors"
    ):
        BehaviorRetrieval()(np.ones(query, "float32"), np.ones(value, "float32"))


def test_says_what_was_given():
    with pytest.raises(ValueError, match="`hidden_units` must be at least 1.*=0"):
        BehaviorRetrieval((3, 0))
    with pytest.raises(ValueError, match="`hidden_units` must be a list.*=20"):
        BehaviorRetrieval(20)
    with pytest.raises(TypeError, match="`num_heads` must be an integer.*=1.5"):
        BehaviorRetrieval(num_heads=1.5)
