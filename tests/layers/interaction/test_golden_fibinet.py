"""Layers of interaction against values of FuxiCTR and of NumPy in float64."""

import numpy as np
import pytest
from golden_files import assert_close, golden, load
from helpers import FLOATS, array, output_and_gradients, tensor

from keras_recsys import layers

TYPES = ("all", "each", "interaction")


def bilinear_kernel(arrays, bilinear_type, branch="raw"):
    """The stored matrices without the one of the last field, which nothing reads."""
    kernel = arrays[f"bil_{bilinear_type}_W_{branch}"]
    return kernel[:-1] if bilinear_type == "each" else kernel


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
@golden("fibinet", having=["senet_W1", "reduction_ratio"])
def test_senet(path, activation, dtype):
    arrays = load(path)
    emb = arrays["emb"].astype(dtype)
    layer = layers.SENETLayer(
        float(arrays["reduction_ratio"]), activation=activation, dtype=dtype
    )
    layer.build(emb.shape)
    layer.set_weights([arrays["senet_W1"], arrays["senet_W2"]])
    prefix = f"senet_{activation}"
    _, weights = layer(tensor(emb), return_weights=True)
    assert_close(array(weights), arrays[f"{prefix}_weights"], dtype)
    output, gradients = output_and_gradients(
        layer, emb, arrays[f"{prefix}_coef"], wrt_inputs=True
    )
    assert_close(output, arrays[f"{prefix}_out"], dtype)
    for got, name in zip(gradients, ("grad_emb", "grad_W1", "grad_W2"), strict=True):
        assert_close(got, arrays[f"{prefix}_{name}"], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("fibinet", having=["senet_max_out"])
def test_senet_max_squeeze(path, dtype):
    arrays = load(path)
    emb = arrays["emb"].astype(dtype)
    layer = layers.SENETLayer(
        float(arrays["reduction_ratio"]), squeeze="max", dtype=dtype
    )
    layer.build(emb.shape)
    layer.set_weights([arrays["senet_W1"], arrays["senet_W2"]])
    output, weights = layer(tensor(emb), return_weights=True)
    assert_close(array(weights), arrays["senet_max_weights"], dtype)
    assert_close(array(output), arrays["senet_max_out"], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bilinear_type", TYPES)
@golden("fibinet", having=["bil_all_p"])
def test_bilinear(path, bilinear_type, dtype):
    arrays = load(path)
    emb = arrays["emb"].astype(dtype)
    layer = layers.BilinearInteraction(bilinear_type, dtype=dtype)
    layer.build(emb.shape)
    prefix = f"bil_{bilinear_type}"
    layer.set_weights([bilinear_kernel(arrays, bilinear_type, "senet")])
    weighed = arrays["senet_relu_out"].astype(dtype)
    assert_close(array(layer(tensor(weighed))), arrays[f"{prefix}_q"], dtype)
    layer.set_weights([bilinear_kernel(arrays, bilinear_type)])
    output, (grad_emb, grad_kernel) = output_and_gradients(
        layer, emb, arrays[f"{prefix}_coef"], wrt_inputs=True
    )
    assert_close(output, arrays[f"{prefix}_p"], dtype)
    assert_close(grad_emb, arrays[f"{prefix}_grad_emb"], dtype)
    want = arrays[f"{prefix}_grad_W"]
    assert_close(grad_kernel, want[:-1] if bilinear_type == "each" else want, dtype)
    pairs = np.stack([layer.lefts, layer.rights], axis=1)
    np.testing.assert_array_equal(pairs, arrays["pairs"])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bilinear_type", TYPES)
@golden("fibinet", having=["bil_all_shallow_sum"])
def test_sum_without_pairs(path, bilinear_type, dtype):
    arrays = load(path)
    total = 0.0
    for branch, name in (("raw", "emb"), ("senet", "senet_relu_out")):
        layer = layers.BilinearInteraction(bilinear_type, reduction="sum", dtype=dtype)
        layer.build(arrays[name].shape)
        layer.set_weights([bilinear_kernel(arrays, bilinear_type, branch)])
        total = total + array(layer(tensor(arrays[name].astype(dtype))))[:, 0]
    assert_close(total, arrays[f"bil_{bilinear_type}_shallow_sum"], dtype)


def fields_of(path):
    """The embeddings file that a heads file belongs to: `2 P d` is the DNN's input."""
    heads = load(path)
    for other in sorted(path.parent.glob("*.npz")):
        arrays = load(other)
        if "bil_all_p" in arrays:
            batch_size, num_pairs, dim = arrays["bil_all_p"].shape
            fits = 2 * num_pairs * dim == heads["dnn_W0"].shape[0]
            if fits and batch_size == len(heads["linear_logit"]):
                return heads, arrays
    pytest.skip(f"no fibinet file in {path.parent} has the fields of {path.name}")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bilinear_type", TYPES)
@golden("fibinet", having=["dnn_W0", "linear_logit"])
def test_heads(path, bilinear_type, dtype):
    heads, arrays = fields_of(path)
    raw = arrays["emb"].astype(dtype)
    weights = arrays["senet_relu_weights"].astype(dtype)
    dense = layers.BilinearDense(
        heads["dnn_W0"].shape[1], bilinear_type, activation="relu", dtype=dtype
    )
    dense.build(raw.shape, weights.shape)
    kernels = [bilinear_kernel(arrays, bilinear_type, b) for b in ("raw", "senet")]
    if bilinear_type == "all":
        kernels = [kernel[None] for kernel in kernels]
    halves = np.split(heads["dnn_W0"], 2)
    dense.set_weights([kernels[0], halves[0], kernels[1], halves[1], heads["dnn_b0"]])
    hidden = array(dense(tensor(raw), field_weights=tensor(weights)))
    want = np.maximum(
        heads[f"{bilinear_type}_concat"] @ heads["dnn_W0"] + heads["dnn_b0"], 0
    )
    assert_close(hidden, want, dtype)
    hidden = np.maximum(hidden @ heads["dnn_W1"] + heads["dnn_b1"], 0)
    deep = hidden @ heads["dnn_W2"][:, 0] + heads["linear_logit"]
    assert_close(deep + heads["dnn_b2"], heads[f"{bilinear_type}_deep_logit"], dtype)
    probability = layers.ClickProbability(dtype=dtype)
    probability.build((None, 1))
    probability.set_weights([heads["dnn_b2"]])
    got = array(probability(tensor(deep[:, None].astype(dtype))))
    assert_close(got[:, 0], heads[f"{bilinear_type}_deep_prob"], dtype)


def built(layer, x, weights):
    """The layer with given weights."""
    layer.build(x.shape)
    layer.set_weights(weights)
    return layer


@pytest.mark.parametrize("dtype", FLOATS)
@golden("fibinet", having=["fm_second_order", "bi_interaction"])
def test_factorization_machine(path, dtype):
    arrays = load(path)
    emb = tensor(arrays["emb"].astype(dtype))
    total = layers.FactorizationMachine(dtype=dtype)
    assert_close(array(total(emb)), arrays["fm_second_order"], dtype)
    pooled = layers.FactorizationMachine(reduction=None, dtype=dtype)
    assert_close(array(pooled(emb)), arrays["bi_interaction"], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("fibinet", having=["ffm_emb", "ffm"])
def test_field_aware_factorization_machine(path, dtype):
    arrays = load(path)
    emb = arrays["ffm_emb"].astype(dtype)
    flat = emb.reshape(*emb.shape[:2], -1)
    for x in (emb, flat):
        layer = layers.FieldAwareFactorizationMachine(dtype=dtype)
        got = array(layer(tensor(x)))
        assert_close(got, arrays["ffm"].reshape(-1, 1), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("fibinet", having=["cross_W", "cross_b", "cross_out"])
def test_cross_network(path, dtype):
    arrays = load(path)
    x = arrays["cross_x"].astype(dtype)
    kernel, bias = arrays["cross_W"], arrays["cross_b"]
    layer = built(layers.CrossNetwork(len(kernel), dtype=dtype), x, [kernel, bias])
    assert_close(array(layer(tensor(x))), arrays["cross_out"], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("fibinet", having=["cin_W1", "cin_W2", "cin_pooled"])
def test_compressed_interaction(path, dtype):
    arrays = load(path)
    emb = arrays["emb"].astype(dtype)
    num_fields = emb.shape[1]
    units, weights, layer = [], [], 1
    while f"cin_W{layer}" in arrays:
        kernel = arrays[f"cin_W{layer}"]  # a row a unit, products `i` by `i`
        units.append(len(kernel))
        weights.append(kernel.T.reshape(num_fields, -1, len(kernel)))
        weights.append(arrays[f"cin_b{layer}"])
        layer += 1
    cin = layers.CompressedInteraction(
        units, split_half=False, activation="linear", dtype=dtype
    )
    pooled = array(built(cin, emb, weights)(tensor(emb)))
    assert_close(pooled, arrays["cin_pooled"], dtype)
    logit = pooled @ arrays["cin_fc_W"].T + arrays["cin_fc_b"]
    assert_close(logit, arrays["cin_logit"], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("fibinet", having=["se_W1", "senet_plus_out"])
def test_senet_plus(path, dtype):
    arrays = load(path)
    emb = arrays["emb"].astype(dtype)
    layer = layers.SENETPlus(
        int(arrays["num_groups"]),
        float(arrays["reduction_ratio"]),
        epsilon=float(arrays["ln_epsilon"]),
        dtype=dtype,
    )
    names = ("se_W1", "se_b1", "se_W2", "se_b2", "ln_gamma", "ln_beta")
    layer = built(layer, emb, [arrays[name] for name in names])
    got = array(layer(tensor(emb))).reshape(len(emb), -1)
    assert_close(got, arrays["senet_plus_out"], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bilinear_type", TYPES)
@golden("fibinet", having=["bilplus_all_W", "bilplus_all_out"])
def test_bilinear_plus(path, bilinear_type, dtype):
    arrays = load(path)
    emb = arrays["emb"].astype(dtype)
    prefix = f"bilplus_{bilinear_type}"
    kernel, projection = arrays[f"{prefix}_W"], arrays[f"{prefix}_lowrank_W"]
    if bilinear_type == "each":
        kernel = kernel[:-1]  # nothing reads the one of the last field
    forms = built(layers.BilinearPlus(None, bilinear_type, dtype=dtype), emb, [kernel])
    assert_close(array(forms(tensor(emb))), arrays[f"{prefix}_scalars"], dtype)
    layer = layers.BilinearPlus(projection.shape[1], bilinear_type, dtype=dtype)
    layer = built(layer, emb, [kernel, projection])
    assert_close(array(layer(tensor(emb))), arrays[f"{prefix}_out"], dtype)
