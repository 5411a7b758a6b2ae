import importlib

import informer_golden as reference
import keras
import numpy as np
import pytest
from golden_files import golden
from helpers import BACKEND, array, output_and_gradients, tensor
from prob_sparse_twins import LOWEST, attention_loop, measure_loop
from twins import DTYPE, TOLERANCE, assert_near

from keras_recsys.ops import (
    prob_sparse_attention,
    prob_sparse_counts,
    sample_key_index,
    sparsity_measure,
)
from keras_recsys.ops.prob_sparse import attend

MODULE = importlib.import_module("keras_recsys.ops.prob_sparse")
# The ways to read the sample, on short series.
ONE_BLOCK = {"_sampled_by_features": MODULE._sampled_by_blocks}
WAYS = {
    "one_block": ONE_BLOCK,
    "blocks": {**ONE_BLOCK, "_BLOCK": 5},
    "features": {"_sampled_by_blocks": MODULE._sampled_by_features},
}
MEASURES = ["blocks", "features", "shared", "exact"]


def set_way(name, monkeypatch):
    for name_in_module, value in WAYS.get(name, {"_BLOCK": 5}).items():
        monkeypatch.setattr(MODULE, name_in_module, value)


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    set_way(request.param, monkeypatch)


@pytest.fixture(params=MEASURES)
def measure(request, monkeypatch):
    set_way(request.param, monkeypatch)
    return request.param


def index_of(measure, index):
    """What a measure takes of a sample."""
    return {"shared": index[-1], "exact": None}.get(measure, index)


class Run(keras.layers.Layer):
    """A function of query, key and value as a layer, for `output_and_gradients`."""

    def __init__(self, function, *more, dtype="float32", **options):
        super().__init__(dtype=dtype)
        self.built = True
        self.run = lambda *x: function(*x, *more, **options)

    def call(self, query, key, value):
        return self.run(query, key, value)


def draw(rng, batch_size=2, query_len=12, key_len=None, num_heads=2, dim=3, value=2):
    """Query, key and value."""
    key_len = query_len if key_len is None else key_len
    shapes = [(query_len, dim), (key_len, dim), (key_len, value)]
    return tuple(
        rng.normal(size=(batch_size, length, num_heads, width)).astype(DTYPE)
        for length, width in shapes
    )


def softmax_attention(query, key, value, causal):
    scores = np.einsum("bqhe,bkhe->bhqk", query, key) * query.shape[-1] ** -0.5
    if causal:
        scores[..., np.triu(np.ones(scores.shape[-2:], bool), k=1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhe->bqhe", weights, value)


def sample(rng, query_len, key_len, num_keys, causal=False):
    last = np.minimum(np.arange(query_len) + 1, key_len) if causal else key_len
    last = np.broadcast_to(last, query_len)[:, None]
    return (rng.random((query_len, num_keys)) * last).astype("int32")


@golden("informer/attn", having=["Q", "top_index"])
def test_golden_informer_prob_sparse(path, way):
    z, meta = reference.read(path)
    query, key, index = z["Q"], z["K"], z["key_index"]
    counts = prob_sparse_counts(meta["L_Q"], meta["L_K"], meta["factor"])
    assert counts == (meta["u"], meta["U_part"])
    measure = array(sparsity_measure(tensor(query), tensor(key), index))
    reference.assert_golden(measure, z["M"])
    top = np.argsort(-measure, axis=-1)[..., : meta["u"]]
    np.testing.assert_array_equal(np.sort(top), z["top_index"])

    options = {
        "factor": meta["factor"],
        "causal": meta["causal"],
        "scale": meta["explicit_scale"],
        "return_attention_scores": "attn" in z,
    }
    layer = Run(prob_sparse_attention, index, **options)
    x = query, key, z["V"]
    got = layer(*map(tensor, x))
    if "attn" in z:
        got, weights = got
        reference.assert_golden(array(weights), z["attn"])
    reference.assert_golden(array(got), z["context"])
    options.pop("return_attention_scores")
    layer = Run(prob_sparse_attention, index, **options)
    _, gradients = output_and_gradients(layer, x, z["grad_out"], wrt_inputs=True)
    for got, name in zip(gradients, ("dQ", "dK", "dV"), strict=True):
        reference.assert_golden(got, z[name], rtol=1e-3, atol=1e-4)
    lazy = np.ones(measure.shape, bool)
    np.put_along_axis(lazy, z["top_index"].astype(int), False, axis=-1)
    assert not gradients[0][np.swapaxes(lazy, 1, 2)].any()  # exactly


@pytest.mark.parametrize(
    ("streamed", "key_len", "want"),
    [
        (True, 6, "features"),
        (False, 64, "blocks"),
        (None, 12, "features"),  # as many numbers as keys
        (None, 11, "blocks"),
    ],
)
def test_which_way_is_taken(monkeypatch, streamed, key_len, want):
    taken = []
    for way in ("features", "blocks"):
        one = getattr(MODULE, f"_sampled_by_{way}")

        def run(*args, way=way, one=one):
            taken.append(way)
            return one(*args)

        monkeypatch.setattr(MODULE, f"_sampled_by_{way}", run)
    rng = np.random.default_rng(0)
    x = [tensor(a) for a in draw(rng, query_len=key_len, dim=4)]
    index = sample(rng, key_len, key_len, 3)
    want_measure = array(sparsity_measure(*x[:2], index, streamed=not streamed))
    taken.clear()
    got = array(sparsity_measure(*x[:2], index, streamed=streamed))
    prob_sparse_attention(*x, index, factor=1, streamed=streamed)
    assert taken == [want, want]
    assert_near(got, want_measure, TOLERANCE)


@golden("informer/attn", having=["Q", "attn"], lacking=["top_index"])
def test_golden_informer_full(path):
    z, meta = reference.read(path)
    x = z["Q"], z["K"], z["V"]
    output, weights = attend(
        *map(tensor, x), causal=meta["causal"], return_attention_scores=True
    )
    reference.assert_golden(array(output), z["context"])
    reference.assert_golden(array(weights), z["attn"])
    layer = Run(attend, causal=meta["causal"], scale=meta["scale"])
    _, gradients = output_and_gradients(layer, x, z["grad_out"], wrt_inputs=True)
    for got, name in zip(gradients, ("dQ", "dK", "dV"), strict=True):
        reference.assert_golden(got, z[name], rtol=1e-3, atol=1e-4)


# All real; holes, with the first step missing; no step.
MASK = np.ones((3, 12), bool)
MASK[1, [0, 3, 4, 8, 11]] = False
MASK[2] = False
CASES = {
    "plain": {},
    "mean_of_sample": {"divisor": "sample", "scale": 0.3},
    "causal": {"causal": True},
    "cummean": {"causal": True, "lazy": "cummean", "causal_sampling": True},
    "causal_sample": {"causal": True, "causal_sampling": True, "divisor": "sample"},
    "masks": {"key_mask": MASK, "query_mask": MASK},
    "causal_masks": {
        "causal": True,
        "lazy": "cummean",
        "causal_sampling": True,
        "key_mask": MASK,
        "query_mask": np.roll(MASK, 1, axis=0),
    },
    "causal_key_mask": {"causal": True, "divisor": "sample", "key_mask": MASK},
    "dropout": {"dropout": lambda weights: weights * weights},
    "factor": {"factor": 2, "query_mask": MASK},
    "short": {"key_len": 7, "causal_sampling": True},
    "long": {"key_len": 19, "divisor": "sample"},
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_loop(case, measure):
    options = {"factor": 1, **CASES[case]}
    if measure == "shared":
        options.pop("causal_sampling", None)
    rng = np.random.default_rng(len(case))
    key_len = options.pop("key_len", 12)
    x = draw(rng, batch_size=3, key_len=key_len)
    index = sample(rng, 12, key_len, 4, options.get("causal_sampling"))
    index = index_of(measure, index)
    want_output, want_weights = attention_loop(
        *(a.astype("float64") for a in x), index, **options
    )
    layer = Run(
        prob_sparse_attention,
        index,
        dtype=DTYPE,
        return_attention_scores=True,
        **options,
    )
    output, weights = layer(*map(tensor, x))
    assert_near(array(output), want_output, TOLERANCE)
    assert_near(array(weights), want_weights, TOLERANCE)
    names = ("divisor", "query_mask", "key_mask")
    some = {name: options[name] for name in names if name in options}
    some["causal"] = options.get("causal_sampling", False)
    got = sparsity_measure(*map(tensor, x[:2]), index, **some)
    want = measure_loop(*(a.astype("float64") for a in x[:2]), index, **some)
    assert ((array(got) == LOWEST) == (want == LOWEST)).all()
    real = want != LOWEST
    assert_near(array(got)[real], want[real], TOLERANCE)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_slopes_of_the_loop(case):
    options = {"factor": 1, **CASES[case]}
    rng = np.random.default_rng(len(case))
    key_len = options.pop("key_len", 12)
    x = draw(rng, batch_size=3, key_len=key_len)
    index = sample(rng, 12, key_len, 4, options.get("causal_sampling"))
    coef = rng.normal(size=(*x[0].shape[:3], x[2].shape[-1]))
    layer = Run(prob_sparse_attention, index, dtype=DTYPE, **options)
    _, gradients = output_and_gradients(layer, x, coef, wrt_inputs=True)
    wide = [a.astype("float64") for a in x]
    for i, gradient in enumerate(gradients):
        step = rng.normal(size=wide[i].shape)
        ends = []
        for sign in (1e-6, -1e-6):
            moved = [*wide[:i], wide[i] + sign * step, *wide[i + 1 :]]
            ends.append(np.sum(coef * attention_loop(*moved, index, **options)[0]))
        want = (ends[0] - ends[1]) / 2e-6
        assert_near(np.sum(gradient * step), want, 10 * TOLERANCE)


def by_hand(query, index, **options):
    """Two steps: keys 0 and 1, values 10 and 2, scores not scaled."""
    key, value = np.array([[0.0], [1.0]]), np.array([[10.0], [2.0]])
    query = np.array(query)[:, None]
    x = [tensor(a.astype("float32")[None, :, None]) for a in (query, key, value)]
    index = np.array(index, "int32")
    measure = sparsity_measure(*x[:2], index)
    output, weights = prob_sparse_attention(
        *x, index, factor=1, scale=1.0, return_attention_scores=True, **options
    )
    return [array(a).squeeze() for a in (measure, output, weights)]


def test_by_hand():
    # One of two queries attends. Of step 1 with key 1: ln 3 - ln 3 / 2.
    measure, output, weights = by_hand([0.0, np.log(3)], [[0], [1]])
    np.testing.assert_allclose(measure, [0, 0.549306], rtol=1e-5)
    np.testing.assert_allclose(output, [6, 10 / 4 + 2 * 3 / 4], rtol=1e-6)
    np.testing.assert_allclose(weights, [[1 / 2, 1 / 2], [1 / 4, 3 / 4]], rtol=1e-6)
    # A key that stands twice counts twice: ln 3 - 2 ln 3 / 2.
    measure, *_ = by_hand([0.0, np.log(3)], [[0, 0], [1, 1]])
    np.testing.assert_allclose(measure, [0, 0], atol=1e-6)
    # Step 0 is measured on key 1, and attends to none but key 0.
    for lazy, want in (("cumsum", 12), ("cummean", 6)):
        measure, output, weights = by_hand(
            [np.log(3), 0.0], [[1], [0]], causal=True, lazy=lazy
        )
        np.testing.assert_allclose(measure, [0.549306, 0], rtol=1e-5)
        np.testing.assert_allclose(output, [10, want], rtol=1e-6)
        np.testing.assert_allclose(weights, [[1, 0], [1 / 2, 1 / 2]], rtol=1e-6)


def test_exact_measure_by_hand():
    # Scores 0 and ln 3 over sqrt(1): ln(1 + 3) - ln 3 / 2, and ln 2 without query.
    key = np.array([0.0, 1.0], "float32").reshape(1, 2, 1, 1)
    query = np.array([0.0, np.log(3)], "float32").reshape(1, 2, 1, 1)
    got = array(sparsity_measure(tensor(query), tensor(key)))
    np.testing.assert_allclose(got[0, 0], [np.log(2), 0.836988], rtol=1e-5)


@pytest.mark.parametrize(
    ("length", "want"),
    [(1, 1), (2, 2), (8, 8), (12, 12), (24, 20), (48, 20), (96, 25), (2880, 40)],
)
def test_case_34_counts_of_one_length(length, want):
    assert prob_sparse_counts(length, length) == (want, want)


def test_case_34_counts_of_two_lengths():
    assert prob_sparse_counts(48, 96) == (20, 25)
    assert prob_sparse_counts(96, 48, factor=3) == (15, 12)
    assert prob_sparse_counts(10, 1) == (10, 1)
    assert prob_sparse_counts(10, 15) == (10, 15)


def test_case_35_lazy_queries_get_the_mean():
    rng = np.random.default_rng(0)
    x = draw(rng, query_len=48)
    index = sample(rng, 48, 48, 4)
    got = array(prob_sparse_attention(*map(tensor, x), index, factor=1))
    mean = np.broadcast_to(x[2].mean(1, keepdims=True), got.shape)
    lazy = np.isclose(got, mean, rtol=1e-5, atol=1e-6).all(-1)
    np.testing.assert_array_equal(lazy.sum(1), 48 - 4)
    got = array(prob_sparse_attention(*map(tensor, x), index, factor=1, causal=True))
    running = np.isclose(got, np.cumsum(x[2], axis=1), rtol=1e-5, atol=1e-5).all(-1)
    # The first step is its own sum, whether it is selected or not.
    np.testing.assert_array_equal(running[:, 1:].sum(1), 44 - lazy[:, 0])


@pytest.mark.parametrize("causal", [False, True])
def test_case_35_all_queries_give_softmax_attention(causal):
    rng = np.random.default_rng(0)
    for query_len, key_len in ((48, 48), (15, 15), (12, 31))[: 2 if causal else 3]:
        x = draw(rng, query_len=query_len, key_len=key_len)
        factor = 5 if query_len <= 15 else 100
        index = sample(rng, query_len, key_len, 3)
        got = prob_sparse_attention(
            *map(tensor, x), index, factor=factor, causal=causal
        )
        np.testing.assert_allclose(
            array(got), softmax_attention(*x, causal), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("causal", [False, True])
def test_one_step(causal):
    x = draw(np.random.default_rng(0), query_len=1)
    for index in (np.zeros((1, 1), "int32"), None):
        layer = Run(prob_sparse_attention, index, dtype=DTYPE, causal=causal)
        got, gradients = output_and_gradients(layer, x, wrt_inputs=True)
        np.testing.assert_array_equal(got, x[2])
        assert not any(gradient.any() for gradient in gradients[:2])


def test_many_queries_of_one_key():
    x = draw(np.random.default_rng(0), query_len=24, key_len=1)
    for index in (np.zeros((24, 1), "int32"), np.zeros(1, "int32"), None):
        got = array(prob_sparse_attention(*map(tensor, x), index))
        np.testing.assert_allclose(got, np.repeat(x[2], 24, axis=1), rtol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_noise_under_the_masks_changes_nothing(causal, measure):
    rng = np.random.default_rng(1)
    query, key, value = draw(rng, batch_size=3)
    query_mask = np.roll(MASK, 1, axis=1)
    index = index_of(measure, sample(rng, 12, 12, 4, causal))
    options = {
        "causal": causal,
        "causal_sampling": causal and measure != "shared",
        "query_mask": query_mask,
        "key_mask": MASK,
    }
    for factor in (1, 9) if measure == "exact" else (1,):  # of 9 all attend
        layer = Run(prob_sparse_attention, index, factor=factor, dtype=DTYPE, **options)
        runs = []
        for noise in (0.0, np.nan, np.inf):
            x = (
                np.where(query_mask[..., None, None], query, noise).astype(DTYPE),
                np.where(MASK[..., None, None], key, noise).astype(DTYPE),
                np.where(MASK[..., None, None], value, noise).astype(DTYPE),
            )
            output, gradients = output_and_gradients(layer, x, wrt_inputs=True)
            runs.append((output, *gradients))
            assert not output[~query_mask].any()
            assert not output[2].any()  # of which no step is left
            for gradient, mask in zip(gradients, (query_mask, MASK, MASK), strict=True):
                assert not gradient[~mask].any()
        for other in runs[1:]:
            for got, want in zip(other, runs[0], strict=True):
                np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("causal", [False, True])
def test_padded_series_is_the_short_one(causal, measure):
    """Where as many queries attend, and the sample holds none of the padding."""
    rng = np.random.default_rng(2)
    x = draw(rng, query_len=9)
    assert prob_sparse_counts(9, 9, 1) == prob_sparse_counts(12, 12, 1)
    index = index_of(measure, sample(rng, 12, 9, 3))
    options = {"factor": 1, "causal": causal}
    short = index[:9] if measure in WAYS else index
    want = prob_sparse_attention(*map(tensor, x), short, **options)
    longer = [
        np.concatenate([a, rng.normal(size=(2, 3, *a.shape[2:]))], 1).astype(DTYPE)
        for a in x
    ]
    mask = np.broadcast_to(np.arange(12) < 9, (2, 12))
    got = prob_sparse_attention(
        *map(tensor, longer), index, query_mask=mask, key_mask=mask, **options
    )
    np.testing.assert_allclose(array(got)[:, :9], array(want), rtol=1e-5, atol=1e-5)


def test_masked_queries_take_no_place_of_others():
    rng = np.random.default_rng(0)
    query, key, value = draw(rng)
    query[:, :6] *= 100.0  # which stand out
    mask = np.broadcast_to(np.arange(12) >= 6, (2, 12))
    output, weights = prob_sparse_attention(
        *map(tensor, (query, key, value)),
        factor=1,
        query_mask=mask,
        return_attention_scores=True,
    )
    lazy = np.isclose(array(weights), 1 / 12).all(-1)
    np.testing.assert_array_equal(lazy.sum(-1), 6 - 3)
    np.testing.assert_array_equal(array(weights)[..., :6, :], 0)
    np.testing.assert_array_equal(array(output)[:, :6], 0)


@pytest.mark.parametrize("lazy", ["cumsum", "cummean"])
def test_no_value_of_a_later_step_is_read(lazy):
    rng = np.random.default_rng(0)
    query, key, value = draw(rng)
    other = value.copy()
    other[:, 8:] = 9.0
    got = [
        array(
            prob_sparse_attention(
                *map(tensor, (query, key, x)), factor=1, causal=True, lazy=lazy
            )
        )
        for x in (value, other)
    ]
    np.testing.assert_array_equal(got[0][:, :8], got[1][:, :8])
    assert np.abs(got[0][:, 8:] - got[1][:, 8:]).max() > 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("masked", [False, True])
def test_long_sums_in_half_precision(dtype, masked):
    """A running sum of ones would end at 2,048 or 256, and a mean below 1."""
    length = 4096
    one = keras.ops.ones((1, length, 1, 1), dtype=dtype)
    options = {"factor": 1, "key_mask": np.ones((1, length), bool) if masked else None}
    index = np.zeros((length, 1), "int32")
    for causal, lazy in ((True, "cumsum"), (True, "cummean"), (False, "cumsum")):
        got = prob_sparse_attention(
            one, one, one, index, causal=causal, lazy=lazy, **options
        )
        assert keras.backend.standardize_dtype(got.dtype) == dtype
        want = np.ones(length)
        if causal and lazy == "cumsum":
            want = np.arange(1, length + 1)
        near = np.isclose(array(got).ravel(), want, rtol=1e-2)
        assert near.sum() >= length - prob_sparse_counts(length, 1, 1)[0]


def test_large_scores_in_float16_stay_finite():
    x = [keras.ops.full((1, 12, 1, 4), 170.0, dtype="float16")] * 2
    value = keras.ops.ones((1, 12, 1, 2), dtype="float16")
    index = np.zeros((12, 3), "int32")
    # A product is 4 * 28,900, above the largest float16.
    for sampled in (index, None):
        measure = sparsity_measure(*x, sampled)
        assert keras.backend.standardize_dtype(measure.dtype) == "float32"
        assert np.isfinite(array(measure)).all()
        got = prob_sparse_attention(*x, value, sampled, factor=1)
        np.testing.assert_allclose(array(got), 1.0, rtol=1e-3)


@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_selection_and_weights_are_wide(kind):
    if kind == "float64" and DTYPE != kind:
        pytest.skip("the backend has no float64")
    x = [tensor(a.astype(kind)) for a in draw(np.random.default_rng(0))]
    output, weights = prob_sparse_attention(*x, factor=1, return_attention_scores=True)
    assert keras.backend.standardize_dtype(output.dtype) == kind
    wide = {"float16": "float32", "float64": "float64"}[kind]
    assert keras.backend.standardize_dtype(weights.dtype) == wide
    assert keras.backend.standardize_dtype(sparsity_measure(*x[:2]).dtype) == wide


def test_no_gradient_flows_through_the_measure(measure):
    x = draw(np.random.default_rng(0))
    index = index_of(measure, sample(np.random.default_rng(1), 12, 12, 4))

    def measured(query, key, value):
        total = keras.ops.sum(sparsity_measure(query, key, index))
        return value * (1 + 0 * total) + total

    layer = Run(measured, dtype=DTYPE)
    _, gradients = output_and_gradients(layer, x, wrt_inputs=True)
    assert not any(g is not None and g.any() for g in gradients[:2])
    assert gradients[2].any()


@pytest.mark.parametrize("jit", [False, True])
def test_compiled_with_any_batch(jit, monkeypatch):
    rng = np.random.default_rng(0)
    x = (*draw(rng, batch_size=3), np.roll(MASK, 1, axis=0), MASK)
    index = sample(rng, 12, 12, 4)

    def run(query, key, value, query_mask, key_mask):
        options = {
            "factor": 1,
            "causal": True,
            "query_mask": query_mask,
            "key_mask": key_mask,
        }
        outputs = []
        ways = [("features", index), ("blocks", index), ("blocks", None)]
        for way, sampled in ways if jit else ways[:1]:
            with monkeypatch.context() as patch:
                set_way(way, patch)
                outputs.append(
                    prob_sparse_attention(query, key, value, sampled, **options)
                )
        return keras.ops.stack(outputs)

    want = array(run(*map(tensor, x)))
    if jit:
        assert_near(want[0], want[1], TOLERANCE)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        signature = [tf.TensorSpec((None, *a.shape[1:]), a.dtype) for a in x]
        run = tf.function(run, input_signature=signature, jit_compile=jit)
    elif BACKEND == "jax" and jit:
        import jax

        run = jax.jit(run)
    else:
        pytest.skip("nothing is compiled")
    for rows in (3,) if jit else (1, 3):
        got = array(run(*(tensor(a[:rows]) for a in x)))
        np.testing.assert_allclose(got, want[:, :rows], rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="reads a TensorFlow graph")
@pytest.mark.parametrize("causal", [False, True])
def test_no_tensor_is_larger_than_the_inputs(measure, causal, monkeypatch):
    """The gathered keys would be 30 times as large, the scores of all 3 times."""
    import tensorflow as tf

    monkeypatch.setattr(MODULE, "_BLOCK", 64)
    rng = np.random.default_rng(0)
    x = draw(rng, batch_size=1, query_len=192, dim=64, value=64)
    _, num_keys = prob_sparse_counts(192, 192)
    assert num_keys == 30
    index = index_of(measure, sample(rng, 192, 192, 30))

    @tf.function
    def step(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch((query, key, value))
            output = prob_sparse_attention(query, key, value, index, causal=causal)
        return output, tape.gradient(output, (query, key, value))

    graph = step.get_concrete_function(*map(tf.constant, x)).graph
    graph = graph.as_graph_def(add_shapes=True)
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    shapes = [
        [dim.size for dim in shape.dim]
        for node in nodes
        for shape in node.attr["_output_shapes"].list.shape
    ]
    largest = max(shapes, key=np.prod)
    assert [1, 192, 2, 64] in shapes  # of the query
    assert np.prod(largest) == x[0].size, largest


@pytest.mark.parametrize("shared", [False, True])
def test_sample_is_uniform_with_replacement(shared):
    shape = (1, 40_000) if shared else (8, 5_000)
    index = array(sample_key_index(shape[0], 7, shape[1], shared=shared, seed=3))
    assert index.dtype == "int32"
    assert index.shape == (shape[1:] if shared else shape)
    share = np.bincount(index.ravel(), minlength=7) / 40_000
    np.testing.assert_allclose(share, 1 / 7, atol=0.01)  # 5.7 standard deviations
    few = array(sample_key_index(50, 7, 7, seed=3))
    assert any(len(set(row)) < 7 for row in few)
    assert len({tuple(row) for row in few}) == 50


def test_causal_sample_is_uniform_on_what_came_before():
    index = array(sample_key_index(6, 4, 20_000, causal=True, seed=1))
    assert index.shape == (6, 20_000)
    assert index.dtype == "int32"
    for i, row in enumerate(index):
        last = min(i + 1, 4)
        share = np.bincount(row, minlength=last) / 20_000
        assert len(share) == last
        np.testing.assert_allclose(share, 1 / last, atol=0.02)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"shared": True}])
def test_samples_follow_the_seed(options):
    first, again, other = (
        array(sample_key_index(9, 9, 30, seed=seed, **options)) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    generator = keras.random.SeedGenerator(1)
    one, two = (
        array(sample_key_index(9, 9, 30, seed=generator, **options)) for _ in range(2)
    )
    assert (one != two).any()
    generator = keras.random.SeedGenerator(1)
    np.testing.assert_array_equal(
        one, array(sample_key_index(9, 9, 30, seed=generator, **options))
    )


def test_says_what_number_was_given():
    with pytest.raises(TypeError, match=r"`factor` must be an integer.*factor=2.5"):
        prob_sparse_counts(4, 4, 2.5)
    with pytest.raises(ValueError, match=r"`query_len` must be at least 1.*=0"):
        prob_sparse_counts(0, 4)
    with pytest.raises(ValueError, match=r"`key_len` must be at least 1.*=0"):
        prob_sparse_counts(4, 0)
    for name in ("query_len", "key_len", "num_keys"):
        good = {"query_len": 4, "key_len": 4, "num_keys": 3}
        with pytest.raises(ValueError, match=f"`{name}` must be at least 1.*{name}=0"):
            sample_key_index(**{**good, name: 0})
        with pytest.raises(TypeError, match=f"`{name}` must be an integer.*='4'"):
            sample_key_index(**{**good, name: "4"})
    with pytest.raises(ValueError, match=r"`causal` must be False.*shared=True"):
        sample_key_index(4, 4, 3, causal=True, shared=True)


def test_says_what_was_given():
    query, key, value = map(tensor, draw(np.random.default_rng(0)))
    index = np.zeros((12, 3), "int32")

    def run(**options):
        return prob_sparse_attention(query, key, value, index, factor=1, **options)

    with pytest.raises(ValueError, match=r"`divisor` must be one of.*divisor='keys'"):
        run(divisor="keys")
    with pytest.raises(ValueError, match=r"`lazy` must be one of.*lazy='mean'"):
        run(lazy="mean")
    for scale in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"`scale` must be.*scale={scale}"):
            run(scale=scale)
    with pytest.raises(ValueError, match=r"`factor` must be at least 1.*factor=0"):
        prob_sparse_attention(query, key, value, factor=0)
    with pytest.raises(ValueError, match=r"as many steps.*query_len=5, key_len=12"):
        prob_sparse_attention(query[:, :5], key, value, causal=True)
    with pytest.raises(ValueError, match=r"`divisor` must be one of.*=None"):
        sparsity_measure(query, key, index, divisor=None)


def test_says_what_shapes_were_given():
    query, key, value = map(tensor, draw(np.random.default_rng(0)))
    for x in (
        (query[0], key, value),
        (query, key[..., :2], value),
        (query, key, value[:, :5]),
        (query, key, value[:, :, :1]),
        (query[:, :0], key, value),
    ):
        shapes = ", ".join(str(tuple(a.shape)) for a in x)
        with pytest.raises(ValueError) as error:  # noqa: PT011
            prob_sparse_attention(*x)
        assert str(error.value).endswith(f"Received: shapes {shapes}.")
    for shape in ((11, 3), (12, 3, 1), ()):
        with pytest.raises(ValueError, match=r"`key_index` must be of shape \(12, "):
            sparsity_measure(query, key, np.zeros(shape, "int32"))
    with pytest.raises(ValueError, match=r"`key_index`.*not before every.*\(3,\)"):
        sparsity_measure(query, key, np.zeros(3, "int32"), causal=True)
    index = np.zeros((12, 3), int)
    with pytest.raises(ValueError, match=r"must hold steps.*0 to 11.*Received: no key"):
        sparsity_measure(query, key, index[:, :0])
    for bad in (12, -1):
        index[4, 2] = bad
        with pytest.raises(ValueError, match=rf"to 11. Received: {bad} at \[4, 2\]"):
            sparsity_measure(query, key, index.tolist())
    index[4, 2] = 5
    with pytest.raises(ValueError, match=r"none behind its query.*: 5 at \[4, 2\]"):
        sparsity_measure(query, key, index, causal=True)
    for dtype in ("float32", "bool"):
        with pytest.raises(TypeError, match=f"hold integers. Received: .*{dtype}"):
            sparsity_measure(query, key, tensor(index.astype(dtype)))


def test_rows_must_be_as_many():
    query, key, value = map(tensor, draw(np.random.default_rng(0)))
    for x in ((query, key[:1], value[:1]), (query, key, value[:1])):
        with pytest.raises(ValueError, match="of as many rows and heads"):
            prob_sparse_attention(*x)


def test_no_rows(measure):
    x = [tensor(a[:0]) for a in draw(np.random.default_rng(0))]
    index = index_of(measure, sample(np.random.default_rng(0), 12, 12, 3))
    assert sparsity_measure(*x[:2], index).shape == (0, 2, 12)
    assert prob_sparse_attention(*x, index, factor=1).shape == (0, 12, 2, 2)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="traces a function of its own")
@pytest.mark.parametrize("streamed", [False, True])
def test_index_in_a_graph_reads_no_other_query(streamed):
    import tensorflow as tf

    query, key, _ = map(tensor, draw(np.random.default_rng(0)))
    index = sample(np.random.default_rng(0), 12, 12, 3)
    index[2], index[3] = 11, 0
    want = array(sparsity_measure(query, key, index, streamed=streamed))
    index[2], index[3] = 12, -1

    @tf.function
    def run(index):
        return sparsity_measure(query, key, index, streamed=streamed)

    assert_near(array(run(tf.constant(index))), want, TOLERANCE)
    with pytest.raises(ValueError, match=r"Received: 12 at \[2, 0\]"):
        sparsity_measure(query, key, tensor(index), streamed=streamed)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="has unknown lengths")
def test_says_that_a_length_is_unknown():
    import tensorflow as tf

    spec = tf.TensorSpec((None, None, 2, 3))
    with pytest.raises(ValueError, match=r"static but for the batch.*\(None, None, 2"):
        tf.function(prob_sparse_attention).get_concrete_function(spec, spec, spec)
