"""The step of a GRU whose input projections are made outside of the recurrence."""

from keras import ops


def gru_gates(inputs, state, recurrent_kernel):
    """Keep gate and candidate of one GRU step.

    With `[x_z, x_r, x_c]` the parts of `inputs`, and `U` those of the kernel,

        z = sigmoid(x_z + h U_z)
        r = sigmoid(x_r + h U_r)
        candidate = tanh(x_c + (r * h) U_c)

    A plain GRU goes on with `z * h + (1 - z) * candidate`. This is the layout of
    `keras.layers.GRU(reset_after=False)`.

    Args:
        inputs: Tensor, `(batch_size, 3 * units)`: the projected input plus bias.
        state: Tensor `h`, `(batch_size, units)`.
        recurrent_kernel: Tensor, `(units, 3 * units)`.

    Returns:
        Tuple `(z, candidate)`, two tensors of the shape of `state`.
    """
    units = state.shape[-1]
    gates = ops.matmul(state, recurrent_kernel[:, : 2 * units])
    gates = ops.sigmoid(inputs[:, : 2 * units] + gates)
    reset = gates[:, units:] * state
    candidate = ops.matmul(reset, recurrent_kernel[:, 2 * units :])
    return gates[:, :units], ops.tanh(inputs[:, 2 * units :] + candidate)
