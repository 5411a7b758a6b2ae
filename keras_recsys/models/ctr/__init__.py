"""Models of the probability of a click."""

from keras_recsys.models.ctr.dlrm import build_dlrm
from keras_recsys.models.ctr.fibinet import build_fibinet

__all__ = ["build_dlrm", "build_fibinet"]
