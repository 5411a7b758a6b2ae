"""`build_dien`."""

import keras
from keras import ops

from keras_recsys import layers
from keras_recsys._checks import check_non_negative
from keras_recsys.models.behavior._frame import BehaviorModel


def build_dien(
    features,
    *,
    history,
    embedding_dim=16,
    num_positions=None,
    units=None,
    attention_units=(80, 40),
    update="paper",
    auxiliary_loss_weight=0.0,
    auxiliary_units=(100, 50),
    hidden_units=(64, 32),
    activation="relu",
    dropout=0.0,
    embeddings_regularizer=None,
    seed=None,
    inputs=None,
    name="dien",
):
    """Builds DIEN: two recurrences follow how the interest in the target evolved.

        interest = InterestEvolution(target, events)
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
        units: Optional positive int, width of the recurrences. Defaults to the width of
            an event.
        attention_units: Widths of the network that weights events. Defaults to
            `(80, 40)`.
        update: `"paper"` or `"released"`, see `InterestEvolution`. Defaults to
            `"paper"`.
        auxiliary_loss_weight: Float of at least 0, weight of a loss by which the states
            learn to tell the next event from another one: that of the row before in the
            batch, at the same place, if it is another one: give batches in which rows
            of different users are neighbours, as `shuffle=True` does. The loss that
            `fit` and `evaluate` report includes it. Defaults to `0.0`, no such loss.
        auxiliary_units: Widths of the network of that loss. Defaults to `(100, 50)`.
        hidden_units: Widths of the hidden layers of the head. Defaults to `(64, 32)`.
        activation: Activation of these layers. Defaults to `"relu"`.
        dropout: Float in `[0, 1)`, applied after each of them. Defaults to `0.0`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, see `embed_fields`. Defaults to `None`.
        seed: Optional int for dropout.
        inputs: Optional dict from feature name to `KerasTensor`, used instead of new
            inputs; it joins two models.
        name: Name of the model and prefix of its layer names; `{name}_interest` holds
            the recurrences.

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
        Zhou et al., "Deep Interest Evolution Network for Click-Through Rate
        Prediction", AAAI 2019; see `InterestEvolution` for what differs. The paper
        draws the other event of the auxiliary loss from all items, and adds its loss by
        default, as the code compared with in the paper on SAM does not.
    """
    check_non_negative("auxiliary_loss_weight", auxiliary_loss_weight)
    frame = BehaviorModel(
        features,
        history,
        embedding_dim=embedding_dim,
        num_positions=num_positions,
        embeddings_regularizer=embeddings_regularizer,
        inputs=inputs,
        name=name,
    )
    others = {}
    if auxiliary_loss_weight:
        before = RowBefore(name=f"{name}_negatives")
        negatives, negatives_mask = before(frame.events, frame.mask)
        others = {"negatives": negatives, "negatives_mask": negatives_mask}
    interest = layers.InterestEvolution(
        units,
        hidden_units=attention_units,
        update=update,
        auxiliary_loss_weight=auxiliary_loss_weight,
        auxiliary_hidden_units=auxiliary_units,
        name=f"{name}_interest",
    )(frame.target, frame.events, value_mask=frame.mask, **others)
    return frame.model_of(
        [interest], hidden_units, activation=activation, dropout=dropout, seed=seed
    )


@keras.saving.register_keras_serializable(package="keras_recsys")
class RowBefore(keras.layers.Layer):
    """The history of the row before in the batch, and where it is another event."""

    def call(self, value, mask):
        before = ops.roll(value, 1, axis=0)
        other = ops.any(before != value, axis=-1)
        return before, ops.logical_and(ops.roll(mask, 1, axis=0), other)

    def compute_output_spec(self, value, mask):
        return (
            keras.KerasTensor(value.shape, dtype=self.compute_dtype),
            keras.KerasTensor(mask.shape, dtype="bool"),
        )
