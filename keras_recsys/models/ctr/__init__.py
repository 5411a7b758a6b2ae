"""Models of the probability of a click."""

from keras_recsys.models.ctr.fibinet import build_fibinet

__all__ = ["build_fibinet"]
