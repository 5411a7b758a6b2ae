import numpy as np
import pandas as pd
import pytest

from keras_recsys.data import load_movielens, split_by_user_time


def frame_of(users, times):
    return pd.DataFrame(
        {"user_id": users, "timestamp": times, "row": range(len(users))}
    )


def test_last_rows_of_each_user_by_hand():
    # User 1 has 4 rows, of which ranks 0 and 1 are below 0.3 * 4 = 1.2; user 2 has 3,
    # of which rank 0 is below 0.9; user 3 has its only row below 0.3.
    frame = frame_of([1, 2, 1, 1, 2, 1, 2, 3], [40, 5, 10, 30, 7, 20, 6, 1])
    train, test = split_by_user_time(frame, test_fraction=0.3)
    assert train["row"].tolist() == [1, 6, 2, 5]
    assert test["row"].tolist() == [7, 4, 3, 0]
    assert train.index.tolist() == train["row"].tolist()
    assert list(test.columns) == ["user_id", "timestamp", "row"]


def test_ties_keep_the_order_of_the_file():
    frame = frame_of([1] * 20, [5] * 20)
    train, test = split_by_user_time(frame, test_fraction=0.1)
    assert train["row"].tolist() == list(range(18))
    assert test["row"].tolist() == [18, 19]


@pytest.mark.parametrize(
    ("count", "fraction", "num_test"),
    [(100, 0.07, 7), (10, 0.1, 1), (11, 0.1, 2), (30, 0.1, 3), (2, 0.99, 2)],
)
def test_number_of_test_rows(count, fraction, num_test):
    frame = frame_of(["a"] * count, range(count))
    train, test = split_by_user_time(frame, test_fraction=fraction)
    assert (len(train), len(test)) == (count - num_test, num_test)


def test_other_columns_and_the_frame_stays():
    frame = pd.DataFrame({"who": pd.Categorical(["a", "b", "a"]), "when": [3, 2, 1]})
    before = frame.copy()
    train, test = split_by_user_time(frame, user="who", time="when")
    assert train.index.tolist() == [2]
    assert test.index.tolist() == [1, 0]
    pd.testing.assert_frame_equal(frame, before)


def test_datetimes():
    times = pd.to_datetime(["2020-01-02", "2020-01-01"])
    train, test = split_by_user_time(frame_of([1, 1], times))
    assert (train["row"].tolist(), test["row"].tolist()) == ([1], [0])


def test_movielens_gives_the_known_split():
    frame = load_movielens()
    train, test = split_by_user_time(frame)
    assert (len(train), len(test)) == (89_705, 10_299)
    for part in (train, test):
        assert part["timestamp"].is_monotonic_increasing
    last_train = train.groupby("user_id")["timestamp"].max()
    first_test = test.groupby("user_id")["timestamp"].min()
    assert set(first_test.index) == set(frame["user_id"])
    assert (last_train <= first_test[last_train.index]).all()


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan"), True, "0.1"])
def test_says_what_fraction_was_given(fraction):
    with pytest.raises(ValueError, match=rf"`test_fraction`.*={fraction!r}"):
        split_by_user_time(frame_of([1], [1]), test_fraction=fraction)


def test_says_what_is_wrong_with_the_frame():
    good = frame_of([1, 1], [1, 2])
    with pytest.raises(TypeError, match="`frame` must be a pandas.DataFrame.*dict"):
        split_by_user_time({"user_id": [1]})
    with pytest.raises(ValueError, match="`user` must name a column.*user='who'"):
        split_by_user_time(good, user="who")
    with pytest.raises(ValueError, match="`time` must name a column.*time='when'"):
        split_by_user_time(good, time="when")
    with pytest.raises(ValueError, match="at least one row"):
        split_by_user_time(good[:0])
    with pytest.raises(ValueError, match="'timestamp'.*missing value at row 1"):
        split_by_user_time(frame_of([1, 1], [1, np.nan]))
    with pytest.raises(ValueError, match="'user_id'.*missing value at row 0"):
        split_by_user_time(frame_of([None, "a"], [1, 2]))
    with pytest.raises(TypeError, match="'timestamp'.*numbers or datetimes"):
        split_by_user_time(frame_of([1, 1], ["10", "9"]))
