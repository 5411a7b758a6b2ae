"""`build_repeatnet`, a recurrent network that repeats or explores."""

from keras_recsys import layers
from keras_recsys._checks import check_rate
from keras_recsys.models.sequential._frame import SequenceFrame


def build_repeatnet(
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
    name="repeatnet",
):
    """Builds RepeatNet: a GRU over the items, and `RepeatHead`.

        x = GRUEncoder(items)
        logits = log(RepeatHead(x))

    Args:
        num_items: Positive int, number of items; their ids are 1 to `num_items`, and 0
            is padding, on any side.
        embedding_dim: Positive int, width of an item. Defaults to `64`.
        hidden_dim: Positive int, width of the GRU. Defaults to `64`.
        max_len: Positive int: of a longer history the last `max_len` items are read.
            Defaults to `50`.
        dropout: Float in `[0, 1)`, of the default head, see `RepeatHead`. Defaults to
            `0.0`.
        head: Another layer that scores the items, a pattern from whose config the model
            makes its own. Defaults to `None`, `RepeatHead`.
        multi_input: Whether the head reads a `MultiInputState` of three steps. Defaults
            to `False`.
        seed: Optional int for dropout. Defaults to `None`.
        inputs: Optional dict from `"item_ids"` to an existing `keras.Input`.
        name: Name of the model, and prefix of its layer names.

    Returns:
        An uncompiled `NextItemModel`; compiled without a loss it has its own, see
        there. Input: `"item_ids"`, int32, `(batch_size, seq_len)`, oldest first.
        Outputs: `"logits"`, float32, `(batch_size, num_items + 1)`, here the logarithms
        of probabilities, -1e9 for id 0, and `"user_vector"`, float32, what the explore
        decoder reads; its layer is `{name}_user_vector`.

    Raises:
        TypeError: If a size is not an integer, or `head` is no head.
        ValueError: If an argument is out of its range.

    Reference:
        Ren et al., "RepeatNet: A Repeat Aware Neural Recommendation Machine for
        Session-Based Recommendation", AAAI 2019; see `RepeatHead` for what differs.
    """
    frame = SequenceFrame(
        num_items,
        embedding_dim,
        max_len,
        embeddings_initializer="glorot_normal",
        inputs=inputs,
        name=name,
    )
    encoder = layers.GRUEncoder(hidden_dim, use_bias=True, name=f"{name}_encoder")
    if head is None:
        rate = check_rate("dropout", dropout)
        head = layers.RepeatHead(dropout=rate, seed=seed)
    return frame.model_of([encoder(frame.vectors)], head, multi_input)
