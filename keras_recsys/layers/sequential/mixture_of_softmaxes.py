"""`MixtureOfSoftmaxes`, an output layer of several softmaxes."""

import keras
from keras import ops

from keras_recsys._checks import check_choice, check_int
from keras_recsys._initializers import clone
from keras_recsys.layers.sequential._catalogue import Catalogue
from keras_recsys.layers.sequential._next_item_head import NextItemHead
from keras_recsys.layers.sequential._steps import LOWEST

MODES = ("dynamic", "static", "uniform", "max")


@keras.saving.register_keras_serializable(package="keras_recsys")
class MixtureOfSoftmaxes(NextItemHead):
    """Scores the next item by a mixture of several softmaxes.

    One vector can hardly be near to items that are far from each other. With `q` the
    state of the last item and `e_x` the row of item `x` in the table,

        f_i = q kernel_i + bias_i
        logit_x = log(sum over i of w_i softmax_x(f_i . e_x))

    and weights `w` of one of the modes

        dynamic: w = softmax(q mixture_kernel + mixture_bias)
        static:  w = softmax(mixture_logits)
        uniform: w_i = 1 / num_components

    With mode `"max"` there is one softmax, of the largest of the scores:

        logit_x = max over i of f_i . e_x

    Args:
        num_components: Positive int, the number of softmaxes. Each takes the time and
            the memory of a plain one. Defaults to `3`.
        mode: `"dynamic"`, `"static"`, `"uniform"` or `"max"`. Defaults to `"dynamic"`.
        chunk_size: Optional int, the number of steps whose logits a loss holds at a
            time, those of all components. Defaults to `None`, as many as make 8 MiB.
        kernel_initializer: Initializer of the kernels, those of the components each
            `(state_dim, dim)`, that of the weights `(state_dim, num_components)`.
            Defaults to `None`, normal with a standard deviation of 0.02. The logits of
            static weights start equal, at 1.
        bias_initializer: Initializer of the biases. Defaults to `"zeros"`.
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
        return_user_vector: Whether to return the `f_i` too. Defaults to `False`.

    Returns:
        Logits of the item after the last step, `(batch_size, num_ids)`, in float32 or
        wider: logarithms of the probabilities, except with mode `"max"`; that of id 0
        is -1e9. With `return_user_vector` a tuple of them and the `f_i`, `(batch_size,
        num_components, dim)`, for retrieval, which searches for each of them: with
        mode `"max"` the largest product of an item is its logit, and with the others
        what a component finds is to be scored by the mixture. A row without items has
        a state of zeros.

    Raises:
        TypeError: If `num_components` is not an integer.
        ValueError: If an argument is out of its range, or the shapes do not fit.

    Example:
    >>> states, table = np.ones((2, 3, 4), "float32"), np.ones((6, 4), "float32")
    >>> layer = MixtureOfSoftmaxes(num_components=2)
    >>> logits = layer(states, np.array([[5, 1, 5], [2, 0, 0]]), table)
    >>> tuple(logits.shape)
    (2, 6)

    Reference:
        Yang et al., "Breaking the Softmax Bottleneck: A High-Rank RNN Language Model",
        ICLR 2018, Eq. 5; mode `"max"` is what the code of Chang, Agarwal and McCallum,
        WSDM 2024, runs under the name of the mixture. Differs from the former: no
        hyperbolic tangent on the `f_i`; from the latter: id 0 has no share in any
        softmax, and the logarithm has no floor.
    """

    def __init__(
        self,
        num_components=3,
        mode="dynamic",
        *,
        chunk_size=None,
        kernel_initializer=None,
        bias_initializer="zeros",
        kernel_regularizer=None,
        dtype="float32",
        **kwargs,
    ):
        super().__init__(chunk_size=chunk_size, dtype=dtype, **kwargs)
        self.num_components = check_int("num_components", num_components)
        self.mode = check_choice("mode", mode, MODES)
        if kernel_initializer is None:
            kernel_initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, inputs_shape, ids_shape, table_shape):
        state_dim, dim = self.check_shapes(inputs_shape, ids_shape, table_shape)
        count = self.num_components
        self.kernels, self.biases = [], []
        for i in range(count):
            self.kernels.append(
                self._add_kernel(f"component_{i}_kernel", (state_dim, dim), i)
            )
            self.biases.append(self._add_bias(f"component_{i}_bias", dim))
        if self.mode == "dynamic":
            self.mixture_kernel = self._add_kernel(
                "mixture_kernel", (state_dim, count), count
            )
            self.mixture_bias = self._add_bias("mixture_bias", count)
        elif self.mode == "static":
            self.mixture_logits = self.add_weight(
                name="mixture_logits", shape=(count,), initializer="ones"
            )

    def score(self, queries, table, training):
        vectors = self.user_vectors(queries)[:, 0]
        if self.mode == "max":
            return self._largest().logits(table, self._each(vectors))
        logits = Catalogue().logits(table, (self._flat(vectors),))
        norms = ops.logsumexp(logits, axis=1, keepdims=True)
        shape = (-1, self.num_components, table.shape[0])
        shares = ops.reshape(logits - norms, shape)
        weights = ops.expand_dims(self._log_weights(queries.queries[:, 0]), -1)
        logits = ops.logsumexp(shares + weights, axis=1)
        items = ops.arange(table.shape[0]) > 0
        return ops.where(items, logits, ops.full_like(logits, LOWEST))

    def query_losses(self, queries, table, targets, training):
        vectors = self.user_vectors(queries)
        if self.mode == "max":
            return self._largest().losses(
                table, self._each(vectors), targets, self.chunk_size
            )
        count = self.num_components
        chunk_size = None if self.chunk_size is None else self.chunk_size * count
        repeated = ops.repeat(targets, count)
        rows = (self._flat(vectors),)
        losses = Catalogue().losses(
            table,
            rows,
            repeated,
            chunk_size,
            hold=queries.queries.shape[1] == 1,
        )
        weights = ops.reshape(self._log_weights(queries.queries), (-1, count))
        losses = -ops.logsumexp(weights - ops.reshape(losses, (-1, count)), axis=1)
        return ops.where(targets > 0, losses, ops.zeros_like(losses))

    def query_loss(self, queries, table, targets, weights, training):
        if self.mode != "max" or not training:
            return super().query_loss(queries, table, targets, weights, training)
        rows = self._each(self.user_vectors(queries))
        return self._largest().loss_sum(table, rows, targets, weights, self.chunk_size)

    def user_vectors(self, queries):
        parts = zip(self.kernels, self.biases, strict=True)
        vectors = [ops.matmul(queries.queries, a) + b for a, b in parts]
        return ops.stack(vectors, axis=2)

    def user_vector_shape(self, inputs_shape, table_shape):
        """Shape of the user vectors, without the batch."""
        return (self.num_components, table_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "num_components": self.num_components,
            "mode": self.mode,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _add_kernel(self, name, shape, index):
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=clone(self.kernel_initializer, index),
            regularizer=self.kernel_regularizer,
        )

    def _add_bias(self, name, width):
        return self.add_weight(
            name=name, shape=(width,), initializer=self.bias_initializer
        )

    def _largest(self):
        """The catalogue in which an item has the largest of its scores."""
        return Catalogue(self.num_components)

    def _flat(self, vectors):
        """The vectors of all components, one below the other."""
        return ops.reshape(vectors, (-1, vectors.shape[-1]))

    def _each(self, vectors):
        """Tuple of the vectors of each component, `(num_rows, dim)`."""
        flat = ops.reshape(vectors, (-1, self.num_components, vectors.shape[-1]))
        return tuple(flat[:, i] for i in range(self.num_components))

    def _log_weights(self, states):
        """Logarithms of the weights, for each state."""
        if self.mode == "dynamic":
            logits = ops.matmul(states, self.mixture_kernel) + self.mixture_bias
        elif self.mode == "static":
            logits = self.mixture_logits + ops.zeros_like(states[..., :1])
        else:
            logits = ops.zeros_like(states[..., :1])
            logits = ops.repeat(logits, self.num_components, axis=-1)
        return logits - ops.logsumexp(logits, axis=-1, keepdims=True)
