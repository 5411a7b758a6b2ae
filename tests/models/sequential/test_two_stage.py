import keras
import numpy as np
import pytest
from helpers import array, check_model, randomize, tensor

from keras_recsys.layers import CPRSoftmax, MixtureOfSoftmaxes, SampledSoftmax
from keras_recsys.models import (
    build_gru4rec,
    build_repeatnet,
    build_sasrec,
    build_two_stage,
)

NUM_ITEMS = 12
LOWEST = -1e9
# One row has more items than a model of `max_len=5` reads, one has none.
IDS = np.array(
    [[3, 5, 3, 0, 0, 0], [0, 0, 0, 0, 0, 0], [1, 2, 7, 4, 9, 6]], dtype="int32"
)
HEADS = {
    "plain": lambda: None,
    "sampled": lambda: SampledSoftmax(3),
    "cpr": lambda: CPRSoftmax(rerank=(2, 3)),
    "large": lambda: CPRSoftmax(rerank=(100,)),
    "add": lambda: CPRSoftmax(rerank=(3,), context_mode="add", rerank_mode="add"),
    "rerank": lambda: CPRSoftmax(context=False, pointer=False, rerank=(4,)),
}


def made(head="cpr", build=build_gru4rec, **more):
    model = build(NUM_ITEMS, embedding_dim=4, max_len=5, head=HEADS[head](), **more)
    randomize(model, np.random.default_rng(3))
    return model


def answer(model, ids, **more):
    outputs = model({"item_ids": ids, **more})
    return array(outputs["item_ids"]), array(outputs["scores"])


def best(model, ids, k, exclude_seen=False):
    """The best items by the logits of all, one row at a time."""
    found = np.zeros((len(ids), k), "int32"), np.full((len(ids), k), LOWEST)
    for row, logits in enumerate(array(model({"item_ids": ids})["logits"])):
        seen = set(ids[row]) if exclude_seen else set()
        kept = [i for i in range(1, NUM_ITEMS + 1) if i not in seen]
        order = sorted(kept, key=lambda i: -logits[i])[:k]
        found[0][row, : len(order)] = order
        found[1][row, : len(order)] = logits[order]
    return found


def check(got, want):
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5, atol=1e-5)


def by_hand(head=CPRSoftmax, **settings):
    """A head by which item `x` has `x`; `-x` if reranked, `10 x` if in the history."""
    layer = head(pointer=False, rerank=(2,), **settings)
    layer.build((1, 3, 1), (1, 3), (6, 1))
    for name, bias in (("vocabulary", 1.0), ("rerank_2", -1.0), ("context", 10.0)):
        layer.kernels[name].assign([[0.0]])
        layer.biases[name].assign([bias])
    states, ids = np.ones((1, 3, 1), "float32"), np.array([[3, 0, 3]], "int32")
    table = np.arange(6, dtype="float32")[:, None]
    return layer, tuple(map(tensor, (states, ids, table)))


def as_dict(logits, ids):
    """The one row as dict from id to logit; what is no item has the lowest."""
    logits, ids = array(logits)[0], array(ids)[0]
    assert (logits[ids == 0] == LOWEST).all()
    assert len(set(ids[ids > 0])) == (ids > 0).sum()
    return {int(i): float(x) for i, x in zip(ids, logits, strict=True) if i}


def test_contract(tmp_path):
    def make(name, inputs=None):
        model = build_sasrec(
            NUM_ITEMS,
            embedding_dim=4,
            max_len=6,
            head=CPRSoftmax(rerank=(2, 3)),
            multi_input=True,
            inputs=inputs,
            name=name,
        )
        # The ids have no gradient: `test_saved_and_loaded` has both outputs.
        model = build_two_stage(model, num_candidates=NUM_ITEMS, k=11, name=name)
        return keras.Model(model.input, {"scores": model.output["scores"]}, name=name)

    check_model(make, {"item_ids": IDS}, tmp_path)


@pytest.mark.parametrize(
    ("candidates", "want"),
    [
        ([5, 1], {3: 30.0, 5: -5.0, 1: 1.0}),  # 5 and 3 are the best two
        ([4, 2, 5], {3: 30.0, 5: -5.0, 4: -4.0, 2: 2.0}),  # as among all items
        ([3, 5, 5, 1, 1], {3: 30.0, 5: -5.0, 1: 1.0}),  # each item once
        ([-1, 0, 6, 99, 1], {3: 30.0, 1: -1.0}),  # what is no item
    ],
)
def test_scores_of_candidates_by_hand(candidates, want):
    layer, inputs = by_hand()
    candidates = tensor(np.array([candidates], "int64"))
    assert as_dict(*layer.candidate_scores(*inputs, candidates)) == want
    assert as_dict(*layer(*inputs, candidates=candidates)) == want


def test_scores_of_the_nearest_by_hand():
    layer, inputs = by_hand()
    want = {3: 30.0, 5: -5.0, 4: -4.0}
    assert as_dict(*layer.candidate_scores(*inputs, 2)) == want
    assert len(as_dict(*layer.candidate_scores(*inputs, 99))) == 5
    # The nearest others are found, and 5 still is one of the best two.
    got = layer.candidate_scores(*inputs, 2, excluded=tensor(np.array([[5, 0, 3]])))
    assert as_dict(*got) == {4: -4.0, 2: 2.0}


def test_added_scores_by_hand():
    layer, inputs = by_hand(context_mode="add", rerank_mode="add")
    got = layer.candidate_scores(*inputs, tensor(np.array([[5, 1]])))
    # 5 - 5 and 1; item 3 has 3 - 3 and then 30 more.
    assert as_dict(*got) == {3: 30.0, 5: 0.0, 1: 1.0}


def test_mask_makes_padding():
    layer, inputs = by_hand()
    mask = tensor(np.array([[False, True, False]]))
    got = layer.candidate_scores(*inputs, tensor(np.array([[1, 4]])), mask)
    assert as_dict(*got) == {1: -1.0, 4: -4.0}


@pytest.mark.parametrize("exclude_seen", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_all_candidates_give_the_answers_of_the_model(head, exclude_seen):
    model = made(head)
    two = build_two_stage(
        model, num_candidates=99, k=NUM_ITEMS, exclude_seen=exclude_seen
    )
    got = answer(two, IDS)
    check(got, best(model, IDS, NUM_ITEMS, exclude_seen))
    assert (got[0][1] > 0).all()
    assert (got[0][2] > 0).sum() == (6 if exclude_seen else NUM_ITEMS)


@pytest.mark.parametrize("exclude_seen", [False, True])
@pytest.mark.parametrize("head", ["plain", "cpr", "add"])
def test_enough_candidates_give_the_best_of_the_model(head, exclude_seen):
    model = made(head, build_sasrec)
    enough = {"plain": 2, "cpr": 7, "add": 5}[head]  # the sizes, and k
    two = build_two_stage(model, num_candidates=enough, k=2, exclude_seen=exclude_seen)
    check(answer(two, IDS), best(model, IDS, 2, exclude_seen))


def test_few_candidates_are_all_that_is_scored():
    model = made("plain")
    two = build_two_stage(model, num_candidates=3, k=3)
    table = array(model.get_layer("gru4rec_items").embeddings)[1:]
    vectors = array(model({"item_ids": IDS})["user_vector"])
    np.testing.assert_array_equal(
        np.sort(answer(two, IDS)[0][1]),
        np.sort(np.argsort(-table @ vectors[1])[:3] + 1),
    )


def test_candidates_of_an_index():
    model = made("rerank")
    two = build_two_stage(model, k=3)
    assert set(two.input) == {"item_ids", "candidate_ids"}
    every = np.tile(np.arange(NUM_ITEMS + 1), (3, 1))
    check(answer(two, IDS, candidate_ids=every), best(model, IDS, 3))
    # A row of few candidates ends in no item; -1 is what an index says for none.
    few = np.array([[-1, 7], [8, 2], [-1, -1]])
    ids, scores = answer(two, IDS, candidate_ids=few)
    assert set(ids[0]) == {3, 5, 7}
    assert set(ids[1][:2]) == {2, 8}
    assert ids[1][2] == 0
    assert scores[1][2] == LOWEST
    assert set(ids[2]) < set(IDS[2])
    two = build_two_stage(model, k=3, exclude_seen=True)
    ids, scores = answer(two, IDS, candidate_ids=few)
    assert ids[0].tolist() == [7, 0, 0]
    assert (ids[2] == 0).all()
    assert (scores[2] == LOWEST).all()


def test_side_and_length_of_padding_do_not_matter():
    two = build_two_stage(made(), num_candidates=6, k=4, exclude_seen=True)
    want = answer(two, IDS[:1])
    for row in ([3, 5, 3], [0, 3, 0, 5, 3], [0] * 9 + [3, 5, 3]):
        check(answer(two, np.array([row], "int32")), want)


def test_vector_of_padding_never_counts():
    model = made()
    two = build_two_stage(model, num_candidates=6, k=4)
    want = answer(two, IDS)
    table = model.get_layer("gru4rec_items").embeddings
    values = array(table).copy()
    values[0] = 100.0
    table.assign(values)
    check(answer(two, IDS), want)


def test_weights_are_those_of_the_model():
    model = made()
    two = build_two_stage(model, num_candidates=NUM_ITEMS, k=5)
    assert {id(x) for x in two.weights} == {id(x) for x in model.weights}
    before = answer(two, IDS)
    model.compile(keras.optimizers.SGD(1.0))
    model.fit({"item_ids": IDS}, np.array([5, 1, 2], "int32"), verbose=0)
    got = answer(two, IDS)
    assert np.abs(got[1] - before[1]).max() > 1e-3
    check(got, best(model, IDS, 5))


def test_saved_and_loaded(tmp_path):
    model = made()
    two = build_two_stage(model, num_candidates=6, k=4, exclude_seen=True)
    two.save(tmp_path / "two.keras")
    model.save(tmp_path / "model.keras")
    check(
        answer(keras.models.load_model(tmp_path / "two.keras"), IDS), answer(two, IDS)
    )
    loaded = keras.models.load_model(tmp_path / "model.keras")
    check(best(loaded, IDS, 4), best(model, IDS, 4))
    again = build_two_stage(loaded, num_candidates=6, k=4, exclude_seen=True)
    check(answer(again, IDS), answer(two, IDS))


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"k": 13}, ValueError, "`k` must be at most.*items, 12. Received: k=13"),
        ({"k": 0}, ValueError, "`k` must be at least 1. Received: k=0"),
        ({"k": 1.5}, TypeError, "`k` must be an integer.*k=1.5"),
        (
            {"num_candidates": 3, "k": 4},
            ValueError,
            "`num_candidates` must be at least 4. Received: num_candidates=3",
        ),
    ],
)
def test_says_what_size_was_given(settings, error, match):
    with pytest.raises(error, match=match):
        build_two_stage(made("plain"), **settings)


def test_says_which_model_was_given():
    ids = keras.Input((3,), dtype="int32", name="item_ids")
    for model in (keras.Model(ids, ids), None):
        with pytest.raises(
            TypeError, match="`model` must be a `NextItemModel`.*model="
        ):
            build_two_stage(model)
    for model in (
        build_repeatnet(5, embedding_dim=2, hidden_dim=2),
        build_gru4rec(5, embedding_dim=2, head=MixtureOfSoftmaxes(2)),
    ):
        name = type(model.get_layer(f"{model.name}_head")).__name__
        with pytest.raises(ValueError, match=f"scores candidates.*a `{name}`"):
            build_two_stage(model)


def test_head_that_needs_all_items():
    layer = MixtureOfSoftmaxes(2)
    inputs = (
        np.ones((1, 2, 3), "float32"),
        np.array([[1, 0]]),
        np.ones((4, 3), "float32"),
    )
    layer(*inputs)
    with pytest.raises(NotImplementedError, match="`MixtureOfSoftmaxes` has no scores"):
        layer.candidate_scores(*map(tensor, inputs), 2)
