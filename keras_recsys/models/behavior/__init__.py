"""Click models that read a history of behaviour."""

from keras_recsys.models.behavior.bst import build_bst
from keras_recsys.models.behavior.dien import build_dien
from keras_recsys.models.behavior.din import build_din
from keras_recsys.models.behavior.mimn import build_mimn
from keras_recsys.models.behavior.sam import build_sam
from keras_recsys.models.behavior.ubr4ctr import build_ubr4ctr
from keras_recsys.models.behavior.youtube_dnn import build_youtube_dnn

__all__ = [
    "build_bst",
    "build_dien",
    "build_din",
    "build_mimn",
    "build_sam",
    "build_ubr4ctr",
    "build_youtube_dnn",
]
