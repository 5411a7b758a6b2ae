"""`build_fm`."""

from keras_recsys import layers
from keras_recsys.models._blocks import ClickModel


def build_fm(
    features,
    *,
    embedding_dim=16,
    embeddings_regularizer=None,
    linear_regularizer=None,
    inputs=None,
    name="fm",
):
    """Builds a factorization machine: a linear part and the products of all pairs.

        logit = linear + sum over pairs i < j of v_i . v_j + bias

    Args:
        features: Sequence of features; its order is the order of the fields.
        embedding_dim: Positive int, the width of every field. Defaults to `16`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, see `embed_fields`. Defaults to `None`.
        linear_regularizer: Regularizer of the linear weights. Defaults to `None`.
        inputs: Optional dict from feature name to `KerasTensor`, used instead of new
            inputs; it joins two models.
        name: Name of the model and prefix of its layer names; `{name}_fields` holds the
            stacked vectors.

    Returns:
        An uncompiled `keras.Model`. Inputs: a dict from feature name to tensor; ids of
        shape `(batch_size,)`, sequences `(batch_size, max_len)`, both in the dtype of
        the feature, and float32 numbers `(batch_size,)`. Outputs: a dict with
        `"probability"`, a float32 tensor of shape `(batch_size, 1)`.

    Raises:
        TypeError: If an entry of `features` is no feature.
        ValueError: If an argument is out of its range, or there are fewer than two
            fields.

    Reference:
        Rendle, "Factorization Machines", ICDM 2010.
    """
    frame = ClickModel(features, inputs=inputs, name=name)
    fields = frame.fields(
        embedding_dim, min_fields=2, embeddings_regularizer=embeddings_regularizer
    )
    pairs = layers.FactorizationMachine(name=f"{name}_pairs")(fields)
    return frame.model([*frame.linear(linear_regularizer), pairs])
