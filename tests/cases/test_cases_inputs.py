"""Cases 41 to 44, 46, 47 and 52: names, inputs, precision, devices, numbers, XLA."""

import ast
import dataclasses
import functools
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from case_models import (
    BUILDERS,
    FEATURES,
    LAYERS,
    NEXT_ITEM_BUILDERS,
    answer,
    make_labels,
    make_layer_model,
    make_model,
    make_rows,
    predict,
)
from helpers import array

import keras_recsys
from keras_recsys.features import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
)
from keras_recsys.layers import NumericNormalization
from keras_recsys.models import build_fibinet

X = make_rows()
PACKAGE = pathlib.Path(keras_recsys.__file__).parent
PAIR = (CategoricalFeature("a", 5), CategoricalFeature("b", 7))
A, B = np.array([1, 2, 4]), np.array([3, 6, 0])


def small(features=PAIR, **kwargs):
    return build_fibinet(features, embedding_dim=3, hidden_units=(4,), **kwargs)


@pytest.mark.parametrize("kind", BUILDERS)
def test_case_41_two_models_side_by_side_and_joined(kind):
    first = make_model(kind)
    make_model(kind)  # the same name in one process
    second = make_model(kind, name="second", inputs=first.input)
    both = keras.Model(first.input, [first.output, second.output])
    assert list(first.input) == [feature.name for feature in FEATURES]
    assert all(second.input[name] is first.input[name] for name in first.input)
    own = [x for x in second.layers if not isinstance(x, keras.layers.InputLayer)]
    assert all(layer.name.startswith("second") for layer in own)
    one, two = both(X)
    np.testing.assert_allclose(one["probability"], answer(first, X), rtol=1e-6)
    np.testing.assert_allclose(two["probability"], answer(second, X), rtol=1e-6)
    assert len({w.path for w in both.weights}) == len(both.weights)


@pytest.mark.parametrize(
    "features",
    [
        # Each has the name of a part that a builder makes for another.
        (CategoricalFeature("concat", 5), *PAIR),
        (CategoricalFeature("h_mask", 5), SequenceFeature("h", 5)),
        (NumericFeature("h_pooling"), SequenceFeature("h", 5), *PAIR),
        (CategoricalFeature("numbers", 5), NumericFeature("x"), *PAIR),
        (CategoricalFeature("logit", 5), NumericFeature("x"), *PAIR),
        (NumericFeature("fields"), NumericFeature("normalized"), *PAIR),
        (CategoricalFeature("fields", 4), NumericFeature("linear"), *PAIR),
        (CategoricalFeature("fields_a", 4), CategoricalFeature("a", 4, table="fields")),
        (CategoricalFeature("fibinet", 4), CategoricalFeature("name", 4)),
        (CategoricalFeature("self", 4), CategoricalFeature("training", 4)),
        (CategoricalFeature("inputs", 4), CategoricalFeature("probability", 4)),
    ],
)
@pytest.mark.parametrize("numeric_inputs", ["field", "dnn"])
def test_case_41_no_feature_has_the_name_of_a_part(features, numeric_inputs):
    if len([f for f in features if not isinstance(f, NumericFeature)]) < 2:
        features = (*features, *PAIR)
    model = small(features, numeric_inputs=numeric_inputs)
    x = {
        f.name: np.ones((2, 3) if isinstance(f, SequenceFeature) else 2, f.dtype)
        for f in features
    }
    assert answer(model, x).shape == (2, 1)


def test_case_41_table_with_the_name_of_a_number_is_refused():
    features = (NumericFeature("x"), CategoricalFeature("b", 7, table="x"), *PAIR[:1])
    with pytest.raises(ValueError, match="`table` must not.*table='x' for 'b'"):
        small(features)


@pytest.mark.parametrize(
    "name", ["a b", "a/b", "a-b", "a.b", "ä", "1a", "", "_a", None]
)
def test_case_41_names_that_cannot_be_served_are_refused(name):
    for make in (NumericFeature, lambda n: CategoricalFeature(n, 4)):
        with pytest.raises(ValueError, match=rf"letters, digits.*name={name!r}"):
            make(name)
    if name is not None:
        with pytest.raises(ValueError, match=rf"`table`.*table={name!r}"):
            CategoricalFeature("a", 4, table=name)


def test_case_41_a_feature_twice_is_refused():
    with pytest.raises(ValueError, match=r"distinct names.*\['a'\]"):
        small((*PAIR, NumericFeature("a")))


def test_case_42_inputs_are_matched_by_name():
    features = (PAIR[1], PAIR[0])  # not in the order of the alphabet
    model = small(features)
    one = predict(model, {"b": B, "a": A})
    two = predict(model, {"a": A, "b": B})
    np.testing.assert_array_equal(one, two)
    assert not np.allclose(one, predict(model, {"a": A[::-1], "b": B}), atol=1e-7)
    loaded = keras.models.model_from_json(model.to_json())
    loaded.set_weights(model.get_weights())
    np.testing.assert_array_equal(predict(loaded, {"b": B, "a": A}), one)
    np.testing.assert_allclose(
        array(model({"b": B, "a": A})["probability"]), one, rtol=1e-6
    )
    dataset = tf.data.Dataset.from_tensor_slices({"a": A, "b": B}).batch(2)
    np.testing.assert_allclose(predict(model, dataset), one, rtol=1e-6)


def test_case_42_columns_of_one_are_taken():
    numbers = NumericFeature("x", normalization="log")
    model = small((*PAIR, numbers))
    x = {"a": A, "b": B, "x": np.array([0.0, 1.0, 2.0], "float32")}
    columns = {name: value[:, None] for name, value in x.items()}
    want = array(model(x)["probability"])
    np.testing.assert_array_equal(array(model(columns)["probability"]), want)
    np.testing.assert_allclose(predict(model, columns), want, rtol=1e-6)


def test_case_42_columns_of_one_after_vectors():
    model = small()
    want = predict(model, {"a": A, "b": B})
    try:
        got = predict(model, {"a": A[:, None], "b": B[:, None]})
    except ValueError as error:
        assert re.search("'a'|'b'", str(error))  # noqa: PT017 (equal or refused by name)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("missing", ["a", "b"])
def test_case_42_missing_input_is_named(missing):
    model = small()
    x = {"a": A, "b": B}
    del x[missing]
    model.compile("sgd", "binary_crossentropy")
    for ask in (
        model,
        lambda x: predict(model, x),
        lambda x: model.fit(x, make_labels(3), verbose=0),
    ):
        with pytest.raises(ValueError, match=rf"missing \['{missing}'\]"):
            ask(x)


def test_case_42_wrong_rank_is_refused_by_name():
    model = small((*PAIR, SequenceFeature("h", 4)))
    good = {"a": A, "b": B, "h": np.ones((3, 2), "int32")}
    for name, value in (
        ("a", np.ones((3, 2), "int32")),
        ("b", np.ones((3, 1, 1), "int32")),
        ("h", np.ones(3, "int32")),
        ("h", np.ones((3, 2, 2), "int32")),
    ):
        for run in (model, lambda x: keras.models.clone_model(model).predict(x)):
            with pytest.raises(ValueError, match=f"Input '{name}' must be of shape"):
                run({**good, name: value})


# Extra columns, in Keras: sorted, and taken by position, with no more than a warning.
EXTRA = {"A_id": B, "a": A, "b": B}


@pytest.mark.parametrize("ask", ["call", "predict", "fit"])
def test_case_42_extra_input_is_refused_by_name(ask):
    model = small()
    model.compile(keras.optimizers.SGD(0.0), "binary_crossentropy")
    run = {
        "call": model,
        "predict": lambda x: predict(model, x),
        "fit": lambda x: model.fit(x, make_labels(3), verbose=0),
    }[ask]
    with pytest.raises(ValueError, match=r"unknown \['A_id'\]"):
        run(EXTRA)


@pytest.mark.parametrize(
    ("name", "value"), [("a", A.astype("float32")), ("a", A.astype(bool))]
)
def test_case_42_other_dtype_is_refused_by_name(name, value):
    model = small()
    with pytest.raises(TypeError, match=f"Input '{name}' must hold ids.*{value.dtype}"):
        model({"a": A, "b": B, name: value})


def test_case_42_fraction_is_no_id():
    model = small()
    x = {"a": A.astype("float32"), "b": B}
    np.testing.assert_allclose(predict(model, x), predict(model, {"a": A, "b": B}))
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be whole ids"):
        predict(model, {**x, "a": x["a"] + 0.7})


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
def test_case_43_layers_in_half_precision(name, policy):
    # The global policy, as users set it; a layer's own `dtype` is in its contract test.
    keras.config.set_dtype_policy(policy)
    model = make_layer_model(name)
    layer = model.get_layer("tried")
    output = model(LAYERS[name][1])
    dtype = keras.backend.standardize_dtype(output.dtype)
    fixed = {
        "BehaviorRetrieval": "bool",
        "CPRSoftmax": "float32",
        "ClickProbability": "float32",
        "CompactIds": "int32",
        "ExcludeSeen": "float32",
        "MixtureOfSoftmaxes": "float32",
        "PaddingMask": "bool",
        "RepeatHead": "float32",
        "SampledSoftmax": "float32",
    }
    assert dtype == fixed.get(name, policy.removeprefix("mixed_"))
    assert np.isfinite(array(output)).all()
    assert all(weight.dtype in ("float32", "int32") for weight in layer.weights)
    assert all(weight.dtype == "float32" for weight in layer.trainable_weights)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.slow
def test_case_43_builders_in_half_precision(kind, policy):
    keras.config.set_dtype_policy(policy)
    model = make_model(kind)
    part = {"dlrm": "dots", "lr": "linear"}.get(kind, "fields")
    inner = f"{model.name}_{part}"
    assert model.get_layer(inner).compute_dtype == policy[len("mixed_") :]
    assert model.output["probability"].dtype == "float32"
    # Only float16 scales the loss, by other operations in a graph; bfloat16 does
    # without the trace of a step, and `predict` traces the model.
    scaled = policy == "mixed_float16"
    model.compile("adam", "binary_crossentropy", run_eagerly=not scaled)
    before = model.get_weights()
    for _ in range(8 if scaled else 2):  # the scale may be too large at first
        assert np.isfinite(model.train_on_batch(X, make_labels()))
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert any(np.any(a != b) for a, b in zip(before, model.get_weights(), strict=True))
    model.run_eagerly = False
    for ask in (answer, predict):
        got = ask(model, X)
        assert got.dtype == "float32"
        assert np.isfinite(got).all()


MIRRORED = """
    import sys
    sys.path[:0] = [{tests!r}, {cases!r}]
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    # Graphs that run twice are not worth their optimization.
    tf.config.optimizer.set_experimental_options({{"disable_meta_optimizer": True}})
    import keras, numpy as np
    from case_models import *
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    x, y = make_rows(8), make_labels(8)
    quiet = {{"sasrec": {{"attention_dropout": 0.0}}}}
    # One kind of each builder: a trace under the strategy takes its time.
    kinds = list({{build: kind for kind, (build, _) in BUILDERS.items()}}.values())
    for kind in kinds:
        # Each device draws and normalizes on its own.
        alike = {{"dropout": 0.0, "normalize": False}}
        settings = {{k: alike[k] for k in alike if k in BUILDERS[kind][1]}}
        alone = make_model(kind, **settings)
        with strategy.scope():
            shared = make_model(kind, **settings)
            shared.set_weights(alone.get_weights())
            shared.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
            shared.optimizer.build(shared.trainable_variables)  # no second trace
        alone.compile(  # no second graph
            keras.optimizers.SGD(0.1), "binary_crossentropy", run_eagerly=True
        )
        assert len(shared.weights) == len(alone.weights)
        tables = [w for w in shared.weights if w.path.endswith("_items/embeddings")]
        parts = [w.path.split("/")[0][len(shared.name) :] for w in tables]
        assert parts, shared.weights
        assert parts in (["_fields_items"], ["_linear_items"]) or sorted(parts) == [
            "_fields_items",
            "_linear_items",
        ]  # vectors and linear weights, one table each
        assert all(len(w.value.values) == 2 for w in tables)  # a copy on each device
        for model in (alone, shared):  # two steps
            loss = model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
            assert np.isfinite(loss.history["loss"]).all()
        # Two halves of a batch train as the whole does.
        for a, b in zip(alone.get_weights(), shared.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(answer(shared, x), answer(alone, x), atol=1e-5)
        if kind != kinds[0]:  # as dear as the training, and the same layers
            continue
        np.testing.assert_allclose(predict(shared, x), answer(alone, x), atol=1e-5)
        bad = {{**x, "item": np.full(8, 9)}}
        try:
            predict(shared, bad)
        except (ValueError, tf.errors.OpError) as error:
            assert "[0, 9)" in str(error), error
        else:
            raise AssertionError("an id out of range has passed")
    x, y = make_histories(8)
    for kind in NEXT_ITEM_BUILDERS:
        alone = make_next_item_model(kind, **quiet.get(kind, {{}}))
        with strategy.scope():
            shared = make_next_item_model(kind, **quiet.get(kind, {{}}))
            shared.set_weights(alone.get_weights())
            shared.compile(keras.optimizers.SGD(0.1))
        alone.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
        assert len(shared.weights) == len(alone.weights)
        for model in (alone, shared):
            loss = model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
            assert np.isfinite(loss.history["loss"]).all()
        for a, b in zip(alone.get_weights(), shared.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    # Each device samples and normalizes batches on its own.
    settings = {{"distill": False, "attention_options": {{"measure": "exact"}}}}
    alone = make_forecaster("informer", **settings)
    with strategy.scope():
        shared = make_forecaster("informer", **settings)
        shared.set_weights(alone.get_weights())
        shared.compile(keras.optimizers.SGD(0.1), "mse")
    alone.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    x, y = make_windows(alone, rows=8)
    for model in (alone, shared):
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    for a, b in zip(alone.get_weights(), shared.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    print("trained", len(kinds) + len(NEXT_ITEM_BUILDERS) + 1)
"""


@pytest.mark.slow
def test_case_43_trains_on_two_devices():
    cases = pathlib.Path(__file__).parent
    code = textwrap.dedent(MIRRORED).format(tests=str(cases.parent), cases=str(cases))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=PACKAGE.parent,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    count = len(EACH) + len(NEXT_ITEM_BUILDERS)
    assert done.stdout.strip() == f"trained {count + 1}"  # and a forecaster


def _sources():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 20
    return files


def test_case_44_nothing_private_or_old_is_used():
    pattern = r"tensorflow\.python|tf_keras|TF_USE_LEGACY_KERAS|tf\.compat\.v1"
    pattern += r"|keras\.src|from tensorflow(\.| import )keras|tf\.keras"
    found = [
        f"{path}:{i}: {line}"
        for path in _sources()
        for i, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not found


def test_case_44_weights_are_added_by_keyword():
    calls = [
        (path, node)
        for path in _sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", None) == "add_weight"
    ]
    assert calls
    for path, node in calls:
        assert not node.args, f"{path}:{node.lineno}"
        assert {"name", "shape"} <= {keyword.arg for keyword in node.keywords}, path


@pytest.mark.parametrize("kind", BUILDERS)
def test_case_44_inputs_of_tf_keras_are_taken(kind):
    inputs = {
        feature.name: tf.keras.Input(
            feature.shape, dtype=feature.dtype, name=feature.name
        )
        for feature in FEATURES
    }
    model = make_model(kind, inputs=inputs)
    assert all(model.input[name] is inputs[name] for name in inputs)
    assert isinstance(model, tf.keras.Model)
    np.testing.assert_array_equal(answer(model, X), answer(make_model(kind), X))


@pytest.mark.parametrize("factor", [1.0, 1e6])
@pytest.mark.parametrize(
    ("numeric_inputs", "normalization"), [("field", "zscore"), ("dnn", "log")]
)
def test_case_46_scale_of_a_number_does_not_matter(
    factor, numeric_inputs, normalization
):
    rng = np.random.default_rng(0)
    x = {
        "big": (rng.exponential(size=512) * factor).astype("float32"),
        "a": rng.integers(0, 5, 512),
        "b": rng.integers(0, 7, 512),
    }
    labels = (x["big"] > np.median(x["big"])).astype("float32")[:, None]
    feature = NumericFeature.fit("big", x["big"], normalization=normalization)
    model = small((*PAIR, feature), numeric_inputs=numeric_inputs)
    model.compile(
        keras.optimizers.Adam(0.03),
        "binary_crossentropy",
        metrics=[keras.metrics.AUC()],
    )
    history = model.fit(x, labels, batch_size=64, epochs=6, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    results = model.evaluate(x, labels, batch_size=512, verbose=0, return_dict=True)
    auc = next(value for name, value in results.items() if "auc" in name)
    assert auc > 0.95


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_case_46_large_numbers_in_half_precision(policy):
    x = (np.random.default_rng(0).normal(size=64) * 1e6).astype("float32")
    keras.config.set_dtype_policy(policy)
    feature = NumericFeature.fit("big", x)
    model = small((*PAIR, feature))
    rows = {"big": x, "a": np.arange(64) % 5, "b": np.arange(64) % 7}
    assert np.isfinite(answer(model, rows)).all()
    layer = model.get_layer("fibinet_numbers-normalized")
    assert np.abs(array(layer(x)) - ((x - x.mean()) / x.std())[:, None]).max() < 0.02


EACH = list(dict.fromkeys(build for build, _ in BUILDERS.values()))


@functools.cache
def fitted_on_a_large_number(build):
    """Fits the first way of a builder, with `jit_compile="auto"`.

    Returns:
        Tuple of whether XLA was chosen, the warnings, the losses and the AUC.
    """
    settings = next(given for made, given in BUILDERS.values() if made is build)
    rng = np.random.default_rng(0)
    x = {
        "big": (rng.exponential(size=512) * 1e6).astype("float32"),
        "a": rng.integers(0, 5, 512),
        "b": rng.integers(0, 7, 512),
    }
    labels = x["big"] > np.median(x["big"])
    features = [
        NumericFeature.fit("big", x["big"]),
        # With "error" a model never asks for XLA.
        *(dataclasses.replace(feature, out_of_range="nan") for feature in PAIR),
    ]
    if "history" in settings:
        shared = {"vocab_size": 5, "table": "items", "out_of_range": "nan"}
        features.append(CategoricalFeature("item", **shared))
        features.append(SequenceFeature("history", **shared))
        x |= {"item": x["a"], "history": rng.integers(0, 5, (512, 3))}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = build(features, **settings)
        model.compile(keras.optimizers.Adam(0.03), "binary_crossentropy")
        history = model.fit(
            x, labels[:, None].astype("float32"), batch_size=64, epochs=6, verbose=0
        )
    scores = answer(model, x)[:, 0]
    auc = np.mean(scores[labels][:, None] > scores[~labels])
    return model.jit_compile, told, history.history["loss"], auc


@pytest.mark.parametrize("build", EACH)
def test_case_46_every_builder_learns_from_a_large_number(build):
    _, _, losses, auc = fitted_on_a_large_number(build)
    assert np.isfinite(losses).all()
    assert auc > 0.95


@pytest.mark.parametrize("build", EACH)
def test_case_52_every_builder_fits_with_auto_and_does_not_warn(build):
    jit_compile, told, losses, _ = fitted_on_a_large_number(build)
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    assert jit_compile is has_gpu  # Keras leaves XLA off on a machine without
    assert not [str(warning.message) for warning in told]
    assert len(losses) == 6


COUNTS = np.array([-2.0, -1.0, 0.0, 3.0], "float32")


def test_case_47_negative_counts_are_read_as_zero():
    got = array(NumericNormalization("log")(COUNTS))[:, 0]
    np.testing.assert_allclose(got, [0.0, 0.0, 0.0, np.log(4.0)], rtol=1e-6)
    # -1 and -2 are where log(1 + x) has no value.
    feature = NumericFeature.fit("count", COUNTS, normalization="log")
    assert feature.mean == pytest.approx(np.log(4.0) / 4)
    assert feature.std == pytest.approx(np.std([0.0, 0.0, 0.0, np.log(4.0)]))
    for documented in (NumericFeature, NumericNormalization):
        text = " ".join(documented.__doc__.split())
        assert re.search('read as 0 by `"log"`', text)


@pytest.mark.parametrize("numeric_inputs", ["field", "dnn"])
def test_case_47_negative_counts_in_a_builder(numeric_inputs):
    feature = NumericFeature.fit("count", COUNTS, normalization="log")
    model = small((*PAIR, feature), numeric_inputs=numeric_inputs)
    x = {"count": COUNTS, "a": np.full(4, 1), "b": np.full(4, 2)}
    model.compile("sgd", "binary_crossentropy")
    assert np.isfinite(model.train_on_batch(x, make_labels(4)))
    got = answer(model, x)[:, 0]
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got[:2], got[2], rtol=1e-6)
    assert got[3] != got[2]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_case_47_large_counts_in_half_precision(policy):
    keras.config.set_dtype_policy(policy)
    counts = np.array([-2.0, 0.0, 1e9, 3e38], "float32")
    got = array(NumericNormalization("log")(counts))[:, 0]
    np.testing.assert_allclose(got, np.log1p(np.maximum(counts, 0)), rtol=1e-2)
