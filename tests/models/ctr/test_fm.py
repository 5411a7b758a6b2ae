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
    golden_model,
    learned_auc,
    simple,
)
from golden_files import assert_close, golden, load
from helpers import array, check_model

from keras_recsys.models import build_fm


def test_contract(tmp_path):
    check_model(
        lambda **names: build_fm(
            FEATURES,
            embedding_dim=4,
            embeddings_regularizer="l2",
            linear_regularizer="l2",
            **names,
        ),
        X,
        tmp_path,
    )


def fm_loop(twin):
    v = twin.fields()
    pairs = sum(v[i] @ v[j] for j in range(len(v)) for i in range(j))
    return twin.linear() + pairs


@pytest.mark.parametrize("names", [IDS + NUMBERS, IDS, NUMBERS, ("price", "user")])
def test_equals_the_loop(names):
    features, _ = chosen(names)
    check_twin(build_fm(features, embedding_dim=3), fm_loop)


@golden("fibinet", having=["fm_second_order", "emb"])
def test_second_order_of_the_reference(path):
    arrays = load(path)
    model, x = golden_model(
        build_fm, arrays["emb"], embedding_dim=arrays["emb"].shape[-1]
    )
    want = 1 / (1 + np.exp(-arrays["fm_second_order"]))
    assert_close(array(model(x)["probability"]), want, "float32")


def test_parameters_by_hand():
    # A vector and a weight each of 13 rows of user, 9 items, 6 genres, two numbers and
    # 5 cities and one more; and a bias.
    model = build_fm(FEATURES, embedding_dim=4)
    assert model.count_params() == (13 + 9 + 6 + 2 + 6) * (4 + 1) + 1


def test_missing_number_is_loud():
    check_missing_number_is_loud(build_fm, embedding_dim=3)


def test_gradients_of_tables_are_sparse():
    model = build_fm(
        FEATURES, embedding_dim=3, embeddings_regularizer="l2", linear_regularizer="l2"
    )
    check_sparse_gradients(model, tables=10)


def test_learns_a_product_of_two_features():
    assert learned_auc(build_fm, embedding_dim=4) > 0.97


@pytest.mark.parametrize(
    ("features", "arguments", "message"),
    [
        ([], {}, "`features` must hold at least one feature"),
        (simple(1), {}, r"at least two fields.*\['c0'\]"),
        (simple(1) * 2, {}, r"distinct names.*\['c0'\]"),
        (simple(), {"embedding_dim": 0}, "`embedding_dim` must be.*=0"),
    ],
)
def test_says_what_was_given(features, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_fm(features, **arguments)


def test_takes_features_only():
    with pytest.raises(TypeError, match="`features` must hold.*'c0'"):
        build_fm(["c0", "c1"])
