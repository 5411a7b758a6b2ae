"""`build_fibinet`."""

import keras

from keras_recsys import layers
from keras_recsys._checks import check_choice
from keras_recsys.models._blocks import ClickModel, dropped

INTERACTIONS = ("bilinear", "hadamard")


def build_fibinet(
    features,
    *,
    embedding_dim=16,
    bilinear_type="interaction",
    raw_interaction="bilinear",
    senet_interaction="bilinear",
    share_bilinear=False,
    reduction_ratio=3,
    senet_squeeze="mean",
    senet_activation="relu",
    deep=True,
    hidden_units=(256, 128, 64),
    activation="relu",
    dropout=0.0,
    numeric_inputs="field",
    embeddings_regularizer=None,
    linear_regularizer=None,
    seed=None,
    inputs=None,
    name="fibinet",
):
    """Builds FiBiNET, which weighs fields and multiplies all pairs of them.

    With `E` the field embeddings, `p` the pairs of `E` and `q` those of `SENET(E)`,

        shallow:  logit = linear + sum(p) + sum(q) + bias
        deep:     logit = linear + DNN([p ; q]) + bias

    Args:
        features: Sequence of features that give at least two fields; its order is the
            order of the fields, on which the product of a pair depends.
        embedding_dim: Positive int, the width of every field. Defaults to `16`.
        bilinear_type: `"all"`, `"each"` or `"interaction"`, see `BilinearInteraction`.
            Defaults to `"interaction"`.
        raw_interaction: `"bilinear"` or `"hadamard"`, how the pairs of `E` are
            multiplied. Defaults to `"bilinear"`.
        senet_interaction: The same for the pairs of `SENET(E)`. Defaults to
            `"bilinear"`.
        share_bilinear: Whether both branches have the same matrices. Defaults to
            `False`.
        reduction_ratio: See `SENETLayer`. Defaults to `3`.
        senet_squeeze: `"mean"` or `"max"`, see `SENETLayer`. Defaults to `"mean"`.
        senet_activation: Activation of the field weights, see `SENETLayer`. Defaults to
            `"relu"`.
        deep: Whether a DNN reads the pairs; without one they are summed, which never
            builds them. Defaults to `True`.
        hidden_units: Widths of the hidden layers of the DNN; `()` makes it one linear
            unit. Defaults to `(256, 128, 64)`.
        activation: Activation of the hidden layers. Defaults to `"relu"`.
        dropout: Float in `[0, 1)`, applied after each hidden layer. Defaults to `0.0`;
            the paper takes 0.5.
        numeric_inputs: `"field"`: numbers are fields like all others; `"dnn"`: they
            enter the linear part and the DNN alone, as in DeepCTR. Defaults to
            `"field"`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, see `embed_fields`. Defaults to `None`.
        linear_regularizer: Regularizer of the linear weights. Defaults to `None`.
        seed: Optional int for dropout.
        inputs: Optional dict from feature name to `KerasTensor`, used instead of new
            inputs; it joins two models.
        name: Name of the model and prefix of its layer names. `{name}_senet` holds the
            field weights, `{name}_fields` the stacked embeddings.

    Returns:
        An uncompiled `keras.Model`. Inputs: a dict from feature name to tensor; ids of
        shape `(batch_size,)`, sequences `(batch_size, max_len)`, both in the dtype of
        the feature, and float32 numbers `(batch_size,)`. Outputs: a dict with
        `"probability"`, a float32 tensor of shape `(batch_size, 1)`.

    Raises:
        TypeError: If an entry of `features` is no feature.
        ValueError: If an argument is out of its range or two contradict each other.

    Reference:
        Huang et al., "FiBiNET: Combining Feature Importance and Bilinear feature
        Interaction for Click-Through Rate Prediction", RecSys 2019. Differs from the
        paper: widths and dropout are DeepCTR's; the concatenation of `p` and `q` and
        the first hidden layer are one step, `BilinearDense`.
    """
    types = []
    for key, value in (
        ("raw_interaction", raw_interaction),
        ("senet_interaction", senet_interaction),
    ):
        check_choice(key, value, INTERACTIONS)
        types.append(bilinear_type if value == "bilinear" else "hadamard")
    if share_bilinear and types[0] != types[1]:
        raise ValueError(
            "`share_bilinear` must be False where the branches differ. Received: "
            f"raw_interaction={raw_interaction!r}, "
            f"senet_interaction={senet_interaction!r}."
        )
    if numeric_inputs == "dnn" and not deep:
        raise ValueError(
            "`numeric_inputs` must be 'field' where `deep` is False. "
            f"Received: numeric_inputs={numeric_inputs!r}."
        )
    frame = ClickModel(features, inputs=inputs, name=name)
    fields = frame.fields(
        embedding_dim,
        numeric_inputs=numeric_inputs,
        min_fields=2,
        embeddings_regularizer=embeddings_regularizer,
    )
    weighed, weights = layers.SENETLayer(
        reduction_ratio,
        squeeze=senet_squeeze,
        activation=senet_activation,
        name=f"{name}_senet",
    )(fields, return_weights=True)
    logits = frame.linear(linear_regularizer)
    if deep:
        x = _combine(
            fields,
            weights,
            frame.numbers if numeric_inputs == "dnn" else None,
            hidden_units[0] if hidden_units else 1,
            tuple(types),
            share_bilinear,
            use_bias=bool(hidden_units),  # else the bias of the output stands for it
            name=name,
        )
        if hidden_units:
            x = keras.layers.Activation(activation, name=f"{name}_activation_0")(x)
            x = dropped(x, dropout, seed=seed, name=name, index=0)
            x = frame.deep_logit(
                x,
                hidden_units[1:],
                activation=activation,
                dropout=dropout,
                seed=seed,
                start=1,
            )
        logits.append(x)
    else:
        names = ("bilinear",) * 2 if share_bilinear else ("raw", "senet")
        made = {}
        for part, x, kind in zip(names, (fields, weighed), types, strict=True):
            if part not in made:
                made[part] = layers.BilinearInteraction(
                    kind, reduction="sum", name=f"{name}_{part}_sum"
                )
            logits.append(made[part](x))
    return frame.model(logits)


def _combine(fields, weights, numbers, units, types, share_bilinear, *, use_bias, name):
    """First layer of the DNN on `[p ; q ; numbers]`, before its activation."""
    num_fields, dim = fields.shape[1:]
    rows = num_fields * (num_fields - 1) * dim
    if numbers is not None:
        rows += numbers.shape[1]
    # Glorot's bound for the whole input, of which each part is some rows.
    limit = (6 / (rows + units)) ** 0.5
    initializer = keras.initializers.RandomUniform(-limit, limit)
    x = layers.BilinearDense(
        units,
        types[0] if types[0] == types[1] else types,
        share_kernel=share_bilinear,
        use_bias=use_bias,
        projection_initializer=initializer,
        name=f"{name}_bilinear_dense_0",
    )(fields, field_weights=weights)
    if numbers is None:
        return x
    part = keras.layers.Dense(
        units,
        use_bias=False,
        kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
        name=f"{name}_numeric_dense_0",
    )(numbers)
    return keras.layers.Add(name=f"{name}_dense_0")([x, part])
