"""Numbers to numbers."""

from keras_recsys.layers.numeric.numeric_normalization import NumericNormalization

__all__ = ["NumericNormalization"]
