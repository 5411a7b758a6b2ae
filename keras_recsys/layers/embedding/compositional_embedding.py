"""`CompositionalEmbedding`, several small tables for a large vocabulary."""

import math

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys._lookup import read_rows, split_digits, zero_or_nan
from keras_recsys.layers.embedding._partitioned_embedding import PartitionedEmbedding

PARTITIONS = ("mixed_radix", "chinese_remainder")
MAX_CHECKED = 10**7


@keras.saving.register_keras_serializable(package="keras_recsys")
class CompositionalEmbedding(PartitionedEmbedding):
    """Embeds many ids with `k` small tables, of which no two ids read the same rows.

    Each table has the classes of one partition of the ids, and

        output = combine(table_1[class_1(i)], ..., table_k[class_k(i)])

    The partitions are complementary: two different ids differ in at least one class.

        mixed_radix:        class_j = (i // (m_1 ... m_{j-1})) mod m_j, the digits of
                            `i`; the product of the `m_j` is at least `input_dim`
        chinese_remainder:  class_j = i mod m_j; the least common multiple of the `m_j`
                            is at least `input_dim`

    Equal sizes give about `k input_dim^(1/k)` rows in all. `QREmbedding` is
    `mixed_radix` with two digits.

    Args:
        input_dim: Positive int, number of ids, `0 .. input_dim - 1`.
        output_dim: Positive int, width of the output vector.
        partition: `"mixed_radix"`, `"chinese_remainder"`, or a list of `k` integer
            arrays of length `input_dim`, the class of each id counted from 0: a brand,
            a year and a rank, say. Defaults to `"mixed_radix"`.
        num_partitions: Positive int, `k`, from which sizes that are about equal follow.
            Defaults to `3`, or to the length of `sizes` or `partition`.
        sizes: Tuple of `k` positive ints, rows of the tables, the least significant
            digit first; or `None`. Defaults to `None`.
        combiner: `"multiply"`, `"add"`, `"concat"`, which splits `output_dim` evenly
            with the wider parts last, or `"stack"`, which gives the `k` vectors as
            fields of their own. Defaults to `"multiply"`.
        assume_complementary: Whether arrays of more than 10^7 ids are taken without the
            check that no two ids have the same classes. Defaults to `False`.
        embeddings_initializer: As in `QREmbedding`; `"ones"` starts the first table
            plain and all others around 1. Defaults to `"uniform"`.
        embeddings_regularizer: As in `QREmbedding`. Defaults to `None`.
        embeddings_constraint: As in `QREmbedding`. Defaults to `None`.
        out_of_range: As in `QREmbedding`. Defaults to `"error"`.
        mask_zero: As in `QREmbedding`. Defaults to `False`.
        zero_masked: As in `QREmbedding`. Defaults to `False`.
        pooling: As in `QREmbedding`. Defaults to `None`.
        pool_first: As in `QREmbedding`. Defaults to `False`.
        shuffle_seed: As in `QREmbedding`. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: As in `QREmbedding`.
        weights: As in `QREmbedding`.
        source: As in `QREmbedding`.
        padding_mask: As in `QREmbedding`.

    Returns:
        Tensor of shape `inputs.shape + (output_dim,)`, or `inputs.shape + (k,
        output_dim)` with `"stack"`, in the compute dtype; with `pooling` the last axis
        of `inputs` is gone, and an empty bag gives 0. Arrays of classes are kept as a
        weight that does not train, not in the config.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range, the sizes or arrays give two ids
            the same classes, an id is out of range, or `input_dim` needs int64 on a
            backend without it.

    Example:
    >>> layer = CompositionalEmbedding(10**12, 8, sizes=(10**4, 10**4, 10**4))
    >>> tuple(layer(np.array([3, 999_999_999_999])).shape)
    (2, 8)
    >>> layer.count_params()
    240000

    Reference:
        Shi et al., "Compositional Embeddings Using Complementary Partitions for
        Memory-Efficient Recommendation Systems", KDD 2020, section 3.1. Differs from
        the paper: the moduli of `chinese_remainder` need not be coprime as long as
        their least common multiple is large enough; the path-based variant is left out.
    """

    def __init__(
        self,
        input_dim,
        output_dim,
        *,
        partition="mixed_radix",
        num_partitions=None,
        sizes=None,
        combiner="multiply",
        assume_complementary=False,
        embeddings_initializer="uniform",
        embeddings_regularizer=None,
        embeddings_constraint=None,
        out_of_range="error",
        mask_zero=False,
        zero_masked=False,
        pooling=None,
        pool_first=False,
        shuffle_seed=None,
        **kwargs,
    ):
        super().__init__(
            input_dim,
            output_dim,
            combiner=combiner,
            embeddings_initializer=embeddings_initializer,
            embeddings_regularizer=embeddings_regularizer,
            embeddings_constraint=embeddings_constraint,
            out_of_range=out_of_range,
            mask_zero=mask_zero,
            zero_masked=zero_masked,
            pooling=pooling,
            pool_first=pool_first,
            shuffle_seed=shuffle_seed,
            **kwargs,
        )
        self.assume_complementary = bool(assume_complementary)
        self._classes = None
        if isinstance(partition, str):
            if partition not in PARTITIONS and not (partition == "given" and sizes):
                raise ValueError(
                    "`partition` must be 'mixed_radix', 'chinese_remainder' or a list "
                    f"of arrays. Received: partition={partition!r}."
                )
            self.partition = partition
        else:
            self._classes = self._read_classes(partition)
            self.partition = "given"
            if sizes is None:
                sizes = [int(row.max()) + 1 for row in self._classes]
        if sizes is None:
            count = 3 if num_partitions is None else num_partitions
            sizes = _equal_sizes(
                self.partition, self.input_dim, check_int("num_partitions", count)
            )
        self.sizes = tuple(check_int("sizes", size) for size in sizes)
        self.num_partitions = len(self.sizes)
        if num_partitions not in (None, self.num_partitions):
            raise ValueError(
                "`num_partitions` must be left out or agree with `sizes` and "
                f"`partition`. Received: num_partitions={num_partitions!r}, "
                f"sizes={self.sizes!r}."
            )
        if self.partition == "given":
            self._check_classes()
        else:
            _check_sizes(self.partition, self.sizes, self.input_dim)
        self._check_concat()

    @property
    def table_rows(self):
        return {f"embeddings_{i}": size for i, size in enumerate(self.sizes)}

    def build(self, input_shape=None):
        if self.partition == "given":
            self.classes = [self._add_classes(i) for i in range(self.num_partitions)]
        super().build(input_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "partition": self.partition,
            "num_partitions": self.num_partitions,
            "sizes": list(self.sizes),
            "assume_complementary": self.assume_complementary,
        }

    def grown_config(self, input_dim):
        config = super().grown_config(input_dim)
        if self.partition == "given" and input_dim != self.input_dim:
            raise ValueError(
                "`partition` must be no list of arrays for a layer that grows: the "
                f"classes of new ids are not known. Received: layer {self.name!r}."
            )
        if self.partition == "mixed_radix":  # only the most significant digit grows
            rest = math.prod(self.sizes[:-1])
            last = max(self.sizes[-1], -(-input_dim // rest))
            config["sizes"] = [*self.sizes[:-1], last]
        elif self.partition == "chinese_remainder":
            _check_sizes(self.partition, self.sizes, input_dim)
        return config

    def split(self, ids):
        """List of the classes of ids that are in range, one tensor a table."""
        if self.partition == "mixed_radix":
            return split_digits(ids, self.sizes[:-1])
        if self.partition == "given":
            rows = [read_rows(classes, ids, "int32") for classes in self.classes]
            return [ops.maximum(row, 0) for row in rows]
        return [split_digits(ids, [size])[0] for size in self.sizes]

    def _read_parts(self, ids):
        parts = super()._read_parts(ids)
        if self.partition == "given":  # loud until the classes are loaded
            loaded = read_rows(self.classes[0], ids, "int32") >= 0
            loaded = ops.expand_dims(loaded, -1)
            parts[0] = parts[0] + zero_or_nan(loaded, parts[0].dtype)
        return parts

    def _add_classes(self, index):
        """Adds the classes of one partition; -1, no class, until they are loaded."""
        classes = self.add_weight(
            name=f"classes_{index}",
            shape=(self.input_dim,),
            dtype="int32",
            initializer=keras.initializers.Constant(-1),
            trainable=False,
            autocast=False,
        )
        if self._classes is not None:
            classes.assign(self._classes[index])
        return classes

    def _read_classes(self, partition):
        arrays = [np.asarray(array) for array in partition]
        if not arrays:
            raise ValueError("`partition` must hold at least one array. Received: [].")
        for i, array in enumerate(arrays):
            if array.shape != (self.input_dim,) or array.dtype.kind not in "iu":
                raise ValueError(
                    f"`partition[{i}]` must be an integer array of shape "
                    f"({self.input_dim},). Received: {array.dtype} of shape "
                    f"{array.shape}."
                )
            if array.min() < 0 or array.max() > np.iinfo("int32").max:
                raise ValueError(
                    f"`partition[{i}]` must hold classes from 0 to 2**31 - 1. "
                    f"Received: {array.min()} to {array.max()}."
                )
        return np.stack(arrays).astype("int32")

    def _check_classes(self):
        if self._classes is None:
            return
        for i, (row, size) in enumerate(zip(self._classes, self.sizes, strict=True)):
            if row.max() >= size:
                raise ValueError(
                    f"`sizes[{i}]` must be above every class of `partition[{i}]`. "
                    f"Received: size {size}, class {row.max()}."
                )
        if self.input_dim > MAX_CHECKED:
            if not self.assume_complementary:
                raise ValueError(
                    f"`assume_complementary` must be True for more than {MAX_CHECKED} "
                    "ids, since the check that no two have the same classes takes long "
                    f"then. Received: input_dim={self.input_dim!r}."
                )
            return
        order = np.lexsort(self._classes)
        ordered = self._classes[:, order]
        same = (ordered[:, 1:] == ordered[:, :-1]).all(axis=0)
        if same.any():
            place = int(same.argmax())
            first, second = sorted(order[place : place + 2].tolist())
            raise ValueError(
                "`partition` must give every id classes of its own. Received: ids "
                f"{first} and {second} both with {ordered[:, place].tolist()}; "
                f"{int((~same).sum()) + 1} of {self.input_dim} ids are distinct."
            )


def _check_sizes(partition, sizes, input_dim):
    """Raises where two ids have the same classes."""
    if partition == "mixed_radix":
        distinct, how = math.prod(sizes), "product"
    else:
        distinct, how = math.lcm(*sizes), "least common multiple"
    if distinct < input_dim:
        raise ValueError(
            f"`sizes` must have a {how} of at least {input_dim}, or two ids share all "
            f"rows. Received: sizes={tuple(sizes)!r}, which tell {distinct} ids apart."
        )


def _equal_sizes(partition, input_dim, count):
    """Sizes that are about equal and tell all ids apart."""
    root = max(1, round(input_dim ** (1 / count)) - 2)
    while root**count < input_dim:
        root += 1
    if partition == "mixed_radix":
        return [root] * (count - 1) + [-(-input_dim // root ** (count - 1))]
    sizes = []
    candidate = max(1, root - count)
    while len(sizes) < count or math.prod(sizes) < input_dim:
        if all(math.gcd(candidate, size) == 1 for size in sizes):
            sizes = [*sizes, candidate][-count:]
        candidate += 1
    return sizes
