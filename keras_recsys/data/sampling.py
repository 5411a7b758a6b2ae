"""Sampling of the rows of a click log."""

import numbers

from keras_recsys._checks import check_int


def downsample_negatives(dataset, rate, *, batch_size=1024, seed=None):
    """Keeps all clicks and a share of the other rows.

    A row is positive if its label is above 0. Each other row is kept with probability
    `rate`, by another draw in each epoch. A model trained on these rows answers
    probabilities that are too high: `q` stands for `q / (q + (1 - q) / rate)`.

    Weights by class need no help from here: `model.fit(dataset, class_weight={0: 1.0,
    1: 5.0})` takes them for a dataset too.

    Args:
        dataset: A `tf.data.Dataset` of batches, tuples of a dict from column name to
            tensor, labels of shape `(batch_size, 1)` and, if any, weights.
        rate: Number in `(0, 1]`.
        batch_size: Positive int, rows in a batch of the result. Defaults to `1024`.
        seed: Non-negative int: equal datasets of one seed keep equal rows, epoch by
            epoch. Defaults to `None`.

    Returns:
        A `tf.data.Dataset` of the same structure.

    Raises:
        TypeError: If `dataset` is no dataset with labels, or an argument is of a wrong
            type.
        ValueError: If `rate` is not in `(0, 1]`, or another argument is out of its
            range.

    Example:
    >>> import tensorflow as tf
    >>> batch = {"age": [7, 8, 9]}, [[1.0], [0.0], [1.0]]
    >>> dataset = tf.data.Dataset.from_tensors(batch)
    >>> columns, labels = next(iter(downsample_negatives(dataset, 1e-9)))
    >>> columns["age"].numpy().tolist(), labels.numpy().tolist()
    ([7, 9], [[1.0], [1.0]])
    """
    import tensorflow as tf

    spec = dataset.element_spec if isinstance(dataset, tf.data.Dataset) else None
    if not isinstance(spec, tuple) or len(spec) < 2 or not isinstance(spec[0], dict):
        raise TypeError(
            "`dataset` must be a `tf.data.Dataset` of tuples of a dict of columns and "
            f"labels. Received: dataset={dataset!r}."
        )
    if (
        isinstance(rate, bool)
        or not isinstance(rate, numbers.Real)
        or not 0 < rate <= 1
    ):
        raise ValueError(f"`rate` must be a number in (0, 1]. Received: rate={rate!r}.")
    check_int("batch_size", batch_size)
    if seed is not None:
        check_int("seed", seed, minimum=0)

    def keep(element, seed):
        labels = tf.reshape(element[1], (-1,))
        draws = tf.random.stateless_uniform(tf.shape(labels), seed, dtype="float64")
        rows = tf.where((labels > 0) | (draws < rate))[:, 0]
        return tf.nest.map_structure(lambda values: tf.gather(values, rows), element)

    seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).batch(2)
    return (
        tf.data.Dataset.zip(dataset, seeds)
        .map(keep, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .rebatch(batch_size)
        .prefetch(tf.data.AUTOTUNE)
    )
