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

from keras_recsys.models import build_ffm


def test_contract(tmp_path):
    check_model(
        lambda **names: build_ffm(
            FEATURES,
            embedding_dim=2,
            embeddings_regularizer="l2",
            linear_regularizer="l2",
            **names,
        ),
        X,
        tmp_path,
    )


def ffm_loop(twin):
    """Entry `[i, j]` of the vectors of field `i` faces field `j`."""
    v = twin.fields()
    v = v.reshape(len(v), len(v), -1)
    pairs = sum(v[i, j] @ v[j, i] for j in range(len(v)) for i in range(j))
    return twin.linear() + pairs


@pytest.mark.parametrize("names", [IDS + NUMBERS, IDS, NUMBERS, ("price", "user")])
def test_equals_the_loop(names):
    features, _ = chosen(names)
    check_twin(build_ffm(features, embedding_dim=3), ffm_loop)


@golden("fibinet", having=["ffm_emb", "ffm"])
def test_second_order_of_the_reference(path):
    arrays = load(path)
    batch_size, num_fields, _, dim = arrays["ffm_emb"].shape
    vectors = arrays["ffm_emb"].reshape(batch_size, num_fields, num_fields * dim)
    model, x = golden_model(build_ffm, vectors, embedding_dim=dim)
    want = 1 / (1 + np.exp(-arrays["ffm"]))
    assert_close(array(model(x)["probability"])[:, 0], want, "float32")


def test_a_vector_a_pair_of_fields():
    model = build_ffm(simple(3), embedding_dim=4)
    assert model.get_layer("ffm_fields").output.shape == (None, 3, 3 * 4)
    assert model.count_params() == 30 * (3 * 4 + 1) + 1


def test_missing_number_is_loud():
    check_missing_number_is_loud(build_ffm, embedding_dim=2)


def test_gradients_of_tables_are_sparse():
    model = build_ffm(FEATURES, embedding_dim=2, embeddings_regularizer="l2")
    check_sparse_gradients(model, tables=10)


def test_learns_a_product_of_two_features():
    assert learned_auc(build_ffm, embedding_dim=4) > 0.97


@pytest.mark.parametrize(
    ("features", "arguments", "message"),
    [
        ([], {}, "`features` must hold at least one feature"),
        (simple(1), {}, r"at least two fields.*\['c0'\]"),
        (simple(), {"embedding_dim": -1}, "`embedding_dim` must be.*=-1"),
    ],
)
def test_says_what_was_given(features, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_ffm(features, **arguments)


def test_takes_features_and_whole_widths_only():
    with pytest.raises(TypeError, match="`features` must hold.*'c0'"):
        build_ffm(["c0", "c1"])
    with pytest.raises(TypeError, match="`embedding_dim` must be.*=2.5"):
        build_ffm(simple(), embedding_dim=2.5)
