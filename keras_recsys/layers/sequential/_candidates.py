"""Items that are scored instead of the whole catalogue."""

from keras import ops

from keras_recsys.layers.sequential._catalogue import are_largest, put, top_ids
from keras_recsys.layers.sequential._steps import LOWEST


def nearest_ids(vectors, table, num_candidates, excluded=None):
    """Ids of the items whose products with a vector are the largest.

    Args:
        vectors: Float tensor, `(batch_size, dim)`.
        table: Float tensor, `(num_ids, dim)`.
        num_candidates: Python int; cut to the number of items.
        excluded: Optional integer tensor of ids that are not looked for, `(batch_size,
            num_excluded)`, 0 for none.

    Returns:
        Tensor of int32, `(batch_size, num_candidates + num_excluded)`: the ids in any
        order, and `excluded`, which have a part in what is reranked.
    """
    scores = ops.matmul(vectors, ops.transpose(table))
    lowered = ops.zeros_like(ops.cast(vectors[:, :1], "int32"))  # id 0
    if excluded is not None:
        excluded = ops.cast(excluded, "int32")
        lowered = ops.concatenate([lowered, excluded], axis=1)
    lowest = ops.full_like(ops.cast(lowered, scores.dtype), LOWEST)
    scores = put(scores, lowered, lowest)
    ids = top_ids(scores, min(num_candidates, table.shape[0] - 1))
    return ids if excluded is None else ops.concatenate([ids, excluded], axis=1)


def with_history(queries, candidates, num_ids):
    """Ids of the history and of the candidates, each item once.

    Args:
        queries: `Queries`, one for each row.
        candidates: Integer tensor, `(batch_size, num_candidates)`. What is no id of an
            item counts as none.
        num_ids: Python int, number of rows of the table.

    Returns:
        Tensor of int32, `(batch_size, seq_len + num_candidates)`: the items of the
        steps in front, each at its first step, then the candidates; 0 for none.
    """
    steps = queries.items()[:, 0]
    none = ops.zeros_like(candidates)
    known = ops.logical_and(candidates > 0, candidates < num_ids)
    candidates = ops.cast(ops.where(known, candidates, none), "int32")
    # Sorted, equal ids are neighbours.
    candidates = ops.sort(candidates, axis=1)
    before = ops.pad(candidates[:, :-1], ((0, 0), (1, 0)))
    again = ops.logical_or(ops.equal(candidates, before), among(candidates, steps))
    candidates = ops.where(again, ops.zeros_like(candidates), candidates)
    return ops.concatenate([steps, candidates], axis=1)


def candidate_logits(
    table,
    ids,
    query,
    reranks=(),
    context=None,
    *,
    add_reranks=False,
    add_context=False,
):
    """Scores of some items, from their partitions; see `Catalogue` for those of all.

    Args:
        table: Float tensor, `(num_ids, dim)`.
        ids: Tensor of int32, `(batch_size, num_candidates)`, each item once, and 0 for
            none.
        query: Float tensor, `(batch_size, dim)`.
        reranks: Sequence of tuples of a tensor as `query` and a size, in the order in
            which the partitions are rewritten.
        context: Optional float tensor, `(batch_size, seq_len)`: scores of the first of
            the items.
        add_reranks: Whether the scores of a partition are added, not written over.
        add_context: The same for `context`.

    Returns:
        Tensor of the shape of `ids`; -1e9 for none.
    """
    vectors = ops.stack([query, *(vector for vector, _ in reranks)], axis=2)
    scores = ops.matmul(ops.take(table, ids, axis=0), vectors)
    real = ids > 0
    logits = ops.where(real, scores[:, :, 0], LOWEST)
    for i, (_, size) in enumerate(reranks, 1):
        reranked = scores[:, :, i]
        if add_reranks:
            reranked = reranked + logits
        chosen = ops.logical_and(
            real, are_largest(logits, size)[:, : ops.shape(logits)[1]]
        )
        logits = ops.where(chosen, reranked, logits)
    if context is None:
        return logits
    seq_len = ops.shape(context)[1]
    if add_context:
        context = context + logits[:, :seq_len]
    context = ops.where(real[:, :seq_len], context, LOWEST)
    return ops.concatenate([context, logits[:, seq_len:]], axis=1)


def among(ids, others):
    """Whether an id is one of the others of its row, of the shape of `ids`."""
    others = ops.expand_dims(ops.cast(others, ids.dtype), 1)
    return ops.any(ops.equal(ops.expand_dims(ids, 2), others), axis=2)
