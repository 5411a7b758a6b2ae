"""Builders: functions that wire layers into uncompiled Keras models."""

from keras_recsys.models.ctr import build_fibinet

__all__ = ["build_fibinet"]
