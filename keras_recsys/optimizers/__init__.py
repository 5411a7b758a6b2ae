"""Optimizers whose step costs what the batch costs, whatever the size of a table."""

from keras_recsys.optimizers.lazy_adam import LazyAdam
from keras_recsys.optimizers.row_wise_adagrad import RowWiseAdagrad
from keras_recsys.optimizers.sparse_adagrad import SparseAdagrad
from keras_recsys.optimizers.sparse_ftrl import SparseFtrl
from keras_recsys.optimizers.sparse_loss_scale_optimizer import (
    SparseLossScaleOptimizer,
)
from keras_recsys.optimizers.split_optimizer import SplitOptimizer

__all__ = [
    "LazyAdam",
    "RowWiseAdagrad",
    "SparseAdagrad",
    "SparseFtrl",
    "SparseLossScaleOptimizer",
    "SplitOptimizer",
]
