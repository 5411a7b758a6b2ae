"""The class of the models that builders of forecasters return."""

import keras
from keras import ops

from keras_recsys.models._named_model import NamedModel


@keras.saving.register_keras_serializable(package="keras_recsys")
class ForecastModel(NamedModel):
    """A `NamedModel` that learns from what it was built for alone.

    Losses of Keras would compare one channel with several, and weigh steps by what was
    meant for windows; calendar features of another kind would be cast.
    """

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The loss, as in `keras.Model`.

        Args:
            x: As in Keras.
            y: Tensor, `(batch_size, pred_len, num_outputs)`, or a dict from
                `"forecast"` to it.
            y_pred: As in Keras.
            sample_weight: Tensor, `(batch_size,)`, a weight for each window, or
                `(batch_size, pred_len)`.
            training: As in Keras.

        Returns:
            A scalar tensor.

        Raises:
            TypeError: If the calendar features of `x` are of another kind.
            ValueError: If `y` is of another shape.
        """
        check_calendar(self, x)
        target = y.get("forecast") if isinstance(y, dict) else y
        shape = tuple(getattr(target, "shape", None) or ())
        wanted = tuple(self.output["forecast"].shape)
        fits = len(shape) == 3 and all(
            given in (None, size)
            for given, size in zip(shape[1:], wanted[1:], strict=True)
        )
        if shape and not fits:
            raise ValueError(
                f"`y` must be of shape (batch_size, {wanted[1]}, {wanted[2]}), as the "
                "forecast is; windows of `task='MS'` go with `num_outputs=1`. "
                f"Received: shape {shape}."
            )
        weight = _by_window(sample_weight)
        return super().compute_loss(x, y, y_pred, weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The metrics, as in `keras.Model`.

        Args:
            x: As in Keras.
            y: As in `compute_loss`.
            y_pred: As in Keras.
            sample_weight: As in `compute_loss`.

        Returns:
            A dict from name to value.
        """
        return super().compute_metrics(x, y, y_pred, _by_window(sample_weight))


def check_calendar(model, inputs):
    """Checks the kind of calendar features, which a cast would turn into others.

    Args:
        model: `keras.Model`.
        inputs: What it is called with.

    Raises:
        TypeError: If they are integers where the model reads floats, or floats where it
            reads integers.
    """
    known = getattr(model, "input", None)  # which a subclassed model lacks
    if not (isinstance(known, dict) and isinstance(inputs, dict)):
        return
    wanted, given = (x.get("calendar") for x in (known, inputs))
    if wanted is None or not hasattr(given, "dtype"):
        return
    dtype = keras.backend.standardize_dtype(given.dtype)
    if dtype == "float64":  # of which Keras makes a model under a strategy
        return
    if ("int" in dtype) != ("int" in wanted.dtype):
        raise TypeError(
            "`calendar` must hold the features that the model was built for, in "
            f"{wanted.dtype}: those of 'timeF' are float32, of other kinds int32. "
            f"Received: dtype {dtype}."
        )


def _by_window(weight):
    """Weights of windows with an axis of steps."""
    if isinstance(weight, dict):
        return {name: _by_window(x) for name, x in weight.items()}
    if weight is None or len(weight.shape) != 1:
        return weight
    return ops.expand_dims(weight, -1)
