"""The frame of models that predict the next item."""

import keras
from keras import ops

from keras_recsys import layers
from keras_recsys._checks import check_int
from keras_recsys.layers.sequential._next_item_head import NextItemHead
from keras_recsys.models.sequential._next_item_model import NextItemModel

INPUT = "item_ids"


class SequenceFrame:
    """What is around the encoder: the items before it, the head behind it.

    Args:
        num_items: Positive int, number of items; their ids are 1 to `num_items`.
        dim: Positive int, width of an item.
        max_len: Optional positive int, how many of the last items of a row are read.
        embeddings_initializer: Initializer of the table.
        inputs: Optional dict from `"item_ids"` to a `KerasTensor`.
        name: Name of the model and prefix of its layer names.

    Attributes:
        ids: Integer tensor, `(batch_size, seq_len)`, the padding behind.
        vectors: Tensor, `(batch_size, seq_len, dim)`, 0 at padding.
    """

    def __init__(
        self, num_items, dim, max_len, *, embeddings_initializer, inputs, name
    ):
        num_items = check_int("num_items", num_items)
        dim = check_int("embedding_dim", dim)
        if inputs is None:
            inputs = {INPUT: keras.Input((None,), name=INPUT, dtype="int32")}
        elif set(inputs) != {INPUT}:
            raise ValueError(
                f"`inputs` must have the one key {INPUT!r}. "
                f"Received: keys {list(inputs)}."
            )
        self.name, self.inputs = name, dict(inputs)
        compact = layers.CompactIds(max_len, name=f"{name}_ids")
        self.ids = compact(self.inputs[INPUT])
        items = layers.FullEmbedding(
            num_items + 1,
            dim,
            embeddings_initializer=embeddings_initializer,
            name=f"{name}_items",
        )
        vectors, self.table = items(self.ids, return_table=True)
        # Zeros at padding, but no Keras mask: behind the items nothing sees it.
        self.vectors = ZeroPadding(name=f"{name}_item-vectors")(vectors, self.ids)

    def model_of(self, states, head, multi_input):
        """The model of an encoder.

        Args:
            states: List of states of its layers, `(batch_size, seq_len, dim)` each, the
                lowest first.
            head: A head as pattern, or `None` for the plain softmax.
            multi_input: Whether the head reads a `MultiInputState` of them, and not
                the last alone.

        Returns:
            A `NextItemModel`.
        """
        if head is None:
            head = layers.CPRSoftmax(context=False, pointer=False, rerank=())
        if not isinstance(head, NextItemHead):
            raise TypeError(
                "`head` must be a layer that scores the next item, such as "
                f"`CPRSoftmax()`, or None. Received: head={head!r}."
            )
        if multi_input:
            joined = layers.MultiInputState(name=f"{self.name}_multi-input")(states)
        else:
            joined = states[-1]
        config = {**head.get_config(), "name": f"{self.name}_head"}
        logits, vector = type(head).from_config(config)(
            joined, self.ids, self.table, return_user_vector=True
        )
        user_vector = keras.layers.Identity(
            dtype="float32", name=f"{self.name}_user_vector"
        )
        outputs = {"logits": logits, "user_vector": user_vector(vector)}
        return NextItemModel(self.inputs, outputs, name=self.name)


@keras.saving.register_keras_serializable(package="keras_recsys")
class ZeroPadding(keras.layers.Layer):
    """Vectors of ids with zeros where the id is 0."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.autocast = False

    def call(self, inputs, ids):
        real = ops.expand_dims(ops.not_equal(ids, 0), -1)
        return ops.where(real, inputs, ops.zeros_like(inputs))

    def compute_output_shape(self, inputs_shape, ids_shape):
        return tuple(inputs_shape)
