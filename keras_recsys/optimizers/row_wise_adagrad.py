"""`RowWiseAdagrad`, Adagrad with one number of state a row."""

import keras
from keras import ops

from keras_recsys._checks import check_non_negative, check_positive
from keras_recsys.optimizers._sparse_optimizer import SparseOptimizer


@keras.saving.register_keras_serializable(package="keras_recsys")
class RowWiseAdagrad(SparseOptimizer):
    """Adagrad that keeps one accumulator a row instead of one a weight.

    With `g` the sum of the gradients of a row of width `d`,

        accumulator = accumulator + sum(g^2) / d
        row = row - learning_rate g / (sqrt(accumulator) + epsilon)

    The state of a table of width 16 is a sixteenth of Adagrad's and a thirty-second of
    Adam's. Rows without a gradient do not move, so a step costs what the batch costs
    and is exact. In a weight of rank 1 every number is a row.

    Args:
        learning_rate: Positive float, schedule or callable. Defaults to `0.01`.
        initial_accumulator_value: Float, at least 0. Defaults to `0.0`.
        epsilon: Positive float. Defaults to `1e-8`.
        **kwargs: As in `LazyAdam`.

    Raises:
        RuntimeError: If the backend is not TensorFlow.
        ValueError: As for `LazyAdam`.

    Example:
    >>> RowWiseAdagrad(0.05).initial_accumulator_value
    0.0

    Reference:
        Gupta et al., "Training Recommender Systems at Scale: Communication-Efficient
        Model and Data Parallelism", KDD 2021, and the optimizer of that name in DLRM
        and FBGEMM, whose rule and defaults these are.
    """

    def __init__(
        self,
        learning_rate=0.01,
        initial_accumulator_value=0.0,
        epsilon=1e-8,
        **kwargs,
    ):
        super().__init__(learning_rate, **kwargs)
        self.initial_accumulator_value = check_non_negative(
            "initial_accumulator_value", initial_accumulator_value
        )
        self.epsilon = check_positive("epsilon", epsilon)

    def slots(self):
        return {"accumulator": self.initial_accumulator_value}

    def slot_shape(self, variable):
        return variable.shape[:1]

    def update_rows(self, gradient, weight, slots, learning_rate, moves):
        squares = ops.square(gradient)
        axes = tuple(range(1, len(gradient.shape)))
        if axes:
            squares = ops.mean(squares, axis=axes)
        accumulator = slots["accumulator"] + squares
        rate = learning_rate / (ops.sqrt(accumulator) + self.epsilon)
        for axis in axes:
            rate = ops.expand_dims(rate, axis)
        return weight - gradient * rate, {"accumulator": accumulator}

    def get_config(self):
        return {
            **super().get_config(),
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }
