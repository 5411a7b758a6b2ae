"""What the multi-head attentions of forecasting models share."""

import keras
from keras import ops

from keras_recsys._checks import check_int, check_rate
from keras_recsys._dtypes import wide_dtype
from keras_recsys._initializers import bias_for, clone


class MultiHeadLayer(keras.layers.Layer):
    """Projects to heads, calls `_attend` on them, joins and projects back.

    Both subclasses have the same weights, so that one takes those of the other.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        *,
        value_dim=None,
        output_dim=None,
        causal=False,
        mix=False,
        dropout=0.0,
        seed=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = check_int("num_heads", num_heads)
        self.key_dim = check_int("key_dim", key_dim)
        if value_dim is not None:
            value_dim = check_int("value_dim", value_dim)
        self.value_dim = value_dim
        if output_dim is not None:
            output_dim = check_int("output_dim", output_dim)
        self.output_dim = output_dim
        self.causal = bool(causal)
        self.mix = bool(mix)
        self.dropout = check_rate("dropout", dropout)
        self.seed = seed
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        shapes = [tuple(x) for x in (query_shape, value_shape, key_shape)]
        if any(len(shape) != 3 or shape[-1] is None for shape in shapes):
            raise ValueError(
                f"`{type(self).__name__}` takes `query`, `value` and `key` of shape "
                "(batch_size, length, dim) with a static dim. "
                f"Received: query_shape={shapes[0]}, value_shape={shapes[1]}, "
                f"key_shape={shapes[2]}."
            )
        value_dim = self.value_dim or self.key_dim
        widths = {
            "query": (self.num_heads * self.key_dim, shapes[0][-1]),
            "key": (self.num_heads * self.key_dim, shapes[2][-1]),
            "value": (self.num_heads * value_dim, shapes[1][-1]),
            "output_projection": (
                self.output_dim or shapes[0][-1],
                self.num_heads * value_dim,
            ),
        }
        for i, (name, (units, width)) in enumerate(widths.items()):
            dense = keras.layers.Dense(
                units,
                kernel_initializer=clone(self.kernel_initializer, 2 * i),
                bias_initializer=clone(bias_for(self.bias_initializer, width), 2 * i),
                kernel_regularizer=self.kernel_regularizer,
                dtype=self.dtype_policy,
                name=name,
            )
            dense.build((None, None, width))
            setattr(self, name, dense)
        self.weight_dropout = keras.layers.Dropout(
            self.dropout,
            seed=None if self.seed is None else self.seed + 1,  # not the sampler's
            dtype=wide_dtype(self.compute_dtype),
            name="weight_dropout",
        )

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "output_dim": self.output_dim,
            "causal": self.causal,
            "mix": self.mix,
            "dropout": self.dropout,
            "seed": self.seed,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _run(self, query, value, key, masks, return_attention_scores, training, **more):
        """Output of the layer, and the weights if they are asked for."""
        if self.mix and any(mask is not None for mask in masks):
            raise ValueError(
                f"`{type(self).__name__}` takes no mask where `mix` is True, which "
                "spreads a step over others. Received: query_mask or value_mask."
            )
        query_mask, key_mask = masks
        key = zero_masked(value if key is None else key, key_mask)
        query, value = zero_masked(query, query_mask), zero_masked(value, key_mask)

        def dropped(weights):
            return self.weight_dropout(weights, training=training)

        result = self._attend(
            self._heads(self.query(query)),
            self._heads(self.key(key)),
            self._heads(self.value(value)),
            query_mask=query_mask,
            key_mask=key_mask,
            dropout=dropped if self.dropout else None,
            return_attention_scores=return_attention_scores,
            **more,
        )
        context = result[0] if return_attention_scores else result
        if self.mix:
            context = ops.swapaxes(context, 1, 2)
        batch_size, query_len = ops.shape(query)[:2]
        width = self.num_heads * (self.value_dim or self.key_dim)
        output = self.output_projection(
            ops.reshape(context, (batch_size, query_len, width))
        )
        output = zero_masked(output, query_mask)
        return (output, result[1]) if return_attention_scores else output

    def _spec(self, query, value, return_attention_scores):
        """What `call` returns, as symbolic tensors."""
        shape = self.compute_output_shape(query.shape, value.shape)
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        return output, keras.KerasTensor(
            (shape[0], self.num_heads, shape[1], value.shape[1]),
            dtype=wide_dtype(self.compute_dtype),
        )

    def _heads(self, x):
        """`(batch_size, length, num_heads, dim)` of the joined heads."""
        batch_size, length, width = ops.shape(x)
        shape = (batch_size, length, self.num_heads, width // self.num_heads)
        return ops.reshape(x, shape)


def zero_masked(x, mask):
    """`x` with zeros, whatever it holds, at the steps that `mask` leaves out."""
    if mask is None:
        return x
    kept = ops.expand_dims(ops.cast(mask, "bool"), -1)
    return ops.where(kept, x, ops.zeros_like(x))
