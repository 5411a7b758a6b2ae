"""Reusable Keras 3 layers. They use `keras.ops` and run on every backend."""

from keras_recsys.layers.embedding import (
    CompositionalEmbedding,
    FullEmbedding,
    HashEmbedding,
    MixedDimensionEmbedding,
    PaddingMask,
    QREmbedding,
    SequencePooling,
)
from keras_recsys.layers.head import ClickProbability
from keras_recsys.layers.interaction import (
    BilinearDense,
    BilinearInteraction,
    SENETLayer,
)
from keras_recsys.layers.numeric import NumericNormalization

__all__ = [
    "BilinearDense",
    "BilinearInteraction",
    "ClickProbability",
    "CompositionalEmbedding",
    "FullEmbedding",
    "HashEmbedding",
    "MixedDimensionEmbedding",
    "NumericNormalization",
    "PaddingMask",
    "QREmbedding",
    "SENETLayer",
    "SequencePooling",
]
