"""`build_ubr4ctr`."""

from keras_recsys import layers
from keras_recsys.models.behavior._frame import BehaviorModel
from keras_recsys.models.behavior._reinforced_model import ReinforcedModel


def build_ubr4ctr(
    features,
    *,
    history,
    embedding_dim=16,
    num_positions=None,
    retrieval_units=(20,),
    num_heads=1,
    attention_units=(80, 40),
    interactions=("query", "value", "difference", "product"),
    attention_activation="linear",
    normalize=None,
    hidden_units=(64, 32),
    activation="relu",
    dropout=0.0,
    embeddings_regularizer=None,
    seed=None,
    inputs=None,
    name="ubr4ctr",
):
    """Builds UBR4CTR: first events are chosen for the target, then DIN reads those.

        kept, log_probability = BehaviorRetrieval(target, events)
        interest = TargetAttention(target, events that are kept)
        probability = sigmoid(MLP([interest ; target ; other features]))

    `compile` and `fit` are those of any click model, with one loss, of the
    probability. In training the choice is drawn, and learns by its reward, minus the
    loss of the sample (REINFORCE): the gradient of

        mean((loss_of_sample - running mean of the loss) * log_probability)

    joins that of the loss, whose value stays as it is. Otherwise events of probability
    1/2 and more are kept.

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
        retrieval_units: Widths of the network that gives an event its probability, see
            `BehaviorRetrieval`. Defaults to `(20,)`.
        num_heads: Positive int, heads of the self-attention before it; they divide the
            width of an event. Defaults to `1`.
        attention_units: Widths of the network that weights events. Defaults to
            `(80, 40)`.
        interactions: What it reads, see `TargetAttention`. Defaults to all four.
        attention_activation: `"linear"`, `"sigmoid"` or `"softmax"`. Defaults to
            `"linear"`.
        normalize: What weights are divided by, see `TargetAttention`. Defaults to
            `None`.
        hidden_units: Widths of the hidden layers of the head. Defaults to `(64, 32)`.
        activation: Activation of these layers. Defaults to `"relu"`.
        dropout: Float in `[0, 1)`, applied after each of them. Defaults to `0.0`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, see `embed_fields`. Defaults to `None`.
        seed: Optional int for the choices and dropout.
        inputs: Optional dict from feature name to `KerasTensor`, used instead of new
            inputs; it joins two models.
        name: Name of the model and prefix of its layer names; `{name}_retrieval`
            chooses, `{name}_interest` is the attention.

    Returns:
        An uncompiled `keras.Model`. Inputs: a dict from feature name to tensor; ids of
        shape `(batch_size,)`, histories and their times `(batch_size, max_len)`, in the
        dtype of the feature, and float32 numbers `(batch_size,)`. Outputs: a dict with
        `"probability"` and the `"log_probability"` of the choice, float32 tensors of
        shape `(batch_size, 1)`. A row without history, or of which nothing is kept, is
        answered from the target and the other features.

    Raises:
        TypeError: If an entry of `features` is no feature, or `history` pairs features
            of other kinds.
        ValueError: If an argument is out of its range, or features of a pair have two
            tables.

    Reference:
        Qin et al., "User Behavior Retrieval for Click-Through Rate Prediction", SIGIR
        2020, cut down to a choice among the events of one history, as in Lin et al.,
        "Sparse Attentive Memory Network for Click-through Rate Prediction with Long
        Sequences", CIKM 2022. The self-attention makes time and memory grow with the
        square of `max_len`. Differs from the first paper: both parts are trained
        together, and the reward is the loss, not the AUC.
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
    retrieval = layers.BehaviorRetrieval(
        retrieval_units, num_heads=num_heads, seed=seed, name=f"{name}_retrieval"
    )
    kept, log_probability = retrieval(
        frame.target,
        frame.events,
        value_mask=frame.mask,
        return_log_probability=True,
    )
    interest = layers.TargetAttention(
        attention_units,
        interactions=interactions,
        attention_activation=attention_activation,
        normalize=normalize,
        name=f"{name}_interest",
    )(frame.target, frame.events, value_mask=kept)
    model = frame.model_of(
        [interest], hidden_units, activation=activation, dropout=dropout, seed=seed
    )
    outputs = {**model.output, "log_probability": log_probability}
    return ReinforcedModel(model.input, outputs, name=name)
