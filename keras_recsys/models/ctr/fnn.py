"""`build_fnn`, and its pre-training."""

import keras

from keras_recsys.layers import NumericNormalization, SequencePooling
from keras_recsys.models._blocks import ClickModel


def build_fnn(
    features,
    *,
    embedding_dim=16,
    hidden_units=(256, 128, 64),
    activation="tanh",
    dropout=0.0,
    pretrained=None,
    embeddings_regularizer=None,
    seed=None,
    inputs=None,
    name="fnn",
):
    """Builds FNN: a DNN on weight and vector of each value, which an FM can pre-train.

    With `w_f` the linear weight and `v_f` the vector of field `f`,

        logit = DNN([w_1 ; ... ; w_F ; v_1 ; ... ; v_F]) + bias

    To pre-train, fit a `build_fm` of the same features and `embedding_dim` and pass it:
    weights, vectors and bias start as the FM has them.

    Args:
        features: Sequence of features; its order is the order of the fields.
        embedding_dim: Positive int, the width of every field. Defaults to `16`.
        hidden_units: Widths of the hidden layers of the DNN. Defaults to
            `(256, 128, 64)`.
        activation: Activation of the hidden layers. Defaults to `"tanh"`, as in the
            paper.
        dropout: Float in `[0, 1)`, applied after each hidden layer. Defaults to `0.0`.
        pretrained: Optional model of `build_fm`, trained, with the same features in the
            same order. Defaults to `None`: weights start at 0 and vectors at random.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, see `embed_fields`. Defaults to `None`.
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
        ValueError: If an argument is out of its range, or `pretrained` has other
            features or weights of other shapes.

    Reference:
        Zhang et al., "Deep Learning over Multi-field Categorical Data: A Case Study on
        User Response Prediction", ECIR 2016. Differs from the paper: the widths are
        DeepCTR's (which has neither linear weights nor pre-training); the bias of the
        FM starts the bias of the output.
    """
    frame = ClickModel(features, inputs=inputs, name=name)
    vectors = frame.fields(embedding_dim, embeddings_regularizer=embeddings_regularizer)
    weights = frame.fields(
        1, part="linear", combiner="add", embeddings_initializer="zeros"
    )
    joined = keras.layers.Concatenate(name=f"{name}_joined-fields")([weights, vectors])
    logit = frame.deep_logit(
        frame.flat(joined),
        hidden_units,
        activation=activation,
        dropout=dropout,
        seed=seed,
    )
    model = frame.model([logit])
    if pretrained is not None:
        _take_weights(model, pretrained)
    return model


def _take_weights(model, pretrained):
    """Copies the tables, linear weights and bias of a factorization machine."""
    part = "input"
    try:
        _check_same("names", list(pretrained.input), list(model.input))
        for layer in model.layers:
            part = layer.name.removeprefix(model.name)
            if isinstance(layer, NumericNormalization | SequencePooling):
                twin = pretrained.get_layer(pretrained.name + part)
                named = {"name": None}
                _check_same(
                    "settings", twin.get_config() | named, layer.get_config() | named
                )
            if not layer.weights or not part.startswith(
                ("_fields", "_linear", "_probability")
            ):
                continue
            if part == "_linear-vectors":  # fields of width 1 here, there one layer
                part = "_linear-numbers"
            source = pretrained.get_layer(pretrained.name + part)
            for sizes in ("vocab_sizes", "field_names"):
                _check_same(
                    sizes, getattr(source, sizes, None), getattr(layer, sizes, None)
                )
            layer.set_weights(source.get_weights())
    except (AttributeError, ValueError) as error:
        raise ValueError(
            "`pretrained` must be a model of `build_fm` with the same features in the "
            f"same order and the same `embedding_dim`. Received: {pretrained!r}, in "
            f"which {part.removeprefix('_')!r} does not fit: {error}"
        ) from error


def _check_same(what, found, wanted):
    """Refuses fields of the same shape in another order."""
    if found != wanted:
        raise ValueError(f"{what} {found}, and not {wanted}.")
