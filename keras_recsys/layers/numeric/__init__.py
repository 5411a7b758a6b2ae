"""Numbers to what a network reads."""

from keras_recsys.layers.numeric.numeric_embedding import NumericEmbedding
from keras_recsys.layers.numeric.numeric_normalization import NumericNormalization

__all__ = ["NumericEmbedding", "NumericNormalization"]
