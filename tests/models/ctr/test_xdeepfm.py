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

from keras_recsys.features import NumericFeature
from keras_recsys.models import build_xdeepfm

SMALL = {"embedding_dim": 3, "cin_units": (4, 3), "hidden_units": (5, 4)}


def test_contract(tmp_path):
    check_model(
        lambda **names: build_xdeepfm(
            FEATURES,
            **SMALL,
            cin_activation="tanh",  # of few rows, ReLU may stop all
            dropout=0.3,
            seed=1,
            embeddings_regularizer="l2",
            linear_regularizer="l2",
            **names,
        ),
        X,
        tmp_path,
    )


def cin_loop(v, weights, units, split_half, activate):
    """Section 3.3 of the paper, one row of a layer at a time."""
    kernels, biases = weights[0::2], weights[1::2]
    x, output = v, []
    for layer, size in enumerate(units):
        rows = np.zeros((size, v.shape[1]))
        for h in range(size):
            rows[h] = biases[layer][h]
            for i in range(len(v)):
                for j in range(len(x)):
                    rows[h] += kernels[layer][i, j, h] * v[i] * x[j]
        rows = activate(rows)
        if split_half and layer < len(units) - 1:
            x, rows = rows[: size // 2], rows[size // 2 :]
        else:
            x = rows
        output.append(rows.sum(axis=1))
    return np.concatenate(output)


@pytest.mark.parametrize(
    ("names", "arguments"),
    [
        (IDS + NUMBERS, {}),
        (IDS + NUMBERS, {"numeric_inputs": "dnn"}),
        (NUMBERS, {"cin_split_half": False, "cin_units": (3, 3, 2)}),
        (IDS, {"cin_activation": "linear", "cin_units": (4,), "hidden_units": ()}),
        (IDS, {"cin_split_half": False, "cin_activation": "tanh"}),
    ],
)
def test_equals_the_loop(names, arguments):
    settings = {**SMALL, **arguments}
    activate = {
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
        "linear": lambda x: x,
    }[settings.get("cin_activation", "relu")]

    def logit(twin):
        if "numeric_inputs" in arguments:
            v = twin.fields(names=[name for name in twin.x if name in IDS])
            x = np.concatenate([v.ravel(), twin.numbers()])
        else:
            v = twin.fields()
            x = v.ravel()
        layer = twin.model.get_layer("xdeepfm_cin")
        weights = [
            array(w).astype("float64")
            for pair in zip(layer.kernels, layer.biases, strict=True)
            for w in pair
        ]
        split = settings.get("cin_split_half", True)
        cin = cin_loop(v, weights, settings["cin_units"], split, activate)
        deep = twin.unit(twin.hidden(x, len(settings["hidden_units"])))
        return twin.linear() + twin.unit(cin, "cin_logit") + deep

    check_twin(build_xdeepfm(chosen(names)[0], **settings), logit)


@golden("fibinet", having=["cin_W1", "cin_W2", "cin_fc_W", "cin_logit"])
def test_cin_of_the_reference(path):
    arrays = load(path)
    num_fields, dim = arrays["emb"].shape[1:]
    model, x = golden_model(
        build_xdeepfm,
        arrays["emb"],
        embedding_dim=dim,
        cin_units=(len(arrays["cin_W1"]), len(arrays["cin_W2"])),
        cin_split_half=False,
        cin_activation="linear",
        hidden_units=(),
    )
    cin = model.get_layer("m_cin")
    for layer, name in enumerate("12"):
        kernel = arrays[f"cin_W{name}"].T.reshape(cin.kernels[layer].shape)
        cin.kernels[layer].assign(kernel)
        cin.biases[layer].assign(arrays[f"cin_b{name}"])
    model.get_layer("m_cin_logit").set_weights([arrays["cin_fc_W"].T])
    model.get_layer("m_probability").set_weights([arrays["cin_fc_b"]])
    model.get_layer("m_deep_logit").set_weights([np.zeros((num_fields * dim, 1))])
    want = 1 / (1 + np.exp(-arrays["cin_logit"]))
    assert_close(array(model(x)["probability"]), want, "float32")


@pytest.mark.parametrize(
    ("names", "numeric_inputs"),
    [(("item", "price"), "field"), (("item", "city", "price"), "dnn")],
)
def test_missing_number_is_loud(names, numeric_inputs):
    check_missing_number_is_loud(
        build_xdeepfm, names, **SMALL, numeric_inputs=numeric_inputs
    )


def test_gradients_of_tables_are_sparse():
    model = build_xdeepfm(FEATURES, **SMALL, embeddings_regularizer="l2")
    check_sparse_gradients(model, tables=10)


def test_cin_learns_a_product_of_two_features():
    settings = {"embedding_dim": 4, "cin_units": (8,), "hidden_units": ()}
    assert learned_auc(build_xdeepfm, **settings) > 0.97


@pytest.mark.parametrize(
    ("features", "arguments", "message"),
    [
        ([], {}, "`features` must hold at least one feature"),
        (simple(1), {}, r"at least two fields.*\['c0'\]"),
        (
            [NumericFeature("a"), NumericFeature("b"), *simple(1)],
            {"numeric_inputs": "dnn"},
            r"at least two fields.*\['c0'\]",
        ),
        (simple(), {"numeric_inputs": "x"}, "`numeric_inputs` must be one of.*'x'"),
        (simple(), {"cin_units": ()}, r"`units` must hold at least one.*\(\)"),
        (simple(), {"cin_units": (3, 2)}, r"`units` must be even.*\(3, 2\)"),
        (simple(), {"dropout": 1.0}, r"`dropout` must be a number in \[0, 1\).*1.0"),
    ],
)
def test_says_what_was_given(features, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_xdeepfm(features, **arguments)
