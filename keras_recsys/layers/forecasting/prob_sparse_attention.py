"""`ProbSparseAttention`, attention of the queries that stand out."""

import keras
import numpy as np

from keras_recsys._checks import check_choice, check_int
from keras_recsys.layers.forecasting._multi_head import MultiHeadLayer
from keras_recsys.ops.prob_sparse import (
    DIVISORS,
    LAZY,
    check_streamed,
    prob_sparse_attention,
    prob_sparse_counts,
    sample_key_index,
)

MEASURES = ("sampled", "exact")


@keras.saving.register_keras_serializable(package="keras_recsys")
class ProbSparseAttention(MultiHeadLayer):
    """Multi-head attention that only the queries with a distinct one take part in.

    For each head, `measure` says how far the attention of a query is from a uniform
    one; the `min(factor * ceil(ln query_len), query_len)` queries with the largest
    attend to all keys,

        output_i = sum_j softmax_j(query_i . key_j / sqrt(key_dim)) value_j

    and the others get the mean of the values, or, if `causal`, their running sum. On a
    sample `I_i` of `min(factor * ceil(ln key_len), key_len)` keys a query, drawn with
    replacement and shared by batch and heads,

        measure_i = max_{j in I_i} s_ij - sum_{j in I_i} s_ij / key_len

    with `s_ij = query_i . key_j`. In training each call draws a new sample. In
    inference the sample is a fixed one of the two lengths, so that an answer
    depends on inputs and weights alone, on any backend and after loading.

    If `causal`, no value of a later step is read, but which queries are selected
    depends on later steps: it suits a decoder that writes all steps at once, and is
    unsuited to decoding step by step.

    Args:
        num_heads: Positive int.
        key_dim: Positive int, the width of a head of the queries and keys.
        factor: Positive int, how many queries attend and how many keys are sampled, as
            a multiple of the logarithm of the length. Defaults to `5`.
        value_dim: As in `FullAttention`.
        output_dim: As in `FullAttention`.
        causal: Whether a query attends only to steps up to its own. Needs as many keys
            as queries. Defaults to `False`.
        mix: As in `FullAttention`. Defaults to `False`.
        measure: `"sampled"`, or `"exact"`, the measure on all keys, whose time grows
            with the product of the lengths, but not its memory. Defaults to
            `"sampled"`.
        inference_measure: The same for inference. Defaults to `None`, which is
            `measure`.
        divisor: What the sum is divided by: `"key_len"`, as in the authors' code, or
            `"sample"`, the number of sampled keys, as in the paper. They select
            different queries. Defaults to `"key_len"`.
        lazy: What lazy queries get if `causal`: `"cumsum"`, the running sum, as in the
            authors' code, or `"cummean"`, the running mean, which does not grow with
            the step. Defaults to `"cumsum"`.
        causal_sampling: Whether a query is measured only on keys up to its own step.
            It is still ranked against later queries. Defaults to `False`.
        shared_keys: Whether all queries are measured on one sample of keys, which is
            faster. Defaults to `False`.
        streamed: Whether the measure reads the sample feature by feature, which is the
            faster way where XLA compiles the model (on JAX, or with `jit_compile`).
            Defaults to `None`, by the length; see `ops.sparsity_measure`.
        dropout: Float in `[0, 1)`, applied to the weights of the selected queries.
            Defaults to `0.0`.
        seed: Optional int of the samples in training and of the dropout. Defaults to
            `None`.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of the biases. Defaults to `"zeros"`.
        kernel_regularizer: Regularizer of the kernels. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        query: Float tensor, `(batch_size, query_len, dim)` with a static length.
        value: Float tensor, `(batch_size, key_len, value_width)`, likewise.
        key: Float tensor, `(batch_size, key_len, key_width)`. Defaults to `None`, which
            is `value`.
        query_mask: Optional boolean tensor, `(batch_size, query_len)`; `True` keeps a
            step. Read from the Keras mask of `query` if not given.
        value_mask: Optional boolean tensor, `(batch_size, key_len)`, likewise. A step
            that it leaves out is missing in the measure, the weights, the mean and the
            sum.
        key_index: Integer tensor, `(query_len, num_keys)` or `(num_keys,)`, the sample.
            Defaults to `None`, which draws it.
        return_attention_scores: Whether to return the weights too, a matrix of the size
            that this layer otherwise saves. Defaults to `False`.
        training: Whether dropout acts and a new sample is drawn.

    Returns:
        Tensor, `(batch_size, query_len, output_dim)`, in the compute dtype; masked
        queries are exactly 0, and their mask is passed on. With
        `return_attention_scores` a tuple of it and the weights before dropout,
        `(batch_size, num_heads, query_len, key_len)`, in float32 or wider; rows of lazy
        queries are uniform.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range, a shape does not fit or a length
            is not static, or a mask comes with `mix`.

    Example:
    >>> layer = ProbSparseAttention(num_heads=2, key_dim=4)
    >>> x = np.ones((2, 48, 8), "float32")
    >>> tuple(layer(x, x).shape)
    (2, 48, 8)

    Reference:
        Zhou et al., "Informer: Beyond Efficient Transformer for Long Sequence
        Time-Series Forecasting", AAAI 2021, Section 3. Follows the authors' code where
        it differs from the paper (the divisor, the running sum). Differs from the code:
        inference is repeatable, dropout acts, masks are honoured, a length of 1 works.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        factor=5,
        *,
        measure="sampled",
        inference_measure=None,
        divisor="key_len",
        lazy="cumsum",
        causal_sampling=False,
        shared_keys=False,
        streamed=None,
        **kwargs,
    ):
        super().__init__(num_heads, key_dim, **kwargs)
        self.factor = check_int("factor", factor)
        self.measure = check_choice("measure", measure, MEASURES)
        if inference_measure is not None:
            check_choice("inference_measure", inference_measure, MEASURES)
        self.inference_measure = inference_measure
        self.divisor = check_choice("divisor", divisor, DIVISORS)
        self.lazy = check_choice("lazy", lazy, LAZY)
        self.causal_sampling = bool(causal_sampling)
        self.shared_keys = bool(shared_keys)
        self.streamed = check_streamed(streamed)
        if self.causal_sampling and self.shared_keys:
            raise ValueError(
                "`causal_sampling` must be False where `shared_keys` is True: one "
                "sample of keys is not before every query. "
                f"Received: causal_sampling={causal_sampling!r}, "
                f"shared_keys={shared_keys!r}."
            )
        self.sampler = keras.random.SeedGenerator(self.seed)

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        _static_lengths(query_shape, value_shape)

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_index=None,
        return_attention_scores=False,
        training=None,
    ):
        query_len, key_len = _static_lengths(query.shape, value.shape)
        if key_index is None:
            key_index = self._sample(query_len, key_len, training)
        masks = query_mask, value_mask
        return self._run(
            query,
            value,
            key,
            masks,
            return_attention_scores,
            training,
            key_index=key_index,
        )

    def compute_output_spec(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_index=None,
        return_attention_scores=False,
        training=None,
    ):
        return self._spec(query, value, return_attention_scores)

    def get_config(self):
        return {
            **super().get_config(),
            "factor": self.factor,
            "measure": self.measure,
            "inference_measure": self.inference_measure,
            "divisor": self.divisor,
            "lazy": self.lazy,
            "causal_sampling": self.causal_sampling,
            "shared_keys": self.shared_keys,
            "streamed": self.streamed,
        }

    def _sample(self, query_len, key_len, training):
        """The sampled keys, or `None` for the exact measure."""
        measure = self.measure
        if not training:
            measure = self.inference_measure or measure
        num_queries, num_keys = prob_sparse_counts(query_len, key_len, self.factor)
        if measure == "exact" or num_queries == query_len:
            return None
        if training:
            return sample_key_index(
                query_len,
                key_len,
                num_keys,
                causal=self.causal_sampling,
                shared=self.shared_keys,
                seed=self.sampler,
            )
        # The numbers of this generator are the same in all versions of NumPy.
        share = np.random.RandomState([query_len, key_len]).random_sample
        if self.shared_keys:
            return (share(num_keys) * key_len).astype("int32")
        last = np.full(query_len, key_len)
        if self.causal_sampling:
            last = np.minimum(np.arange(1, query_len + 1), key_len)
        return (share((query_len, num_keys)) * last[:, None]).astype("int32")

    def _attend(self, query, key, value, **options):
        return prob_sparse_attention(
            query,
            key,
            value,
            factor=self.factor,
            causal=self.causal,
            divisor=self.divisor,
            lazy=self.lazy,
            causal_sampling=self.causal_sampling,
            streamed=self.streamed,
            **options,
        )


def _static_lengths(query_shape, value_shape):
    """Returns the numbers of queries and keys.

    Raises:
        ValueError: If one of them is unknown.
    """
    lengths = query_shape[1], value_shape[1]
    if None in lengths:
        raise ValueError(
            "`ProbSparseAttention` takes `query` and `value` of static length, which "
            "decides how many queries attend. "
            f"Received: query_len={lengths[0]}, key_len={lengths[1]}."
        )
    return lengths
