"""`SparseFtrl`, FTRL-proximal on the rows of the batch."""

import keras
from keras import ops

from keras_recsys._checks import check_non_negative
from keras_recsys.optimizers._sparse_optimizer import SparseOptimizer


@keras.saving.register_keras_serializable(package="keras_recsys")
class SparseFtrl(SparseOptimizer):
    """Follow-the-regularized-leader on the rows of a table that the batch has read.

    With `g` the sum of the gradients of a row and `r` the learning rate,

        n' = n + g^2
        z = z + g - (sqrt(n') - sqrt(n)) / r * row
        row = -sign(z) max(|z| - l1, 0) / ((beta + sqrt(n')) / r + 2 l2)

    `l1` makes weights exactly 0: the classic of linear models on many rare features.
    The numbers of a row in the batch are those of `keras.optimizers.Ftrl`, which
    touches the whole table at each step, and so turns rows that were in no batch to 0;
    here they keep their initial value.

    Args:
        learning_rate: Positive float, schedule or callable. Defaults to `0.05`.
        initial_accumulator_value: Float, at least 0, first `n`. Defaults to `0.1`.
        l1: Float, at least 0. Defaults to `0.0`.
        l2: Float, at least 0. Defaults to `0.0`.
        beta: Float, at least 0. Defaults to `0.0`.
        **kwargs: As in `LazyAdam`, without `weight_decay`: `l2` is its place.

    Raises:
        RuntimeError: If the backend is not TensorFlow.
        ValueError: As for `LazyAdam`, or if `weight_decay` is given, or
            `initial_accumulator_value`, `l2` and `beta` are all 0.

    Example:
    >>> SparseFtrl(0.1, l1=0.01).l1
    0.01

    Reference:
        McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013,
        algorithm 1. Differs from the paper: `l2` counts twice, as in Keras, and the
        accumulator does not start at 0.
    """

    def __init__(
        self,
        learning_rate=0.05,
        initial_accumulator_value=0.1,
        l1=0.0,
        l2=0.0,
        beta=0.0,
        **kwargs,
    ):
        if kwargs.get("weight_decay"):
            raise ValueError(
                "`weight_decay` must be left out of `SparseFtrl`, whose weights follow "
                "from its state; use `l2`. "
                f"Received: weight_decay={kwargs['weight_decay']!r}."
            )
        super().__init__(learning_rate, **kwargs)
        self.initial_accumulator_value = check_non_negative(
            "initial_accumulator_value", initial_accumulator_value
        )
        self.l1 = check_non_negative("l1", l1)
        self.l2 = check_non_negative("l2", l2)
        self.beta = check_non_negative("beta", beta)
        if not (self.initial_accumulator_value or self.l2 or self.beta):
            raise ValueError(
                "One of `initial_accumulator_value`, `l2` and `beta` must be above 0, "
                "or a row without a gradient is 0 / 0. Received: all 0."
            )

    def slots(self):
        return {"accumulator": self.initial_accumulator_value, "linear": 0.0}

    def update_rows(self, gradient, weight, slots, learning_rate, moves):
        accumulator = slots["accumulator"] + ops.square(gradient)
        root = ops.sqrt(accumulator)
        sigma = (root - ops.sqrt(slots["accumulator"])) / learning_rate
        linear = slots["linear"] + gradient - sigma * weight
        quadratic = (root + self.beta) / learning_rate + 2 * self.l2
        new = (ops.clip(linear, -self.l1, self.l1) - linear) / quadratic
        weight = ops.where(moves > 0, new, weight)
        return weight, {"accumulator": accumulator, "linear": linear}

    def get_config(self):
        return {
            **super().get_config(),
            "initial_accumulator_value": self.initial_accumulator_value,
            "l1": self.l1,
            "l2": self.l2,
            "beta": self.beta,
        }
