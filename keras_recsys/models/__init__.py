"""Builders: functions that wire layers into uncompiled Keras models."""

from keras_recsys.models.ctr import build_dlrm, build_fibinet
from keras_recsys.models.growth import grow_vocabulary

__all__ = ["build_dlrm", "build_fibinet", "grow_vocabulary"]
