"""`build_dlrm`."""

import keras
import keras_rs
from keras import ops

from keras_recsys.features import compress_features
from keras_recsys.models._blocks import ClickModel, mlp


@keras.saving.register_keras_serializable(package="keras_recsys")
class FieldDots(keras_rs.layers.DotInteraction):
    """`keras_rs.layers.DotInteraction` of `(batch_size, num_fields, dim)`."""

    def call(self, inputs):
        return super().call(ops.unstack(inputs, axis=1))

    def compute_output_shape(self, input_shape):
        batch_size, num_fields, dim = input_shape
        return super().compute_output_shape([(batch_size, dim)] * num_fields)


def build_dlrm(
    features,
    *,
    embedding_dim=16,
    bottom_units=(64,),
    top_units=(128, 64),
    activation="relu",
    dropout=0.0,
    qr_threshold=None,
    qr_num_buckets=None,
    combiner="multiply",
    embeddings_initializer="uniform",
    embeddings_regularizer=None,
    seed=None,
    inputs=None,
    name="dlrm",
):
    """Builds DLRM: numbers become one more vector, and all pairs of vectors are dotted.

    With `z` the output of the bottom network and `e_f` the embeddings,

        probability = sigmoid(top([z ; dots of all pairs of (z, e_1, ..., e_F)]))

    No vector is dotted with itself. Without numeric features there is no `z`.

    Args:
        features: Sequence of features that give at least two vectors: one for each
            with ids, and one for all numbers together.
        embedding_dim: Positive int, the width of every vector. Defaults to `16`.
        bottom_units: Widths of the hidden layers of the bottom network, which ends in
            a layer of width `embedding_dim`. Defaults to `(64,)`.
        top_units: Widths of the hidden layers of the top network. Defaults to
            `(128, 64)`.
        activation: Activation of all hidden layers and of `z`. Defaults to `"relu"`.
        dropout: Float in `[0, 1)`, applied after each hidden layer of the top network.
            Defaults to `0.0`.
        qr_threshold: Int: features of more ids with `embedding="full"` get two small
            tables instead, see `compress_features`; DLRM takes 200. `None` leaves all
            as they are declared. Defaults to `None`.
        qr_num_buckets: Rows of the remainder tables that `qr_threshold` makes; DLRM
            takes 4, its "collisions". Defaults to `ceil(sqrt(vocab_size))`.
        combiner: Combiner of `"qr"` features, see `QREmbedding`. Defaults to
            `"multiply"`.
        embeddings_initializer: See `embed_fields`. Defaults to `"uniform"`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse. Defaults to `None`.
        seed: Optional int for dropout.
        inputs: Optional dict from feature name to `KerasTensor`, used instead of new
            inputs; it joins two models.
        name: Name of the model and prefix of its layer names. `{name}_bottom` holds
            `z`, `{name}_dots` the dot products.

    Returns:
        An uncompiled `keras.Model`. Inputs: a dict from feature name to tensor; ids of
        shape `(batch_size,)`, sequences `(batch_size, max_len)`, both in the dtype of
        the feature, and float32 numbers `(batch_size,)`. Outputs: a dict with
        `"probability"`, a float32 tensor of shape `(batch_size, 1)`.

    Raises:
        TypeError: If an entry of `features` is no feature.
        ValueError: If an argument is out of its range, or there are fewer than two
            vectors.

    Reference:
        Naumov et al., "Deep Learning Recommendation Model for Personalization and
        Recommendation Systems", 2019. Differs from DLRM's code: widths are smaller by
        default, tables start like plain ones whatever the combiner
        (`embeddings_initializer="dlrm"` starts them as there), and with `"concat"`
        every vector keeps the width `embedding_dim`.
    """
    if qr_threshold is not None:
        features = compress_features(features, qr_threshold, num_buckets=qr_num_buckets)
    elif qr_num_buckets is not None:
        raise ValueError(
            "`qr_num_buckets` must be None where `qr_threshold` is None. "
            f"Received: qr_num_buckets={qr_num_buckets!r}."
        )
    frame = ClickModel(features, inputs=inputs, name=name)
    if len(frame.with_ids) + (frame.numbers is not None) < 2:
        raise ValueError(
            "`features` must give at least two vectors, one for each feature with ids "
            "and one for all numbers. "
            f"Received: {[feature.name for feature in frame.features]}."
        )
    vectors = frame.fields(
        embedding_dim,
        numeric_inputs="dnn",
        combiner=combiner,
        embeddings_initializer=embeddings_initializer,
        embeddings_regularizer=embeddings_regularizer,
    )
    bottom = None
    if frame.numbers is not None:
        x = mlp(
            frame.numbers,
            bottom_units,
            activation=activation,
            dropout=0.0,
            seed=seed,
            name=f"{name}_bottom",
        )
        bottom = keras.layers.Dense(
            embedding_dim, activation=activation, name=f"{name}_bottom"
        )(x)
        first = keras.layers.Reshape((1, embedding_dim), name=f"{name}_bottom-field")
        joined = keras.layers.Concatenate(axis=1, name=f"{name}_vectors")
        vectors = joined([first(bottom), vectors])
    x = FieldDots(name=f"{name}_dots")(vectors)
    if bottom is not None:
        x = keras.layers.Concatenate(name=f"{name}_joined")([bottom, x])
    x = mlp(
        x,
        top_units,
        activation=activation,
        dropout=dropout,
        seed=seed,
        name=f"{name}_top",
    )
    return frame.model([frame.logit(x, "logit")])
