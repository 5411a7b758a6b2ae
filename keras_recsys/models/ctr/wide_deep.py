"""`build_wide_deep`."""

from keras_recsys.models._blocks import ClickModel


def build_wide_deep(
    features,
    *,
    embedding_dim=16,
    wide=None,
    deep=None,
    hidden_units=(256, 128, 64),
    activation="relu",
    dropout=0.0,
    embeddings_regularizer=None,
    linear_regularizer=None,
    seed=None,
    inputs=None,
    name="wide_deep",
):
    """Builds Wide & Deep: a linear part that memorizes and a DNN that generalizes.

        logit = linear(wide) + DNN([v_1 ; ... ; v_F ; numbers]) + bias

    Crossed columns, which the wide part is for, are columns like others: make one of
    several raw columns (`a + "|" + b`, with a `HashedVocabulary`) and name it in `wide`
    alone.

    Args:
        features: Sequence of features.
        embedding_dim: Positive int, the width of every vector of ids. Defaults to `16`.
        wide: Names of the features of the linear part. Defaults to all.
        deep: Names of the features of the DNN. Defaults to all.
        hidden_units: Widths of the hidden layers of the DNN. Defaults to
            `(256, 128, 64)`.
        activation: Activation of the hidden layers. Defaults to `"relu"`.
        dropout: Float in `[0, 1)`, applied after each hidden layer. Defaults to `0.0`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, see `embed_fields`. Defaults to `None`.
        linear_regularizer: Regularizer of the linear weights; the paper has an L1 term.
            Defaults to `None`.
        seed: Optional int for dropout.
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
        ValueError: If an argument is out of its range, a name is no feature, or a
            feature is in neither part.

    Reference:
        Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016. Differs
        from the paper: both parts are trained by the optimizer of `compile`, where the
        paper has FTRL for the wide and Adagrad for the deep part.
    """
    frame = ClickModel(features, inputs=inputs, name=name)
    wide_features = _chosen("wide", wide, frame.features)
    deep_features = _chosen("deep", deep, frame.features)
    unused = [f.name for f in frame.features if f not in wide_features + deep_features]
    if unused:
        raise ValueError(
            "Every feature must be in `wide` or in `deep`. "
            f"Received: {unused} in neither."
        )
    logits = frame.linear(linear_regularizer, wide_features)
    x = frame.dense_input(
        embedding_dim, deep_features, embeddings_regularizer=embeddings_regularizer
    )
    logits.append(
        frame.deep_logit(
            x, hidden_units, activation=activation, dropout=dropout, seed=seed
        )
    )
    return frame.model(logits)


def _chosen(argument, names, features):
    """The features of a part of the model."""
    if names is None:
        return list(features)
    names = list(names)
    known = [feature.name for feature in features]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ValueError(
            f"`{argument}` must hold names of features, {known}. "
            f"Received: {argument}={names!r}."
        )
    return [feature for feature in features if feature.name in names]
