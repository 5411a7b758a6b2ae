import pytest
from behavior_twins import FEATURES, SMALL, X, check_twin
from helpers import check_model
from layers.behavior.attention_twins import target_loop

from keras_recsys.models import build_din

DIN = {**SMALL, "attention_units": (4, 3)}


def test_contract_din(tmp_path):
    check_model(
        lambda **names: build_din(
            FEATURES, **DIN, dropout=0.2, embeddings_regularizer="l2", seed=1, **names
        ),
        X,
        tmp_path,
    )


@pytest.mark.parametrize(
    ("settings", "loop"),
    [
        ({}, {"activation": "linear"}),
        # Those of the code of SAM.
        (
            {
                "interactions": ("difference", "product"),
                "attention_activation": "softmax",
                "attention_units": (4,),
            },
            {"interactions": ("difference", "product"), "activation": "softmax"},
        ),
        (
            {"attention_activation": "sigmoid", "normalize": "sqrt_len"},
            {"activation": "sigmoid", "normalize": "sqrt_len"},
        ),
    ],
    ids=["paper", "sam", "normalized"],
)
def test_equals_the_loop(settings, loop):
    def interests(twin):
        weights = twin.weights("interest")
        inputs = twin.target[None], twin.value
        return [target_loop(*inputs, *weights, mask=twin.mask, **loop)[0][0]]

    check_twin(build_din(FEATURES, **{**DIN, **settings}), interests)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"attention_units": ()},
            r"`hidden_units` must be a list or tuple of at least one width.*=\(\)",
        ),
        ({"interactions": ("query",)}, r"`interactions` must be some of.*\('query',\)"),
        ({"attention_activation": "x"}, "`attention_activation` must be one of.*'x'"),
        ({"normalize": "sum"}, "`normalize` must be None.*'sum'"),
        ({"history": {"user": "item"}}, None),
    ],
)
def test_says_what_was_given(arguments, message):
    error = ValueError if message else TypeError
    with pytest.raises(error, match=message or "from a SequenceFeature.*'user'"):
        build_din(FEATURES, **{**DIN, **arguments})
