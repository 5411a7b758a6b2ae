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

    def __call__(self, inputs, *args, **kwargs):
        """Calls the model on a dict from input name to tensor.

        Args:
            inputs: Dict of tensors.
            *args: As in Keras.
            **kwargs: As in Keras.

        Returns:
            Dict from `"forecast"` to a tensor, `(batch_size, pred_len, num_outputs)`.

        Raises:
            TypeError: If the calendar features are of another kind.
        """
        given = inputs.get("calendar") if isinstance(inputs, dict) else None
        if "calendar" in self.input and hasattr(given, "dtype"):
            _check_calendar(given, self.input["calendar"].dtype)
        return super().__call__(inputs, *args, **kwargs)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The loss, as in `keras.Model`.

        Args:
            x: As in Keras.
            y: Tensor, `(batch_size, pred_len, num_outputs)`, or a dict from
                `"forecast"` to it, or a list of it.
            y_pred: As in Keras.
            sample_weight: Tensor, `(batch_size,)`, a weight for each window, or
                `(batch_size, pred_len)`; in a dict where `y` is in one.
            training: As in Keras.

        Returns:
            A scalar tensor.

        Raises:
            ValueError: If `y` is of another shape.
        """
        y, weight = _fitted(y, sample_weight, y_pred["forecast"])
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
        y, weight = _fitted(y, sample_weight, y_pred["forecast"])
        return super().compute_metrics(x, y, y_pred, weight)


def _check_calendar(given, wanted):
    """Checks the kind of calendar features, which a cast would turn into others.

    Raises:
        TypeError: If they are integers where the model reads floats, or floats where it
            reads integers.
    """
    dtype = keras.backend.standardize_dtype(given.dtype)
    if dtype == "float64":  # of which Keras makes a model under a strategy
        return
    if ("int" in dtype) != ("int" in wanted):
        raise TypeError(
            "`calendar` must hold the features that the model was built for, in "
            f"{wanted}: those of 'timeF' are float32, of other kinds int32. "
            f"Received: dtype {dtype}."
        )


def _fitted(y, weight, forecast):
    """Targets of the shape of the forecast, weights with an axis of steps.

    Raises:
        ValueError: If the targets are of another shape.
    """
    if isinstance(y, dict):
        y = {name: _target(x, forecast) for name, x in y.items()}
    elif y is not None:
        y = _target(_only(y), forecast)
    weight = _only(weight)
    if isinstance(weight, dict):
        weight = {name: _by_step(x, forecast) for name, x in weight.items()}
    elif weight is not None:
        weight = _by_step(weight, forecast)
    return y, weight


def _only(x):
    """The one tensor of a list."""
    is_list = isinstance(x, list | tuple) and len(x) == 1 and hasattr(x[0], "shape")
    return x[0] if is_list else x


def _target(y, forecast):
    shape = getattr(y, "shape", None)
    wanted = tuple(forecast.shape)
    if getattr(shape, "rank", 3) is None or None in tuple(shape or ())[1:]:
        # TensorFlow forgets shapes. Tensors that are joined must be as wide.
        return ops.concatenate([y, ops.cast(forecast[:0], y.dtype)], axis=0)
    if shape is not None and tuple(shape)[1:] != wanted[1:]:
        raise ValueError(
            f"`y` must be of shape (batch_size, {wanted[1]}, {wanted[2]}), as the "
            "forecast is; windows of `task='MS'` go with `num_outputs=1`. "
            f"Received: shape {tuple(shape)}."
        )
    return y


def _by_step(weight, forecast):
    return ops.reshape(weight, (ops.shape(forecast)[0], -1))
