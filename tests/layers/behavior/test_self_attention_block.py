import keras
import numpy as np
import pytest
from golden_files import assert_close, golden, load
from helpers import FLOATS, array, check_layer, output_and_gradients
from twins import DTYPE, assert_near, check_twin

from keras_recsys.layers.behavior.self_attention_block import SelfAttentionBlock

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 4)).astype("float32")
# All real; holes, with padding first; no history.
MASK = np.array([[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]], bool)


def norm_loop(x, gamma, beta):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * gamma + beta


def block_loop(x, weights, mask, num_heads, pre_norm, causal, projection):
    """The formulas of the docstring, one step and head at a time."""
    first, weights = weights[:2], list(weights[2:])
    dense = {}
    names = ["query", "key", "value", *projection, "second", "inner", "outer"]
    for name in names:
        dense[name], weights = weights[:2], weights[2:]
    second = dense.pop("second")

    def apply(name, vector):
        return vector @ dense[name][0] + dense[name][1]

    def attention(steps, mask):
        out = np.zeros_like(steps)
        width = steps.shape[1] // num_heads
        for i, head in np.ndindex(len(steps), num_heads):
            part = slice(head * width, (head + 1) * width)
            others = [
                j for j in range(len(steps)) if mask[j] and (j <= i or not causal)
            ]
            if not mask[i]:
                continue
            query = np.maximum(apply("query", steps[i]), 0)[part]
            keys = [np.maximum(apply("key", steps[j]), 0)[part] for j in others]
            shares = np.exp(np.array(keys) @ query / width**0.5)
            shares /= shares.sum()
            for share, j in zip(shares, others, strict=True):
                value = np.maximum(apply("value", steps[j]), 0)[part]
                out[i, part] += share * value
        for i in range(len(steps)):
            for name in projection:
                out[i] = apply(name, out[i])
        return out

    def feed_forward(vector):
        hidden = apply("inner", vector)
        return apply("outer", np.where(hidden > 0, hidden, 0.2 * hidden))

    result = np.zeros_like(x)
    for b in range(len(x)):
        if pre_norm:
            normed = np.array([norm_loop(step, *first) for step in x[b]])
            y = x[b] + attention(normed, mask[b])
        else:
            y = x[b] + attention(x[b], mask[b])
        for i in range(x.shape[1]):
            if not mask[b, i]:
                continue
            if pre_norm:
                result[b, i] = y[i] + feed_forward(norm_loop(y[i], *second))
            else:
                step = norm_loop(y[i], *first)
                result[b, i] = norm_loop(step + feed_forward(step), *second)
    return result


@pytest.mark.parametrize(
    "arguments",
    [
        {
            "projection_activation": "tanh",
            "activation": "gelu",
            "intermediate_dim": 3,
            "causal": True,
        },
        {
            "num_heads": 2,
            "projection_activation": "tanh",  # a linear key's bias has no effect
            "activation": "leaky_relu",
            "pre_norm": False,
            "use_output_projection": True,
            "dropout": 0.3,
            "seed": 1,
            "epsilon": 1e-5,
            "kernel_initializer": "he_normal",
            "kernel_regularizer": "l2",
        },
    ],
    ids=["pre_norm", "post_norm"],
)
def test_contract(arguments, tmp_path):
    check_layer(
        lambda: SelfAttentionBlock(**arguments), X, tmp_path, call={"mask": MASK}
    )


@pytest.mark.parametrize(
    ("num_heads", "pre_norm", "causal", "projection", "masked"),
    [
        (1, True, False, [], True),
        (2, True, True, [], True),
        (2, False, False, ["output_projection"], True),
        (4, False, True, [], False),
    ],
)
def test_equals_the_loop(num_heads, pre_norm, causal, projection, masked):
    mask = MASK[:2] if masked else np.ones((2, 4), bool)
    check_twin(
        SelfAttentionBlock(
            num_heads,
            intermediate_dim=3,
            activation="leaky_relu",
            projection_activation="relu",
            use_output_projection=bool(projection),
            pre_norm=pre_norm,
            causal=causal,
            dtype=DTYPE,
        ),
        X[:2],
        lambda x, *weights: block_loop(
            x, weights, mask, num_heads, pre_norm, causal, projection
        ),
        call={"mask": mask} if masked else None,
    )


@pytest.mark.parametrize("dtype", FLOATS)
@golden("sam", having=["w_Q", "attention", "output"])
def test_golden_block(path, dtype):
    arrays = load(path)
    layer = SelfAttentionBlock(
        projection_activation="relu", epsilon=float(arrays["ln_epsilon"]), dtype=dtype
    )
    x, mask = arrays["seq"].astype(dtype), arrays["mask"]
    layer.build(x.shape)
    for sublayer, kernel, bias in (
        (layer.attention_norm, "g1", "g1_b"),
        (layer.query, "Q", "Q_b"),
        (layer.key, "K", "K_b"),
        (layer.value, "V", "V_b"),
        (layer.feed_forward_norm, "g2", "g2_b"),
        (layer.inner, "F1", "F1_b"),
        (layer.outer, "F2", "F2_b"),
    ):
        sublayer.set_weights([arrays[f"w_{kernel}"], arrays[f"w_{bias}"]])
    output, weights = layer(x, mask=mask, return_attention_scores=True)
    assert_close(array(weights)[:, 0], arrays["attention"], dtype)
    # The file goes on with the values under the mask, where the layer gives 0.
    want = np.where(mask[..., None], arrays["output"], 0.0)
    assert_close(array(output), want, dtype)


def plain(**arguments):
    """Scores are products of the entries, values the entries, and no more is done."""
    layer = SelfAttentionBlock(pre_norm=False, **arguments)
    layer.build((None, None, 1))
    for dense in (layer.query, layer.key, layer.value):
        dense.set_weights([np.ones((1, 1)), np.zeros(1)])
    return layer


def test_weights_by_hand():
    """Keys 1 and 2 of query 1, then padding: sigmoid(-1), sigmoid(1), 0, 0."""
    x = np.array([[[1.0], [2.0], [0.0], [0.0]]], "float32")
    mask = np.array([[True, True, False, False]])
    _, weights = plain()(x, mask=mask, return_attention_scores=True)
    weights = array(weights)
    np.testing.assert_allclose(weights[0, 0, 0], [0.268941, 0.731059, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(weights[0, 0, 1], [0.119203, 0.880797, 0, 0], rtol=1e-5)
    assert not weights[0, 0, 2:].any()
    assert not weights[..., 2:].any()
    _, weights = plain(causal=True)(x, mask=mask, return_attention_scores=True)
    np.testing.assert_allclose(array(weights)[0, 0, 0], [1, 0, 0, 0])


@pytest.mark.parametrize("causal", [False, True])
def test_noise_under_the_mask_changes_nothing(causal):
    layer = SelfAttentionBlock(2, causal=causal, use_output_projection=True)
    layer.build(X.shape)
    layer.set_weights([RNG.normal(size=w.shape) for w in layer.weights])
    call = {"mask": MASK, "return_attention_scores": True}
    clean = np.where(MASK[..., None], X, 0).astype("float32")
    want = output_and_gradients(layer, clean, call=call, wrt_inputs=True)
    noisy = np.where(MASK[..., None], X, np.nan).astype("float32")
    noisy[1, 0] = np.inf
    got = output_and_gradients(layer, noisy, call=call, wrt_inputs=True)
    for a, b in zip((*got[0], *got[1]), (*want[0], *want[1]), strict=True):
        assert_near(a, b)
    (output, weights), (gradient, *_) = got
    assert not output[~MASK].any()
    assert not gradient[~MASK].any()
    kept = np.broadcast_to(MASK[:, None, None] & MASK[:, None, :, None], weights.shape)
    assert not weights[~kept].any()
    np.testing.assert_allclose(
        weights.sum(-1), np.broadcast_to(MASK[:, None], (3, 2, 4)), rtol=1e-5
    )
    # The second row is that of its two real steps alone, wherever padding is.
    short = array(layer(X[1:2, [1, 3]]))
    np.testing.assert_allclose(output[1, [1, 3]], short[0], rtol=1e-5, atol=1e-6)
    masked = keras.ops.convert_to_tensor(MASK)
    np.testing.assert_array_equal(array(layer.compute_mask(X, masked)), MASK)
    # No mask is all real.
    np.testing.assert_allclose(
        array(layer(X)), array(layer(X, mask=MASK | True)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("scores", [False, True])
def test_causal_steps_do_not_see_what_follows(dropout, scores):
    other = X.copy()
    other[:, 3] = 9.0
    mask = np.array([[1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 1, 1]], bool)
    outputs = []
    for x in (X, other):
        layer = SelfAttentionBlock(2, causal=True, dropout=dropout, seed=3)
        layer.build(X.shape)
        rng = np.random.default_rng(1)
        layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])
        call = {"return_attention_scores": True} if scores else {}
        got = layer(x, mask=mask, training=True, **call)  # draws the same twice
        if scores:
            got, weights = got
            later = np.triu(np.ones((4, 4), bool), k=1)
            assert not array(weights)[..., later].any()
        outputs.append(array(got))
    np.testing.assert_allclose(
        outputs[0][:, :3], outputs[1][:, :3], rtol=1e-5, atol=1e-6
    )
    assert np.abs(outputs[0][:, 3] - outputs[1][:, 3]).max() > 0.1


def test_one_step_sees_itself():
    layer = SelfAttentionBlock(2)
    layer.build((None, None, 4))
    x, mask = X[:, :1], np.array([[True], [False], [True]])
    output, weights = layer(x, mask=mask, return_attention_scores=True)
    np.testing.assert_array_equal(
        array(weights)[:, :, 0], mask[:, None] * np.ones(2)[:, None]
    )
    padded = array(layer(X, mask=mask & (np.arange(4) == 0)))
    np.testing.assert_allclose(array(output), padded[:, :1], rtol=1e-5, atol=1e-6)


def test_dropout_acts_in_training_alone():
    layer = SelfAttentionBlock(dropout=0.5, seed=1)
    np.testing.assert_array_equal(array(layer(X)), array(layer(X, training=False)))
    first, second = (array(layer(X, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 0.1
    assert layer.weight_dropout.rate == 0.5
    _, weights = layer(X, training=True, return_attention_scores=True)
    np.testing.assert_allclose(array(weights).sum(-1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_long_sums_in_half_precision(policy):
    """4,096 equal weights: 16,384 squared would take more memory than a test should."""
    layer = SelfAttentionBlock(dtype=policy)
    layer.build((None, None, 1))
    layer.query.set_weights([np.zeros((1, 1)), np.zeros(1)])
    layer.value.set_weights([np.zeros((1, 1)), np.ones(1)])
    layer.outer.set_weights([np.zeros((1, 1)), np.zeros(1)])
    x = np.zeros((1, 4096, 1), "float16")
    output, weights = layer(x, return_attention_scores=True)
    np.testing.assert_allclose(array(output), 1.0, atol=2e-3)
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"


def test_large_scores_in_float16_stay_finite():
    layer = SelfAttentionBlock(2, dtype="mixed_float16")
    layer.build(X.shape)
    for dense in (layer.query, layer.key):
        dense.set_weights([30 * np.eye(4), np.zeros(4)])
    assert np.isfinite(array(layer(X, mask=MASK))).all()


def test_scores_of_any_length_are_an_output_of_a_saved_model(tmp_path):
    x = keras.Input((None, 4))
    mask = keras.Input((None,), dtype="bool")
    layer = SelfAttentionBlock(2, causal=True)
    outputs = layer(x, mask=mask, return_attention_scores=True)
    assert [tuple(o.shape) for o in outputs] == [(None, None, 4), (None, 2, None, None)]
    model = keras.Model([x, mask], outputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for got, want in zip(loaded([X, MASK]), model([X, MASK]), strict=True):
        np.testing.assert_array_equal(array(got), array(want))
    assert tuple(array(loaded([X[:, :2], MASK[:, :2]])[1]).shape) == (3, 2, 2, 2)


def test_all_kernels_of_one_seeded_initializer_differ():
    seeded = keras.initializers.GlorotUniform(seed=1)
    layer = SelfAttentionBlock(use_output_projection=True, kernel_initializer=seeded)
    layer.build((None, None, 30))
    kernels = [array(w).ravel() for w in layer.weights if w.name == "kernel"]
    assert len(kernels) == 6
    assert np.abs(np.corrcoef(kernels) - np.eye(6)).max() < 0.2


@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 4, 5)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"seq_len, dim\).*input_shape=\("):
        SelfAttentionBlock()(np.ones(shape, "float32"))


def test_says_what_was_given():
    for name in ("num_heads", "intermediate_dim"):
        with pytest.raises(TypeError, match=f"`{name}` must be an integer.*=2.5"):
            SelfAttentionBlock(**{name: 2.5})
        with pytest.raises(ValueError, match=f"`{name}` must be at least 1.*=0"):
            SelfAttentionBlock(**{name: 0})
    with pytest.raises(ValueError, match=r"`dropout` must be .*dropout=1.0"):
        SelfAttentionBlock(dropout=1.0)
    with pytest.raises(ValueError, match=r"`epsilon` must be .*epsilon=0"):
        SelfAttentionBlock(epsilon=0)
    with pytest.raises(ValueError, match="`num_heads` must be a divisor of dim, 4.*=3"):
        SelfAttentionBlock(3)(X)
