"""`build_ffm`."""

from keras_recsys import layers
from keras_recsys._checks import check_int
from keras_recsys.models._blocks import ClickModel


def build_ffm(
    features,
    *,
    embedding_dim=4,
    embeddings_regularizer=None,
    linear_regularizer=None,
    inputs=None,
    name="ffm",
):
    """Builds a field-aware factorization machine: a vector for each pair of fields.

    With `v_{i,j}` the vector of the value of field `i` that faces field `j`,

        logit = linear + sum over pairs i < j of v_{i,j} . v_{j,i} + bias

    A value has `num_fields * embedding_dim` weights, of which those that face its own
    field are never used: plan its memory with `memory.summary` of that width.

    Args:
        features: Sequence of features; its order is the order of the fields.
        embedding_dim: Positive int, the width of each of the vectors. Defaults to `4`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, see `embed_fields`. Defaults to `None`.
        linear_regularizer: Regularizer of the linear weights. Defaults to `None`.
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
        ValueError: If an argument is out of its range, or there are fewer than two
            fields.

    Reference:
        Juan et al., "Field-aware Factorization Machines for CTR Prediction", RecSys
        2016. Differs from the paper: it has a linear part, as its code has on request.
    """
    frame = ClickModel(features, inputs=inputs, name=name)
    fields = frame.fields(
        check_int("embedding_dim", embedding_dim) * len(frame.features),
        min_fields=2,
        embeddings_regularizer=embeddings_regularizer,
    )
    pairs = layers.FieldAwareFactorizationMachine(name=f"{name}_pairs")(fields)
    return frame.model([*frame.linear(linear_regularizer), pairs])
