import numpy as np
import pytest
from helpers import BACKEND, array, check_layer, count_nodes, output_and_gradients

from keras_recsys.layers import BilinearDense, BilinearInteraction

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 5, 4)).astype("float32")
WEIGHTS = RNG.normal(size=(3, 5)).astype("float32")
TYPES = ("all", "each", "interaction", "hadamard")


@pytest.mark.parametrize("bilinear_type", TYPES)
def test_contract(bilinear_type, tmp_path):
    check_layer(
        lambda: BilinearDense(6, bilinear_type, activation="tanh"),
        X,
        tmp_path,
        call={"field_weights": WEIGHTS},
    )


def test_contract_without_weights(tmp_path):
    check_layer(lambda: BilinearDense(6, use_bias=False), X, tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        {"bilinear_type": ("hadamard", "each")},
        {"bilinear_type": "each", "share_kernel": True},
    ],
    ids=["mixed", "shared"],
)
def test_contract_of_the_branches(arguments, tmp_path):
    check_layer(
        lambda: BilinearDense(6, **arguments),
        X,
        tmp_path,
        call={"field_weights": WEIGHTS},
    )


@pytest.mark.parametrize(
    ("types", "share"),
    [
        *((one, share) for one in TYPES for share in (False, True)),
        (("hadamard", "each"), False),
        (("all", "interaction"), False),
    ],
)
def test_weighed_pairs_are_pairs_of_weighed_fields(types, share):
    both = BilinearDense(6, types, share_kernel=share)
    both.build(X.shape, WEIGHTS.shape)
    both.set_weights([RNG.normal(size=w.shape) for w in both.weights])
    want = array(both.bias)
    first, second = (types, types) if isinstance(types, str) else types
    for kind, x, kernel, projection in (
        (first, X, both.kernel, both.projection),
        (
            second,
            X * WEIGHTS[..., None],
            both.weighed_kernel,
            both.weighed_projection,
        ),
    ):
        one = BilinearDense(6, kind, use_bias=False)
        one.build(X.shape)
        one.set_weights([array(w) for w in (kernel, projection) if w is not None])
        want = want + array(one(x))
    got = array(both(X, field_weights=WEIGHTS))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_fields", [2, 5])
@pytest.mark.parametrize("bilinear_type", TYPES)
def test_equals_pairs_and_a_dense_layer(bilinear_type, num_fields):
    x = X[:, :num_fields]
    fused = BilinearDense(6, bilinear_type)
    fused.build(x.shape)
    weights = [RNG.normal(size=w.shape).astype("float32") for w in fused.weights]
    fused.set_weights(weights)
    pairs = BilinearInteraction(bilinear_type)
    pairs.build(x.shape)
    if bilinear_type != "hadamard":
        kernel = weights[0]
        pairs.set_weights([kernel[0] if bilinear_type == "all" else kernel])
    projection, bias = weights[-2:]
    flat = array(pairs(x)).reshape(3, -1).astype("float64")
    coef = RNG.normal(size=(3, 6)).astype("float32")
    output, gradients = output_and_gradients(fused, x, coef, wrt_inputs=True)
    np.testing.assert_allclose(output, flat @ projection + bias, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradients[-2], flat.T @ coef, rtol=1e-4, atol=1e-4)
    upstream = (coef @ projection.T).reshape(array(pairs(x)).shape)
    _, want = output_and_gradients(pairs, x, upstream, wrt_inputs=True)
    np.testing.assert_allclose(gradients[0], want[0], rtol=1e-3, atol=1e-3)
    if len(want) > 1:
        np.testing.assert_allclose(
            gradients[1].reshape(want[1].shape), want[1], rtol=1e-3, atol=1e-3
        )


def test_by_hand():
    x = np.array([[[1, 2], [3, 4], [5, 6]]], "float32")
    layer = BilinearDense(1, "all")
    layer.build(x.shape)
    kernel = [[[0, 1], [2, 0]]]
    projection = [[1], [10], [1], [1], [0], [1]]
    layer.set_weights([np.array(w) for w in (kernel, projection, [0.5])])
    # pairs 12, 4, 20, 6, 40, 18
    np.testing.assert_allclose(array(layer(x)), [[12 + 40 + 20 + 6 + 18 + 0.5]])


def test_shared_matrices_are_one_weight():
    layer = BilinearDense(6, "interaction", share_kernel=True)
    layer(X, field_weights=WEIGHTS)
    assert [w.name for w in layer.weights] == [
        "kernel",
        "projection",
        "weighed_projection",
        "bias",
    ]


@pytest.mark.skipif(
    BACKEND != "tensorflow", reason="counts nodes of a TensorFlow graph"
)
@pytest.mark.parametrize("bilinear_type", TYPES)
def test_graph_does_not_grow_with_the_fields(bilinear_type):
    def nodes(num_fields):
        x = np.ones((2, num_fields, 4), "float32")
        return count_nodes(BilinearDense(3, bilinear_type), x)

    assert nodes(20) == nodes(39)


def test_says_what_was_given():
    with pytest.raises(TypeError, match="`units` must be an integer.*units=2.5"):
        BilinearDense(2.5)
    with pytest.raises(ValueError, match="`units` must be at least 1.*units=0"):
        BilinearDense(0)
    with pytest.raises(ValueError, match="`bilinear_type` must be one of.*'both'"):
        BilinearDense(2, ("all", "both"))
    with pytest.raises(ValueError, match="must be one type or a tuple of two"):
        BilinearDense(2, ("all",) * 3)
    with pytest.raises(ValueError, match="must be one type where `share_kernel`"):
        BilinearDense(2, ("all", "each"), share_kernel=True)
    with pytest.raises(ValueError, match="must be one type where no `field_weights`"):
        BilinearDense(2, ("all", "each"))(X)
    with pytest.raises(ValueError, match="at least two fields"):
        BilinearDense(2)(X[:, :1])
