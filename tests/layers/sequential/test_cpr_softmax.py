import keras
import numpy as np
import pytest
from helpers import (
    BACKEND,
    FLOATS,
    array,
    check_head,
    output_and_gradients,
    randomize,
    tensor,
)
from sequential_twins import (
    DIM,
    IDS,
    LOWEST,
    NUM_IDS,
    STATE_DIM,
    TARGETS,
    check_candidates,
    inputs_of,
    last_logits,
    losses_of,
    weights_of,
)

from keras_recsys.layers.sequential import CPRSoftmax
from keras_recsys.layers.sequential._catalogue import top_ids

RNG = np.random.default_rng(0)
STATES, _, TABLE = inputs_of(RNG)
SETTINGS = {
    "plain": {"context": False, "pointer": False, "rerank": ()},
    "c": {"pointer": False, "rerank": ()},
    "cp": {"rerank": ()},
    "cpr": {"rerank": (4,)},
    "cpr3": {"rerank": (2, 7, 4), "pointer_reduction": "sum"},
    "r": {"context": False, "pointer": False, "rerank": (3,)},
    "add": {"rerank": (5, 2), "context_mode": "add", "rerank_mode": "add"},
    "add_context": {"rerank": (4,), "context_mode": "add"},
    "add_rerank": {"pointer": False, "rerank": (4, 8), "rerank_mode": "add"},
}
# States and items of one number: the score of item x is x times a weight.
NUMBERS = np.arange(6, dtype="float32")[:, None]
HISTORY = np.array([[3, 5, 3, 0, 0]], "int32")


def cpr_loop(layer, weights, table):
    """Function from a history to the logits of its next item, see `CPRSoftmax`."""

    def facet(name, state):
        return state @ weights[f"{name}_kernel"] + weights[f"{name}_bias"]

    def logits_of(states, ids):
        q = states[-1]
        logits = table @ facet("vocabulary", q)
        logits[0] = LOWEST
        for size in sorted(layer.rerank, reverse=True):
            scores = table @ facet(f"rerank_{size}", q)
            for item in np.argsort(-logits)[: min(size, len(table) - 1)]:
                old = logits[item] if layer.rerank_mode == "add" else 0.0
                logits[item] = old + scores[item]
        for item in set(ids) if layer.context else ():
            score = table[item] @ facet("context", q)
            if layer.pointer:
                keys = [facet("key", s) for s in states[ids == item]]
                reduce = getattr(np, layer.pointer_reduction)
                score += facet("pointer", q) @ reduce(keys, axis=0)
            old = logits[item] if layer.context_mode == "add" else 0.0
            logits[item] = old + score
        return logits

    return logits_of


def build(layer, inputs=(STATES, IDS, TABLE), seed=1):
    layer.build(*(x.shape for x in inputs))
    randomize(layer, np.random.default_rng(seed))
    return layer


def by_hand(**settings):
    """Layer whose vocabulary scores are those of the items, with 0.5, -1, 1, 1."""
    layer = CPRSoftmax(**settings)
    layer.build((1, 5, 1), (1, 5), (6, 1))
    kernels = {"vocabulary": 1.0, "context": 0.5, "pointer": 1.0, "key": 1.0}
    for name, kernel in layer.kernels.items():
        kernel.assign([[kernels.get(name, -1.0)]])
    return layer


def logits_by_hand(states=(1, 1, 1, 0, 0), **settings):
    states = np.array(states, "float32")[None, :, None]
    return array(by_hand(**settings)(states, HISTORY, NUMBERS))[0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"rerank": (3, 2), "pointer_reduction": "sum"},
        {"rerank": (2,), "context_mode": "add", "rerank_mode": "add"},
        {"context": False, "pointer": False, "rerank": ()},
    ],
)
def test_contract(arguments, tmp_path):
    check_head(lambda **more: CPRSoftmax(**arguments, **more), tmp_path)


@pytest.mark.parametrize("name", SETTINGS)
def test_equals_the_loop(name):
    layer = build(CPRSoftmax(**SETTINGS[name]))
    loop = cpr_loop(layer, weights_of(layer), TABLE.astype("float64"))
    got = array(layer(STATES, IDS, TABLE))
    want = last_logits(loop, STATES, IDS)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    got = array(layer.step_losses(STATES, IDS, TABLE, TARGETS))
    want = losses_of(loop, STATES, IDS, TARGETS)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "cpr3", "add"])
def test_candidates_have_the_logits_of_a_call(name):
    check_candidates(build(CPRSoftmax(**SETTINGS[name])), STATES, IDS, TABLE)


def test_plain_softmax_without_projection_is_the_product():
    layer = CPRSoftmax(False, False, (), use_projection=False)
    states = STATES[..., :DIM]
    logits, vector = layer(states, IDS, TABLE, return_user_vector=True)
    last = states[[0, 1, 2, 3], [5, 5, 5, 0]]
    np.testing.assert_array_equal(array(vector), last)
    got = array(logits)[:, 1:]
    np.testing.assert_allclose(got, last @ TABLE[1:].T, rtol=1e-5, atol=1e-6)
    assert not layer.weights


def test_user_vector_gives_the_vocabulary_logits():
    layer = build(CPRSoftmax(rerank=()))
    logits, vector = layer(STATES, IDS, TABLE, return_user_vector=True)
    new = np.array([[x not in row for x in range(NUM_IDS)] for row in IDS])
    new[:, 0] = False
    got = (array(vector) @ TABLE.T)[new]
    np.testing.assert_allclose(got, array(logits)[new], rtol=1e-5, atol=1e-6)


def test_case_repeated_items_count_once():  # context scores are half of the others
    settings = {"pointer": False, "rerank": ()}
    got = logits_by_hand(**settings)
    np.testing.assert_allclose(got, [LOWEST, 1, 2, 1.5, 4, 2.5])
    got = logits_by_hand(**settings, context_mode="add")
    np.testing.assert_allclose(got, [LOWEST, 1, 2, 4.5, 4, 7.5])


def test_pointer_by_hand():  # keys 2, 3, 1: of item 3 on the average 1.5, of item 5 3
    states = (2, 3, 1, 0, 0)
    got = logits_by_hand(states, rerank=())
    np.testing.assert_allclose(got, [LOWEST, 1, 2, 1.5 + 1.5, 4, 2.5 + 3])
    got = logits_by_hand(states, rerank=(), pointer_reduction="sum")
    np.testing.assert_allclose(got, [LOWEST, 1, 2, 1.5 + 3, 4, 2.5 + 3])


def test_rerank_by_hand():  # the best three become -5, -4, -3; then the best one, 2
    settings = {"context": False, "pointer": False}
    got = logits_by_hand(**settings, rerank=(3,))
    np.testing.assert_allclose(got, [LOWEST, 1, 2, -3, -4, -5])
    got = logits_by_hand(**settings, rerank=(1, 3))
    np.testing.assert_allclose(got, [LOWEST, 1, -2, -3, -4, -5])
    got = logits_by_hand(**settings, rerank=(1, 3), rerank_mode="add")
    np.testing.assert_allclose(got, [LOWEST, 1, 0, 0, 0, 0])


def test_rerank_is_cut_to_the_number_of_items():
    got = logits_by_hand(context=False, pointer=False, rerank=(100,))
    np.testing.assert_allclose(got, [LOWEST, -1, -2, -3, -4, -5])


def test_rerank_in_any_order():
    assert CPRSoftmax(rerank=[500, 20, 100]).rerank == (20, 100, 500)


def test_mask_and_padding_anywhere_give_the_logits_of_the_packed_row():
    layer = build(CPRSoftmax(rerank=(4,)))
    want = array(layer(STATES, IDS, TABLE))
    ids, states = np.zeros_like(IDS), np.full_like(STATES, np.nan)
    for row in range(len(IDS)):
        real = np.flatnonzero(IDS[row])
        ids[row, : len(real)] = IDS[row, real]
        states[row, : len(real)] = STATES[row, real]
    got = array(layer(states, ids, TABLE))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    # The same by a mask, with other items where it is False.
    got = array(layer(states, np.where(ids > 0, ids, 10), TABLE, inputs_mask=ids > 0))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_mask_of_keras_is_read():
    layer = build(CPRSoftmax(rerank=(4,)))
    states = np.array(STATES)
    states[:, 3:] = 0.0
    mask = np.ones_like(IDS, dtype=bool)
    mask[:, 3:] = False
    want = array(layer(states, IDS, TABLE, inputs_mask=mask))
    got = array(layer(keras.layers.Masking()(states), IDS, TABLE))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert np.any(array(layer(states, IDS, TABLE)) != want)


@pytest.mark.skipif("float64" not in FLOATS, reason="the backend has no float64")
def test_losses_in_float64():
    layer = CPRSoftmax(rerank=(30, 5), dtype="float64")  # products of all ids
    build(layer)
    want = array(
        build(CPRSoftmax(rerank=(30, 5))).step_losses(STATES, IDS, TABLE, TARGETS)
    )
    wide = STATES.astype("float64"), IDS, TABLE.astype("float64")
    for inputs in (wide, (STATES, IDS, TABLE)):
        _, gradients = output_and_gradients(
            OfTable(layer, TARGETS),
            (inputs[0], inputs[2]),
            np.ones(TARGETS.shape),
            wrt_inputs=True,
        )
        assert all(np.isfinite(gradient).all() for gradient in gradients)
        got = array(layer.step_losses(*inputs, TARGETS))
        assert got.dtype == "float64"
        np.testing.assert_allclose(got, want, rtol=1e-4)


def test_rerank_takes_no_more_than_its_size_of_equal_logits():
    layer = CPRSoftmax(False, False, (3, 10), use_projection=False)
    layer.build((1, 1, 4), (1, 1), (41, 4))
    for name, bias in layer.biases.items():
        bias.assign(np.full(4, {"rerank_3": 2.0, "rerank_10": 1.0}[name]))
        layer.kernels[name].assign(np.zeros((4, 4)))
    ones = np.ones((1, 1, 4), "float32"), np.array([[1]]), np.ones((41, 4), "float32")
    values, counts = np.unique(array(layer(*ones))[0, 1:], return_counts=True)
    assert dict(zip(values.tolist(), counts.tolist(), strict=True))[8.0] == 3


def test_says_that_steps_differ():
    with pytest.raises(ValueError, match=r"`ids` must be of shape.*Received: shape"):
        build(CPRSoftmax())(STATES, IDS[:, :2], TABLE)
    with pytest.raises(TypeError, match=r"`candidates`.*candidates=2.5"):
        build(CPRSoftmax()).candidate_scores(STATES, IDS, TABLE, 2.5)


def test_mask_of_all_steps_leaves_the_biases():
    layer = build(CPRSoftmax(rerank=()))
    nothing = np.full_like(STATES, np.nan), np.zeros_like(IDS), TABLE
    want = TABLE @ array(layer.biases["vocabulary"])
    got = array(layer(*nothing))
    np.testing.assert_allclose(got[:, 1:], [want[1:]] * len(IDS), rtol=1e-5, atol=1e-6)
    losses = array(layer.step_losses(*nothing, TARGETS))
    assert np.isfinite(losses).all()
    assert not losses[TARGETS == 0].any()


class OfTable(keras.layers.Layer):
    """Logits, or losses with targets, with a gradient of the table."""

    def __init__(self, head, targets=None):
        super().__init__()
        self.head, self.targets, self.built = head, targets, True

    def call(self, states, table):
        if self.targets is None:
            return self.head(states, IDS, table)
        return self.head.step_losses(states, IDS, table, self.targets)


def test_mask_of_id_0_in_the_table():
    layer = build(CPRSoftmax(rerank=(3,)))
    high = TABLE.copy()
    high[0] = 100.0
    coef = np.random.default_rng(2).normal(size=TARGETS.shape)
    results = []
    for table in (TABLE, high):
        losses, gradients = output_and_gradients(
            OfTable(layer, TARGETS), (STATES, table), coef, wrt_inputs=True
        )
        assert not gradients[1][0].any()
        assert gradients[1][1:].any()
        results += [[losses, *gradients]]
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_mask_of_overwritten_logits_in_the_gradient():
    layer = build(CPRSoftmax(rerank=()))
    seen = np.array([[x in row for x in range(NUM_IDS)] for row in IDS])
    names = [weight.name for weight in layer.trainable_variables]
    for coef, without in ((seen, "vocabulary"), (~seen, "context")):
        _, gradients = output_and_gradients(OfTable(layer), (STATES, TABLE), coef * 1.0)
        gradients = dict(zip(names, gradients, strict=True))
        for name, gradient in gradients.items():
            lost = name.startswith(without) or (
                without == "context" and name.startswith(("pointer", "key"))
            )
            assert gradient.any() != lost, name


@pytest.mark.parametrize("chunk_size", [1, 7, 24])
def test_chunks_do_not_change_the_losses(chunk_size):
    whole = build(CPRSoftmax(rerank=(4,)))
    parts = build(CPRSoftmax(rerank=(4,), chunk_size=chunk_size))
    want = array(whole.step_losses(STATES, IDS, TABLE, TARGETS))
    got = array(parts.step_losses(STATES, IDS, TABLE, TARGETS))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("num_ids", "size"), [(5, 5), (40, 3), (1003, 10), (1003, 1), (517, 100)]
)
def test_top_ids_are_those_of_the_largest_scores(num_ids, size):
    rng = np.random.default_rng(num_ids)
    random = rng.normal(size=(6, num_ids)).astype("float32")
    random[0] = np.arange(num_ids)  # all in the last blocks
    tied = rng.integers(4, size=(6, num_ids)).astype("float32")
    tied[0] = 0.0
    for scores in (random, tied):
        ids = array(top_ids(tensor(scores), size))
        assert all(len(set(row)) == size for row in ids)
        got = np.sort(np.take_along_axis(scores, ids, axis=1), axis=1)
        np.testing.assert_array_equal(got, np.sort(scores, axis=1)[:, -size:])


def test_says_that_the_pointer_needs_the_context():
    with pytest.raises(ValueError, match="`pointer` must be False.*pointer=True"):
        CPRSoftmax(context=False)


@pytest.mark.parametrize(
    ("rerank", "error", "message"),
    [
        (100, TypeError, "`rerank` must be a list or tuple.*rerank=100"),
        ((20.5,), TypeError, "`rerank` must be an integer.*20.5"),
        ((0,), ValueError, "`rerank` must be at least 1.*0"),
        ((20, 20), ValueError, r"`rerank` must hold each size once.*\(20, 20\)"),
    ],
)
def test_says_what_rerank_was_given(rerank, error, message):
    with pytest.raises(error, match=message):
        CPRSoftmax(rerank=rerank)


@pytest.mark.parametrize("name", ["context_mode", "rerank_mode", "pointer_reduction"])
def test_says_what_mode_was_given(name):
    with pytest.raises(ValueError, match=f"`{name}` must be one of.*{name}='max'"):
        CPRSoftmax(**{name: "max"})


def test_says_that_other_widths_need_a_projection():
    with pytest.raises(ValueError, match=f"`use_projection`.*{STATE_DIM} and {DIM}"):
        CPRSoftmax(use_projection=False)(STATES, IDS, TABLE)


@pytest.mark.parametrize("chunk_size", [0, 2.5])
def test_says_what_chunk_size_was_given(chunk_size):
    with pytest.raises((TypeError, ValueError), match=f"`chunk_size`.*{chunk_size}"):
        CPRSoftmax(chunk_size=chunk_size)


def test_says_what_shapes_were_given():
    with pytest.raises(ValueError, match="`CPRSoftmax` takes.*shapes"):
        CPRSoftmax()(STATES, IDS[:, :4], TABLE)
    with pytest.raises(ValueError, match="`targets` must be.*shape"):
        CPRSoftmax().step_losses(STATES, IDS, TABLE, TARGETS[:, :4])


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a fault of TensorFlow's graphs")
def test_many_chunks_in_a_graph():
    # Three sums of one shape in a loop became a variable that two rounds claimed.
    import tensorflow as tf

    layer = CPRSoftmax(rerank=(9, 4, 2), chunk_size=3)
    rng = np.random.default_rng(5)
    states = rng.normal(size=(16, 6, 4)).astype("float32")
    ids = rng.integers(0, 41, (16, 6)).astype("int32")
    table = tf.Variable(rng.normal(size=(41, 4)).astype("float32"))
    build(layer, (states, ids, table))

    @tf.function
    def slopes():
        with tf.GradientTape() as tape:
            loss = layer.loss(states, ids, table, ids)
        return tape.gradient(loss, table)

    with tf.GradientTape() as tape:
        loss = layer.loss(states, ids, table, ids)
    want = tape.gradient(loss, table)
    for _ in range(3):
        np.testing.assert_allclose(slopes(), want, rtol=1e-4, atol=1e-4)
