"""What the optimizers that update rows share."""

import keras
from keras import ops

from keras_recsys.optimizers._sparse_gradients import (
    check_backend,
    gather_duplicates,
    is_sparse,
    map_values,
    sum_duplicates,
    unscale,
)

# Rows of a table for each id of a batch up to which all rows are updated at once, and
# rows above which this is not even considered.
ROWS_AN_ID = 2
LARGE_TABLE = 2**18

_REFUSED = {
    "use_ema": "an average of every row would have to move at each step",
    "gradient_accumulation_steps": (
        "the accumulated gradient would be as large as the table"
    ),
}


class SparseOptimizer(keras.optimizers.Optimizer):
    """Base of the optimizers that update the rows of a gradient and leave the others.

    A subclass names its state in `slots` and its rule in `update_rows`. A gradient with
    rows (`tf.IndexedSlices`) is summed over equal rows first, and the rule sees those
    rows of variable and state alone; with any other gradient it sees them whole. A row
    whose sum is exactly 0 waits like one that was not read.

    The states of a row lie side by side in one variable: at 10^7 rows a step waits for
    memory once for each place that it goes to.
    """

    def __init__(self, learning_rate, **kwargs):
        name = type(self).__name__
        check_backend(name)
        for key, reason in _REFUSED.items():
            if kwargs.get(key):
                raise ValueError(
                    f"`{key}` must be left out of `{name}`: {reason}. Give it to the "
                    "`dense_optimizer` of a `SplitOptimizer` for the other weights. "
                    f"Received: {key}={kwargs[key]!r}."
                )
        super().__init__(learning_rate=_as_rate(learning_rate), **kwargs)

    def slots(self):
        """State of a row: dict from name to initial value."""
        raise NotImplementedError

    def slot_shape(self, variable):
        """Shape of one state of a variable."""
        return variable.shape

    def update_rows(self, gradient, weight, slots, learning_rate, moves):
        """The rule.

        Args:
            gradient: Tensor, rows of the gradient.
            weight: Tensor of the same shape, rows of the variable.
            slots: Dict from name to tensor, rows of the state.
            learning_rate: Scalar tensor.
            moves: Tensor that broadcasts to `gradient`: 1 where a row moves, and 0
                where its gradient is 0, so that it has to stay as it is. Padding and
                ids out of range are read as row 0, with a gradient of 0.

        Returns:
            Tuple of the new rows of the variable and a dict of those of the state.
        """
        raise NotImplementedError

    def build(self, variables):
        """Makes the state of `variables`."""
        if self.built:
            return
        super().build(variables)
        self._states = [self._add_state(variable) for variable in variables]

    def apply(self, grads, trainable_variables=None):
        """Updates the variables by their gradients; see Keras' own method."""
        if self.loss_scale_factor is not None:  # by which Keras divides
            grads = [_Divisible(g) if is_sparse(g) else g for g in grads]
        super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        """Updates one variable, or the rows of it that `gradient` has."""
        import tensorflow as tf

        if not is_sparse(gradient):
            self._update(gradient, variable, learning_rate)
            return
        # Sums of duplicates here and not before: devices are summed before they come.
        num_rows = variable.shape[0]

        def few_rows():
            summed = sum_duplicates(gradient)
            self._update(summed.values, variable, learning_rate, summed.indices)

        def all_rows():
            summed = tf.math.unsorted_segment_sum(
                gradient.values, gradient.indices, num_rows
            )
            self._update(summed, variable, learning_rate, is_table=True)

        # A batch that reads about as many rows as there are costs less without a list
        # of the distinct ones; either way a step follows the batch.
        if num_rows > LARGE_TABLE:
            few_rows()
        else:
            is_small = tf.size(gradient.indices) * ROWS_AN_ID >= num_rows
            tf.cond(is_small, all_rows, few_rows)

    def _update(self, gradient, variable, learning_rate, rows=None, is_table=False):
        """Applies the rule to all of a variable, or to the distinct `rows` of it.

        Args:
            gradient: Tensor, the gradient of the variable or of its rows.
            variable: The variable.
            learning_rate: Scalar.
            rows: Integer tensor, or `None` for all of the variable.
            is_table: Whether rows whose gradient is 0 wait, as `rows` do.
        """
        import tensorflow as tf

        state = self._states[self._get_variable_index(variable)].value
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        moves = ops.ones((), variable.dtype)
        if rows is not None or is_table:
            axes = list(range(1, gradient.shape.rank))
            moves = tf.reduce_any(gradient != 0, axis=axes, keepdims=True)
            moves = ops.cast(moves, variable.dtype)

        def read(table):
            return (
                tf.convert_to_tensor(table) if rows is None else tf.gather(table, rows)
            )

        def write(table, values):
            if rows is None:
                table.assign(values)
            else:
                # Several times faster than a `scatter_sub`, reading included.
                table.scatter_update(tf.IndexedSlices(values, rows))

        weight = read(variable)
        if self.weight_decay is not None and self._use_weight_decay(variable):
            decay = rate * ops.cast(self.weight_decay, variable.dtype)
            weight -= weight * (decay * moves)
        axis = self._slot_axis(variable)
        slots = read(state)
        slots = [slots] if axis is None else tf.unstack(slots, axis=axis)
        weight, slots = self.update_rows(
            gradient,
            weight,
            dict(zip(self.slots(), slots, strict=True)),
            rate,
            moves,
        )
        slots = [slots[name] for name in self.slots()]
        write(state, slots[0] if axis is None else tf.stack(slots, axis=axis))
        write(variable, weight)

    def _slot_axis(self, variable):
        """Axis of a state along which several slots lie: behind the rows."""
        return None if len(self.slots()) == 1 else min(1, len(variable.shape))

    def _add_state(self, variable):
        values = list(self.slots().values())
        shape = list(self.slot_shape(variable))
        axis = self._slot_axis(variable)
        start = ops.convert_to_tensor(values, dtype=variable.dtype)
        if axis is None:
            start = start[0]
        else:
            shape.insert(axis, len(values))
            # One number a slot, repeated for all rows and columns.
            start = ops.reshape(start, [-1] + [1] * (len(shape) - 1 - axis))
        with self._distribution_strategy.extended.colocate_vars_with(variable.value):
            return self.add_variable(
                shape=shape,
                initializer=lambda shape, dtype: ops.broadcast_to(start, shape),
                dtype=variable.dtype,
                name=f"{variable.path.replace('/', '_')}_{'_'.join(self.slots())}",
            )

    def _apply_weight_decay(self, variables):
        """Nothing here: `update_step` decays the rows that it reads."""

    def _clip_gradients(self, grads):
        if not (self.clipnorm or self.global_clipnorm or self.clipvalue):
            return grads
        grads = [gather_duplicates(g) if is_sparse(g) else g for g in grads]
        return map_values(super()._clip_gradients, grads)


def _as_rate(learning_rate):
    """A number as the float that Keras wants; schedules and callables as they are."""
    return float(learning_rate) if isinstance(learning_rate, int) else learning_rate


class _Divisible:
    """Rows of a gradient that can be divided by a loss scale."""

    def __init__(self, gradient):
        self.gradient = gradient

    def __truediv__(self, scale):
        return unscale([self.gradient], scale)[0]
