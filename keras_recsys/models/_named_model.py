"""The class of the models that builders return."""

import warnings

import keras
import numpy as np
from keras import ops

from keras_recsys import optimizers
from keras_recsys._lookup import has_int64, narrow_array
from keras_recsys.layers import TimeBucketEmbedding
from keras_recsys.optimizers._sparse_optimizer import SparseOptimizer


@keras.saving.register_keras_serializable(package="keras_recsys")
class NamedModel(keras.Model):
    """A functional model that matches its inputs by name and loses no bit of an id.

    A plain functional model sorts a dict with an unknown key and assigns its values by
    position, cuts int64 ids to int32, and floats to integers. This one refuses or keeps
    them: an id that int32 cannot hold, or a fraction, becomes -1, which every table
    treats as out of range. A time that an input of times cannot hold becomes the
    largest that it can.

    `compile` also knows what suits embedding tables; see there.
    """

    def compile(self, optimizer="rmsprop", *args, jit_compile="auto", **kwargs):
        """Configures the model for training, as `keras.Model.compile` does.

        Args:
            optimizer: As in Keras; or `"auto"`, which on TensorFlow is
                `keras_recsys.optimizers.LazyAdam()`, whose step costs the same for any
                vocabulary, and `keras.optimizers.Adam()` elsewhere.
            *args: As in Keras.
            jit_compile: As in Keras, but that `"auto"` does not choose XLA for the
                optimizers of `keras_recsys.optimizers`, which it makes slower.
            **kwargs: As in Keras. Under `mixed_float16`, `auto_scale_loss` wraps the
                optimizer in `SparseLossScaleOptimizer`.
        """
        tensorflow = keras.config.backend() == "tensorflow"
        if optimizer == "auto":
            optimizer = optimizers.LazyAdam() if tensorflow else "adam"
        optimizer = keras.optimizers.get(optimizer)
        if (
            tensorflow
            and kwargs.get("auto_scale_loss", True)
            and any(x.dtype_policy.name == "mixed_float16" for x in self.layers)
            and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        ):
            optimizer = optimizers.SparseLossScaleOptimizer(optimizer)
        if jit_compile == "auto" and _is_sparse(optimizer):
            jit_compile = False
        super().compile(optimizer, *args, jit_compile=jit_compile, **kwargs)
        # TensorFlow traces a step that makes variables twice.
        if self.built and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)

    def fit(self, x=None, *args, steps_per_epoch=None, **kwargs):
        """Trains the model, as `keras.Model.fit` does.

        The end of a dataset whose length is not known beforehand is the end of an
        epoch; Keras warns there that the input ran out of data, and this does not.

        Args:
            x: As in Keras.
            *args: As in Keras.
            steps_per_epoch: As in Keras.
            **kwargs: As in Keras.

        Returns:
            A `keras.callbacks.History`.
        """
        with warnings.catch_warnings():
            if steps_per_epoch is None and hasattr(x, "cardinality"):
                warnings.filterwarnings("ignore", "Your input ran out of data")
            return super().fit(x, *args, steps_per_epoch=steps_per_epoch, **kwargs)

    def compile_from_config(self, config):
        """Compiles a loaded model; Keras leaves models with an own `compile` as is."""
        self.compile(**keras.saving.deserialize_keras_object(config))

    def __call__(self, inputs, *args, **kwargs):
        """Calls the model on a dict from input name to tensor."""
        if isinstance(inputs, dict):
            missing = [name for name in self.input if name not in inputs]
            unknown = [name for name in inputs if name not in self.input]
            if missing or unknown:
                raise ValueError(
                    f"`inputs` of model {self.name!r} must have the keys "
                    f"{list(self.input)}. Received: keys {list(inputs)}; missing "
                    f"{missing}, unknown {unknown}."
                )
            wraps = any(getattr(x, "out_of_range", None) == "mod" for x in self.layers)
            times = [x.input for x in self.layers if isinstance(x, TimeBucketEmbedding)]
            inputs = {
                name: _fitted(
                    name, inputs[name], spec, wraps, any(x is spec for x in times)
                )
                for name, spec in self.input.items()
            }
        return super().__call__(inputs, *args, **kwargs)


def _is_sparse(optimizer):
    """Whether an optimizer, or one inside it, updates rows."""
    inner = ("inner_optimizer", "table_optimizer", "dense_optimizer")
    return isinstance(optimizer, SparseOptimizer) or any(
        _is_sparse(getattr(optimizer, name))
        for name in inner
        if hasattr(optimizer, name)
    )


def _fitted(name, x, spec, wraps, is_time):
    """`x` in dtype and rank of the input `spec`, without loss.

    `wraps` says whether a table takes ids modulo its size, -1 included; `is_time`
    whether the input is one of times.

    Raises:
        TypeError: If the dtype is of another kind.
        ValueError: If the shape does not fit.
    """
    if isinstance(x, keras.KerasTensor):
        return x
    if not hasattr(x, "dtype"):
        x = ops.convert_to_tensor(x)
    ids = spec.dtype in ("int32", "int64")
    if ids:
        x = _cut_times(x, spec.dtype) if is_time else x
        narrow = narrow_array(x)
        if wraps and narrow is not x and np.any(narrow != x):
            raise ValueError(
                f"Input {name!r} must hold ids of 32 bits on JAX where a table has "
                "`out_of_range='mod'`; set `jax.config.update('jax_enable_x64', True)` "
                f"for larger ones. Received: {x[narrow != x].flat[0]}."
            )
        x = narrow
    try:
        dtype = keras.backend.standardize_dtype(x.dtype)
    except ValueError:
        dtype = str(x.dtype)
    floats = "float" in dtype
    if not ("int" in dtype or (floats and not (ids and isinstance(x, np.ndarray)))):
        wanted = "ids, integers" if ids else "numbers"
        raise TypeError(
            f"Input {name!r} must hold {wanted}; a `Vocabulary` makes ids of raw "
            f"values. Received: dtype {dtype}."
        )
    if ids and floats:
        # Keras builds models on floats under a strategy; fractions are no ids.
        x = ops.where(x == ops.floor(x), x, -ops.ones_like(x))
    if spec.dtype == "int32" and dtype in ("int64", "uint32", "uint64"):
        # Signed first: a comparison must not wrap either.
        x = ops.cast(x, "int64")
        fits = ops.logical_and(x >= -(2**31), x < 2**31)
        x = ops.where(fits, x, -ops.ones_like(x))
    x = ops.cast(x, spec.dtype)
    # TensorFlow forgets the rank after calls with vectors and with columns of one.
    rank = x.shape.rank if hasattr(x.shape, "rank") else len(x.shape)
    if len(spec.shape) == 1 and (rank is None or (rank == 2 and x.shape[1] == 1)):
        return ops.reshape(x, (-1,))
    if rank is not None and rank != len(spec.shape):
        raise ValueError(
            f"Input {name!r} must be of shape {tuple(spec.shape)}. "
            f"Received: shape {tuple(x.shape)}."
        )
    return x


def _cut_times(x, dtype):
    """Times, those above the largest number of the integer `dtype` made that one."""
    wide = "int64" if has_int64() else "int32"
    largest = min(np.iinfo(dtype).max, np.iinfo(wide).max)
    if isinstance(x, np.ndarray):
        if x.dtype.kind in "iu" and np.iinfo(x.dtype).max > largest:
            return np.minimum(x, largest)
        return x
    given = keras.backend.standardize_dtype(x.dtype)
    if "float" in given:
        x = ops.minimum(x, ops.cast(2.0**62, x.dtype))
    elif "int" not in given or np.iinfo(given).max <= largest:
        return x
    x = ops.cast(x, wide)
    above = x > largest
    if given.startswith("uint"):  # the cast of the largest is negative
        above = ops.logical_or(above, x < 0)
    return ops.where(above, ops.full_like(x, largest), x)
