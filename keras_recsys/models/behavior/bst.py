"""`build_bst`."""

import keras
from keras import ops

from keras_recsys import layers
from keras_recsys._checks import check_choice, check_int
from keras_recsys.models.behavior._frame import BehaviorModel

POOLINGS = ("mean", "flatten")


def build_bst(
    features,
    *,
    history,
    embedding_dim=16,
    num_positions=None,
    num_blocks=1,
    num_heads=8,
    include_target=True,
    pre_norm=False,
    projection_activation=None,
    block_activation="leaky_relu",
    use_output_projection=True,
    pooling="mean",
    hidden_units=(64, 32),
    activation="relu",
    dropout=0.0,
    embeddings_regularizer=None,
    seed=None,
    inputs=None,
    name="bst",
):
    """Builds BST: events and target attend to each other in Transformer blocks.

        interest = pooling(SelfAttentionBlock([events ; target]))
        probability = sigmoid(MLP([interest ; target ; other features]))

    Time and memory grow with the square of the history: cut it, to a hundred events or
    so. The SASRec that the paper on SAM compares with is

        build_bst(..., num_heads=1, include_target=False, pre_norm=True,
                  projection_activation="relu", block_activation="relu",
                  use_output_projection=False, pooling="flatten")

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
        num_blocks: Positive int. Defaults to `1`.
        num_heads: Positive int, heads of a block, a divisor of the width of an event.
            Defaults to `8`.
        include_target: Whether the target is the last step of the sequence. Defaults to
            `True`.
        pre_norm: Whether normalizations come first, see `SelfAttentionBlock`. Defaults
            to `False`.
        projection_activation: Activation of query, key and value. Defaults to `None`.
        block_activation: Activation inside the feed-forward part of a block. Defaults
            to `"leaky_relu"`.
        use_output_projection: Whether a dense layer mixes the heads. Defaults to
            `True`.
        pooling: What makes one vector of the steps: `"mean"` of the real ones, or
            `"flatten"`, all side by side, which needs `max_len` and ties the model to
            it. Defaults to `"mean"`.
        hidden_units: Widths of the hidden layers of the head. Defaults to `(64, 32)`.
        activation: Activation of these layers. Defaults to `"relu"`.
        dropout: Float in `[0, 1)`, applied after each of them and in the
            blocks. Defaults to `0.0`.
        embeddings_regularizer: Regularizer of the vectors of each batch, which keeps
            the gradients of the tables sparse, see `embed_fields`. Defaults to `None`.
        seed: Optional int for dropout.
        inputs: Optional dict from feature name to `KerasTensor`, used instead of new
            inputs; it joins two models.
        name: Name of the model and prefix of its layer names; `{name}_block_{i}` are
            the blocks.

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
        Chen et al., "Behavior Sequence Transformer for E-commerce Recommendation in
        Alibaba", DLP-KDD 2019. Its steps lie side by side (`pooling="flatten"`), and
        its position is a `TimeGapFeature`.
    """
    check_choice("pooling", pooling, POOLINGS)
    check_int("num_blocks", num_blocks)
    frame = BehaviorModel(
        features,
        history,
        embedding_dim=embedding_dim,
        num_positions=num_positions,
        embeddings_regularizer=embeddings_regularizer,
        inputs=inputs,
        name=name,
    )
    if pooling == "flatten" and frame.mask.shape[1] is None:
        raise ValueError(
            "`pooling` must be 'mean' where the history has no `max_len`. "
            f"Received: pooling={pooling!r}."
        )
    x, mask = frame.events, frame.mask
    if include_target:
        joined = WithTarget(name=f"{name}_steps")
        x, mask = joined(x, frame.target, mask)
    for i in range(num_blocks):
        x = layers.SelfAttentionBlock(
            num_heads,
            activation=block_activation,
            projection_activation=projection_activation,
            use_output_projection=use_output_projection,
            pre_norm=pre_norm,
            dropout=dropout,
            seed=None if seed is None else seed + 100 * (i + 1),
            name=f"{name}_block_{i}",
        )(x, mask=mask)
    if pooling == "flatten":
        interest = FlattenSteps(name=f"{name}_interest")(x)
    else:
        mean = layers.SequencePooling("mean", name=f"{name}_interest")
        interest = mean(x, mask=mask)
    return frame.model_of(
        [interest], hidden_units, activation=activation, dropout=dropout, seed=seed
    )


@keras.saving.register_keras_serializable(package="keras_recsys")
class WithTarget(keras.layers.Layer):
    """A history with the target as its last step, and the mask of that."""

    def call(self, value, query, mask):
        one = ops.ones_like(mask[:, :1])
        return (
            ops.concatenate([value, ops.expand_dims(query, 1)], axis=1),
            ops.concatenate([mask, one], axis=1),
        )

    def compute_output_spec(self, value, query, mask):
        batch_size, seq_len, dim = value.shape
        seq_len = None if seq_len is None else seq_len + 1
        return (
            keras.KerasTensor((batch_size, seq_len, dim), dtype=self.compute_dtype),
            keras.KerasTensor((batch_size, seq_len), dtype="bool"),
        )


@keras.saving.register_keras_serializable(package="keras_recsys")
class FlattenSteps(keras.layers.Flatten):
    """All steps side by side. Keras' own layer warns that the mask ends there."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_mask(self, inputs, mask=None):
        return None
