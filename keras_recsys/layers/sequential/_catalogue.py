"""Scores of every item of a catalogue, and their cross entropy in chunks.

A row of scores is made in partitions: the vocabulary, the items that are best so far,
the items of the history. What is overwritten gets no gradient, and the gradient of a
partition touches the items of that partition alone. Written down as one backward pass
this costs a few small gathers beside the matrix products of a plain softmax; derived
by the backends it takes several passes over tensors of the size of all scores.
"""

import math

from keras import ops

from keras_recsys.layers.sequential._steps import LOWEST

# Scores that a chunk of rows holds where nothing else is asked for, 8 MiB, which is
# fastest; but no fewer rows, or reading the table would take the time.
CHUNK_SCORES = 2**21
LEAST_ROWS = 32


class Catalogue:
    """The scores of all items for some rows, from their partitions.

    Args:
        num_queries: How many query vectors a row has; an item has the largest of its
            scores.
        sizes: Tuple of the sizes of the reranked partitions, in the order in which
            they are rewritten.
        has_context: Whether scores of the items of the history are given.
        add_reranks: Whether the scores of a partition are added, not written over.
        add_context: The same for the items of the history.

    The methods take a `table`, `(num_ids, dim)`, and `rows`, a tuple of `num_queries`
    vectors `(num_rows, dim)`, one more for each of `sizes`, and with `has_context` the
    scores and the ids of the history, both `(num_rows, seq_len)`, in which an id stands
    once and 0 where there is none. All floats are of float32 or wider.
    """

    def __init__(
        self,
        num_queries=1,
        sizes=(),
        has_context=False,
        *,
        add_reranks=False,
        add_context=False,
    ):
        self.num_queries = num_queries
        self.sizes = sizes
        self.has_context = has_context
        self.add_reranks = add_reranks
        self.add_context = add_context

    def logits(self, table, rows):
        """The scores, `(num_rows, num_ids)`, those of id 0 the lowest."""

        @ops.custom_gradient
        def run(table, *rows):
            logits, best, items = self._forward(table, rows)

            def gradient(*args, upstream=None):
                upstream = args[0] if upstream is None else upstream
                parts, shares, *d_rows = self._backward(
                    upstream, table, rows, best, items
                )
                if shares is not None:
                    reranks = self._parts(rows)[1]
                    parts += _table_gradients(table, best[0], shares, reranks)
                return (sum(parts), *d_rows)

            return logits, gradient

        return run(table, *rows)

    def loss_sum(self, table, rows, targets, weights, chunk_size=None, *, few=False):
        """Cross entropy of the targets, weighted and added up.

        The gradient is made in the forward pass, chunk by chunk, so that no score is
        held for the backward pass or made twice.

        Args:
            table: Tensor, `(num_ids, dim)`.
            rows: Tuple of tensors.
            targets: Integer tensor, `(num_rows,)`; 0 counts as nothing.
            weights: Float tensor, `(num_rows,)`, which gets no gradient.
            chunk_size: Optional int: rows whose scores are held at a time. Defaults to
                as many as make 8 MiB, or 32 with `few`.
            few: Whether the rows are so few that the vectors of all their reranked
                items may be held at a time.
        """
        weights = ops.where(ops.not_equal(targets, 0), weights, 0.0)
        ids = rows[-1:] if self.has_context else ()
        rows = rows[: len(rows) - len(ids)]

        @ops.custom_gradient
        def run(table, targets, weights, *rows_and_ids):
            def step(carry, chunk):
                targets, weights, *rows = chunk
                logits, best, items = self._forward(table, rows)
                norms = _logsumexp(logits)
                hits = ops.take_along_axis(logits, targets[:, None], axis=1)[:, 0]
                loss = ops.sum((norms - hits) * weights)
                d = self._slopes(logits, norms, targets, weights)
                parts, shares, *d_rows = self._backward(d, table, rows, best, items)
                d_rows = tuple(x for x in d_rows if x is not None)
                if shares is None:
                    return _added((*parts, loss), carry), d_rows
                if few:
                    return _added((*parts, loss), carry), (*d_rows, best[0], shares)
                parts += _table_gradients(table, best[0], shares, self._parts(rows)[1])
                return _added((*parts, loss), carry), d_rows

            chunks = (targets, weights, *rows_and_ids)
            (*parts, loss), d_rows = _in_chunks(
                step, (), chunks, self._rows_of_a_chunk(table, chunk_size, few)
            )
            if self.sizes and few:
                *d_rows, best, shares = d_rows
                reranks = self._parts(rows_and_ids)[1]
                parts += _table_gradients(table, best, shares, reranks)

            def gradient(*args, upstream=None):
                upstream = args[0] if upstream is None else upstream
                d = (upstream * x for x in d_rows)
                no_ids = (None,) * len(ids)
                return (upstream * sum(parts), None, None, *d, *no_ids)

            return loss, gradient

        return run(table, targets, weights, *rows, *ids)

    def losses(self, table, rows, targets, chunk_size=None, *, hold=False):
        """Cross entropy of each of the targets, `(num_rows,)`, 0 where a target is 0.

        Args:
            table: Tensor, `(num_ids, dim)`.
            rows: Tuple of tensors.
            targets: Integer tensor, `(num_rows,)`.
            chunk_size: Optional int: rows whose scores are made at a time, in the
                forward pass and again in the backward pass. Defaults to as many as
                make 8 MiB.
            hold: Whether the scores of all rows are made once and held, which is faster
                where there are few, unless `chunk_size` is given.
        """
        real = ops.not_equal(targets, 0)
        whole = hold and chunk_size is None
        if not whole:
            chunk_size = self._rows_of_a_chunk(table, chunk_size)

        @ops.custom_gradient
        def run(table, targets, *rows):
            held = []

            def forward(_, chunk):
                targets, *rows = chunk
                logits, best, items = self._forward(table, rows)
                if whole:
                    held.extend((logits, items))
                norms = _logsumexp(logits)
                hits = ops.take_along_axis(logits, targets[:, None], axis=1)
                return (), (norms - hits[:, 0], norms, *best)

            chunks = (targets, *rows)
            _, (losses, norms, *best) = _in_chunks(forward, (), chunks, chunk_size)

            def gradient(*args, upstream=None):
                upstream = args[0] if upstream is None else upstream

                def backward(carry, chunk):
                    upstream, norms, targets, *rest = chunk
                    best, rows = rest[: len(best_of)], rest[len(best_of) :]
                    if whole:
                        logits, items = held
                    else:
                        logits, _, items = self._forward(table, rows, best)
                    d = self._slopes(logits, norms, targets, upstream)
                    parts, shares, *d_rows = self._backward(d, table, rows, best, items)
                    if shares is not None:
                        reranks = self._parts(rows)[1]
                        parts += _table_gradients(table, best[0], shares, reranks)
                    d_rows = tuple(x for x in d_rows if x is not None)
                    return _added(parts, carry), d_rows

                best_of = best
                chunks = (upstream, norms, targets, *best, *rows)
                parts, d_rows = _in_chunks(backward, (), chunks, chunk_size)
                no_ids = (None,) if self.has_context else ()
                return (sum(parts), None, *d_rows, *no_ids)

            return losses, gradient

        return ops.where(real, run(table, targets, *rows), 0.0)

    def _rows_of_a_chunk(self, table, chunk_size, few=False):
        if chunk_size is not None:
            return chunk_size
        # A batch of few rows is one chunk, if it can be: a second costs more than it.
        scores = 4 * CHUNK_SCORES if few else CHUNK_SCORES
        return max(LEAST_ROWS, scores // table.shape[0])

    def _slopes(self, logits, norms, targets, upstream):
        """The gradient of the scores, by that of the cross entropies."""
        d = ops.exp(logits - norms[:, None]) * upstream[:, None]
        hits = ops.take_along_axis(d, targets[:, None], axis=1)
        return put(d, targets[:, None], hits - upstream[:, None])

    def _forward(self, table, rows, best=None):
        """The scores, what is in which reranked partition, and its vectors.

        The second is `()` or two tensors of int32, `(num_rows, num_candidates)`: the
        ids of the only items that a partition can hold, and a number of which bit `i`
        says whether partition `i` holds the item. The third has their rows of the
        table, `(num_rows, num_candidates, dim)`, or is `None`.
        """
        queries, reranks, context = self._parts(rows)
        logits = ops.matmul(queries[0], ops.transpose(table))
        for query in queries[1:]:
            logits = ops.maximum(logits, ops.matmul(query, ops.transpose(table)))
        padding = ops.zeros_like(queries[0][:, :1])
        logits = put(logits, ops.cast(padding, "int32"), padding + LOWEST)
        items = None
        if self.sizes:
            logits, best, items = self._reranked(logits, table, reranks, best)
        if self.has_context:
            scores, ids = context
            if self.add_context:
                scores = scores + ops.take_along_axis(logits, ids, axis=1)
            scores = ops.where(ids > 0, scores, LOWEST)
            logits = put(logits, ids, scores)
        return logits, best or (), items

    def _reranked(self, logits, table, reranks, best):
        """The scores with the partitions rewritten, and what `_forward` says of them.

        An item that is rewritten by no partition so far keeps its place behind those
        that are better by the first scores. So the partitions lie among as many of the
        best first scores as they have places in all.
        """
        num_items = table.shape[0] - 1
        sizes = [min(size, num_items) for size in self.sizes]
        if best is None:
            ids = top_ids(logits, min(sum(sizes), num_items))
        else:
            ids, numbers = best
        items = ops.take(table, ids, axis=0)
        queries = ops.stack(reranks, axis=2)  # (num_rows, dim, num_partitions)
        rewritten = ops.split(ops.matmul(items, queries), len(sizes), axis=2)
        if len(sizes) == 1 and not self.add_reranks:  # all are rewritten
            rewritten = ops.squeeze(rewritten[0], 2)
            return put(logits, ids, rewritten), (ids, ops.ones_like(ids)), items
        scores, number = ops.take_along_axis(logits, ids, axis=1), ops.zeros_like(ids)
        for i, (size, of) in enumerate(zip(sizes, rewritten, strict=True)):
            of = ops.squeeze(of, 2)
            if best is not None:
                inside = _has_bit(numbers, i)
            else:
                inside = are_largest(scores, size)
                number = number + ops.where(inside, 2**i, 0)
            if self.add_reranks:
                of = of + scores
            scores = ops.where(inside, of, scores)
        if best is None:
            best = (ids, number)
        return put(logits, ids, scores), best, items

    def _backward(self, d, table, rows, best, items):
        """Gradients: parts of that of the table, of reranked scores, and of each row.

        The second is `(num_rows, num_partitions, num_candidates)`, or `None`; what it
        makes of the table is in no part.
        """
        queries, reranks, context = self._parts(rows)
        d_context, d_reranks, shares = [], [], None
        if self.has_context:
            _, ids = context
            taken = ops.take_along_axis(d, ids, axis=1)
            d_context = [ops.where(ids > 0, taken, 0.0), None]
            if not self.add_context:
                d = put(d, ids, ops.zeros_like(taken))
        padding = ops.zeros_like(queries[0][:, :1])
        d = put(d, ops.cast(padding, "int32"), padding)
        if self.sizes:
            ids, numbers = best
            left = ops.take_along_axis(d, ids, axis=1)
            shares = [None] * len(reranks)
            for i in reversed(range(len(reranks))):
                inside = _has_bit(numbers, i)
                shares[i] = ops.where(inside, left, 0.0)
                if not self.add_reranks:
                    left = ops.where(inside, 0.0, left)
            shares = ops.stack(shares, axis=1)
            d_reranks = ops.unstack(ops.matmul(shares, items), axis=1)
            if not self.add_reranks:
                d = put(d, ids, left)
        d_queries, parts = [], []
        for query, d_part in zip(queries, self._shared(d, table, queries), strict=True):
            d_queries.append(ops.matmul(d_part, table))
            parts.append(ops.matmul(ops.transpose(d_part), query))
        return (parts, shares, *d_queries, *d_reranks, *d_context)

    def _parts(self, rows):
        """Queries, reranking queries and context of the rows."""
        cut = self.num_queries + len(self.sizes)
        return rows[: self.num_queries], rows[self.num_queries : cut], rows[cut:]

    def _shared(self, d, table, queries):
        """The gradient of the largest scores, for each of the queries."""
        if len(queries) == 1:
            return [d]
        scores = ops.stack([ops.matmul(q, ops.transpose(table)) for q in queries])
        winner = ops.argmax(scores, axis=0)
        return [ops.where(winner == i, d, 0.0) for i in range(len(queries))]


def top_ids(scores, size):
    """Ids of the `size` largest scores of each row, in any order.

    The largest scores are in the blocks with the largest maxima: these are found
    first, so that the search itself sees a small part of the scores.

    Args:
        scores: Tensor, `(num_rows, num_ids)`.
        size: Python int, at most `num_ids`.

    Returns:
        Tensor of int32, `(num_rows, size)`.
    """
    num_ids = scores.shape[1]
    width = 2 ** int(math.log2(math.sqrt(num_ids / size)))
    num_blocks = -(-num_ids // width)
    if width < 8 or num_blocks <= size:
        return ops.cast(ops.top_k(scores, size, sorted=False)[1], "int32")
    # Block `j` holds every `num_blocks`-th id from `j` on: so the maxima of all blocks
    # are maxima of long vectors.
    missing = width * num_blocks - num_ids
    if missing:
        scores = ops.pad(scores, ((0, 0), (0, missing)), constant_values=LOWEST * 2)
    blocks = ops.reshape(scores, (-1, width, num_blocks))
    _, chosen = ops.top_k(ops.max(blocks, axis=1), size, sorted=False)
    chosen = ops.expand_dims(ops.cast(chosen, "int32"), 1)
    ids = ops.arange(width, dtype="int32")[:, None] * num_blocks + chosen
    ids = ops.reshape(ids, (-1, width * size))
    rest = ops.take_along_axis(scores, ids, axis=1)
    _, places = ops.top_k(rest, size, sorted=False)
    return ops.take_along_axis(ids, ops.cast(places, "int32"), axis=1)


def put(scores, ids, values):
    """Scores with `values` at the columns `ids` of each row, both `(num_rows, n)`."""
    rows = ops.arange(ops.shape(scores)[0], dtype="int32")
    rows = ops.expand_dims(rows, 1) + ops.zeros_like(ids)
    places = ops.stack([ops.reshape(rows, (-1,)), ops.reshape(ids, (-1,))], axis=1)
    return ops.scatter_update(scores, places, ops.reshape(values, (-1,)))


def are_largest(scores, size):
    """Whether a score is one of the `size` largest of its row; of few, all are.

    Where the width is not known, `size` columns more than that come back.
    """
    if scores.shape[1] is not None and size >= scores.shape[1]:
        return ops.ones_like(scores, dtype="bool")
    if scores.shape[1] is None:
        scores = ops.pad(scores, ((0, 0), (0, size)), constant_values=LOWEST)
    _, places = ops.top_k(scores, size, sorted=False)
    places = ops.cast(places, "int32")
    return put(ops.zeros_like(scores), places, ops.ones_like(scores[:, :size])) > 0


def _has_bit(numbers, bit):
    return ops.equal(numbers // 2**bit % 2, 1)


def _added(parts, carry):
    """The tensors, each added to what is carried of it, `()` at first.

    What is one sum is kept in parts: where three tensors of one shape are added up in a
    loop, TensorFlow rewrites them to a variable that two rounds of it can claim.
    """
    if not carry:
        return tuple(parts)
    return tuple(x + y for x, y in zip(parts, carry, strict=True))


def _table_gradients(table, ids, shares, queries):
    """Parts of the gradient of the table from some items for each row and vector.

    Args:
        table: Tensor, `(num_ids, dim)`.
        ids: Integer tensor, `(num_rows, num_candidates)`.
        shares: Gradient of their scores, `(num_rows, num_queries, num_candidates)`.
        queries: List of `num_queries` tensors, `(num_rows, dim)`.
    """
    num_ids, dim = table.shape
    if ids.shape[1] * dim < num_ids * len(queries):
        rows = ops.matmul(ops.swapaxes(shares, 1, 2), ops.stack(queries, axis=1))
        rows = ops.reshape(rows, (-1, dim))
        return [ops.segment_sum(rows, ops.reshape(ids, (-1,)), num_segments=num_ids)]
    # Of many items, matrix products with all ids are faster than sums of rows.
    parts = []
    for share, query in zip(ops.unstack(shares, axis=1), queries, strict=True):
        share = put(
            ops.zeros_like(query[:, :1]) + ops.zeros_like(table[:, 0]), ids, share
        )
        parts.append(ops.matmul(ops.transpose(share), query))
    return parts


def _logsumexp(logits):
    largest = ops.max(logits, axis=1, initial=2 * LOWEST)  # a batch may be empty
    return largest + ops.log(ops.sum(ops.exp(logits - largest[:, None]), axis=1))


def _in_chunks(function, carry, rows, chunk_size):
    """Runs a function on chunks of rows, one after the other.

    Args:
        function: Callable from `(carry, chunk)` to the next carry, a tuple of tensors,
            and a tuple of results with one row for each of the chunk.
        carry: Tuple of tensors, `()` at first.
        rows: Tuple of tensors with one number of rows.
        chunk_size: Python int, or `None` for all rows at once.

    Returns:
        Tuple of the last carry and the results for all rows.
    """
    num_rows = ops.shape(rows[0])[0]
    if chunk_size is None or (isinstance(num_rows, int) and num_rows <= chunk_size):
        return function(carry, rows)
    # As many chunks as are needed, all of one size, so that little is padded.
    num_chunks = ops.maximum((num_rows + chunk_size - 1) // chunk_size, 1)
    if isinstance(num_rows, int):
        num_chunks = max(-(-num_rows // chunk_size), 1)
    size = (num_rows + num_chunks - 1) // num_chunks
    rows = [_padded(x, num_chunks * size - num_rows) for x in rows]

    def chunk_at(start, token):
        # TensorFlow would run ahead, and hold several chunks.
        done = ops.sum(token[:1]) > 0
        chunk = []
        for x in rows:
            shape = ops.shape(x)[1:]
            part = ops.slice(x, (start, *[0] * len(shape)), (size, *shape))
            chunk.append(ops.where(done, part, part))
        return tuple(chunk)

    carry, results = function(carry, tuple(x[:size] for x in rows))
    results = tuple(_padded(x, (num_chunks - 1) * size) for x in results)

    def step(i, carry, results):
        chunk = chunk_at(i * size, (carry or results)[0])
        carry, parts = function(carry, chunk)
        results = tuple(
            ops.slice_update(of, (i * size, *[0] * (len(of.shape) - 1)), part)
            for of, part in zip(results, parts, strict=True)
        )
        return i + 1, carry, results

    _, carry, results = ops.while_loop(
        lambda i, *_: i < num_chunks, step, (1, carry, results)
    )
    return carry, tuple(x[:num_rows] for x in results)


def _padded(x, missing):
    """`x` with `missing` more rows of zeros."""
    return ops.concatenate(
        [x, ops.zeros((missing, *ops.shape(x)[1:]), dtype=x.dtype)], axis=0
    )
