"""`MemorySlots`, the memory network of MIMN."""

import keras
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys._dtypes import wide_dtype
from keras_recsys._initializers import clone
from keras_recsys.layers.behavior._attention import (
    check_history,
    softmax,
    without_padding,
)
from keras_recsys.layers.behavior._gru import gru_gates

LIMIT = 20.0  # of the head parameters and of the readout
EPSILON = 1e-8  # of the cosine
TINY = 1e-30  # below every squared norm that is not 0


@keras.saving.register_keras_serializable(package="keras_recsys")
class MemorySlots(keras.layers.Layer):
    """Writes a history into a few memory slots and reads them for a target item.

    At step `t`, with `M` the slots, `K` fixed keys of the slots, `e` the item and `r`
    the previous read,

        h = GRU([e; r], h)
        [k_r, beta_r, k_w, beta_w, erase, add] = clip(h W + b, -20, 20)
        w_i = softmax_slots((softplus(beta_i) + 1) *
                            (cos(tanh(k_i), K) + cos(tanh(k_i), M))),   i in (r, w)
        r = sum_slots w_r M
        M = M * (1 - w_w sigmoid(erase)^T) + w_w tanh(add)^T
        S = S + stop_gradient(w_w) tanh(add)^T

    The target `q` then takes one step as an item that is not written:

        readout = clip([h; r] W_out + b_out, -20, 20)
        output = [readout; q * mean_slots(S)]

    A model goes on with the target and the sum of the history beside this output.

    Args:
        num_slots: Positive int. Defaults to `4`.
        kernel_initializer: Initializer of the kernels but the recurrent one. Defaults
            to `"glorot_uniform"`.
        recurrent_initializer: Initializer of the recurrent kernel. Defaults to
            `"orthogonal"`.
        kernel_regularizer: Regularizer of the kernels but the recurrent one. Defaults
            to `None`.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.

    Call arguments:
        query: Float tensor, `(batch_size, dim)`, the target item.
        value: Float tensor, `(batch_size, seq_len, dim)`, the history, oldest first;
            of one step at least, which may be padding.
        value_mask: Optional boolean tensor, `(batch_size, seq_len)`; `True` is a real
            item, in any pattern. Read from the Keras mask of `value` if not given.

    Returns:
        Tensor of shape `(batch_size, 2 * dim)`, in the compute dtype. Padded steps hold
        the state, whatever their values, NaN included. A history without a real item
        gives the readout of the initial slots, which depends on `query` alone, and 0
        for the rest. The recurrence runs in float32 or wider. The output has no mask.

    Raises:
        TypeError: If `num_slots` is not an integer.
        ValueError: If `num_slots` is not positive, or `query` is not of rank 2 or
            `value` not of rank 3, with one static width.

    Example:
    >>> layer = MemorySlots(num_slots=4)
    >>> query, value = np.ones((2, 8), "float32"), np.ones((2, 5, 8), "float32")
    >>> tuple(layer(query, value).shape)
    (2, 16)

    Reference:
        Pi et al., "Practice on Long Sequential User Behavior Modeling for Click-Through
        Rate Prediction", KDD 2019, Eq. 1 to 6, as its authors' code has them: one read
        and one write head, no gate, shift or sharpening of the weights. The slots start
        at `tanh(initial_slots)`, the keys are `tanh(slot_keys)` and the first read is
        `tanh(initial_read)`, from normal weights of deviation 1e-5, 0.5 and 0.5 that
        are not trained. Differs from the code: padded steps hold the state, where the
        code goes back to the initial one. Memory utilization regularization and the
        memory induction unit are left out.
    """

    def __init__(
        self,
        num_slots=4,
        *,
        kernel_initializer="glorot_uniform",
        recurrent_initializer="orthogonal",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_slots = check_int("num_slots", num_slots)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.recurrent_initializer = keras.initializers.get(recurrent_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def build(self, query_shape, value_shape):
        dim = check_history(self, value_shape, query_shape)
        self.controller_kernel = self.add_weight(
            name="controller_kernel",
            shape=(dim, 3 * dim),
            initializer=clone(self.kernel_initializer, 0),
            regularizer=self.kernel_regularizer,
        )
        self.controller_bias = self.add_weight(
            name="controller_bias", shape=(3 * dim,), initializer="zeros"
        )
        self.output_kernel = self.add_weight(
            name="output_kernel",
            shape=(2 * dim, dim),
            initializer=clone(self.kernel_initializer, 1),
            regularizer=self.kernel_regularizer,
        )
        self.output_bias = self.add_weight(
            name="output_bias", shape=(dim,), initializer="zeros"
        )
        dtype = wide_dtype(self.compute_dtype)
        cell = SlotCell(
            dim,
            self.num_slots,
            kernel_initializer=self.kernel_initializer,
            recurrent_initializer=self.recurrent_initializer,
            kernel_regularizer=self.kernel_regularizer,
            dtype=dtype,
        )
        self.writer = keras.layers.RNN(
            cell, return_state=True, dtype=dtype, name="writer"
        )
        self.writer.build((None, None, 3 * dim))

    def call(self, query, value, value_mask=None):
        value = without_padding(value, value_mask)
        inputs = ops.matmul(value, self.controller_kernel) + self.controller_bias
        _, *states = self.writer(inputs, mask=value_mask)

        wide = wide_dtype(self.compute_dtype)
        inputs = ops.matmul(query, self.controller_kernel) + self.controller_bias
        state, read, _ = self.writer.cell.read(ops.cast(inputs, wide), states)
        both = ops.cast(ops.concatenate([state, read], -1), self.compute_dtype)
        readout = ops.matmul(both, self.output_kernel) + self.output_bias
        sums = ops.reshape(states[3], (-1, self.num_slots, query.shape[-1]))
        product = ops.cast(query, wide) * ops.mean(sums, axis=1)
        product = ops.cast(product, self.compute_dtype)
        return ops.concatenate([ops.clip(readout, -LIMIT, LIMIT), product], axis=-1)

    def compute_mask(self, *args, **kwargs):
        return None

    def compute_output_shape(self, query_shape, value_shape):
        return (value_shape[0], 2 * value_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "num_slots": self.num_slots,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "recurrent_initializer": keras.initializers.serialize(
                self.recurrent_initializer
            ),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }


class SlotCell(keras.layers.Layer):
    """One step of `MemorySlots`, whose inputs are projected before.

    Its states are `h`, the read, the slots and the running sum; the last two are
    flat, `(batch_size, num_slots * dim)`, as states of a Keras RNN are of rank 2.

    Args:
        dim: Positive int, width of an item, of `h` and of a slot.
        num_slots: Positive int.
        kernel_initializer: Initializer of the kernels but the recurrent one.
        recurrent_initializer: Initializer of the recurrent kernel.
        kernel_regularizer: Regularizer of the kernels but the recurrent one.
        **kwargs: `name`, `dtype` and the rest of `keras.layers.Layer`.
    """

    def __init__(
        self,
        dim,
        num_slots,
        *,
        kernel_initializer,
        recurrent_initializer,
        kernel_regularizer,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.dim = dim
        self.num_slots = num_slots
        self.state_size = [dim, dim, num_slots * dim, num_slots * dim]
        self.kernel_initializer = kernel_initializer
        self.recurrent_initializer = recurrent_initializer
        self.kernel_regularizer = kernel_regularizer

    def build(self, input_shape):
        dim = self.dim
        self.recurrent_kernel = self._add_wide(
            "recurrent_kernel", (dim, 3 * dim), clone(self.recurrent_initializer, 0)
        )
        self.read_kernel = self._add_wide(
            "read_kernel",
            (dim, 3 * dim),
            clone(self.kernel_initializer, 2),
            regularizer=self.kernel_regularizer,
        )
        self.head_kernel = self._add_wide(
            "head_kernel",
            (dim, 4 * dim + 2),
            clone(self.kernel_initializer, 3),
            regularizer=self.kernel_regularizer,
        )
        self.head_bias = self._add_wide("head_bias", (4 * dim + 2,), "zeros")
        self.initial_slots, self.slot_keys, self.initial_read = (
            self._add_wide(
                name,
                shape,
                keras.initializers.RandomNormal(stddev=stddev),
                trainable=False,
            )
            for name, shape, stddev in (
                ("initial_slots", (self.num_slots, dim), 1e-5),
                ("slot_keys", (self.num_slots, dim), 0.5),
                ("initial_read", (dim,), 0.5),
            )
        )

    def call(self, inputs, states):
        _, _, slots, sums = states
        state, read, heads = self.read(inputs, states)
        weights = self._address(heads[:, self.dim + 1 : 2 * self.dim + 2], slots)
        weights = ops.expand_dims(weights, -1)
        erase = ops.sigmoid(heads[:, None, 2 * self.dim + 2 : 3 * self.dim + 2])
        add = ops.tanh(heads[:, None, 3 * self.dim + 2 :])
        slots = self._apart(slots) * (1.0 - weights * erase) + weights * add
        sums = self._apart(sums) + ops.stop_gradient(weights) * add
        return state, [state, read, self._flat(slots), self._flat(sums)]

    def get_initial_state(self, batch_size=None):
        ones = ops.ones((batch_size, 1), dtype=self.compute_dtype)
        zeros = ops.zeros((1, self.dim), dtype=self.compute_dtype)
        read = ops.reshape(ops.tanh(self.initial_read), (1, -1))
        slots = ops.reshape(ops.tanh(self.initial_slots), (1, -1))
        return [ones * row for row in (zeros, read, slots, ops.zeros_like(slots))]

    def read(self, inputs, states):
        """A step that writes nothing: `h`, the read and the head parameters."""
        state, read, slots, _ = states
        inputs = inputs + ops.matmul(read, self.read_kernel)
        keep, candidate = gru_gates(inputs, state, self.recurrent_kernel)
        state = keep * state + (1.0 - keep) * candidate
        heads = ops.matmul(state, self.head_kernel) + self.head_bias
        heads = ops.clip(heads, -LIMIT, LIMIT)
        weights = self._address(heads[:, : self.dim + 1], slots)
        read = ops.einsum("bs,bsd->bd", weights, self._apart(slots))
        return state, read, heads

    def _add_wide(self, name, shape, initializer, **kwargs):
        """A weight that keeps its dtype where `MemorySlots` reads it."""
        return self.add_weight(
            name=name, shape=shape, initializer=initializer, autocast=False, **kwargs
        )

    def _address(self, head, slots):
        """Weights of the slots, `(batch_size, num_slots)`, for one head."""
        key, strength = ops.tanh(head[:, :-1]), head[:, -1:]
        norm = _norm(key, keepdims=True)
        keys = ops.tanh(self.slot_keys)
        to_keys = ops.matmul(key, ops.transpose(keys))
        to_keys = to_keys / (norm * _norm(keys) + EPSILON)
        slots = self._apart(slots)
        to_slots = ops.einsum("bd,bsd->bs", key, slots)
        to_slots = to_slots / (norm * _norm(slots) + EPSILON)
        scores = (ops.softplus(strength) + 1.0) * (to_keys + to_slots)
        return softmax(scores)

    def _apart(self, slots):
        return ops.reshape(slots, (-1, self.num_slots, self.dim))

    def _flat(self, slots):
        return ops.reshape(slots, (-1, self.num_slots * self.dim))


def _norm(x, keepdims=False):
    """Length of the last axis, with a gradient of 0 at 0."""
    squares = ops.sum(ops.square(x), axis=-1, keepdims=keepdims)
    return ops.sqrt(ops.maximum(squares, TINY))
