"""QR embeddings and index maps against DLRM and exact integers."""

import re

import numpy as np
import pytest
from golden_files import assert_close, golden, load
from helpers import BACKEND, FLOATS, array, output_and_gradients, tensor

from keras_recsys import layers
from keras_recsys._lookup import safe_ids

COMBINERS = {"mult": "multiply", "add": "add", "concat": "concat"}


def assert_qr_close(got, want, dtype):
    """The tolerances of these files: float64 abs 1e-12, float32 rel 1e-6."""
    if dtype == "float64":
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("qr", having=["names"])
def test_tables(path, dtype):
    arrays = load(path)
    assert len(arrays["names"])
    for name in map(str, arrays["names"]):
        num_ids, num_buckets, combiner = re.fullmatch(
            r"n(\d+)_m(\d+)_(\w+)", name
        ).groups()
        table = arrays[f"{name}_table"]
        layer = layers.QREmbedding(
            int(num_ids),
            table.shape[1],
            num_buckets=int(num_buckets),
            combiner=COMBINERS[combiner],
            dtype=dtype,
        )
        layer.build()
        layer.set_weights([arrays[f"{name}_Wq"], arrays[f"{name}_Wr"]])
        output, gradients = output_and_gradients(
            layer, np.arange(int(num_ids)), arrays[f"{name}_coef"]
        )
        assert_qr_close(output, table, dtype)
        for got, part in zip(gradients, ("grad_Wq", "grad_Wr"), strict=True):
            assert_close(got, arrays[f"{name}_{part}"], dtype)


@golden("qr", having=["quot_*", "ids"])
def test_index_maps(path):
    arrays = load(path)
    ids = arrays["ids"]
    if BACKEND == "jax":  # without 64-bit integers only these exist
        ids = ids[ids < 2**31]
    moduli = [int(name[5:]) for name in arrays if name.startswith("quot_")]
    assert moduli
    for modulus in moduli:
        if BACKEND == "jax" and modulus >= 2**31:
            continue
        layer = layers.QREmbedding(int(ids.max()) + 1, 1, num_buckets=modulus)
        safe, in_range = safe_ids(tensor(ids), layer.input_dim, "error")
        assert array(in_range).all()
        quotients, remainders = map(array, layer.split(safe))
        np.testing.assert_array_equal(quotients, arrays[f"quot_{modulus}"][: len(ids)])
        np.testing.assert_array_equal(remainders, arrays[f"rem_{modulus}"][: len(ids)])
        wrong = arrays.get(f"float_division_quot_{modulus}")
        if wrong is not None and BACKEND != "jax":
            assert np.any(quotients != wrong)  # what a float division would give


@pytest.mark.parametrize("dtype", FLOATS)
@golden("qr", having=["ids2d", "remainder_size"])
def test_bags_combined_then_pooled(path, dtype):
    arrays = load(path)
    offsets = [*arrays["offsets"], len(arrays["ids"])]
    bags = [arrays["ids"][a:b] for a, b in zip(offsets, offsets[1:], strict=False)]
    # The padded form: one more id in front, 0, for padding.
    width = max(map(len, bags))
    padded = np.stack([np.pad(bag + 1, (0, width - len(bag))) for bag in bags])
    for combiner, name in COMBINERS.items():
        dims = 2 if combiner == "concat" else 1
        layer = layers.QREmbedding(
            int(arrays["num_ids"]),
            arrays["Wq"].shape[1] * dims,
            num_buckets=int(arrays["remainder_size"]),
            combiner=name,
            dtype=dtype,
        )
        layer.build()
        layer.set_weights([arrays["Wq"], arrays["Wr"]])
        for pooling in ("sum", "mean"):
            pool = layers.SequencePooling(pooling, dtype=dtype)
            want = arrays.get(f"bag_{combiner}_{pooling}_combine_then_pool")
            mask = padded > 0
            got = pool(layer(np.maximum(padded - 1, 0)), mask=mask)
            assert_qr_close(array(got), want, dtype)
            want = arrays.get(f"bag2d_{combiner}_{pooling}_combine_then_pool")
            assert_qr_close(array(pool(layer(arrays["ids2d"]))), want, dtype)
