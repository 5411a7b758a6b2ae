"""Models of the probability of a click."""

from keras_recsys.models.ctr.autoint import build_autoint
from keras_recsys.models.ctr.dcn import build_dcn
from keras_recsys.models.ctr.deepfm import build_deepfm
from keras_recsys.models.ctr.dlrm import build_dlrm
from keras_recsys.models.ctr.ffm import build_ffm
from keras_recsys.models.ctr.fibinet import build_fibinet
from keras_recsys.models.ctr.fibinet_plus import build_fibinet_plus
from keras_recsys.models.ctr.fm import build_fm
from keras_recsys.models.ctr.fnn import build_fnn
from keras_recsys.models.ctr.lr import build_lr
from keras_recsys.models.ctr.wide_deep import build_wide_deep
from keras_recsys.models.ctr.xdeepfm import build_xdeepfm

__all__ = [
    "build_autoint",
    "build_dcn",
    "build_deepfm",
    "build_dlrm",
    "build_ffm",
    "build_fibinet",
    "build_fibinet_plus",
    "build_fm",
    "build_fnn",
    "build_lr",
    "build_wide_deep",
    "build_xdeepfm",
]
