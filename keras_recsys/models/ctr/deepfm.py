"""`build_deepfm`."""

from keras_recsys import layers
from keras_recsys.models._blocks import ClickModel


def build_deepfm(
    features,
    *,
    embedding_dim=16,
    hidden_units=(256, 128, 64),
    activation="relu",
    dropout=0.0,
    numeric_inputs="field",
    embeddings_regularizer=None,
    linear_regularizer=None,
    seed=None,
    inputs=None,
    name="deepfm",
):
    """Builds DeepFM: a factorization machine and a DNN on the same vectors.

        logit = linear + sum over pairs i < j of v_i . v_j + DNN([v_1 ; ... ; v_F])

    Args:
        features: Sequence of features; its order is the order of the fields.
        embedding_dim: Positive int, the width of every field. Defaults to `16`.
        hidden_units: Widths of the hidden layers of the DNN. Defaults to
            `(256, 128, 64)`.
        activation: Activation of the hidden layers. Defaults to `"relu"`.
        dropout: Float in `[0, 1)`, applied after each hidden layer. Defaults to `0.0`.
        numeric_inputs: `"field"`: numbers are fields like all others; `"dnn"`: they
            enter the linear part and the DNN alone. Defaults to `"field"`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, see `embed_fields`. Defaults to `None`.
        linear_regularizer: Regularizer of the linear weights. Defaults to `None`.
        seed: Optional int for dropout.
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
        Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR
        Prediction", IJCAI 2017. Differs from the paper: the widths are DeepCTR's, and
        there is no dropout by default; the paper has three layers of 400 units and
        drops half.
    """
    frame = ClickModel(features, inputs=inputs, name=name)
    fields = frame.fields(
        embedding_dim,
        numeric_inputs=numeric_inputs,
        min_fields=2,
        embeddings_regularizer=embeddings_regularizer,
    )
    pairs = layers.FactorizationMachine(name=f"{name}_pairs")(fields)
    deep = frame.deep_logit(
        frame.flat(fields, numeric_inputs),
        hidden_units,
        activation=activation,
        dropout=dropout,
        seed=seed,
    )
    return frame.model([*frame.linear(linear_regularizer), pairs, deep])
