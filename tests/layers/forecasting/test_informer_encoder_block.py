import informer_golden as reference
import keras
import numpy as np
import pytest
from golden_files import golden
from helpers import array, check_layer, output_and_gradients, randomize
from prob_sparse_twins import block_loop
from twins import DTYPE, check_twin

from keras_recsys._initializers import FanInUniform
from keras_recsys.layers import (
    FullAttention,
    InformerDecoderBlock,
    InformerEncoderBlock,
    ProbSparseAttention,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 12, 4)).astype("float32")
MASK = np.ones((3, 12), bool)
MASK[1, [0, 3, 4, 8, 11]] = False
MASK[2] = False


def made(*args, shape=X.shape, **options):
    """A block with random weights, the same each time."""
    layer = InformerEncoderBlock(*args, **options)
    layer.build(shape)
    randomize(layer, np.random.default_rng(1))
    return layer


@pytest.mark.parametrize("attention", ["prob_sparse", "full"])
def test_contract(attention, tmp_path):
    sparse = attention == "prob_sparse"
    options = {"lazy": "cummean", "divisor": "sample", "value_dim": 3}
    check_layer(
        lambda: InformerEncoderBlock(
            2,
            key_dim=3,
            intermediate_dim=5,
            attention=attention,
            factor=1,
            attention_options=options if sparse else None,
            activation="tanh" if sparse else "relu",
            dropout=0.2,
            attention_dropout=0.1,
            epsilon=1e-4,
            seed=1,
            kernel_initializer=FanInUniform(seed=1),
            bias_initializer=FanInUniform(seed=1),
            kernel_regularizer="l2",
        ),
        X,
        tmp_path,
        call={"mask": MASK} if sparse else {},
    )


def test_equals_the_loop():
    index = RNG.integers(0, 5, (5, 2))
    check_twin(
        InformerEncoderBlock(
            2, intermediate_dim=3, factor=1, epsilon=1e-3, dtype=DTYPE
        ),
        RNG.normal(size=(2, 5, 2)),
        lambda x, *weights: block_loop(
            x, None, weights, num_heads=2, factor=1, index=index, epsilon=1e-3
        ),
        call={"key_index": index},
    )


def test_by_hand():
    """Without weights, each part is the normalization of its input: twice (-1, 1)."""
    layer = InformerEncoderBlock(1, epsilon=1e-12)
    x = np.array([[[1.0, 3.0], [7.0, 5.0]]], "float32")
    layer.build(x.shape)
    for weight in layer.weights:
        weight.assign(np.full(weight.shape, float(weight.name == "gamma")))
    np.testing.assert_allclose(array(layer(x)), [[[-1, 1], [1, -1]]], rtol=1e-5)
    # A bias of (1, -1) after the attention: (1, 3) becomes (2, 2), which is (0, 0).
    layer.self_attention.output_projection.bias.assign([1.0, -1.0])
    np.testing.assert_allclose(array(layer(x)), [[[0, 0], [1, -1]]], atol=1e-5)


@golden("informer/layers", having=["x", "attn"], lacking=["memory"])
def test_golden_informer_encoder_block(path):
    z, meta = reference.read(path)
    x = z["x"]
    layer = InformerEncoderBlock(
        meta["n_heads"],
        intermediate_dim=meta["d_ff"],
        attention="full" if meta["attn"] == "full" else "prob_sparse",
        factor=meta["factor"],
        activation=meta["activation"],
        epsilon=meta["ln_eps"],
    )
    layer.build(x.shape)
    reference.block(layer, z, "w")
    call = {"key_index": z["key_index"]} if "key_index" in z else {}
    output, weights = layer(x, return_attention_scores=True, **call)
    reference.assert_golden(array(output), z["y"])
    reference.assert_golden(array(weights), z["attn"])
    output, (gradient, *_) = output_and_gradients(
        layer, x, z["grad_out"], call=call, wrt_inputs=True
    )
    reference.assert_golden(output, z["y"])
    reference.assert_golden(gradient, z["dx"], rtol=1e-3, atol=1e-4)


def test_masked_series_is_the_short_one():
    """With the exact measure, where as many queries attend: of 9 steps as of 12."""
    mask = np.broadcast_to(np.arange(12) < 9, (3, 12))
    layer = made(2, factor=1, attention_options={"measure": "exact"})
    got = array(layer(X, mask=mask))
    short = array(layer(X[:, :9]))
    np.testing.assert_allclose(got[:, :9], short, rtol=1e-5, atol=1e-5)
    assert not got[:, 9:].any()


@pytest.mark.parametrize("attention", ["prob_sparse", "full"])
def test_noise_under_the_mask_changes_nothing(attention):
    layer = made(2, attention=attention, factor=1)
    runs = []
    for noise in (0.0, np.nan):
        x = np.where(MASK[..., None], X, noise).astype("float32")
        call = {"mask": MASK}
        runs.append(output_and_gradients(layer, x, call=call, wrt_inputs=True))
    (want, want_gradients), (got, gradients) = runs
    assert not got[~MASK].any()
    np.testing.assert_array_equal(got, want)
    for a, b in zip(gradients, want_gradients, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not gradients[0][~MASK].any()


def test_reads_the_keras_mask():
    x = np.where(MASK[..., None], X, 0).astype("float32")
    inputs = keras.Input(x.shape[1:])
    layer = InformerEncoderBlock(2, factor=1)
    model = keras.Model(inputs, layer(keras.layers.Masking()(inputs)))
    randomize(model, np.random.default_rng(1))
    got = model(x)
    np.testing.assert_allclose(array(got), array(layer(x, mask=MASK)), atol=1e-6)
    np.testing.assert_array_equal(array(got._keras_mask), MASK)


def test_case_36_training_is_random_and_inference_is_not():
    blocks = [made(2, factor=1, dropout=0.2, seed=3) for _ in range(2)]
    want = array(blocks[0](X))
    first, second = (
        [array(block(X, training=True)) for _ in range(2)] for block in blocks
    )
    np.testing.assert_array_equal(first, second)
    assert np.abs(first[0] - first[1]).max() > 0.01
    np.testing.assert_array_equal(array(blocks[0](X)), want)


def test_where_dropout_acts():
    layer = InformerEncoderBlock(2, dropout=0.2, seed=1)
    layer.build(X.shape)
    names = ("self_attention_dropout", "inner_dropout", "feed_forward_dropout")
    assert [getattr(layer, name).rate for name in names] == [0.2] * 3
    assert layer.self_attention.weight_dropout.rate == 0.2
    seeds = [getattr(layer, name).seed for name in names]
    attention = layer.self_attention
    seeds += [attention.seed, attention.weight_dropout.seed]
    assert len(set(seeds)) == 5
    other = InformerEncoderBlock(2, dropout=0.2, attention_dropout=0.0)
    other.build(X.shape)
    assert other.self_attention.weight_dropout.rate == 0.0
    # Each alone changes the output in training.
    alone = made(2, attention="full", dropout=0.5, attention_dropout=0.0)
    for name in names:
        for other in names:
            getattr(alone, other).rate = 0.5 if other == name else 0.0
        change = array(alone(X, training=True)) - array(alone(X))
        assert np.abs(change).max() > 0.01, name


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("attention", ["prob_sparse", "full"])
def test_case_37_rows_do_not_depend_on_each_other(attention, num_heads):
    x = RNG.normal(size=(2, 49, 4)).astype("float32")
    layer = made(num_heads, attention=attention, shape=x.shape)
    both = array(layer(x))
    np.testing.assert_allclose(array(layer(x[:1])), both[:1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(array(layer(x[::-1])), both[::-1], rtol=1e-5, atol=1e-5)


def test_case_33_scores_are_an_output_of_a_saved_model(tmp_path):
    x = keras.Input(X.shape[1:])
    outputs = InformerEncoderBlock(2, factor=1)(x, return_attention_scores=True)
    assert [tuple(o.shape) for o in outputs] == [(None, 12, 4), (None, 2, 12, 12)]
    model = keras.Model(x, outputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for got, want in zip(loaded(X), model(X), strict=True):
        np.testing.assert_array_equal(array(got), array(want))


def test_length_may_be_unknown_where_attention_is_full():
    layer = InformerEncoderBlock(2, attention="full")
    model = keras.Model(x := keras.Input((None, 4)), layer(x))
    assert model.output.shape == (None, None, 4)
    for length in (5, 12):
        part = X[:, :length]
        got = model.predict(part, verbose=0)
        np.testing.assert_allclose(got, array(layer(part)), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"static length.*query_len=None"):
        InformerEncoderBlock(2)(keras.Input((None, 4)))


@pytest.mark.parametrize("kind", [InformerEncoderBlock, InformerDecoderBlock])
def test_one_seeded_initializer_gives_each_weight_its_own_numbers(kind):
    layer = kind(
        2,
        intermediate_dim=30,
        kernel_initializer=FanInUniform(seed=1),
        bias_initializer=FanInUniform(seed=1),
    )
    shape = (None, 12, 30)
    layer.build(*[shape] * (1 + (kind is InformerDecoderBlock)))
    values = [
        array(w).ravel()[:30] for w in layer.weights if w.name in ("kernel", "bias")
    ]
    assert len(values) == {InformerEncoderBlock: 12, InformerDecoderBlock: 20}[kind]
    correlations = np.corrcoef(values) - np.eye(len(values))
    assert np.abs(correlations).max() < 0.8
    for value in values:  # the width of every input is 30
        assert 0.7 * 30**-0.5 < np.abs(value).max() <= 30**-0.5


def test_parts_are_those_that_were_asked_for():
    layer = made(2, factor=3, attention_options={"shared_keys": True})
    attention = layer.self_attention
    assert isinstance(attention, ProbSparseAttention)
    assert (attention.factor, attention.shared_keys, attention.key_dim) == (3, True, 2)
    assert not attention.causal
    assert layer.inner.units == 16
    assert layer.self_attention_norm.epsilon == layer.feed_forward_norm.epsilon == 1e-5
    full = made(2, attention="full", key_dim=5, intermediate_dim=7)
    assert isinstance(full.self_attention, FullAttention)
    assert (full.self_attention.key_dim, full.inner.units) == (5, 7)


def test_says_what_was_given():
    for name in ("num_heads", "key_dim", "intermediate_dim", "factor"):
        with pytest.raises(TypeError, match=f"`{name}` must be an integer.*{name}=2.5"):
            InformerEncoderBlock(**{name: 2.5})
        with pytest.raises(ValueError, match=f"`{name}` must be at least 1.*{name}=0"):
            InformerEncoderBlock(**{name: 0})
    for name in ("dropout", "attention_dropout"):
        with pytest.raises(ValueError, match=rf"`{name}` must be .*{name}=1.0"):
            InformerEncoderBlock(**{name: 1.0})
    with pytest.raises(ValueError, match=r"`attention` must be one of.*attention='x'"):
        InformerEncoderBlock(attention="x")
    with pytest.raises(ValueError, match=r"`epsilon` must be .*epsilon=0"):
        InformerEncoderBlock(epsilon=0)
    with pytest.raises(
        ValueError, match=r"`attention_options` must be None where.*'la"
    ):
        InformerEncoderBlock(attention="full", attention_options={"lazy": "cumsum"})
    with pytest.raises(ValueError, match=r"`attention_options` must hold none.*'seed'"):
        InformerEncoderBlock(attention_options={"seed": 1})
    with pytest.raises(
        ValueError, match=r"`num_heads` must be a divisor.* 4,.*heads=3"
    ):
        InformerEncoderBlock(3)(X)
    with pytest.raises(
        ValueError, match=r"seq_len, num_channels.*input_shape=\(3, 4\)"
    ):
        InformerEncoderBlock(2).build((3, 4))
