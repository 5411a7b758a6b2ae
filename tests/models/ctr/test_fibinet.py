import keras
import numpy as np
import pytest
from golden_files import assert_close, golden, load
from helpers import array, check_model, field_table, randomize, set_field_table

from keras_recsys import CategoricalFeature, NumericFeature, SequenceFeature, layers
from keras_recsys.models import build_fibinet

RNG = np.random.default_rng(0)
FEATURES = [
    CategoricalFeature("user", 50, embedding="qr"),
    CategoricalFeature("movie", 30, table="movies", out_of_range="oov"),
    SequenceFeature("seen", 30, pooling="sqrtn", table="movies", out_of_range="oov"),
    SequenceFeature("genres", 8, max_len=3),
    NumericFeature("age", normalization="zscore", mean=40.0, std=12.0),
    NumericFeature("price", normalization="log"),
    CategoricalFeature("hour", 24, embedding=layers.FullEmbedding),
]
INPUTS = {
    "user": np.array([3, 49, 0, 7], "int32"),
    "movie": np.array([29, 1, 99, 4], "int32"),
    "seen": np.array([[1, 2, 0, 0], [0] * 4, [5, 0, 6, 29], [9, 9, 9, 9]], "int32"),
    "genres": np.array([[1, 2, 0], [0, 0, 0], [7, 0, 0], [3, 4, 5]], "int32"),
    "age": np.array([20.0, 60.0, 35.0, 41.0], "float32"),
    "price": np.array([0.0, -1.0, 1e6, 12.0], "float32"),
    "hour": np.array([0, 23, 12, 5], "int32"),
}


def simple(count=3):
    return [CategoricalFeature(f"c{i}", 10) for i in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"dropout": 0.3, "seed": 1, "hidden_units": (8, 4)},
        {"numeric_inputs": "dnn", "bilinear_type": "each", "hidden_units": (8,)},
        {"hidden_units": (), "bilinear_type": "all"},
        {"deep": False, "senet_activation": "sigmoid"},
        {"deep": False, "share_bilinear": True, "bilinear_type": "each"},
        {
            "raw_interaction": "hadamard",
            "senet_activation": "sigmoid",
            "reduction_ratio": 1,
            "hidden_units": (4,),
        },
    ],
    ids=["deep", "dnn_numbers", "linear_head", "shallow", "shared", "hadamard"],
)
def test_contract(arguments, tmp_path):
    check_model(
        lambda **names: build_fibinet(FEATURES, embedding_dim=6, **arguments, **names),
        INPUTS,
        tmp_path,
    )


def fibinet_loop(fields, senet, kernels, linear, dnn):
    """Section by section as the paper draws it, in float64 NumPy."""
    reduction, expansion = senet
    importance = np.maximum(np.maximum(fields.mean(-1) @ reduction, 0) @ expansion, 0)
    parts = []
    for branch, kernel in zip(
        (fields, fields * importance[..., None]), kernels, strict=True
    ):
        pair = 0
        for i in range(fields.shape[1]):
            for j in range(i + 1, fields.shape[1]):
                parts.append((branch[:, i] @ kernel[pair]) * branch[:, j])
                pair += 1
    x = np.concatenate(parts, axis=-1)
    if dnn is None:
        logit = x.sum(axis=-1)
    else:
        *hidden, last = dnn
        for kernel, bias in hidden:
            x = np.maximum(x @ kernel + bias, 0)
        logit = (x @ last)[:, 0]
    return 1 / (1 + np.exp(-(logit + linear)))


@pytest.mark.parametrize("deep", [True, False])
def test_equals_the_loop(deep):
    model = build_fibinet(simple(4), embedding_dim=3, hidden_units=(5, 2), deep=deep)
    randomize(model, RNG, scale=0.5)
    inputs = {f"c{i}": np.array([i, 9, 4], "int32") for i in range(4)}
    weights = {
        w.path.removeprefix("fibinet_"): array(w).astype("float64")
        for w in model.weights
    }
    fields = np.stack(
        [
            field_table(model, "fibinet_fields-tables", c)[ids]
            for c, ids in inputs.items()
        ],
        axis=1,
    )
    linear = sum(
        field_table(model, "fibinet_linear-tables", c)[i, 0] for c, i in inputs.items()
    )
    linear = linear + weights["probability/bias"]
    senet = weights["senet/reduction_kernel"], weights["senet/expansion_kernel"]
    if deep:
        part = "bilinear_dense_0"
        kernels = weights[f"{part}/kernel"], weights[f"{part}/weighed_kernel"]
        halves = weights[f"{part}/projection"], weights[f"{part}/weighed_projection"]
        first = np.concatenate(halves)
        dnn = [
            (first, weights[f"{part}/bias"]),
            (weights["dense_1/kernel"], weights["dense_1/bias"]),
            weights["deep_logit/kernel"],
        ]
    else:
        kernels = weights["raw_sum/kernel"], weights["senet_sum/kernel"]
        dnn = None
    want = fibinet_loop(fields, senet, kernels, linear, dnn)
    got = array(model(inputs)["probability"])[:, 0]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bilinear_type", ["all", "each", "interaction"])
@golden("fibinet", having=["bil_all_shallow_sum", "senet_W1"])
def test_shallow_model_of_the_paper(path, bilinear_type):
    """Embeddings come from the file: one id a sample, its row of the table."""
    arrays = load(path)
    batch_size, num_fields, dim = arrays["emb"].shape
    features = [CategoricalFeature(f"f{i}", batch_size) for i in range(num_fields)]
    model = build_fibinet(
        features,
        embedding_dim=dim,
        bilinear_type=bilinear_type,
        reduction_ratio=float(arrays["reduction_ratio"]),
        deep=False,
        name="m",
    )
    for i in range(num_fields):
        set_field_table(model, "m_fields-tables", f"f{i}", arrays["emb"][:, i])
    senet = model.get_layer("m_senet")
    senet.set_weights([arrays["senet_W1"], arrays["senet_W2"]])
    for branch in ("raw", "senet"):
        kernel = arrays[f"bil_{bilinear_type}_W_{branch}"]
        kernel = kernel[:-1] if bilinear_type == "each" else kernel
        model.get_layer(f"m_{branch}_sum").set_weights([kernel])
    ids = {f"f{i}": np.arange(batch_size, dtype="int32") for i in range(num_fields)}
    got = array(model(ids)["probability"])[:, 0]
    want = 1 / (1 + np.exp(-arrays[f"bil_{bilinear_type}_shallow_sum"]))
    assert_close(got, want, "float32")


def test_padding_never_counts():
    model = build_fibinet(FEATURES, embedding_dim=4, hidden_units=(4,))
    randomize(model, RNG)
    want = array(model(INPUTS)["probability"])
    table = model.get_layer("fibinet_fields_genres")
    rows = table.get_weights()[0].copy()
    rows[0] = 100.0
    table.set_weights([rows])
    longer = {**INPUTS, "seen": np.pad(INPUTS["seen"], ((0, 0), (2, 3)))}
    np.testing.assert_allclose(array(model(longer)["probability"]), want, rtol=1e-6)


def test_numbers_stay_out_of_the_fields_on_request():
    field = build_fibinet(FEATURES, embedding_dim=4, hidden_units=(4,))
    dnn = build_fibinet(
        FEATURES, embedding_dim=4, hidden_units=(4,), numeric_inputs="dnn", name="dnn"
    )
    assert field.get_layer("fibinet_fields").output.shape == (None, 7, 4)
    assert dnn.get_layer("dnn_fields").output.shape == (None, 5, 4)
    assert dnn.get_layer("dnn_numeric_dense_0").kernel.shape == (2, 4)


def test_branches_share_their_matrices_on_request():
    count = {}
    for share in (False, True):
        for deep in (False, True):
            model = build_fibinet(
                simple(4),
                embedding_dim=3,
                hidden_units=(2,),
                share_bilinear=share,
                deep=deep,
                name="m",
            )
            count[share, deep] = model.count_params()
    matrices = 6 * 3 * 3
    assert count[False, True] - count[True, True] == matrices
    assert count[False, False] - count[True, False] == matrices


def test_learns(tmp_path):
    """An interaction that no linear model has: do two ids agree?"""
    rng = np.random.default_rng(1)
    x = {f"c{i}": rng.integers(0, 2, 2000).astype("int32") for i in range(2)}
    y = (x["c0"] == x["c1"]).astype("float32")[:, None]
    features = [CategoricalFeature(name, 2) for name in x]
    model = build_fibinet(features, embedding_dim=4, hidden_units=(8,), seed=0)
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["AUC"])
    model.fit(x, y, epochs=12, verbose=0)
    assert model.evaluate(x, y, verbose=0, return_dict=True)["AUC"] > 0.99


def test_first_layer_starts_like_one_dense_layer():
    model = build_fibinet(simple(8), embedding_dim=8, hidden_units=(64,))
    rows = 2 * 28 * 8
    limit = (6 / (rows + 64)) ** 0.5
    layer = model.get_layer("fibinet_bilinear_dense_0")
    for projection in (layer.projection, layer.weighed_projection):
        kernel = array(projection)
        assert np.abs(kernel).max() <= limit
        assert kernel.std() == pytest.approx(limit / 3**0.5, rel=0.05)


@pytest.mark.parametrize(
    ("features", "arguments", "message"),
    [
        ([], {}, "`features` must hold at least one feature"),
        (simple(1), {}, r"at least two fields.*\['c0'\]"),
        (simple(1) * 2, {}, r"distinct names.*\['c0'\]"),
        (simple(), {"bilinear_type": "both"}, "`bilinear_type` must be one of"),
        (simple(), {"raw_interaction": "fm"}, "`raw_interaction` must be one of.*'fm'"),
        (simple(), {"numeric_inputs": "x"}, "`numeric_inputs` must be one of.*'x'"),
        (simple(), {"dropout": 1.0}, r"`dropout` must be a number in \[0, 1\).*1.0"),
        (
            simple(),
            {"share_bilinear": True, "raw_interaction": "hadamard"},
            "`share_bilinear` must be False",
        ),
        (
            simple(),
            {"deep": False, "numeric_inputs": "dnn"},
            "`numeric_inputs` must be 'field' where `deep` is False",
        ),
        (
            [NumericFeature("a"), NumericFeature("b"), *simple(1)],
            {"numeric_inputs": "dnn"},
            r"at least two fields.*\['c0'\]",
        ),
    ],
)
def test_says_what_was_given(features, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_fibinet(features, **arguments)


def test_takes_features_only():
    with pytest.raises(TypeError, match="`features` must hold.*'c0'"):
        build_fibinet(["c0", "c1"])
