"""What the layers over the steps of a time series share."""

import numpy as np
from keras import ops

PADDINGS = ("circular", "same")


def check_series(layer, input_shape):
    """Returns the number of channels of a shape `(batch_size, seq_len, num_channels)`.

    Raises:
        ValueError: If the shape is of another rank or the last axis is not static.
    """
    if len(input_shape) != 3 or input_shape[-1] is None:
        raise ValueError(
            f"`{type(layer).__name__}` takes inputs of shape (batch_size, seq_len, "
            "num_channels) with the last one static. "
            f"Received: input_shape={tuple(input_shape)}."
        )
    return input_shape[-1]


def refuse_mask(layer, mask):
    """Checks that no steps are masked, for a layer that mixes neighbouring steps.

    Raises:
        ValueError: If there is a mask.
    """
    if mask is not None:
        raise ValueError(
            f"`inputs` of `{type(layer).__name__}` must have no mask: each step is "
            f"mixed with its neighbours. Received: a mask of shape {tuple(mask.shape)}."
        )


def pad_steps(x, padding):
    """Adds a step at each end: the one of the other end for `"circular"`, else 0."""
    if padding == "circular":
        return ops.concatenate([x[:, -1:], x, x[:, :1]], axis=1)
    return ops.pad(x, [[0, 0], [1, 1], [0, 0]])


def waves(dim):
    """How far each pair of sinusoids turns from one row to the next, in radians."""
    return 10000.0 ** (-np.arange(0, dim, 2) / dim)


def sinusoids(num_rows, dim):
    """Table of positions, float64, `(num_rows, dim)`: sine and cosine in turn."""
    angles = np.arange(num_rows)[:, None] * waves(dim)
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return pairs.reshape(num_rows, -1)[:, :dim]
