"""Tests of `make_movielens_lists`."""

import numpy as np
import pandas as pd
import pytest

from keras_recsys.data import load_movielens, make_movielens_lists

YEAR = int(365.25 * 86400)


def make_frame(rows):
    """Frame of (user, movie, rating, time, year, genres)."""
    names = ["user_id", "movie_id", "rating", "timestamp", "year", "genres"]
    frame = pd.DataFrame(rows, columns=names)
    frame["year"] = frame["year"].astype("Int64")
    return frame.assign(title="t").astype({"title": "string", "genres": "string"})


# Each user's last rating is the test row: (1, 20) at 40 and (2, 20) at 50.
FRAME = make_frame(
    [
        (1, 10, 5.0, 10, 1960, "A"),
        (1, 30, 2.0, 20, 1970, "A|B"),
        (2, 10, 1.0, 20, 1960, "A"),
        (2, 30, 4.0, 30, 1970, "A|B"),
        (1, 20, 0.5, 40, None, "B"),
        (2, 20, 3.5, 50, None, "B"),
    ]
)
MEAN = 3.0  # of the four training rows


def lists(frame=FRAME, **options):
    options = {"test_fraction": 0.3, "min_len": 1, **options}
    return make_movielens_lists(frame, **options)


def test_lists_labels_and_order():
    train, test = lists()
    assert train["query"].tolist() == [0, 0, 1, 1]
    assert test["query"].tolist() == [2, 3]
    assert train["movie_id"].tolist() == [10, 30, 10, 30]
    assert train["label"].tolist() == [4, 1, 0, 3]  # whole stars less one
    assert test["label"].tolist() == [0, 2]
    assert not {"rating", "year"} & set(train.columns)


def test_numbers_are_of_training_rows_strictly_before():  # by hand
    train, test = lists()
    # Movie 10: none before user 1; 5 stars before user 2, and 5 ratings of the mean.
    np.testing.assert_array_equal(train["movie_count"], [0, 0, 1, 1])
    want = [MEAN, MEAN, (5 + 5 * MEAN) / 6, (2 + 5 * MEAN) / 6]
    np.testing.assert_allclose(train["movie_mean"], want, rtol=1e-6)
    np.testing.assert_array_equal(train["user_count"], [0, 1, 0, 1])
    means = [MEAN, (5 + 5 * MEAN) / 6, MEAN, (1 + 5 * MEAN) / 6]
    np.testing.assert_allclose(train["user_mean"], means, rtol=1e-6)
    # The test row of user 1 is no rating of movie 20 before that of user 2.
    np.testing.assert_array_equal(test["movie_count"], [0, 0])
    np.testing.assert_array_equal(test["user_count"], [2, 2])
    last = [(7 + 5 * MEAN) / 7, (5 + 5 * MEAN) / 7]
    np.testing.assert_allclose(test["user_mean"], last, rtol=1e-6)
    # Genre B of user 1 before: movie 30, 2 stars where the mean was 20 / 6.
    taste = [(2 - means[1]) / 6, (4 - means[3]) / 6]
    np.testing.assert_allclose(test["genre_taste"], taste, rtol=1e-5)
    # User 1 at movie 30: genre A has 5 - 3 of one, genre B nothing; the mean of both.
    np.testing.assert_allclose(train["genre_taste"][1], 2 / 6 / 2, rtol=1e-6)
    assert test["age"].isna().all()
    np.testing.assert_allclose(train["age"][:2], [10, 0], atol=1e-5)


def test_equals_the_loop():
    rng = np.random.default_rng(0)
    rows = [
        (
            int(rng.integers(1, 6)),
            int(rng.integers(1, 8)),
            float(rng.integers(1, 11)) / 2,
            int(rng.integers(0, 20)) * YEAR,
            1970,
            "|".join(rng.choice(list("ABC"), rng.integers(1, 3), replace=False)),
        )
        for _ in range(60)
    ]
    frame = make_frame(rows)
    train, test = lists(frame, max_len=100)
    source = frame.reset_index(names="row")
    # Rows of the training: all but the last 30 % of a user, those of a time in order.
    ranked = source.sort_values("timestamp", kind="stable")
    place = ranked.groupby("user_id").cumcount(ascending=False)
    size = ranked.groupby("user_id")["row"].transform("size")
    ranked = ranked.assign(is_train=~(place < 0.3 * size))
    known = ranked[ranked["is_train"]]
    overall = known["rating"].mean()

    def mean(values):
        return (values.sum() + 5 * overall) / (len(values) + 5)

    for part in (train, test):
        is_train = part is train
        own = ranked[ranked["is_train"] == is_train].sort_values(
            ["user_id", "timestamp"], kind="stable"
        )
        assert own["movie_id"].tolist() == part["movie_id"].tolist()
        for (_, row), (_, got) in zip(own.iterrows(), part.iterrows(), strict=True):
            before = known[known["timestamp"] < row["timestamp"]]
            movie = before[before["movie_id"] == row["movie_id"]]["rating"]
            of_user = before[before["user_id"] == row["user_id"]]
            assert got["movie_count"] == len(movie)
            assert got["movie_mean"] == pytest.approx(mean(movie), rel=1e-6)
            assert got["user_mean"] == pytest.approx(mean(of_user["rating"]), rel=1e-6)
            tastes = []
            for genre in row["genres"].split("|"):
                rated = of_user[of_user["genres"].str.contains(genre)]
                excess = [
                    r["rating"]
                    - mean(of_user[of_user["timestamp"] < r["timestamp"]]["rating"])
                    for _, r in rated.iterrows()
                ]
                tastes.append(sum(excess) / (len(excess) + 5))
            assert got["genre_taste"] == pytest.approx(np.mean(tastes), abs=1e-6)


def test_long_histories_are_cut_evenly_and_short_lists_left_out():
    rows = [(1, m, 3.0, m, 1970, "A") for m in range(1, 11)]
    rows += [(2, m, 3.0, m, 1970, "A") for m in range(1, 4)]
    train, test = lists(make_frame(rows), test_fraction=0.1, max_len=4, min_len=1)
    assert train.groupby("query").size().tolist() == [3, 3, 3, 2]
    assert test["query"].tolist() == [4, 5]
    train, _ = lists(make_frame(rows), test_fraction=0.5, max_len=4, min_len=2)
    assert train.groupby("query").size().tolist() == [3, 2]
    assert train["user_id"].unique().tolist() == [1]


def test_of_the_embedded_ratings():
    train, test = make_movielens_lists(load_movielens())
    assert set(train["query"]).isdisjoint(test["query"])
    assert train["query"].nunique() == train["query"].max() + 1
    assert train.groupby("query").size().between(5, 50).all()
    assert train.groupby("query")["user_id"].nunique().eq(1).all()
    numbers = ["movie_mean", "user_mean", "movie_count", "user_count", "genre_taste"]
    assert np.isfinite(train[numbers].to_numpy()).all()
    last = train.groupby("user_id")["timestamp"].max()
    first = test.groupby("user_id")["timestamp"].min()
    assert (last.reindex(first.index) <= first).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_len": 2, "min_len": 3}, "`min_len` must be at most `max_len`, 2"),
        ({"min_len": 9, "max_len": 9}, "`min_len` must leave a list of each frame"),
        ({"test_fraction": 1.0}, "`test_fraction`"),
    ],
)
def test_says_what_is_wrong(options, message):
    with pytest.raises(ValueError, match=message):
        lists(**options)


def test_says_which_column_is_missing():
    with pytest.raises(ValueError, match="no column 'genres'"):
        lists(FRAME.drop(columns="genres"))
