import keras
import numpy as np
import pytest
from golden_files import assert_close, golden, load
from helpers import BACKEND, FLOATS, array, check_layer, output_and_gradients, tensor
from twins import DTYPE, assert_near, check_twin

from keras_recsys.layers.behavior.interest_evolution import (
    InterestCell,
    InterestEvolution,
)

RNG = np.random.default_rng(0)
QUERY = RNG.normal(size=(4, 3)).astype("float32")
VALUE = RNG.normal(size=(4, 5, 3)).astype("float32")
NEGATIVES = RNG.normal(size=(4, 5, 3)).astype("float32")
MASK = np.array([[1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 0, 1, 1]])
MASK = MASK.astype(bool)
ALL = np.ones(MASK.shape, bool)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru_parts(x, state, recurrent):
    """First gate and candidate of a GRU step of one row."""
    units = len(state)
    h = state @ recurrent[:, : 2 * units]
    gate = sigmoid(x[:units] + h[:units])
    reset = sigmoid(x[units : 2 * units] + h[units:])
    return gate, np.tanh(x[2 * units :] + (reset * state) @ recurrent[:, 2 * units :])


def mlp(x, kernel, bias, layers):
    """Hidden layers of sigmoids and one linear score, with a bias or without."""
    kernels, biases = [kernel, *layers[::2]], [bias, *layers[1::2], np.zeros(1)]
    for i in range(len(kernels) - 1):
        x = sigmoid(x @ kernels[i] + biases[i])
    return (x @ kernels[-1] + biases[len(kernels) - 1])[0]


def evolution_loop(query, value, weights, mask, update="paper"):
    """The formulas of the docstring, one row and step at a time.

    Returns the output, the attention weights and the states of the first GRU.
    """
    kernel, bias, *weights = weights
    projection = weights.pop(0) if len(weights[0]) == query.shape[1] else None
    first, first_bias, kernel_2, bias_2, recurrent, recurrent_2, *layers = weights
    units = len(recurrent)
    output, shares = np.zeros((len(query), units)), np.zeros(mask.shape)
    states = np.zeros((*mask.shape, units))
    for b in range(len(query)):
        steps = np.flatnonzero(mask[b])
        q = query[b] if projection is None else query[b] @ projection
        state, scores = np.zeros(units), []
        for t in steps:
            keep, new = gru_parts(value[b, t] @ kernel + bias, state, recurrent)
            state = states[b, t] = keep * state + (1 - keep) * new
            features = np.concatenate([q, state, q - state, q * state])
            scores.append(mlp(features, first, first_bias, layers))
        shares[b, steps] = np.exp(scores) / np.sum(np.exp(scores))
        state = np.zeros(units)
        for t in steps:
            x, share = states[b, t] @ kernel_2 + bias_2, shares[b, t]
            gate, new = gru_parts(x, state, recurrent_2)
            write = share * gate if update == "paper" else 1 - (1 - share) * gate
            state = (1 - write) * state + write * new
        output[b] = state
    return output, shares, states


def make(seed=1, **kwargs):
    """A layer whose weights are all random and large enough to matter."""
    layer = InterestEvolution(hidden_units=(4, 3), **kwargs)
    layer.build(QUERY.shape, VALUE.shape)
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=w.shape, scale=0.7) for w in layer.weights])
    return layer


def test_contract(tmp_path):
    check_layer(
        lambda: InterestEvolution(
            2,
            hidden_units=(4, 3),
            update="released",
            kernel_initializer="he_normal",
            recurrent_initializer="glorot_normal",
            kernel_regularizer="l2",
        ),
        (QUERY, VALUE),
        tmp_path,
        call={"value_mask": MASK},
    )


def test_contract_with_auxiliary_loss(tmp_path):
    layer = make(auxiliary_loss_weight=0.5, auxiliary_hidden_units=(6, 4))
    inputs = [keras.Input((3,)), *(keras.Input((None, 3)) for _ in range(2))]
    inputs.append(keras.Input((None,), dtype="bool"))
    output, weights = layer(
        *inputs[:2],
        negatives=inputs[2],
        value_mask=inputs[3],
        return_attention_scores=True,
    )
    assert output.shape == (None, 3)
    assert weights.shape == (None, None)
    model = keras.Model(inputs, [output, weights])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    arrays = [tensor(x) for x in (QUERY, VALUE, NEGATIVES, MASK)]
    for got, want in zip(loaded(arrays), model(arrays), strict=True):
        assert_near(array(got), array(want))
    assert_near(array(loaded.losses[0]), array(model.losses[0]))


@pytest.mark.parametrize(
    ("units", "update", "mask"),
    [(None, "paper", MASK), (2, "paper", None), (None, "released", MASK)],
)
def test_equals_the_loop(units, update, mask):
    kept = ALL if mask is None else mask
    check_twin(
        InterestEvolution(units, hidden_units=(3, 2), update=update, dtype=DTYPE),
        (QUERY, VALUE),
        lambda q, v, *weights: evolution_loop(q, v, weights, kept, update)[0],
        call=None if mask is None else {"value_mask": mask},
    )


@golden("sam", having=["augru_x", "augru_paper", "augru_released_code"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_step_equals_the_golden_numbers(path, dtype):
    data = load(path)
    units = data["augru_h"].shape[1]
    inputs = data["augru_x"] @ data["augru_kernel"] + data["augru_bias"]
    inputs = np.concatenate([inputs, data["augru_a"][:, None]], axis=1).astype(dtype)
    state = tensor(data["augru_h"].astype(dtype))
    for update, key in (("paper", "augru_paper"), ("released", "augru_released_code")):
        cell = InterestCell(units, update=update, dtype=dtype)
        cell.build(inputs.shape)
        cell.set_weights([data["augru_recurrent"]])
        got, states = cell(tensor(inputs), [state])
        assert_close(array(got), data[key], dtype)
        assert_close(array(states[0]), data[key], dtype)


@golden("sam", having=["augru_x", "din4_W0", "din4_softmax_att"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_attention_equals_the_golden_numbers(path, dtype):
    # The first GRU is made to hand on its input: with a keep gate of 0 the state is
    # the candidate, tanh of the input, which is undone before.
    data = load(path)
    dim = data["seq"].shape[2]
    largest = 2 * np.abs(data["seq"]).max()
    blocks = np.split(data["din4_W0"], 4)
    scaled = [blocks[0], blocks[1], blocks[2], blocks[3] * largest]
    hidden = (len(data["din4_b0"]), len(data["din4_b1"]))
    layer = InterestEvolution(hidden_units=hidden, dtype=dtype)
    layer.build((None, dim), (None, None, dim))
    named = {w.path.split("/", 1)[1]: w for w in layer.weights}
    for name, weight in named.items():
        if "recurrent" in name:
            weight.assign(np.zeros(weight.shape))
    kernel = np.zeros((dim, 3 * dim))
    kernel[:, 2 * dim :] = np.eye(dim)
    named["extraction_kernel"].assign(kernel)
    named["extraction_bias"].assign(np.repeat([-1e3, 0.0, 0.0], dim))
    named["attention_kernel"].assign(np.concatenate(scaled) * largest)
    named["attention_bias"].assign(data["din4_b0"])
    named["attention_dense_1/kernel"].assign(data["din4_W1"])
    named["attention_dense_1/bias"].assign(data["din4_b1"])
    named["attention_dense_2/kernel"].assign(data["din4_W2"])
    # The bias of the score is not needed, as the softmax takes it out.
    _, weights = layer(
        (data["target"] / largest).astype(dtype),
        np.arctanh(data["seq"] / largest).astype(dtype),
        value_mask=data["mask"],
        return_attention_scores=True,
    )
    assert_close(array(weights), data["din4_softmax_att"], dtype)


def test_by_hand():
    # All recurrent and attention kernels are 0: the weights are 1/2, every gate is
    # 1/2, and a candidate is the tanh of its input.
    query, value = np.zeros((1, 1)), np.arctanh([[[0.5], [0.25]]])
    for update, write in (("paper", 1 / 4), ("released", 3 / 4)):
        layer = InterestEvolution(hidden_units=(1,), update=update)
        layer.build(query.shape, value.shape)
        layer.set_weights([np.zeros(w.shape) for w in layer.weights])
        layer.extraction_kernel.assign([[0, 0, 1]])
        layer.evolution_kernel.assign([[0, 0, 1]])
        output, weights = layer(query, value, return_attention_scores=True)
        np.testing.assert_allclose(array(weights), [[0.5, 0.5]], rtol=1e-6)
        first = np.tanh(0.25) * write  # the states are 1/4 and (1/4 + 1/4) / 2
        want = (1 - write) * first + write * np.tanh(0.25)
        np.testing.assert_allclose(array(output), [[want]], rtol=1e-6)


def test_returns_the_attention_weights():
    layer = make()
    call = {"value_mask": MASK, "return_attention_scores": True}
    output, weights = layer(QUERY, VALUE, **call)
    arrays = [np.array(w, "float64") for w in layer.get_weights()]
    want = evolution_loop(QUERY, VALUE, arrays, MASK)
    assert_near(array(output), want[0])
    assert_near(array(weights), want[1])
    assert not array(weights)[~MASK].any()
    assert array(weights)[0].std() > 1e-3
    assert layer.compute_mask(QUERY, VALUE) is None


def test_padding_changes_nothing():
    layer = make()
    call = {"value_mask": MASK}
    noisy = np.where(MASK[..., None], VALUE, np.nan).astype("float32")
    want = output_and_gradients(layer, (QUERY, VALUE), call=call, wrt_inputs=True)
    got = output_and_gradients(layer, (QUERY, noisy), call=call, wrt_inputs=True)
    for a, b in zip([got[0], *got[1]], [want[0], *want[1]], strict=True):
        assert_near(a, b)
    assert not got[1][1][~MASK].any()
    np.testing.assert_array_equal(got[0][2], 0)  # no item at all
    for b in (1, 3):  # each row alone is that row without its padding
        short = array(layer(QUERY[b : b + 1], VALUE[b : b + 1, MASK[b]]))
        assert_near(short, want[0][b : b + 1])
    every = array(layer(QUERY, VALUE, value_mask=ALL))
    assert_near(array(layer(QUERY, VALUE)), every)
    none = array(layer(QUERY, noisy * np.nan, value_mask=~ALL))
    np.testing.assert_array_equal(none, 0)


def test_takes_the_keras_mask():
    layer = make()
    query, value = keras.Input((3,)), keras.Input((None, 3))
    masked = keras.layers.Masking(-9.0)(value)
    model = keras.Model([query, value], layer(query, masked))
    filled = np.where(MASK[..., None], VALUE, -9.0).astype("float32")
    want = array(layer(QUERY, VALUE, value_mask=MASK))
    assert_near(array(model([QUERY, filled])), want)


def loss_loop(layer, query, value, negatives, mask):
    """The auxiliary loss, one pair of steps at a time."""
    weights = [np.array(w, "float64") for w in layer.get_weights()]
    first, first_bias = weights[6:8]
    layers = weights[-2 * len(layer.auxiliary_hidden_units) :]
    rest = weights[:6] + weights[8 : -len(layers)]
    states = evolution_loop(query, value, rest, mask)[2]
    losses = []
    for b, row in enumerate(mask):
        real_steps = np.flatnonzero(row)
        pairs = zip(real_steps[:-1], real_steps[1:], strict=True)
        for t, item, real in (
            (t, of[b, n], of is value) for t, n in pairs for of in (value, negatives)
        ):
            x = np.concatenate([states[b, t], item])
            share = sigmoid(mlp(x, first, first_bias, layers))
            losses.append(-np.log(share if real else 1 - share))
    return 2 * np.mean(losses) if losses else 0.0


def test_auxiliary_loss_equals_the_loop():
    layer = make(auxiliary_loss_weight=0.5, auxiliary_hidden_units=(6, 4))
    for mask in (MASK, ALL, ~ALL, np.eye(4, 5, dtype=bool)):
        layer(QUERY, VALUE, value_mask=mask, negatives=NEGATIVES)
        want = 0.5 * loss_loop(layer, QUERY, VALUE, NEGATIVES, mask)
        (loss,) = layer.losses
        np.testing.assert_allclose(array(loss), want, rtol=1e-5, atol=1e-7)
    layer(QUERY, VALUE, negatives=NEGATIVES)
    want = 0.5 * loss_loop(layer, QUERY, VALUE, NEGATIVES, ALL)
    np.testing.assert_allclose(array(layer.losses[0]), want, rtol=1e-5)
    # One item has no next one.
    layer(QUERY, VALUE[:, :1], negatives=NEGATIVES[:, :1])
    assert array(layer.losses[0]) == 0
    layer(QUERY, VALUE)
    assert not layer.losses


def test_auxiliary_loss_by_hand_is_stable():
    layer = InterestEvolution(
        auxiliary_loss_weight=2.0, auxiliary_hidden_units=(1,), hidden_units=(1,)
    )
    value, negatives = np.ones((1, 2, 1)), -np.ones((1, 2, 1))
    layer.build((1, 1), value.shape)
    layer.set_weights([np.zeros(w.shape) for w in layer.weights])
    layer(np.ones((1, 1)), value, negatives=negatives)
    np.testing.assert_allclose(array(layer.losses[0]), 4 * np.log(2), rtol=1e-6)
    layer.auxiliary_kernel.assign([[0], [1000]])  # the hidden unit is 1 or 0
    layer.auxiliary_layers[0].kernel.assign([[-400]])
    layer.auxiliary_layers[0].bias.assign([200])  # logits of -200 and 200, both wrong
    layer(np.ones((1, 1)), value, negatives=negatives)
    np.testing.assert_allclose(array(layer.losses[0]), 2 * 400, rtol=1e-6)


def test_auxiliary_loss_trains_and_padding_has_no_part():
    inputs = [keras.Input((3,)), *(keras.Input((None, 3)) for _ in range(2))]
    inputs.append(keras.Input((None,), dtype="bool"))
    results = []
    for padding in (0.0, np.nan):
        layer = make(auxiliary_loss_weight=1.0, auxiliary_hidden_units=(6, 4))
        before = array(layer.auxiliary_kernel.value)
        output = layer(*inputs[:2], negatives=inputs[2], value_mask=inputs[3])
        model = keras.Model(inputs, output)
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        arrays = [np.where(MASK[..., None], x, padding) for x in (VALUE, NEGATIVES)]
        arrays = [QUERY, *(x.astype("float32") for x in arrays), MASK]
        loss = model.train_on_batch(arrays, np.ones((4, 3), "float32"))
        moved = array(layer.auxiliary_kernel.value) - before
        assert np.abs(moved).min() > 0
        results.append([loss, *model.get_weights()])
    for a, b in zip(*results, strict=True):
        assert np.isfinite(a).all()
        assert_near(a, b)


def test_long_history_in_half_precision():
    # Torch takes the steps one by one, which lasts long.
    repeats = 256 if BACKEND == "torch" else 4096
    value = np.tile(VALUE[:2, :4], (1, repeats, 1))
    inputs = [keras.Input((3,)), keras.Input((None, 3))]
    outputs = {}
    for policy in ("float32", "mixed_float16", "mixed_bfloat16"):
        layer = make(dtype=policy)
        outs = layer(*inputs, return_attention_scores=True)
        model = keras.Model(inputs, outs)
        model.compile(jit_compile=BACKEND != "torch")
        output, weights = model.predict([QUERY[:2], value], verbose=0)
        outputs[policy] = np.asarray(output, "float32")
        assert weights.dtype == "float32"
        np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-3)
    # Each weight is about 1/16384: steps of a state in half precision would be lost.
    want = outputs.pop("float32")
    assert np.abs(want).max() > 0.1
    for got in outputs.values():
        np.testing.assert_allclose(got, want, atol=0.02)


@pytest.mark.parametrize(
    "shapes", [((2, 3), (2, 4)), ((2, 5, 4), (2, 5, 4)), ((2,), (2, 5, 4))]
)
def test_says_what_shapes_were_given(shapes):
    with pytest.raises(ValueError, match=r"any static width.*value_shape=\(2.*vectors"):
        InterestEvolution()(*(np.ones(shape, "float32") for shape in shapes))


def test_says_what_negatives_were_given():
    layer = InterestEvolution(auxiliary_loss_weight=1.0)
    with pytest.raises(ValueError, match=r"`negatives` must be of.*=\(4, 4, 3\)"):
        layer(QUERY, VALUE, negatives=NEGATIVES[:, :4])
    layer(QUERY, VALUE, training=False)
    with pytest.raises(ValueError, match="must be given in training.*negatives=None"):
        layer(QUERY, VALUE, training=True)
    with pytest.raises(ValueError, match="must be None without an auxiliary loss"):
        InterestEvolution()(QUERY, VALUE, negatives=NEGATIVES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"units": 0}, "`units` must be at least 1.*units=0"),
        ({"hidden_units": ()}, r"`hidden_units` must be a list.*hidden_units=\(\)"),
        ({"hidden_units": (0,)}, "`hidden_units` must be at least 1.*hidden_units=0"),
        ({"auxiliary_hidden_units": 5}, "`auxiliary_hidden_units` must be a list.*=5"),
        ({"update": "code"}, "`update` must be one of 'paper', 'released'.*='code'"),
        ({"auxiliary_loss_weight": -1}, "`auxiliary_loss_weight` must be.*=-1"),
    ],
)
def test_says_what_was_given(arguments, message):
    with pytest.raises(ValueError, match=message):
        InterestEvolution(**arguments)


def test_says_that_units_must_be_an_integer():
    with pytest.raises(TypeError, match="`units` must be an integer.*units=2.5"):
        InterestEvolution(2.5)
