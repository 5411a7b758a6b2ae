"""Loads golden weights of Informer, in PyTorch's layout, into our layers."""

import json

import keras
import numpy as np
from golden_files import load
from helpers import tensor

from keras_recsys.layers import ProbSparseAttention

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def read(path):
    """The arrays of a file and its `meta`."""
    arrays = load(path)
    return arrays, json.loads(str(arrays.pop("meta")))


def dense(layer, z, name):
    """A dense layer, or one written as a convolution of width 1."""
    kernel = z[f"{name}.W"]
    layer.set_weights([kernel.reshape(kernel.shape[:2]).T, z[f"{name}.b"]])


def conv(layer, z, name):
    layer.set_weights([z[f"{name}.W"].transpose(2, 1, 0), z[f"{name}.b"]])


def norm(layer, z, name):
    names = ("gamma", "beta", "mean", "var")[: len(layer.weights)]
    layer.set_weights([z[f"{name}.{x}"] for x in names])


def attention(layer, z, name):
    for part, ours in zip(
        "qkvo", ("query", "key", "value", "output_projection"), strict=True
    ):
        dense(getattr(layer, ours), z, f"{name}.{part}")


def block(layer, z, name):
    """An encoder block or a decoder block."""
    norms = ["self_attention_norm", "feed_forward_norm"]
    if hasattr(layer, "cross_attention"):
        norms.insert(1, "cross_attention_norm")
        attention(layer.self_attention, z, f"{name}.self")
        attention(layer.cross_attention, z, f"{name}.cross")
    else:
        attention(layer.self_attention, z, f"{name}.attn")
    dense(layer.inner, z, f"{name}.ffn1")
    dense(layer.outer, z, f"{name}.ffn2")
    for i, ours in enumerate(norms, 1):
        norm(getattr(layer, ours), z, f"{name}.ln{i}")


def fix_samples(layers, samples):
    """Makes sparse attentions use given samples of keys, in the order of `layers`."""
    sparse = [x for x in layers if isinstance(x, ProbSparseAttention)]
    assert len(sparse) == len(samples)
    for layer, sample in zip(sparse, samples, strict=True):
        layer._sample = lambda *_, sample=sample: tensor(sample)


def embedding(model, z, part, name):
    """The embedding of the encoder or decoder of a model."""
    conv(model.get_layer(f"{model.name}_{part}_token").conv, z, f"{name}.token")
    calendar = model.get_layer(f"{model.name}_{part}_calendar")
    if f"{name}.time.W" in z:
        dense(calendar.dense, z, f"{name}.time")
        return
    tables = [z[f"{name}.{field}.table"] for field in calendar.fields]
    if calendar.weights:
        calendar.set_weights(tables)


def model_weights(model, z, e_layers):
    """All weights of a model of `build_informer`.

    Returns:
        List of its sparse attentions in the order of the calls.
    """
    name, called = model.name, []
    embedding(model, z, "encoder", "w.enc_embed")
    embedding(model, z, "decoder", "w.dec_embed")
    stack = isinstance(e_layers, list)
    for j, depth in enumerate(e_layers if stack else [e_layers]):
        part = f"{name}_encoder_{j}" if stack else f"{name}_encoder"
        golden = f"w.stack{j}" if stack else "w.enc"
        for i in range(depth):
            layer = model.get_layer(f"{part}_block_{i}")
            block(layer, z, f"{golden}.layer{i}")
            called.append(layer.self_attention)
            if f"{golden}.distil{i}.conv.W" in z:
                distill = model.get_layer(f"{part}_distill_{i}")
                conv(distill.conv, z, f"{golden}.distil{i}.conv")
                norm(distill.norm, z, f"{golden}.distil{i}.bn")
        norm(model.get_layer(f"{part}_norm"), z, f"{golden}.ln")
    i = 0
    while f"w.dec.layer{i}.ffn1.W" in z:
        layer = model.get_layer(f"{name}_decoder_block_{i}")
        block(layer, z, f"w.dec.layer{i}")
        called.append(layer.self_attention)
        i += 1
    norm(model.get_layer(f"{name}_decoder_norm"), z, "w.dec.ln")
    dense(model.get_layer(f"{name}_dense"), z, "w.out")
    return [x for x in called if isinstance(x, ProbSparseAttention)]


def cut(model, outputs):
    """The model from what encoder and decoder embed to some of its tensors.

    The golden files draw the inputs of the decoder at random, where a model takes them
    from those of the encoder.
    """
    name = model.name
    inputs = [
        model.input["values"],
        model.get_layer(f"{name}_encoder_times").output,
        model.get_layer(f"{name}_decoder_values").output,
        model.get_layer(f"{name}_decoder_times").output,
    ]
    return keras.Model(inputs, outputs)


def assert_golden(got, want, **tolerance):
    np.testing.assert_allclose(got, want, **{**TOLERANCE, **tolerance})
