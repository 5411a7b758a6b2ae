"""The class of models that predict the next item."""

import keras
from keras import ops

from keras_recsys.layers.sequential._next_item_head import NextItemHead
from keras_recsys.layers.sequential._steps import last_step
from keras_recsys.layers.sequential.compact_ids import CompactIds
from keras_recsys.models._named_model import NamedModel


@keras.saving.register_keras_serializable(package="keras_recsys")
class NextItemModel(NamedModel):
    """A model that ends in a head of the next item, and knows its loss.

    Its outputs are `"logits"`, `(batch_size, num_items + 1)`, of the item after the
    last step, and `"user_vector"`. Compiled without a loss it is trained by the cross
    entropy of the item after the last step where the targets are `(batch_size,)`, and
    of the item after each step where they are `(batch_size, seq_len)`, 0 for none; the
    loss is the mean over the targets that are not 0. The logits of all steps are never
    held at once. Evaluation does the same. A target that is no item gives NaN. Metrics,
    and a loss that is given to `compile`, see `"logits"` and the target of the last
    item alone.

    The builders make such models. With an encoder of your own it is made like any
    functional model, of one `CompactIds` and one head:

    >>> from keras_recsys import layers
    >>> item_ids = keras.Input((None,), dtype="int32", name="item_ids")
    >>> ids = layers.CompactIds(max_len=20)(item_ids)
    >>> items = layers.FullEmbedding(101, 16, mask_zero=True, zero_masked=True)
    >>> vectors, table = items(ids, return_table=True)
    >>> states = keras.layers.LSTM(16, return_sequences=True)(vectors)
    >>> head = layers.CPRSoftmax()
    >>> logits, vector = head(states, ids, table, return_user_vector=True)
    >>> outputs = {"logits": logits, "user_vector": vector}
    >>> model = NextItemModel({"item_ids": item_ids}, outputs)
    >>> model.compile("adam")

    Args:
        *args: As in `keras.Model`; inputs `{"item_ids": ...}`, outputs as above.
        **kwargs: As in `keras.Model`.

    Raises:
        ValueError: If there is not one `CompactIds` and one head.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        heads, compacts = (
            [x for x in self.layers if isinstance(x, kind)]
            for kind in (NextItemHead, CompactIds)
        )
        if len(heads) != 1 or len(compacts) != 1:
            raise ValueError(
                "`NextItemModel` must have one `CompactIds` and one head. "
                f"Received: {len(compacts)} and {len(heads)}."
            )
        # In a function, or Keras would count the layers twice.
        graph = keras.Model(self.input, (self.output, heads[0].input))
        self._run = lambda *args, **kwargs: graph(*args, **kwargs)
        self._parts = lambda: (compacts[0], heads[0])
        self._in_train_step = False

    def call(self, inputs, training=None, mask=None):
        if not self._in_train_step:
            return super().call(inputs, training=training, mask=mask)
        outputs, steps = self._run(inputs, training=training)
        return {**outputs, "steps": steps}  # for the loss, which else makes them anew

    def train_step(self, *args, **kwargs):
        """A step of training, as in Keras."""
        self._in_train_step = True
        try:
            return super().train_step(*args, **kwargs)
        finally:
            self._in_train_step = False

    def fit(self, x=None, *args, class_weight=None, **kwargs):
        """Trains the model, as `keras.Model.fit` does, but takes no `class_weight`."""
        if class_weight is not None:
            raise ValueError(
                "`class_weight` must be None: targets are items, not classes. Give "
                f"`sample_weight`. Received: class_weight={class_weight!r}."
            )
        return super().fit(x, *args, **kwargs)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The loss, see the class; with regularization, as in Keras."""
        targets = _targets(y)
        if self.loss is not None:
            targets, sample_weight = _last(_one(x), targets, sample_weight)
            return super().compute_loss(
                x, targets, y_pred["logits"], sample_weight, training=training
            )
        steps = y_pred.get("steps")
        if steps is None:
            _, steps = self._run(x, training=training)
        weights = ops.ones_like(targets, dtype="float32")
        if sample_weight is not None:
            weights = weights * _weights(sample_weight, targets)
        if len(targets.shape) == 2:
            targets, weights = self._as_steps(_one(x), targets, weights)
        loss = self._parts()[1].loss(*steps, targets, weights, training=training)
        count = ops.sum(ops.cast(ops.not_equal(targets, 0), loss.dtype))
        total = sum(self.losses, loss / ops.maximum(count, 1.0))
        return _Share(name="next_item")(total, total)

    def _as_steps(self, ids, targets, weights):
        """Targets of all steps and their weights, moved as the model moves the items.

        A step without an item has no target.
        """
        if None not in (ids.shape[1], targets.shape[1]):
            if ids.shape[1] != targets.shape[1]:
                raise ValueError(
                    "The targets must be of shape (batch_size,) or that of the items, "
                    f"{tuple(ids.shape)}. Received: shape {tuple(targets.shape)}."
                )
        targets = ops.where(ops.not_equal(ids, 0), targets, ops.zeros_like(targets))
        order = self._parts()[0].order(ids)
        return (ops.take_along_axis(x, order, axis=1) for x in (targets, weights))

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The metrics of the item after the last step."""
        targets, weights = _last(_one(x), _targets(y), sample_weight)
        return super().compute_metrics(x, targets, y_pred["logits"], weights)


class _Share(keras.losses.Loss):
    """A loss that is computed already, as the part of one device in that of all."""

    def call(self, y_true, y_pred):
        return ops.reshape(y_pred, (1,))


def _one(values):
    """The one tensor of what Keras passes as targets or weights."""
    return ops.convert_to_tensor(keras.tree.flatten(values)[0])


def _weights(sample_weight, targets):
    """Weights of rows or steps, to be multiplied with what has the targets' shape."""
    weights = ops.cast(_one(sample_weight), "float32")
    rank, own = _rank(targets), _rank(weights)
    if own == 2 and rank == 1 and weights.shape[1] == 1:
        return ops.squeeze(weights, -1)
    if own == 1 and rank == 2:
        return ops.expand_dims(weights, -1)
    if own != rank:
        raise ValueError(
            "The sample weights must be of shape (batch_size,) or that of the targets, "
            "the same in each step: compile the model again for the other. "
            f"Received: weights of shape {weights.shape}, targets of {targets.shape}."
        )
    return weights


def _targets(y):
    """The targets, `(batch_size,)` or `(batch_size, seq_len)`.

    Raises:
        ValueError: If they are of another shape.
    """
    targets = _one(y)
    rank = _rank(targets)
    if rank == 2 and targets.shape[1] == 1:
        return targets[:, 0]
    if rank not in (1, 2):
        raise ValueError(
            "The targets must be of shape (batch_size,) or (batch_size, seq_len), the "
            "same in each step: compile the model again for the other. "
            f"Received: shape {targets.shape}."
        )
    return targets


def _last(ids, targets, sample_weight):
    """Target of the last item of each row, and its weight, both `(batch_size,)`."""
    real = ops.not_equal(ids, 0)
    if sample_weight is not None:
        sample_weight = _weights(sample_weight, targets)
        if len(targets.shape) == 2:
            weights = sample_weight + ops.zeros_like(targets, dtype="float32")
            sample_weight = last_step(ops.expand_dims(weights, -1), real)[:, 0]
    if len(targets.shape) == 2:
        targets = last_step(ops.expand_dims(targets, -1), real)[:, 0]
    return targets, sample_weight


def _rank(x):
    """The rank of a tensor, `None` where TensorFlow has forgotten it."""
    return x.shape.rank if hasattr(x.shape, "rank") else len(x.shape)
