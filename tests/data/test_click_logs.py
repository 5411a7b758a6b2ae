import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from keras_recsys.data import (
    ReadReport,
    encode_dataset,
    fit_numbers,
    fit_vocabularies,
    read_avazu,
    read_criteo,
    read_csv,
)
from keras_recsys.data.click_logs import (
    AVAZU_STRINGS,
    CRITEO_NUMBERS,
    CRITEO_STRINGS,
)

REPOSITORY = pathlib.Path(__file__).parents[2]
FOLDER = os.environ.get("KERAS_RECSYS_DATA", REPOSITORY / ".." / "shared" / "data")
SAMPLES = pathlib.Path(FOLDER) / "ctr_samples"
RNG = np.random.default_rng(0)


def sample(name, folder, header, make_row, num_rows):
    """A file of real rows, or of rows made up if there is none."""
    path = SAMPLES / name
    if path.is_file():
        return str(path)
    path = folder / pathlib.Path(name).name
    rows = [",".join(map(str, make_row(i))) for i in range(num_rows)]
    path.write_text("\n".join([",".join(header), *rows]) + "\n")
    return str(path)


def criteo_row(_):
    numbers = RNG.choice(["", "-1", "0", "3", "260.0"], 13).tolist()
    strings = RNG.choice(["", "05db9164", "a73ee510", "7e0ccccf"], 26).tolist()
    return [RNG.integers(0, 2), *numbers, *strings]


def criteo_sample(folder):
    header = ["label", *CRITEO_NUMBERS, *CRITEO_STRINGS]
    return sample("criteo_sample.txt", folder, header, criteo_row, 200)


def kaggle_sample(folder):
    header = ["Id", "Label", *CRITEO_NUMBERS, *CRITEO_STRINGS]
    name = "kaggle_2014_criteo/train.tiny.csv"
    return sample(name, folder, header, lambda i: [i, *criteo_row(i)], 1999)


def avazu_sample(folder):
    def row(i):
        strings = RNG.integers(0, 9, len(AVAZU_STRINGS) - 1).tolist()
        return [10**19 + i, RNG.integers(0, 2), "14102100", *strings]

    return sample("avazu_sample.txt", folder, ["id", "click", *AVAZU_STRINGS], row, 100)


def movielens_sample(folder):
    header = ["user_id", "movie_id", "rating", "title", "genres"]

    def row(i):
        return [i, i % 7, 1 + i % 5, f'"Film {i}, The"', "Drama|War" if i % 2 else ""]

    return sample("movielens_sample.txt", folder, header, row, 200)


def encoded_batch(dataset, settings, batch_size, **kwargs):
    encoded = encode_dataset(dataset, fit_vocabularies(dataset, settings), **kwargs)
    columns, labels = next(iter(encoded))
    assert labels.shape == (batch_size, 1)
    assert labels.dtype == "float32"
    for name in settings:
        assert columns[name].dtype == "int32"
        assert columns[name].shape[0] == batch_size
    return columns


@pytest.mark.parametrize(
    ("make_file", "num_rows"), [(criteo_sample, 200), (kaggle_sample, 1999)]
)
def test_criteo(tmp_path, make_file, num_rows):
    path = make_file(tmp_path)
    dataset = read_criteo(path, batch_size=64)
    assert sum(int(labels.shape[0]) for _, labels in dataset) == num_rows
    columns = encoded_batch(dataset, dict.fromkeys(CRITEO_STRINGS, {}), 64)
    assert set(columns) == {*CRITEO_NUMBERS, *CRITEO_STRINGS}
    numbers = fit_numbers(dataset, dict.fromkeys(CRITEO_NUMBERS, "log"))
    assert all(np.isfinite([x.mean, x.std]).all() for x in numbers.values())
    by_hand = pathlib.Path(path).read_text().split("\n")[1].split(",")[-39:]
    want = [float(text or 0) for text in by_hand[:13]]
    raw, _ = next(iter(dataset))
    assert [raw[name][0].numpy() for name in CRITEO_NUMBERS] == want
    assert [raw[name][0].numpy().decode() for name in CRITEO_STRINGS] == by_hand[13:]


def test_criteo_of_kaggle_has_tabs_and_no_names(tmp_path):
    source = criteo_sample(tmp_path)
    lines = pathlib.Path(source).read_text().splitlines()[1:]
    path = tmp_path / "train.txt"
    path.write_text("\n".join(lines).replace(",", "\t"))
    for (got, labels), (want, want_labels) in zip(
        read_criteo(path), read_criteo(source), strict=True
    ):
        np.testing.assert_array_equal(labels, want_labels)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])
    report = ReadReport()
    for _ in read_criteo(path, fill=None, errors="skip", report=report):
        pass
    missing = sum("" in line.split(",")[1:14] for line in lines)
    assert report.counts == {"missing value": missing}


def test_criteo_of_no_file_and_of_an_empty_one(tmp_path):
    with pytest.raises(ValueError, match="`paths` must be files"):
        read_criteo(tmp_path / "none")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ValueError, match="empty file"):
        read_criteo(tmp_path / "empty")


def test_criteo_of_files_of_which_the_first_is_empty(tmp_path):
    source = criteo_sample(tmp_path)
    lines = pathlib.Path(source).read_text().splitlines()
    (tmp_path / "a").write_bytes(b"\n")
    (tmp_path / "b").write_text("\n".join(lines[1:9]).replace(",", "\t"))
    (tmp_path / "c").write_text("\n".join(lines[:9]).replace("label", "Label"))
    for name, num_empty in (("b", 0), ("c", 1)):
        report = ReadReport()
        paths = [tmp_path / "a", tmp_path / name]
        ((_, labels),) = read_criteo(paths, errors="skip", report=report)
        assert labels.shape == (8, 1)
        assert report.num_skipped == num_empty  # only where there should be names
    for other, form in ((source, "'label'"), (tmp_path / "c", "'Label'")):
        message = f"of one form.*b with tabs.*{other} with commas and the name {form}"
        with pytest.raises(ValueError, match=message):
            read_criteo([tmp_path / "a", tmp_path / "b", other])


def test_avazu(tmp_path):
    dataset = read_avazu(avazu_sample(tmp_path), batch_size=64)
    columns = encoded_batch(dataset, dict.fromkeys(AVAZU_STRINGS, {}), 64)
    assert set(columns) == set(AVAZU_STRINGS)
    hours = {hour for raw, _ in dataset for hour in raw["hour"].numpy().tolist()}
    assert hours == {b"14102100"}
    assert sum(int(labels.shape[0]) for _, labels in dataset) == 100


def test_movielens(tmp_path):
    schema = {"user_id": "int64", "title": "string", "genres": "string"}
    dataset = read_csv(
        movielens_sample(tmp_path), schema, label="rating", batch_size=64
    )
    settings = {"user_id": {}, "title": {}, "genres": {"separator": "|"}}
    columns = encoded_batch(dataset, settings, 64, max_len={"genres": 3})
    assert columns["genres"].shape == (64, 3)
    titles = [title for raw, _ in dataset for title in raw["title"].numpy().tolist()]
    assert len(titles) == 200
    assert any(title.endswith(b", The (1995)") or b", The" in title for title in titles)
    assert not any(b'"' in title for title in titles)


def test_a_damaged_line_of_a_log(tmp_path):
    lines = pathlib.Path(criteo_sample(tmp_path)).read_text().splitlines()
    path = tmp_path / "damaged.csv"
    path.write_text("\n".join([*lines[:50], lines[50][:20], *lines[50:]]))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="damaged.csv, line 51: sh"
    ):
        list(read_criteo(path))
    report = ReadReport()
    list(read_criteo(path, errors="skip", report=report))
    assert (report.num_rows, report.num_skipped) == (len(lines) - 1, 1)
