import keras
import numpy as np
import pytest
from helpers import BACKEND, array, check_model, randomize

from keras_recsys import CategoricalFeature, NumericFeature, SequenceFeature
from keras_recsys.models.behavior.din import build_din
from keras_recsys.models.behavior.ubr4ctr import build_ubr4ctr

RNG = np.random.default_rng(0)
FEATURES = (
    CategoricalFeature("user", 5),
    CategoricalFeature("item", 9, table="items"),
    SequenceFeature("item_history", 9, table="items", max_len=4),
    NumericFeature("price"),
)
INPUTS = {
    "user": np.array([1, 2, 3, 4], "int32"),
    "item": np.array([1, 8, 3, 5], "int32"),
    "item_history": np.array(
        [[1, 2, 3, 4], [0, 5, 0, 6], [7, 8, 0, 0], [0, 0, 0, 0]], "int32"
    ),
    "price": np.array([0.5, -1.0, 2.0, 0.0], "float32"),
}
SMALL = {
    "history": {"item_history": "item"},
    "embedding_dim": 4,
    "attention_units": (3,),
    "hidden_units": (5,),
}


def make(name="ubr4ctr", **arguments):
    return build_ubr4ctr(FEATURES, name=name, **{**SMALL, **arguments})


def test_contract_ubr4ctr(tmp_path):
    check_model(
        lambda **k: build_ubr4ctr(
            FEATURES,
            retrieval_units=(6,),
            num_heads=2,
            dropout=0.2,
            seed=1,
            num_positions=4,
            **{**SMALL, **k},
        ),
        INPUTS,
        tmp_path,
    )


@pytest.mark.parametrize("bias", [-9.0, 0.5, 9.0])
def test_is_din_on_what_is_kept(bias):
    model = make()
    randomize(model, np.random.default_rng(1))
    retrieval = model.get_layer("ubr4ctr_retrieval")
    retrieval.score.bias.assign([bias])
    din = build_din(FEATURES, name="din", **SMALL)
    for layer in din.layers:
        name = layer.name.replace("din_", "ubr4ctr_", 1)
        layer.set_weights([array(w) for w in model.get_layer(name).weights])
    chosen = keras.Model(model.input, retrieval.output)
    kept, log_probability = map(array, chosen(INPUTS))
    real = INPUTS["item_history"] > 0
    assert kept.sum() == {-9.0: 0, 0.5: 5, 9.0: real.sum()}[bias]
    got = {key: array(value) for key, value in model(INPUTS).items()}
    np.testing.assert_allclose(got["log_probability"], log_probability, rtol=1e-5)
    history = np.where(kept, INPUTS["item_history"], 0)
    want = array(din({**INPUTS, "item_history": history})["probability"])
    np.testing.assert_allclose(got["probability"], want, rtol=1e-5)


def test_learns_from_plain_compile_and_fit():
    """Items 1 and 2 tell the label, items 3 to 8 tell nothing."""
    label = RNG.integers(0, 2, size=(768, 1))
    history = RNG.integers(3, 9, size=(768, 4))
    places = RNG.integers(0, 4, size=768)
    history[np.arange(768), places] = 1 + label[:, 0]
    x = {
        "item": np.full(768, 7, "int32"),
        "item_history": history.astype("int32"),
    }
    keras.utils.set_random_seed(0)
    model = build_ubr4ctr(FEATURES[1:3], seed=0, **SMALL)
    model.compile(
        "auto",  # `LazyAdam` on TensorFlow
        loss="binary_crossentropy",
        metrics=["auc"],
        jit_compile=BACKEND == "jax",
    )
    model.optimizer.learning_rate = 0.02
    before = model.evaluate(x, label, verbose=0, return_dict=True)
    model.fit(x, label, batch_size=64, epochs=8, verbose=0)
    after = model.evaluate(x, label, verbose=0, return_dict=True)
    assert set(after) == {"loss", "auc"}
    assert after["loss"] < 0.2 < before["loss"]


def test_says_what_was_given():
    with pytest.raises(ValueError, match="`num_heads` must be a divisor of dim, 4.*=3"):
        make(num_heads=3)
    with pytest.raises(ValueError, match="`hidden_units` must be at least 1.*=0"):
        make(retrieval_units=(0,))
