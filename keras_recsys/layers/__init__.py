"""Reusable Keras 3 layers. They use `keras.ops` and run on every backend."""

from keras_recsys.layers.embedding import (
    CompositionalEmbedding,
    FieldEmbedding,
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
    BilinearPlus,
    CompressedInteraction,
    CrossNetwork,
    FactorizationMachine,
    FieldAwareFactorizationMachine,
    FieldOrder,
    InteractingLayer,
    SENETLayer,
    SENETPlus,
)
from keras_recsys.layers.numeric import NumericEmbedding, NumericNormalization

__all__ = [
    "BilinearDense",
    "BilinearInteraction",
    "BilinearPlus",
    "ClickProbability",
    "CompositionalEmbedding",
    "CompressedInteraction",
    "CrossNetwork",
    "FactorizationMachine",
    "FieldAwareFactorizationMachine",
    "FieldEmbedding",
    "FieldOrder",
    "FullEmbedding",
    "HashEmbedding",
    "InteractingLayer",
    "MixedDimensionEmbedding",
    "NumericEmbedding",
    "NumericNormalization",
    "PaddingMask",
    "QREmbedding",
    "SENETLayer",
    "SENETPlus",
    "SequencePooling",
]
