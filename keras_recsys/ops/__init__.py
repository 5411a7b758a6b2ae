"""Functions on tensors, beside those of `keras.ops`, on every backend."""

from keras_recsys.ops.prob_sparse import (
    prob_sparse_attention,
    prob_sparse_counts,
    sample_key_index,
    sparsity_measure,
)

__all__ = [
    "prob_sparse_attention",
    "prob_sparse_counts",
    "sample_key_index",
    "sparsity_measure",
]
