import keras
import numpy as np
import pytest
from golden_files import assert_close, golden, load
from helpers import BACKEND, FLOATS, array, check_layer, output_and_gradients
from twins import DTYPE, assert_near, check_twin

from keras_recsys.layers.behavior.memory_slots import MemorySlots

RNG = np.random.default_rng(0)
QUERY = RNG.normal(size=(4, 2)).astype("float32")
VALUE = RNG.normal(size=(4, 5, 2)).astype("float32")
MASK = np.array([[1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 1, 1, 1]])
MASK = MASK.astype(bool)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Loop:
    """The formulas of the docstring, one row, step, head and slot at a time.

    The write weights of the first call go into the running sum of all later ones, as
    the layer passes no gradient through them.
    """

    def __init__(self, mask):
        self.mask = mask
        self.write_weights = None

    def __call__(self, query, value, *weights):
        (kernel, bias, out_kernel, out_bias, recurrent, read_kernel, head_kernel) = (
            weights[:7]
        )
        head_bias, slots_0, keys, read_0 = weights[7:]
        dim = query.shape[1]
        keys = np.tanh(keys)

        def address(head, slots):
            key, strength = np.tanh(head[:dim]), head[dim]
            scores = []
            for one, fixed in zip(slots, keys, strict=True):
                cosines = [
                    key @ x / (np.linalg.norm(key) * np.linalg.norm(x) + 1e-8)
                    for x in (fixed, one)
                ]
                scores.append(2 * (np.log1p(np.exp(strength)) + 1) * np.mean(cosines))
            shares = np.exp(scores)
            return shares / shares.sum()

        def step(x, state, read, slots):
            x = x @ kernel + read @ read_kernel + bias
            h = state @ recurrent[:, : 2 * dim]
            keep = sigmoid(x[:dim] + h[:dim])
            reset = sigmoid(x[dim : 2 * dim] + h[dim:])
            new = np.tanh(x[2 * dim :] + (reset * state) @ recurrent[:, 2 * dim :])
            state = keep * state + (1 - keep) * new
            head = np.clip(state @ head_kernel + head_bias, -20, 20)
            return state, address(head[: dim + 1], slots) @ slots, head[dim + 1 :]

        recorded, output = [], []
        for b in range(len(query)):
            state, read = np.zeros(dim), np.tanh(read_0)
            slots, sums = np.tanh(slots_0), np.zeros(slots_0.shape)
            for t in np.flatnonzero(self.mask[b]):
                state, new_read, head = step(value[b, t], state, read, slots)
                share = address(head[: dim + 1], slots)
                erase, add = sigmoid(head[dim + 1 : -dim]), np.tanh(head[-dim:])
                recorded.append(share)
                if self.write_weights is not None:
                    share_of_sum = self.write_weights[len(recorded) - 1]
                else:
                    share_of_sum = share
                sums = sums + np.outer(share_of_sum, add)
                slots = slots * (1 - np.outer(share, erase)) + np.outer(share, add)
                read = new_read
            state, read, _ = step(query[b], state, read, slots)
            readout = np.concatenate([state, read]) @ out_kernel + out_bias
            product = query[b] * sums.mean(axis=0)
            output.append([*np.clip(readout, -20, 20), *product])
        if self.write_weights is None:
            self.write_weights = recorded
        return np.array(output)


def make(seed=1, **kwargs):
    """A layer whose weights are all random and large enough to matter."""
    layer = MemorySlots(3, **kwargs)
    layer.build(QUERY.shape, VALUE.shape)
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=w.shape, scale=0.7) for w in layer.weights])
    return layer


def test_contract(tmp_path):
    check_layer(
        lambda: MemorySlots(
            3,
            kernel_initializer="he_normal",
            recurrent_initializer="glorot_normal",
            kernel_regularizer="l2",
        ),
        (QUERY, VALUE),
        tmp_path,
        call={"value_mask": MASK},
    )


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
def test_equals_the_loop(mask):
    kept = np.ones(MASK.shape, bool) if mask is None else mask
    check_twin(
        MemorySlots(3, dtype=DTYPE),
        (QUERY, VALUE),
        Loop(kept),
        call=None if mask is None else {"value_mask": mask},
        seed=1,  # with those of 0 a slot is near 0, and the differences too coarse
    )


@golden("sam", having=["hold_M", "hold_readout", "w_o2p_W"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_equals_the_golden_numbers(path, dtype):
    # The layer holds the state over padding; the `reset_*` arrays, which go back to
    # the initial one, are not its behaviour.
    data = load(path)
    batch, seq_len, dim = data["seq"].shape
    # Of each head the key and its strength, then erase and add: the five parameters
    # after the strength are for gates that this memory does not have.
    head = np.arange(dim + 1)
    unused = dim + 6
    write = np.arange(2 * unused, 2 * unused + 2 * dim)
    columns = np.concatenate([head, unused + head, write])
    layer = MemorySlots(len(data["w_init_M"]), dtype=dtype)
    layer.build((None, dim), (None, None, dim))
    layer.set_weights(
        [
            data["w_ctrl_kernel"][:dim],
            data["w_ctrl_bias"],
            data["w_o2o_W"],
            data["w_o2o_b"],
            data["w_ctrl_recurrent"],
            data["w_ctrl_kernel"][dim:],
            data["w_o2p_W"][:, columns],
            data["w_o2p_b"][columns],
            data["w_init_M"],
            data["w_key_M"],
            data["w_init_read"],
        ]
    )
    value, target = data["seq"].astype(dtype), data["target"].astype(dtype)
    output = array(layer(target, value, value_mask=data["mask"]))
    assert_close(output[:, :dim], data["hold_readout"], dtype)
    product = data["target"] * data["hold_sum_aggre"].mean(axis=1)
    assert_close(output[:, dim:], product, dtype)
    # The output of a step is the readout for its item after the steps before.
    steps = np.repeat(value, seq_len, axis=0)
    before = np.tril(np.ones((seq_len, seq_len), bool), k=-1)
    before = (data["mask"][:, None] & before).reshape(-1, seq_len)
    output = array(layer(value.reshape(-1, dim), steps, value_mask=before))
    output = output[:, :dim].reshape(batch, seq_len, dim)
    assert_close(output, data["hold_step_outputs"], dtype)


def test_by_hand():
    layer = MemorySlots(2)
    layer.build((1, 1), (1, 2, 1))
    layer.set_weights([np.zeros(w.shape) for w in layer.weights])
    weights = dict(zip([w.name for w in layer.weights], layer.weights, strict=True))
    # Both slots and keys are 0, so that the weights are 1/2; each step erases a half
    # of a half and adds a half of tanh(1).
    weights["head_bias"].assign([0, 0, 0, 0, 0, 1])
    weights["output_kernel"].assign([[0], [1]])
    weights["output_bias"].assign([10])
    one = np.tanh(1) / 2
    output = array(layer(np.array([[3.0]]), np.ones((1, 2, 1))))
    np.testing.assert_allclose(output, [[10 + 1.75 * one, 3 * 2 * one]], rtol=1e-6)
    weights["output_bias"].assign([100])  # is clipped
    output = array(layer(np.array([[3.0]]), np.ones((1, 2, 1))))
    np.testing.assert_allclose(output, [[20, 6 * one]], rtol=1e-6)


def test_head_parameters_are_clipped():
    query, value = np.ones((1, 1)), np.ones((1, 1, 1))
    outputs = []
    for bias in (20, 1000):
        layer = MemorySlots(2)
        layer.build(query.shape, value.shape)
        layer.set_weights([np.ones(w.shape) for w in layer.weights])
        cell = layer.writer.cell
        cell.head_bias.assign(np.full(6, bias))
        cell.head_kernel.assign(np.zeros((1, 6)))
        cell.slot_keys.assign([[1.0], [-0.001]])
        cell.initial_slots.assign([[1e-3], [-1.0]])
        outputs.append(array(layer(query, value)))
    np.testing.assert_array_equal(outputs[0], outputs[1])


def test_padding_changes_nothing():
    layer = make()
    call = {"value_mask": MASK}
    noisy = np.where(MASK[..., None], VALUE, np.nan).astype("float32")
    want = output_and_gradients(layer, (QUERY, VALUE), call=call, wrt_inputs=True)
    got = output_and_gradients(layer, (QUERY, noisy), call=call, wrt_inputs=True)
    for a, b in zip([got[0], *got[1]], [want[0], *want[1]], strict=True):
        assert_near(a, b)
    assert not got[1][1][~MASK].any()
    # Each row alone is that row without its padding: a batch of one item works too.
    for b in (0, 1, 3):
        short = array(layer(QUERY[b : b + 1], VALUE[b : b + 1, MASK[b]]))
        assert_near(short, want[0][b : b + 1])
    every = array(layer(QUERY, VALUE, value_mask=np.ones(MASK.shape, bool)))
    assert_near(array(layer(QUERY, VALUE)), every)


def test_empty_history_reads_the_initial_slots():
    layer = make()
    output = array(layer(QUERY, VALUE, value_mask=MASK))
    other = array(layer(QUERY, VALUE[::-1], value_mask=np.zeros(MASK.shape, bool)))
    np.testing.assert_allclose(output[2], other[2], rtol=1e-6)
    assert np.abs(other[:, :2]).min() > 0
    np.testing.assert_array_equal(other[:, 2:], 0)
    assert layer.compute_mask(QUERY, VALUE) is None


def test_takes_the_keras_mask():
    layer = make()
    query, value = keras.Input((2,)), keras.Input((None, 2))
    masked = keras.layers.Masking(-9.0)(value)
    model = keras.Model([query, value], layer(query, masked))
    filled = np.where(MASK[..., None], VALUE, -9.0).astype("float32")
    want = array(layer(QUERY, VALUE, value_mask=MASK))
    assert_near(array(model([QUERY, filled])), want)


def test_one_slot_has_all_the_weight():
    layer = MemorySlots(1)
    layer.build(QUERY.shape, VALUE.shape)
    output, gradients = output_and_gradients(layer, (QUERY, VALUE))
    sums = output[:, 2:] / QUERY
    assert 0 < np.abs(sums).max() < VALUE.shape[1]
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_starts_near_empty_and_trains_no_initial_state():
    layer = MemorySlots(4)
    layer.build((None, 64), (None, None, 64))
    fixed = {w.name: array(w.value) for w in layer.non_trainable_weights}
    assert set(fixed) == {"initial_slots", "slot_keys", "initial_read"}
    assert fixed["initial_slots"].std() == pytest.approx(1e-5, rel=0.2)
    assert fixed["slot_keys"].std() == pytest.approx(0.5, rel=0.2)
    query = RNG.normal(size=(2, 64)).astype("float32")
    value = RNG.normal(size=(2, 3, 64)).astype("float32")
    output, gradients = output_and_gradients(layer, (query, value))
    assert all(np.isfinite(x).all() for x in (output, *gradients))


def test_long_history_in_half_precision():
    # Torch takes the steps one by one, which lasts long.
    repeats = 256 if BACKEND == "torch" else 4096
    value = np.tile(VALUE[:2, :4], (1, repeats, 1))
    inputs = [keras.Input((2,)), keras.Input((None, 2))]
    outputs = {}
    for policy in ("float32", "mixed_float16", "mixed_bfloat16"):
        model = keras.Model(inputs, make(dtype=policy)(*inputs))
        model.compile(jit_compile=BACKEND != "torch")
        output = model.predict([QUERY[:2], value], verbose=0)
        outputs[policy] = np.asarray(output, "float32")
    want = outputs.pop("float32")
    scale = np.abs(want).max(axis=0)
    assert scale[2:].max() > repeats / 4  # a sum in half precision would have stopped
    for got in outputs.values():
        np.testing.assert_allclose(got / scale, want / scale, atol=0.03)


@pytest.mark.parametrize(
    "shapes", [((2, 3), (2, 5, 4)), ((2, 4), (2, 4)), ((2, 5, 4), (2, 5, 4))]
)
def test_says_what_shapes_were_given(shapes):
    with pytest.raises(ValueError, match=r"`MemorySlots`.*value_shape=\(2.*vectors"):
        MemorySlots()(*(np.ones(shape, "float32") for shape in shapes))


def test_says_what_num_slots_was_given():
    with pytest.raises(TypeError, match="`num_slots` must be an integer.*=2.5"):
        MemorySlots(2.5)
    with pytest.raises(ValueError, match="`num_slots` must be at least 1.*=0"):
        MemorySlots(0)
