"""Cases 20 to 22 and 26: values and shapes of pairs and field weights, masks."""

import keras
import numpy as np
import pytest
from case_models import BUILDERS, FEATURES, answer, make_model, make_rows
from helpers import array, output_and_gradients, randomize, set_field_table

from keras_recsys.features import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
    embed_fields,
    make_inputs,
)
from keras_recsys.layers import (
    BilinearDense,
    BilinearInteraction,
    QREmbedding,
    SENETLayer,
    SequencePooling,
)
from keras_recsys.models import build_dlrm, build_fibinet

V = np.array([[[1, 2], [3, 4], [5, 6]]], "float32")
W = np.array([[0, 1], [2, 0]], "float32")
PAIRS = [[12, 4], [20, 6], [40, 18]]
MATRICES = {"all": lambda f: 1, "each": lambda f: f - 1, "hadamard": lambda f: 0}
MATRICES["interaction"] = lambda f: f * (f - 1) // 2


@pytest.mark.parametrize("bilinear_type", ["all", "each", "interaction"])
def test_case_20_values_of_the_paper(bilinear_type):
    layer = BilinearInteraction(bilinear_type)
    layer.build(V.shape)
    (kernel,) = layer.get_weights()
    layer.set_weights([np.broadcast_to(W, kernel.shape)])
    np.testing.assert_array_equal(array(layer(V))[0], PAIRS)
    total = BilinearInteraction(bilinear_type, reduction="sum")
    total.build(V.shape)
    total.set_weights(layer.get_weights())
    np.testing.assert_array_equal(array(total(V)), [[100.0]])


@pytest.mark.parametrize("bilinear_type", ["all", "each", "interaction"])
def test_case_20_values_in_the_first_dense_layer(bilinear_type):
    layer = BilinearDense(6, bilinear_type, use_bias=False)
    layer.build(V.shape)
    kernel, _ = layer.get_weights()
    layer.set_weights([np.broadcast_to(W, kernel.shape), np.eye(6)])
    np.testing.assert_array_equal(array(layer(V))[0], np.ravel(PAIRS))


@pytest.mark.parametrize("bilinear_type", MATRICES)
@pytest.mark.parametrize(("num_fields", "dim"), [(2, 1), (3, 2), (4, 3), (7, 2)])
def test_case_20_shapes_and_numbers_of_matrices(bilinear_type, num_fields, dim):
    x = np.ones((5, num_fields, dim), "float32")
    num_pairs = num_fields * (num_fields - 1) // 2
    layer = BilinearInteraction(bilinear_type)
    assert layer.compute_output_shape(x.shape) == (5, num_pairs, dim)
    assert layer(x).shape == (5, num_pairs, dim)
    symbolic = layer(keras.Input((num_fields, dim)))
    assert symbolic.shape == (None, num_pairs, dim)
    assert layer.count_params() == MATRICES[bilinear_type](num_fields) * dim * dim


@pytest.mark.parametrize(("num_fields", "dim"), [(2, 2), (4, 3), (7, 4)])
def test_case_20_both_branches_of_the_builder(num_fields, dim):
    features = [CategoricalFeature(f"c{i}", 5) for i in range(num_fields)]
    model = build_fibinet(features, embedding_dim=dim, hidden_units=(3,))
    layer = model.get_layer("fibinet_bilinear_dense_0")
    rows = layer.projection.shape[0] + layer.weighed_projection.shape[0]
    assert rows == num_fields * (num_fields - 1) * dim


def test_case_21_values_by_hand():
    layer = SENETLayer(2)  # 2 fields, 1 unit
    e = np.array([[[1.0, 1.0], [1.0, 3.0]]], "float32")
    layer.build(e.shape)
    layer.set_weights([np.array([[1.0], [1.0]]), np.array([[0.5, 2.0]])])
    output, weights = layer(e, return_weights=True)
    np.testing.assert_array_equal(array(weights), [[1.5, 6.0]])
    np.testing.assert_array_equal(array(output), [[[1.5, 1.5], [6.0, 18.0]]])
    np.testing.assert_array_equal(array(layer(e)), array(output))


@pytest.mark.parametrize(
    ("num_fields", "ratio", "units"),
    [(6, 3, 2), (2, 3, 1), (6, 1, 6), (7, 3, 2), (3, 16, 1), (5, 1.5, 3), (4, 0.5, 8)],
)
def test_case_21_ratio_divides_the_fields(num_fields, ratio, units):
    layer = SENETLayer(ratio)
    layer.build((None, num_fields, 4))
    assert [w.shape for w in layer.weights] == [
        (num_fields, units),
        (units, num_fields),
    ]
    features = [CategoricalFeature(f"c{i}", 5) for i in range(num_fields)]
    model = build_fibinet(
        features, embedding_dim=2, hidden_units=(), reduction_ratio=ratio
    )
    senet = model.get_layer("fibinet_senet")
    assert senet.reduction_kernel.shape == (num_fields, units)


@pytest.mark.parametrize("numeric_inputs", ["field", "dnn"])
@pytest.mark.parametrize("num_numeric", [13, 0, 1])
@pytest.mark.parametrize("deep", [True, False])
def test_case_22_any_number_of_numbers_in_fibinet(num_numeric, numeric_inputs, deep):
    if numeric_inputs == "dnn" and not deep:
        pytest.skip("there is no DNN")
    features = [NumericFeature(f"n{i}") for i in range(num_numeric)]
    features += [CategoricalFeature(f"c{i}", 5) for i in range(3)]
    model = build_fibinet(
        features,
        embedding_dim=2,
        hidden_units=(4,),
        numeric_inputs=numeric_inputs,
        deep=deep,
    )
    num_fields = 3 + (num_numeric if numeric_inputs == "field" else 0)
    assert model.get_layer("fibinet_fields").output.shape == (None, num_fields, 2)
    x = {f"n{i}": np.full(2, i, "float32") for i in range(num_numeric)}
    x |= {f"c{i}": np.array([0, 4]) for i in range(3)}
    assert answer(model, x).shape == (2, 1)
    gradients = output_and_gradients(model, x)[1]
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    if deep:
        kernel = model.get_layer("fibinet_bilinear_dense_0").kernel
        assert kernel.shape[0] == num_fields * (num_fields - 1) // 2


@pytest.mark.parametrize(("num_numeric", "pairs"), [(13, 6), (0, 3), (1, 6)])
def test_case_22_any_number_of_numbers_in_dlrm(num_numeric, pairs):
    features = [NumericFeature(f"n{i}") for i in range(num_numeric)]
    features += [CategoricalFeature(f"c{i}", 5) for i in range(3)]
    model = build_dlrm(features, embedding_dim=2, bottom_units=(3,), top_units=(4,))
    assert model.get_layer("dlrm_dots").output.shape == (None, pairs)
    x = {f"n{i}": np.full(2, i, "float32") for i in range(num_numeric)}
    x |= {f"c{i}": np.array([0, 4]) for i in range(3)}
    randomize(model, np.random.default_rng(0))
    assert answer(model, x).shape == (2, 1)
    gradients = output_and_gradients(model, x)[1]
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_case_22_dots_by_hand():
    features = [CategoricalFeature(name, 2) for name in "abc"]
    model = build_dlrm(features, embedding_dim=2, top_units=())
    for name, vector in (("a", [1, 0]), ("b", [0, 2]), ("c", [3, 4])):
        set_field_table(model, "dlrm_fields-tables", name, [[9, 9], vector])
    dots = keras.Model(model.input, model.get_layer("dlrm_dots").output)
    got = array(dots({name: np.array([1]) for name in "abc"}))
    np.testing.assert_array_equal(got, [[0.0, 3.0, 8.0]])  # no vector with itself


@pytest.mark.parametrize("kind", BUILDERS)
def test_case_26_builders_do_not_nest_and_do_not_warn(kind, recwarn):
    model = make_model(kind)
    assert not any(isinstance(layer, keras.Model) for layer in model.layers)
    x = make_rows()
    want = answer(model, x)
    # Nested by the user, the whole model still answers the same.
    inputs = make_inputs(FEATURES)
    outer = keras.Model(inputs, model(inputs))
    np.testing.assert_allclose(answer(outer, x), want, rtol=1e-6)
    assert not list(recwarn)


def test_case_26_nested_encoder_equals_the_flat_one(recwarn):
    feature = SequenceFeature("history", 9, embedding="qr")
    inputs = make_inputs([feature])
    flat = keras.Model(inputs, embed_fields(inputs, [feature], 4))
    randomize(flat, np.random.default_rng(0))
    again = make_inputs([feature])
    nested = keras.Model(again, keras.layers.Flatten()(flat(again)))
    x = {"history": np.array([[5, 6, 0, 0], [0, 0, 0, 0], [0, 7, 0, 1]])}
    want = flat.predict(x, verbose=0)[:, 0]
    np.testing.assert_allclose(nested.predict(x, verbose=0), want, rtol=1e-6)
    cut = {"history": x["history"][:1, :2]}
    np.testing.assert_allclose(nested.predict(cut, verbose=0), want[:1], rtol=1e-6)
    assert not list(recwarn)


def test_case_26_masks_by_hand_pass_a_nested_model():
    # A nested model loses the Keras mask at its border; one that is passed stays.
    layer = QREmbedding(9, 4, mask_zero=True)
    ids = keras.Input((None,), dtype="int32")
    encoder = keras.Model(ids, layer(ids))
    outer_ids = keras.Input((None,), dtype="int32")
    mask = layer.compute_mask(outer_ids)
    nested = keras.Model(outer_ids, SequencePooling()(encoder(outer_ids), mask=mask))
    flat_ids = keras.Input((None,), dtype="int32")
    flat = keras.Model(flat_ids, SequencePooling()(layer(flat_ids)))
    x = np.array([[5, 6, 0, 0], [0, 7, 0, 1]])
    np.testing.assert_allclose(
        nested.predict(x, verbose=0), flat.predict(x, verbose=0), rtol=1e-6
    )
