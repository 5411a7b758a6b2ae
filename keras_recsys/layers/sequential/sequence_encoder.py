"""`SequenceEncoder`, the Transformer of SASRec."""

import keras
from keras import ops

from keras_recsys._checks import check_choice, check_int, check_positive, check_rate
from keras_recsys._initializers import clone
from keras_recsys._lookup import read_rows
from keras_recsys.layers.behavior.self_attention_block import SelfAttentionBlock

ALIGNMENTS = ("first", "last")


@keras.saving.register_keras_serializable(package="keras_recsys")
class SequenceEncoder(keras.layers.Layer):
    """Encodes each step of a sequence with the steps before it.

        x_0 = dropout(norm(inputs + position))
        x_l = block_l(x_{l-1}),    l = 1 .. num_layers

    where each block is a causal `SelfAttentionBlock` with normalizations after its
    parts, and the output is `x_{num_layers}`.

    Args:
        num_layers: Positive int, number of blocks. Defaults to `2`.
        num_heads: Positive int, a divisor of `dim`. Defaults to `2`.
        intermediate_dim: Positive int, inner width of the feed-forward parts. Defaults
            to `None`, four times `dim`.
        max_len: Positive int, number of positions. Defaults to `50`.
        align: `"first"`: the first real step of a row has position 0, so that a step is
            the same in a sequence and in its prefix; or `"last"`: the last real step
            has position `max_len - 1`, so that a position says how far the end is.
            Defaults to `"first"`.
        activation: Activation of the feed-forward parts. Defaults to `"gelu"`, the
            exact one.
        dropout: Float in `[0, 1)`, applied to `x_0` and to the results of the parts of
            each block. Defaults to `0.0`.
        attention_dropout: Float in `[0, 1)`, applied to the weights of the attention.
            Defaults to `0.0`.
        epsilon: Positive float, added to the variances. Defaults to `1e-12`, of which
            half precisions take `1e-6`.
        seed: Optional int of the dropout. Defaults to `None`.
        kernel_initializer: Initializer of the kernels and of the positions. Defaults to
            `None`, normal with a standard deviation of 0.02.
        kernel_regularizer: Regularizer of the kernels. Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor, `(batch_size, seq_len, dim)`, oldest step first, with
            `seq_len` at most `max_len`.
        mask: Optional boolean tensor, `(batch_size, seq_len)`, of any pattern; `True`
            keeps a step. Read from the Keras mask of `inputs` if not given. Rows whose
            padding is all behind need none with `align="first"`: no step sees it.
        return_all_states: Whether to return the states of all blocks. Defaults to
            `False`.
        training: Whether dropout acts.

    Returns:
        Tensor of the shape of `inputs`, in the compute dtype; masked steps are exactly
        0, and the mask is passed on. With `return_all_states` a list of `num_layers`
        such tensors, the lowest block first.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range, or `inputs` is not of rank 3
            with a static `dim`, or longer than `max_len` where that is known.

    Example:
    >>> layer = SequenceEncoder(max_len=5)
    >>> tuple(layer(np.ones((2, 5, 4), "float32")).shape)
    (2, 5, 4)

    Reference:
        Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018, in the
        form that RecBole gave it and on which Softmax-CPR was measured. Differs from
        the paper: normalizations come after, the activation is a GELU, heads are mixed
        by an output projection, and embeddings are not scaled.
    """

    def __init__(
        self,
        num_layers=2,
        num_heads=2,
        *,
        intermediate_dim=None,
        max_len=50,
        align="first",
        activation="gelu",
        dropout=0.0,
        attention_dropout=0.0,
        epsilon=1e-12,
        seed=None,
        kernel_initializer=None,
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_layers = check_int("num_layers", num_layers)
        self.num_heads = check_int("num_heads", num_heads)
        if intermediate_dim is not None:
            intermediate_dim = check_int("intermediate_dim", intermediate_dim)
        self.intermediate_dim = intermediate_dim
        self.max_len = check_int("max_len", max_len)
        self.align = check_choice("align", align, ALIGNMENTS)
        self.activation = keras.activations.get(activation)
        self.dropout = check_rate("dropout", dropout)
        self.attention_dropout = check_rate("attention_dropout", attention_dropout)
        self.epsilon = check_positive("epsilon", epsilon)
        self.seed = seed
        if kernel_initializer is None:
            kernel_initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, input_shape):
        if len(input_shape) != 3 or input_shape[-1] is None:
            raise ValueError(
                "`SequenceEncoder` takes inputs of shape (batch_size, seq_len, dim) "
                f"with a static dim. Received: input_shape={tuple(input_shape)}."
            )
        self._check_length(input_shape[1])
        dim = input_shape[-1]
        self.positions = self.add_weight(
            name="positions",
            shape=(self.max_len, dim),
            initializer=clone(self.kernel_initializer, 0),
            autocast=False,
        )
        self.norm = keras.layers.LayerNormalization(
            epsilon=self._epsilon(), dtype=self.dtype_policy, name="norm"
        )
        self.norm.build(input_shape)
        self.input_dropout = keras.layers.Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy, name="input_dropout"
        )
        self.blocks = []
        for i in range(self.num_layers):
            block = SelfAttentionBlock(
                self.num_heads,
                intermediate_dim=self.intermediate_dim or 4 * dim,
                activation=self.activation,
                use_output_projection=True,
                pre_norm=False,
                causal=True,
                dropout=self.dropout,
                attention_dropout=self.attention_dropout,
                epsilon=self._epsilon(),
                seed=None if self.seed is None else self.seed + 3 * i + 1,
                # A block draws six kernels from clones of its own.
                kernel_initializer=clone(self.kernel_initializer, 6 * i + 1),
                kernel_regularizer=self.kernel_regularizer,
                dtype=self.dtype_policy,
                name=f"block_{i}",
            )
            block.build(input_shape)
            self.blocks.append(block)

    def call(self, inputs, mask=None, return_all_states=False, training=None):
        self._check_length(inputs.shape[1])
        if mask is not None:
            kept = ops.expand_dims(mask, -1)
            inputs = ops.where(kept, inputs, ops.zeros_like(inputs))
        x = self.norm(inputs + self._encoding(inputs, mask))
        x = self.input_dropout(x, training=training)
        states = []
        for block in self.blocks:
            x = block(x, mask=mask, training=training)
            states.append(x)
        return states if return_all_states else x

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def compute_output_spec(
        self, inputs, mask=None, return_all_states=False, training=None
    ):
        states = [
            keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)
            for _ in range(self.num_layers if return_all_states else 1)
        ]
        return states if return_all_states else states[0]

    def compute_mask(self, inputs, mask=None):
        return mask

    def get_config(self):
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "max_len": self.max_len,
            "align": self.align,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "epsilon": self.epsilon,
            "seed": self.seed,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _epsilon(self):
        """What is added to the variances: the half precisions know no 1e-12."""
        half = self.compute_dtype in ("float16", "bfloat16")
        return max(self.epsilon, 1e-6) if half else self.epsilon

    def _check_length(self, seq_len):
        if seq_len is not None and seq_len > self.max_len:
            raise ValueError(
                f"`inputs` of `SequenceEncoder` must have at most max_len="
                f"{self.max_len} steps; keep the last ones. Received: {seq_len} steps."
            )

    def _encoding(self, inputs, mask):
        """The vectors of the positions of the steps."""
        seq_len = ops.shape(inputs)[1]
        if mask is None:
            start = self.max_len - seq_len if self.align == "last" else 0
            rows = ops.arange(seq_len, dtype="int32") + start
            return read_rows(self.positions, rows, self.compute_dtype)
        count = ops.cumsum(ops.cast(mask, "int32"), axis=1)
        rows = ops.maximum(count - 1, 0)
        if self.align == "last":
            rows = rows + self.max_len - count[:, -1:]
        rows = ops.minimum(rows, self.max_len - 1)
        return read_rows(self.positions, rows, self.compute_dtype)
