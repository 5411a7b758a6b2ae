"""`build_xdeepfm`."""

from keras_recsys import layers
from keras_recsys.models._blocks import ClickModel


def build_xdeepfm(
    features,
    *,
    embedding_dim=16,
    cin_units=(128, 128),
    cin_split_half=True,
    cin_activation="relu",
    hidden_units=(256, 128, 64),
    activation="relu",
    dropout=0.0,
    numeric_inputs="field",
    embeddings_regularizer=None,
    linear_regularizer=None,
    seed=None,
    inputs=None,
    name="xdeepfm",
):
    """Builds xDeepFM: a compressed interaction network beside a linear part and a DNN.

        logit = linear + w . CIN(v_1, ..., v_F) + DNN([v_1 ; ... ; v_F]) + bias

    Args:
        features: Sequence of features; its order is the order of the fields.
        embedding_dim: Positive int, the width of every field. Defaults to `16`.
        cin_units: Rows of each layer of the CIN, see `CompressedInteraction`. Defaults
            to `(128, 128)`.
        cin_split_half: Whether half of the rows go on to the next layer and the other
            half to the output. Defaults to `True`, as in DeepCTR; the paper sends all
            to both.
        cin_activation: Activation of the rows. Defaults to `"relu"`, as in DeepCTR; the
            paper takes `"linear"`.
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
        name: Name of the model and prefix of its layer names; `{name}_cin` is the CIN.

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
        Lian et al., "xDeepFM: Combining Explicit and Implicit Feature Interactions for
        Recommender Systems", KDD 2018. Differs from the paper as said above, and in the
        widths, which are DeepCTR's.
    """
    frame = ClickModel(features, inputs=inputs, name=name)
    fields = frame.fields(
        embedding_dim,
        numeric_inputs=numeric_inputs,
        min_fields=2,
        embeddings_regularizer=embeddings_regularizer,
    )
    products = layers.CompressedInteraction(
        cin_units,
        split_half=cin_split_half,
        activation=cin_activation,
        name=f"{name}_cin",
    )(fields)
    deep = frame.deep_logit(
        frame.flat(fields, numeric_inputs),
        hidden_units,
        activation=activation,
        dropout=dropout,
        seed=seed,
    )
    cin = frame.logit(products, "cin_logit")
    return frame.model([*frame.linear(linear_regularizer), cin, deep])
