"""Layers from the past of a time series to its future."""

from keras_recsys.layers.forecasting.calendar_embedding import CalendarEmbedding
from keras_recsys.layers.forecasting.distill_conv import DistillConv
from keras_recsys.layers.forecasting.full_attention import FullAttention
from keras_recsys.layers.forecasting.informer_decoder_block import InformerDecoderBlock
from keras_recsys.layers.forecasting.informer_encoder_block import InformerEncoderBlock
from keras_recsys.layers.forecasting.positional_encoding import PositionalEncoding
from keras_recsys.layers.forecasting.prob_sparse_attention import ProbSparseAttention
from keras_recsys.layers.forecasting.reversible_normalization import (
    ReversibleNormalization,
)
from keras_recsys.layers.forecasting.series_decomposition import SeriesDecomposition
from keras_recsys.layers.forecasting.token_embedding import TokenEmbedding

__all__ = [
    "CalendarEmbedding",
    "DistillConv",
    "FullAttention",
    "InformerDecoderBlock",
    "InformerEncoderBlock",
    "PositionalEncoding",
    "ProbSparseAttention",
    "ReversibleNormalization",
    "SeriesDecomposition",
    "TokenEmbedding",
]
