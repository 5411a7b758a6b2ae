"""Probabilities of a model that was trained on a sample of the negative rows.

If each negative row is kept with probability `negative_rate`, the odds of a click in
the sample are those of all rows divided by `negative_rate`. Both functions here
multiply the odds by it again.
"""

import math
import numbers

import keras
import numpy as np

from keras_recsys.analysis._columns import read_probabilities
from keras_recsys.layers import ClickProbability
from keras_recsys.models.behavior._reinforced_model import ReinforcedModel


def correct_downsampling(probabilities, negative_rate):
    """Turns probabilities in the sample into those in all rows.

        p = q / (q + (1 - q) / negative_rate)

    Args:
        probabilities: Numbers in `[0, 1]`, `q`, of any shape; an array, tensor, Series,
            list, or the dict with `"probability"` that `predict` of a click model
            returns.
        negative_rate: Share of the negative rows that the model was trained on, in
            `(0, 1]`.

    Returns:
        Float64 array of the same shape.

    Raises:
        TypeError: If a probability is not a number.
        ValueError: If a probability is NaN or not in `[0, 1]`, or `negative_rate` is
            not in `(0, 1]`.

    Example:
    >>> correct_downsampling([0.0, 0.5, 1.0], 0.25).tolist()
    [0.0, 0.2, 1.0]

    Reference:
        He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD
        2014.
    """
    rate = _check_negative_rate(negative_rate)
    q = read_probabilities(probabilities)
    return q / (q + (1 - q) / rate)


def shift_bias(model, negative_rate):
    """Makes a copy of a click model whose answers hold for all rows.

        bias of the copy = bias + log(negative_rate)

    which is `correct_downsampling` inside the model: the copy, exported, needs no
    correction after it. It is for evaluation and serving; training on the sample goes
    on with `model`, which is left as it is. A copy of the copy is shifted once more.

    Args:
        model: A functional model, of a builder or your own, whose only output is that
            of a `ClickProbability`.
        negative_rate: Share of the negative rows that the model was trained on, in
            `(0, 1]`.

    Returns:
        An uncompiled model of the same class, names and settings, with weights of its
        own.

    Raises:
        ValueError: If `negative_rate` is not in `(0, 1]`, or the model is of another
            kind.

    Example:
    >>> x = keras.Input((1,), name="x")
    >>> model = keras.Model({"x": x}, {"probability": ClickProbability()(x)})
    >>> served = shift_bias(model, 0.25)
    >>> probability = served({"x": np.zeros((1, 1))})["probability"]
    >>> round(float(probability[0, 0]), 6)
    0.2
    """
    rate = _check_negative_rate(negative_rate)
    head = _head_of(model)
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    bias = keras.ops.convert_to_numpy(head.bias).astype("float64")
    copy.get_layer(head.name).bias.assign(bias + math.log(rate))
    return copy


def _head_of(model):
    """The `ClickProbability` whose output is the only one of the model."""
    outputs = getattr(model, "outputs", None) or []
    if isinstance(model, ReinforcedModel):  # its other output is for training
        outputs = [model.output["probability"]]
    history = [getattr(output, "_keras_history", None) for output in outputs]
    heads = [x.operation for x in history if x is not None]
    if len(outputs) != 1 or not isinstance(heads[0], ClickProbability):
        names = [type(head).__name__ for head in heads]
        raise ValueError(
            "`model` must be a functional model whose only output is that of a "
            f"ClickProbability. Received: a {type(model).__name__} with outputs of "
            f"{names}."
        )
    return heads[0]


def _check_negative_rate(rate):
    is_number = isinstance(rate, numbers.Real) and not isinstance(rate, bool | np.bool_)
    if not is_number or not 0 < rate <= 1:
        raise ValueError(
            "`negative_rate` must be a number in (0, 1]. "
            f"Received: negative_rate={rate!r}."
        )
    return float(rate)
