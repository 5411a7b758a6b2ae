"""Reusable Keras 3 layers and models for recommenders and forecasting."""

from keras_recsys import data, features, layers, models, serving
from keras_recsys.features import CategoricalFeature, NumericFeature, SequenceFeature
from keras_recsys.version import __version__

__all__ = [
    "CategoricalFeature",
    "NumericFeature",
    "SequenceFeature",
    "__version__",
    "data",
    "features",
    "layers",
    "models",
    "serving",
]
