"""What the encoder block and the decoder block of Informer share."""

import keras

from keras_recsys._checks import check_choice, check_int, check_positive, check_rate
from keras_recsys._initializers import bias_for, clone
from keras_recsys.layers.forecasting._steps import check_series
from keras_recsys.layers.forecasting.full_attention import FullAttention
from keras_recsys.layers.forecasting.prob_sparse_attention import ProbSparseAttention

ATTENTIONS = ("prob_sparse", "full")
# Arguments of `ProbSparseAttention` that a block has not itself.
OPTIONS = (
    "measure",
    "inference_measure",
    "divisor",
    "lazy",
    "causal_sampling",
    "shared_keys",
    "streamed",
    "value_dim",
)


class InformerBlock(keras.layers.Layer):
    """Attentions and a feed-forward part, each with a sum and a normalization after."""

    def __init__(
        self,
        num_heads=8,
        *,
        key_dim=None,
        intermediate_dim=None,
        attention="prob_sparse",
        factor=5,
        attention_options=None,
        activation="gelu",
        dropout=0.0,
        attention_dropout=None,
        epsilon=1e-5,
        seed=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = check_int("num_heads", num_heads)
        if key_dim is not None:
            key_dim = check_int("key_dim", key_dim)
        self.key_dim = key_dim
        if intermediate_dim is not None:
            intermediate_dim = check_int("intermediate_dim", intermediate_dim)
        self.intermediate_dim = intermediate_dim
        self.attention = check_choice("attention", attention, ATTENTIONS)
        self.factor = check_int("factor", factor)
        self.attention_options = dict(attention_options or {})
        if attention == "full" and self.attention_options:
            raise ValueError(
                "`attention_options` must be None where `attention` is 'full'. "
                f"Received: attention_options={attention_options!r}."
            )
        if not set(self.attention_options) <= set(OPTIONS):
            raise ValueError(
                "`attention_options` must hold none but "
                f"{', '.join(map(repr, OPTIONS))}. "
                f"Received: attention_options={attention_options!r}."
            )
        self.activation = keras.activations.get(activation)
        self.dropout = check_rate("dropout", dropout)
        if attention_dropout is not None:
            attention_dropout = check_rate("attention_dropout", attention_dropout)
        self.attention_dropout = attention_dropout
        self.epsilon = check_positive("epsilon", epsilon)
        self.seed = seed
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "intermediate_dim": self.intermediate_dim,
            "attention": self.attention,
            "factor": self.factor,
            "attention_options": self.attention_options,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "epsilon": self.epsilon,
            "seed": self.seed,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _build_attention(self, name, index, kind, shape, value_shape=None, **options):
        """An attention and what follows it: its dropout and its normalization.

        Args:
            name: Name of the attention, the prefix of the others.
            index: Place among the parts of the block, for seeds and initializers, of
                which it takes up to eight.
            kind: One of `ATTENTIONS`.
            shape: Shape of the inputs of the block.
            value_shape: Shape of what is attended to; `None` for the same.
            **options: Further arguments of the attention.
        """
        dim = check_series(self, shape)
        key_dim = self.key_dim
        if key_dim is None:
            key_dim = dim // self.num_heads
            if dim % self.num_heads:
                raise ValueError(
                    f"`num_heads` must be a divisor of the width of the inputs, {dim}, "
                    f"where `key_dim` is None. Received: num_heads={self.num_heads!r}."
                )
        rate = self.attention_dropout
        layer = FullAttention
        if kind == "prob_sparse":
            layer = ProbSparseAttention
            options = {"factor": self.factor, **self.attention_options, **options}
        attention = layer(
            self.num_heads,
            key_dim,
            dropout=self.dropout if rate is None else rate,
            seed=self._seed(2 * index),
            kernel_initializer=clone(self.kernel_initializer, 8 * index),
            bias_initializer=clone(self.bias_initializer, 8 * index),
            kernel_regularizer=self.kernel_regularizer,
            dtype=self.dtype_policy,
            name=name,
            **options,
        )
        attention.build(shape, shape if value_shape is None else value_shape)
        setattr(self, name, attention)
        self._build_end(name, index, shape)

    def _build_feed_forward(self, index, shape):
        """The two dense layers, their dropouts and the normalization."""
        dim = shape[-1]
        inner = 4 * dim if self.intermediate_dim is None else self.intermediate_dim
        for i, name, units, width in (
            (8 * index, "inner", inner, dim),
            (8 * index + 2, "outer", dim, inner),
        ):
            bias = bias_for(clone(self.bias_initializer, i), width)
            dense = keras.layers.Dense(
                units,
                activation=self.activation if name == "inner" else None,
                kernel_initializer=clone(self.kernel_initializer, i),
                bias_initializer=bias,
                kernel_regularizer=self.kernel_regularizer,
                dtype=self.dtype_policy,
                name=name,
            )
            dense.build((None, None, width))
            setattr(self, name, dense)
        self.inner_dropout = self._dropout("inner_dropout", index)
        self._build_end("feed_forward", index + 1, shape)

    def _build_end(self, name, index, shape):
        norm = keras.layers.LayerNormalization(
            epsilon=self.epsilon, dtype=self.dtype_policy, name=f"{name}_norm"
        )
        norm.build(shape)
        setattr(self, f"{name}_norm", norm)
        setattr(self, f"{name}_dropout", self._dropout(f"{name}_dropout", index))

    def _dropout(self, name, index):
        seed = self._seed(10 + index)
        return keras.layers.Dropout(
            self.dropout, seed=seed, dtype=self.dtype_policy, name=name
        )

    def _seed(self, index):
        return None if self.seed is None else self.seed + index

    def _add(self, name, x, result, training):
        """The end of a part: dropout, sum and normalization."""
        dropout = getattr(self, f"{name}_dropout")
        return getattr(self, f"{name}_norm")(x + dropout(result, training=training))

    def _feed_forward(self, x, training):
        inner = self.inner_dropout(self.inner(x), training=training)
        return self._add("feed_forward", x, self.outer(inner), training)
