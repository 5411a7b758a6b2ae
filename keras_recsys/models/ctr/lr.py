"""`build_lr`."""

from keras_recsys.models._blocks import ClickModel


def build_lr(features, *, linear_regularizer=None, inputs=None, name="lr"):
    """Builds a logistic regression: one weight for each value of each feature.

        probability = sigmoid(sum of the weights of the values + bias)

    A number counts with its normalized value; the values of a sequence are pooled as
    the feature says.

    Args:
        features: Sequence of features.
        linear_regularizer: Regularizer of the linear weights. Defaults to `None`.
        inputs: Optional dict from feature name to `KerasTensor`, used instead of new
            inputs; it joins two models.
        name: Name of the model and prefix of its layer names.

    Returns:
        An uncompiled `keras.Model`. Inputs: a dict from feature name to tensor; ids of
        shape `(batch_size,)`, sequences `(batch_size, max_len)`, both in the dtype of
        the feature, and float32 numbers `(batch_size,)`. Outputs: a dict with
        `"probability"`, a float32 tensor of shape `(batch_size, 1)`.

    Raises:
        TypeError: If an entry of `features` is no feature.
        ValueError: If `features` is empty or holds a name twice.
    """
    frame = ClickModel(features, inputs=inputs, name=name)
    return frame.model(frame.linear(linear_regularizer))
