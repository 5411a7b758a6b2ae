"""`SparseAdagrad`, Adagrad on the rows of the batch."""

import keras
from keras import ops

from keras_recsys._checks import check_non_negative, check_positive
from keras_recsys.optimizers._sparse_optimizer import SparseOptimizer


@keras.saving.register_keras_serializable(package="keras_recsys")
class SparseAdagrad(SparseOptimizer):
    """Adagrad that updates the rows of a table that the batch has read.

    With `g` the sum of the gradients of a row,

        accumulator = accumulator + g^2
        row = row - learning_rate g / sqrt(accumulator + epsilon)

    These are the numbers of `keras.optimizers.Adagrad`, which reads and writes the
    whole table at each step and adds the squares of duplicates instead of squaring
    their sum.

    Args:
        learning_rate: Positive float, schedule or callable. Defaults to `0.01`.
        initial_accumulator_value: Float, at least 0. Defaults to `0.1`.
        epsilon: Positive float. Defaults to `1e-7`.
        **kwargs: As in `LazyAdam`.

    Raises:
        RuntimeError: If the backend is not TensorFlow.
        ValueError: As for `LazyAdam`.

    Example:
    >>> SparseAdagrad(0.05).initial_accumulator_value
    0.1

    Reference:
        Duchi et al., "Adaptive Subgradient Methods for Online Learning and Stochastic
        Optimization", JMLR 2011.
    """

    def __init__(
        self,
        learning_rate=0.01,
        initial_accumulator_value=0.1,
        epsilon=1e-7,
        **kwargs,
    ):
        super().__init__(learning_rate, **kwargs)
        self.initial_accumulator_value = check_non_negative(
            "initial_accumulator_value", initial_accumulator_value
        )
        self.epsilon = check_positive("epsilon", epsilon)

    def slots(self):
        return {"accumulator": self.initial_accumulator_value}

    def update_rows(self, gradient, weight, slots, learning_rate, moves):
        accumulator = slots["accumulator"] + ops.square(gradient)
        step = learning_rate * gradient / ops.sqrt(accumulator + self.epsilon)
        return weight - step, {"accumulator": accumulator}

    def get_config(self):
        return {
            **super().get_config(),
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }
