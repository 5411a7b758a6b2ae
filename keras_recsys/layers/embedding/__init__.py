"""Ids to vectors."""

from keras_recsys.layers.embedding.full_embedding import FullEmbedding
from keras_recsys.layers.embedding.padding_mask import PaddingMask
from keras_recsys.layers.embedding.qr_embedding import QREmbedding
from keras_recsys.layers.embedding.sequence_pooling import SequencePooling

__all__ = ["FullEmbedding", "PaddingMask", "QREmbedding", "SequencePooling"]
