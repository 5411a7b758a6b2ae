import keras
import numpy as np
import pytest
from helpers import BACKEND, array, check_layer, count_nodes

from keras_recsys.layers import BilinearInteraction

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 5, 4)).astype("float32")
TYPES = ("all", "each", "interaction", "hadamard")


def pairs_loop(x, kernel, bilinear_type):
    """The formula of the docstring, one pair at a time, in float64."""
    x = x.astype("float64")
    num_fields = x.shape[1]
    out = []
    for i in range(num_fields):
        for j in range(i + 1, num_fields):
            matrix = {
                "all": lambda i: kernel,
                "each": lambda i: kernel[i],
                "interaction": lambda i: kernel[len(out)],
                "hadamard": lambda i: np.eye(x.shape[2]),
            }[bilinear_type](i)
            out.append((x[:, i] @ matrix) * x[:, j])
    return np.stack(out, axis=1)


def with_kernel(bilinear_type, shape=X.shape, **arguments):
    layer = BilinearInteraction(bilinear_type, **arguments)
    layer.build(shape)
    kernel = None
    if bilinear_type != "hadamard":
        kernel = RNG.normal(size=layer.kernel.shape)
        layer.set_weights([kernel])
    return layer, kernel


@pytest.mark.parametrize("reduction", [None, "sum"])
@pytest.mark.parametrize("bilinear_type", TYPES)
def test_contract(bilinear_type, reduction, tmp_path):
    check_layer(
        lambda: BilinearInteraction(bilinear_type, reduction=reduction),
        X,
        tmp_path,
        gradients=bilinear_type != "hadamard",
    )


@pytest.mark.parametrize("num_fields", [2, 3, 6])
@pytest.mark.parametrize("bilinear_type", TYPES)
def test_equals_the_loop(bilinear_type, num_fields):
    x = RNG.normal(size=(3, num_fields, 4)).astype("float32")
    layer, kernel = with_kernel(bilinear_type, x.shape)
    want = pairs_loop(x, kernel, bilinear_type)
    np.testing.assert_allclose(array(layer(x)), want, rtol=1e-5, atol=1e-5)
    total, _ = with_kernel(bilinear_type, x.shape, reduction="sum")
    total.set_weights(layer.get_weights())
    np.testing.assert_allclose(
        array(total(x))[:, 0], want.sum(axis=(1, 2)), rtol=1e-4, atol=1e-4
    )


def test_by_hand():
    x = np.array([[[1, 2], [3, 4], [5, 6]]], "float32")
    layer = BilinearInteraction("all")
    layer.build(x.shape)
    layer.set_weights([np.array([[0, 1], [2, 0]])])
    np.testing.assert_array_equal(array(layer(x)), [[[12, 4], [20, 6], [40, 18]]])


def test_types_agree_where_their_matrices_do():
    each, kernels = with_kernel("each")
    interaction, _ = with_kernel("interaction")
    interaction.set_weights([kernels[interaction.lefts]])
    np.testing.assert_allclose(
        array(interaction(X)), array(each(X)), rtol=1e-5, atol=1e-6
    )
    one, kernel = with_kernel("all")
    each.set_weights([np.stack([kernel] * 4)])
    np.testing.assert_allclose(array(each(X)), array(one(X)), rtol=1e-5, atol=1e-6)
    one.set_weights([np.eye(4)])
    hadamard, _ = with_kernel("hadamard")
    np.testing.assert_allclose(array(one(X)), array(hadamard(X)), rtol=1e-6)
    # ... and the sum of the Hadamard products is the second order of an FM.
    fm = 0.5 * ((X.sum(axis=1) ** 2) - (X**2).sum(axis=1)).sum(axis=1)
    got = array(BilinearInteraction("hadamard", reduction="sum")(X))[:, 0]
    np.testing.assert_allclose(got, fm, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("bilinear_type", "count"), [("all", 1), ("each", 38), ("interaction", 741)]
)
def test_counts_and_spread_of_the_matrices(bilinear_type, count):
    layer = BilinearInteraction(bilinear_type)
    layer.build((None, 39, 64 if count == 1 else 10))
    dim = layer.kernel.shape[-1]
    assert layer.count_params() == count * dim * dim
    kernel = layer.get_weights()[0]
    assert kernel.std() == pytest.approx(dim**-0.5, rel=0.1)
    if count > 1:
        assert np.abs(kernel[0] - kernel[1]).max() > 0


@pytest.mark.parametrize("initializer", ["orthogonal", "he_uniform", "random_normal"])
def test_every_matrix_is_drawn_for_itself(initializer):
    layer = BilinearInteraction(
        "interaction",
        kernel_initializer=keras.initializers.get(
            {"class_name": initializer, "config": {"seed": 3}}
        ),
    )
    layer.build((None, 4, 8))
    kernel = layer.get_weights()[0]
    assert np.abs(kernel[0] - kernel[1]).max() > 0
    if initializer == "orthogonal":
        for matrix in kernel:
            np.testing.assert_allclose(matrix @ matrix.T, np.eye(8), atol=1e-5)
    if initializer == "he_uniform":
        assert kernel.std() == pytest.approx((2 / 8) ** 0.5, rel=0.15)


@pytest.mark.parametrize("bilinear_type", TYPES)
def test_masked_field_has_no_pairs(bilinear_type):
    mask = np.ones((3, 5), bool)
    mask[1, 2] = False
    layer, _ = with_kernel(bilinear_type)
    noisy = X.copy()
    noisy[1, 2] = np.nan
    got = array(layer(noisy, mask=mask))
    with_field = (layer.lefts == 2) | (layer.rights == 2)
    np.testing.assert_array_equal(got[1, with_field], 0.0)
    want = array(layer(X))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(got[1, ~with_field], want[1, ~with_field], rtol=1e-6)
    pair_mask = array(layer.compute_mask(X, keras.ops.convert_to_tensor(mask)))
    np.testing.assert_array_equal(pair_mask[1], ~with_field)
    assert pair_mask[0].all()


@pytest.mark.skipif(
    BACKEND != "tensorflow", reason="counts nodes of a TensorFlow graph"
)
@pytest.mark.parametrize("bilinear_type", TYPES)
def test_size_of_the_graph(bilinear_type):
    def nodes(num_fields):
        x = np.ones((2, num_fields, 4), "float32")
        return count_nodes(BilinearInteraction(bilinear_type), x)

    # One block a left field where every pair has its own matrix, none else; never a
    # node a pair, of which there are 551 more.
    grown = nodes(39) - nodes(20)
    assert grown <= (30 * 19 if bilinear_type == "interaction" else 0)


@pytest.mark.parametrize("shape", [(2, 1, 4), (2, 4), (2, 3, 4, 5)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"at least two fields.*input_shape=\("):
        BilinearInteraction()(np.ones(shape, "float32"))


def test_says_what_was_given():
    with pytest.raises(ValueError, match="`bilinear_type` must be one of.*'both'"):
        BilinearInteraction("both")
    with pytest.raises(ValueError, match="`reduction` must be None or 'sum'.*'mean'"):
        BilinearInteraction(reduction="mean")
