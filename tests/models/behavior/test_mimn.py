import numpy as np
import pytest
from behavior_twins import FEATURES, SMALL, X, check_twin, part_of
from helpers import array, check_model, randomize

from keras_recsys.models import build_mimn


def test_contract_mimn(tmp_path):
    check_model(
        lambda **names: build_mimn(FEATURES, **SMALL, num_slots=2, **names), X, tmp_path
    )


def test_equals_the_loop():
    def interests(twin):
        inputs = twin.target[None], twin.value
        memory = twin.by_layer("interest", *inputs, value_mask=twin.mask)[0]
        assert memory.shape == (8,)
        return [memory, twin.value[0].sum(0)]

    check_twin(build_mimn(FEATURES, **SMALL, num_slots=3), interests)


def test_order_matters():
    model = build_mimn(FEATURES, **SMALL, num_slots=2)
    randomize(model, np.random.default_rng(1))
    read = part_of(model, "interest")
    swapped = {
        name: x[:, ::-1].copy() if name.endswith("history") else x
        for name, x in X.items()
    }
    assert np.abs(array(read(X)) - array(read(swapped)))[0].max() > 1e-4


def test_says_what_was_given():
    with pytest.raises(ValueError, match="`num_slots` must be at least 1.*=0"):
        build_mimn(FEATURES, **SMALL, num_slots=0)
