"""Click models that read a history of behaviour."""

from keras_recsys.models.behavior.din import build_din
from keras_recsys.models.behavior.sam import build_sam
from keras_recsys.models.behavior.youtube_dnn import build_youtube_dnn

__all__ = ["build_din", "build_sam", "build_youtube_dnn"]
