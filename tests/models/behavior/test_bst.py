import numpy as np
import pytest
from behavior_twins import FEATURES, FIXED, SMALL, X, check_twin
from helpers import array, check_model

from keras_recsys.models import build_bst
from keras_recsys.models.behavior.bst import WithTarget

BST = {**SMALL, "num_heads": 2}
SASREC = {
    **SMALL,
    "num_heads": 1,
    "include_target": False,
    "pre_norm": True,
    "projection_activation": "relu",
    "block_activation": "relu",
    "use_output_projection": False,
    "pooling": "flatten",
}


def test_contract_bst(tmp_path):
    check_model(
        lambda **names: build_bst(FEATURES, **BST, dropout=0.2, seed=1, **names),
        X,
        tmp_path,
    )


def test_equals_the_loop():
    def interests(twin):
        x = np.concatenate([twin.value, twin.target[None, None]], axis=1)
        mask = np.append(twin.mask, [[True]], axis=1)
        for i in range(2):
            x = twin.by_layer(f"block_{i}", x, mask=mask)
        return [x[0][mask[0]].mean(0)]

    check_twin(build_bst(FEATURES, **BST, num_blocks=2), interests)


def test_sasrec_equals_the_loop():
    def interests(twin):
        return [twin.by_layer("block_0", twin.value, mask=twin.mask)[0].ravel()]

    model = build_bst(FIXED, **SASREC, name="sasrec")
    block = model.get_layer("sasrec_block_0")
    assert block.pre_norm
    assert not block.use_output_projection
    assert block.activation.__name__ == block.projection_activation.__name__ == "relu"
    check_twin(model, interests)


def test_events_alone_can_be_averaged():
    def interests(twin):
        x = twin.by_layer("block_0", twin.value, mask=twin.mask)[0]
        return [x.sum(0) / max(twin.mask.sum(), 1)]

    check_twin(build_bst(FEATURES, **BST, include_target=False), interests)


def test_blocks_draw_on_their_own():
    model = build_bst(FEATURES, **BST, num_blocks=2, dropout=0.5, seed=3)
    assert [model.get_layer(f"bst_block_{i}").seed for i in (0, 1)] == [103, 203]


def test_the_target_is_the_last_step():
    value, query = np.zeros((2, 3, 4), "float32"), np.ones((2, 4), "float32")
    mask = np.zeros((2, 3), bool)
    steps, kept = WithTarget()(value, query, mask)
    np.testing.assert_array_equal(array(steps)[:, :3], value)
    np.testing.assert_array_equal(array(steps)[:, 3], query)
    np.testing.assert_array_equal(array(kept), [[False] * 3 + [True]] * 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pooling": "max"}, "`pooling` must be one of 'mean', 'flatten'.*'max'"),
        (
            {"pooling": "flatten"},
            "`pooling` must be 'mean' where.*no `max_len`.*'flatt",
        ),
        ({"num_blocks": 0}, "`num_blocks` must be at least 1.*=0"),
        ({"num_heads": 3}, "`num_heads` must be a divisor of dim, 4.*=3"),
    ],
)
def test_says_what_was_given(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_bst(FEATURES, **{**BST, **arguments})
