"""Reusable Keras 3 layers and models for recommenders and forecasting.

- `layers`: layers for your own Keras models.
- `features`: declarations of columns, and the functions that embed them.
- `ops`: functions on tensors that the layers are made of.
- `models`: builders of whole models.
- `metrics`: ranks of the next item among all items.
- `optimizers`: optimizers whose step does not grow with the vocabulary.
- `memory`: what embedding tables cost, before any is made.
- `data`: vocabularies, splits and `tf.data` pipelines.
- `serving`: export as a SavedModel.
- `analysis`: figures of a model on rows with known answers.
"""

from keras_recsys import (
    analysis,
    data,
    features,
    layers,
    memory,
    metrics,
    models,
    ops,
    optimizers,
    serving,
)
from keras_recsys.features import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
    TimeGapFeature,
)
from keras_recsys.version import __version__

__all__ = [
    "CategoricalFeature",
    "NumericFeature",
    "SequenceFeature",
    "TimeGapFeature",
    "__version__",
    "analysis",
    "data",
    "features",
    "layers",
    "memory",
    "metrics",
    "models",
    "ops",
    "optimizers",
    "serving",
]
