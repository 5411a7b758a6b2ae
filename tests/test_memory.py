"""Sizes of tables: what `summary` counts is what the layers make."""

import numpy as np
import pytest

from keras_recsys import memory
from keras_recsys.features import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
)
from keras_recsys.layers import (
    CompositionalEmbedding,
    FullEmbedding,
    HashEmbedding,
    MixedDimensionEmbedding,
    QREmbedding,
)

FEATURES = (
    CategoricalFeature("user", 1000, embedding="qr", num_buckets=7),
    CategoricalFeature("item", 90, table="items"),
    SequenceFeature("history", 90, table="items"),
    CategoricalFeature("city", 33, embedding="hash", num_buckets=4),
    CategoricalFeature("hour", 24, out_of_range="oov"),
    NumericFeature("price"),
)
SIZES = {"user": 1000, "items": 90, "city": 33, "hour": 24}


def built(layer):
    layer.build()
    return layer.count_params()


def test_counts_what_the_layers_make():
    got = memory.summary(FEATURES, 6, num_buckets=5, alpha=0.5).parameters
    assert got["declared"] == {
        "user": 6 * (143 + 7),
        "items": 540,
        "city": 24,
        "hour": 24 * 6 + 6,
    }
    widths = memory.mixed_dimensions(list(SIZES.values()), 6, alpha=0.5)
    for (name, n), width in zip(SIZES.items(), widths, strict=True):
        want = {
            "full": FullEmbedding(n, 6),
            "hash": HashEmbedding(n, 6, num_buckets=5),
            "qr_multiply": QREmbedding(n, 6, num_buckets=5),
            "qr_add": QREmbedding(n, 6, num_buckets=5, combiner="add"),
            "qr_concat": QREmbedding(n, 6, num_buckets=5, combiner="concat"),
            "three_digits": CompositionalEmbedding(n, 6, num_partitions=3),
            "mixed_dimension": MixedDimensionEmbedding(n, 6, table_dim=width),
        }
        for method, layer in want.items():
            assert got[method][name] == built(layer), (method, name)


def test_numbers_of_the_paper():  # by hand: n = 10^6, D = 16
    features = [CategoricalFeature("user", 10**6)]
    counts = {r["method"]: r["parameters"] for r in memory.summary(features, 16).rows()}
    assert counts["full"] == 16_000_000
    assert counts["qr_multiply"] == counts["qr_add"] == 32_000
    assert counts["qr_concat"] == counts["hash"] == 16_000
    counts = memory.summary(features, 16, num_buckets=4).parameters
    assert counts["qr_multiply"]["user"] == 16 * 250_004


def test_bytes_and_states():
    features = [CategoricalFeature("user", 100)]
    for dtype, size in (("float32", 4), ("float64", 8), ("bfloat16", 2)):
        row = memory.summary(features, 3, dtype=dtype, optimizer_slots=0.5).rows()[1]
        assert row == {
            "method": "full",
            "parameters": 300,
            "bytes": 300 * size,
            "training_bytes": 450 * size,
            "share": 1.0,
        }


def test_makes_nothing():
    features = [CategoricalFeature("user", 2**31 - 1)]
    text = str(memory.summary(features, 128))
    assert "1.1 TB" in text
    assert "3.3 TB" in text


def test_a_callable_is_counted():
    def three(input_dim, output_dim, name):
        return CompositionalEmbedding(input_dim, output_dim, sizes=(5, 5), name=name)

    features = [CategoricalFeature("user", 25, embedding=three)]
    assert memory.summary(features, 2).parameters["declared"] == {"user": 20}


def test_dimensions_of_a_budget():
    sizes = [10, 100, 1000]
    widths = memory.mixed_dimensions(sizes, budget=5000, alpha=0.0)
    assert widths == [5, 5, 5]  # 5000 / 1110 is 4.5: rounded up for all
    widths = memory.mixed_dimensions(sizes, budget=50_000, alpha=0.5)
    spent = sum(n * d for n, d in zip(sizes, widths, strict=True))
    assert widths == sorted(widths, reverse=True)
    assert spent == pytest.approx(50_000, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_sizes": []}, "`vocab_sizes` must hold at least one size"),
        ({"vocab_sizes": [0]}, "`vocab_sizes` must be at least 1.*=0"),
        ({"alpha": 1.5}, r"`alpha` must be in \[0, 1\].*1.5"),
        ({"alpha": -0.5}, "`alpha` must be a number of at least 0.*-0.5"),
        ({"budget": 10}, "Exactly one of `base_dim` and `budget`.*budget=10"),
        ({"base_dim": None}, "Exactly one of `base_dim` and `budget`.*budget=None"),
        ({"base_dim": 0}, "`base_dim` must be at least 1.*=0"),
    ],
)
def test_dimensions_say_what_was_given(arguments, message):
    arguments = {"vocab_sizes": [3], "base_dim": 16, **arguments}
    with pytest.raises(ValueError, match=message):
        memory.mixed_dimensions(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": [NumericFeature("a")]}, "at least one feature with ids"),
        ({"embedding_dim": 0}, "`embedding_dim` must be at least 1"),
        ({"dtype": "int8"}, "`dtype` must be one of 'float16'.*'int8'"),
        ({"optimizer_slots": -1}, "`optimizer_slots` must be a number of at least 0"),
    ],
)
def test_summary_says_what_was_given(arguments, message):
    with pytest.raises(ValueError, match=message):
        memory.summary(**{"features": FEATURES, "embedding_dim": 4, **arguments})


def test_layers_of_others_are_not_counted():
    import keras

    def stock(input_dim, output_dim, name):
        return keras.layers.Embedding(input_dim, output_dim, name=name)

    with pytest.raises(TypeError, match="feature 'a' must make a layer.*Embedding"):
        memory.summary([CategoricalFeature("a", 5, embedding=stock)], 2)
    assert np.isfinite(memory.summary(FEATURES, 2).rows()[0]["share"])
