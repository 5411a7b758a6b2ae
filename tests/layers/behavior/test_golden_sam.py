"""Layers of SAM and DIN against a float64 implementation of the paper's equations."""

import keras
import numpy as np
import pytest
from golden_files import assert_close, golden, load
from helpers import FLOATS, array, output_and_gradients, tensor

from keras_recsys import layers
from keras_recsys.analysis import attention_entropy
from keras_recsys.layers.behavior._attention import without_padding

ATTENTION = ("w_W1", "w_b1", "w_W2", "w_b2")
GRU = ("w_gru_kernel", "w_gru_recurrent", "w_gru_bias")
ENHANCEMENT = ("w_wu", "w_enh_kernel", "w_enh_recurrent", "w_enh_bias")


class Sam(keras.layers.Layer):
    """Passes and steps together, so that gradients run through both."""

    def __init__(self, memory, enhancement):
        super().__init__(dtype=memory.dtype)
        self.memory, self.enhancement = memory, enhancement
        self.built = True

    def call(self, query, value, value_mask=None):
        memory = self.memory(query, value, value_mask)
        return memory if self.enhancement is None else self.enhancement(memory, query)


def inputs_of(arrays, dtype):
    query, value = (arrays[name].astype(dtype) for name in ("target", "seq"))
    return query, value, arrays["mask"]


def with_weights(layer, arrays, names, *inputs):
    """The layer, built for the inputs, with weights of the file."""
    layer.build(*(x.shape for x in inputs))
    layer.set_weights([arrays[name] for name in names])
    return layer


def activation_of(path):
    """Files of softmax weights have it in their name, and rows of sum 1."""
    return "softmax" if "softmax" in path.stem else "sigmoid"


def close(got, want, dtype, path):
    if dtype == "float32" and "long" in path.stem:
        scale = max(1.0, np.abs(want).max(initial=0.0))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * scale)
    else:
        assert_close(got, want, dtype)


def make_sam(path, arrays, dtype, **kwargs):
    query, value, _ = inputs_of(arrays, dtype)
    settings = {"reset_after": arrays["w_gru_bias"].ndim == 2, "dtype": dtype}
    memory = layers.IterativeMemory(
        int(arrays["num_passes"]),
        arrays["w_b1"].shape[-1],
        attention_activation=activation_of(path),
        **settings,
        **kwargs,
    )
    with_weights(memory, arrays, ATTENTION + GRU, query, value)
    steps = int(arrays["num_enhance"])
    if not steps:
        return memory, None
    enhancement = layers.MemoryEnhancement(steps, **settings)
    return memory, with_weights(enhancement, arrays, ENHANCEMENT, query, query)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("sam", having=["num_passes", "att", "memory", "enhanced"])
def test_memory_and_enhancement(path, dtype):
    arrays = load(path)
    query, value, mask = inputs_of(arrays, dtype)
    memory, enhancement = make_sam(path, arrays, dtype, return_memories=True)
    memories, weights = memory(
        tensor(query), tensor(value), tensor(mask), return_attention_scores=True
    )
    close(array(weights), arrays["att"].swapaxes(0, 1), dtype, path)
    close(array(memories), arrays["memory"][1:].swapaxes(0, 1), dtype, path)
    bits = attention_entropy(array(weights)).swapaxes(0, 1)
    close(bits, arrays["entropy_bits"], dtype, path)
    output = memories[:, -1]
    close(array(output), arrays["enhanced"][0], dtype, path)
    if enhancement is not None:
        for count in (1, int(arrays["num_enhance"])):
            config = enhancement.get_config() | {"num_steps": count}
            steps = layers.MemoryEnhancement.from_config(config)
            with_weights(steps, arrays, ENHANCEMENT, query, query)
            got = array(steps(output, tensor(query)))
            close(got, arrays["enhanced"][count], dtype, path)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("sam", having=["grad_seq", "loss_coef", "num_passes"])
def test_gradients(path, dtype):
    arrays = load(path)
    query, value, mask = inputs_of(arrays, dtype)
    memory, enhancement = make_sam(path, arrays, dtype)
    output, (d_query, d_value, *gradients) = output_and_gradients(
        Sam(memory, enhancement),
        (query, value),
        arrays["loss_coef"],
        call={"value_mask": tensor(mask)},
        wrt_inputs=True,
    )
    assert_close(output, arrays["enhanced"][-1], dtype)
    assert_close(d_query, arrays["grad_target"], dtype)
    assert_close(d_value, arrays["grad_seq"], dtype)
    assert not d_value[~mask].any()
    names = ATTENTION + GRU + (ENHANCEMENT if enhancement is not None else ())
    for name, gradient in zip(names, gradients, strict=True):
        want = arrays[name.replace("w_", "grad_", 1)]
        assert_close(gradient, want, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("sam", having=["score", "att", "pooled", "memory"])
def test_each_pass(path, dtype):
    arrays = load(path)
    query, value, mask = inputs_of(arrays, dtype)
    settings = {"dtype": dtype}
    units = arrays["w_b1"].shape[-1]
    layer = layers.DualQueryAttention(
        units, attention_activation=activation_of(path), **settings
    )
    with_weights(layer, arrays, ATTENTION, query, query, value)
    raw = layers.DualQueryAttention(units, attention_activation="linear", **settings)
    with_weights(raw, arrays, ATTENTION, query, query, value)
    for number in range(int(arrays["num_passes"])):
        inputs = [tensor(query), tensor(arrays["memory"][number].astype(dtype))]
        inputs.append(tensor(value))
        call = {"return_attention_scores": True}
        pooled, weights = layer(*inputs, tensor(mask), **call)
        assert_close(array(pooled), arrays["pooled"][number], dtype)
        assert_close(array(weights), arrays["att"][number], dtype)
        _, scores = raw(*inputs, **call)
        assert_close(array(scores), arrays["score"][number], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("sam", having=["sample_matrix", "sample_bias", "preactivation"])
def test_factored_first_layer(path, dtype):
    arrays = load(path)
    query, value, memory = (
        arrays[name].astype(dtype) for name in ("target", "seq", "memory")
    )
    units = arrays["b1"].shape[-1]
    layer = layers.DualQueryAttention(units, dtype=dtype)
    layer.build(query.shape, memory.shape, value.shape)
    zeros = np.zeros((units, 1)), np.zeros(1)
    layer.set_weights([arrays["W1"], arrays["b1"], *zeros])
    matrix, bias = layer.first_layer(tensor(query), tensor(memory))
    assert_close(array(matrix), arrays["sample_matrix"], dtype)
    assert_close(array(bias), arrays["sample_bias"], dtype)
    got = value @ array(matrix) + array(bias)[:, None]
    assert_close(got, arrays["preactivation"], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fed_back", [True, False], ids=["fed", "stuck"])
@golden("sam", having=["stuck_memory", "fed_memory", "w_wu_b", "w_att_fc"])
def test_form_of_the_released_code(path, fed_back, dtype):
    arrays = load(path)
    query, value, mask = inputs_of(arrays, dtype)
    prefix = "fed" if fed_back else "stuck"
    passes, _, units = arrays["w_W1"].shape
    memory = layers.IterativeMemory(
        passes, units, share_pass_weights=False, return_memories=True, dtype=dtype
    )
    memory.build(query.shape, value.shape)
    of_passes = [arrays[name][i] for i in range(passes) for name in ATTENTION]
    memory.set_weights([*of_passes, *(arrays[name] for name in GRU)])
    inputs = [tensor(query), tensor(value), tensor(mask)]
    if fed_back:
        memories, weights = memory(*inputs, return_attention_scores=True)
        memories, weights = array(memories), array(weights)
    else:  # what the released code does: every pass reads the target twice
        state, memories, weights = inputs[0], [], []
        for attention in memory.attentions:
            pooled, scores = attention(
                inputs[0], inputs[0], *inputs[1:], return_attention_scores=True
            )
            state, _ = memory.gru(pooled, [state])
            memories.append(array(state))
            weights.append(array(scores))
        memories, weights = np.stack(memories, 1), np.stack(weights, 1)
    assert_close(weights, arrays[f"{prefix}_att"].swapaxes(0, 1), dtype)
    assert_close(memories, arrays[f"{prefix}_memory"][1:].swapaxes(0, 1), dtype)
    steps = len(arrays["w_wu"])
    enhancement = layers.MemoryEnhancement(
        steps, share_step_transform=False, transform_bias=True, dtype=dtype
    )
    enhancement.build(query.shape, query.shape)
    transforms = [arrays[name][i] for i in range(steps) for name in ("w_wu", "w_wu_b")]
    enhancement.set_weights([*transforms, *(arrays[name] for name in ENHANCEMENT[1:])])
    last = array(enhancement(tensor(memories[:, -1]), inputs[0]))
    assert_close(last, arrays[f"{prefix}_enhanced"][-1], dtype)
    maps = [
        np.maximum(weights[:, i] @ kernel + bias, 0)
        for i, (kernel, bias) in enumerate(
            zip(arrays["w_att_fc"], arrays["w_att_fc_b"], strict=True)
        )
    ]
    joined = [x for i in range(passes) for x in (maps[i], memories[:, i])]
    want = arrays[f"{prefix}_concat_all_passes"]
    assert_close(np.concatenate(joined, axis=1), want, dtype)
    joined = np.concatenate([maps[-1], last], axis=1)
    assert_close(joined, arrays[f"{prefix}_concat_plus"], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("sam", having=["no_subtraction", "delayed_cross", "dot_product"])
def test_ablations(path, dtype):
    arrays = load(path)
    query, value, mask = inputs_of(arrays, dtype)
    inputs = [tensor(query), tensor(value), tensor(mask)]
    units, dim = arrays["w_b1"].shape[-1], query.shape[-1]

    def memory(weights=arrays, **kwargs):
        layer = layers.IterativeMemory(3, units, dtype=dtype, **kwargs)
        with_weights(layer, weights, ATTENTION + GRU, query, value)
        return layer(*inputs)

    assert_close(array(memory()), arrays["no_enhancement"], dtype)
    steps = layers.MemoryEnhancement(3, dtype=dtype)
    with_weights(steps, arrays, ENHANCEMENT, query, query)
    got = array(steps(memory(use_subtraction=False), inputs[0]))
    assert_close(got, arrays["no_subtraction"], dtype)
    half = arrays | {"w_W1": arrays["w_W1"][: 2 * dim]}
    got = array(memory(half, use_target=False))
    assert_close(got, arrays["delayed_cross"], dtype)
    mean = array(layers.SequencePooling(dtype=dtype)(inputs[1], mask=inputs[2]))
    assert_close(mean, arrays["delayed_cross_memory0"], dtype)
    assert_close(mean, arrays["no_attention"], dtype)

    single = layers.DualQueryAttention(units, dtype=dtype)
    with_weights(single, arrays, ATTENTION, query, query, value)
    got = array(single(inputs[0], *inputs))
    assert_close(got, arrays["no_iterative_walk"], dtype)
    dots = layers.DualQueryAttention(
        score_mode="dot", attention_activation="softmax", dtype=dtype
    )
    pooled, weights = dots(inputs[0], *inputs, return_attention_scores=True)
    assert_close(array(weights), arrays["dot_product_att"], dtype)
    assert_close(array(pooled), arrays["dot_product"], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("sam", having=["din2_W1", "din4_W0", "avg_pool"])
def test_baselines(path, dtype):
    arrays = load(path)
    query, value, mask = inputs_of(arrays, dtype)
    inputs = [tensor(query), tensor(value), tensor(mask)]
    mean = array(layers.SequencePooling(dtype=dtype)(inputs[1], mask=inputs[2]))
    assert_close(mean, arrays["avg_pool"], dtype)
    two = {"interactions": ("difference", "product")}
    names = {
        "din2": [f"din2_{part}{i}" for i in (1, 2) for part in "Wb"],
        "din4": [f"din4_{part}{i}" for i in (0, 1, 2) for part in "Wb"],
    }
    for kind, case, activation in (
        ("din2", "sigmoid", "sigmoid"),
        ("din2", "softmax", "softmax"),
        ("din4", "none", "linear"),
        ("din4", "softmax", "softmax"),
    ):
        units = [arrays[name].shape[0] for name in names[kind][1:-2:2]]
        layer = layers.TargetAttention(
            units,
            attention_activation=activation,
            dtype=dtype,
            **(two if kind == "din2" else {}),
        )
        with_weights(layer, arrays, names[kind], query, value)
        pooled, weights = layer(*inputs, return_attention_scores=True)
        assert_close(array(weights), arrays[f"{kind}_{case}_att"], dtype)
        assert_close(array(pooled), arrays[f"{kind}_{case}_out"], dtype)


@golden("sam", having=["elapsed_int", "bucket_int", "elapsed_float", "bucket_float"])
def test_time_buckets(path):
    arrays = load(path)
    layer = layers.TimeBucketEmbedding(1, len(arrays["time_table"]))
    for kind in ("int", "float"):
        times, want = arrays[f"elapsed_{kind}"], arrays[f"bucket_{kind}"]
        np.testing.assert_array_equal(array(layer.buckets(times)), want)


@golden("sam", having=["positions_right_padded", "positions_left_padded", "lengths"])
def test_positions(path):
    arrays = load(path)
    lengths = arrays["lengths"][:, None]
    seq_len = arrays["positions_right_padded"].shape[1]
    layer = layers.ReversePositionEmbedding(seq_len, 1)
    steps = np.arange(seq_len)
    for side, mask in (
        ("right", steps < lengths),
        ("left", steps >= seq_len - lengths),
    ):
        got = array(layer.positions(tensor(mask)))
        np.testing.assert_array_equal(got, arrays[f"positions_{side}_padded"])


@pytest.mark.parametrize("dtype", FLOATS)
@golden("sam", having=["encoded", "time_table", "pos_table"])
def test_encoding(path, dtype):
    arrays = load(path)
    dim = arrays["time_table"].shape[1]
    times = layers.TimeBucketEmbedding(dim, len(arrays["time_table"]), dtype=dtype)
    times.build()
    times.set_weights([arrays["time_table"]])
    mask = tensor(arrays["mask"])
    places = layers.ReversePositionEmbedding(
        len(arrays["pos_table"]) - 1, dim, dtype=dtype
    )
    places.build(mask.shape)
    places.set_weights([arrays["pos_table"]])
    item = tensor(arrays["item"].astype(dtype))
    got = without_padding(item + times(arrays["elapsed"]) + places(mask), mask)
    assert_close(array(got), arrays["encoded"], dtype)
