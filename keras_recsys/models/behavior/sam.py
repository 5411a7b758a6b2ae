"""`build_sam`."""

import keras

from keras_recsys import layers
from keras_recsys._checks import check_int
from keras_recsys.models.behavior._frame import BehaviorModel


def build_sam(
    features,
    *,
    history,
    embedding_dim=16,
    num_positions=None,
    num_passes=3,
    num_steps=3,
    attention_dim=32,
    attention_activation="sigmoid",
    normalize=None,
    share_pass_weights=True,
    use_attention=True,
    score_mode="feed_forward",
    use_iterative_walk=True,
    use_target=True,
    use_subtraction=True,
    attention_features=None,
    hidden_units=(64, 32),
    activation="relu",
    dropout=0.0,
    embeddings_regularizer=None,
    seed=None,
    inputs=None,
    name="sam",
):
    """Builds SAM: a memory that reads a long history several times.

        memory = IterativeMemory(target, events)
        interest = MemoryEnhancement(memory, target)
        probability = sigmoid(MLP([interest ; target ; other features]))

    Time and memory grow linearly with the history. The models of the paper are

    | model | arguments |
    | --- | --- |
    | SAM 2P, 3P | `num_passes=2` or `3`, `num_steps=0` |
    | SAM 3P+ | the defaults |
    | SAM 3P+ts | a `TimeGapFeature` among the features, and `num_positions` |
    | without memory enhancement | `num_steps=0` |
    | delayed cross | `num_steps=0, use_target=False` |
    | without subtraction | `use_subtraction=False` |
    | without iterative walk | `num_steps=0, use_iterative_walk=False` |
    | dot product | these and `score_mode="dot", attention_activation="softmax"` |
    | without attention | `num_steps=0, use_attention=False` |

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
        num_passes: Positive int, how often the history is read. Defaults to `3`.
        num_steps: Int, steps of `MemoryEnhancement`; `0` leaves it out. Defaults to
            `3`.
        attention_dim: Positive int, width of the hidden layer that weights events.
            Defaults to `32`.
        attention_activation: `"sigmoid"` or `"softmax"`. Defaults to `"sigmoid"`.
        normalize: What weights are divided by, see `DualQueryAttention`. Defaults to
            `None`.
        share_pass_weights: Whether all passes have one attention. Defaults to `True`.
        use_attention: Whether events are weighted; otherwise the interest starts as
            their mean, and the arguments of passes have no effect. Defaults to `True`.
        score_mode: `"feed_forward"` or `"dot"`, see `DualQueryAttention`. Defaults to
            `"feed_forward"`.
        use_iterative_walk: Whether there is a memory; otherwise one pass is made with
            the target in its place, and its sum is the interest. Defaults to `True`.
        use_target: Whether the target has a part in the passes, see
            `IterativeMemory`; the head reads it in any case. Defaults to `True`.
        use_subtraction: Whether the attention reads differences. Defaults to `True`.
        attention_features: Optional int: the weights of each pass also go through a
            dense layer of so many ReLUs to the head, as in the authors' code: without
            steps for all passes, with their memories and batch normalization, and with
            steps for the last pass. It needs `max_len`, and ties the model to it.
            Defaults to `None`.
        hidden_units: Widths of the hidden layers of the head. Defaults to `(64, 32)`.
        activation: Activation of these layers. Defaults to `"relu"`.
        dropout: Float in `[0, 1)`, applied after each of them. Defaults to `0.0`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, see `embed_fields`. Defaults to `None`.
        seed: Optional int for dropout.
        inputs: Optional dict from feature name to `KerasTensor`, used instead of new
            inputs; it joins two models.
        name: Name of the model and prefix of its layer names; `{name}_memory` makes the
            passes, `{name}_enhancement` the steps.

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
        Lin et al., "Sparse Attentive Memory Network for Click-through Rate Prediction
        with Long Sequences", CIKM 2022. The paper and the authors' code differ in many
        places; the defaults are the paper's, see `IterativeMemory` and
        `MemoryEnhancement`. Widths are those for its public data sets; its industrial
        model has vectors of 32 and a head of (512, 256, 128). What replaces the
        operands in the ablations is not in the paper and chosen here.
    """
    check_int("num_steps", num_steps, minimum=0)
    if attention_features is not None:
        check_int("attention_features", attention_features)
        if not (use_attention and use_iterative_walk):
            raise ValueError(
                "`attention_features` must be None where there are no passes. Received:"
                f" attention_features={attention_features!r}, "
                f"use_attention={use_attention!r}, "
                f"use_iterative_walk={use_iterative_walk!r}."
            )
    frame = BehaviorModel(
        features,
        history,
        embedding_dim=embedding_dim,
        num_positions=num_positions,
        embeddings_regularizer=embeddings_regularizer,
        inputs=inputs,
        name=name,
    )
    if attention_features is not None and frame.mask.shape[1] is None:
        raise ValueError(
            "`attention_features` must be None where the history has no `max_len`. "
            f"Received: attention_features={attention_features!r}."
        )
    target, events, mask = frame.target, frame.events, frame.mask
    scoring = {
        "attention_activation": attention_activation,
        "normalize": normalize,
        "score_mode": score_mode,
        "use_target": use_target,
        "use_subtraction": use_subtraction,
    }
    weights = None
    if not use_attention:
        pooling = layers.SequencePooling("mean", name=f"{name}_memory")
        memory = pooling(events, mask=mask)
    elif not use_iterative_walk:
        attention = layers.DualQueryAttention(
            attention_dim, **scoring, name=f"{name}_memory"
        )
        memory = attention(target, target, events, value_mask=mask)
    else:
        read = layers.IterativeMemory(
            num_passes,
            attention_dim,
            **scoring,
            share_pass_weights=share_pass_weights,
            return_memories=attention_features is not None and not num_steps,
            name=f"{name}_memory",
        )
        memory = read(
            target,
            events,
            value_mask=mask,
            return_attention_scores=attention_features is not None,
        )
        if attention_features is not None:
            memory, weights = memory
    if num_steps:
        enhancement = layers.MemoryEnhancement(num_steps, name=f"{name}_enhancement")
        memory = enhancement(memory, target)
    interests = [memory]
    if attention_features is not None:
        interests = _with_weights(
            memory, weights, attention_features, bool(num_steps), name
        )
    return frame.model_of(
        interests, hidden_units, activation=activation, dropout=dropout, seed=seed
    )


def _with_weights(memory, weights, units, last_only, name):
    """Dense layers on the weights of passes, and the memory, for the head.

    Args:
        memory: Tensor, `(batch_size, dim)` where `last_only`, and `(batch_size,
            num_passes, dim)` otherwise.
        weights: Tensor, `(batch_size, num_passes, seq_len)`.
        units: Width of a layer.
        last_only: Whether the weights of the last pass alone count.
        name: Name of the model.

    Returns:
        List of tensors, `(batch_size, ...)`.
    """
    count = weights.shape[1]

    def of_pass(x, i, part):
        one = keras.layers.Cropping1D((i, count - 1 - i), name=f"{name}_{part}_{i}")
        return keras.layers.Flatten(name=f"{name}_{part}-row_{i}")(one(x))

    parts = []
    for i in range(count - 1 if last_only else 0, count):
        dense = keras.layers.Dense(
            units, activation="relu", name=f"{name}_attention-features_{i}"
        )
        parts.append(dense(of_pass(weights, i, "weights")))
        parts.append(memory if last_only else of_pass(memory, i, "memory"))
    if last_only:
        return parts
    joined = keras.layers.Concatenate(name=f"{name}_passes")(parts)
    return [keras.layers.BatchNormalization(name=f"{name}_normalization")(joined)]
