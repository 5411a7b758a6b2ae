"""`build_gru4rec`, a recurrent network over the history."""

import keras

from keras_recsys import layers
from keras_recsys._checks import check_rate
from keras_recsys.models.sequential._frame import SequenceFrame


def build_gru4rec(
    num_items,
    *,
    embedding_dim=64,
    hidden_dim=64,
    max_len=50,
    dropout=0.0,
    head=None,
    multi_input=False,
    seed=None,
    inputs=None,
    name="gru4rec",
):
    """Builds GRU4Rec: a GRU over the items, a dense layer, and a head of the next item.

        x = GRUEncoder(dropout(items))
        logits = head(x)    or, with multi_input,    head(MultiInputState(x))

    Args:
        num_items: Positive int, number of items; their ids are 1 to `num_items`, and 0
            is padding, on any side.
        embedding_dim: Positive int, width of an item. Defaults to `64`.
        hidden_dim: Positive int, width of the GRU. Defaults to `64`.
        max_len: Positive int: of a longer history the last `max_len` items are read.
            Defaults to `50`.
        dropout: Float in `[0, 1)`, applied to the vectors of the items. Defaults to
            `0.0`.
        head: The layer that scores the items, `CPRSoftmax(...)` or another of the
            room; a pattern, from whose config the model makes its own. Defaults to
            `None`, the plain softmax.
        multi_input: Whether the head reads a `MultiInputState` of three steps. Defaults
            to `False`.
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
        Hidasi et al., "Session-based Recommendations with Recurrent Neural Networks",
        ICLR 2016; see `GRUEncoder` for what differs. The head here is shared with all
        models, and its softmax goes over all items.
    """
    frame = SequenceFrame(
        num_items,
        embedding_dim,
        max_len,
        embeddings_initializer="glorot_normal",
        inputs=inputs,
        name=name,
    )
    dropped = keras.layers.Dropout(
        check_rate("dropout", dropout), seed=seed, name=f"{name}_dropout"
    )(frame.vectors)
    encoder = layers.GRUEncoder(hidden_dim, embedding_dim, name=f"{name}_encoder")
    return frame.model_of([encoder(dropped)], head, multi_input)
