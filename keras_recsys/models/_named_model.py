"""The class of the models that builders return."""

import keras
import numpy as np
from keras import ops

from keras_recsys._lookup import narrow_array


@keras.saving.register_keras_serializable(package="keras_recsys")
class NamedModel(keras.Model):
    """A functional model that matches its inputs by name and loses no bit of an id.

    A plain functional model sorts a dict with an unknown key and assigns its values by
    position, cuts int64 ids to int32, and floats to integers. This one refuses or keeps
    them: an id that int32 cannot hold, or a fraction, becomes -1, which every table
    treats as out of range.
    """

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
            inputs = {
                name: _fitted(name, inputs[name], spec)
                for name, spec in self.input.items()
            }
        return super().__call__(inputs, *args, **kwargs)


def _fitted(name, x, spec):
    """`x` in dtype and rank of the input `spec`, without loss.

    Raises:
        TypeError: If the dtype is of another kind.
        ValueError: If the shape does not fit.
    """
    if isinstance(x, keras.KerasTensor):
        return x
    if not hasattr(x, "dtype"):
        x = ops.convert_to_tensor(x)
    x = narrow_array(x)
    try:
        dtype = keras.backend.standardize_dtype(x.dtype)
    except ValueError:
        dtype = str(x.dtype)
    ids = spec.dtype in ("int32", "int64")
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
