"""What every output layer that scores the next item shares."""

import dataclasses
import functools
from typing import Any

import keras
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys._lookup import zero_or_nan
from keras_recsys.layers.sequential._candidates import (
    among,
    nearest_ids,
    with_history,
)
from keras_recsys.layers.sequential._steps import (
    LOWEST,
    first_steps,
    last_step,
    real_steps,
    same_items,
    without_padding,
)


@dataclasses.dataclass(frozen=True)
class Queries:
    """The steps after which items are scored, and what each of them sees.

    Args:
        inputs: Float tensor, `(batch_size, seq_len, state_dim)`, the states of all
            steps, with anything at padding.
        ids: Integer tensor, `(batch_size, seq_len)`, 0 at padding.
        queries: Float tensor, `(batch_size, num_queries, state_dim)`: states of steps.
        visible: Boolean tensor, `(batch_size, num_queries, seq_len)`: the real steps
            up to that of the query.
    """

    inputs: Any
    ids: Any
    queries: Any
    visible: Any

    @property
    def states(self):
        """The states of all steps, 0 at padding."""
        return without_padding(self.inputs, ops.not_equal(self.ids, 0))

    @functools.cached_property
    def same(self):
        """Whether two steps hold one item, `(batch_size, seq_len, seq_len)`."""
        return same_items(self.ids)

    def items(self):
        """The visible items, each at its first step, and 0 elsewhere.

        Returns:
            Tensor of int32, `(batch_size, num_queries, seq_len)`.
        """
        ids = ops.cast(self.ids, "int32")
        first = ops.expand_dims(first_steps(self.same), 1)
        kept = ops.logical_and(self.visible, first)
        return ops.where(kept, ops.expand_dims(ids, 1), 0)


class NextItemHead(keras.layers.Layer):
    """Base of the layers that end a next-item model.

    A subclass scores queries: `score(queries, table, training)` gives the logits of all
    items for one query a row, `query_losses(queries, table, targets, training)` the
    cross entropy of a target for each query, and `user_vectors(queries)` what retrieves
    items. One that can score some items alone, at a cost that does not grow with all of
    them, has `score_candidates(queries, table, ids)` too.
    """

    def __init__(self, *, chunk_size=None, dtype="float32", **kwargs):
        super().__init__(dtype=dtype, **kwargs)
        if chunk_size is not None:
            chunk_size = check_int("chunk_size", chunk_size)
        self.chunk_size = chunk_size
        self.supports_masking = True

    def call(
        self,
        inputs,
        ids,
        table,
        inputs_mask=None,
        return_user_vector=False,
        training=None,
        candidates=None,
        excluded=None,
    ):
        _check_steps(inputs, ids)
        if candidates is not None:
            return self.candidate_scores(
                inputs, ids, table, candidates, inputs_mask, excluded
            )
        queries = last_query(inputs, ids, inputs_mask)
        logits = self.score(queries, self._tensor(table), training)
        if not return_user_vector:
            return logits
        return logits, self.user_vectors(queries)[:, 0]

    @property
    def has_candidate_scores(self):
        """Whether the layer can score some items without the scores of all."""
        return type(self).score_candidates is not NextItemHead.score_candidates

    def candidate_scores(
        self, inputs, ids, table, candidates, inputs_mask=None, excluded=None
    ):
        """Logits of some items and of the history, of the item after the last step.

        They are those of a call, as long as the items that a call reranks are among
        them. A call with `candidates` and `excluded` gives the same, in a model too.

        Args:
            inputs: As in a call.
            ids: As in a call.
            table: As in a call.
            candidates: Integer tensor, `(batch_size, num_candidates)`, of ids; what is
                no id of an item counts as none. Or an int: the items, of those not
                excluded, whose products with the user vector are the largest.
            inputs_mask: As in a call, but never read from `inputs`.
            excluded: Optional integer tensor, `(batch_size, any)`, of ids of items that
                are not wanted, such as those of the history; 0 for none. They are left
                out at the end: what is reranked, they still have a part in.

        Returns:
            Tuple of the logits and the ids, int32, both `(batch_size, num_scored)`, in
            no order. Each item stands once; the rest are id 0 with -1e9.

        Raises:
            NotImplementedError: If the layer needs the scores of all items.
        """
        if not self.has_candidate_scores:
            raise NotImplementedError(
                f"`{type(self).__name__}` has no scores of candidates alone: use its "
                "logits of all items."
            )
        queries = last_query(inputs, ids, inputs_mask)
        table = self._tensor(table)
        if not hasattr(candidates, "shape") or not len(candidates.shape):
            candidates = check_int("candidates", candidates)
            vectors = self.user_vectors(queries)[:, 0]
            candidates = nearest_ids(vectors, table, candidates, excluded)
        items = with_history(queries, candidates, table.shape[0])
        logits = self.score_candidates(queries, table, items)
        if excluded is not None:
            left_out = among(items, excluded)
            items = ops.where(left_out, ops.zeros_like(items), items)
            logits = ops.where(left_out, ops.full_like(logits, LOWEST), logits)
        return logits, items

    def step_losses(self, inputs, ids, table, targets, inputs_mask=None, training=True):
        """Cross entropy of the items that follow, in one pass over all steps.

        The history of a step are the items up to it, as if the sequence ended there.
        No more than a chunk of logits is held at a time, in the backward pass too.

        Args:
            inputs: As in a call.
            ids: As in a call.
            table: As in a call.
            targets: Integer tensor of the item after the last step, `(batch_size,)`, or
                after each step, `(batch_size, seq_len)`; 0 where there is none.
            inputs_mask: As in a call, but never read from `inputs`.
            training: Whether a layer that samples or drops may do so. Defaults to
                `True`.

        Returns:
            Tensor of the shape of `targets`, in nats; 0 where the target is 0, and NaN
            where it is no id of the table.

        Raises:
            ValueError: If `targets` is of another shape.
        """
        queries, table, flat, wrong = self._asked(
            inputs, ids, table, targets, inputs_mask
        )
        losses = self.query_losses(queries, table, flat, training) + wrong
        return ops.reshape(losses, ops.shape(targets))

    def loss(
        self, inputs, ids, table, targets, weights=None, inputs_mask=None, training=True
    ):
        """The sum of `step_losses`, weighted; in training made in half the time.

        Args:
            inputs: As in a call.
            ids: As in a call.
            table: As in a call.
            targets: As in `step_losses`.
            weights: Optional float tensor of the shape of `targets`. It gets no
                gradient.
            inputs_mask: As in a call, but never read from `inputs`.
            training: As in `step_losses`. Where it is `True`, the gradient is made
                together with the loss.

        Returns:
            Scalar tensor, in nats.

        Raises:
            ValueError: If `targets` is of another shape.
        """
        queries, table, flat, wrong = self._asked(
            inputs, ids, table, targets, inputs_mask
        )
        if weights is None:
            weights = ops.ones_like(targets)
        weights = ops.cast(ops.reshape(weights, (-1,)), self.compute_dtype)
        loss = self.query_loss(queries, table, flat, weights, training)
        return loss + ops.sum(wrong)

    def compute_output_shape(self, inputs_shape, ids_shape, table_shape):
        return (inputs_shape[0], table_shape[0])

    def compute_output_spec(
        self,
        inputs,
        ids,
        table,
        inputs_mask=None,
        return_user_vector=False,
        training=None,
        candidates=None,
        excluded=None,
    ):
        if candidates is not None:
            return self._candidate_spec(ids, table, candidates, excluded)
        if isinstance(table, keras.Variable):
            raise ValueError(
                "`table` must be a tensor of the model, as `FullEmbedding` gives it "
                "with `return_table=True`: of a weight itself a saved model would keep "
                f"a copy. Received: {table!r}."
            )
        logits = keras.KerasTensor(
            (inputs.shape[0], table.shape[0]), dtype=self.compute_dtype
        )
        if not return_user_vector:
            return logits
        shape = (inputs.shape[0], *self.user_vector_shape(inputs.shape, table.shape))
        return logits, keras.KerasTensor(shape, dtype=self.compute_dtype)

    def compute_mask(self, inputs, previous=None):
        return None

    def get_config(self):
        return {**super().get_config(), "chunk_size": self.chunk_size}

    def check_shapes(self, inputs_shape, ids_shape, table_shape):
        """Returns the widths of a state and of an item.

        Raises:
            ValueError: If a shape does not fit.
        """
        shapes = inputs_shape, ids_shape, table_shape
        if (
            tuple(map(len, shapes)) != (3, 2, 2)
            or None in (inputs_shape[-1], *table_shape)
            or None not in (inputs_shape[1], ids_shape[1])
            and inputs_shape[1] != ids_shape[1]
        ):
            raise ValueError(
                f"`{type(self).__name__}` takes inputs of shape (batch_size, seq_len, "
                "state_dim), ids of shape (batch_size, seq_len) and a table of shape "
                "(num_ids, dim), with static state_dim, num_ids and dim. Received: "
                f"shapes {', '.join(str(tuple(shape)) for shape in shapes)}."
            )
        return inputs_shape[-1], table_shape[-1]

    def user_vector_shape(self, inputs_shape, table_shape):
        """Shape of a user vector, without the batch."""
        return (table_shape[-1],)

    def score(self, queries, table, training):
        """Logits of all items, `(batch_size, num_ids)`, for one query a row."""
        raise NotImplementedError

    def score_candidates(self, queries, table, ids):
        """Logits of some items, of the shape of `ids`; the history is in front."""
        raise NotImplementedError

    def query_losses(self, queries, table, targets, training):
        """Cross entropy, `(batch_size * num_queries,)`, of as many targets."""
        raise NotImplementedError

    def query_loss(self, queries, table, targets, weights, training):
        """Sum of the cross entropies times the weights."""
        losses = self.query_losses(queries, table, targets, training)
        return ops.sum(losses * weights)

    def user_vectors(self, queries):
        """What retrieves items, `(batch_size, num_queries, ...)`."""
        raise NotImplementedError

    def _candidate_spec(self, ids, table, candidates, excluded):
        """What a call with candidates gives, symbolically."""
        widths = [ids.shape[1]]
        if not isinstance(candidates, int):
            widths.append(candidates.shape[1])
        else:
            widths.append(min(candidates, table.shape[0] - 1))
            widths.append(0 if excluded is None else excluded.shape[1])
        shape = (ids.shape[0], None if None in widths else sum(widths))
        return (
            keras.KerasTensor(shape, dtype=self.compute_dtype),
            keras.KerasTensor(shape, dtype="int32"),
        )

    def _tensor(self, table):
        """The table as a tensor, which a variable of TensorFlow is not."""
        return ops.cast(ops.reshape(table, table.shape), self.compute_dtype)

    def _asked(self, inputs, ids, table, targets, mask):
        """The queries that have targets, the table, and the targets in one row, int32.

        The last of the four is 0 for each target, and NaN for one that is no id: there
        the targets have 0.

        Raises:
            ValueError: If a shape does not fit.
        """
        shape, steps = tuple(targets.shape), tuple(ids.shape)
        if len(shape) not in (1, 2) or (
            len(shape) == 2
            and None not in (shape[1], steps[1])
            and shape[1] != steps[1]
        ):
            raise ValueError(
                "`targets` must be of shape (batch_size,) or (batch_size, seq_len), "
                f"here {steps}. Received: shape {shape}."
            )
        _check_steps(inputs, ids)
        if not self.built:
            self.build(tuple(inputs.shape), steps, tuple(table.shape))
        inputs = ops.cast(inputs, self.compute_dtype)
        table = self._tensor(table)
        targets = ops.reshape(targets, (-1,))
        known = ops.logical_and(targets >= 0, targets < table.shape[0])
        wrong = zero_or_nan(known, self.compute_dtype)
        targets = ops.cast(ops.where(known, targets, ops.zeros_like(targets)), "int32")
        ask = last_query if len(shape) == 1 else all_queries
        return ask(inputs, ids, mask), table, targets, wrong


def _check_steps(inputs, ids):
    """Checks that states and ids are of the same steps, where lengths are known.

    Raises:
        ValueError: If they are not.
    """
    steps, own = tuple(inputs.shape[:2]), tuple(ids.shape)
    pairs = zip(steps, own, strict=False)
    known = [pair for pair in pairs if None not in pair]
    if len(own) != 2 or any(one != other for one, other in known):
        raise ValueError(
            "`ids` must be of shape (batch_size, seq_len), that of `inputs` but its "
            f"last axis, {steps}. Received: shape {own}."
        )


def last_query(states, ids, mask=None):
    """The `Queries` of the last real step of each row."""
    real = real_steps(ids, mask)
    query = ops.expand_dims(last_step(states, real), 1)
    ids = ops.where(real, ids, ops.zeros_like(ids))
    return Queries(states, ids, query, ops.expand_dims(real, 1))


def all_queries(states, ids, mask=None):
    """The `Queries` of every step."""
    real = real_steps(ids, mask)
    states = without_padding(states, real)
    steps = ops.arange(ops.shape(ids)[1])
    earlier = ops.expand_dims(steps, 1) >= steps  # (seq_len, seq_len)
    visible = ops.logical_and(ops.expand_dims(real, 1), earlier)
    ids = ops.where(real, ids, ops.zeros_like(ids))
    return Queries(states, ids, states, visible)
