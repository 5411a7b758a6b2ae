"""`SparseLossScaleOptimizer`, dynamic loss scaling without whole tables."""

import keras

from keras_recsys.optimizers._own_variables import OwnVariables
from keras_recsys.optimizers._sparse_gradients import check_backend, is_sparse


@keras.saving.register_keras_serializable(package="keras_recsys")
class SparseLossScaleOptimizer(OwnVariables, keras.optimizers.LossScaleOptimizer):
    """Keras' dynamic loss scaling, which looks at the rows of a gradient alone.

    To see whether a gradient is finite, `keras.optimizers.LossScaleOptimizer` makes a
    boolean as large as the table of every gradient with rows. This one looks at the
    rows. The models of our builders wrap their optimizer in it under `mixed_float16`;
    for your own model, pass it to `compile`, or Keras wraps the optimizer in its own.

    Args:
        inner_optimizer: The optimizer that gets the unscaled gradients.
        initial_scale: As in Keras. Defaults to `2.0**15`.
        dynamic_growth_steps: As in Keras. Defaults to `2000`.
        **kwargs: `name`.

    Raises:
        RuntimeError: If the backend is not TensorFlow.

    Example:
    >>> optimizer = SparseLossScaleOptimizer(keras.optimizers.SGD(0.1))
    >>> float(optimizer.initial_scale)
    32768.0
    """

    def __init__(
        self,
        inner_optimizer,
        initial_scale=2.0**15,
        dynamic_growth_steps=2000,
        **kwargs,
    ):
        check_backend(type(self).__name__)
        super().__init__(
            inner_optimizer,
            initial_scale=initial_scale,
            dynamic_growth_steps=dynamic_growth_steps,
            **kwargs,
        )

    def check_finite(self, grads):
        """Whether every number of every gradient is finite, a boolean tensor."""
        return super().check_finite([g.values if is_sparse(g) else g for g in grads])
