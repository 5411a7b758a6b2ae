"""Fields to fields, pairs, sums or hidden units."""

from keras_recsys.layers.interaction.bilinear_dense import BilinearDense
from keras_recsys.layers.interaction.bilinear_interaction import BilinearInteraction
from keras_recsys.layers.interaction.bilinear_plus import BilinearPlus
from keras_recsys.layers.interaction.compressed_interaction import (
    CompressedInteraction,
)
from keras_recsys.layers.interaction.cross_network import CrossNetwork
from keras_recsys.layers.interaction.factorization_machine import FactorizationMachine
from keras_recsys.layers.interaction.field_aware_factorization_machine import (
    FieldAwareFactorizationMachine,
)
from keras_recsys.layers.interaction.field_order import FieldOrder
from keras_recsys.layers.interaction.interacting_layer import InteractingLayer
from keras_recsys.layers.interaction.senet_layer import SENETLayer
from keras_recsys.layers.interaction.senet_plus import SENETPlus

__all__ = [
    "BilinearDense",
    "BilinearInteraction",
    "BilinearPlus",
    "CompressedInteraction",
    "CrossNetwork",
    "FactorizationMachine",
    "FieldAwareFactorizationMachine",
    "FieldOrder",
    "InteractingLayer",
    "SENETLayer",
    "SENETPlus",
]
