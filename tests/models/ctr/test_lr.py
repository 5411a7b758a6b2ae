import keras
import numpy as np
import pytest
from click_twins import (
    FEATURES,
    IDS,
    NUMBERS,
    X,
    check_missing_number_is_loud,
    check_sparse_gradients,
    check_twin,
    chosen,
    learned_auc,
)
from helpers import array, check_model, set_field_table

from keras_recsys.features import CategoricalFeature, NumericFeature
from keras_recsys.models import build_lr


def test_contract(tmp_path):
    check_model(
        lambda **names: build_lr(FEATURES, linear_regularizer="l2", **names),
        X,
        tmp_path,
    )


@pytest.mark.parametrize("names", [IDS + NUMBERS, IDS, NUMBERS, ("item",)])
def test_equals_the_loop(names):
    features, _ = chosen(names)
    check_twin(build_lr(features), lambda twin: twin.linear())


def test_probability_by_hand():
    features = [CategoricalFeature("a", 3), NumericFeature("n")]
    model = build_lr(features)
    set_field_table(model, "lr_linear-tables", "a", [[0.0], [2.0], [0.0]])
    model.get_layer("lr_linear-numbers").set_weights([np.array([[0.5]])])
    model.get_layer("lr_probability").set_weights([np.array([-1.0])])
    x = {"a": np.array([1, 2]), "n": np.array([-2.0, 2.0], "float32")}
    # 2 - 1 - 1 = 0 and 0 + 1 - 1 = 0
    np.testing.assert_array_equal(array(model(x)["probability"]), [[0.5], [0.5]])


def test_starts_at_one_half_with_a_weight_a_value():
    model = build_lr(FEATURES)
    np.testing.assert_array_equal(array(model(X)["probability"]), 0.5)
    # user ceil(40 / 6) + 6, item 9, genres 6, two numbers, city 5 + 1, bias
    assert model.count_params() == 13 + 9 + 6 + 2 + 6 + 1


def test_missing_number_is_loud():
    check_missing_number_is_loud(build_lr)


def test_gradients_of_tables_are_sparse():
    model = build_lr(FEATURES, linear_regularizer="l2")
    check_sparse_gradients(model, tables=5)
    assert len(model.losses) == 5  # four tables, one a batch, and the numbers


def test_does_not_learn_a_product():
    assert learned_auc(build_lr) == pytest.approx(0.5, abs=0.1)


def test_regularizer_by_hand():
    model = build_lr([NumericFeature("n")], linear_regularizer=keras.regularizers.L2(3))
    model.get_layer("lr_linear-numbers").set_weights([np.array([[2.0]])])
    assert float(sum(model.losses)) == pytest.approx(12.0)


def test_says_what_was_given():
    with pytest.raises(ValueError, match="`features` must hold at least one feature"):
        build_lr([])
    with pytest.raises(ValueError, match=r"distinct names.*\['item'\]"):
        build_lr([FEATURES[2]] * 2)
    with pytest.raises(TypeError, match="`features` must hold.*'item'"):
        build_lr(["item"])
