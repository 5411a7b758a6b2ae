"""The frame of models that forecast a time series."""

import keras
from keras import ops

from keras_recsys import layers
from keras_recsys._calendar import EMBEDDINGS, INTEGER, SCALED, Frequency
from keras_recsys._checks import check_choice, check_int
from keras_recsys._initializers import FanInUniform
from keras_recsys.models.forecasting._forecast_model import ForecastModel

NORMALIZATIONS = ("instance", "last")
INITIAL_VALUES = ("pytorch", "keras")


class ForecastFrame:
    """What is around a forecaster: its inputs, a normalization, its output.

    Args:
        num_channels: Positive int, channels of the series.
        seq_len: Positive int, known steps.
        pred_len: Positive int, steps to forecast.
        num_outputs: Positive int, how many of the last channels are forecast; `None`
            for all.
        calendar: Optional tuple of the frequency and the kind of the embedding of the
            calendar, which make a second input.
        normalization: `None` or one of `NORMALIZATIONS`.
        inputs: Optional dict from input name to `KerasTensor`.
        name: Name of the model and prefix of its layer names.

    Attributes:
        values: Float tensor, `(batch_size, seq_len, num_channels)`, normalized.
        calendar: Tensor, `(batch_size, seq_len + pred_len, num_features)`, or `None`.
    """

    def __init__(
        self,
        num_channels,
        *,
        seq_len,
        pred_len,
        num_outputs=None,
        calendar=None,
        normalization=None,
        inputs=None,
        name,
    ):
        num_channels = check_int("num_channels", num_channels)
        self.seq_len = check_int("seq_len", seq_len)
        self.pred_len = check_int("pred_len", pred_len)
        if num_outputs is None:
            num_outputs = num_channels
        self.num_outputs = check_int("num_outputs", num_outputs)
        if num_outputs > num_channels:
            raise ValueError(
                f"`num_outputs` must be at most `num_channels`, {num_channels}. "
                f"Received: num_outputs={num_outputs!r}."
            )
        self.name = name
        specs = {"values": ((seq_len, num_channels), "float32")}
        if calendar is not None:
            frequency, kind = Frequency.parse(calendar[0]), calendar[1]
            check_choice("calendar_embedding", kind, EMBEDDINGS)
            fields = (SCALED if kind == "timeF" else INTEGER)[frequency.unit]
            dtype = "float32" if kind == "timeF" else "int32"
            specs["calendar"] = ((seq_len + pred_len, len(fields)), dtype)
        self.inputs = _inputs(specs, inputs)
        self.values = self.inputs["values"]
        self.calendar = self.inputs.get("calendar")
        self._normalization = None
        if normalization is not None:
            check_choice("normalization", normalization, NORMALIZATIONS)
            self._normalization = layers.ReversibleNormalization(
                normalization, dtype="float32", name=f"{name}_normalization"
            )
            self.values = self._normalization(self.values)

    def model_of(self, forecast):
        """The model that ends in a forecast of the normalized values.

        Args:
            forecast: Tensor, `(batch_size, pred_len, num_outputs)`.

        Returns:
            A `ForecastModel`.
        """
        if self._normalization is not None:
            forecast = self._normalization(
                forecast, reference=self.inputs["values"], inverse=True
            )
        output = keras.layers.Identity(dtype="float32", name=f"{self.name}_forecast")
        outputs = {"forecast": output(forecast)}
        return ForecastModel(self.inputs, outputs, name=self.name)

    def outputs_of(self, values):
        """The channels that are forecast."""
        if values.shape[-1] == self.num_outputs:
            return values
        name = f"{self.name}_targets"
        return LastChannels(self.num_outputs, dtype=values.dtype, name=name)(values)


def initializers(initial_values):
    """Initializers of kernels and biases, as arguments of a layer.

    Args:
        initial_values: `"pytorch"` or `"keras"`.
    """
    check_choice("initial_values", initial_values, INITIAL_VALUES)
    if initial_values == "keras":
        return {}
    return {
        "kernel_initializer": FanInUniform(),
        "bias_initializer": FanInUniform(),
    }


def linear_over_time(frame, values, name, individual=False):
    """A linear map from the known steps to those to forecast.

    Args:
        frame: `ForecastFrame`.
        values: Tensor, `(batch_size, seq_len, num_outputs)`.
        name: Name of the layer, behind that of the model.
        individual: Whether each channel has a map of its own.
    """
    uniform = FanInUniform(fan_in=frame.seq_len)
    layer = keras.layers.EinsumDense(
        "blc,clp->bpc" if individual else "blc,lp->bpc",
        output_shape=(frame.pred_len, frame.num_outputs),
        bias_axes="pc" if individual else "p",
        kernel_initializer=uniform,
        bias_initializer=FanInUniform(fan_in=frame.seq_len),
        dtype="float32",  # the last layer, and of little cost
        name=f"{frame.name}_{name}",
    )
    return layer(values)


@keras.saving.register_keras_serializable(package="keras_recsys")
class TakeSteps(keras.layers.Layer):
    """Some steps of a series, in a given order, and steps of zeros behind them.

    Args:
        start: First step; negative from the end.
        stop: The step after the last, or `None` for the end.
        period: How many steps are repeated over and over, or `None`.
        length: Number of steps of the output, of repeated ones or filled up with zeros.
    """

    def __init__(self, start=0, stop=None, period=None, length=None, **kwargs):
        super().__init__(**kwargs)
        self.start, self.stop, self.period = start, stop, period
        self.length = length
        self.autocast = False
        self.supports_masking = False

    def call(self, inputs):
        x = inputs[:, self.start : self.stop]
        if self.period is not None:
            times = -(-self.length // self.period)
            return ops.tile(x, (1, times, 1))[:, : self.length]
        if self.length is None:
            return x
        return ops.pad(x, [[0, 0], [0, self.length - x.shape[1]], [0, 0]])

    def compute_output_spec(self, inputs):
        steps = range(inputs.shape[1])[self.start : self.stop]
        length = len(steps) if self.length is None else self.length
        shape = (inputs.shape[0], length, inputs.shape[2])
        return keras.KerasTensor(shape, dtype=inputs.dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "start": self.start,
            "stop": self.stop,
            "period": self.period,
            "length": self.length,
        }


@keras.saving.register_keras_serializable(package="keras_recsys")
class LastChannels(keras.layers.Layer):
    """The last channels of a series.

    Args:
        num_channels: Positive int, how many.
    """

    def __init__(self, num_channels, **kwargs):
        super().__init__(**kwargs)
        self.num_channels = num_channels

    def call(self, inputs):
        return inputs[..., -self.num_channels :]

    def get_config(self):
        return {**super().get_config(), "num_channels": self.num_channels}


def _inputs(specs, given):
    """The inputs of a model, made or given.

    Raises:
        ValueError: If those given are others.
    """
    if given is None:
        return {
            name: keras.Input(shape, name=name, dtype=dtype)
            for name, (shape, dtype) in specs.items()
        }
    shapes = {name: tuple(x.shape)[1:] for name, x in given.items()}
    wanted = {name: shape for name, (shape, _) in specs.items()}
    if shapes != wanted:
        raise ValueError(
            f"`inputs` must be a dict of tensors with the shapes {wanted} but for the "
            f"batch. Received: {shapes}."
        )
    return {name: given[name] for name in specs}
