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
    golden_model,
    learned_auc,
    output_of,
    simple,
)
from golden_files import assert_close, golden, load
from helpers import array, check_model

from keras_recsys.models import build_fibinet_plus

SMALL = {"embedding_dim": 4, "bilinear_dim": 3, "hidden_units": (5, 4)}


def test_contract(tmp_path):
    check_model(
        lambda **names: build_fibinet_plus(
            FEATURES,
            **SMALL,
            bilinear_type="each",
            dropout=0.3,
            seed=1,
            embeddings_regularizer="l2",
            **names,
        ),
        X,
        tmp_path,
    )


def normalized_loop(twin, v):
    """Layer norm of each field of ids, batch norm of each entry of a number."""
    names = list(twin.x)
    out = v.copy()
    ids = [i for i, name in enumerate(names) if name in IDS]
    numbers = [i for i, name in enumerate(names) if name in NUMBERS]
    width = v.shape[1]
    for place, i in enumerate(ids):
        part = slice(place * width, (place + 1) * width)
        gamma, beta = (w[part] for w in twin.weights("layer_norm"))
        centered = v[i] - v[i].mean()
        out[i] = centered / np.sqrt((centered**2).mean() + 1e-3) * gamma + beta
    for place, i in enumerate(numbers):
        part = slice(place * width, (place + 1) * width)
        gamma, beta, mean, variance = (w[part] for w in twin.weights("batch_norm"))
        out[i] = (v[i] - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    return out


def branches_loop(twin, v, bilinear_type, num_groups):
    kernel, projection = twin.weights("bilinear_plus")
    forms = []
    for i in range(len(v)):
        for j in range(i + 1, len(v)):
            matrix = {
                "all": lambda i: kernel,
                "each": lambda i: kernel[i],
                "interaction": lambda i: kernel[len(forms)],
            }[bilinear_type](i)
            forms.append(v[i] @ matrix @ v[j])
    senet = twin.weights("senet_plus")
    reduction, reduction_bias, expansion, expansion_bias, gamma, beta = senet
    groups = v.reshape(len(v), num_groups, -1)
    squeezed = np.hstack([groups.max(-1), groups.mean(-1)]).ravel()
    hidden = np.maximum(squeezed @ reduction + reduction_bias, 0)
    weights = hidden @ expansion + expansion_bias
    weighed = weights * v.ravel() + v.ravel()
    centered = weighed - weighed.mean()
    weighed = centered / np.sqrt((centered**2).mean() + 1e-3) * gamma + beta
    return np.concatenate([forms @ projection, weighed])


@pytest.mark.parametrize(
    ("names", "arguments"),
    [
        (IDS + NUMBERS, {}),
        (IDS + NUMBERS, {"bilinear_type": "each", "num_groups": 4}),
        (IDS + NUMBERS, {"bilinear_type": "interaction", "normalize": False}),
        (IDS, {"hidden_units": ()}),
        (NUMBERS, {"reduction_ratio": 1, "num_groups": 1, "hidden_units": (9, 6)}),
    ],
)
def test_equals_the_loop(names, arguments):
    settings = {**SMALL, **arguments}

    def logit(twin):
        v = twin.fields()
        if settings.get("normalize", True):
            v = normalized_loop(twin, v)
        x = branches_loop(
            twin,
            v,
            settings.get("bilinear_type", "all"),
            settings.get("num_groups", 2),
        )
        return twin.unit(twin.hidden(x, len(settings["hidden_units"])))

    check_twin(build_fibinet_plus(chosen(names)[0], **settings), logit)


@pytest.mark.parametrize("bilinear_type", ["all", "each", "interaction"])
@golden("fibinet", having=["bilplus_all_out", "senet_plus_out"])
def test_branches_of_the_reference(path, bilinear_type):
    arrays = load(path)
    kernel = arrays[f"bilplus_{bilinear_type}_W"]
    projection = arrays[f"bilplus_{bilinear_type}_lowrank_W"]
    model, x = golden_model(
        build_fibinet_plus,
        arrays["emb"],
        embedding_dim=arrays["emb"].shape[-1],
        bilinear_type=bilinear_type,
        bilinear_dim=projection.shape[1],
        num_groups=int(arrays["num_groups"]),
        reduction_ratio=float(arrays["reduction_ratio"]),
        normalize=False,
        hidden_units=(),
    )
    kernel = kernel[:-1] if bilinear_type == "each" else kernel
    model.get_layer("m_bilinear_plus").set_weights([kernel, projection])
    names = ("se_W1", "se_b1", "se_W2", "se_b2", "ln_gamma", "ln_beta")
    model.get_layer("m_senet_plus").set_weights([arrays[name] for name in names])
    both = array(output_of(model, "joined")(x))
    want = [arrays[f"bilplus_{bilinear_type}_out"], arrays["senet_plus_out"]]
    assert_close(both, np.hstack(want), "float32")


def test_takes_whole_widths_only():
    with pytest.raises(TypeError, match="`bilinear_dim` must be.*=None"):
        build_fibinet_plus(simple(), bilinear_dim=None)


def test_training_normalizes_numbers_over_the_batch():
    model = build_fibinet_plus(FEATURES, **SMALL)
    numbers = keras.Model(
        model.input, model.get_layer("fibinet_plus_number-normal-fields").output
    )
    got = array(numbers(X, training=True))
    assert got.shape == (6, 2, 4)
    np.testing.assert_allclose(got.mean(axis=0), 0, atol=1e-5)


def test_missing_number_is_loud():
    check_missing_number_is_loud(build_fibinet_plus, **SMALL)


def test_missing_number_is_loud_without_normalization():
    check_missing_number_is_loud(
        build_fibinet_plus, ("item", "price"), **SMALL, normalize=False
    )


def test_gradients_of_tables_are_sparse():
    model = build_fibinet_plus(FEATURES, **SMALL, embeddings_regularizer="l2")
    check_sparse_gradients(model, tables=5)


def test_learns_a_product_of_two_features():
    assert learned_auc(build_fibinet_plus, **SMALL, seed=0) > 0.97


@pytest.mark.parametrize(
    ("features", "arguments", "message"),
    [
        ([], {}, "`features` must hold at least one feature"),
        (simple(1), {}, r"at least two fields.*\['c0'\]"),
        (simple(), {"bilinear_type": "both"}, "`bilinear_type` must be one of.*'both'"),
        (simple(), {"bilinear_dim": 0}, "`bilinear_dim` must be.*=0"),
        (simple(), {"num_groups": 3}, "`num_groups` must divide.*16.*=3"),
        (simple(), {"reduction_ratio": 0}, "`reduction_ratio` must be.*=0"),
        (simple(), {"dropout": 1.0}, r"`dropout` must be a number in \[0, 1\).*1.0"),
    ],
)
def test_says_what_was_given(features, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_fibinet_plus(features, **arguments)
