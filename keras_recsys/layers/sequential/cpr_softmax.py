"""`CPRSoftmax`, an output layer that copies, excludes and reranks."""

import keras
from keras import ops

from keras_recsys._checks import check_choice, check_int
from keras_recsys._initializers import clone
from keras_recsys.layers.sequential._candidates import candidate_logits
from keras_recsys.layers.sequential._catalogue import Catalogue
from keras_recsys.layers.sequential._next_item_head import NextItemHead
from keras_recsys.layers.sequential._steps import products

MODES = ("replace", "add")
POINTER_REDUCTIONS = ("mean", "sum")


@keras.saving.register_keras_serializable(package="keras_recsys")
class CPRSoftmax(NextItemHead):
    """Scores the next item, with vectors of their own for some of the items.

    A plain softmax scores all items by one vector, and so can hardly score an item of
    the history unlike the items that resemble it: neither to repeat it nor to leave it
    out. With `q_t` the state of step `t`, `q` that of the last item, and `e_x` the row
    of item `x` in the table,

        f_A = q kernel_A + bias_A,  A one of vocabulary, context, pointer, each rerank
        key_t = q_t kernel_key + bias_key

        logit_x = f_vocabulary . e_x
        for each size of rerank, the largest first:
            logit_x = f_size . e_x    for the `size` items of the largest logits
        for the items of the history:
            logit_x = f_context . e_x + f_pointer . (mean of key_t of its steps t)

    `CPRSoftmax(context=False, pointer=False, rerank=())` is the plain softmax of the
    paper, `CPRSoftmax(pointer=False, rerank=())` its Softmax + C,
    `CPRSoftmax(rerank=())` + CP, the default + CPR:100, and
    `CPRSoftmax(rerank=(20, 100, 500))` + CPR:20,100,500.

    What training wants is not the logits but `loss(inputs, ids, table, targets)`, the
    sum of the cross entropies of the items after each step, or after the last, made in
    chunks; `step_losses` gives each. `models.NextItemModel` trains by it. A loss of
    Keras on the logits wants `from_logits=True`, and trains the last step alone.

    Args:
        context: Whether items of the history have logits of their own. Defaults to
            `True`.
        pointer: Whether these have the term of the keys; needs `context`. Defaults to
            `True`.
        rerank: Sizes of the reranked partitions in items, positive ints in any order;
            those above the number of items are cut to it. Defaults to `(100,)`.
        context_mode: `"replace"`, as in the equation, or `"add"`: the logits are added
            to those that the items have, once for each item. Defaults to `"replace"`.
        rerank_mode: The same for the reranked partitions. Defaults to `"replace"`.
        pointer_reduction: `"mean"`, or `"sum"` of the keys of an item. Defaults to
            `"mean"`.
        use_projection: Whether `f_vocabulary` is a projection; if not it is `q`
            itself. Defaults to `True`.
        chunk_size: Optional int, the number of steps whose logits a loss holds at a
            time. Defaults to `None`, as many as make 8 MiB, or 32 MiB in training where
            a row has one target.
        kernel_initializer: Initializer of the kernels, each `(state_dim, dim)`.
            Defaults to `None`, normal with a standard deviation of 0.02.
        bias_initializer: Initializer of the biases, each `(dim,)`. Defaults to
            `"zeros"`.
        kernel_regularizer: Regularizer of the kernels. Defaults to `None`.
        dtype: Defaults to `"float32"`, under mixed precision too.
        **kwargs: `name` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, seq_len, state_dim)`: the states of an
            encoder, oldest step first, of which step `t` has seen no later item.
        ids: Integer tensor, `(batch_size, seq_len)`, the items of the steps; 0 is
            padding, wherever it stands.
        table: Float tensor, `(num_ids, dim)`, the vectors of all items, those of the
            lookup: `FullEmbedding` gives it with `return_table=True`. Row 0 is never
            read for a score.
        inputs_mask: Optional boolean tensor, `(batch_size, seq_len)`; `False` makes
            padding of a step too. Read from the Keras mask of `inputs` if not given.
        return_user_vector: Whether to return `f_vocabulary` too. Defaults to `False`.

    Returns:
        Logits of the item after the last step, `(batch_size, num_ids)`, in float32 or
        wider; that of id 0 is -1e9. With `return_user_vector` a tuple of them and
        `f_vocabulary`, `(batch_size, dim)`, whose products with the table are the
        logits before the partitions, for retrieval. A row without items has a state
        of zeros.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range, two do not go together, or the
            shapes do not fit.

    Example:
    >>> states, table = np.ones((2, 3, 4)), np.ones((6, 4))
    >>> logits = CPRSoftmax()(states, np.array([[5, 1, 5], [2, 0, 0]]), table)
    >>> tuple(logits.shape)
    (2, 6)

    Reference:
        Chang, Agarwal and McCallum, "To Copy, or not to Copy; That is a Critical Issue
        of the Output Softmax Layer in Neural Sequential Recommenders", WSDM 2024,
        Section 3. Differs from the published code: the state of the last item is
        read, where the code reads the last slot, padding or not; id 0 has no share in
        the softmax, the partitions or the history; the loss has no floor.
    """

    def __init__(
        self,
        context=True,
        pointer=True,
        rerank=(100,),
        *,
        context_mode="replace",
        rerank_mode="replace",
        pointer_reduction="mean",
        use_projection=True,
        chunk_size=None,
        kernel_initializer=None,
        bias_initializer="zeros",
        kernel_regularizer=None,
        dtype="float32",
        **kwargs,
    ):
        super().__init__(chunk_size=chunk_size, dtype=dtype, **kwargs)
        self.context = bool(context)
        self.pointer = bool(pointer)
        if self.pointer and not self.context:
            raise ValueError(
                "`pointer` must be False where `context` is False. "
                f"Received: pointer={pointer!r}, context={context!r}."
            )
        self.rerank = _check_sizes(rerank)
        self.context_mode = check_choice("context_mode", context_mode, MODES)
        self.rerank_mode = check_choice("rerank_mode", rerank_mode, MODES)
        self.pointer_reduction = check_choice(
            "pointer_reduction", pointer_reduction, POINTER_REDUCTIONS
        )
        self.use_projection = bool(use_projection)
        if kernel_initializer is None:
            kernel_initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, inputs_shape, ids_shape, table_shape):
        state_dim, dim = self.check_shapes(inputs_shape, ids_shape, table_shape)
        names = ["vocabulary"] if self.use_projection else []
        if not self.use_projection and state_dim != dim:
            raise ValueError(
                "`use_projection` must be True where states and items have other "
                f"widths. Received: use_projection=False, widths {state_dim} and {dim}."
            )
        names += ["context"] if self.context else []
        names += ["pointer", "key"] if self.pointer else []
        names += [f"rerank_{size}" for size in self.rerank]
        self.kernels, self.biases = {}, {}
        for i, name in enumerate(names):
            self.kernels[name] = self.add_weight(
                name=f"{name}_kernel",
                shape=(state_dim, dim),
                initializer=clone(self.kernel_initializer, i),
                regularizer=self.kernel_regularizer,
            )
            self.biases[name] = self.add_weight(
                name=f"{name}_bias", shape=(dim,), initializer=self.bias_initializer
            )

    def score(self, queries, table, training):
        return self._catalogue().logits(table, self._rows(queries, table))

    def score_candidates(self, queries, table, ids):
        query, *rows = self._rows(queries, table)
        count = len(self.rerank)
        return candidate_logits(
            table,
            ids,
            query,
            list(zip(rows[:count], self.rerank[::-1], strict=True)),
            rows[count] if self.context else None,
            add_reranks=self.rerank_mode == "add",
            add_context=self.context_mode == "add",
        )

    def query_losses(self, queries, table, targets, training):
        rows = self._rows(queries, table)
        return self._catalogue().losses(table, rows, targets, self.chunk_size)

    def query_loss(self, queries, table, targets, weights, training):
        if not training:
            return super().query_loss(queries, table, targets, weights, training)
        rows = self._rows(queries, table)
        few = queries.queries.shape[1] == 1
        return self._catalogue().loss_sum(
            table, rows, targets, weights, self.chunk_size, few=few
        )

    def user_vectors(self, queries):
        return self._facet("vocabulary", queries.queries)

    def get_config(self):
        return {
            **super().get_config(),
            "context": self.context,
            "pointer": self.pointer,
            "rerank": list(self.rerank),
            "context_mode": self.context_mode,
            "rerank_mode": self.rerank_mode,
            "pointer_reduction": self.pointer_reduction,
            "use_projection": self.use_projection,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _catalogue(self):
        """The partitions of the catalogue, the largest to be reranked first."""
        return Catalogue(
            1,
            self.rerank[::-1],
            self.context,
            add_reranks=self.rerank_mode == "add",
            add_context=self.context_mode == "add",
        )

    def _facet(self, name, states):
        """The vector of a partition, for each state."""
        if name not in self.kernels:
            return states
        return ops.matmul(states, self.kernels[name]) + self.biases[name]

    def _rows(self, queries, table):
        """What the scores of each query are made of, see `Catalogue`."""
        names = ["vocabulary", *(f"rerank_{size}" for size in self.rerank[::-1])]
        rows = [self._facet(name, queries.queries) for name in names]
        if self.context:
            rows += self._context(queries, table)
        return tuple(
            ops.reshape(x, (-1, x.shape[-1] or ops.shape(x)[-1])) for x in rows
        )

    def _context(self, queries, table):
        """Logits and ids of the items of the history, each item at its first step."""
        ids = ops.cast(queries.ids, "int32")
        items = ops.take(table, ids, axis=0)  # (batch_size, seq_len, dim)
        context = self._facet("context", queries.queries)
        logits = products(context, items)
        if self.pointer:
            logits = logits + self._pointers(queries)
        return logits, queries.items()

    def _pointers(self, queries):
        """`f_pointer . mean of key_t`, `(batch_size, num_queries, seq_len)`."""
        pointer = self._facet("pointer", queries.queries)
        # The products with the keys, by products with the states themselves.
        query = ops.matmul(pointer, ops.transpose(self.kernels["key"]))
        scores = products(query, queries.states)
        scores = scores + ops.sum(pointer * self.biases["key"], axis=-1, keepdims=True)
        visible = ops.cast(queries.visible, scores.dtype)
        same = ops.cast(queries.same, scores.dtype)
        total = ops.matmul(scores * visible, same)
        if self.pointer_reduction == "sum":
            return total
        return total / ops.maximum(ops.matmul(visible, same), 1.0)


def _check_sizes(rerank):
    """The sizes in ascending order, each once."""
    if not isinstance(rerank, (list, tuple)):
        raise TypeError(
            f"`rerank` must be a list or tuple of sizes. Received: rerank={rerank!r}."
        )
    sizes = sorted(check_int("rerank", size) for size in rerank)
    if len(set(sizes)) != len(sizes):
        raise ValueError(
            f"`rerank` must hold each size once. Received: rerank={rerank!r}."
        )
    return tuple(sizes)
