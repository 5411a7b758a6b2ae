"""How good a model is, what puts it right, and what it looks at."""

from keras_recsys.analysis.attention import attention_entropy, attention_scores
from keras_recsys.analysis.clicks import (
    ClickReport,
    compare_models,
    evaluate_clicks,
    evaluate_model,
)
from keras_recsys.analysis.downsampling import correct_downsampling, shift_bias
from keras_recsys.analysis.forecasts import (
    compare_forecasters,
    evaluate_forecasts,
    plot_forecasts,
)
from keras_recsys.analysis.next_item import (
    NextItemReport,
    evaluate_next_item,
    geometric_mean,
)
from keras_recsys.analysis.repeats import RepeatStatistics, repeat_statistics

__all__ = [
    "ClickReport",
    "NextItemReport",
    "RepeatStatistics",
    "attention_entropy",
    "attention_scores",
    "compare_forecasters",
    "compare_models",
    "correct_downsampling",
    "evaluate_clicks",
    "evaluate_forecasts",
    "evaluate_model",
    "evaluate_next_item",
    "geometric_mean",
    "plot_forecasts",
    "repeat_statistics",
    "shift_bias",
]
