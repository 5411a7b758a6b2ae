"""Ids to vectors."""

from keras_recsys.layers.embedding.compositional_embedding import (
    CompositionalEmbedding,
)
from keras_recsys.layers.embedding.field_embedding import FieldEmbedding
from keras_recsys.layers.embedding.full_embedding import FullEmbedding
from keras_recsys.layers.embedding.hash_embedding import HashEmbedding
from keras_recsys.layers.embedding.mixed_dimension_embedding import (
    MixedDimensionEmbedding,
)
from keras_recsys.layers.embedding.padding_mask import PaddingMask
from keras_recsys.layers.embedding.qr_embedding import QREmbedding
from keras_recsys.layers.embedding.sequence_pooling import SequencePooling

__all__ = [
    "CompositionalEmbedding",
    "FieldEmbedding",
    "FullEmbedding",
    "HashEmbedding",
    "MixedDimensionEmbedding",
    "PaddingMask",
    "QREmbedding",
    "SequencePooling",
]
