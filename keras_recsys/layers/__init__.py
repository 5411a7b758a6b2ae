"""Reusable Keras 3 layers. They use `keras.ops` and run on every backend."""

from keras_recsys.layers.behavior import (
    DualQueryAttention,
    IterativeMemory,
    MemoryEnhancement,
    ReversePositionEmbedding,
    TargetAttention,
    TimeBucketEmbedding,
)
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
    "DualQueryAttention",
    "FactorizationMachine",
    "FieldAwareFactorizationMachine",
    "FieldEmbedding",
    "FieldOrder",
    "FullEmbedding",
    "HashEmbedding",
    "InteractingLayer",
    "IterativeMemory",
    "MemoryEnhancement",
    "MixedDimensionEmbedding",
    "NumericEmbedding",
    "NumericNormalization",
    "PaddingMask",
    "QREmbedding",
    "ReversePositionEmbedding",
    "SENETLayer",
    "SENETPlus",
    "SequencePooling",
    "TargetAttention",
    "TimeBucketEmbedding",
]
