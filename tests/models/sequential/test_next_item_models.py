import keras
import numpy as np
import pytest
from helpers import array, check_model, randomize, tensor

from keras_recsys import data, layers, metrics
from keras_recsys.models import build_gru4rec, build_repeatnet, build_sasrec

RNG = np.random.default_rng(0)
NUM_ITEMS = 7
IDS = np.array([[3, 5, 3, 0, 0], [0, 1, 6, 2, 6], [4, 0, 7, 1, 0]], "int32")
TARGETS = np.array([5, 1, 2], "int32")
# The item after each step, and after the last one.
ALL = np.array([[5, 3, 5, 0, 0], [0, 6, 2, 6, 1], [7, 0, 1, 2, 0]], "int32")


def cpr(**more):
    return layers.CPRSoftmax(rerank=(3, 2), **more)


MODELS = {
    "sasrec": lambda **more: build_sasrec(
        NUM_ITEMS, embedding_dim=4, max_len=5, head=cpr(), multi_input=True, **more
    ),
    "gru4rec": lambda **more: build_gru4rec(
        NUM_ITEMS, embedding_dim=4, hidden_dim=3, max_len=5, **more
    ),
    "repeatnet": lambda **more: build_repeatnet(
        NUM_ITEMS, embedding_dim=4, hidden_dim=3, max_len=5, **more
    ),
    "repeatnet_cpr": lambda **more: build_repeatnet(
        NUM_ITEMS,
        embedding_dim=4,
        hidden_dim=4,
        max_len=5,
        head=cpr(),
        multi_input=True,
        **more,
    ),
    "sasrec_mixture": lambda **more: build_sasrec(
        NUM_ITEMS,
        embedding_dim=4,
        max_len=5,
        head=layers.MixtureOfSoftmaxes(2),
        **more,
    ),
}


def made(kind, **more):
    model = MODELS[kind](**more)
    randomize(model, np.random.default_rng(3))
    return model


def logits_of(model, ids):
    return array(model({"item_ids": np.asarray(ids, "int32")})["logits"])


def cross_entropy(logits, target):
    logits = logits.astype("float64")
    return np.log(np.exp(logits).sum()) - logits[target]


def own_loss(model, ids, targets, sample_weight=None, training=False):
    inputs = {"item_ids": tensor(np.asarray(ids, "int32"))}
    outputs = model(inputs, training=training)
    targets = tensor(np.asarray(targets, "int32"))
    loss = model.compute_loss(inputs, targets, outputs, sample_weight, training)
    return float(array(loss))


def test_contract_sasrec(tmp_path):
    def make(**more):
        return build_sasrec(
            NUM_ITEMS,
            embedding_dim=4,
            max_len=4,
            head=layers.CPRSoftmax(rerank=(3,)),
            multi_input=True,
            **more,
        )

    check_model(make, {"item_ids": IDS}, tmp_path)


def test_contract_gru4rec(tmp_path):
    def make(**more):
        return build_gru4rec(NUM_ITEMS, embedding_dim=4, hidden_dim=3, **more)

    check_model(make, {"item_ids": IDS}, tmp_path)


def test_contract_repeatnet(tmp_path):
    def make(**more):
        return build_repeatnet(NUM_ITEMS, embedding_dim=4, hidden_dim=3, **more)

    check_model(make, {"item_ids": IDS}, tmp_path)


@pytest.mark.parametrize("kind", MODELS)
def test_loss_of_all_steps_is_that_of_the_prefixes(kind):
    model = made(kind)
    losses = []
    for row, targets in zip(IDS, ALL, strict=True):
        for step in np.flatnonzero(targets):
            prefix = np.zeros((1, 5), "int32")  # on the other side than in the row
            items = [i for i in row[: step + 1] if i]
            prefix[0, 5 - len(items) :] = items
            losses.append(cross_entropy(logits_of(model, prefix)[0], targets[step]))
    np.testing.assert_allclose(own_loss(model, IDS, ALL), np.mean(losses), rtol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_loss_of_the_last_step_weights_and_padding(kind):
    model = made(kind)
    each = np.array(
        [
            cross_entropy(row, y)
            for row, y in zip(logits_of(model, IDS), TARGETS, strict=True)
        ]
    )
    close = {"rtol": 1e-5}
    np.testing.assert_allclose(own_loss(model, IDS, TARGETS), each.mean(), **close)
    np.testing.assert_allclose(
        own_loss(model, IDS, TARGETS[:, None]), each.mean(), **close
    )
    weights = np.array([1.0, 0.5, 2.0], "float32")
    want = (weights * each).sum() / 3
    np.testing.assert_allclose(own_loss(model, IDS, TARGETS, weights), want, **close)
    # A row without a target, and one of padding alone, add nothing to the mean.
    ids = np.concatenate([IDS, [[0] * 5]])
    got = own_loss(model, ids, [*TARGETS, 0])
    np.testing.assert_allclose(got, each.mean(), **close)
    wide = np.pad(IDS, ((0, 0), (2, 3)))
    wide_targets = np.pad(ALL, ((0, 0), (2, 3)))
    np.testing.assert_allclose(
        own_loss(model, wide, wide_targets), own_loss(model, IDS, ALL), **close
    )


@pytest.mark.parametrize("kind", MODELS)
def test_padding_has_no_side_and_no_vector(kind):
    model = made(kind)
    want = logits_of(model, IDS)
    packed = [[i for i in row if i] for row in IDS]
    for width, side in ((5, "right"), (5, "left"), (9, "left")):
        ids = [
            row + [0] * (width - len(row))
            if side == "right"
            else [0] * (width - len(row)) + row
            for row in packed
        ]
        np.testing.assert_allclose(logits_of(model, ids), want, rtol=1e-5, atol=1e-5)
    table = next(x for x in model.layers if x.name.endswith("_items")).embeddings
    values = array(table).copy()
    values[0] = 100.0
    table.assign(values)
    np.testing.assert_array_equal(logits_of(model, IDS), want)
    empty = logits_of(model, [[0, 0, 0], [1, 2, 3], [0, 0, 0]])
    assert np.isfinite(empty).all()
    np.testing.assert_allclose(empty[0], empty[2], rtol=1e-6)
    assert (want[:, 0] < -1e6).all()
    assert (empty[:, 0] < -1e6).all()


@pytest.mark.parametrize("kind", MODELS)
def test_reads_the_last_items_of_a_long_history(kind):
    model = made(kind)
    long = [[7, 7, 1, 0, 2, 3, 0, 4, 5]]
    want = logits_of(model, [[1, 2, 3, 4, 5]])
    np.testing.assert_allclose(logits_of(model, long), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("targets", [TARGETS, ALL], ids=["last", "all"])
def test_fits_without_a_loss(targets):
    keras.utils.set_random_seed(1)
    model = MODELS["sasrec"]()
    model.compile(keras.optimizers.Adam(0.02), metrics=[metrics.HitRate(2)])
    inputs = {"item_ids": IDS}
    history = model.fit(inputs, targets, epochs=20, batch_size=3, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["hit_rate"][-1] == 1.0
    figures = model.evaluate(inputs, targets, return_dict=True, verbose=0)
    np.testing.assert_allclose(
        figures["loss"], own_loss(model, IDS, targets), rtol=1e-5
    )
    assert figures["hit_rate"] == 1.0
    again = model.fit(
        inputs, targets, validation_data=(inputs, TARGETS, np.ones(3)), verbose=0
    )
    assert again.history["val_hit_rate"] == [1.0]


def test_takes_a_loss_of_keras():
    model = made("gru4rec")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss=loss)
    figures = model.evaluate({"item_ids": IDS}, TARGETS, return_dict=True, verbose=0)
    np.testing.assert_allclose(figures["loss"], own_loss_of(model), rtol=1e-5)
    assert np.isfinite(model.train_on_batch({"item_ids": IDS}, TARGETS))


def own_loss_of(model):
    logits = logits_of(model, IDS)
    return np.mean([cross_entropy(x, y) for x, y in zip(logits, TARGETS, strict=True)])


def test_regularization_joins_the_loss():
    head = cpr(kernel_regularizer=keras.regularizers.L2(0.1))
    model = build_sasrec(NUM_ITEMS, embedding_dim=4, head=head)
    kernels = [
        array(kernel) for kernel in model.get_layer("sasrec_head").kernels.values()
    ]
    plain = build_sasrec(NUM_ITEMS, embedding_dim=4, head=cpr())
    plain.set_weights(model.get_weights())
    want = own_loss(plain, IDS, ALL) + 0.1 * sum((x**2).sum() for x in kernels)
    np.testing.assert_allclose(own_loss(model, IDS, ALL), want, rtol=1e-5)
    got = own_loss(model, IDS, ALL, training=True)
    assert got != own_loss(plain, IDS, ALL, training=True)


def test_the_item_table_is_one_weight(tmp_path):
    for build in (build_sasrec, build_gru4rec):
        model = build(NUM_ITEMS, embedding_dim=4)
        tables = [x for x in model.weights if x.shape == (NUM_ITEMS + 1, 4)]
        assert len(tables) == 1
        before = logits_of(model, [[1, 2]])
        values = array(tables[0]).copy()
        values[6] = 3.0  # not in the history: it is read by the head alone
        tables[0].assign(values)
        after = logits_of(model, [[1, 2]])
        changed = np.flatnonzero(np.any(before != after, axis=0))
        np.testing.assert_array_equal(changed, [6])
        path = tmp_path / f"{model.name}.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        assert len(loaded.weights) == len(model.weights)
        np.testing.assert_allclose(logits_of(loaded, [[1, 2]]), after, rtol=1e-6)


def test_the_user_vector_retrieves():
    model = made("gru4rec")  # a plain softmax
    outputs = model({"item_ids": IDS})
    table = array(model.get_layer("gru4rec_items").embeddings)
    want = array(outputs["user_vector"]) @ table.T
    np.testing.assert_allclose(
        array(outputs["logits"])[:, 1:], want[:, 1:], rtol=1e-5, atol=1e-5
    )
    name = "gru4rec_user_vector"
    encoder = keras.Model(model.input, model.get_layer(name).output)
    got = encoder.predict({"item_ids": IDS}, verbose=0)
    np.testing.assert_allclose(got, array(outputs["user_vector"]), rtol=1e-5)


def test_a_head_is_a_pattern():
    head = cpr(name="mine")
    first = build_sasrec(NUM_ITEMS, head=head, name="first")
    second = build_gru4rec(NUM_ITEMS, head=head, name="second")
    assert not head.built
    assert first.get_layer("first_head") is not second.get_layer("second_head")
    assert first.get_layer("first_head").rerank == (2, 3)


def test_counts_of_weights():  # spec: width 64, 12,101 items, length 50
    counts = {
        (): 886_144 - 4_160,
        ("head",): 902_784 - 4_160,
        ("head", "mi"): 947_904 - 4_160,
    }
    for parts, count in counts.items():
        head = layers.CPRSoftmax() if "head" in parts else None
        model = build_sasrec(12_101, head=head, multi_input="mi" in parts)
        assert model.count_params() == count
    model = build_gru4rec(12_101, head=layers.CPRSoftmax(), multi_input=True)
    assert model.count_params() == 861_056 - 4_160


def test_says_what_is_wrong():
    with pytest.raises(TypeError, match=r"`head`.*head='cpr'"):
        build_sasrec(5, head="cpr")
    with pytest.raises(TypeError, match=r"`num_items`.*num_items='a'"):
        build_gru4rec("a")
    with pytest.raises(ValueError, match=r"one key 'item_ids'.*\['ids'\]"):
        build_sasrec(5, inputs={"ids": keras.Input((None,), dtype="int32")})
    with pytest.raises(ValueError, match=r"`dropout`.*dropout=1"):
        build_gru4rec(5, dropout=1)
    model = build_gru4rec(5)
    with pytest.raises(ValueError, match=r"must have the keys \['item_ids'\]"):
        model({"ids": IDS})
    with pytest.raises(ValueError, match="targets must be of shape"):
        own_loss(model, IDS % 6, np.zeros((3, 5, 1)))
    with pytest.raises(ValueError, match=r"targets must.*\(3, 5\).*\(3, 4\)"):
        own_loss(model, IDS % 6, np.zeros((3, 4)))


def test_trains_on_the_dataset_whose_width_is_open():
    events = [(user, item) for user in range(9) for item in RNG.permutation(7)[:6]]
    sequences = data.Sequences.from_events(*zip(*events, strict=True))
    dataset = data.make_sequence_dataset(sequences, targets="all", batch_size=4, seed=1)
    assert dataset.element_spec[0]["item_ids"].shape[1] is None
    model = MODELS["sasrec"]()
    model.compile("adam")
    assert np.isfinite(
        model.fit(dataset, shuffle=False, verbose=0).history["loss"]
    ).all()


def test_inside_of_another_model_it_is_the_same_in_training():
    ids = keras.Input((None,), dtype="int32")
    inner = made("gru4rec")
    outer = keras.Model(ids, inner({"item_ids": ids})["user_vector"])
    want = array(outer(IDS))
    np.testing.assert_allclose(array(outer(IDS, training=True)), want, rtol=1e-5)
    assert set(inner({"item_ids": IDS}, training=True)) == {"logits", "user_vector"}


@pytest.mark.parametrize("wrong", [-1, NUM_ITEMS + 1])
def test_a_target_that_is_no_item_is_loud(wrong):
    for kind in ("sasrec", "gru4rec", "repeatnet", "sasrec_mixture"):
        model = made(kind)
        for training in (False, True):
            assert np.isnan(own_loss(model, IDS, [5, wrong, 2], training=training))
        every = np.where(ALL == 7, wrong, ALL)
        assert np.isnan(own_loss(model, IDS, every, training=True))


def test_metrics_read_the_target_of_the_last_item():
    model = made("gru4rec")
    best = logits_of(model, IDS).argmax(axis=1)
    targets = np.zeros_like(IDS)
    targets[0, 1] = best[0]  # that of a step before: it does not count
    targets[1, 4] = best[1]
    targets[2, 3] = best[2] % 7 + 1
    weights = np.ones_like(IDS, "float32")
    weights[1] = 3.0
    model.compile(weighted_metrics=[metrics.HitRate(1)], run_eagerly=True)
    for given in (weights, weights[:, 4]):
        figures = model.evaluate(
            {"item_ids": IDS}, targets, sample_weight=given, return_dict=True, verbose=0
        )
        np.testing.assert_allclose(figures["hit_rate"], 0.75)


def test_class_weights_are_refused():
    model = MODELS["gru4rec"]()
    model.compile("sgd")
    with pytest.raises(ValueError, match=r"`class_weight` must be None"):
        model.fit({"item_ids": IDS}, ALL, class_weight={1: 2.0}, verbose=0)
    with pytest.raises(ValueError, match=r"weights must be of shape.*\(3, 4\)"):
        own_loss(model, IDS, TARGETS, np.ones((3, 4), "float32"))


def test_an_empty_batch_has_no_loss():
    model = build_sasrec(NUM_ITEMS, embedding_dim=4, head=cpr())
    assert own_loss(model, IDS[:0], TARGETS[:0]) == 0
    assert own_loss(model, IDS[:0], ALL[:0], training=True) == 0
