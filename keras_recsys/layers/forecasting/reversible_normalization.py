"""`ReversibleNormalization`, which takes the level of a series out and puts it back."""

import keras
from keras import ops

from keras_recsys._checks import check_choice, check_positive
from keras_recsys._dtypes import wide_dtype
from keras_recsys.layers.forecasting._steps import check_series

METHODS = ("instance", "last")


@keras.saving.register_keras_serializable(package="keras_recsys")
class ReversibleNormalization(keras.layers.Layer):
    """Normalizes each row and channel over its steps, and maps a forecast back.

    With `center` and `scale` of a row and channel of the reference, `gamma` and `beta`
    of a channel (1 and 0 without `affine`),

        normalized = gamma * (x - center) / scale + beta
        inverse = scale * (y - beta) / (gamma + epsilon^2) + center

    where, by `method`,

        "instance":  center = mean,  scale = sqrt(variance + epsilon)
        "last":      center = value of the last step,  scale = 1

    One layer is called twice in a model: `layer(x)` before a forecaster, and
    `layer(y, reference=x, inverse=True)` behind it. The statistics are computed again
    from the reference and are not trained through.

    Args:
        method: `"instance"` or `"last"`. Defaults to `"instance"`.
        affine: Whether `gamma` and `beta` are trained. Defaults to `False`.
        epsilon: Positive float, added to the variance. Defaults to `1e-5`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`. With mixed
            precision, a dtype of `"float32"` keeps a forecast in the units of the
            series from being rounded, or from overflowing float16.

    Call arguments:
        inputs: Float tensor, `(batch_size, seq_len, num_channels)`: the series, or the
            forecast of any length, whose channels may be the last ones alone.
        reference: Optional float tensor, `(batch_size, reference_len, num_channels)`,
            that the statistics come from. Needed with `inverse`. Defaults to `None`,
            `inputs` itself.
        mask: Optional boolean tensor, `(batch_size, seq_len)`; `True` keeps a step.
            Read from the Keras mask of `inputs` if not given and no `reference` is.
        reference_mask: Optional boolean tensor, `(batch_size, reference_len)`. Read
            from the Keras mask of `reference` if not given.
        inverse: Whether to map back. Defaults to `False`.

    Returns:
        Tensor of the shape of `inputs`, in the compute dtype; the arithmetic runs in
        float32 or wider. Masked steps are exactly 0 and enter no statistic, NaN
        included, and the mask is passed on; the last step is the last kept one. A
        reference without a kept step has center 0 and scale 1.

    Raises:
        ValueError: If an argument is out of its range, `inputs` or `reference` is not
            of rank 3 with a static last axis, `inputs` has more channels than the
            reference, or `inverse` is `True` without a `reference`.

    Example:
    >>> x = np.array([[[1.0], [2.0], [5.0]]], "float32")
    >>> layer = ReversibleNormalization("last")
    >>> layer(x).numpy().ravel().tolist()
    [-4.0, -3.0, 0.0]
    >>> y = np.array([[[0.5]]], "float32")
    >>> layer(y, reference=x, inverse=True).numpy().ravel().tolist()
    [5.5]

    Reference:
        Kim et al., "Reversible Instance Normalization for Accurate Time-Series
        Forecasting against Distribution Shift", ICLR 2022, Eq. 1 to 3; the statistics
        are constants for the gradient as in the code of its authors, and as the last
        value is in that of NLinear: Zeng et al., "Are Transformers Effective for Time
        Series Forecasting?", AAAI 2023. `affine` is off by default, unlike there.
    """

    def __init__(
        self,
        method="instance",
        *,
        affine=False,
        epsilon=1e-5,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.method = check_choice("method", method, METHODS)
        self.affine = bool(affine)
        self.epsilon = check_positive("epsilon", epsilon)
        self.autocast = False  # values in the units of the series overflow float16
        self.supports_masking = True

    def build(self, inputs_shape, reference_shape=None):
        check_series(self, inputs_shape)
        num_channels = check_series(self, reference_shape or inputs_shape)
        if self.affine:
            self.gamma = self.add_weight(
                name="gamma", shape=(num_channels,), initializer="ones"
            )
            self.beta = self.add_weight(
                name="beta", shape=(num_channels,), initializer="zeros"
            )

    def call(
        self, inputs, reference=None, mask=None, reference_mask=None, inverse=False
    ):
        if inverse and reference is None:
            raise ValueError(
                "`reference` must be the series that `inputs` forecasts where "
                f"`inverse` is True. Received: reference={reference!r}."
            )
        dtype = wide_dtype(self.compute_dtype)
        x = ops.cast(inputs, dtype)
        if mask is not None:  # before all else: a NaN would spoil gradients
            x = _kept(x, mask)
        if reference is None:
            reference, reference_mask = x, mask
        factors = self._statistics(ops.cast(reference, dtype), reference_mask)
        if self.affine:
            if factors[0].shape[-1] != self.gamma.shape[0]:
                raise ValueError(
                    "The series of `ReversibleNormalization` must have the "
                    f"{self.gamma.shape[0]} channels that it was built for. "
                    f"Received: {factors[0].shape[-1]} channels."
                )
            factors += [ops.cast(w, dtype) for w in (self.gamma, self.beta)]
        center, scale, *affine = self._for_channels(x, factors)
        if inverse:
            if affine:
                x = (x - affine[1]) / (affine[0] + self.epsilon**2)
            x = scale * x + center
        else:
            x = (x - center) / scale
            if affine:
                x = affine[0] * x + affine[1]
        if mask is not None:
            x = _kept(x, mask)
        return ops.cast(x, self.compute_dtype)

    def compute_mask(self, inputs, mask=None):
        return mask

    def compute_output_shape(self, inputs_shape, reference_shape=None):
        return tuple(inputs_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "method": self.method,
            "affine": self.affine,
            "epsilon": self.epsilon,
        }

    def _statistics(self, x, mask):
        """List of the center and the scale, `(batch_size, 1, num_channels)`."""
        x = ops.stop_gradient(x)
        if self.method == "last":
            center = x[:, -1:]
            if mask is not None:
                count = ops.cumsum(ops.cast(mask, "int32"), axis=1)
                last = ops.logical_and(mask, count == count[:, -1:])
                center = _sum_of_kept(x, last)
            return [center, ops.ones_like(center)]
        if mask is None:
            center = ops.mean(x, axis=1, keepdims=True)
            variance = ops.mean(ops.square(x - center), axis=1, keepdims=True)
            return [center, ops.sqrt(variance + self.epsilon)]
        count = ops.sum(ops.cast(mask, x.dtype), axis=1)[:, None, None]
        some = ops.maximum(count, 1.0)
        center = _sum_of_kept(x, mask) / some
        variance = _sum_of_kept(ops.square(x - center), mask) / some
        scale = ops.sqrt(variance + self.epsilon)
        return [center, ops.where(count > 0, scale, ops.ones_like(scale))]

    def _for_channels(self, x, factors):
        """The factors of the channels of `x`, which are the last ones."""
        width, num_channels = x.shape[-1], factors[0].shape[-1]
        if width > num_channels:
            raise ValueError(
                "`inputs` of `ReversibleNormalization` must have at most the "
                f"{num_channels} channels of the reference. "
                f"Received: inputs of shape {tuple(x.shape)}."
            )
        return [factor[..., num_channels - width :] for factor in factors]


def _kept(x, mask):
    return ops.where(ops.expand_dims(mask, -1), x, ops.zeros_like(x))


def _sum_of_kept(x, mask):
    return ops.sum(_kept(x, mask), axis=1, keepdims=True)
