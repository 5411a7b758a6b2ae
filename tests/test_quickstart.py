import importlib.util
import json
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recsys import __main__ as program
from keras_recsys import data, serving
from keras_recsys._quickstart import clicks

SMALL = ["--rows", "3000", "--epochs", "1"]
HEADER = "userId,movieId,rating,timestamp\n"


def run(capsys, *arguments):
    """Runs the quickstart in this process: exit status, stdout and stderr."""
    try:
        status = program.main(["quickstart", *map(str, arguments)])
    except SystemExit as stop:  # argparse
        status = stop.code
    return status, *capsys.readouterr()


def check_error(capsys, status, match, *arguments):
    """Checks that the quickstart stops at once with one line that says why."""
    got, out, err = run(capsys, *arguments)
    assert got == status
    assert out == ""
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert re.search(match, err)


def write_ratings(folder, ratings, movies=None):
    """Writes the two files of an ml-latest folder."""
    folder.mkdir()
    (folder / "ratings.csv").write_text(ratings)
    if movies is None:
        movies = 'movieId,title,genres\n1,"Heat (1995)",Action|Crime\n2,Solo,Drama\n'
    (folder / "movies.csv").write_text(movies)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder and stdout of a small run."""
    out = tmp_path_factory.mktemp("quickstart") / "a folder" / "out"
    done = subprocess.run(
        [sys.executable, "-m", "keras_recsys", "quickstart", *SMALL, "--out", out],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return out, done.stdout


@pytest.mark.slow
def test_writes_the_folder_and_nothing_beside_it(finished):
    out, text = finished
    assert sorted(path.name for path in out.iterdir()) == sorted(clicks.FILES)
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    for name in clicks.FILES:
        assert f"  {name} " in text
    for name in ("history.png", "senet_weights.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_prints_one_table(finished):
    lines = re.findall(
        r"^(.+?) +(0\.\d{4}) +(0\.\d{4}) +(-|[\d,]+)$", finished[1], re.M
    )
    assert [line[0] for line in lines] == [
        "base rate",
        "logistic regression",
        "FiBiNET",
    ]
    assert lines[0][1] == "0.5000"
    assert finished[1].count("AUC   log loss    rows/s") == 1


@pytest.mark.slow
def test_model_and_served_model_agree(finished):
    out, _ = finished
    configs = json.loads((out / "vocabularies.json").read_text())
    vocabularies = {
        name: data.Vocabulary.from_config(config) for name, config in configs.items()
    }
    raw = {
        "user_id": np.array([1, 2, 10**9]),
        "movie_id": np.array([31, 10**9, 10]),
        "genres": np.array(["Drama", "Comedy|Romance", ""]),
        "year": np.array([1995, 0, 1994]),
    }
    rest = {"hour": np.array([0, 12, 23]), "weekday": np.array([0, 3, 6])}
    ids = {name: vocabularies[name].encode(column) for name, column in raw.items()}
    model = keras.models.load_model(out / "fibinet.keras")
    want = model.predict({**ids, **rest}, verbose=0)["probability"]
    loaded = tf.saved_model.load(out / "saved_model")
    rows = {name: tf.constant(column) for name, column in raw.items()}
    rows |= {name: tf.constant(column, "int32") for name, column in rest.items()}
    got = loaded.signatures["raw"](**rows)["probability"]
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.slow
def test_client_runs(finished):
    done = subprocess.run(
        [sys.executable, finished[0] / "client.py"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "probability" in done.stdout


@pytest.mark.slow
def test_same_seed_same_model_and_overwrite(finished, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "history.png").write_text("old")
    weights = [keras.models.load_model(finished[0] / "fibinet.keras").get_weights()]
    for seed in (0, 1):
        status, _, err = run(
            capsys, *SMALL, "--out", out, "--seed", seed, "--overwrite"
        )
        assert (status, err) == (0, "")
        weights.append(keras.models.load_model(out / "fibinet.keras").get_weights())
    first, same, other = weights
    for a, b in zip(first, same, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(first, other, strict=True))
    assert (out / "history.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_beats_the_logistic_regression(tmp_path, capsys):
    status, text, _ = run(capsys, "--out", tmp_path / "out")
    assert status == 0
    assert "10,299 test rows" in text
    figures = {
        name: (float(auc), float(loss))
        for name, auc, loss in re.findall(r"^(\D+?) +(0\.\d+) +(0\.\d+) ", text, re.M)
    }
    auc, loss = figures["logistic regression"]
    assert (round(auc, 3), round(loss, 3)) == (0.790, 0.558)
    assert figures["FiBiNET"][0] > auc
    assert figures["FiBiNET"][1] < loss


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--model", "dlrm"], "--model.*'dlrm'.*fibinet"),
        (["--epochs", "0"], "--epochs: must be a positive integer. Received: '0'"),
        (["--epochs", "-1"], "--epochs: must be a positive integer"),
        (["--epochs", "two"], "--epochs: must be a positive integer. Received: 'two'"),
        (["--rows", "0"], "--rows: must be a positive integer"),
        (["--seed", "-1"], "--seed: must be an integer from 0"),
        (["--seed", str(2**32)], "--seed: must be an integer from 0"),
        (["--colour"], "--colour"),
    ],
)
def test_usage_errors(capsys, tmp_path, arguments, match):
    check_error(capsys, 2, match, "--out", tmp_path / "out", *arguments)
    assert not list(tmp_path.iterdir())


def test_needs_a_command(capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main([])
    assert capsys.readouterr().err.startswith("error: ")


def test_help_names_every_option(capsys):
    status, text, _ = run(capsys, "--help")
    assert status == 0
    for option in ("model", "epochs", "out", "overwrite", "seed", "data", "rows"):
        assert f"--{option}" in text


def test_refuses_the_folder_it_runs_in(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_error(capsys, 1, "the folder you are in", "--out", ".")
    check_error(capsys, 1, "the folder you are in", "--out", "..", "--overwrite")


def test_refuses_a_folder_that_is_not_empty(capsys, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    check_error(capsys, 1, "not empty.*--overwrite", "--out", tmp_path)
    # Nor is a folder ever overwritten that holds what the quickstart did not write.
    check_error(capsys, 1, "'mine.txt'", "--out", tmp_path, "--overwrite")
    check_error(capsys, 1, "is a file", "--out", tmp_path / "mine.txt")
    check_error(capsys, 1, "is a file", "--out", tmp_path / "mine.txt" / "out")
    check_error(capsys, 1, "must name a folder", "--out", "")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no folder")
def test_refuses_a_folder_that_cannot_be_written(capsys):
    check_error(capsys, 1, "written to", "--out", "/proc/quickstart_out")


GOOD = "".join(
    f"{user},{1 + t % 2},{3 + (t % 4 < 2)},{t}\n" for user in (1, 2) for t in range(20)
)


@pytest.mark.parametrize(
    ("ratings", "match"),
    [
        ("", "ratings.csv must hold a header"),
        (HEADER, "ratings.csv must hold"),
        ("userId,movieId,timestamp\n1,1,0\n", "column 'rating'"),
        (HEADER + "1,1,nan,0\n", "line 2 must have a finite number as rating"),
        (HEADER + "1,1,,0\n", "line 2 must have a finite number as rating"),
        (HEADER + "1,1,4,monday\n", "line 2 must have an integer as timestamp"),
        (HEADER + "1,1,4,0\n", "training part must hold.*has 0 rows"),
        (HEADER + "1,1,4,0\n1,2,5,1\n", "training part must hold.*has 1 rows"),
        (HEADER + GOOD, "test part must hold.*has 4 rows"),
    ],
)
def test_bad_ratings(capsys, tmp_path, ratings, match):
    folder = write_ratings(tmp_path / "data", ratings)
    check_error(capsys, 1, match, "--data", folder, "--out", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_bad_movies_and_folders(capsys, tmp_path):
    out = ["--out", tmp_path / "out"]
    check_error(capsys, 1, "must be a folder", "--data", tmp_path / "no", *out)
    check_error(capsys, 1, "must hold the files", "--data", tmp_path, *out)
    folder = write_ratings(tmp_path / "data", HEADER + GOOD, "movieId,title\n1,Heat\n")
    check_error(capsys, 1, "column 'genres'", "--data", folder, *out)
    ratings = HEADER + "".join(f"1,1,{3 + t % 2},{t}\n" for t in range(40))
    folder = write_ratings(tmp_path / "2", ratings, "movieId,title,genres\n1,Heat,\n")
    check_error(capsys, 1, "column 'genres' of the ratings", "--data", folder, *out)


def test_says_what_to_install(capsys, tmp_path, monkeypatch):
    def find_spec(name):
        return None if name == "sklearn" else real(name)

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    match = r'sklearn.*pip install "keras-recsys\[data\]"'
    check_error(capsys, 1, match, "--out", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_leaves_nothing_half_written(capsys, tmp_path, monkeypatch, error):
    def export(*args, **kwargs):
        raise error

    monkeypatch.setattr(serving, "export", export)
    status, _, err = run(capsys, *SMALL, "--out", tmp_path / "deep" / "out")
    assert status == (1 if isinstance(error, OSError) else 130)
    assert re.fullmatch("error: (disk full|interrupted, nothing was written)\n", err)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_takes_a_folder_of_ratings(capsys, tmp_path):
    rng = np.random.default_rng(0)
    stars = rng.integers(1, 6, size=(6, 30))
    lines = [
        f"{user},{1 + t % 3},{stars[user, t]},{t * 3600}\n"  # no movie 3 in the list
        for user in range(6)
        for t in range(30)
    ]
    folder = write_ratings(tmp_path / "data", HEADER + "".join(lines))
    status, text, err = run(
        capsys, "--data", folder, "--epochs", 1, "--out", tmp_path / "out"
    )
    assert (status, err) == (0, "")
    assert "162 ratings to train on, 18 to test" in text
