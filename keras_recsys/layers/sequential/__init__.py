"""Layers from a sequence of items to the next item."""

from keras_recsys.layers.sequential.compact_ids import CompactIds
from keras_recsys.layers.sequential.cpr_softmax import CPRSoftmax
from keras_recsys.layers.sequential.exclude_seen import ExcludeSeen
from keras_recsys.layers.sequential.gru_encoder import GRUEncoder
from keras_recsys.layers.sequential.mixture_of_softmaxes import MixtureOfSoftmaxes
from keras_recsys.layers.sequential.multi_input_state import MultiInputState
from keras_recsys.layers.sequential.repeat_head import RepeatHead
from keras_recsys.layers.sequential.sampled_softmax import SampledSoftmax
from keras_recsys.layers.sequential.sequence_encoder import SequenceEncoder

__all__ = [
    "CPRSoftmax",
    "CompactIds",
    "ExcludeSeen",
    "GRUEncoder",
    "MixtureOfSoftmaxes",
    "MultiInputState",
    "RepeatHead",
    "SampledSoftmax",
    "SequenceEncoder",
]
