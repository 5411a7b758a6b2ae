import keras
import numpy as np
import pytest
from behavior_twins import (
    FEATURES,
    FIXED,
    HISTORY,
    SMALL,
    X,
    check_twin,
    copy_weights,
    part_of,
)
from helpers import BACKEND, array, check_model, randomize
from layers.behavior.attention_twins import (
    dual_query_loop,
    enhancement_loop,
    memory_loop,
)

from keras_recsys.models import build_sam, build_youtube_dnn, grow_vocabulary

SAM = {**SMALL, "num_passes": 2, "num_steps": 2, "attention_dim": 3}
NO_WALK = {"num_steps": 0, "use_iterative_walk": False}
DOT = {**NO_WALK, "score_mode": "dot", "attention_activation": "softmax"}
# The models of the paper, by their rows in the docstring.
PAPER = {
    "3P+ts": {"num_passes": 3, "num_steps": 3},
    "2P": {"num_steps": 0},
    "delayed cross": {"num_steps": 0, "use_target": False},
    "without subtraction": {"use_subtraction": False},
    "without iterative walk": NO_WALK,
    "dot product": DOT,
    "without attention": {"num_steps": 0, "use_attention": False},
    "of the code": {"share_pass_weights": False, "normalize": "sqrt_len"},
}


def memory_of(twin, settings):
    """Memories and weights of all passes, or the one interest without them."""
    inputs = twin.target[None], twin.value
    loop = {
        key: settings[key]
        for key in ("use_target", "use_subtraction", "normalize")
        if key in settings
    }
    loop["activation"] = settings.get("attention_activation", "sigmoid")
    if not settings.get("use_attention", True):
        return twin.value.sum(1) / max(twin.mask.sum(), 1), None
    weights = twin.weights("memory")
    if not settings.get("use_iterative_walk", True):
        query = inputs[0], inputs[0], inputs[1]
        return dual_query_loop(*query, *weights, mask=twin.mask, **loop)
    memories, scores = memory_loop(
        *inputs, *weights, mask=twin.mask, num_passes=settings["num_passes"], **loop
    )
    return memories, scores


def steps_of(twin, memory, count):
    weights = twin.weights("enhancement")
    return enhancement_loop(memory, twin.target[None], *weights, num_steps=count)[0]


def test_contract_sam(tmp_path):
    check_model(
        lambda **names: build_sam(
            FEATURES,
            **SAM,
            dropout=0.2,
            embeddings_regularizer="l2",
            seed=1,
            **names,
        ),
        X,
        tmp_path,
    )


def test_contract_sam_with_attention_features(tmp_path):
    settings = {**SAM, "num_steps": 0, "attention_features": 3}
    check_model(lambda **names: build_sam(FIXED, **settings, **names), X, tmp_path)


@pytest.mark.parametrize("kind", PAPER)
def test_equals_the_loop(kind):
    settings = {**SAM, **PAPER[kind]}

    def interests(twin):
        memory, _ = memory_of(twin, settings)
        memory = memory[:, -1] if memory.ndim == 3 else memory
        if settings["num_steps"]:
            return [steps_of(twin, memory, settings["num_steps"])]
        return [memory[0]]

    check_twin(build_sam(FEATURES, **settings), interests)


def test_defaults_are_three_passes_and_three_steps():
    model = build_sam(FEATURES, history=HISTORY)
    memory = model.get_layer("sam_memory")
    assert (memory.num_passes, len(memory.attentions)) == (3, 1)
    assert memory.attentions[0].hidden_dim == 32
    assert memory.attentions[0].attention_activation == "sigmoid"
    assert model.get_layer("sam_enhancement").num_steps == 3


def test_delayed_cross_reads_no_target():
    others = {**X, "item": X["item"][::-1].copy(), "genre": X["genre"][::-1].copy()}
    for use_target in (True, False):
        settings = {**SAM, "num_steps": 0, "use_target": use_target}
        model = build_sam(FEATURES, **settings)
        randomize(model, np.random.default_rng(1))
        memory = part_of(model, "memory")
        same = np.allclose(array(memory(X)), array(memory(others)), rtol=1e-6)
        assert same is not use_target
        got = array(model(X)["probability"]), array(model(others)["probability"])
        assert np.abs(got[0] - got[1]).max() > 1e-3  # the head reads it


def test_without_attention_is_youtube_dnn():
    model = build_sam(FEATURES, **SMALL, num_steps=0, use_attention=False)
    randomize(model, np.random.default_rng(1))
    other = build_youtube_dnn(FEATURES, **SMALL)
    copy_weights(other, model)
    got, want = array(model(X)["probability"]), array(other(X)["probability"])
    np.testing.assert_array_equal(got, want)
    assert model.count_params() == other.count_params()


def test_attention_features_without_steps():
    """`[dense_1(a_1) ; m_1 ; dense_2(a_2) ; m_2]`, then batch normalization."""
    settings = {**SAM, "num_steps": 0, "attention_features": 3}
    model = build_sam(FIXED, **settings)

    def interests(twin):
        memories, scores = memory_of(twin, settings)
        parts = []
        for i in range(2):
            kernel, bias = twin.weights(f"attention-features_{i}")
            parts += [np.maximum(scores[0, i] @ kernel + bias, 0), memories[0, i]]
        gamma, beta, mean, variance = twin.weights("normalization")
        return [
            gamma * (np.concatenate(parts) - mean) / np.sqrt(variance + 1e-3) + beta
        ]

    check_twin(model, interests)


def test_attention_features_with_steps():
    """`[dense(a_N) ; s_T]`, without batch normalization."""
    settings = {**SAM, "attention_features": 3}
    model = build_sam(FIXED, **settings)

    def interests(twin):
        memories, scores = memory_of(twin, settings)
        kernel, bias = twin.weights("attention-features_1")
        weights = np.maximum(scores[0, -1] @ kernel + bias, 0)
        return [weights, steps_of(twin, memories[:, -1], 2)]

    check_twin(model, interests)
    names = [layer.name for layer in model.layers]
    assert "sam_attention-features_0" not in names
    assert "sam_normalization" not in names


def test_grown_model_keeps_its_answers():
    model = build_sam(FEATURES, **SAM)
    randomize(model, np.random.default_rng(1))
    grown = grow_vocabulary(model, {"item_history": 12, "user": 6})
    assert grown.get_layer("sam_fields_items").input_dim == 12
    got, want = array(grown(X)["probability"]), array(model(X)["probability"])
    np.testing.assert_array_equal(got, want)
    new = {**X, "item": X["item"] + 3, "item_history": np.full((5, 4), 11)}
    assert np.isfinite(array(grown(new)["probability"])).all()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a SavedModel is TensorFlow's")
def test_exported_model_reads_times(tmp_path):
    import tensorflow as tf

    from keras_recsys import serving

    model = build_sam(FEATURES, **SAM)
    randomize(model, np.random.default_rng(1))
    report = serving.export(model, tmp_path / "sam", verbose=False)
    assert report.max_difference < 1e-5
    inputs = report.signatures["serving_default"]["inputs"]
    assert inputs["age_history"] == ("int32", (None, None))
    loaded = tf.saved_model.load(report.path)
    served = loaded.signatures["serving_default"]
    got = served(**{name: tf.constant(values) for name, values in X.items()})
    want = model(X)["probability"]
    np.testing.assert_allclose(got["probability"], want, rtol=1e-5, atol=1e-6)


def test_learns_that_the_target_was_seen():
    rng = np.random.default_rng(0)
    features = [feature for feature in FEATURES if feature.name.startswith("item")]
    history = rng.integers(1, 9, (512, 3))
    item = rng.integers(1, 9, 512)
    seen = rng.random(512) < 0.5
    history[seen, rng.integers(0, 3, 512)[seen]] = item[seen]
    label = (history == item[:, None]).any(1, keepdims=True).astype("float32")
    x = {"item": item, "item_history": history}
    model = build_sam(
        features, history={"item_history": "item"}, embedding_dim=8, seed=0
    )
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["auc"])
    model.fit(x, label, batch_size=64, epochs=15, verbose=0)
    got = model.evaluate(x, label, batch_size=512, verbose=0, return_dict=True)
    assert got["auc"] > 0.9


@pytest.mark.parametrize(
    ("features", "arguments", "message"),
    [
        (FEATURES, {"num_steps": -1}, "`num_steps` must be at least 0.*=-1"),
        (FEATURES, {"num_passes": 0}, "`num_passes` must be at least 1.*=0"),
        (FEATURES, {"attention_dim": 0}, "`hidden_dim` must be at least 1.*=0"),
        (FEATURES, {"score_mode": "x"}, "`score_mode` must be one of.*'x'"),
        (
            FEATURES,
            {"attention_features": 2},
            "`attention_features` must be None.*`max_",
        ),
        (FIXED, {"attention_features": 0}, "`attention_features` must be at.*=0"),
        (
            FIXED,
            {"attention_features": 2, "use_attention": False},
            "must be None where there are no passes.*use_attention=False",
        ),
        (
            FIXED,
            {"attention_features": 2, "use_iterative_walk": False},
            "must be None where there are no passes.*use_iterative_walk=False",
        ),
    ],
)
def test_says_what_was_given(features, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_sam(features, **{**SAM, **arguments})
