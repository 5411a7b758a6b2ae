"""What embedding tables cost, before any is made."""

import dataclasses

import numpy as np

from keras_recsys import layers
from keras_recsys._checks import (
    check_choice,
    check_int,
    check_non_negative,
    check_positive,
)
from keras_recsys.features import check_features, make_table
from keras_recsys.layers.embedding._id_embedding import IdEmbedding

__all__ = ["MemorySummary", "mixed_dimensions", "summary"]

DTYPES = ("float16", "bfloat16", "float32", "float64")


def mixed_dimensions(
    vocab_sizes, base_dim=None, *, alpha=0.3, budget=None, power_of_two=False
):
    """Widths of embedding tables that fall with the number of ids.

    With `n_min` the smallest vocabulary,

        d_i = base_dim (n_min / n_i)^alpha                   with `base_dim`
        d_i = budget n_i^(-alpha) / sum_j n_j^(1 - alpha)    with `budget`

    rounded to an integer, or then to the power of two nearest in the exponent, and at
    least 1.

    Args:
        vocab_sizes: Non-empty sequence of positive ints.
        base_dim: Positive int, width of the smallest vocabulary; or `None` with
            `budget`.
        alpha: Float in `[0, 1]`; 0 gives all the same width. Defaults to `0.3`.
        budget: Positive number of weights to share out; or `None` with `base_dim`.
        power_of_two: Whether widths are powers of two. Defaults to `False`.

    Returns:
        List of ints in the order of `vocab_sizes`, for `MixedDimensionEmbedding`.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range, or not exactly one of `base_dim`
            and `budget` is given.

    Example:
    >>> mixed_dimensions([10, 1000, 2_000_000], 16, alpha=0.3)
    [16, 4, 1]

    Reference:
        Ginart et al., "Mixed Dimension Embeddings with Application to Memory-Efficient
        Recommendation Systems", 2019, algorithm 1.
    """
    sizes = np.array([check_int("vocab_sizes", size) for size in vocab_sizes], float)
    if not len(sizes):
        raise ValueError("`vocab_sizes` must hold at least one size. Received: [].")
    if check_non_negative("alpha", alpha) > 1:
        raise ValueError(f"`alpha` must be in [0, 1]. Received: alpha={alpha!r}.")
    if (base_dim is None) == (budget is None):
        raise ValueError(
            "Exactly one of `base_dim` and `budget` must be given. "
            f"Received: base_dim={base_dim!r}, budget={budget!r}."
        )
    if budget is None:
        widths = check_int("base_dim", base_dim) * (sizes.min() / sizes) ** alpha
    else:
        share = check_positive("budget", budget) / np.sum(sizes ** (1 - alpha))
        widths = share * sizes**-alpha
    widths = np.maximum(np.round(widths), 1)
    if power_of_two:
        widths = 2 ** np.round(np.log2(widths))
    return [int(width) for width in widths]


@dataclasses.dataclass(frozen=True)
class MemorySummary:
    """Sizes of the tables of some features, stored in several ways.

    `print` shows one line a way. `"declared"` is what the features say.

    Args:
        parameters: Dict from the way to a dict from table to its number of weights.
        bytes_per_weight: Int.
        optimizer_slots: Number of states that the optimizer keeps a weight.
    """

    parameters: dict
    bytes_per_weight: int
    optimizer_slots: float

    def rows(self):
        """List of dicts, one a way: `pandas.DataFrame` takes it.

        Keys: `method`, `parameters`, `bytes`, `training_bytes` (with the states of the
        optimizer) and `share`, the parameters over those of `"full"`.
        """
        full = sum(self.parameters["full"].values())
        rows = []
        for method, tables in self.parameters.items():
            count = sum(tables.values())
            size = count * self.bytes_per_weight
            rows.append(
                {
                    "method": method,
                    "parameters": count,
                    "bytes": size,
                    "training_bytes": int(size * (1 + self.optimizer_slots)),
                    "share": count / full,
                }
            )
        return rows

    def __str__(self):
        lines = [("method", "parameters", "bytes", "in training", "of full")]
        for row in self.rows():
            lines.append(
                (
                    row["method"],
                    f"{row['parameters']:,}",
                    _readable(row["bytes"]),
                    _readable(row["training_bytes"]),
                    f"{100 * row['share']:.3g} %",
                )
            )
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )


def summary(
    features,
    embedding_dim,
    *,
    num_buckets=None,
    alpha=0.3,
    dtype="float32",
    optimizer_slots=2,
):
    """Counts weights and bytes of the embedding tables of features; makes none.

    `"declared"` is what the features say. The other ways store every feature alike:
    `"full"`, `"hash"`, `"qr_multiply"`, `"qr_add"`, `"qr_concat"`, `"three_digits"`
    (`CompositionalEmbedding`) and `"mixed_dimension"`, in which the smallest vocabulary
    keeps its width. Numbers have no table; the tables of width 1 of a linear part are
    not counted.

    Args:
        features: Sequence of features, at least one with ids.
        embedding_dim: Positive int, width of the vectors.
        num_buckets: Rows of the remainder table of QR, and of the table of `"hash"`, in
            all ways but `"declared"`. Defaults to `ceil(sqrt(vocab_size))` of each.
        alpha: See `mixed_dimensions`. Defaults to `0.3`.
        dtype: `"float16"`, `"bfloat16"`, `"float32"` or `"float64"`. Defaults to
            `"float32"`.
        optimizer_slots: States of the size of a table: 2 for Adam, 1 for Adagrad, 0 for
            SGD, `1 / embedding_dim` for `RowWiseAdagrad`. Defaults to `2`.

    Returns:
        A `MemorySummary`.

    Raises:
        TypeError: If an entry is no feature, a size no integer, or a callable
            `embedding` gives a layer that does not say its size beforehand.
        ValueError: If an argument is out of its range.

    Example:
    >>> from keras_recsys import CategoricalFeature
    >>> features = [CategoricalFeature("user", 1_000_000)]
    >>> print(summary(features, 16))
    method           parameters     bytes  in training  of full
    declared         16,000,000   64.0 MB     192.0 MB    100 %
    full             16,000,000   64.0 MB     192.0 MB    100 %
    hash                 16,000   64.0 kB     192.0 kB    0.1 %
    qr_multiply          32,000  128.0 kB     384.0 kB    0.2 %
    qr_add               32,000  128.0 kB     384.0 kB    0.2 %
    qr_concat            16,000   64.0 kB     192.0 kB    0.1 %
    three_digits          4,800   19.2 kB      57.6 kB   0.03 %
    mixed_dimension  16,000,000   64.0 MB     192.0 MB    100 %
    """
    check_int("embedding_dim", embedding_dim)
    check_choice("dtype", dtype, DTYPES)
    slots = check_non_negative("optimizer_slots", optimizer_slots)
    tables = {}
    for feature in check_features(features):
        if hasattr(feature, "vocab_size"):
            tables.setdefault(feature.table or feature.name, feature)
    if not tables:
        raise ValueError(
            "`features` must hold at least one feature with ids. "
            f"Received: features={features!r}."
        )
    sizes = [feature.vocab_size for feature in tables.values()]
    widths = mixed_dimensions(sizes, embedding_dim, alpha=alpha)
    parameters = {}
    for (name, feature), width in zip(tables.items(), widths, strict=True):
        for method, layer in _ways(feature, embedding_dim, num_buckets, width).items():
            parameters.setdefault(method, {})[name] = _count(layer, feature)
    size = 2 if dtype in ("float16", "bfloat16") else int(dtype[5:]) // 8
    return MemorySummary(parameters, size, slots)


def _ways(feature, dim, num_buckets, table_dim):
    """One layer a way, none of them built."""
    n = feature.vocab_size

    def qr(combiner):
        return layers.QREmbedding(n, dim, num_buckets=num_buckets, combiner=combiner)

    return {
        "declared": make_table(feature, dim, combiner="multiply", name=None),
        "full": layers.FullEmbedding(n, dim),
        "hash": layers.HashEmbedding(n, dim, num_buckets=qr("add").num_buckets),
        "qr_multiply": qr("multiply"),
        "qr_add": qr("add"),
        "qr_concat": qr("concat" if dim > 1 else "add"),
        "three_digits": layers.CompositionalEmbedding(n, dim, num_partitions=3),
        "mixed_dimension": layers.MixedDimensionEmbedding(n, dim, table_dim=table_dim),
    }


def _count(layer, feature):
    if not isinstance(layer, IdEmbedding):
        raise TypeError(
            f"`embedding` of feature {feature.name!r} must make a layer of this "
            "library to be counted before it is built. "
            f"Received: {type(layer).__name__}."
        )
    return sum(int(np.prod(shape)) for shape in layer.weight_shapes.values())


def _readable(size):
    units = ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.1f} {units[0]}"
