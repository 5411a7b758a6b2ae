"""Initial values that Keras' own initializers would get wrong by shape or by seed."""

import math

import keras
import numpy as np
from keras import ops

from keras_recsys._checks import check_int

# Initializers whose numbers do not depend on the shape.
SHAPELESS = (
    keras.initializers.Constant,
    keras.initializers.Zeros,
    keras.initializers.Ones,
    keras.initializers.RandomNormal,
    keras.initializers.RandomUniform,
    keras.initializers.TruncatedNormal,
)


def clone(initializer, index):
    """A copy of `initializer` for the `index`-th weight that it fills.

    Keras initializers repeat their numbers at each call. A copy of an unseeded one
    draws anew; the seed of a seeded one moves on by `index`.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    config = initializer.get_config()
    if isinstance(config.get("seed"), int):
        config["seed"] += index
    return type(initializer).from_config(config)


class Stacked(keras.initializers.Initializer):
    """Fills `(count, rows, columns)` as `count` matrices, each drawn for itself.

    Keras counts leading axes as a receptive field, so that a Glorot matrix of a stack
    comes out too small by the square root of `count`.
    """

    def __init__(self, initializer):
        self.initializer = initializer

    def __call__(self, shape, dtype=None):
        """Draws the stack."""
        count = shape[0]
        initializer = self.initializer
        if isinstance(initializer, keras.initializers.VarianceScaling):
            wider = keras.initializers.VarianceScaling(
                scale=initializer.scale * count,
                mode=initializer.mode,
                distribution=initializer.distribution,
                seed=initializer.seed,
            )
            return wider(shape, dtype=dtype)
        if isinstance(initializer, SHAPELESS):
            return initializer(shape, dtype=dtype)
        return ops.stack(
            [clone(initializer, i)(shape[1:], dtype=dtype) for i in range(count)]
        )


class RowBlocks(keras.initializers.Initializer):
    """Fills a table as several tables one below the other, each drawn for itself.

    Args:
        initializer: Initializer of each.
        rows: How many rows each has.
    """

    def __init__(self, initializer, rows):
        self.initializer = initializer
        self.rows = rows

    def __call__(self, shape, dtype=None):
        """Draws the tables."""
        if isinstance(self.initializer, SHAPELESS):
            return self.initializer(shape, dtype=dtype)
        return ops.concatenate(
            [
                clone(self.initializer, i)((rows, *shape[1:]), dtype=dtype)
                for i, rows in enumerate(self.rows)
            ]
        )


class GateBias(keras.initializers.Initializer):
    """Fills the bias of a GRU: the two gates by an initializer, the candidate with 0.

    The second bias that `reset_after=True` has is 0.

    Args:
        initializer: Initializer of the biases of the gates.
    """

    def __init__(self, initializer):
        self.initializer = initializer

    def __call__(self, shape, dtype=None):
        """Makes the bias, `(3 * units,)` or `(2, 3 * units)`."""
        units = shape[-1] // 3
        gates = self.initializer((2 * units,), dtype=dtype)
        bias = ops.concatenate([gates, ops.zeros((units,), dtype=dtype)])
        if len(shape) == 1:
            return bias
        return ops.stack([bias, ops.zeros_like(bias)])


@keras.saving.register_keras_serializable(package="keras_recsys")
class FanInUniform(keras.initializers.Initializer):
    """Uniform between `-1 / sqrt(fan_in)` and `1 / sqrt(fan_in)`, as PyTorch starts.

    Args:
        fan_in: Optional positive int, how many numbers a unit adds up. Defaults to
            `None`: the product of all axes of the weight but the last.
        seed: Optional int. Defaults to `None`.

    Raises:
        ValueError: If a weight of one axis, a bias, is filled without `fan_in`.
    """

    def __init__(self, fan_in=None, seed=None):
        self.fan_in = None if fan_in is None else check_int("fan_in", fan_in)
        self.seed = seed

    def __call__(self, shape, dtype=None):
        """Draws the weight."""
        fan_in = self.fan_in
        if fan_in is None:
            if len(shape) < 2:
                raise ValueError(
                    "`fan_in` of `FanInUniform` must be given for a weight of one "
                    f"axis. Received: fan_in=None, shape={tuple(shape)}."
                )
            fan_in = math.prod(shape[:-1])
        limit = fan_in**-0.5
        uniform = keras.initializers.RandomUniform(-limit, limit, seed=self.seed)
        return uniform(shape, dtype=dtype)

    def get_config(self):
        """The two arguments."""
        return {"fan_in": self.fan_in, "seed": self.seed}


def bias_for(initializer, fan_in):
    """The initializer of the bias of a kernel that adds up `fan_in` numbers.

    A `FanInUniform` without `fan_in` gets this one, and its seed moves on by one, since
    the kernel may have the same; any other initializer comes back as it is.
    """
    if isinstance(initializer, FanInUniform) and initializer.fan_in is None:
        initializer = clone(initializer, 1)
        initializer.fan_in = fan_in
    return initializer


@keras.saving.register_keras_serializable(package="keras_recsys")
class PretrainedTable(keras.initializers.Initializer):
    """Fills a table with given vectors, which the config does not hold.

    Made from its config it fills with NaN, until the weights of the layer are loaded.

    Args:
        shape: Shape of the table.
        values: Array of that shape, or `None`.
    """

    def __init__(self, shape, values=None):
        self.shape = tuple(shape)
        self.values = values

    def __call__(self, shape, dtype=None):
        """Gives the vectors."""
        if self.values is None:
            return ops.full(shape, float("nan"), dtype=dtype)
        return ops.convert_to_tensor(self.values, dtype=dtype)

    def get_config(self):
        """The shape alone."""
        return {"shape": list(self.shape)}


def table_initializer(value, shape):
    """Initializer of a table, from all that Keras takes or from the table itself.

    Args:
        value: Initializer, its name or config, `"dlrm"`, an array, or a
            `keras.initializers.Constant` of an array.
        shape: Shape of the table.

    Raises:
        ValueError: If an array has another shape.
    """
    if isinstance(value, str) and value == "dlrm":
        return value
    if not hasattr(value, "__array__"):
        value = keras.initializers.get(value)
    if isinstance(value, keras.initializers.Constant) and np.ndim(value.value):
        value = value.value
    if not hasattr(value, "__array__"):
        return value
    values = np.asarray(value)
    if values.shape != tuple(shape):
        raise ValueError(
            f"`embeddings_initializer` must be of shape {tuple(shape)} where it is an "
            f"array of vectors. Received: shape {values.shape}."
        )
    return PretrainedTable(shape, values)
