"""`build_mimn`."""

from keras_recsys import layers
from keras_recsys.models.behavior._frame import BehaviorModel


def build_mimn(
    features,
    *,
    history,
    embedding_dim=16,
    num_positions=None,
    num_slots=4,
    hidden_units=(64, 32),
    activation="relu",
    dropout=0.0,
    embeddings_regularizer=None,
    seed=None,
    inputs=None,
    name="mimn",
):
    """Builds MIMN: the history is written into a few slots, which the target reads.

        interest = [MemorySlots(target, events) ; sum of the events]
        probability = sigmoid(MLP([interest ; target ; other features]))

    The history is read event by event, so that time grows with its length in steps that
    wait for each other.

    Args:
        features: Sequence of features. Those of the history and of the target share
            tables; at most one `TimeGapFeature` adds a vector for how long ago to each
            event; all others go to the head.
        history: Dict from the name of each `SequenceFeature` of the history, oldest
            event first, to that of the `CategoricalFeature` of the target, such as
            `{"item_history": "item"}`. Id 0 of the first one is padding, wherever it
            stands.
        embedding_dim: Positive int, width of a vector; an event that has several
            features is that many times wider. Defaults to `16`.
        num_positions: Optional int: adds a vector for how many events ago to each
            event, see `ReversePositionEmbedding`. Defaults to `None`.
        num_slots: Positive int, slots of the memory. Defaults to `4`.
        hidden_units: Widths of the hidden layers of the head. Defaults to `(64, 32)`.
        activation: Activation of these layers. Defaults to `"relu"`.
        dropout: Float in `[0, 1)`, applied after each of them. Defaults to `0.0`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, see `embed_fields`. Defaults to `None`.
        seed: Optional int for dropout.
        inputs: Optional dict from feature name to `KerasTensor`, used instead of new
            inputs; it joins two models.
        name: Name of the model and prefix of its layer names; `{name}_interest` holds
            the memory.

    Returns:
        An uncompiled `keras.Model`. Inputs: a dict from feature name to tensor; ids of
        shape `(batch_size,)`, histories and their times `(batch_size, max_len)`, in the
        dtype of the feature, and float32 numbers `(batch_size,)`. Outputs: a dict with
        `"probability"`, a float32 tensor of shape `(batch_size, 1)`. A row without
        history is answered from the target and the other features.

    Raises:
        TypeError: If an entry of `features` is no feature, or `history` pairs features
            of other kinds.
        ValueError: If an argument is out of its range, or features of a pair have two
            tables.

    Reference:
        Pi et al., "Practice on Long Sequential User Behavior Modeling for Click-Through
        Rate Prediction", KDD 2019; see `MemorySlots` for what differs.
    """
    frame = BehaviorModel(
        features,
        history,
        embedding_dim=embedding_dim,
        num_positions=num_positions,
        embeddings_regularizer=embeddings_regularizer,
        inputs=inputs,
        name=name,
    )
    memory = layers.MemorySlots(num_slots, name=f"{name}_interest")(
        frame.target, frame.events, value_mask=frame.mask
    )
    total = layers.SequencePooling("sum", name=f"{name}_sum")(
        frame.events, mask=frame.mask
    )
    return frame.model_of(
        [memory, total], hidden_units, activation=activation, dropout=dropout, seed=seed
    )
