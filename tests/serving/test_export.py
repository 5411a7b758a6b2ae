import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from keras_recsys.data import HashedVocabulary, Vocabulary
from keras_recsys.serving import ExportReport, _check, export
from keras_recsys.serving._interface import Interface
from keras_recsys.serving._rows import (
    check_sample,
    made_inputs,
    raw_values,
    sample_inputs,
)
from keras_recsys.serving._saved_model import tolerances

MODULE = importlib.import_module("keras_recsys.serving.export")
BIG = 2**31 + 5

USER = Vocabulary(["ann", "bob", "zoë"])  # ids 0 for others, 1, 2, 3
ITEM = Vocabulary([7, BIG, BIG + 2**32])
GENRES = Vocabulary(["Action", "Comedy"], separator="|")  # 0 padding, 1 others, 2, 3
TAGS = Vocabulary(["new", "old", "rare"], separator=", ")
VOCABULARIES = {
    "user": USER,
    "item": ITEM,
    "recent": ITEM,
    "genres": GENRES,
    "tags": TAGS,
}


@keras.saving.register_keras_serializable(package="keras_recsys_test_export")
class Doubled(layers.Layer):
    """Twice its input, with a gradient of its own, as the interaction layers have."""

    def call(self, inputs):
        @ops.custom_gradient
        def double(x):
            def grad(*args, upstream=None):
                return 2.0 * (args[0] if upstream is None else upstream)

            return 2.0 * x, grad

        return double(inputs)


def pooled(tensor, table):
    return layers.GlobalAveragePooling1D()(table(tensor))


def make_shop(output="probability"):
    """A model with an input of each kind; `item` and `recent` share a table."""
    inputs = {
        "user": keras.Input((), dtype="int32", name="user"),
        "item": keras.Input((), dtype="int64", name="item"),
        "recent": keras.Input((None,), dtype="int64", name="recent"),
        "genres": keras.Input((None,), dtype="int32", name="genres"),
        "tags": keras.Input((3,), dtype="int32", name="tags"),
        "hour": keras.Input((), dtype="int32", name="hour"),
        "price": keras.Input((), name="price"),
    }
    items = layers.Embedding(ITEM.size, 4, name="items")
    numbers = [
        layers.Reshape((1,))(ops.cast(inputs[name], "float32"))
        for name in ("hour", "price")
    ]
    x = layers.Concatenate()(
        [
            layers.Embedding(USER.size, 4)(inputs["user"]),
            items(inputs["item"]),
            pooled(inputs["recent"], items),
            pooled(inputs["genres"], layers.Embedding(GENRES.size, 4, mask_zero=True)),
            pooled(inputs["tags"], layers.Embedding(TAGS.size, 4, mask_zero=True)),
            *numbers,
        ]
    )
    x = layers.Dropout(0.5)(layers.Dense(8, activation="tanh")(Doubled()(x)))
    x = layers.Dense(1, activation="sigmoid", name="probability")(x)
    return keras.Model(inputs, {output: x})


def make_shop_rows(rows, length):
    rng = np.random.default_rng(rows)
    return {
        "user": rng.integers(0, USER.size, rows).astype("int32"),
        "item": rng.integers(0, ITEM.size, rows),
        "recent": rng.integers(0, ITEM.size, (rows, length)),
        "genres": rng.integers(0, GENRES.size, (rows, length)).astype("int32"),
        "tags": rng.integers(0, TAGS.size, (rows, 3)).astype("int32"),
        "hour": rng.integers(0, 24, rows).astype("int32"),
        "price": rng.normal(size=rows).astype("float32"),
    }


def make_small(name="user", dtype="int32", shape=()):
    """The smallest model that can be exported: an embedding of 5 ids."""
    user = keras.Input(shape, dtype=dtype, name=name)
    x = layers.Embedding(5, 1)(user)
    return keras.Model({name: user}, {"probability": x})


def make_two():
    """A model with lists for inputs and outputs, of which one layer is half precise."""
    a = keras.Input((3,), name="a")
    b = keras.Input((2,), name="b", dtype="int32")
    x = layers.Dense(2, name="left", dtype="mixed_bfloat16")(a)
    y = layers.Dense(1, name="right")(layers.Flatten()(layers.Embedding(6, 3)(b)))
    return keras.Model([a, b], [x, y])


def tensors(rows):
    return {name: tf.constant(array) for name, array in rows.items()}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """The shop trained, saved, loaded and exported; with the report and the output."""
    folder = tmp_path_factory.mktemp("shop")
    model = make_shop()
    model.compile("adam", "binary_crossentropy")
    labels = np.array([0.0, 1.0] * 4, "float32")
    model.fit(make_shop_rows(8, 3), {"probability": labels}, verbose=0)
    model.save(folder / "shop.keras")
    model = keras.models.load_model(folder / "shop.keras")
    path = folder / "made" / "on_the_way" / "1"
    report = export(model, path, vocabularies=VOCABULARIES, verbose=False)
    return model, report, tf.saved_model.load(str(path))


@pytest.fixture
def unchecked(monkeypatch):
    """Leaves out the fresh process, where a test looks at something else."""
    monkeypatch.setattr(MODULE, "check_in_fresh_process", lambda *args: 0.0)


def test_report(shop):
    _, report, _ = shop
    assert isinstance(report, ExportReport)
    assert 0.0 <= report.max_difference < 1e-6
    assert report.path.endswith(os.path.join("made", "on_the_way", "1"))
    assert os.listdir(os.path.dirname(report.path)) == ["1"]  # no temporary folder


def test_case_05_dict_inputs_and_outputs_keep_their_names(shop):
    model, _, loaded = shop
    rows = make_shop_rows(3, 2)
    outputs = loaded.signatures["serving_default"](**tensors(rows))
    assert list(outputs) == ["probability"]
    want = model.predict(rows, verbose=0)["probability"]
    np.testing.assert_allclose(outputs["probability"], want, rtol=1e-5, atol=1e-6)


def test_case_06_dtypes_and_open_dimensions(shop):
    _, report, loaded = shop
    _, specs = loaded.signatures["serving_default"].structured_input_signature
    got = {name: (spec.dtype.name, tuple(spec.shape)) for name, spec in specs.items()}
    assert got == {
        "user": ("int32", (None,)),
        "item": ("int64", (None,)),
        "recent": ("int64", (None, None)),
        "genres": ("int32", (None, None)),
        "tags": ("int32", (None, 3)),
        "hour": ("int32", (None,)),
        "price": ("float32", (None,)),
    }
    assert report.signatures["serving_default"] == {
        "inputs": got,
        "outputs": {"probability": ("float32", (None, 1))},
    }


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("length", [2, 7])
def test_case_07_any_batch_size_and_length(shop, rows, length):
    model, _, loaded = shop
    rows = make_shop_rows(rows, length)
    got = loaded.signatures["serving_default"](**tensors(rows))["probability"]
    want = model.predict(rows, verbose=0)["probability"]
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_raw_looks_the_ids_up(shop):
    model, report, loaded = shop
    rows = {
        "user": np.array([2, 0, 3], "int32"),
        "item": np.array([2, 3, 0]),
        "recent": np.array([[1, 2], [0, 3], [2, 2]]),
        "genres": np.array([[3, 2], [0, 0], [1, 0]], "int32"),
        "tags": np.array([[2, 0, 0], [4, 3, 2], [0, 0, 0]], "int32"),
        "hour": np.array([0, 12, 23], "int32"),
        "price": np.array([1.0, 2.0, 3.0], "float32"),
    }
    raw = {
        **rows,
        "user": np.array(["bob", "nobody", "zoë"]),
        "item": np.array([BIG, BIG + 2**32, 5]),  # 5: BIG without its high bits
        "recent": np.array([[7, BIG], [-1, BIG + 2**32], [BIG, BIG]]),
        "genres": np.array(["Comedy|Action", "", "Drama"]),
        "tags": np.array(["new", "rare, old, new, old", ""]),  # the fourth is cut
    }
    got = loaded.signatures["raw"](**tensors(raw))["probability"]
    want = model.predict(rows, verbose=0)["probability"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    inputs = report.signatures["raw"]["inputs"]
    assert inputs["user"] == ("string", (None,))
    assert inputs["item"] == ("int64", (None,))
    assert inputs["recent"] == ("int64", (None, None))
    assert inputs["genres"] == inputs["tags"] == ("string", (None,))
    assert inputs["hour"] == ("int32", (None,))


def test_holds_the_weights_and_tables_of_the_signatures_alone(shop):
    model, report, _ = shop
    checkpoint = tf.train.load_checkpoint(
        os.path.join(report.path, "variables", "variables")
    )
    shapes = checkpoint.get_variable_to_shape_map()
    weights = [name for name in shapes if name.startswith("weights/")]
    assert len(weights) == len(model.weights)  # no optimizer, no seed of the dropout
    assert not [name for name in shapes if "optimizer" in name.lower()]


@pytest.mark.slow
def test_snippet_runs_with_tensorflow_alone(shop, tmp_path):
    model, report, _ = shop
    assert report.snippet.count("import") == 1
    client = tmp_path / "client.py"
    client.write_text(
        report.snippet
        + "import json, sys\n"
        + "mine = [m for m in sys.modules if m.split('.')[0] == 'keras_recsys']\n"
        + "print(json.dumps([mine, outputs['probability'].numpy().tolist()]))\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, client],
        cwd=tmp_path,
        env={**os.environ, "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imported, outputs = json.loads(done.stdout.splitlines()[-1])
    assert imported == []
    assert np.shape(outputs) == (2, 1)


@pytest.mark.slow
def test_lists_are_named_by_their_layers(tmp_path, capsys):
    model = make_two()
    report = export(model, tmp_path / "two")
    assert report.signatures == {
        "serving_default": {
            "inputs": {"a": ("float32", (None, 3)), "b": ("int32", (None, 2))},
            "outputs": {
                "left": ("bfloat16", (None, 2)),
                "right": ("float32", (None, 1)),
            },
        }
    }
    assert report.max_difference < 1e-2
    captured = capsys.readouterr()
    assert captured.out == report.snippet  # and nothing of Keras or TensorFlow
    assert captured.err == ""


@pytest.mark.slow
def test_failed_check_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "1"
    path.mkdir()
    (path / "saved_model.pb").write_text("the old export")
    model = make_small()
    predict = model.predict
    monkeypatch.setattr(
        model,
        "predict",
        lambda *args, **kwargs: {
            "probability": predict(*args, **kwargs)["probability"] + 0.5
        },
    )
    with pytest.raises(
        RuntimeError, match="difference of 0.5; 'probability'.*batch size 7.*'user'"
    ):
        export(model, path, overwrite=True)
    assert os.listdir(tmp_path) == ["1"]
    assert os.listdir(path) == ["saved_model.pb"]
    assert (path / "saved_model.pb").read_text() == "the old export"


def test_stopped_export_leaves_nothing(tmp_path, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(MODULE, "check_in_fresh_process", stop)
    with pytest.raises(KeyboardInterrupt):
        export(make_small(), tmp_path / "new" / "newer" / "1")
    assert os.listdir(tmp_path) == []


def test_failed_process_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(
        RuntimeError, match="(?s)TensorFlow alone; nothing.*exit status 1"
    ):
        export(make_small(), tmp_path / "1")
    assert os.listdir(tmp_path) == []


def test_overwrite_replaces_an_export(tmp_path, unchecked):
    path = tmp_path / "1"
    export(make_small("old"), path, verbose=False)
    with pytest.raises(FileExistsError, match="`path` must not exist.*/1'"):
        export(make_small("new"), path)
    export(make_small("new"), path, overwrite=True, verbose=False)
    loaded = tf.saved_model.load(str(path))
    _, specs = loaded.signatures["serving_default"].structured_input_signature
    assert list(specs) == ["new"]
    assert os.listdir(tmp_path) == ["1"]


def test_old_export_returns_if_the_new_one_cannot_be_moved(
    tmp_path, unchecked, monkeypatch
):
    path = tmp_path / "1"
    export(make_small("old"), path, verbose=False)
    rename = os.rename

    def refuse(source, target):
        if source.name == "model":
            raise OSError("no")
        rename(source, target)

    monkeypatch.setattr(os, "rename", lambda a, b: refuse(pathlib.Path(a), b))
    with pytest.raises(OSError, match="no"):
        export(make_small("new"), path, overwrite=True)
    loaded = tf.saved_model.load(str(path))
    _, specs = loaded.signatures["serving_default"].structured_input_signature
    assert list(specs) == ["old"]
    assert os.listdir(tmp_path) == ["1"]


def test_overwrite_replaces_nothing_but_an_export(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    for path in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(FileExistsError, match="what is there is no SavedModel"):
            export(make_small(), path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_other_users_can_read_the_export(tmp_path, unchecked):
    export(make_small(), tmp_path / "1", verbose=False)
    plain = tmp_path / "plain"
    plain.mkdir()
    assert (tmp_path / "1").stat().st_mode == plain.stat().st_mode


def test_parent_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        NotADirectoryError, match="parents is a file.*file/1', of which"
    ):
        export(make_small(), tmp_path / "file" / "1")


def test_parent_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(**kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(PermissionError, match="written to .Permission denied.*new/1'"):
        export(make_small(), tmp_path / "new" / "1")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["gs://bucket/1", "", b"bytes"])
def test_path_that_is_not_local(path):
    with pytest.raises(
        ValueError, match="`path` must be a path in a local file system"
    ):
        export(make_small(), path)


def test_other_backend(tmp_path, monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="TensorFlow backend.*backend='jax'"):
        export(make_small(), tmp_path / "1")


def test_model_of_another_type(tmp_path):
    with pytest.raises(TypeError, match=r"`model` must be a `keras.Model`.*model='m'"):
        export("m", tmp_path / "1")


@pytest.mark.parametrize("make", [keras.Model, keras.Sequential])
def test_model_without_inputs(tmp_path, make):
    with pytest.raises(ValueError, match="`model` must be functional"):
        export(make(), tmp_path / "1")


@pytest.mark.parametrize("name", ["user id", "_user", "größe", "1st", "a-b", "self"])
def test_name_that_a_signature_cannot_have(tmp_path, name):
    with pytest.raises(ValueError, match=f"ASCII letters.*name='{name}'"):
        export(make_small(name), tmp_path / "1")


def test_names_that_differ_in_case(tmp_path):
    inputs = {name: keras.Input((1,), name=name) for name in ("Age", "age")}
    model = keras.Model(inputs, {"sum": layers.Add()(list(inputs.values()))})
    with pytest.raises(ValueError, match="differ in more than case.*'Age', 'age'"):
        export(model, tmp_path / "1")


def test_inputs_that_cannot_be_served(tmp_path):
    text = keras.Input((), dtype="string", name="text")
    lookup = layers.StringLookup(vocabulary=["a"])
    with pytest.raises(
        ValueError, match="'text' of `model` must hold numbers.*'string'"
    ):
        export(keras.Model({"text": text}, {"id": lookup(text)}), tmp_path / "1")
    x = keras.Input((3,), batch_size=2, name="x")
    with pytest.raises(ValueError, match=r"'x'.*batch size open.*\(2, 3\)"):
        export(keras.Model({"x": x}, {"y": layers.Dense(1)(x)}), tmp_path / "1")


def test_single_tensors_and_sequential(tmp_path, unchecked):
    x = keras.Input((3,), name="x")
    functional = keras.Model(x, layers.Dense(1, name="score")(x))
    sequential = keras.Sequential([x, layers.Dense(1, name="score")])
    for number, model in enumerate((functional, sequential)):
        report = export(model, tmp_path / str(number), verbose=False)
        assert report.signatures["serving_default"] == {
            "inputs": {"x": ("float32", (None, 3))},
            "outputs": {"score": ("float32", (None, 1))},
        }


def test_model_with_a_table_of_its_own(tmp_path, unchecked):
    user = keras.Input((), dtype="int64", name="user")
    x = layers.IntegerLookup(vocabulary=[10, 20])(user)
    model = keras.Model({"user": user}, {"out": layers.Embedding(3, 2)(x)})
    export(model, tmp_path / "1", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    rows = np.array([20, 10, 30])
    got = loaded.signatures["serving_default"](user=tf.constant(rows))["out"]
    np.testing.assert_allclose(got, model.predict({"user": rows}, verbose=0)["out"])


@pytest.mark.parametrize(
    ("vocabularies", "error", "match"),
    [
        ([USER], TypeError, "must be a dict"),
        ({"user": ["ann"]}, TypeError, r"`vocabularies\['user'\]`.*\['ann'\]"),
        ({"usr": USER}, ValueError, r"inputs of the model.*Received: \['usr'\]"),
        ({"user": TAGS}, ValueError, r"'user'.*no separator.*separator=', '"),
        ({"genres": TAGS}, ValueError, "'genres'.*the 4 ids.*size=5"),
        ({"price": USER}, ValueError, "'price'.*input of integers.*'float32'"),
    ],
)
def test_vocabularies_that_do_not_fit(tmp_path, vocabularies, error, match):
    with pytest.raises(error, match=match):
        export(make_shop(), tmp_path / "1", vocabularies=vocabularies)
    assert os.listdir(tmp_path) == []


SAMPLE = make_shop_rows(2, 3)


@pytest.mark.parametrize(
    ("sample", "error", "match"),
    [
        ([1], TypeError, r"must be a dict.*sample=\[1\]"),
        ({"user": [1]}, ValueError, r"inputs \['genres', .*Received: \['user'\]"),
        ({**SAMPLE, "user": [1]}, ValueError, "as many for each.*'user': 1"),
        ({**SAMPLE, "user": [1.5, 2.0]}, ValueError, "'user'.*int32.*float64"),
        ({**SAMPLE, "user": [[1], [2]]}, ValueError, r"'user'.*shape \(2, 1\)"),
        ({**SAMPLE, "tags": [[1], [2]]}, ValueError, r"'tags'.*\(None, 3\).*\(2, 1\)"),
    ],
)
def test_sample_that_does_not_fit(tmp_path, sample, error, match):
    with pytest.raises(error, match=match):
        export(make_shop(), tmp_path / "1", sample=sample)
    assert os.listdir(tmp_path) == []


def test_sample_that_the_model_refuses(tmp_path):
    model = make_small(shape=(2,))
    model.compile(run_eagerly=True)

    def refuse(x, **kwargs):
        raise ValueError("I know no such user")

    model.predict = refuse
    with pytest.raises(
        ValueError, match="in `sample`.*ValueError: I know no such user"
    ):
        export(model, tmp_path / "1", sample={"user": [[1, 2]]})


def test_sample_is_repeated_and_its_open_lengths_changed():
    interface = Interface(make_shop())
    sample = check_sample(make_shop_rows(2, 3), interface)
    first, second = sample_inputs(sample, interface, 7)
    assert first["user"].tolist() == (SAMPLE["user"].tolist() * 4)[:7]
    assert first["recent"].shape == (7, 3)
    assert second["recent"].shape == second["genres"].shape == (7, 2)
    assert second["tags"].shape == (7, 3)
    sample = check_sample(make_shop_rows(2, 1), interface)
    assert sample_inputs(sample, interface, 7)[1]["recent"].shape == (7, 2)


def test_made_rows_reach_the_end_of_the_table_and_hold_padding():
    interface = Interface(make_shop())
    rng = np.random.default_rng(0)
    rows = made_inputs(interface, {}, 7, 4, rng)
    assert rows["item"].max() == ITEM.size - 1
    assert rows["recent"].max() == ITEM.size - 1
    assert rows["genres"].all(axis=1).any()  # a full row
    assert not rows["genres"].any(axis=1).all()  # an empty one
    assert set(rows["hour"]) <= {0, 1}  # no table: ids that are always safe
    assert rows["price"].dtype == "float32"


def test_raw_rows_without_ids_for_others():
    strict = Vocabulary(["a", "b"], num_oov=0)
    assert raw_values(strict, np.array([1, 0])).tolist() == ["b", "a"]
    odd = Vocabulary(["unseen"], separator="!")
    raw = raw_values(odd, np.array([[2, 0], [0, 0], [1, 0]]))
    assert odd.encode(raw).tolist() == [[2, 1], [1, 0], [1, 0]]


def test_hashed_vocabularies_are_served(tmp_path):
    user = HashedVocabulary(20, salt=3)
    item = HashedVocabulary(30, dtype="int64", padding=True)
    tags = HashedVocabulary(9, separator="|")
    inputs = {
        "user": keras.Input((), dtype="int32", name="user"),
        "item": keras.Input((None,), dtype="int64", name="item"),
        "tags": keras.Input((None,), dtype="int32", name="tags"),
    }
    fields = [
        layers.Embedding(user.size, 3)(inputs["user"]),
        pooled(inputs["item"], layers.Embedding(item.size, 3, mask_zero=True)),
        pooled(inputs["tags"], layers.Embedding(tags.size, 3, mask_zero=True)),
    ]
    model = keras.Model(inputs, {"score": layers.Add()(fields)})
    vocabularies = {"user": user, "item": item, "tags": tags}
    export(model, tmp_path / "1", vocabularies=vocabularies, verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    rows = {
        "user": np.array(["ann", ""]),
        "item": np.array([[7, BIG], [-1, 0]]),
        "tags": np.array(["new|old", ""]),
    }
    ids = {
        "user": user.encode(rows["user"]),
        "item": item.encode(rows["item"].reshape(-1)).reshape(2, 2),
        "tags": tags.encode(rows["tags"]),
    }
    got = loaded.signatures["raw"](**tensors(rows))["score"]
    np.testing.assert_allclose(got, model.predict(ids, verbose=0)["score"], rtol=1e-5)


def test_raw_rows_of_hashed_vocabularies():
    ids = np.array([[3, 4, 3], [5, 0, 3], [0, 0, 0]])
    raw = raw_values(HashedVocabulary(9, separator="a"), ids)
    assert raw.tolist() == ["eafae", "unseenae", ""]
    raw = raw_values(HashedVocabulary(9, dtype="int64"), ids[0])
    assert raw.tolist() == [3, 2**40, 3]


def test_tolerances_follow_the_precision():
    assert tolerances(make_small()) == (1e-6, 1e-5)
    assert tolerances(make_two()) == (1e-2, 1e-2)


def test_difference_of_numbers_that_are_not_finite():
    inf, nan = float("inf"), float("nan")
    got = np.array([1.0, inf, nan, 1.0, nan, -inf])
    want = np.array([1.5, inf, nan, nan, 1.0, inf])
    difference = _check._difference(got, want)
    assert difference.tolist() == [0.5, 0.0, 0.0, inf, inf, inf]
