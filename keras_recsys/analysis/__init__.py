"""How good a click model is, what puts it right, and what it looks at."""

from keras_recsys.analysis.attention import attention_entropy, attention_scores
from keras_recsys.analysis.clicks import (
    ClickReport,
    compare_models,
    evaluate_clicks,
    evaluate_model,
)
from keras_recsys.analysis.downsampling import correct_downsampling, shift_bias

__all__ = [
    "ClickReport",
    "attention_entropy",
    "attention_scores",
    "compare_models",
    "correct_downsampling",
    "evaluate_clicks",
    "evaluate_model",
    "shift_bias",
]
