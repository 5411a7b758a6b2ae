"""Models that predict the next item."""

from keras_recsys.models.sequential._next_item_model import NextItemModel
from keras_recsys.models.sequential.gru4rec import build_gru4rec
from keras_recsys.models.sequential.repeatnet import build_repeatnet
from keras_recsys.models.sequential.sasrec import build_sasrec
from keras_recsys.models.sequential.two_stage import build_two_stage

__all__ = [
    "NextItemModel",
    "build_gru4rec",
    "build_repeatnet",
    "build_sasrec",
    "build_two_stage",
]
