"""Initial values that Keras' own initializers would get wrong by shape or by seed."""

import keras
from keras import ops


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
        if isinstance(
            initializer,
            (
                keras.initializers.Constant,
                keras.initializers.Zeros,
                keras.initializers.Ones,
                keras.initializers.RandomNormal,
                keras.initializers.RandomUniform,
                keras.initializers.TruncatedNormal,
            ),
        ):  # the values do not depend on the shape
            return initializer(shape, dtype=dtype)
        return ops.stack(
            [clone(initializer, i)(shape[1:], dtype=dtype) for i in range(count)]
        )
