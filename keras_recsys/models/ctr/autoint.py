"""`build_autoint`."""

import keras

from keras_recsys import layers
from keras_recsys._checks import check_int
from keras_recsys.models._blocks import ClickModel


def build_autoint(
    features,
    *,
    embedding_dim=16,
    num_layers=3,
    num_heads=2,
    key_dim=16,
    hidden_units=(),
    activation="relu",
    dropout=0.0,
    embeddings_regularizer=None,
    seed=None,
    inputs=None,
    name="autoint",
):
    """Builds AutoInt: layers in which every field attends to all fields.

        logit = w . [all fields after `num_layers` interacting layers] + bias

    and with `hidden_units` (AutoInt+) the logit of a DNN on the vectors is added.

    Args:
        features: Sequence of features; its order is the order of the fields.
        embedding_dim: Positive int, the width of every field. Defaults to `16`.
        num_layers: Positive int, interacting layers. Defaults to `3`.
        num_heads: Positive int, see `InteractingLayer`. Defaults to `2`.
        key_dim: Positive int, width of one head. Defaults to `16`.
        hidden_units: Widths of the hidden layers of the DNN; `()` for none. Defaults to
            `()`.
        activation: Activation of the hidden layers. Defaults to `"relu"`.
        dropout: Float in `[0, 1)`, applied after each hidden layer. Defaults to `0.0`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, see `embed_fields`. Defaults to `None`.
        seed: Optional int for dropout.
        inputs: Optional dict from feature name to `KerasTensor`, used instead of new
            inputs; it joins two models.
        name: Name of the model and prefix of its layer names; `{name}_interacting_{i}`
            are the interacting layers.

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
        Song et al., "AutoInt: Automatic Feature Interaction Learning via Self-Attentive
        Neural Networks", CIKM 2019.
    """
    check_int("num_layers", num_layers)
    frame = ClickModel(features, inputs=inputs, name=name)
    x = fields = frame.fields(
        embedding_dim, min_fields=2, embeddings_regularizer=embeddings_regularizer
    )
    for i in range(num_layers):
        x = layers.InteractingLayer(num_heads, key_dim, name=f"{name}_interacting_{i}")(
            x
        )
    x = keras.layers.Flatten(name=f"{name}_interacting-flatten")(x)
    logits = [frame.logit(x, "interacting_logit")]
    if hidden_units:
        deep = frame.deep_logit(
            frame.flat(fields),
            hidden_units,
            activation=activation,
            dropout=dropout,
            seed=seed,
        )
        logits.append(deep)
    return frame.model(logits)
