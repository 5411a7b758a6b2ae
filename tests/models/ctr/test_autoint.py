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
    simple,
)
from helpers import check_model

from keras_recsys.models import build_autoint

SMALL = {"embedding_dim": 4, "num_layers": 2, "num_heads": 2, "key_dim": 3}


def test_contract(tmp_path):
    check_model(
        lambda **names: build_autoint(
            FEATURES,
            **SMALL,
            hidden_units=(5,),
            dropout=0.3,
            seed=1,
            embeddings_regularizer="l2",
            **names,
        ),
        X,
        tmp_path,
    )


def attend_loop(v, kernels, num_heads):
    """Equations 5 to 8 of the paper, one field of one head at a time."""
    query, key, value, residual = kernels
    width = query.shape[1] // num_heads
    output = []
    for m in range(len(v)):
        heads = []
        for h in range(num_heads):
            part = slice(h * width, (h + 1) * width)
            scores = np.array([(v[m] @ query[:, part]) @ (e @ key[:, part]) for e in v])
            weights = np.exp(scores) / np.exp(scores).sum()
            heads.append(
                sum(w * (e @ value[:, part]) for w, e in zip(weights, v, strict=True))
            )
        output.append(np.maximum(np.concatenate(heads) + v[m] @ residual, 0))
    return np.array(output)


@pytest.mark.parametrize(
    ("names", "arguments"),
    [
        (IDS + NUMBERS, {"hidden_units": (5, 4)}),
        (IDS + NUMBERS, {}),
        (NUMBERS, {"num_layers": 3, "num_heads": 1, "key_dim": 6}),
        (IDS, {"num_layers": 1, "num_heads": 3, "key_dim": 2}),
    ],
)
def test_equals_the_loop(names, arguments):
    settings = {**SMALL, **arguments}

    def logit(twin):
        v = fields = twin.fields()
        for i in range(settings["num_layers"]):
            kernels = twin.weights(f"interacting_{i}")
            v = attend_loop(v, kernels, settings["num_heads"])
        total = twin.unit(v.ravel(), "interacting_logit")
        if "hidden_units" in settings:
            total += twin.unit(twin.hidden(fields.ravel(), 2))
        return total

    check_twin(build_autoint(chosen(names)[0], **settings), logit)


def test_has_no_linear_part_and_no_network_by_default():
    model = build_autoint(simple(3), **SMALL)
    names = [layer.name for layer in model.layers]
    assert not any("linear" in name or "dense" in name for name in names)
    # tables, two layers of four kernels, the logit of three fields, the bias
    assert model.count_params() == 30 * 4 + 4 * 4 * 6 + 4 * 6 * 6 + 3 * 6 + 1


@pytest.mark.parametrize("hidden_units", [(), (5,)])
def test_missing_number_is_loud(hidden_units):
    check_missing_number_is_loud(build_autoint, **SMALL, hidden_units=hidden_units)


def test_gradients_of_tables_are_sparse():
    model = build_autoint(FEATURES, **SMALL, embeddings_regularizer="l2")
    check_sparse_gradients(model, tables=5)


def test_learns_a_product_of_two_features():
    assert learned_auc(build_autoint, **SMALL) > 0.97


@pytest.mark.parametrize(
    ("features", "arguments", "message"),
    [
        ([], {}, "`features` must hold at least one feature"),
        (simple(1), {}, r"at least two fields.*\['c0'\]"),
        (simple(), {"num_layers": 0}, "`num_layers` must be.*=0"),
        (simple(), {"num_heads": 0}, "`num_heads` must be.*=0"),
        (simple(), {"key_dim": 0}, "`key_dim` must be.*=0"),
        (
            simple(),
            {"dropout": 1.0, "hidden_units": (3,)},
            r"`dropout` must be a number in \[0, 1\).*1.0",
        ),
    ],
)
def test_says_what_was_given(features, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_autoint(features, **arguments)
