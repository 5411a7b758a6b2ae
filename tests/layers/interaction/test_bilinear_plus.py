import keras
import numpy as np
import pytest
from helpers import BACKEND, array, check_layer, count_nodes, output_and_gradients
from twins import DTYPE, assert_near, check_twin

from keras_recsys.layers import BilinearPlus

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 4, 3)).astype("float32")
MASK = np.array([[1, 1, 0, 1], [0, 0, 1, 0]], bool)
TYPES = ("all", "each", "interaction")


def bilinear_loop(x, weights, bilinear_type):
    """The formulas of the docstring, one pair at a time."""
    kernel, *projection = weights
    forms = []
    for i in range(x.shape[1]):
        for j in range(i + 1, x.shape[1]):
            matrix = {
                "all": kernel,
                "each": kernel[i % len(kernel)],
                "interaction": kernel[len(forms) % len(kernel)],
            }[bilinear_type]
            forms.append([left @ matrix @ right for left, right in x[:, [i, j]]])
    forms = np.array(forms).T
    return forms @ projection[0] if projection else forms


@pytest.mark.parametrize(
    ("bilinear_type", "output_dim"), [("all", 5), ("each", None), ("interaction", 2)]
)
def test_contract(bilinear_type, output_dim, tmp_path):
    check_layer(
        lambda: BilinearPlus(
            output_dim,
            bilinear_type,
            kernel_initializer="he_normal",
            kernel_regularizer="l2",
        ),
        X,
        tmp_path,
        call={"mask": MASK},
    )


@pytest.mark.parametrize("num_fields", [2, 4])
@pytest.mark.parametrize("output_dim", [None, 2])
@pytest.mark.parametrize("bilinear_type", TYPES)
def test_equals_the_loop(bilinear_type, output_dim, num_fields):
    check_twin(
        BilinearPlus(output_dim, bilinear_type, dtype=DTYPE),
        X[:, :num_fields],
        lambda x, *weights: bilinear_loop(x, weights, bilinear_type),
    )


def test_by_hand():
    x = np.array([[[1, 2], [3, 4], [5, 6]]], "float32")
    forms, projected = BilinearPlus(None), BilinearPlus(2)
    kernel = np.array([[0, 1], [2, 0]])  # v_i W is [4, 1] and [8, 3]
    for layer in (forms, projected):
        layer.build(x.shape)
    forms.set_weights([kernel])
    np.testing.assert_array_equal(array(forms(x)), [[16, 26, 58]])
    projected.set_weights([kernel, np.array([[1, 0], [0, 10], [1, 1]])])
    np.testing.assert_array_equal(array(projected(x)), [[16 + 58, 260 + 58]])


@pytest.mark.parametrize("output_dim", [None, 2])
@pytest.mark.parametrize("bilinear_type", TYPES)
def test_noise_at_masked_fields_changes_nothing(bilinear_type, output_dim):
    layer = BilinearPlus(output_dim, bilinear_type)
    layer.build(X.shape)
    layer.set_weights([RNG.normal(size=w.shape) for w in layer.weights])
    kept = MASK[..., None]
    noisy = np.where(kept, X, np.nan).astype("float32")
    want = output_and_gradients(layer, np.where(kept, X, 0), wrt_inputs=True)
    got = output_and_gradients(layer, noisy, call={"mask": MASK}, wrt_inputs=True)
    assert_near(got[0], want[0])
    assert_near(got[1][0], np.where(kept, want[1][0], 0))
    for a, b in zip(got[1][1:], want[1][1:], strict=True):
        assert_near(a, b)
    if output_dim is None:
        pairs = MASK[:, layer.lefts] & MASK[:, layer.rights]
        np.testing.assert_array_equal(got[0] != 0, pairs)
    assert layer.compute_mask(X, MASK) is None


@pytest.mark.parametrize(
    ("bilinear_type", "count"), [("all", 1), ("each", 38), ("interaction", 741)]
)
def test_counts_and_spread_of_the_matrices(bilinear_type, count):
    seeded = keras.initializers.GlorotNormal(seed=1)
    layer = BilinearPlus(50, bilinear_type, kernel_initializer=seeded)
    dim = 64 if count == 1 else 10
    layer.build((None, 39, dim))
    assert layer.count_params() == count * dim * dim + 741 * 50
    kernel, projection = layer.get_weights()
    assert kernel.std() == pytest.approx(dim**-0.5, rel=0.1)
    assert projection.std() == pytest.approx((2 / (741 + 50)) ** 0.5, rel=0.05)
    few = kernel.ravel()[:3000], projection.ravel()[: min(kernel.size, 3000)]
    assert abs(np.corrcoef(few)[0, 1]) < 0.1


@pytest.mark.skipif(
    BACKEND != "tensorflow", reason="counts nodes of a TensorFlow graph"
)
@pytest.mark.parametrize("output_dim", [None, 2])
@pytest.mark.parametrize("bilinear_type", ["all", "each"])
def test_graph_does_not_grow_with_the_fields(bilinear_type, output_dim):
    def nodes(num_fields):
        x = np.ones((2, num_fields, 4), "float32")
        return count_nodes(BilinearPlus(output_dim, bilinear_type), x)

    assert nodes(20) == nodes(39)


@pytest.mark.parametrize("shape", [(2, 1, 4), (2, 4), (2, 3, 4, 5)])
def test_says_what_shape_was_given(shape):
    with pytest.raises(ValueError, match=r"at least two fields.*input_shape=\("):
        BilinearPlus()(np.ones(shape, "float32"))


def test_says_what_was_given():
    with pytest.raises(TypeError, match="`output_dim` must be an integer.*=2.5"):
        BilinearPlus(2.5)
    with pytest.raises(ValueError, match="`output_dim` must be at least 1.*=0"):
        BilinearPlus(0)
    with pytest.raises(ValueError, match="`bilinear_type` must be one of.*'hadamard'"):
        BilinearPlus(2, "hadamard")
