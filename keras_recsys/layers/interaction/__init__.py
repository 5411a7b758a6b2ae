"""Fields to fields, pairs or hidden units."""

from keras_recsys.layers.interaction.bilinear_dense import BilinearDense
from keras_recsys.layers.interaction.bilinear_interaction import BilinearInteraction
from keras_recsys.layers.interaction.senet_layer import SENETLayer

__all__ = ["BilinearDense", "BilinearInteraction", "SENETLayer"]
