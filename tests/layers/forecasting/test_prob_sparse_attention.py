import informer_golden as reference
import keras
import numpy as np
import pytest
from golden_files import golden
from helpers import array, check_layer, output_and_gradients, randomize, tensor
from prob_sparse_twins import attention_loop, multi_head_loop
from twins import DTYPE, check_twin

from keras_recsys._initializers import FanInUniform
from keras_recsys.layers import FullAttention, ProbSparseAttention
from keras_recsys.ops import prob_sparse_counts, sparsity_measure

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 12, 4)).astype("float32")
MEMORY = RNG.normal(size=(3, 7, 5)).astype("float32")
# All real; holes, with the first step missing; no step.
MASK = np.ones((3, 12), bool)
MASK[1, [0, 3, 4, 8, 11]] = False
MASK[2] = False


def made(*args, shapes=(X.shape, X.shape), **options):
    """A layer with random weights, the same each time."""
    layer = ProbSparseAttention(*args, **options)
    layer.build(*shapes)
    randomize(layer, np.random.default_rng(1), scale=1.0)
    return layer


def heads_of(layer, query, value):
    """Queries, keys and values of the heads."""
    pairs = (layer.query, query), (layer.key, value), (layer.value, value)
    return [layer._heads(dense(tensor(x))) for dense, x in pairs]


@pytest.mark.parametrize("masked", [True, False])
def test_contract(masked, tmp_path):
    if masked:
        check_layer(
            lambda: ProbSparseAttention(
                2,
                3,
                factor=1,
                value_dim=2,
                output_dim=5,
                causal=True,
                measure="sampled",
                inference_measure="exact",
                divisor="sample",
                lazy="cummean",
                causal_sampling=True,
                dropout=0.3,
                seed=1,
                kernel_initializer=FanInUniform(seed=1),
                bias_initializer=FanInUniform(seed=1),
                kernel_regularizer="l2",
            ),
            (X, X),
            tmp_path,
            call={"query_mask": MASK, "value_mask": MASK},
        )
    else:
        check_layer(
            lambda: ProbSparseAttention(2, 3, factor=1, mix=True, shared_keys=True),
            (X, MEMORY),
            tmp_path,
        )


@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_loop(causal, mix):
    x, memory = RNG.normal(size=(2, 6, 3)), RNG.normal(size=(2, 6, 2))
    index = RNG.integers(0, 6, (6, 2))
    options = {"factor": 1, "causal": causal, "mix": mix}
    check_twin(
        ProbSparseAttention(2, 2, output_dim=2, dtype=DTYPE, **options),
        (x, memory),
        lambda query, value, *weights: multi_head_loop(
            query, value, weights, num_heads=2, index=index, **options
        ),
        call={"key_index": index},
    )


@pytest.mark.parametrize("kind", ["sampled", "shared", "exact"])
def test_masked_weights_equal_the_loop(kind):
    layer = made(2, 3, 1, causal=True, divisor="sample", measure="exact")
    index = {
        "sampled": RNG.integers(0, 12, (12, 4)),
        "shared": RNG.integers(0, 12, 4),
        "exact": None,
    }[kind]
    _, weights = layer(
        X,
        X,
        query_mask=MASK,
        value_mask=MASK,
        key_index=index,
        return_attention_scores=True,
    )
    heads = [array(x).astype("float64") for x in heads_of(layer, X, X)]
    _, want = attention_loop(
        *heads,
        index,
        factor=1,
        causal=True,
        divisor="sample",
        query_mask=MASK,
        key_mask=MASK,
    )
    np.testing.assert_allclose(array(weights), want, rtol=1e-5, atol=1e-6)


@golden("informer/layers", having=["top_index"])
def test_golden_informer_selection(path):
    z, meta = reference.read(path)
    layer = ProbSparseAttention(
        meta["n_heads"],
        meta["d_model"] // meta["n_heads"],
        meta["factor"],
        causal="memory" in z,
        mix=meta.get("mix", False),
    )
    x = z["x"]
    layer.build(x.shape, x.shape)
    reference.attention(layer, z, "w.self" if "memory" in z else "w.attn")
    query, key, _ = heads_of(layer, x, x)
    measure = array(sparsity_measure(query, key, z["key_index"]))
    reference.assert_golden(measure, z["M"])
    counts = prob_sparse_counts(x.shape[1], x.shape[1], meta["factor"])
    assert counts == (z["top_index"].shape[-1], z["key_index"].shape[-1])
    top = np.argsort(-measure, axis=-1)[..., : counts[0]]
    np.testing.assert_array_equal(np.sort(top), z["top_index"])
    output, weights = layer(
        x, x, key_index=z["key_index"], return_attention_scores=True
    )
    if "attn" in z:
        reference.assert_golden(array(weights), z["attn"])
    if "self_out" in z:
        reference.assert_golden(array(output), z["self_out"])


def test_by_hand():
    """One head of width 1 whose projections do nothing: of two steps one attends.

    The exact measure of queries 0 and ln 3 on keys 0 and 1 selects the second, which
    gets 1/4 of 0 and 3/4 of 1; the first gets the mean.
    """
    layer = ProbSparseAttention(1, 1, 1, measure="exact")
    query = np.array([[[0.0], [np.log(3)]]], "float32")
    value = np.array([[[0.0], [1.0]]], "float32")
    layer.build(query.shape, value.shape)
    layer.set_weights([np.ones((1, 1)), np.zeros(1)] * 4)
    np.testing.assert_allclose(array(layer(query, value)).ravel(), [1 / 2, 3 / 4])


@pytest.mark.parametrize(
    "options",
    [{}, {"shared_keys": True}, {"causal": True, "causal_sampling": True}],
    ids=["each", "shared", "causal"],
)
def test_case_36_inference_is_repeatable(options, tmp_path):
    x = keras.Input(X.shape[1:])
    layer = ProbSparseAttention(2, 3, 1, seed=1, dropout=0.5, **options)
    model = keras.Model(x, layer(x, x))
    randomize(model, np.random.default_rng(1), scale=1.0)
    want = array(model(X))
    array(layer(X, X, training=True))  # moves the seeds on
    np.testing.assert_array_equal(array(model(X)), want)
    np.testing.assert_array_equal(array(model(X, training=False)), want)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(loaded(X)), want)
    order = [2, 0, 1]
    np.testing.assert_allclose(array(model(X[order])), want[order], atol=1e-6)
    if not options:
        predicted = [model.predict(X, verbose=0) for _ in range(2)]
        np.testing.assert_array_equal(*predicted)
        np.testing.assert_allclose(predicted[0], want, rtol=1e-5, atol=1e-6)
    # The fixed sample is one that training could draw.
    index = np.asarray(layer._sample(12, 12, False))
    assert index.dtype == "int32"
    assert index.shape == ((3,) if layer.shared_keys else (12, 3))
    last = np.arange(12)[:, None] if layer.causal_sampling else 11
    assert ((index >= 0) & (index <= last)).all()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_training_draws_by_the_seed(causal, shared):
    options = {"causal": causal, "shared_keys": shared}
    first, second, other = (made(2, 3, 1, seed=seed, **options) for seed in (3, 3, 4))
    runs = [
        [array(layer(X, X, training=True)) for _ in range(4)]
        for layer in (first, second, other)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert len({run.tobytes() for run in runs[0]}) > 1
    assert np.abs(np.subtract(runs[0], runs[2])).max() > 0.1
    # Unseeded layers draw each for itself.
    runs = [array(made(2, 3, 1, **options)._sample(99, 99, True)) for _ in range(2)]
    assert (runs[0] != runs[1]).any()


def test_sample_of_training_is_causal_or_shared():
    layer = made(2, 3, 1, causal_sampling=True)
    index = array(layer._sample(40, 20, True))
    assert index.shape == (40, prob_sparse_counts(40, 20, 1)[1])
    assert (index <= np.minimum(np.arange(40), 19)[:, None]).all()
    assert array(made(2, 3, 1, shared_keys=True)._sample(40, 20, True)).shape == (3,)


def test_measures_of_training_and_inference():
    exact = made(2, 3, 1, measure="exact")
    want = array(exact(X, X))
    np.testing.assert_array_equal(array(exact(X, X, training=True)), want)
    both = made(2, 3, 1, inference_measure="exact", seed=1)
    np.testing.assert_array_equal(array(both(X, X)), want)
    assert any(np.any(array(both(X, X, training=True)) != want) for _ in range(3))
    sampled = array(made(2, 3, 1)(X, X))
    assert np.abs(sampled - want).max() > 0.1
    back = made(2, 3, 1, measure="exact", inference_measure="sampled")
    np.testing.assert_array_equal(array(back(X, X)), sampled)
    np.testing.assert_array_equal(array(back(X, X, training=True)), want)


@pytest.mark.parametrize("causal", [False, True])
def test_case_35_weights_fit_full_attention(causal):
    sparse = made(2, 3, 100, causal=causal, output_dim=6)
    full = FullAttention(2, 3, causal=causal, output_dim=6)
    full.build(X.shape, X.shape)
    full.set_weights(sparse.get_weights())
    assert [w.path.split("/")[-2:] for w in full.weights] == [
        w.path.split("/")[-2:] for w in sparse.weights
    ]
    for training in (False, True):
        got = array(sparse(X, X, training=training))
        np.testing.assert_allclose(array(full(X, X)), got, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("measure", ["sampled", "exact"])
def test_case_37_rows_do_not_depend_on_each_other(measure, num_heads):
    x = RNG.normal(size=(2, 49, 4)).astype("float32")
    memory = RNG.normal(size=(2, 10, 4)).astype("float32")
    for pair in ((x, x), (memory, x)):
        shapes = [a.shape for a in pair]
        layer = made(num_heads, 2, measure=measure, seed=1, shapes=shapes)
        both = array(layer(*pair))
        assert both.shape == shapes[0]
        one = array(layer(*(a[:1] for a in pair)))
        np.testing.assert_allclose(one, both[:1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_noise_under_the_mask_changes_nothing(causal):
    layer = made(2, 3, 1, causal=causal)
    call = {"query_mask": MASK, "value_mask": MASK}
    runs = []
    for noise in (0.0, np.nan, np.inf):
        x = np.where(MASK[..., None], X, noise).astype("float32")
        runs.append(output_and_gradients(layer, (x, x), call=call, wrt_inputs=True))
    for output, gradients in runs:
        assert not output[~MASK].any()
        for got, want in zip(gradients, runs[0][1], strict=True):
            np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(output, runs[0][0])
    full = array(layer(X, X, query_mask=MASK | True, value_mask=MASK | True))
    np.testing.assert_allclose(full, array(layer(X, X)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_reads_keras_masks(sparse):
    x, memory = X.copy(), MEMORY.copy()
    x[~MASK] = 0
    memory[0, 2:] = 0
    inputs = keras.Input(x.shape[1:]), keras.Input(memory.shape[1:])
    masked = [keras.layers.Masking()(a) for a in inputs]
    layer = ProbSparseAttention(2, 3, 1) if sparse else FullAttention(2, 3)
    model = keras.Model(inputs, layer(*masked))
    randomize(model, np.random.default_rng(1))
    got = model([x, memory])
    value_mask = (memory != 0).any(-1)
    want = array(layer(x, memory, query_mask=MASK, value_mask=value_mask))
    np.testing.assert_allclose(array(got), want, rtol=1e-5, atol=1e-6)
    assert not want[~MASK].any()
    np.testing.assert_array_equal(array(got._keras_mask), MASK)


def test_case_33_scores_are_an_output_of_a_saved_model(tmp_path):
    inputs = keras.Input((12, 4)), keras.Input((7, 5))
    outputs = ProbSparseAttention(2, 3, 1)(*inputs, return_attention_scores=True)
    assert [tuple(o.shape) for o in outputs] == [(None, 12, 4), (None, 2, 12, 7)]
    model = keras.Model(inputs, outputs)
    want = [array(o) for o in model([X, MEMORY])]
    np.testing.assert_allclose(want[1].sum(-1), 1.0, rtol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for got, expected in zip(loaded([X, MEMORY]), want, strict=True):
        np.testing.assert_array_equal(array(got), expected)
    layer = ProbSparseAttention(2, 3, 1, dtype="mixed_float16")
    outputs = layer(*inputs, return_attention_scores=True)
    assert [o.dtype for o in outputs] == ["float16", "float32"]
    assert [
        keras.backend.standardize_dtype(o.dtype)
        for o in layer(X, MEMORY, return_attention_scores=True)
    ] == ["float16", "float32"]


def test_keys_of_their_own():
    keys = RNG.normal(size=(3, 7, 2)).astype("float32")
    layer = ProbSparseAttention(2, 3, 1)
    layer(X, MEMORY, keys)
    assert [tuple(w.shape) for w in layer.weights[::2]] == [
        (4, 6),
        (2, 6),
        (5, 6),
        (6, 4),
    ]
    randomize(layer, np.random.default_rng(1))
    mask = np.arange(7) < np.array([[7], [3], [1]])
    noisy = np.where(mask[..., None], keys, np.nan).astype("float32")
    want = array(layer(X, MEMORY, keys, value_mask=mask))
    np.testing.assert_array_equal(array(layer(X, MEMORY, noisy, value_mask=mask)), want)


def test_dropout_acts_on_the_weights_in_training():
    layer = made(2, 3, 1, dropout=0.5, measure="exact", seed=1)
    plain = made(2, 3, 1, measure="exact")
    np.testing.assert_array_equal(array(layer(X, X)), array(plain(X, X)))
    first, second = (array(layer(X, X, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 0.01
    _, weights = layer(X, X, training=True, return_attention_scores=True)
    np.testing.assert_allclose(array(weights).sum(-1), 1.0, rtol=1e-5)
    # Steps that do not attend have no weights to drop.
    lazy = np.isclose(array(weights), 1 / 12).all(-1).all(1)
    assert lazy.any()
    np.testing.assert_allclose(first[lazy], array(plain(X, X))[lazy], atol=1e-5)


@pytest.mark.parametrize("streamed", [False, True])
def test_gradients_while_a_sample_is_drawn(streamed):
    options = {"streamed": streamed, "dropout": 0.1, "seed": 1}
    layer = made(2, 3, 1, causal=True, dtype="mixed_bfloat16", **options)
    output, gradients = output_and_gradients(layer, (X, X), call={"training": True})
    assert np.isfinite(output).all()
    for weight, gradient in zip(layer.weights, gradients, strict=True):
        assert np.isfinite(gradient).all(), weight.path
        assert np.any(gradient), weight.path


@pytest.mark.parametrize("kind", [ProbSparseAttention, FullAttention])
def test_one_seeded_initializer_gives_each_weight_its_own_numbers(kind):
    layer = kind(
        2,
        15,
        kernel_initializer=FanInUniform(seed=1),
        bias_initializer=FanInUniform(seed=1),
    )
    layer.build((None, 12, 30), (None, 12, 30))
    values = [array(w).ravel()[:30] for w in layer.weights]
    assert np.abs(np.corrcoef(values) - np.eye(8)).max() < 0.7
    for value in values:
        assert 0.8 * 30**-0.5 < np.abs(value).max() <= 30**-0.5
    again = kind.from_config(layer.get_config())
    again.build((None, 12, 30), (None, 12, 30))
    for a, b in zip(again.weights, layer.weights, strict=True):
        np.testing.assert_array_equal(array(a), array(b))


def test_says_what_was_given():
    for name in ("num_heads", "key_dim", "factor", "value_dim", "output_dim"):
        sizes = {"num_heads": 2, "key_dim": 3, name: 2.5}
        with pytest.raises(TypeError, match=f"`{name}` must be an integer.*{name}=2.5"):
            ProbSparseAttention(**sizes)
        with pytest.raises(ValueError, match=f"`{name}` must be at least 1.*{name}=0"):
            ProbSparseAttention(**{**sizes, name: 0})
    for name in ("measure", "inference_measure", "divisor", "lazy"):
        with pytest.raises(ValueError, match=f"`{name}` must be one of.*{name}='all'"):
            ProbSparseAttention(2, 3, **{name: "all"})
    with pytest.raises(ValueError, match=r"`dropout` must be .*dropout=1.0"):
        ProbSparseAttention(2, 3, dropout=1.0)
    with pytest.raises(
        ValueError, match=r"`causal_sampling` must be.*shared_keys=True"
    ):
        ProbSparseAttention(2, 3, causal_sampling=True, shared_keys=True)


def test_says_what_shapes_were_given():
    with pytest.raises(ValueError, match=r"static dim.*query_shape=\(3, 12\)"):
        ProbSparseAttention(2, 3).build((3, 12), (3, 12, 4))
    with pytest.raises(ValueError, match=r"static length.*query_len=None, key_len=7"):
        ProbSparseAttention(2, 3)(keras.Input((None, 4)), keras.Input((7, 4)))
    with pytest.raises(ValueError, match=r"as many steps.*query_len=12, key_len=7"):
        ProbSparseAttention(2, 3, causal=True)(X, MEMORY)
    with pytest.raises(
        ValueError, match=r"`key_index` must be of shape \(12, num_keys"
    ):
        ProbSparseAttention(2, 3, 1)(X, X, key_index=np.zeros((7, 2), "int32"))
    for name in ("query_mask", "value_mask"):
        with pytest.raises(ValueError, match=r"no mask where `mix` is True"):
            ProbSparseAttention(2, 3, 1, mix=True)(X, X, **{name: MASK})
