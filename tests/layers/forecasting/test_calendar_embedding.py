import json

import keras
import numpy as np
import pytest
from golden_files import golden, load
from helpers import (
    BACKEND,
    FLOATS,
    array,
    check_layer,
    output_and_gradients,
    tensor,
)
from twins import DTYPE, assert_near, check_twin, slopes

from keras_recsys._initializers import FanInUniform
from keras_recsys.layers import (
    CalendarEmbedding,
    PositionalEncoding,
    TokenEmbedding,
)

RNG = np.random.default_rng(0)
SCALED = RNG.uniform(-0.5, 0.5, size=(3, 4, 4)).astype("float32")
# month, day, weekday, hour
MARKS = np.stack(
    [RNG.integers(low, high, (3, 4)) for low, high in ((1, 13), (1, 32), (0, 7))]
    + [RNG.integers(0, 24, (3, 4))],
    axis=-1,
).astype("int32")
FIELDS = {
    "s": ("month", "day", "weekday", "hour", "minute"),
    "15min": ("month", "day", "weekday", "hour", "minute"),
    "3h": ("month", "day", "weekday", "hour"),
    "d": ("month", "day", "weekday"),
    "b": ("month", "day", "weekday"),
    "W-SUN": ("month",),
    "MS": ("month",),
    "q": ("month",),
}
SIZES = {"month": 13, "day": 32, "weekday": 7, "hour": 24, "minute": 4}


def sum_loop(marks, tables):
    """The sum of the docstring, one step and field at a time."""
    out = np.zeros((*marks.shape[:2], tables[0].shape[1]))
    for b, t, f in np.ndindex(*marks.shape):
        out[b, t] += tables[f][marks[b, t, f]]
    return out


def sinusoid_table(size, dim):
    table = np.zeros((size, dim))
    for value, j in np.ndindex(table.shape):
        angle = value * 10000 ** (-2 * (j // 2) / dim)
        table[value, j] = np.cos(angle) if j % 2 else np.sin(angle)
    return table


def test_contract_of_scaled_features(tmp_path):
    check_layer(
        lambda: CalendarEmbedding(
            3,
            "2h",
            kernel_initializer=FanInUniform(seed=1),
            bias_initializer=FanInUniform(seed=1),
        ),
        SCALED,
        tmp_path,
    )


def test_contract_of_learned_tables(tmp_path):
    check_layer(
        lambda: CalendarEmbedding(
            3,
            embedding="learned",
            embeddings_initializer=keras.initializers.RandomNormal(seed=1),
        ),
        MARKS,
        tmp_path,
    )


def test_contract_of_fixed_tables(tmp_path):
    check_layer(
        lambda: CalendarEmbedding(3, embedding="fixed"),
        MARKS,
        tmp_path,
        gradients=False,
    )


def test_scaled_features_equal_the_formula():
    check_twin(
        CalendarEmbedding(3, dtype=DTYPE),
        SCALED,
        lambda x, kernel, bias: np.einsum("btf,fd->btd", x, kernel) + bias,
    )


@pytest.mark.parametrize("frequency", FIELDS)
def test_tables_equal_the_loop(frequency):
    fields = FIELDS[frequency]
    sizes = [SIZES[field] for field in fields]
    marks = np.stack([RNG.integers(0, size, (2, 3)) for size in sizes], axis=-1)
    marks = marks.astype("int32")
    layer = CalendarEmbedding(2, frequency, embedding="learned", dtype=DTYPE)
    assert layer.fields == fields
    layer.build(marks.shape)
    assert [w.name for w in layer.weights] == [f"{f}_embeddings" for f in fields]
    assert [len(w) for w in layer.get_weights()] == sizes
    tables = [w.astype("float64") for w in layer.get_weights()]
    coef = RNG.normal(size=(2, 3, 2))
    got, gradients = output_and_gradients(layer, marks, coef)
    assert_near(got, sum_loop(marks, tables))
    for i, gradient in enumerate(gradients):
        want = slopes(lambda *tables: sum_loop(marks, tables), tables, i, coef)
        assert_near(gradient, want)
    fixed = CalendarEmbedding(5, frequency, embedding="fixed", dtype=DTYPE)
    tables = [sinusoid_table(size, 5) for size in sizes]
    assert_near(array(fixed(marks)), sum_loop(marks, tables))
    assert not fixed.weights


def test_by_hand():
    layer = CalendarEmbedding(1, "d", embedding="learned")
    layer.build((None, None, 3))
    parts = ((13, 1e4), (32, 100.0), (7, 1.0))
    layer.set_weights([np.arange(size)[:, None] * part for size, part in parts])
    # The 31st of December, a Sunday, and the 1st of January, a Monday.
    got = array(layer(np.array([[[12, 31, 6], [1, 1, 0]]], "int32")))
    np.testing.assert_array_equal(got.ravel(), [123106.0, 10100.0])


@pytest.mark.parametrize(
    ("frequency", "count"),
    [("s", 6), ("30min", 5), ("h", 4), ("D", 3), ("b", 3), ("w", 2), ("m", 1)],
)
def test_scaled_features_of_each_unit(frequency, count):
    layer = CalendarEmbedding(3, frequency)
    assert len(layer.fields) == count
    layer.build((None, None, count))
    assert layer.dense.kernel.shape == (count, 3)
    with pytest.raises(ValueError, match=rf"batch_size, seq_len, {count}\), the feat"):
        CalendarEmbedding(3, frequency).build((None, None, count + 1))


def test_tables_start_normal_and_each_for_itself():
    for initializer in (None, keras.initializers.RandomNormal(stddev=1.0, seed=5)):
        layer = CalendarEmbedding(
            500, embedding="learned", embeddings_initializer=initializer
        )
        layer.build((None, None, 4))
        tables = layer.get_weights()
        for table in tables:
            assert abs(table.std() - 1) < 0.05
        assert all(np.abs(a[0] - tables[0][0]).max() > 1 for a in tables[1:])


@pytest.mark.parametrize("embedding", ["fixed", "learned"])
@pytest.mark.parametrize("jit", [False, True])
def test_value_outside_its_table_is_nan(embedding, jit):
    layer = CalendarEmbedding(2, embedding=embedding)
    bad = MARKS.copy()
    bad[0, 1, 3] = 24
    bad[1, 2, 2] = -1
    bad[2, 0, 0] = 13
    call = layer
    if BACKEND == "tensorflow":
        import tensorflow as tf

        call = tf.function(layer, jit_compile=jit)
    got = array(call(tensor(bad)))
    wrong = np.zeros((3, 4), bool)
    wrong[[0, 1, 2], [1, 2, 0]] = True
    np.testing.assert_array_equal(np.isnan(got).all(axis=-1), wrong)
    want = array(layer(MARKS))
    np.testing.assert_allclose(got[~wrong], want[~wrong], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("informer/embed", having=["temporal_*.marks", "timeF_*.marks"])
def test_golden_calendar(path, dtype):
    arrays = load(path)
    dim = json.loads(str(arrays["meta"]))["d_model"]
    names = [name[:-6] for name in arrays if name.endswith(".marks")]
    names = [name for name in names if not name.startswith("data_")]
    assert len(names) > 8
    for name in names:
        kind, unit = name.removeprefix("temporal_").split("_")
        layer = CalendarEmbedding(dim, unit, embedding=kind, dtype=dtype)
        got = _run(layer, arrays, name, name, arrays[f"{name}.marks"], dtype)
        want = arrays[f"{name}.y"]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("dtype", FLOATS)
@golden("informer/embed", having=["data_*.token.W"])
def test_golden_input_representation(path, dtype):
    """The sum of the three embeddings."""
    arrays = load(path)
    dim = json.loads(str(arrays["meta"]))["d_model"]
    names = [name[:-8] for name in arrays if name.endswith(".token.W")]
    assert names
    for name in names:
        x, marks = arrays[f"{name}.x"].astype(dtype), arrays[f"{name}.marks"]
        token = TokenEmbedding(dim, dtype=dtype)
        token.build(x.shape)
        kernel = arrays[f"{name}.token.W"].transpose(2, 1, 0)
        token.set_weights([kernel, arrays[f"{name}.token.b"]])
        calendar = CalendarEmbedding(
            dim, "h", embedding=name.removeprefix("data_"), dtype=dtype
        )
        time = _run(calendar, arrays, name, f"{name}.time", marks, dtype)
        position = PositionalEncoding(dtype=dtype)
        got = array(position(token(tensor(x)))) + time
        want = arrays[f"{name}.y"]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)


def _run(layer, arrays, tables, dense, marks, dtype):
    """Output of a layer with the weights of a golden file."""
    layer.build(marks.shape)
    if layer.embedding == "timeF":
        layer.set_weights([arrays[f"{dense}.W"].T, arrays[f"{dense}.b"]])
        return array(layer(tensor(marks.astype(dtype))))
    given = [arrays[f"{tables}.{field}.table"] for field in layer.fields]
    if layer.embedding == "learned":
        layer.set_weights(given)
    for ours, table in zip(layer.tables, given, strict=True):
        np.testing.assert_allclose(np.array(ours), table, atol=1e-5)
    return array(layer(tensor(marks)))


def test_mask_is_passed_on():
    x = keras.Input((3, 4), dtype="float32")
    masked = CalendarEmbedding(3)(keras.layers.Masking()(x))
    pooled = keras.layers.GlobalAveragePooling1D()(masked)
    model = keras.Model(x, [masked, pooled])
    values = SCALED[:, :3].copy()
    values[:, 1] = 0
    every, mean = map(array, model(values))
    np.testing.assert_allclose(mean, every[:, [0, 2]].mean(axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("embedding", "inputs", "kind"),
    [
        ("timeF", MARKS, "floats"),
        ("fixed", SCALED, "integers"),
        ("learned", SCALED, "integers"),
    ],
)
def test_says_what_dtype_was_given(embedding, inputs, kind):
    layer = CalendarEmbedding(3, embedding=embedding)
    with pytest.raises(ValueError, match=f"must be {kind}.*dtype {inputs.dtype}"):
        layer(inputs)


def test_says_what_was_given():
    with pytest.raises(TypeError, match="`output_dim` must be an integer.*=2.5"):
        CalendarEmbedding(2.5)
    with pytest.raises(ValueError, match="`embedding` must be one of.*='timef'"):
        CalendarEmbedding(3, embedding="timef")
    with pytest.raises(ValueError, match="`frequency` must be.*frequency='15x'"):
        CalendarEmbedding(3, "15x")
    for embedding in ("timeF", "learned"):
        with pytest.raises(ValueError, match="`frequency` must be.*frequency='2y'"):
            CalendarEmbedding(3, "2y", embedding=embedding)
    with pytest.raises(ValueError, match=r"the features hour, weekday.*\(2, 4\)"):
        CalendarEmbedding(3).build((2, 4))
