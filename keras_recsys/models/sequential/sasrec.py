"""`build_sasrec`, self-attention over the history."""

import keras

from keras_recsys import layers
from keras_recsys.models.sequential._frame import SequenceFrame


def build_sasrec(
    num_items,
    *,
    embedding_dim=64,
    num_layers=2,
    num_heads=2,
    intermediate_dim=None,
    max_len=50,
    align="first",
    dropout=0.0,
    attention_dropout=0.1,
    head=None,
    multi_input=False,
    seed=None,
    inputs=None,
    name="sasrec",
):
    """Builds SASRec: a causal Transformer over the items, and a head of the next item.

        x = SequenceEncoder(items)
        logits = head(x)    or, with multi_input,    head(MultiInputState(x_1, x_2))

    Args:
        num_items: Positive int, number of items; their ids are 1 to `num_items`, and 0
            is padding, on any side.
        embedding_dim: Positive int, width of an item and of the encoder. Defaults to
            `64`.
        num_layers: Positive int, number of blocks. Defaults to `2`.
        num_heads: Positive int, a divisor of `embedding_dim`. Defaults to `2`.
        intermediate_dim: Optional positive int, inner width of the feed-forward parts.
            Defaults to `None`, four times `embedding_dim`.
        max_len: Positive int: of a longer history the last `max_len` items are read.
            Defaults to `50`.
        align: Where positions are counted from, `"first"` or `"last"`, see
            `SequenceEncoder`. With `"last"` a step does not mean the same in a sequence
            as in its prefix: train it on prefixes. Defaults to `"first"`.
        dropout: Float in `[0, 1)`, see `SequenceEncoder`. Defaults to `0.0`.
        attention_dropout: Float in `[0, 1)`, see `SequenceEncoder`. Defaults to `0.1`.
        head: The layer that scores the items, `CPRSoftmax(...)` or another of the
            room; a pattern, from whose config the model makes its own. Defaults to
            `None`, the plain softmax.
        multi_input: Whether the head reads a `MultiInputState` of the last two blocks
            and three steps. Defaults to `False`.
        seed: Optional int for dropout. Defaults to `None`.
        inputs: Optional dict from `"item_ids"` to an existing `keras.Input`.
        name: Name of the model, and prefix of its layer names.

    Returns:
        An uncompiled `NextItemModel`; compiled without a loss it has its own, see
        there. Input: `"item_ids"`, int32, `(batch_size, seq_len)`, oldest first.
        Outputs: `"logits"`, float32, `(batch_size, num_items + 1)`, -1e9 for id 0, and
        `"user_vector"`, float32, whose products with the rows of the table (layer
        `{name}_items`) retrieve items; its layer is `{name}_user_vector`.

    Raises:
        TypeError: If a size is not an integer, or `head` is no head.
        ValueError: If an argument is out of its range.

    Reference:
        Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018; see
        `SequenceEncoder` for what differs.
    """
    frame = SequenceFrame(
        num_items,
        embedding_dim,
        max_len,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=0.02),
        inputs=inputs,
        name=name,
    )
    encoder = layers.SequenceEncoder(
        num_layers,
        num_heads,
        intermediate_dim=intermediate_dim,
        max_len=max_len,
        align=align,
        dropout=dropout,
        attention_dropout=attention_dropout,
        seed=seed,
        name=f"{name}_encoder",
    )
    mask = None
    if align == "last":  # where the last item of a row is, its padding says
        mask = layers.PaddingMask(name=f"{name}_mask")(frame.ids)
    states = encoder(frame.vectors, mask=mask, return_all_states=True)
    return frame.model_of(states[-2:], head, multi_input)
