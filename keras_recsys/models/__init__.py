"""Builders: functions that wire layers into uncompiled Keras models."""

from keras_recsys.models.behavior import (
    build_bst,
    build_dien,
    build_din,
    build_mimn,
    build_sam,
    build_ubr4ctr,
    build_youtube_dnn,
)
from keras_recsys.models.ctr import (
    build_autoint,
    build_dcn,
    build_deepfm,
    build_dlrm,
    build_ffm,
    build_fibinet,
    build_fibinet_plus,
    build_fm,
    build_fnn,
    build_lr,
    build_wide_deep,
    build_xdeepfm,
)
from keras_recsys.models.growth import grow_vocabulary
from keras_recsys.models.sequential import (
    NextItemModel,
    build_gru4rec,
    build_repeatnet,
    build_sasrec,
    build_two_stage,
)

__all__ = [
    "NextItemModel",
    "build_autoint",
    "build_bst",
    "build_dcn",
    "build_deepfm",
    "build_dien",
    "build_din",
    "build_dlrm",
    "build_ffm",
    "build_fibinet",
    "build_fibinet_plus",
    "build_fm",
    "build_fnn",
    "build_gru4rec",
    "build_lr",
    "build_mimn",
    "build_repeatnet",
    "build_sam",
    "build_sasrec",
    "build_two_stage",
    "build_ubr4ctr",
    "build_wide_deep",
    "build_xdeepfm",
    "build_youtube_dnn",
    "grow_vocabulary",
]
