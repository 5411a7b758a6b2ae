"""`build_fibinet_plus`."""

import keras
import numpy as np

from keras_recsys import layers
from keras_recsys._checks import check_int
from keras_recsys.features import NumericFeature
from keras_recsys.models._blocks import ClickModel


def build_fibinet_plus(
    features,
    *,
    embedding_dim=16,
    bilinear_type="all",
    bilinear_dim=50,
    num_groups=2,
    reduction_ratio=3,
    normalize=True,
    hidden_units=(256, 128, 64),
    activation="relu",
    dropout=0.0,
    embeddings_regularizer=None,
    seed=None,
    inputs=None,
    name="fibinet_plus",
):
    """Builds FiBiNet++: low-rank bilinear forms and SENET+ in front of a DNN.

    With `E` the normalized fields,

        logit = DNN([BilinearPlus(E) ; SENETPlus(E)]) + bias

    Args:
        features: Sequence of features that give at least two fields; its order is the
            order of the fields, on which the form of a pair depends.
        embedding_dim: Positive int that `num_groups` divides, the width of every field.
            Defaults to `16`.
        bilinear_type: `"all"`, `"each"` or `"interaction"`, see `BilinearPlus`.
            Defaults to `"all"`.
        bilinear_dim: Positive int, numbers that the forms are projected to. Defaults to
            `50`.
        num_groups: See `SENETPlus`. Defaults to `2`.
        reduction_ratio: See `SENETPlus`. Defaults to `3`.
        normalize: Whether the vectors of ids are layer-normalized and those of numbers
            batch-normalized, field by field. Defaults to `True`.
        hidden_units: Widths of the hidden layers of the DNN. Defaults to
            `(256, 128, 64)`.
        activation: Activation of the hidden layers. Defaults to `"relu"`.
        dropout: Float in `[0, 1)`, applied after each hidden layer. Defaults to `0.0`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, see `embed_fields`. Defaults to `None`.
        seed: Optional int for dropout.
        inputs: Optional dict from feature name to `KerasTensor`, used instead of new
            inputs; it joins two models.
        name: Name of the model and prefix of its layer names; `{name}_senet_plus` and
            `{name}_bilinear_plus` are its two branches.

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
        Zhang et al., "FiBiNet++: Reducing Model Size by Low Rank Feature Interaction
        Layer for CTR Prediction", CIKM 2023. It has no linear part, as in the paper.
    """
    check_int("bilinear_dim", bilinear_dim)
    frame = ClickModel(features, inputs=inputs, name=name)
    fields = frame.fields(
        embedding_dim, min_fields=2, embeddings_regularizer=embeddings_regularizer
    )
    if normalize:
        fields = _normalized(frame, fields)
    forms = layers.BilinearPlus(
        bilinear_dim, bilinear_type, name=f"{name}_bilinear_plus"
    )(fields)
    weighed = layers.SENETPlus(num_groups, reduction_ratio, name=f"{name}_senet_plus")(
        fields
    )
    x = keras.layers.Concatenate(name=f"{name}_joined")([forms, frame.flat(weighed)])
    logit = frame.deep_logit(
        x, hidden_units, activation=activation, dropout=dropout, seed=seed
    )
    return frame.model([logit])


def _normalized(frame, fields):
    """Normalizes each field of ids over its entries, each number over the batch."""
    name = frame.name
    _, num_fields, dim = fields.shape
    numeric = [i for i, f in enumerate(frame.features) if isinstance(f, NumericFeature)]
    others = [i for i in range(num_fields) if i not in numeric]

    def part(chosen, kind, layer):
        x = fields
        if len(chosen) < num_fields:
            x = layers.FieldOrder(chosen, name=f"{name}_{kind}-fields")(x)
        x = keras.layers.Flatten(name=f"{name}_{kind}-flat")(x)
        x = layer(x)
        shape = (len(chosen), dim)
        return keras.layers.Reshape(shape, name=f"{name}_{kind}-normal-fields")(x)

    parts = []
    if others:
        layer_norm = keras.layers.GroupNormalization(
            len(others), name=f"{name}_layer_norm"
        )
        parts.append(part(others, "id", layer_norm))
    if numeric:
        batch_norm = keras.layers.BatchNormalization(name=f"{name}_batch_norm")
        parts.append(part(numeric, "number", batch_norm))
    if len(parts) == 1:
        return parts[0]
    x = keras.layers.Concatenate(axis=1, name=f"{name}_normal-fields")(parts)
    order = np.argsort(others + numeric).tolist()
    return layers.FieldOrder(order, name=f"{name}_normal-order")(x)
