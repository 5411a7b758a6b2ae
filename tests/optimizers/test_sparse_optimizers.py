import functools
import importlib.util
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from optimizer_cases import (
    TWINS,
    VOCAB,
    assert_close,
    fit,
    gradients,
    make_data,
    make_model,
    start,
    state,
    tensors_as_large_as,
    train,
)

import keras_recsys.optimizers
from keras_recsys.layers import FullEmbedding, QREmbedding
from keras_recsys.optimizers import (
    LazyAdam,
    RowWiseAdagrad,
    SparseAdagrad,
    SparseFtrl,
    SparseLossScaleOptimizer,
    SplitOptimizer,
    _sparse_optimizer,
)

ROOT = pathlib.Path(__file__).parents[2]
IDS = [5, 2, 5, 5, 0, 2]
TOUCHED = [0, 2, 5]
WAITING = [1, 3, 4, 6, 7, 8]
SETTINGS = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.7},
    "global_clipnorm": {"global_clipnorm": 0.7},
    "clipvalue": {"clipvalue": 0.4},
    "loss_scale_factor": {"loss_scale_factor": 8.0},
    "weight_decay": {"weight_decay": 0.3},
}
OPTIMIZERS = {
    "lazy_adam": lambda **kw: LazyAdam(0.1, **kw),
    "row_wise_adagrad": lambda **kw: RowWiseAdagrad(0.1, **kw),
    "sparse_adagrad": lambda **kw: SparseAdagrad(0.1, **kw),
    "sparse_ftrl": lambda **kw: SparseFtrl(0.1, l1=0.001, **kw),
}
# Each twin with each setting; `l2` takes the place of weight decay in `SparseFtrl`.
CASES = [
    (name, setting)
    for name in TWINS
    for setting in SETTINGS
    if (name, setting) != ("sparse_ftrl", "weight_decay")
]
# Optimizers made of others, which have no settings of their own.
COMPOSED = {
    "split": lambda: SplitOptimizer(
        RowWiseAdagrad(0.1), keras.optimizers.Adam(0.02, clipnorm=1.0)
    ),
    "loss_scale": lambda: SparseLossScaleOptimizer(LazyAdam(0.1), 64.0, 2),
    "loss_scale_of_split": lambda: SparseLossScaleOptimizer(
        SplitOptimizer(SparseAdagrad(0.1), LazyAdam(0.02)), 64.0
    ),
}


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(("name", "setting"), CASES)
def test_step_is_the_dense_step_on_the_rows_of_the_batch(name, setting, jit_compile):
    ours, twin = (make(**SETTINGS[setting]) for make in TWINS[name])
    steps = gradients([IDS])
    table, kernel, slots = train(ours, steps, jit_compile=jit_compile)
    want_table, want_kernel, want_slots = train(twin, steps, dense=True)

    before = start()[0].numpy()
    assert np.abs(want_table[TOUCHED] - before[TOUCHED]).min() > 1e-4
    assert_close([table[TOUCHED], kernel], [want_table[TOUCHED], want_kernel])
    np.testing.assert_array_equal(table[WAITING], before[WAITING])

    assert set(slots) == set(want_slots)
    fresh = TWINS[name][0]()
    fresh.build(start())
    for key, first in state(fresh).items():
        if key.startswith("table"):
            assert_close([slots[key][TOUCHED]], [want_slots[key][TOUCHED]])
            np.testing.assert_array_equal(slots[key][WAITING], first[WAITING])
        else:
            assert_close([slots[key]], [want_slots[key]])


@pytest.mark.parametrize("name", TWINS)
def test_setting_matters(name):
    """Else the test above could pass with the setting ignored by both."""
    steps = gradients([IDS, IDS])
    tables = {}
    for key, setting in CASES:
        if key == name:
            tables[setting] = train(TWINS[name][0](**SETTINGS[setting]), steps)[0]
    plain = tables.pop("plain")
    for table in tables.values():
        assert np.abs(table - plain).max() > 1e-5


@pytest.mark.parametrize(("name", "setting"), CASES)
def test_dense_gradients_give_the_numbers_of_keras(name, setting):
    steps = gradients([IDS, [1], [2, 3, 3], [8, 0], IDS, [4]] * 3)
    ours, twin = (make(**SETTINGS[setting]) for make in TWINS[name])
    *weights, slots = train(ours, steps, dense=True)
    *want, want_slots = train(twin, steps, dense=True)
    assert_close(weights, want)
    assert_close(slots.values(), [want_slots[key] for key in slots])


@pytest.mark.parametrize("name", TWINS)
def test_rows_of_weights_of_rank_1_and_3(name):
    import tensorflow as tf

    ids = np.array([3, 1, 3])
    rng = np.random.default_rng(2)
    for shape in [(5,), (5, 2, 3)]:
        values = rng.normal(size=(3, *shape[1:])).astype("float32")
        dense = np.zeros(shape, "float32")
        np.add.at(dense, ids, values)
        results = []
        for make, sparse in zip(TWINS[name], (True, False), strict=True):
            weight = keras.Variable(np.arange(np.prod(shape)).reshape(shape) / 10.0)
            rows = tf.IndexedSlices(tf.constant(values), tf.constant(ids))
            make(clipnorm=0.5).apply([rows if sparse else tf.constant(dense)], [weight])
            results.append(weight.numpy()[[1, 3]])
        assert_close(*results)


@pytest.mark.parametrize("name", TWINS)
def test_batch_without_ids_changes_nothing(name):
    table, _, slots = train(TWINS[name][0](clipnorm=1.0), gradients([[]]))
    np.testing.assert_array_equal(table, start()[0].numpy())
    assert slots["iteration"] == 1


@pytest.mark.parametrize(
    ("name", "embedding"),
    [*((name, FullEmbedding) for name in OPTIMIZERS), ("lazy_adam", QREmbedding)],
)
def test_schedule_is_the_rate_set_by_hand(name, embedding):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.3)
    results = []
    for by_hand in (False, True):
        optimizer = OPTIMIZERS[name]()
        if not by_hand:
            config = {**optimizer.get_config(), "learning_rate": schedule}
            optimizer = type(optimizer).from_config(config)
        model = make_model(optimizer, embedding=embedding)
        x, y = make_data()
        for i in range(3):
            if by_hand:
                optimizer.learning_rate = schedule(i)
            fit(model, data=(x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8]))
        results.append(model.get_weights())
    assert_close(*results)
    constant = fit(make_model(OPTIMIZERS[name](), embedding=embedding))
    assert np.abs(constant[0] - results[0][0]).max() > 1e-4


@pytest.mark.parametrize("name", [*OPTIMIZERS, "split", "loss_scale_of_split"])
def test_callbacks_set_the_rate(name):
    make = {**OPTIMIZERS, **COMPOSED}[name]
    model = make_model(make())
    first = float(model.optimizer.learning_rate)
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    weights = fit(model, epochs=2, callbacks=[halve])
    assert float(model.optimizer.learning_rate) == pytest.approx(first / 4)

    by_hand = make_model(make())
    for rate in (first / 2, first / 4):
        by_hand.optimizer.learning_rate = rate
        want = fit(by_hand)
    assert_close(weights, want)
    assert np.abs(weights[0] - fit(make_model(make()), epochs=2)[0]).max() > 1e-4

    plateau = keras.callbacks.ReduceLROnPlateau(
        "loss", factor=0.1, patience=1, min_delta=1e9
    )
    fit(model, epochs=3, callbacks=[plateau])
    assert float(model.optimizer.learning_rate) < first / 39


@pytest.mark.parametrize("excluded", ["embeddings", "kernel"])
@pytest.mark.parametrize("name", ["lazy_adam", "row_wise_adagrad", "sparse_adagrad"])
def test_weight_decay_leaves_out_what_is_excluded(name, excluded):
    data = make_data(batches=1)
    plain = fit(make_model(OPTIMIZERS[name]()), data=data)
    optimizer = OPTIMIZERS[name](weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=[excluded])
    model = make_model(optimizer)
    before = model.get_weights()
    decayed = fit(model, data=data)
    for i, key in enumerate(["embeddings", "kernel"]):
        want = plain[i] - (key != excluded) * 0.1 * 0.5 * before[i]
        if key == "embeddings":  # rows that were not read do not shrink
            waiting = np.setdiff1d(np.arange(20), data[0])
            want[waiting] = before[i][waiting]
        np.testing.assert_allclose(decayed[i], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*OPTIMIZERS, *COMPOSED])
def test_saved_model_goes_on_where_it_was(name, tmp_path):
    model = make_model({**OPTIMIZERS, **COMPOSED}[name]())
    fit(model, epochs=2)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert int(loaded.optimizer.iterations) == 6
    assert len(loaded.optimizer.variables) == len(model.optimizer.variables) > 4
    for a, b in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        assert a.path.split("/")[-1] == b.path.split("/")[-1]
        np.testing.assert_array_equal(a, b)
    before = model.get_weights()
    after = fit(model)
    assert np.abs(after[0] - before[0]).max() > 1e-4
    for a, b in zip(fit(loaded), after, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", [*OPTIMIZERS, *COMPOSED])
def test_trained_model_is_exported(name, tmp_path):
    import tensorflow as tf

    model = make_model({**OPTIMIZERS, **COMPOSED}[name]())
    fit(model)
    x, _ = make_data()
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(
        served.serve(x), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: LazyAdam(0.2, 0.7, 0.8, 1e-3, True, clipnorm=2.0, name="mine"),
        lambda: RowWiseAdagrad(0.2, 0.3, 1e-3, weight_decay=0.1),
        lambda: SparseAdagrad(0.2, 0.3, 1e-3, global_clipnorm=2.0),
        lambda: SparseFtrl(0.2, 0.3, 0.4, 0.5, 0.6, clipvalue=2.0),
        lambda: LazyAdam(keras.optimizers.schedules.CosineDecay(0.1, 9)),
        lambda: LazyAdam(1, loss_scale_factor=4.0),
        *COMPOSED.values(),
    ],
)
def test_config_round_trips(optimizer):
    optimizer = optimizer()
    config = optimizer.get_config()
    arguments = set(inspect.signature(type(optimizer)).parameters) - {"kwargs"}
    assert arguments | {"name"} <= set(config)
    assert type(optimizer).from_config(json.loads(json.dumps(config))).get_config() == (
        config
    )
    serialized = keras.optimizers.serialize(optimizer)
    assert serialized["registered_name"] == f"keras_recsys>{type(optimizer).__name__}"
    again = keras.optimizers.deserialize(serialized)
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()


@pytest.mark.parametrize("name", [*OPTIMIZERS, "split", "loss_scale_of_split"])
def test_frozen_table_stays_and_has_no_state(name):
    make = {**OPTIMIZERS, **COMPOSED}[name]
    model = make_model(make(), vocab=VOCAB, trainable=False)
    table, kernel, _ = model.get_weights()
    after = fit(model)
    np.testing.assert_array_equal(after[0], table)
    assert np.abs(after[1] - kernel).max() > 1e-4
    assert all(VOCAB not in v.shape for v in model.optimizer.variables)


@pytest.mark.parametrize("name", [*OPTIMIZERS, *COMPOSED])
def test_constraint_of_a_table_is_kept(name):
    embedding = functools.partial(FullEmbedding, embeddings_constraint="non_neg")
    model = make_model({**OPTIMIZERS, **COMPOSED}[name](), embedding=embedding)
    assert model.get_weights()[0].min() < 0
    table = fit(model)[0]
    assert (table >= 0).all()
    assert table.max() > 0.06  # above the 0.05 of the start


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_table_that_is_read_twice_gets_the_sum(name, jit_compile):
    """Two layers of ids in one batch, or the same ids in one longer row."""
    x, y = make_data()
    want = fit(make_model(OPTIMIZERS[name]()))

    keras.utils.set_random_seed(3)
    inputs = {key: keras.Input((1,), dtype="int32", name=key) for key in "ab"}
    table = FullEmbedding(20, 4, out_of_range="nan")
    both = [keras.layers.Flatten()(table(ids)) for ids in inputs.values()]
    output = keras.layers.Dense(1)(keras.layers.Concatenate()(both))
    model = keras.Model(inputs, output)
    model.compile(OPTIMIZERS[name](), "mse", jit_compile=jit_compile)
    model.set_weights(make_model(OPTIMIZERS[name]()).get_weights())
    assert_close(fit(model, data=({"a": x[:, :1], "b": x[:, 1:]}, y)), want)


@pytest.mark.parametrize("name", [*OPTIMIZERS, *COMPOSED])
def test_xla_gives_the_same_fit(name):
    make = {**OPTIMIZERS, **COMPOSED}[name]
    models = [make_model(make(), jit_compile=jit) for jit in (False, True)]
    want, got = (fit(model, epochs=2) for model in models)
    assert_close(got, want)
    assert np.abs(want[0] - make_model(make()).get_weights()[0]).max() > 1e-2
    a, b = (model.optimizer.variables for model in models)
    assert_close(b, a)


@pytest.mark.parametrize("setting", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_xla_gives_the_same_fit_when_it_clips(setting):
    results = [
        fit(make_model(LazyAdam(0.1, **{setting: 0.01}), jit_compile=jit))
        for jit in (False, True)
    ]
    assert_close(*results)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_loss_scale_factor_changes_no_number(name, policy):
    keras.config.set_dtype_policy(policy)
    models = [
        make_model(OPTIMIZERS[name](loss_scale_factor=factor), auto_scale_loss=False)
        for factor in (None, 128.0)
    ]
    want, got = map(fit, models)
    tolerance = 1e-6 if policy == "float32" else 5e-2
    assert_close(got, want, rtol=0, atol=tolerance)
    assert float(models[1].optimizer.scale_loss(1.0)) == 128


def test_loss_scale_factor_keeps_gradients_that_are_0_in_float16():
    keras.config.set_dtype_policy("mixed_float16")
    x, y = make_data(batches=1)
    moved = []
    for factor in (None, 2.0**15):
        optimizer = LazyAdam(0.1, loss_scale_factor=factor)
        model = make_model(optimizer, auto_scale_loss=False)
        assert model.optimizer is optimizer
        before = model.get_weights()[0]
        model.fit(x, y, 8, sample_weight=np.full(8, 1e-9), verbose=0)
        moved.append(np.abs(model.get_weights()[0] - before).max())
    assert moved[0] == 0
    assert moved[1] > 1e-5


SMALL_STEPS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "sgd_clipped": lambda: keras.optimizers.SGD(0.1, clipnorm=1.0),
    **{
        f"{name}_{setting}": functools.partial(make, **SETTINGS[setting])
        for name, make in OPTIMIZERS.items()
        for setting in ("plain", "clipnorm", "global_clipnorm", "weight_decay")
        if (name, setting) in CASES
    },
    "amsgrad_clipvalue": lambda: LazyAdam(0.1, clipvalue=0.1, amsgrad=True),
    "lazy_adam_loss_scale": lambda: LazyAdam(0.1, loss_scale_factor=4.0),
    "split": lambda: SplitOptimizer(
        RowWiseAdagrad(0.1, clipnorm=1.0), keras.optimizers.Adam(use_ema=True)
    ),
}


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((name, "float32") for name in SMALL_STEPS),
        *((f"{name}_plain", "mixed_float16") for name in OPTIMIZERS),
        ("sgd", "mixed_float16"),
        ("split", "mixed_float16"),
        ("lazy_adam_plain", "mixed_bfloat16"),
    ],
)
def test_step_makes_nothing_as_large_as_a_large_table(name, policy, monkeypatch):
    monkeypatch.setattr(_sparse_optimizer, "LARGE_TABLE", VOCAB - 1)
    keras.config.set_dtype_policy(policy)
    optimizer = SMALL_STEPS[name]()
    if policy == "mixed_float16":
        optimizer = SparseLossScaleOptimizer(optimizer, 16.0)
    assert not large_tensors(optimizer)


@pytest.mark.parametrize(
    "name",
    [
        *(f"{name}_plain" for name in OPTIMIZERS),
        "amsgrad_clipvalue",
        "lazy_adam_weight_decay",
    ],
)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_small_and_large_tables_step_alike(name, jit_compile, monkeypatch):
    """Both ways to update rows: all at once, and by a list of the distinct ones."""
    x, y = make_data(batches=4)
    trained = []
    for rows_an_id in (0, 10**6):  # of which one is always and one never enough
        monkeypatch.setattr(_sparse_optimizer, "ROWS_AN_ID", rows_an_id)
        model = make_model(SMALL_STEPS[name](), jit_compile=jit_compile)
        model.fit(x, y, 8, verbose=0)
        states = [v.numpy() for v in model.optimizer.variables]
        trained.append([*model.get_weights(), *states])
    assert_close(*trained, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(0.1),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
        lambda: SparseLossScaleOptimizer(keras.optimizers.Adam(0.1)),
    ],
    ids=["adam", "loss_scale", "adam_in_a_branch"],
)
def test_steps_of_keras_make_tensors_as_large_as_the_table(optimizer):
    """The check of the test above finds them, also in graphs inside the graph."""
    assert large_tensors(optimizer())


def large_tensors(optimizer):
    model = make_model(optimizer, vocab=VOCAB)
    data = make_data(vocab=VOCAB, batches=1)
    model.train_on_batch(*data)
    assert np.isfinite(model.get_weights()[0]).all()
    return tensors_as_large_as(VOCAB, model, data)


ON_TWO_DEVICES = """
import json, sys
import keras, numpy as np, tensorflow as tf

sys.path[:0] = ["tests", "tests/optimizers"]
cpu = tf.config.list_physical_devices("CPU")[0]
halves = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
tf.config.set_logical_device_configuration(cpu, halves)
from optimizer_cases import make_model
from keras_recsys.optimizers import *

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2
rng = np.random.default_rng(0)
# Both devices read ids 0 to 4, and the second some of its own.
x = np.concatenate([rng.integers(0, 5 + 3 * (i % 2), (4, 2)) for i in range(4)])
y = rng.normal(size=(16, 1)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x.astype("int32"), y)).batch(8)
sgd, adam = keras.optimizers.SGD, keras.optimizers.Adam
optimizers = {
    "lazy_adam": lambda: LazyAdam(0.1),
    "row_wise_adagrad": lambda: RowWiseAdagrad(0.1),
    "sparse_adagrad": lambda: SparseAdagrad(0.1, weight_decay=0.1),
    "sparse_ftrl": lambda: SparseFtrl(0.1, l1=0.001),
    "split": lambda: SplitOptimizer(RowWiseAdagrad(0.1), adam(0.1)),
    "ema": lambda: SplitOptimizer(LazyAdam(0.1), sgd(0.1, use_ema=True)),
    "loss_scale": lambda: SparseLossScaleOptimizer(LazyAdam(0.1), 16.0),
}

def apart(one, two):
    return [float(np.abs(a - b).max()) for a, b in zip(one, two, strict=True)]

out = {}
for name, make in optimizers.items():
    one = make_model(make())
    start = one.get_weights()
    one.fit(data, verbose=0)
    with strategy.scope():
        two = make_model(make())
    two.set_weights(start)
    two.fit(data, verbose=0)
    copies = [strategy.experimental_local_results(w.value) for w in two.weights]
    first, second = ([c[i].numpy() for c in copies] for i in range(2))
    out[name] = {
        "moved": apart(one.get_weights(), start),
        "wrong": apart(one.get_weights(), first),
        "apart": apart(first, second),
    }
print("RESULT" + json.dumps(out))
"""


@pytest.fixture(scope="module")
def on_two_devices():
    return json.loads(run(ON_TWO_DEVICES).split("RESULT")[1])


def run(code, **env):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": ".", **env},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OPTIMIZERS, "split", "ema", "loss_scale"])
def test_two_devices_are_one(name, on_two_devices):
    result = on_two_devices[name]
    assert min(result["moved"]) > 1e-3
    assert max(result["wrong"]) < 1e-5
    assert max(result["apart"]) == 0


@pytest.mark.parametrize("make", OPTIMIZERS.values())
@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("use_ema", True, "average of every row"),
        ("gradient_accumulation_steps", 2, "as large as the table"),
    ],
)
def test_refuses_what_touches_whole_tables(make, key, value, reason):
    name = type(make()).__name__
    with pytest.raises(
        ValueError,
        match=f"`{key}` must be left out of `{name}`: .*{reason}.*SplitOptimizer"
        f".*Received: {key}={value}",
    ):
        make(**{key: value})


@pytest.mark.parametrize(
    ("optimizer", "key", "value"),
    [
        (LazyAdam, "beta_1", 1.0),
        (LazyAdam, "beta_1", -0.1),
        (LazyAdam, "beta_2", 1),
        (LazyAdam, "beta_2", float("nan")),
        (LazyAdam, "epsilon", 0),
        (RowWiseAdagrad, "epsilon", 0.0),
        (RowWiseAdagrad, "initial_accumulator_value", -0.1),
        (SparseAdagrad, "epsilon", -1e-7),
        (SparseAdagrad, "initial_accumulator_value", float("inf")),
        (SparseFtrl, "initial_accumulator_value", -1),
        (SparseFtrl, "l1", -1),
        (SparseFtrl, "l2", "1"),
        (SparseFtrl, "beta", -0.5),
    ],
)
def test_says_what_argument_was_wrong(optimizer, key, value):
    received = re.escape(f"{key}={value!r}")
    with pytest.raises(ValueError, match=f"`{key}` must be a number .*{received}"):
        optimizer(**{key: value})


def test_names_arguments_that_nobody_knows():
    with pytest.raises(ValueError, match="not recognized.*momentum"):
        LazyAdam(momentum=0.9)


@pytest.mark.backends
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_says_that_it_needs_tensorflow(backend):
    if importlib.util.find_spec(backend) is None and "CI" not in os.environ:
        pytest.skip(f"{backend} is not installed")
    code = """
import keras, keras_recsys.optimizers as optimizers
sgd = keras.optimizers.SGD
arguments = {"SparseLossScaleOptimizer": (sgd(),), "SplitOptimizer": (sgd(), sgd())}
for name in optimizers.__all__:
    try:
        getattr(optimizers, name)(*arguments.get(name, ()))
    except RuntimeError as error:
        print(error)
"""
    lines = run(code, KERAS_BACKEND=backend).splitlines()
    for name, line in zip(keras_recsys.optimizers.__all__, lines, strict=True):
        assert line.startswith(f"`{name}` needs the TensorFlow backend")
        assert line.endswith(f"Received: backend '{backend}'.")


@pytest.mark.parametrize("ids", [[3], [3, 3], [3, 3, 3, 3], []])
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("name", TWINS)
def test_batches_of_few_ids(name, jit_compile, ids):
    ours, twin = (make() for make in TWINS[name])
    steps = gradients([ids] * 2)
    *weights, _ = train(ours, steps, jit_compile=jit_compile)
    *want, _ = train(twin, steps, dense=True)
    touched = sorted(set(ids))
    assert_close([weights[0][touched], weights[1]], [want[0][touched], want[1]])
    waiting = [i for i in range(len(want[0])) if i not in ids]
    np.testing.assert_array_equal(weights[0][waiting], start()[0].numpy()[waiting])


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("name", TWINS)
def test_rows_with_a_gradient_of_0_wait(name, jit_compile):
    """Padding and ids out of range are read as row 0, with a gradient of 0."""
    optimizer = TWINS[name][0](weight_decay=None)
    steps = gradients([[0, 1], [0, 2]])
    steps[1][0][0] = 0.0  # of row 0, in the second step
    table, _, states = train(optimizer, steps, jit_compile=jit_compile)
    first, _, first_states = train(TWINS[name][0](), steps[:1], jit_compile=jit_compile)
    np.testing.assert_array_equal(table[0], first[0])
    for key in first_states:
        if key.startswith("table"):
            np.testing.assert_array_equal(states[key][0], first_states[key][0])
    assert np.abs(table[2] - first[2]).max() > 0
