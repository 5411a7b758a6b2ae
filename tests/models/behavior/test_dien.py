import numpy as np
import pytest
from behavior_twins import FEATURES, MASK, SMALL, Twin, X, check_twin
from helpers import array, check_model, randomize

from keras_recsys.models import build_dien
from keras_recsys.models.behavior.dien import RowBefore

DIEN = {**SMALL, "units": 3, "attention_units": (3,), "auxiliary_units": (4,)}


def make(weight=0.0):
    model = build_dien(FEATURES, **DIEN, auxiliary_loss_weight=weight)
    randomize(model, np.random.default_rng(1))
    return model


def loss_of(model, rows):
    """The auxiliary loss of some rows of `X`."""
    model({name: values[rows] for name, values in X.items()})
    (loss,) = model.losses
    return float(array(loss))


def test_contract_dien(tmp_path):
    check_model(lambda **names: build_dien(FEATURES, **DIEN, **names), X, tmp_path)


@pytest.mark.parametrize("update", ["paper", "released"])
def test_equals_the_loop(update):
    def interests(twin):
        inputs = twin.target[None], twin.value
        return [twin.by_layer("interest", *inputs, value_mask=twin.mask)[0]]

    model = build_dien(FEATURES, **DIEN, update=update)
    assert model.get_layer("dien_interest").update == update
    check_twin(model, interests)


def test_auxiliary_loss_is_that_of_the_layer():
    """The events of the row before stand against those of a row."""
    model = make(0.3)
    twins = [Twin(model, row) for row in range(5)]
    query = np.stack([twin.target for twin in twins]).astype("float32")
    value = np.concatenate([twin.value for twin in twins]).astype("float32")
    layer = model.get_layer("dien_interest")
    layer(
        query,
        value,
        value_mask=MASK,
        negatives=np.concatenate([value[-1:], value[:-1]]),
        negatives_mask=np.concatenate([MASK[-1:], MASK[:-1]]),
    )
    (want,) = (float(array(loss)) for loss in layer.losses)
    assert want > 0.01
    assert loss_of(model, slice(None)) == pytest.approx(want, rel=1e-5)
    assert not make().losses


def test_auxiliary_loss_joins_that_of_the_clicks():
    model, labels = make(0.3), np.array([[1], [0], [1], [1], [0]], "float32")
    probability = array(model(X)["probability"])
    clicks = -np.log(np.where(labels, probability, 1 - probability)).mean()
    model.compile("sgd", "binary_crossentropy", run_eagerly=True)
    want = clicks + loss_of(model, slice(None))
    assert model.test_on_batch(X, labels) == pytest.approx(want, rel=1e-4)
    before = [array(w) for w in model.trainable_weights]
    assert np.isfinite(model.train_on_batch(X, labels))
    moved = [
        np.any(array(w) != old)
        for w, old in zip(model.trainable_weights, before, strict=True)
    ]
    assert all(moved)


def test_padding_adds_no_auxiliary_loss():
    model = make(1.0)
    # A row without events gives none to the next one.
    assert loss_of(model, [0, 4]) == 0.0
    first, second = loss_of(model, [4, 2, 0]), loss_of(model, [4, 0, 2])
    assert min(first, second) > 0.01
    # Of rows 0 and 2, next to each other: their events but the first that stand where
    # the other row has one.
    together = MASK[0] & MASK[2]
    counts = [(together & (np.cumsum(MASK[row]) > 1)).sum() for row in (0, 2)]
    assert min(counts) > 0
    both = loss_of(model, [0, 2])
    want = np.dot(counts, [first, second]) / sum(counts)
    assert both == pytest.approx(want, rel=1e-5)
    wider = {
        name: np.pad(x, ((0, 0), (2, 3))) if name.endswith("history") else x
        for name, x in X.items()
    }
    want = loss_of(model, slice(None))
    model(wider)
    (loss,) = model.losses
    assert float(array(loss)) == pytest.approx(want, rel=1e-5)


def test_row_before_by_hand():
    value = np.arange(6.0).reshape(3, 2, 1).astype("float32")
    mask = np.array([[True, False], [True, True], [False, False]])
    got, kept = RowBefore()(value, mask)
    np.testing.assert_array_equal(array(got)[..., 0], [[4, 5], [0, 1], [2, 3]])
    np.testing.assert_array_equal(
        array(kept), [[False, False], [True, False], [True, True]]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"auxiliary_loss_weight": -0.1}, "`auxiliary_loss_weight` must be.*-0.1"),
        ({"units": 0}, "`units` must be at least 1.*=0"),
        ({"update": "x"}, "`update` must be one of 'paper', 'released'.*'x'"),
        ({"attention_units": ()}, "`hidden_units` must be a list or tuple of"),
    ],
)
def test_says_what_was_given(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_dien(FEATURES, **{**DIEN, **arguments})
