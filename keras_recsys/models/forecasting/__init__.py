"""Builders of models that forecast a time series."""

from keras_recsys.models.forecasting.dlinear import build_dlinear
from keras_recsys.models.forecasting.informer import build_informer
from keras_recsys.models.forecasting.nlinear import build_nlinear
from keras_recsys.models.forecasting.repeat_last import build_repeat_last
from keras_recsys.models.forecasting.seasonal_naive import build_seasonal_naive
from keras_recsys.models.forecasting.transformer import build_transformer_forecaster

__all__ = [
    "build_dlinear",
    "build_informer",
    "build_nlinear",
    "build_repeat_last",
    "build_seasonal_naive",
    "build_transformer_forecaster",
]
