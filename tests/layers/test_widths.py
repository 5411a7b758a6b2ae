"""A layer that is built for some fields refuses others: nothing is broadcast."""

import numpy as np
import pytest

from keras_recsys import layers

FIELDS = (3, 4, 2)
NARROW = {
    "BilinearDense": (lambda: layers.BilinearDense(2, "all"), FIELDS),
    "BilinearInteraction": (lambda: layers.BilinearInteraction("all"), FIELDS),
    "BilinearPlus": (lambda: layers.BilinearPlus(3), FIELDS),
    "CompressedInteraction": (lambda: layers.CompressedInteraction((2,)), FIELDS),
    "CrossNetwork": (lambda: layers.CrossNetwork(), (3, 4)),
    "FieldOrder": (lambda: layers.FieldOrder([1]), FIELDS),
    "NumericEmbedding": (lambda: layers.NumericEmbedding(3), (3, 4)),
    "NumericNormalization": (lambda: layers.NumericNormalization([None] * 4), (3, 4)),
    "SENETLayer": (lambda: layers.SENETLayer(), FIELDS),
    "SENETPlus": (lambda: layers.SENETPlus(), FIELDS),
}


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("name", NARROW)
def test_another_number_of_fields_is_refused(name, width):
    make, shape = NARROW[name]
    layer = make()
    layer(np.ones(shape, "float32"))
    with pytest.raises(ValueError, match=rf"shape.*{width}|{width}.*shape"):
        layer(np.ones((shape[0], width, *shape[2:]), "float32"))
