"""Gradients that name the rows they are for: sums, unscaling, the backend they need."""

import keras


def check_backend(name):
    """Raises where gradients of tables have no rows.

    Raises:
        RuntimeError: If the backend is not TensorFlow.
    """
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise RuntimeError(
            f"`{name}` needs the TensorFlow backend: elsewhere the gradient of a table "
            "is as large as the table, and Keras' own optimizers are the better "
            f"choice. Received: backend {backend!r}."
        )


def is_sparse(gradient):
    """Whether a gradient is a `tf.IndexedSlices`."""
    import tensorflow as tf

    return isinstance(gradient, tf.IndexedSlices)


def sum_duplicates(gradient):
    """Adds up the rows of a `tf.IndexedSlices` that are for the same row of the table.

    Returns:
        `tf.IndexedSlices` with distinct indices, of a size that depends on them.
    """
    import tensorflow as tf

    # The first index comes once more at the end, since XLA fails for "up to one" row.
    indices = tf.concat([gradient.indices, gradient.indices[:1]], axis=0)
    indices, places = tf.unique(indices)
    values = tf.math.unsorted_segment_sum(
        gradient.values, places[:-1], tf.size(indices, out_type=places.dtype)
    )
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def gather_duplicates(gradient):
    """Moves the sum of the rows for one row of the table to the first of them.

    The others become 0, so that the values have the norm of the dense gradient. Unlike
    in `sum_duplicates` nothing changes its shape: `tf.unique` of what `tf.unique` gave
    is wrong under XLA.

    Returns:
        `tf.IndexedSlices` with the indices of `gradient`.
    """
    import tensorflow as tf

    _, places = tf.unique(gradient.indices)
    size = tf.size(places, out_type=places.dtype)
    order = tf.range(size)
    first = tf.gather(tf.math.unsorted_segment_min(order, places, size), places)
    sums = tf.gather(
        tf.math.unsorted_segment_sum(gradient.values, places, size), places
    )
    is_first = tf.reshape(first == order, [-1] + [1] * (len(sums.shape) - 1))
    values = tf.where(is_first, sums, tf.zeros_like(sums))
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def map_values(function, gradients):
    """Applies a function of a list of tensors to gradients of both kinds.

    Args:
        function: Takes a list of tensors and returns one of the same shapes.
        gradients: List of tensors, `tf.IndexedSlices` and `None`.

    Returns:
        List of the kinds of `gradients`, row indices kept.
    """
    import tensorflow as tf

    values = function([g.values if is_sparse(g) else g for g in gradients])
    return [
        tf.IndexedSlices(v, g.indices, g.dense_shape) if is_sparse(g) else v
        for v, g in zip(values, gradients, strict=True)
    ]


def unscale(gradients, scale):
    """Divides gradients of both kinds by the loss scale, `None` for no scale."""
    if scale is None:
        return list(gradients)
    return map_values(
        lambda values: [None if v is None else v / scale for v in values], gradients
    )
