"""The pooling of bags, for layers of vectors and of ids."""

from keras import ops

from keras_recsys._dtypes import wide_dtype


def pool(vectors, mask, pooling, weights=None):
    """Pools the last axis but one.

    Args:
        vectors: Float tensor, `(..., bag_len, dim)`.
        mask: Boolean tensor, `(..., bag_len)`, `True` keeps; or `None` for all.
        pooling: `"sum"`, `"mean"` or `"sqrtn"`.
        weights: Optional tensor, `(..., bag_len)`, factors of the vectors.

    Returns:
        Tensor, `(..., dim)`, in the dtype of `vectors`; 0 for a bag without members.
    """
    x = ops.cast(vectors, wide_dtype(vectors.dtype))
    if weights is not None:
        if mask is not None:  # a NaN must not reach the gradient either
            weights = ops.where(mask, weights, ops.zeros_like(weights))
        x = x * ops.cast(ops.expand_dims(weights, -1), x.dtype)
    if mask is None:
        mask = ops.ones_like(vectors[..., 0], dtype="bool")
    x = ops.where(ops.expand_dims(mask, -1), x, ops.zeros_like(x))
    total = ops.sum(x, axis=-2)
    if pooling != "sum":
        count = ops.sum(ops.cast(mask, x.dtype), axis=-1, keepdims=True)
        count = ops.maximum(count, 1.0)
        total = total / (count if pooling == "mean" else ops.sqrt(count))
    return ops.cast(total, vectors.dtype)
