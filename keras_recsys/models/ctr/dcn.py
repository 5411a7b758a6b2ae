"""`build_dcn`."""

import keras_rs

from keras_recsys import layers
from keras_recsys._checks import check_choice, check_int
from keras_recsys.models._blocks import ClickModel

VERSIONS = ("v1", "v2")
STRUCTURES = ("parallel", "stacked")


def build_dcn(
    features,
    *,
    embedding_dim=16,
    version="v2",
    num_cross_layers=2,
    projection_dim=None,
    structure="parallel",
    hidden_units=(256, 128, 64),
    activation="relu",
    dropout=0.0,
    embeddings_regularizer=None,
    cross_regularizer=None,
    seed=None,
    inputs=None,
    name="dcn",
):
    """Builds DCN: layers that multiply with the input again and again, and a DNN.

    With `x_0` all vectors and normalized numbers side by side,

        v1:  x_{l+1} = x_0 (x_l . w_l) + b_l + x_l
        v2:  x_{l+1} = x_0 * (W_l x_l + b_l) + x_l

        parallel:  logit = w . [x_L ; DNN(x_0)] + bias
        stacked:   logit = w . DNN(x_L) + bias

    Args:
        features: Sequence of features.
        embedding_dim: Positive int, the width of every vector of ids. Defaults to `16`.
        version: `"v1"`, a `CrossNetwork`, or `"v2"`, `keras_rs.layers.FeatureCross`.
            Defaults to `"v2"`.
        num_cross_layers: Positive int. Defaults to `2`.
        projection_dim: With `"v2"` only: positive int, the rank of `W_l`, or `None` for
            the full matrix. Defaults to `None`.
        structure: `"parallel"` or `"stacked"`. Defaults to `"parallel"`; `"v1"` has no
            other.
        hidden_units: Widths of the hidden layers of the DNN. Defaults to
            `(256, 128, 64)`.
        activation: Activation of the hidden layers. Defaults to `"relu"`.
        dropout: Float in `[0, 1)`, applied after each hidden layer. Defaults to `0.0`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, see `embed_fields`. Defaults to `None`.
        cross_regularizer: Regularizer of the cross kernels. Defaults to `None`.
        seed: Optional int for dropout.
        inputs: Optional dict from feature name to `KerasTensor`, used instead of new
            inputs; it joins two models.
        name: Name of the model and prefix of its layer names; `{name}_cross` (v1) or
            `{name}_cross_{i}` are the cross layers.

    Returns:
        An uncompiled `keras.Model`. Inputs: a dict from feature name to tensor; ids of
        shape `(batch_size,)`, sequences `(batch_size, max_len)`, both in the dtype of
        the feature, and float32 numbers `(batch_size,)`. Outputs: a dict with
        `"probability"`, a float32 tensor of shape `(batch_size, 1)`.

    Raises:
        TypeError: If an entry of `features` is no feature.
        ValueError: If an argument is out of its range or two contradict each other.

    Reference:
        Wang et al., "Deep & Cross Network for Ad Click Predictions", ADKDD 2017; Wang
        et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for
        Web-scale Learning to Rank Systems", WWW 2021. Differs from the papers: all
        features have the same width, and the widths of the DNN are DeepCTR's. Numbers
        enter `x_0` as they are, as in the first paper.
    """
    check_choice("version", version, VERSIONS)
    check_choice("structure", structure, STRUCTURES)
    check_int("num_cross_layers", num_cross_layers)
    if version == "v1" and (projection_dim is not None or structure != "parallel"):
        raise ValueError(
            "`projection_dim` must be None and `structure` 'parallel' where `version` "
            f"is 'v1'. Received: projection_dim={projection_dim!r}, "
            f"structure={structure!r}."
        )
    if projection_dim is not None:
        check_int("projection_dim", projection_dim)
    frame = ClickModel(features, inputs=inputs, name=name)
    start = frame.dense_input(
        embedding_dim, embeddings_regularizer=embeddings_regularizer
    )
    if version == "v1":
        crossed = layers.CrossNetwork(
            num_cross_layers,
            kernel_regularizer=cross_regularizer,
            name=f"{name}_cross",
        )(start)
    else:
        crossed = start
        for i in range(num_cross_layers):
            crossed = keras_rs.layers.FeatureCross(
                projection_dim,
                kernel_regularizer=cross_regularizer,
                name=f"{name}_cross_{i}",
            )(start, crossed)
    deep = frame.deep_logit(
        crossed if structure == "stacked" else start,
        hidden_units,
        activation=activation,
        dropout=dropout,
        seed=seed,
        extra=crossed if structure == "parallel" else None,
    )
    return frame.model([deep])
