import keras
import numpy as np
import pytest
from optimizer_cases import (
    assert_close,
    fit,
    gradients,
    make_data,
    make_model,
    start,
    train,
)

from keras_recsys.layers import FullEmbedding, QREmbedding
from keras_recsys.optimizers import (
    LazyAdam,
    RowWiseAdagrad,
    SparseLossScaleOptimizer,
    SplitOptimizer,
)

SGD = keras.optimizers.SGD


@keras.saving.register_keras_serializable(package="tests")
def is_kernel(variable):
    return variable.name == "kernel"


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_each_optimizer_does_what_it_does_alone(jit_compile):
    steps = gradients([[0, 1, 1], [2, 0], [1, 1]])
    split = SplitOptimizer(
        RowWiseAdagrad(0.1, weight_decay=0.1),
        LazyAdam(0.1, clipnorm=0.5),
        tables=lambda variable: variable.name == "table",
    )
    table, kernel, _ = train(split, steps, jit_compile=jit_compile)
    want_table = train(RowWiseAdagrad(0.1, weight_decay=0.1), steps)[0]
    want_kernel = train(LazyAdam(0.1, clipnorm=0.5), steps)[1]
    assert_close([table, kernel], [want_table, want_kernel])
    for optimizer in (split, split.table_optimizer, split.dense_optimizer):
        assert int(optimizer.iterations) == 3


@pytest.mark.parametrize(
    ("embedding", "tables"),
    [
        (FullEmbedding, ["embeddings"]),
        (QREmbedding, ["quotient_embeddings", "remainder_embeddings"]),
        (keras.layers.Embedding, ["embeddings"]),
    ],
)
def test_tables_of_all_embeddings_are_found(embedding, tables):
    for table_moves in (True, False):
        rates = (0.1, 0.0) if table_moves else (0.0, 0.1)
        split = SplitOptimizer(*map(SGD, rates))
        model = make_model(split, embedding=embedding)
        before = model.get_weights()
        after = fit(model)
        names = [w.name for w in model.weights]
        assert names == [*tables, "kernel", "bias"]
        for name, a, b in zip(names, after, before, strict=True):
            assert (np.abs(a - b).max() > 0) == ((name in tables) == table_moves)


def test_vector_of_ids_outside_is_no_table():
    layer = FullEmbedding(20, 4, out_of_range="oov")
    layer.build()
    split = SplitOptimizer(RowWiseAdagrad(), LazyAdam())
    split.build(layer.trainable_variables)
    assert [v.shape for v in split.table_optimizer.variables[2:]] == [(20,)]
    assert [v.shape for v in split.dense_optimizer.variables[2:]] == [(1, 2, 4)]
    assert len(split.variables) == 2 + 3 + 3


def test_function_chooses_tables_and_survives_round_trips(tmp_path):
    model = make_model(SplitOptimizer(SGD(0.0), SGD(0.1), tables=is_kernel))
    table, kernel, _ = model.get_weights()
    after = fit(model)
    assert np.abs(after[0] - table).max() > 0
    np.testing.assert_array_equal(after[1], kernel)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    again = SplitOptimizer.from_config(model.optimizer.get_config())
    assert loaded.optimizer.tables is again.tables is is_kernel
    np.testing.assert_array_equal(fit(loaded)[1], kernel)


@pytest.mark.parametrize("wrap", [False, True])
def test_averages_are_those_of_the_dense_weights_alone(wrap):
    plain = make_model(SplitOptimizer(RowWiseAdagrad(0.1), SGD(0.1)))
    x, y = make_data()
    averages = None
    for i in range(3):
        plain.train_on_batch(x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8])
        dense = plain.get_weights()[1:]
        averages = averages or dense
        averages = [0.7 * a + 0.3 * d for a, d in zip(averages, dense, strict=True)]
    split = SplitOptimizer(
        RowWiseAdagrad(0.1), SGD(0.1, use_ema=True, ema_momentum=0.7)
    )
    table, *got = fit(make_model(SparseLossScaleOptimizer(split) if wrap else split))
    assert_close([table, *got], [plain.get_weights()[0], *averages])
    assert np.abs(got[0] - dense[0]).max() > 1e-3


def test_weight_decay_of_both_leaves_out_what_is_excluded():
    def split(decay):
        return SplitOptimizer(
            RowWiseAdagrad(0.1, weight_decay=decay), SGD(0.1, weight_decay=decay)
        )

    data = make_data(batches=1)
    optimizer = split(0.5)
    optimizer.exclude_from_weight_decay(var_names=["embeddings", "bias"])
    table, kernel, _ = fit(make_model(optimizer), data=data)
    plain_table, plain_kernel, _ = fit(make_model(split(None)), data=data)
    decayed = fit(make_model(split(0.5)), data=data)
    np.testing.assert_allclose(table, plain_table, rtol=1e-6)
    np.testing.assert_allclose(kernel, decayed[1], rtol=1e-6)
    assert np.abs(decayed[0] - plain_table).max() > 1e-4
    assert np.abs(kernel - plain_kernel).max() > 1e-4


def test_loss_scale_factor_changes_no_number():
    def split(factor):
        return SplitOptimizer(RowWiseAdagrad(0.1), SGD(0.1), loss_scale_factor=factor)

    assert float(split(64.0).scale_loss(2.0)) == 128
    assert_close(fit(make_model(split(64.0))), fit(make_model(split(None))))


def test_model_without_tables_or_without_others():
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(SplitOptimizer(RowWiseAdagrad(0.1), SGD(0.1)), "mse")
    before = model.get_weights()
    x, y = make_data()
    model.fit(x, y, verbose=0)
    assert np.abs(model.get_weights()[0] - before[0]).max() > 0

    everything = SplitOptimizer(LazyAdam(0.1), SGD(0.1), tables=lambda _: True)
    assert_close(fit(make_model(everything)), fit(make_model(LazyAdam(0.1))))


def test_rate_is_that_of_the_dense_optimizer_and_scales_both():
    split = SplitOptimizer(RowWiseAdagrad(0.5), SGD(0.1))
    assert float(split.learning_rate) == pytest.approx(0.1)
    split.learning_rate = 0.02
    assert float(split.learning_rate) == pytest.approx(0.02)
    assert float(split.dense_optimizer.learning_rate) == pytest.approx(0.02)
    assert float(split.table_optimizer.learning_rate) == pytest.approx(0.1)


def test_rate_of_zero_has_no_factor():
    split = SplitOptimizer(RowWiseAdagrad(0.5), SGD(0.1))
    split.learning_rate = 0.0
    with pytest.raises(ValueError, match="`learning_rate` must not be set where.*=0.1"):
        split.learning_rate = 0.1


def test_rate_of_a_schedule_cannot_be_set():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 9)
    split = SplitOptimizer(RowWiseAdagrad(0.5), SGD(schedule))
    with pytest.raises(TypeError, match="not settable"):
        split.learning_rate = 0.01
    assert float(split.table_optimizer.learning_rate) == pytest.approx(0.5)


def test_takes_what_keras_takes_for_optimizers():
    split = SplitOptimizer("adagrad", keras.optimizers.serialize(SGD(0.3)))
    assert type(split.table_optimizer) is keras.optimizers.Adagrad
    assert float(split.learning_rate) == pytest.approx(0.3)


def test_weight_without_a_gradient_is_named_and_waits():
    import tensorflow as tf

    variables = start()
    split = SplitOptimizer(SGD(0.1), SGD(0.1), tables=lambda v: v.name == "table")
    with pytest.warns(UserWarning, match="do not exist for variables.*kernel"):
        split.apply([tf.ones(variables[0].shape), None], variables)
    for got, before, step in zip(variables, start(), (0.1, 0.0), strict=True):
        np.testing.assert_allclose(before - got, step, atol=1e-6)


def test_other_variables_are_refused():
    import tensorflow as tf

    split = SplitOptimizer(SGD(0.1), SGD(0.1))
    split.build(start())
    with pytest.raises(ValueError, match="Unknown variable"):
        split.apply([tf.ones(())], [keras.Variable(1.0)])


@pytest.mark.parametrize(
    ("key", "optimizer", "message"),
    [
        (
            "table_optimizer",
            lambda: LazyAdam(loss_scale_factor=2.0),
            "have no `loss_scale_factor`.*=2.0",
        ),
        (
            "dense_optimizer",
            lambda: SGD(gradient_accumulation_steps=3),
            "have no `gradient_accumulation_steps`.*=3",
        ),
        (
            "dense_optimizer",
            lambda: SparseLossScaleOptimizer(SGD()),
            "not scale the loss.*wrap the `SplitOptimizer`.*dense_optimizer=<",
        ),
        (
            "table_optimizer",
            lambda: keras.optimizers.LossScaleOptimizer(SGD()),
            "not scale the loss.*wrap the `SplitOptimizer`.*table_optimizer=<",
        ),
    ],
)
def test_says_which_optimizer_is_refused(key, optimizer, message):
    both = {"table_optimizer": SGD(), "dense_optimizer": SGD(), key: optimizer()}
    with pytest.raises(ValueError, match=f"`{key}` must {message}"):
        SplitOptimizer(**both)


def test_one_optimizer_is_not_two():
    sgd = SGD()
    with pytest.raises(ValueError, match="`dense_optimizer` must be another.*twice"):
        SplitOptimizer(sgd, sgd)


def test_tables_must_be_a_function():
    with pytest.raises(TypeError, match=r"`tables` must be .*tables=\['embeddings'\]"):
        SplitOptimizer(SGD(), SGD(), tables=["embeddings"])


def test_a_schedule_cannot_be_set_later():
    split = SplitOptimizer(LazyAdam(0.1), keras.optimizers.Adam(0.1))
    with pytest.raises(TypeError, match="`learning_rate` must be a number"):
        split.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)


def test_gradients_need_their_variables():
    split = SplitOptimizer(LazyAdam(0.1), keras.optimizers.Adam(0.1))
    split.apply([])  # nothing, as in Keras
    with pytest.raises(ValueError, match="`trainable_variables` must be given"):
        split.apply([1.0])


@pytest.mark.parametrize("scaled", [False, True])
def test_the_state_of_a_table_is_saved_once(scaled, tmp_path):
    optimizer = SplitOptimizer(LazyAdam(0.1), keras.optimizers.Adam(0.1))
    if scaled:
        optimizer = SparseLossScaleOptimizer(optimizer)
    ids = keras.Input((), dtype="int32")
    table = FullEmbedding(20_000, 8, out_of_range="nan")
    model = keras.Model(ids, keras.layers.Dense(1)(table(ids)))
    model.compile(optimizer, "mse")
    x, y = np.arange(8), np.ones((8, 1), "float32")
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "m.keras")
    assert (tmp_path / "m.keras").stat().st_size < 3.5 * 20_000 * 8 * 4
    loaded = keras.models.load_model(tmp_path / "m.keras")
    old, new = model.optimizer.variables, loaded.optimizer.variables
    assert len(old) == len(new)
    for a, b in zip(old, new, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert model.train_on_batch(x, y) == loaded.train_on_batch(x, y)


def test_state_of_another_optimizer_is_refused():
    split = SplitOptimizer(LazyAdam(0.1), keras.optimizers.Adam(0.1))
    with pytest.raises(ValueError, match="must have 2 variables. Received: 1"):
        split.load_own_variables({"0": 1.0})
