"""How good a click model is, and what puts its probabilities right."""

from keras_recsys.analysis.clicks import (
    ClickReport,
    compare_models,
    evaluate_clicks,
    evaluate_model,
)
from keras_recsys.analysis.downsampling import correct_downsampling, shift_bias

__all__ = [
    "ClickReport",
    "compare_models",
    "correct_downsampling",
    "evaluate_clicks",
    "evaluate_model",
    "shift_bias",
]
