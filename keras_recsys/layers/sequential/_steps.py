"""Steps of a sequence of item ids: which are real, which is the last."""

from keras import ops

# The logit of padding: its probability is exactly 0, and 0 times it is not NaN.
LOWEST = -1e9


def real_steps(ids, mask=None):
    """Boolean mask of the steps that hold an item, `(batch_size, seq_len)`."""
    real = ops.not_equal(ids, 0)
    return real if mask is None else ops.logical_and(real, ops.cast(mask, "bool"))


def without_padding(states, real):
    """States with zeros where `real` is `False`, so that no NaN is left there."""
    return ops.where(ops.expand_dims(real, -1), states, ops.zeros_like(states))


def last_step(states, real):
    """The state of the last real step, zeros where a row has none.

    Args:
        states: Tensor, `(batch_size, seq_len, dim)`.
        real: Boolean tensor, `(batch_size, seq_len)`.

    Returns:
        Tensor of shape `(batch_size, dim)`.
    """
    steps = ops.arange(1, ops.shape(real)[1] + 1, dtype="int32")
    last = ops.max(ops.where(real, steps, ops.zeros_like(steps)), axis=1, initial=0)
    index = ops.expand_dims(ops.maximum(last - 1, 0), (1, 2))
    step = ops.squeeze(ops.take_along_axis(states, index, axis=1), 1)
    return ops.where(ops.expand_dims(last, 1) > 0, step, ops.zeros_like(step))


def same_items(ids):
    """Whether two steps hold one item, `(batch_size, seq_len, seq_len)`."""
    return ops.equal(ops.expand_dims(ids, 2), ops.expand_dims(ids, 1))


def first_steps(same):
    """Whether no earlier step holds the item of a step, `(batch_size, seq_len)`."""
    return ops.logical_not(ops.any(ops.tril(same, -1), axis=-1))


def products(queries, states):
    """Inner products of queries and steps, `(batch_size, num_queries, seq_len)`.

    The gradient for one query is written down, as TensorFlow's, a matrix product over
    an axis of one, is joined with the addition of other gradients of the states to a
    kernel of oneDNN that writes past its output.

    Args:
        queries: Float tensor, `(batch_size, num_queries, dim)`.
        states: Float tensor, `(batch_size, seq_len, dim)`.
    """
    if queries.shape[1] != 1:
        return ops.matmul(queries, ops.swapaxes(states, 1, 2))

    @ops.custom_gradient
    def run(queries, states):
        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            d_states = ops.swapaxes(upstream, 1, 2) * queries
            return ops.matmul(upstream, states), d_states

        return ops.matmul(queries, ops.swapaxes(states, 1, 2)), gradient

    return run(queries, states)
