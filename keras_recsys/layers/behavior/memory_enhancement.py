"""`MemoryEnhancement`, steps in which a memory meets the target again."""

import keras
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys._initializers import GateBias, clone


@keras.saving.register_keras_serializable(package="keras_recsys")
class MemoryEnhancement(keras.layers.Layer):
    """Steps a GRU from a memory, fed with the memory and the target.

    With `v` the target and `s_0` the memory,

        s_t = GRU(input=[s_(t-1) kernel ; v], state=s_(t-1))        t = 1 .. num_steps

    Args:
        num_steps: Positive int. Defaults to `3`.
        share_step_transform: Whether all steps have one kernel. Defaults to `True`.
        transform_bias: Whether the products with the kernel have a bias. Defaults to
            `False`.
        reset_after: Form of the GRU, as in `keras.layers.GRU`, but `False` by default.
        gate_bias_initializer: Initializer of the biases of both gates of the GRU.
            Defaults to `"ones"`.
        kernel_initializer: Initializer of the kernels. Defaults to
            `"glorot_uniform"`.
        kernel_regularizer: Regularizer of the kernels that transform the memory.
            Defaults to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        memory: Float tensor, `(batch_size, dim)`, such as `IterativeMemory` gives.
        query: Float tensor, `(batch_size, dim)`, the target.

    Returns:
        Tensor of shape `(batch_size, dim)`, in the compute dtype. It has no mask.

    Raises:
        TypeError: If `num_steps` is not an integer.
        ValueError: If it is not positive, or the shapes differ or are not of rank 2.

    Example:
    >>> x = np.ones((2, 4), "float32")
    >>> tuple(MemoryEnhancement(num_steps=2)(x, x).shape)
    (2, 4)

    Reference:
        Lin et al., "Sparse Attentive Memory Network for Click-through Rate Prediction
        with Long Sequences", CIKM 2022. The authors' code has a kernel with a bias for
        every step: `share_step_transform=False, transform_bias=True`.
    """

    def __init__(
        self,
        num_steps=3,
        *,
        share_step_transform=True,
        transform_bias=False,
        reset_after=False,
        gate_bias_initializer="ones",
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_steps = check_int("num_steps", num_steps)
        self.share_step_transform = bool(share_step_transform)
        self.transform_bias = bool(transform_bias)
        self.reset_after = bool(reset_after)
        self.gate_bias_initializer = keras.initializers.get(gate_bias_initializer)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, memory_shape, query_shape):
        shapes = tuple(memory_shape), tuple(query_shape)
        if any(len(shape) != 2 or shape[1] is None for shape in shapes) or (
            shapes[0][1] != shapes[1][1]
        ):
            raise ValueError(
                "`MemoryEnhancement` takes a memory and a target of shape (batch_size, "
                f"dim) with one static `dim`. Received: shapes {shapes}."
            )
        dim = memory_shape[1]
        count = 1 if self.share_step_transform else self.num_steps
        self.transforms = [
            keras.layers.Dense(
                dim,
                use_bias=self.transform_bias,
                kernel_initializer=clone(self.kernel_initializer, i),
                kernel_regularizer=self.kernel_regularizer,
                dtype=self.dtype_policy,
                name="transform" if count == 1 else f"transform_{i}",
            )
            for i in range(count)
        ]
        for transform in self.transforms:
            transform.build(memory_shape)
        self.gru = keras.layers.GRUCell(
            dim,
            reset_after=self.reset_after,
            kernel_initializer=clone(self.kernel_initializer, count),
            bias_initializer=GateBias(self.gate_bias_initializer),
            dtype=self.dtype_policy,
            name="gru",
        )
        self.gru.build((memory_shape[0], 2 * dim))

    def call(self, memory, query):
        for i in range(self.num_steps):
            transform = self.transforms[0 if self.share_step_transform else i]
            joined = ops.concatenate([transform(memory), query], axis=-1)
            memory, _ = self.gru(joined, [memory])
        return memory

    def compute_mask(self, memory, *args, **kwargs):
        return None

    def compute_output_shape(self, memory_shape, query_shape):
        return tuple(memory_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "num_steps": self.num_steps,
            "share_step_transform": self.share_step_transform,
            "transform_bias": self.transform_bias,
            "reset_after": self.reset_after,
            "gate_bias_initializer": keras.initializers.serialize(
                self.gate_bias_initializer
            ),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }
