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
MEMORY = RNG.normal(size=(3, 5, 3)).astype("float32")
MASK = np.ones((3, 12), bool)
MASK[1, [0, 3, 4, 8, 11]] = False
MASK[2] = False
MEMORY_MASK = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)


def made(*args, shapes=(X.shape, MEMORY.shape), **options):
    """A block with random weights, the same each time."""
    layer = InformerDecoderBlock(*args, **options)
    layer.build(*shapes)
    randomize(layer, np.random.default_rng(1))
    return layer


@pytest.mark.parametrize("attention", ["prob_sparse", "full"])
def test_contract(attention, tmp_path):
    sparse = attention == "prob_sparse"
    options = {"lazy": "cummean", "measure": "exact"}
    check_layer(
        lambda: InformerDecoderBlock(
            2,
            mix=sparse,
            output_len=5,
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
        (X, MEMORY),
        tmp_path,
        call={} if sparse else {"inputs_mask": MASK, "memory_mask": MEMORY_MASK},
    )


@pytest.mark.parametrize(("mix", "output_len"), [(True, 2), (False, None)])
def test_equals_the_loop(mix, output_len):
    index = RNG.integers(0, 4, (4, 2))
    check_twin(
        InformerDecoderBlock(
            2,
            mix=mix,
            output_len=output_len,
            intermediate_dim=3,
            factor=1,
            epsilon=1e-3,
            dtype=DTYPE,
        ),
        (RNG.normal(size=(2, 4, 2)), RNG.normal(size=(2, 3, 2))),
        lambda x, memory, *weights: block_loop(
            x,
            memory,
            weights,
            num_heads=2,
            factor=1,
            index=index,
            causal=True,
            mix=mix,
            output_len=output_len,
            epsilon=1e-3,
        ),
        call={"key_index": index},
    )


def test_by_hand():
    """Without weights each part normalizes its input; biases add up between."""
    layer = InformerDecoderBlock(1, epsilon=1e-12)
    x = np.array([[[1.0, 3.0], [7.0, 5.0]]], "float32")
    layer.build(x.shape, x.shape)
    for weight in layer.weights:
        weight.assign(np.full(weight.shape, float(weight.name == "gamma")))
    np.testing.assert_allclose(array(layer(x, x)), [[[-1, 1], [1, -1]]], rtol=1e-5)
    # After the cross-attention (-1, 1) becomes (0, 0), and (1, -1) stays.
    layer.cross_attention.output_projection.bias.assign([1.0, -1.0])
    np.testing.assert_allclose(array(layer(x, x)), [[[0, 0], [1, -1]]], atol=1e-5)
    # After the feed-forward part (0, 0) becomes (1, -1), and (1, -1) becomes (3, -3).
    layer.outer.bias.assign([2.0, -2.0])
    np.testing.assert_allclose(array(layer(x, x)), [[[1, -1], [1, -1]]], rtol=1e-5)


@golden("informer/layers", having=["memory"])
def test_golden_informer_decoder_block(path):
    z, meta = reference.read(path)
    x = z["x"], z["memory"]
    layer = InformerDecoderBlock(
        meta["n_heads"],
        mix=meta["mix"],
        intermediate_dim=meta["d_ff"],
        attention="full" if meta["self_attn"] == "full" else "prob_sparse",
        factor=meta["factor"],
        activation=meta["activation"],
        epsilon=meta["ln_eps"],
    )
    layer.build(*(a.shape for a in x))
    reference.block(layer, z, "w")
    call = {"key_index": z["key_index"]} if "key_index" in z else {}
    attended = layer.self_attention(x[0], x[0], **call)
    reference.assert_golden(array(attended), z["self_out"])
    output, gradients = output_and_gradients(
        layer, x, z["grad_out"], call=call, wrt_inputs=True
    )
    reference.assert_golden(output, z["y"])
    for got, name in zip(gradients, ("dx", "dmemory"), strict=False):
        reference.assert_golden(got, z[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("attention", ["prob_sparse", "full"])
@pytest.mark.parametrize("mix", [False, True])
def test_output_len_gives_the_last_steps_of_the_whole(mix, attention):
    whole = made(2, mix=mix, attention=attention, factor=1)
    want = array(whole(X, MEMORY))
    for length in (1, 5, 12):
        layer = made(2, mix=mix, attention=attention, factor=1, output_len=length)
        assert layer.compute_output_shape(X.shape, MEMORY.shape) == (3, length, 4)
        got = array(layer(X, MEMORY))
        np.testing.assert_allclose(got, want[:, -length:], rtol=1e-5, atol=1e-5)


def test_case_38_self_attention_is_causal_and_cross_attention_is_not():
    layer = made(2, mix=False, attention="full")
    want = array(layer(X, MEMORY))
    other = X.copy()
    other[:, 8:] = 9.0
    got = array(layer(other, MEMORY))
    np.testing.assert_allclose(got[:, :8], want[:, :8], rtol=1e-5, atol=1e-5)
    memory = MEMORY.copy()
    memory[:, 4] = 9.0
    assert (np.abs(array(layer(X, memory)) - want).max(-1) > 1e-4).all()
    # Mixed, the first rows hold later steps.
    mixed = made(2, attention="full")
    assert np.abs(array(mixed(other, MEMORY)) - array(mixed(X, MEMORY)))[
        :, :8
    ].max() > (1e-3)


@pytest.mark.parametrize("attention", ["prob_sparse", "full"])
def test_noise_under_the_masks_changes_nothing(attention):
    layer = made(2, mix=False, attention=attention, factor=1, output_len=7)
    call = {"inputs_mask": MASK, "memory_mask": MEMORY_MASK}
    runs = []
    for noise in (0.0, np.nan):
        x = (
            np.where(MASK[..., None], X, noise).astype("float32"),
            np.where(MEMORY_MASK[..., None], MEMORY, noise).astype("float32"),
        )
        runs.append(output_and_gradients(layer, x, call=call, wrt_inputs=True))
    (want, want_gradients), (got, gradients) = runs
    assert not got[~MASK[:, -7:]].any()
    np.testing.assert_array_equal(got, want)
    for a, b in zip(gradients, want_gradients, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not gradients[0][~MASK].any()
    assert not gradients[1][~MEMORY_MASK].any()


def test_reads_keras_masks():
    x = [
        np.where(MASK[..., None], X, 0).astype("float32"),
        np.where(MEMORY_MASK[..., None], MEMORY, 0).astype("float32"),
    ]
    inputs = [keras.Input(a.shape[1:]) for a in x]
    layer = InformerDecoderBlock(2, mix=False, output_len=7, factor=1)
    masked = [keras.layers.Masking()(a) for a in inputs]
    model = keras.Model(inputs, layer(*masked))
    randomize(model, np.random.default_rng(1))
    got = model(x)
    want = layer(*x, inputs_mask=MASK, memory_mask=MEMORY_MASK)
    np.testing.assert_allclose(array(got), array(want), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(array(got._keras_mask), MASK[:, -7:])


def test_case_36_training_is_random_and_inference_is_not():
    blocks = [made(2, factor=1, dropout=0.2, seed=3) for _ in range(2)]
    want = array(blocks[0](X, MEMORY))
    first, second = (
        [array(block(X, MEMORY, training=True)) for _ in range(2)] for block in blocks
    )
    np.testing.assert_array_equal(first, second)
    assert np.abs(first[0] - first[1]).max() > 0.01
    np.testing.assert_array_equal(array(blocks[0](X, MEMORY)), want)


def test_every_part_has_a_seed_of_its_own():
    layer = InformerDecoderBlock(2, dropout=0.2, seed=1)
    layer.build(X.shape, MEMORY.shape)
    dropouts = [
        layer.self_attention_dropout,
        layer.cross_attention_dropout,
        layer.inner_dropout,
        layer.feed_forward_dropout,
        layer.self_attention.weight_dropout,
        layer.cross_attention.weight_dropout,
    ]
    assert [dropout.rate for dropout in dropouts] == [0.2] * 6
    seeds = {dropout.seed for dropout in dropouts} | {layer.self_attention.seed}
    assert len(seeds) == 7


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("attention", ["prob_sparse", "full"])
def test_case_37_rows_do_not_depend_on_each_other(attention, num_heads):
    x = RNG.normal(size=(2, 10, 4)).astype("float32")
    memory = RNG.normal(size=(2, 49, 4)).astype("float32")
    layer = made(
        num_heads, attention=attention, factor=1, shapes=(x.shape, memory.shape)
    )
    both = array(layer(x, memory))
    one = array(layer(x[:1], memory[:1]))
    np.testing.assert_allclose(one, both[:1], rtol=1e-5, atol=1e-5)
    back = array(layer(x[::-1], memory[::-1]))
    np.testing.assert_allclose(back, both[::-1], rtol=1e-5, atol=1e-5)


def test_case_37_encoder_and_decoder_train_in_half_precision():
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((12, 4)), keras.Input((49, 4))
    options = {"factor": 1, "dropout": 0.1, "seed": 1}
    memory = InformerEncoderBlock(2, **options)(inputs[1])
    decoded = InformerDecoderBlock(2, output_len=3, **options)(inputs[0], memory)
    outputs = keras.layers.Dense(1, dtype="float32")(decoded)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    x = [X, RNG.normal(size=(3, 49, 4)).astype("float32")]
    target = X[:, -3:, :1]
    before = model.get_weights()
    losses = model.fit(x, target, batch_size=2, epochs=6, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    after = model.get_weights()
    assert all(np.isfinite(w).all() for w in after)
    moved = [np.any(a != b) for a, b in zip(before, after, strict=True)]
    assert all(moved)
    want = array(model(x))
    np.testing.assert_allclose(model.predict(x, verbose=0), want, atol=1e-2)


def test_lengths_may_be_unknown_where_attention_is_full():
    layer = InformerDecoderBlock(2, attention="full", output_len=3)
    inputs = [keras.Input((None, 4)), keras.Input((None, 3))]
    model = keras.Model(inputs, layer(*inputs))
    assert model.output.shape == (None, 3, 4)
    for length in (12, 5):
        x = [X[:, :length], MEMORY[:, :length]]
        got = model.predict(x, verbose=0)
        np.testing.assert_allclose(got, array(layer(*x)), rtol=1e-5, atol=1e-6)
    # The memory of a sparse one may be of any length.
    layer = InformerDecoderBlock(2)
    model = keras.Model(inputs := [keras.Input((12, 4)), inputs[1]], layer(*inputs))
    got = model.predict([X, MEMORY], verbose=0)
    np.testing.assert_allclose(got, array(layer(X, MEMORY)), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"static length.*query_len=None"):
        InformerDecoderBlock(2)(keras.Input((None, 4)), inputs[1])


def test_parts_are_those_that_were_asked_for():
    layer = made(2, factor=3, attention_options={"lazy": "cummean"})
    attention = layer.self_attention
    assert isinstance(attention, ProbSparseAttention)
    assert (attention.factor, attention.lazy, attention.key_dim) == (3, "cummean", 2)
    assert attention.causal
    assert attention.mix
    cross = layer.cross_attention
    assert isinstance(cross, FullAttention)
    assert not cross.causal
    assert not cross.mix
    assert layer.inner.units == 16
    full = made(2, attention="full", mix=False).self_attention
    assert isinstance(full, FullAttention)
    assert full.causal
    assert not full.mix


def test_says_what_was_given():
    with pytest.raises(TypeError, match=r"`output_len` must be an integer.*=2.5"):
        InformerDecoderBlock(output_len=2.5)
    with pytest.raises(ValueError, match=r"`output_len` must be at least 1.*=0"):
        InformerDecoderBlock(output_len=0)
    with pytest.raises(ValueError, match=r"`output_len` must be at most.* 12.*len=13"):
        InformerDecoderBlock(2, output_len=13)(X, MEMORY)
    layer = InformerDecoderBlock(2, output_len=4)
    layer(X, MEMORY)
    with pytest.raises(ValueError, match=r"`output_len` must be at most.* 2.*len=4"):
        layer(X[:, :2], MEMORY)
    with pytest.raises(
        ValueError, match=r"`num_heads` must be a divisor.* 4,.*heads=3"
    ):
        InformerDecoderBlock(3)(X, MEMORY)
    with pytest.raises(
        ValueError, match=r"seq_len, num_channels.*input_shape=\(3, 4\)"
    ):
        InformerDecoderBlock(2).build((3, 4), MEMORY.shape)
    with pytest.raises(ValueError, match=r"takes no mask where `mix` is True"):
        InformerDecoderBlock(2)(X, MEMORY, inputs_mask=MASK)
    for name in ("causal", "mix"):
        with pytest.raises(ValueError, match=f"`attention_options` must.*'{name}'"):
            InformerDecoderBlock(attention_options={name: False})
