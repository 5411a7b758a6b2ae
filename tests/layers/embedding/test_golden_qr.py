"""QR embeddings and index maps against DLRM and exact integers."""

import itertools
import re

import numpy as np
import pytest
from golden_files import assert_close, golden, load
from helpers import BACKEND, FLOATS, array, output_and_gradients, tensor

from keras_recsys import layers, memory
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
            _check_bag_layer(arrays, combiner, pooling, bags, dtype)


def _check_bag_layer(arrays, combiner, pooling, bags, dtype):
    """Layers that pool by themselves, in both orders, and with weights."""
    dims = 2 if combiner == "concat" else 1
    for order in ("combine_then_pool", "pool_then_combine"):
        layer = layers.QREmbedding(
            int(arrays["num_ids"]),
            arrays["Wq"].shape[1] * dims,
            num_buckets=int(arrays["remainder_size"]),
            combiner=COMBINERS[combiner],
            pooling=pooling,
            pool_first=order == "pool_then_combine",
            dtype=dtype,
        )
        layer.build()
        layer.set_weights([arrays["Wq"], arrays["Wr"]])
        want = arrays[f"bag2d_{combiner}_{pooling}_{order}"]
        assert_qr_close(array(layer(arrays["ids2d"])), want, dtype)
        for bag, row in zip(
            bags, arrays[f"bag_{combiner}_{pooling}_{order}"], strict=True
        ):
            assert_qr_close(array(layer(bag[None]))[0], row, dtype)
        name = f"bag_{combiner}_{pooling}_weighted_{order}"
        if name in arrays:
            offsets = [*arrays["offsets"], len(arrays["ids"])]
            for i, (bag, row) in enumerate(zip(bags, arrays[name], strict=True)):
                weights = arrays["weights"][offsets[i] : offsets[i + 1]]
                weights = tensor(weights[None].astype(dtype))
                got = layer(bag[None], weights=weights)
                assert_qr_close(array(got)[0], row, dtype)


PARTITIONS = {"mixed_radix": "mixed_radix", "crt": "chinese_remainder"}


@golden("qr", having=["vocab", "*_index"])
def test_partitions(path):
    arrays = load(path)
    names = [name[:-6] for name in arrays if name.endswith("_index")]
    assert names
    for name in names:
        sizes = arrays[f"{name}_sizes"].tolist()
        kind = next((v for k, v in PARTITIONS.items() if name.startswith(k)), None)
        if kind is None:  # moduli that do not tell all ids apart are refused
            distinct = int(arrays[f"{name}_distinct"])
            with pytest.raises(ValueError, match=rf"tell {distinct} ids apart"):
                layers.CompositionalEmbedding(
                    int(arrays["vocab"]), 4, partition="chinese_remainder", sizes=sizes
                )
            continue
        layer = layers.CompositionalEmbedding(
            int(arrays["vocab"]), len(sizes), partition=kind, sizes=sizes
        )
        got = np.stack([array(x) for x in layer.split(tensor(arrays["ids"]))], axis=1)
        np.testing.assert_array_equal(got, arrays[f"{name}_index"])


@pytest.mark.parametrize("dtype", FLOATS)
@golden("qr", having=["vocab", "*_table_0"])
def test_partition_tables(path, dtype):
    arrays = load(path)
    names = [name[:-8] for name in arrays if name.endswith("_table_0")]
    assert names
    for name, (short, combiner) in itertools.product(names, COMBINERS.items()):
        want = arrays.get(f"{name}_{short}")
        if want is None:
            continue
        sizes = arrays[f"{name}_sizes"].tolist()
        kind = next(v for k, v in PARTITIONS.items() if name.startswith(k))
        tables = [arrays[f"{name}_table_{j}"] for j in range(len(sizes))]
        given = [arrays[f"{name}_index"][:, j] for j in range(len(sizes))]
        for partition in (kind, given):
            layer = layers.CompositionalEmbedding(
                int(arrays["vocab"]),
                want.shape[1],
                partition=partition,
                sizes=sizes,
                combiner=combiner,
                dtype=dtype,
            )
            layer.build()
            for variable, table in zip(layer.tables, tables, strict=True):
                variable.assign(table)
            got = array(layer(arrays["ids"]))
            assert_qr_close(got, want, dtype)


@golden("qr", having=["rows", "md_*"])
def test_mixed_dimensions(path):
    arrays = load(path)
    names = [name for name in arrays if name.startswith("md_")]
    assert names
    base = int(max(arrays[name].max() for name in names))
    for name in names:
        alpha, rounded = re.fullmatch(r"md_alpha([\d.]+)_round(\d)", name).groups()
        got = memory.mixed_dimensions(
            arrays["rows"].tolist(),
            base,
            alpha=float(alpha),
            power_of_two=rounded == "1",
        )
        np.testing.assert_array_equal(got, arrays[name])


@golden("qr", having=["pr_table"])
def test_projected_table(path):
    arrays = load(path)
    table, projection = arrays["pr_table"], arrays["pr_proj"]
    for pooling in (None, "sum"):
        layer = layers.MixedDimensionEmbedding(
            len(table),
            projection.shape[1],
            table_dim=table.shape[1],
            pooling=pooling,
        )
        layer.build()
        layer.set_weights([table, projection])
        got = array(layer(arrays["pr_ids"]))
        if pooling is None:
            got = got[:, 0]
        assert_qr_close(got, arrays["pr_out"], "float32")
