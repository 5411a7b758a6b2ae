"""Logits to what a model answers."""

from keras_recsys.layers.head.click_probability import ClickProbability

__all__ = ["ClickProbability"]
