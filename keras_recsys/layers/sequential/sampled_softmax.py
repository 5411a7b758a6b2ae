"""`SampledSoftmax`, a softmax whose training loss draws the items it is against."""

import math

import keras
from keras import ops

from keras_recsys._checks import check_choice, check_int
from keras_recsys.layers.sequential._candidates import candidate_logits
from keras_recsys.layers.sequential._catalogue import Catalogue
from keras_recsys.layers.sequential._next_item_head import NextItemHead
from keras_recsys.layers.sequential._steps import LOWEST

SAMPLINGS = ("uniform", "log_uniform")


@keras.saving.register_keras_serializable(package="keras_recsys")
class SampledSoftmax(NextItemHead):
    """Scores the next item by one vector, and learns from a sample of the items.

    With `q` the state of the last item and `e_x` the row of item `x` in the table,

        f = q kernel + bias
        logit_x = f . e_x

    In training `loss` and `step_losses` draw `num_sampled` items, with replacement and
    once for all steps, of which item `x` comes with probability `Q(x)`, and give the
    cross entropy of the target among itself and those of the drawn that are not the
    target, with the logits of the drawn

        logit_x - log(num_sampled Q(x))

    The sum of the exponentials is then that of all items in the mean, and the loss
    tends to the cross entropy among all items, which `step_losses` gives outside of
    training. Scores are always of all items.

    Args:
        num_sampled: Positive int, how many items are drawn. Time and memory of the
            loss grow with it and not with the number of items. The gradient of a table
            that serves input and output is as large as the table all the same.
        sampling: `"uniform"`, or `"log_uniform"`: `Q(x)` proportional to `log(1 + 1 /
            x)`, for ids in descending order of the frequency of their items. Defaults
            to `"uniform"`.
        seed: Optional int of the draws. Defaults to `None`.
        use_projection: Whether `f` is a projection; if not it is `q` itself. Defaults
            to `True`.
        chunk_size: Optional int, the number of steps whose logits a loss holds at a
            time outside of training; in training it holds `num_sampled` logits of
            every step. Defaults to `None`, as many as make 8 MiB.
        kernel_initializer: Initializer of `kernel`, of shape `(state_dim, dim)`.
            Defaults to `None`, normal with a standard deviation of 0.02.
        bias_initializer: Initializer of `bias`, of shape `(dim,)`. Defaults to
            `"zeros"`.
        kernel_regularizer: Regularizer of `kernel`. Defaults to `None`.
        dtype: Defaults to `"float32"`, under mixed precision too.
        **kwargs: `name` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, seq_len, state_dim)`: the states of an
            encoder, oldest step first, of which step `t` has seen no later item.
        ids: Integer tensor, `(batch_size, seq_len)`, the items of the steps; 0 is
            padding, wherever it stands.
        table: Float tensor, `(num_ids, dim)`, the vectors of all items, those of the
            lookup: `FullEmbedding` gives it with `return_table=True`. Row 0 is never
            read for a score, and id 0 is never drawn.
        inputs_mask: Optional boolean tensor, `(batch_size, seq_len)`; `False` makes
            padding of a step too. Read from the Keras mask of `inputs` if not given.
        return_user_vector: Whether to return `f` too. Defaults to `False`.

    Returns:
        Logits of the item after the last step, `(batch_size, num_ids)`, in float32 or
        wider; that of id 0 is -1e9. With `return_user_vector` a tuple of them and `f`,
        `(batch_size, dim)`, whose products with the table are the logits. A row
        without items has a state of zeros.

    Raises:
        TypeError: If `num_sampled` is not an integer.
        ValueError: If an argument is out of its range, or the shapes do not fit.

    Example:
    >>> states, table = np.ones((2, 3, 4), "float32"), np.ones((6, 4), "float32")
    >>> ids = np.array([[5, 1, 5], [2, 0, 0]])
    >>> layer = SampledSoftmax(num_sampled=3)
    >>> tuple(layer(states, ids, table).shape)
    (2, 6)
    >>> tuple(layer.step_losses(states, ids, table, np.array([2, 4])).shape)
    (2,)

    Reference:
        Bengio and Senecal, "Adaptive Importance Sampling to Accelerate Training of a
        Neural Probabilistic Language Model", IEEE Transactions on Neural Networks,
        2008; one draw for all rows as in Jean et al., "On Using Very Large Target
        Vocabulary for Neural Machine Translation", ACL 2015, Section 3. Differs from
        both: the target has its own logit, with no correction, as it is always there;
        what is drawn equal to it is left out.
    """

    def __init__(
        self,
        num_sampled,
        *,
        sampling="uniform",
        seed=None,
        use_projection=True,
        chunk_size=None,
        kernel_initializer=None,
        bias_initializer="zeros",
        kernel_regularizer=None,
        dtype="float32",
        **kwargs,
    ):
        super().__init__(chunk_size=chunk_size, dtype=dtype, **kwargs)
        self.num_sampled = check_int("num_sampled", num_sampled)
        self.sampling = check_choice("sampling", sampling, SAMPLINGS)
        self.seed = seed
        self.use_projection = bool(use_projection)
        if kernel_initializer is None:
            kernel_initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, inputs_shape, ids_shape, table_shape):
        state_dim, dim = self.check_shapes(inputs_shape, ids_shape, table_shape)
        if not self.use_projection:
            if state_dim != dim:
                raise ValueError(
                    "`use_projection` must be True where states and items have other "
                    "widths. Received: use_projection=False, "
                    f"widths {state_dim} and {dim}."
                )
            return
        self.kernel = self.add_weight(
            name="kernel",
            shape=(state_dim, dim),
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
        )
        self.bias = self.add_weight(
            name="bias", shape=(dim,), initializer=self.bias_initializer
        )

    def score(self, queries, table, training):
        return Catalogue().logits(table, (self.user_vectors(queries)[:, 0],))

    def score_candidates(self, queries, table, ids):
        return candidate_logits(table, ids, self.user_vectors(queries)[:, 0])

    def query_losses(self, queries, table, targets, training):
        vectors = self.user_vectors(queries)
        vectors = ops.reshape(vectors, (-1, table.shape[-1]))
        if not training:
            return Catalogue().losses(table, (vectors,), targets, self.chunk_size)
        num_items = table.shape[0] - 1
        sampled = self._draw(num_items)
        counts = self._log_counts(sampled, num_items, vectors.dtype)
        return sampled_losses(vectors, table, targets, sampled, 0.0, counts)

    def user_vectors(self, queries):
        if not self.use_projection:
            return queries.queries
        return ops.matmul(queries.queries, self.kernel) + self.bias

    def get_config(self):
        return {
            **super().get_config(),
            "num_sampled": self.num_sampled,
            "sampling": self.sampling,
            "seed": self.seed,
            "use_projection": self.use_projection,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _draw(self, num_items):
        """The drawn ids, `(num_sampled,)`, each from 1 to `num_items`."""
        shape = (self.num_sampled,)
        if self.sampling == "uniform":
            return keras.random.randint(
                shape, 1, num_items + 1, dtype="int32", seed=self.seed_generator
            )
        # The ids up to x have a share of log(x + 1) / log(num_items + 1).
        share = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)
        ids = ops.cast(ops.exp(share * math.log(num_items + 1)), "int32")
        return ops.clip(ids, 1, num_items)

    def _log_counts(self, sampled, num_items, dtype):
        """Logarithms of how often each id is expected among the drawn."""
        ids = ops.cast(sampled, dtype)
        if self.sampling == "uniform":
            return ops.full_like(ids, math.log(self.num_sampled / num_items))
        shares = ops.log1p(1.0 / ids) / math.log(num_items + 1)
        return ops.log(self.num_sampled * shares)


def sampled_losses(
    queries, table, targets, sampled, log_counts_targets, log_counts_sampled
):
    """Cross entropy of the targets, each among itself and the sampled items.

    Args:
        queries: Float tensor, `(num_rows, dim)`.
        table: Float tensor, `(num_ids, dim)`.
        targets: Integer tensor, `(num_rows,)`, 0 where there is none.
        sampled: Integer tensor, `(num_sampled,)`. Those that are the target of a row
            are not counted against it.
        log_counts_targets: Float or float tensor, `(num_rows,)`, logarithms of how
            often each target is expected among the candidates; 0 where targets are
            no draws, and in there once in any case.
        log_counts_sampled: The same for the sampled items, `(num_sampled,)`.

    Returns:
        Tensor of shape `(num_rows,)`, in nats; 0 where the target is 0.
    """
    hits = ops.sum(queries * ops.take(table, targets, axis=0), axis=1)
    hits = hits - log_counts_targets
    items = ops.take(table, sampled, axis=0)
    others = ops.matmul(queries, ops.transpose(items)) - log_counts_sampled
    same = ops.equal(ops.expand_dims(targets, 1), sampled)
    others = ops.where(same, ops.full_like(others, LOWEST), others)
    logits = ops.concatenate([ops.expand_dims(hits, 1), others], axis=1)
    losses = ops.logsumexp(logits, axis=1) - hits
    return ops.where(targets > 0, losses, ops.zeros_like(losses))
