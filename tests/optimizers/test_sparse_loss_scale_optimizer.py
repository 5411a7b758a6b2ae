import keras
import numpy as np
import pytest
from optimizer_cases import assert_close, fit, make_data, make_model, start

from keras_recsys.optimizers import (
    LazyAdam,
    RowWiseAdagrad,
    SparseAdagrad,
    SparseFtrl,
    SparseLossScaleOptimizer,
    SplitOptimizer,
)

INNER = {
    "lazy_adam": lambda: LazyAdam(0.1),
    "row_wise_adagrad": lambda: RowWiseAdagrad(0.1, clipnorm=1.0),
    "sparse_adagrad": lambda: SparseAdagrad(0.1, weight_decay=0.1),
    "sparse_ftrl": lambda: SparseFtrl(0.1),
    "split": lambda: SplitOptimizer(RowWiseAdagrad(0.1), keras.optimizers.Adam(0.02)),
}


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_sees_one_bad_number_in_a_row_or_a_kernel(bad):
    import tensorflow as tf

    optimizer = SparseLossScaleOptimizer(keras.optimizers.SGD())
    good, wrong = np.ones((2, 3), "float32"), np.ones((2, 3), "float32")
    wrong[1, 2] = bad
    for rows, kernel in [(good, good), (wrong, good), (good, wrong)]:
        rows_of = tf.IndexedSlices(tf.constant(rows), tf.constant([3, 3]))
        finite = optimizer.check_finite([rows_of, None, tf.constant(kernel)])
        assert bool(finite) == (rows is good and kernel is good)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("name", INNER)
def test_bad_step_is_skipped_and_good_ones_train(name, policy):
    keras.config.set_dtype_policy(policy)
    optimizer = SparseLossScaleOptimizer(INNER[name](), 64.0, 3)
    model = make_model(optimizer)
    assert model.optimizer is optimizer  # Keras wraps no second time
    x, y = make_data(batches=1)
    model.train_on_batch(x, y)
    before = model.get_weights()
    state = [np.array(v) for v in optimizer.inner_optimizer.variables]

    bad = y.copy()
    bad[3] = np.inf
    model.train_on_batch(x, bad)
    assert float(optimizer.dynamic_scale) == 32
    assert int(optimizer.iterations) == 1
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(optimizer.inner_optimizer.variables, state, strict=True):
        np.testing.assert_array_equal(a, b)

    losses = [float(model.train_on_batch(x, y)) for _ in range(3)]
    assert np.isfinite(losses).all()
    assert int(optimizer.iterations) == 4
    assert float(optimizer.dynamic_scale) == 64  # doubled after three good steps
    for a, b in zip(model.get_weights(), before, strict=True):
        assert np.abs(a - b).max() > 1e-4


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("name", INNER)
def test_changes_no_number(name, jit_compile):
    scaled = SparseLossScaleOptimizer(INNER[name](), 64.0)
    got = fit(make_model(scaled, jit_compile=jit_compile))
    assert_close(got, fit(make_model(INNER[name]())))


def test_half_precision_trains_like_float32():
    want = fit(make_model(RowWiseAdagrad(0.1)))
    keras.config.set_dtype_policy("mixed_float16")
    model = make_model(SparseLossScaleOptimizer(RowWiseAdagrad(0.1)))
    before = model.get_weights()
    assert_close(fit(model), want, rtol=0, atol=5e-3)
    assert np.abs(want[0] - before[0]).max() > 0.1


def test_applies_gradients_by_hand():
    import tensorflow as tf

    variables = start()
    optimizer = SparseLossScaleOptimizer(keras.optimizers.SGD(0.5), 4.0)
    rows = tf.IndexedSlices(tf.fill((2, 3), 4.0), tf.constant([1, 1]))
    optimizer.apply([rows, tf.fill((4, 2), 8.0)], variables)
    table, kernel = (b - a.numpy() for a, b in zip(variables, start(), strict=True))
    np.testing.assert_allclose(table[1], 1.0, atol=1e-6)  # 0.5 (4 + 4) / 4
    np.testing.assert_array_equal(np.delete(table, 1, axis=0), 0.0)
    np.testing.assert_allclose(kernel, 1.0, atol=1e-6)


def test_rate_is_that_of_the_inner_optimizer():
    optimizer = SparseLossScaleOptimizer(INNER["split"]())
    optimizer.learning_rate = 0.01
    inner = optimizer.inner_optimizer
    assert float(optimizer.learning_rate) == pytest.approx(0.01)
    assert float(inner.table_optimizer.learning_rate) == pytest.approx(0.05)
