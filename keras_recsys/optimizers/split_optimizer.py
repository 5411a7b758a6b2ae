"""`SplitOptimizer`, one optimizer for tables and another for the rest."""

import keras

from keras_recsys.optimizers._own_variables import OwnVariables
from keras_recsys.optimizers._sparse_gradients import check_backend, unscale


@keras.saving.register_keras_serializable(package="keras_recsys")
class SplitOptimizer(OwnVariables, keras.optimizers.Optimizer):
    """Trains embedding tables with one optimizer and all other weights with another.

    Args:
        table_optimizer: Optimizer of the tables, such as `RowWiseAdagrad(0.05)`, or
            what `keras.optimizers.get` takes.
        dense_optimizer: Optimizer of the other weights, such as
            `keras.optimizers.Adam(0.001)`. It may have `use_ema`.
        tables: What is a table: `None` for the tables of this library's embedding
            layers and of `keras.layers.Embedding`, or a registered function from
            `keras.Variable` to bool. Defaults to `None`.
        loss_scale_factor: Positive float by which the loss is multiplied and all
            gradients are divided, or `None`. Defaults to `None`.
        name: Name of the optimizer.

    Clipping acts on the gradients of each optimizer for itself, weight decay on its
    weights. `learning_rate` is that of `dense_optimizer`; setting it multiplies that of
    `table_optimizer` by the same factor, so that callbacks lower both.

    Raises:
        RuntimeError: If the backend is not TensorFlow.
        TypeError: If `tables` is not callable.
        ValueError: If one of the optimizers scales the loss or accumulates gradients,
            or both are the same object.

    Example:
    >>> from keras_recsys.optimizers import RowWiseAdagrad
    >>> optimizer = SplitOptimizer(RowWiseAdagrad(0.05), keras.optimizers.Adam(0.001))
    >>> round(float(optimizer.learning_rate), 6)
    0.001
    """

    def __init__(
        self,
        table_optimizer,
        dense_optimizer,
        *,
        tables=None,
        loss_scale_factor=None,
        name="split_optimizer",
    ):
        check_backend(type(self).__name__)
        table_optimizer = keras.optimizers.get(table_optimizer)
        dense_optimizer = keras.optimizers.get(dense_optimizer)
        if table_optimizer is dense_optimizer:
            raise ValueError(
                "`dense_optimizer` must be another object than `table_optimizer`. "
                f"Received: {table_optimizer!r} twice."
            )
        for key, inner in (
            ("table_optimizer", table_optimizer),
            ("dense_optimizer", dense_optimizer),
        ):
            if isinstance(inner, keras.optimizers.LossScaleOptimizer):
                raise ValueError(
                    f"`{key}` must not scale the loss, which both share: wrap the "
                    "`SplitOptimizer` in the `SparseLossScaleOptimizer`. "
                    f"Received: {key}={inner!r}."
                )
            for setting in ("loss_scale_factor", "gradient_accumulation_steps"):
                value = getattr(inner, setting)
                if value is not None:
                    raise ValueError(
                        f"`{key}` must have no `{setting}`. "
                        f"Received: {setting}={value!r}."
                    )
        if tables is not None and not callable(tables):
            raise TypeError(
                "`tables` must be None or a function from variable to bool. "
                f"Received: tables={tables!r}."
            )
        super().__init__(
            learning_rate=0.0, loss_scale_factor=loss_scale_factor, name=name
        )
        self.table_optimizer = table_optimizer
        self.dense_optimizer = dense_optimizer
        self.tables = tables

    def build(self, variables):
        """Gives each optimizer its variables."""
        if self.built:
            return
        super().build(variables)
        chosen = self.tables or _is_table
        self._is_table = {self._var_key(v): bool(chosen(v)) for v in variables}
        for optimizer, part in self._parts(variables):
            optimizer.build(part)

    @property
    def variables(self):
        """Own state, then that of the tables, then that of the other weights."""
        return (
            self._variables
            + self.table_optimizer.variables
            + self.dense_optimizer.variables
        )

    @property
    def learning_rate(self):
        """That of `dense_optimizer`; set, it scales that of `table_optimizer` too."""
        return self.dense_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        if callable(learning_rate):
            raise TypeError(
                "`learning_rate` must be a number; give schedules to the two "
                f"optimizers when you make them. Received: {learning_rate!r}."
            )
        old = float(self.dense_optimizer.learning_rate)
        new = float(learning_rate)
        if old == 0:
            raise ValueError(
                "`learning_rate` must not be set where it is 0, since the other is to "
                "change by the same factor: set `table_optimizer.learning_rate` and "
                "`dense_optimizer.learning_rate` by hand. "
                f"Received: learning_rate={new!r}."
            )
        # First, since it raises where the rate is a schedule.
        self.dense_optimizer.learning_rate = new
        self.table_optimizer.learning_rate = (
            float(self.table_optimizer.learning_rate) * new / old
        )

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Excludes variables from the weight decay of both; see Keras' own method."""
        for optimizer in (self.table_optimizer, self.dense_optimizer):
            optimizer.exclude_from_weight_decay(var_list, var_names)

    def apply(self, grads, trainable_variables=None):
        """Updates the variables by their gradients; see Keras' own method."""
        if len(grads) == 0:
            return
        if trainable_variables is None:
            if not self.built:
                raise ValueError(
                    "`trainable_variables` must be given to an optimizer that is not "
                    "built. Received: trainable_variables=None."
                )
            trainable_variables = self._trainable_variables
        trainable_variables = list(trainable_variables)
        if not self.built:
            self.build(trainable_variables)
        self._check_variables_are_known(trainable_variables)
        grads, variables = self._filter_empty_gradients(grads, trainable_variables)
        grads = unscale(grads, self.loss_scale_factor)
        gradients = {self._var_key(v): g for v, g in zip(variables, grads, strict=True)}
        for optimizer, part in self._parts(variables):
            if part:
                optimizer.apply([gradients[self._var_key(v)] for v in part], part)
        self._iterations.assign_add(1)

    def finalize_variable_values(self, var_list):
        """Sets averaged weights, for an optimizer that keeps averages."""
        for optimizer, part in self._parts(var_list):
            optimizer.finalize_variable_values(part)

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            "table_optimizer": serialize(self.table_optimizer),
            "dense_optimizer": serialize(self.dense_optimizer),
            "tables": None if self.tables is None else serialize(self.tables),
            "loss_scale_factor": self.loss_scale_factor,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Makes the optimizer of a `get_config`."""
        config = dict(config)
        for key in ("table_optimizer", "dense_optimizer", "tables"):
            config[key] = keras.saving.deserialize_keras_object(
                config[key], custom_objects=custom_objects
            )
        return cls(**config)

    def _parts(self, variables):
        for optimizer, wanted in (
            (self.table_optimizer, True),
            (self.dense_optimizer, False),
        ):
            yield (
                optimizer,
                [v for v in variables if self._is_table[self._var_key(v)] == wanted],
            )


def _is_table(variable):
    """Whether a variable is the table of an embedding layer, ours or Keras' own."""
    # Keras names the only weight of its `Embedding` so; a layer has no second one.
    return getattr(variable, "is_embedding_table", variable.name == "embeddings")
