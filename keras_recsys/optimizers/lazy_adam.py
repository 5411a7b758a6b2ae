"""`LazyAdam`, Adam on the rows of the batch."""

import keras
from keras import ops

from keras_recsys._checks import check_positive, check_rate
from keras_recsys.optimizers._sparse_optimizer import SparseOptimizer


@keras.saving.register_keras_serializable(package="keras_recsys")
class LazyAdam(SparseOptimizer):
    """Adam that updates the rows of a table that the batch has read, and no other.

    With `t` the number of the step and `g` the sum of the gradients of a row,

        m = m + (1 - beta_1) (g - m)
        v = v + (1 - beta_2) (g^2 - v)
        rate = learning_rate sqrt(1 - beta_2^t) / (1 - beta_1^t)
        row = row - rate m / (sqrt(v) + epsilon)

    For weights whose gradient has no rows it is `keras.optimizers.Adam`, so it can
    train a whole model. For a row in its first batch it is Adam too. Later it differs:
    in the steps without the row Adam would go on to move it by its momentum and let
    `m` and `v` decay; here row, `m` and `v` wait as they are. So do those of a row that
    was read but has a gradient of 0, such as padding.

    Args:
        learning_rate: Positive float, schedule or callable. Defaults to `0.001`.
        beta_1: Float in `[0, 1)`, decay of `m`. Defaults to `0.9`.
        beta_2: Float in `[0, 1)`, decay of `v`. Defaults to `0.999`.
        epsilon: Positive float. Defaults to `1e-7`.
        amsgrad: Whether the largest `v` so far divides, as in AMSGrad; one more state
            of the size of the table. Defaults to `False`.
        **kwargs: `name`, `clipnorm`, `global_clipnorm`, `clipvalue`,
            `loss_scale_factor` and `weight_decay` of `keras.optimizers.Optimizer`.
            Norms are those of the summed rows, as for a dense gradient; weight decay
            shrinks the rows of the batch alone.

    Raises:
        RuntimeError: If the backend is not TensorFlow.
        ValueError: If an argument is out of its range, or is `use_ema` or
            `gradient_accumulation_steps`, which touch whole tables.

    Example:
    >>> LazyAdam(0.01, amsgrad=True).amsgrad
    True

    Reference:
        Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015;
        Reddi et al., "On the Convergence of Adam and Beyond", ICLR 2018. Differs from
        the papers: rows without a gradient are left alone; `epsilon` is the "epsilon
        hat" of section 2, as in Keras.
    """

    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-7,
        amsgrad=False,
        **kwargs,
    ):
        super().__init__(learning_rate, **kwargs)
        self.beta_1 = check_rate("beta_1", beta_1)
        self.beta_2 = check_rate("beta_2", beta_2)
        self.epsilon = check_positive("epsilon", epsilon)
        self.amsgrad = bool(amsgrad)

    def slots(self):
        names = ("momentum", "velocity", *(["velocity_hat"] if self.amsgrad else []))
        return dict.fromkeys(names, 0.0)

    def update_rows(self, gradient, weight, slots, learning_rate, moves):
        step = ops.cast(self.iterations + 1, gradient.dtype)
        beta_1, beta_2 = (
            ops.cast(b, gradient.dtype) for b in (self.beta_1, self.beta_2)
        )
        m = slots["momentum"]
        m = m + (gradient - m) * ((1 - self.beta_1) * moves)
        v = slots["velocity"]
        v = v + (ops.square(gradient) - v) * ((1 - self.beta_2) * moves)
        state = {"momentum": m, "velocity": v}
        if self.amsgrad:
            v = state["velocity_hat"] = ops.maximum(slots["velocity_hat"], v)
        rate = (
            learning_rate
            * ops.sqrt(1 - ops.power(beta_2, step))
            / (1 - ops.power(beta_1, step))
        )
        return weight - m * (rate * moves) / (ops.sqrt(v) + self.epsilon), state

    def get_config(self):
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "amsgrad": self.amsgrad,
        }
