import collections
import datetime

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from keras_recsys.data import load_movielens, make_ranking_dataset
from keras_recsys.features import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
    TimeGapFeature,
    embed_fields,
    make_inputs,
)

# By user and time: user 1 has items 3, 4 and, at one time, 5 and 6; user 2 has 7 and 5,
# then 3 and 6; user 3 has 7. So item 7 is the only one that user 1 does not have, and
# item 4 that of user 2.
TINY = {
    "user": [2, 1, 1, 2, 1, 1, 3, 2, 2],
    "item": [7, 5, 3, 5, 4, 6, 7, 6, 3],
    "time": [10, 30, 10, 40, 20, 30, 5, 50, 60],
    "genre": [2, 1, 9, 1, 8, 3, 2, 3, 9],
}


def tiny(**changed):
    return {**TINY, **changed}


def random_log():
    """A log in random order with many events of a user at one time."""
    rng = np.random.default_rng(0)
    items = rng.integers(1, 41, 200)
    return {
        "user": rng.integers(1, 10, 200),
        "item": items,
        "time": rng.integers(-5, 25, 200) * 7,
        "genre": 1 + items * items % 5,
    }


def as_lists(dataset):
    """The batches of one epoch, as pairs of a dict of lists and a list."""
    return [
        ({name: x.numpy().tolist() for name, x in inputs.items()}, y.numpy().tolist())
        for inputs, y in dataset
    ]


def samples_of(dataset):
    """The samples of one epoch: user, item, genre, history, label."""
    samples = []
    for inputs, labels in as_lists(dataset):
        for i, (label,) in enumerate(labels):
            length = np.count_nonzero(inputs["item_history"][i])
            names = ("item_history", "genre_history", "time_gap_history")
            assert not any(any(inputs[name][i][length:]) for name in names)
            history = tuple(tuple(inputs[name][i][:length]) for name in names)
            ids = tuple(inputs[name][i] for name in ("user", "item", "genre"))
            samples.append((*ids, history, label))
    return samples


def positives_loop(log, max_len, min_len, start, end):
    """The rules of the docstring, one event at a time."""
    events = list(zip(log["user"], log["item"], log["time"], log["genre"], strict=True))
    positives = []
    for user, item, time, genre in events:
        before = [event for event in events if event[0] == user and event[2] < time]
        before = sorted(before, key=lambda event: event[2])[-max_len:]
        if start <= time < end and len(before) >= min_len:
            history = (
                tuple(int(event[1]) for event in before),
                tuple(int(event[3]) for event in before),
                tuple(int(time - event[2]) for event in before),
            )
            positives.append((int(user), int(item), int(genre), history, 1.0))
    return positives


def test_tiny_log_by_hand():
    dataset = make_ranking_dataset(
        TINY, attributes=("genre",), max_len=2, min_len=1, end=50, batch_size=4, seed=0
    )
    assert len(dataset) == 2
    assert as_lists(dataset) == [
        (
            {
                "user": [1, 1, 2, 2],
                "item": [4, 7, 5, 4],
                "genre": [8, 2, 1, 8],
                "item_history": [[3], [3], [7], [7]],
                "genre_history": [[9], [9], [2], [2]],
                "time_gap_history": [[10], [10], [30], [30]],
            },
            [[1.0], [0.0], [1.0], [0.0]],
        ),
        (
            {
                "user": [1, 1, 1, 1],
                "item": [5, 7, 6, 7],
                "genre": [1, 2, 3, 2],
                "item_history": [[3, 4]] * 4,
                "genre_history": [[9, 8]] * 4,
                "time_gap_history": [[20, 10]] * 4,
            },
            [[1.0], [0.0], [1.0], [0.0]],
        ),
    ]


def test_padding_and_empty_histories_by_hand():
    def histories(**arguments):
        dataset = make_ranking_dataset(TINY, num_negatives=0, batch_size=3, **arguments)
        names = ("item", "item_history", "time_gap_history")
        return [[inputs[name] for name in names] for inputs, _ in as_lists(dataset)]

    # The first events of all users come first, with nothing but padding.
    assert histories(start=5, end=41, max_len=9) == [
        [[3, 7, 7], [[0], [0], [0]], [[0], [0], [0]]],
        [[4, 5, 5], [[3, 0], [7, 0], [3, 4]], [[10, 0], [30, 0], [20, 10]]],
        [[6], [[3, 4]], [[20, 10]]],
    ]
    assert histories(start=50, boundaries=()) == [
        [[6, 3], [[7, 5, 0], [7, 5, 6]], [[40, 10, 0], [50, 20, 10]]]
    ]
    assert histories(start=50, max_len=1) == [[[6, 3], [[5], [6]], [[10], [10]]]]


def test_names_dtypes_and_shapes():
    frame = pd.DataFrame(TINY).rename(columns={"user": "who", "item": "movie"})
    frame["movie"] += 2**31
    frame.index = range(50, 59)
    dataset = make_ranking_dataset(
        frame.rename(columns={"time": "when"}),
        user="who",
        item="movie",
        time="when",
        attributes=["genre"],
        batch_size=4,
        drop_remainder=True,
    )
    inputs, labels = dataset.element_spec
    assert {name: (x.dtype.name, x.shape.as_list()) for name, x in inputs.items()} == {
        "who": ("int32", [4]),
        "movie": ("int64", [4]),
        "genre": ("int32", [4]),
        "movie_history": ("int64", [4, None]),
        "genre_history": ("int32", [4, None]),
        "time_gap_history": ("int64", [4, None]),
    }
    assert (labels.dtype, labels.shape.as_list()) == (tf.float32, [4, 1])
    assert len(dataset) == len(list(dataset)) == 4  # of 9 * 2 samples
    last, _ = as_lists(dataset)[-1]
    assert last["movie_history"][0] == [2**31 + 3, 2**31 + 4]


@pytest.mark.parametrize(
    ("max_len", "min_len", "start", "end", "num_negatives", "negatives", "shuffle"),
    [
        (100, 0, -np.inf, np.inf, 1, "uniform", True),
        (100, 0, -np.inf, np.inf, 1, "popularity", False),
        (4, 2, 14, 119, 3, "uniform", False),
        (1, 1, 0.5, np.inf, 0, "uniform", True),
        (9, 0, -np.inf, 50.5, 2, "popularity", True),
    ],
)
def test_equals_the_loop(
    max_len, min_len, start, end, num_negatives, negatives, shuffle
):
    log = random_log()
    dataset = make_ranking_dataset(
        log,
        attributes=["genre"],
        max_len=max_len,
        min_len=min_len,
        start=None if start == -np.inf else start,
        end=None if end == np.inf else end,
        num_negatives=num_negatives,
        negatives=negatives,
        batch_size=17,
        shuffle=shuffle,
        seed=1,
    )
    samples = samples_of(dataset)
    want = positives_loop(log, max_len, min_len, start, end)
    got = [sample for sample in samples if sample[4] == 1.0]
    assert collections.Counter(got) == collections.Counter(want)  # each just once
    others = [sample for sample in samples if sample[4] == 0.0]
    # As many negatives of each user and history, with the attribute of their item.
    count = collections.Counter((user, history) for user, _, _, history, _ in want)
    assert collections.Counter((s[0], s[3]) for s in others) == {
        key: num_negatives * n for key, n in count.items() if num_negatives
    }
    touched = set(zip(log["user"].tolist(), log["item"].tolist(), strict=True))
    genre_of = dict(zip(log["item"].tolist(), log["genre"].tolist(), strict=True))
    for user, item, genre, _, _ in others:
        assert (user, item) not in touched
        assert genre == genre_of[item]
    sizes = [len(labels) for _, labels in dataset]
    assert len(dataset) == len(sizes) == -(-len(samples) // 17)
    assert sum(size != 17 for size in sizes) <= 1


def test_ties_keep_the_order_of_the_rows():
    log = {"user": [1] * 5, "item": [5, 4, 3, 2, 1], "time": [1, 1, 1, 1, 2]}
    dataset = make_ranking_dataset(log, num_negatives=0, min_len=1)
    ((inputs, _),) = as_lists(dataset)
    assert inputs["item_history"] == [[5, 4, 3, 2]]
    # Nothing of the first time is history of it.
    ((inputs, _),) = as_lists(make_ranking_dataset(log, num_negatives=0, end=2))
    assert inputs["item_history"] == [[0]] * 4


@pytest.mark.parametrize(
    ("negatives", "shares"),
    [
        ("uniform", {2: 1 / 4, 3: 1 / 4, 5: 1 / 4, 6: 1 / 4}),
        ("popularity", {2: 3 / 8, 3: 1 / 8, 5: 2 / 8, 6: 2 / 8}),
    ],
)
def test_shares_of_the_negatives(negatives, shares):
    # User 1 has 1, 4 and 7; of the others, user 2 has 2, 3, 5, 6 as often as above.
    log = {
        "user": [1] * 5 + [2] * 8,
        "item": [1, 4, 4, 7, 7, 2, 2, 2, 3, 5, 5, 6, 6],
        "time": [0, 0, 0, 0, 1, *range(8)],
    }
    draws = 4000
    dataset = make_ranking_dataset(
        log, start=1, end=2, num_negatives=draws, negatives=negatives, seed=0
    )
    samples = collections.Counter()
    for inputs, labels in dataset:
        chosen = inputs["item"][(labels[:, 0] == 0) & (inputs["user"] == 1)]
        samples.update(chosen.numpy().tolist())
    assert set(samples) == set(shares)
    for item, share in shares.items():
        deviation = np.sqrt(draws * share * (1 - share))
        assert abs(samples[item] - draws * share) < 5 * deviation


def test_one_free_item_is_drawn_and_none_is_an_error():
    # User 1 has all items from 1 to 1000 but 777, which user 2 has; user 3 all of them.
    items = [i for i in range(1, 1001) if i != 777]
    log = {"user": [1] * 999 + [2], "item": [*items, 777], "time": range(1000)}
    dataset = make_ranking_dataset(log, end=999, shuffle=True, num_negatives=2)
    for inputs, labels in dataset:
        assert set(inputs["item"][labels[:, 0] == 0].numpy()) == {777}
    log = {name: [*log[name], *log[name]] for name in log}
    log["user"] = log["user"][:1000] + [3] * 1000
    with pytest.raises(ValueError, match="negative to each user.*user 3.*all 1000 it"):
        make_ranking_dataset(log)
    # It does not matter where that user has no sample, or no negatives are asked for.
    make_ranking_dataset({**log, "time": [5] * 1000 + [0] * 1000}, start=1)
    make_ranking_dataset(log, num_negatives=0)


def test_without_shuffle_all_epochs_are_equal():
    log = random_log()
    arguments = {"attributes": ["genre"], "num_negatives": 2, "batch_size": 99}
    dataset = make_ranking_dataset(log, seed=3, **arguments)
    first = as_lists(dataset)
    assert as_lists(dataset) == first
    assert as_lists(make_ranking_dataset(log, seed=3, **arguments)) == first
    assert as_lists(make_ranking_dataset(log, seed=4, **arguments)) != first
    unseeded = make_ranking_dataset(log, **arguments)
    drawn = as_lists(unseeded)
    assert as_lists(unseeded) == drawn != first


def test_negatives_do_not_depend_on_batches_and_lengths():
    def drawn(**arguments):
        dataset = make_ranking_dataset(
            random_log(), attributes=["genre"], num_negatives=3, seed=0, **arguments
        )
        return collections.Counter(
            (user, item, label) for user, item, _, _, label in samples_of(dataset)
        )

    want = drawn()
    assert drawn(batch_size=7, max_len=3) == want
    assert drawn(boundaries=[2, 5]) == want
    assert not drawn(start=50, min_len=2) - want  # a part of the same


def test_positives_stand_before_their_negatives():
    dataset = make_ranking_dataset(
        random_log(), attributes=["genre"], num_negatives=2, batch_size=10
    )
    samples = samples_of(dataset)
    assert [sample[4] for sample in samples] == [1.0, 0.0, 0.0] * (len(samples) // 3)
    for i in range(0, len(samples), 3):
        same = {(user, history) for user, _, _, history, _ in samples[i : i + 3]}
        assert len(same) == 1


def test_shuffle_draws_order_and_negatives_anew():
    arguments = {"attributes": ["genre"], "batch_size": 16, "shuffle": True}
    dataset = make_ranking_dataset(random_log(), seed=5, **arguments)
    first, second = samples_of(dataset), samples_of(dataset)
    assert first != second

    def part(samples, label):
        return collections.Counter(s for s in samples if s[4] == label)

    assert part(first, 1.0) == part(second, 1.0)
    assert part(first, 0.0) != part(second, 0.0)
    again = make_ranking_dataset(random_log(), seed=5, **arguments)
    assert [samples_of(again), samples_of(again)] == [first, second]
    other = make_ranking_dataset(random_log(), seed=6, **arguments)
    assert samples_of(other) != first
    # Batches of all lengths are mixed, and so are positives and negatives.
    longest = [x["item_history"].shape[1] for x, _ in dataset]
    assert longest != sorted(longest)
    assert 0 < sum(label for *_, label in first[:16]) < 16


def test_drop_remainder_drops_random_samples():
    dataset = make_ranking_dataset(
        random_log(),
        attributes=["genre"],
        batch_size=64,
        shuffle=True,
        seed=0,
        drop_remainder=True,
    )
    first, second = samples_of(dataset), samples_of(dataset)
    assert len(first) == len(second) == 64 * len(dataset) == 384  # of 400
    wanted = collections.Counter(positives_loop(random_log(), 100, 0, -1e9, 1e9))
    dropped = [
        wanted - collections.Counter(s for s in samples if s[4])
        for samples in (first, second)
    ]
    assert all(dropped)
    assert dropped[0] != dropped[1]
    lengths = [len(history[0]) for _, _, _, history, _ in dropped[0] + dropped[1]]
    assert min(lengths) < 9 < max(lengths)  # not always the longest


@pytest.mark.parametrize("shuffle", [False, True])
def test_padding_share_of_movielens(shuffle):
    frame = load_movielens()

    def share_of_padding(**arguments):
        dataset = make_ranking_dataset(
            frame,
            user="user_id",
            item="movie_id",
            time="timestamp",
            num_negatives=0,
            shuffle=shuffle,
            **arguments,
        )
        padding = cells = events = 0
        for inputs, labels in dataset:
            history = inputs["movie_id_history"].numpy()
            padding += np.count_nonzero(history == 0)
            cells += history.size
            events += len(labels)
        assert events == len(frame)
        return padding / cells

    assert share_of_padding(max_len=200) < 0.1
    if shuffle:  # the buckets are what does it
        assert share_of_padding(max_len=200, boundaries=()) > 0.2


def test_sub_seconds_order_the_events():
    times = np.array(
        ["2024-01-01T00:00:00.000", "2024-01-01T00:00:00.250", "2024-01-01T00:01:00.1"],
        "datetime64[ns]",
    )
    log = {"user": [1, 1, 1], "item": [3, 2, 1], "time": times}
    dataset = make_ranking_dataset(log, num_negatives=0, min_len=1)
    ((inputs, _),) = as_lists(dataset)
    assert inputs["item_history"] == [[3, 0], [3, 2]]
    # 0.25 s, then 60.1 and 59.85 s, in whole seconds
    assert inputs["time_gap_history"] == [[0, 0], [60, 59]]


def test_datetimes_are_seconds():
    seconds = np.array(TINY["time"]) * 3600
    times = np.datetime64("2020-05-01", "s") + seconds.astype("timedelta64[s]")
    end = times[7]
    arguments = {"min_len": 1, "max_len": 2, "num_negatives": 0}
    want = as_lists(make_ranking_dataset(tiny(time=seconds), end=180_000, **arguments))
    for unit, bound in (
        ("s", end),
        ("ms", end.item()),
        ("25s", str(end)),
        ("h", end.astype("datetime64[h]")),
    ):
        log = tiny(time=times.astype(f"datetime64[{unit}]"))
        assert as_lists(make_ranking_dataset(log, end=bound, **arguments)) == want
    frame = pd.DataFrame(tiny(time=times.astype("datetime64[ns]")))
    dataset = make_ranking_dataset(frame, end=pd.Timestamp(end), **arguments)
    assert as_lists(dataset) == want


def test_dates_as_bounds():
    days = np.datetime64("2024-02-28") + np.arange(4)
    log = {"user": [1] * 4, "item": [1, 2, 3, 4], "time": days}
    dataset = make_ranking_dataset(
        log, num_negatives=0, start=datetime.date(2024, 2, 29), end="2024-03-02"
    )
    ((inputs, _),) = as_lists(dataset)
    assert inputs["item"] == [2, 3]
    assert inputs["time_gap_history"] == [[86_400, 0], [172_800, 86_400]]


def test_other_columns_of_numbers():
    want = as_lists(make_ranking_dataset(TINY, seed=0))
    for convert in (
        lambda x: np.array(x, "uint8"),
        lambda x: np.array(x, object),
        lambda x: pd.Series(x, index=range(9, 0, -1), dtype="Int64"),
    ):
        log = {name: convert(TINY[name]) for name in TINY}
        assert as_lists(make_ranking_dataset(log, seed=0)) == want


def test_far_times_and_exact_bounds():
    near = 2**62
    log = {"user": [1] * 4, "item": [1, 2, 3, 4], "time": near + np.arange(4)}
    dataset = make_ranking_dataset(log, num_negatives=0, start=near + 1, end=near + 3)
    ((inputs, _),) = as_lists(dataset)  # floats would merge all four
    assert inputs["item"] == [2, 3]
    assert inputs["time_gap_history"] == [[1, 0], [2, 1]]
    log["time"] = [-near, 0, 0, near - 1]
    dataset = make_ranking_dataset(log, num_negatives=0, start=1)
    ((inputs, _),) = as_lists(dataset)
    assert inputs["time_gap_history"] == [[2 * near - 1, near - 1, near - 1]]


def test_attributes_as_tables():
    table = np.zeros(8, int)  # of the ids that no event has, nothing is asked
    table[TINY["item"]] = TINY["genre"]
    want = as_lists(make_ranking_dataset(TINY, attributes=["genre"], seed=0))
    dataset = make_ranking_dataset(TINY, attributes={"genre": table}, seed=0)
    assert as_lists(dataset) == want
    twice = {"genre": table.tolist(), "shop": pd.Series(table * 10)}
    inputs, _ = as_lists(make_ranking_dataset(TINY, attributes=twice, seed=0))[0]
    assert inputs["shop"] == [10 * genre for genre in inputs["genre"]]
    np.testing.assert_array_equal(
        inputs["shop_history"], 10 * np.array(inputs["genre_history"])
    )


def test_a_model_fits_it():
    def without_gaps(inputs, labels):
        del inputs["time_gap_history"]
        return inputs, labels

    dataset = make_ranking_dataset(
        random_log(), attributes=["genre"], batch_size=128, shuffle=True, seed=0
    )
    features = [
        CategoricalFeature("user", 13),
        CategoricalFeature("item", 41, table="item"),
        CategoricalFeature("genre", 6, table="genre"),
        SequenceFeature("item_history", 41, table="item"),
        SequenceFeature("genre_history", 6, table="genre"),
    ]
    inputs = make_inputs(features)
    fields = keras.layers.Flatten()(embed_fields(inputs, features, 4))
    outputs = keras.layers.Dense(1, activation="sigmoid")(fields)
    model = keras.Model(inputs, outputs)
    model.compile("adam", "binary_crossentropy", run_eagerly=True)
    history = model.fit(dataset.map(without_gaps), shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"user": ["a"] * 9}, TypeError, "'user'.*keras_recsys.data.Vocabulary.*'a'"),
        ({"item": np.array(list("abcdefghi"))}, TypeError, "'item'.*Vocabulary.*'a'"),
        ({"item": np.arange(1.0, 10)}, TypeError, "'item'.*float64.*1.0"),
        ({"genre": [True] * 9}, TypeError, "'genre'.*integer ids.*dtype bool"),
        ({"item": [1, 2, 0] * 3}, ValueError, "'item'.*from 1.*id 0 at row 2"),
        ({"user": [1, -2, 3] * 3}, ValueError, "'user'.*from 1.*id -2 at row 1"),
        ({"genre": [0] * 9}, ValueError, "'genre'.*from 1.*id 0 at row 0"),
        (
            {"item": np.full(9, 2**63, "uint64")},
            ValueError,
            "'item'.*9223372036854775808",
        ),
        ({"item": [1, None] * 4 + [1]}, ValueError, "'item'.*missing value at row 1"),
        ({"time": [1.0, np.nan] * 4 + [1.0]}, ValueError, "'time'.*missing.*row 1"),
        (
            {"time": np.array(["2024-01-01"] * 8 + ["NaT"], "datetime64[s]")},
            ValueError,
            "'time'.*missing.*row 8",
        ),
        ({"time": np.arange(9.0)}, TypeError, "'time'.*integers or datetimes.*float64"),
        ({"time": ["2024-01-01"] * 9}, TypeError, "'time'.*datetimes.*'2024-01-01'"),
        (
            {"time": pd.date_range("2024", periods=9, tz="UTC")},
            TypeError,
            "'time'.*without time zone",
        ),
        ({"time": np.full(9, 2**63, "uint64")}, ValueError, "'time'.*64 bits"),
        ({"time": [-(2**62)] * 8 + [2**62]}, ValueError, "'time'.*span less than 2"),
        ({"time": [1] * 8}, ValueError, "'time'.*as many rows as.*'user', 9.*8 rows"),
        ({"item": np.ones((9, 1), int)}, ValueError, r"'item'.*shape \(9, 1\)"),
        (
            {"genre": [2, 1, 9, 4, 8, 3, 2, 3, 9]},
            ValueError,
            "'genre'.*one id for each item.* 1 at row 1 and 4 at row 3 for item 5",
        ),
        (dict.fromkeys(TINY, []), ValueError, "at least one event"),
    ],
)
def test_says_what_is_wrong_with_the_log(changed, error, match):
    with pytest.raises(error, match=match):
        make_ranking_dataset(tiny(**changed), attributes=["genre"])


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"user": "who"}, ValueError, "`user` must name a column.*'who'"),
        ({"item": "movie"}, ValueError, "`item` must name a column.*'movie'"),
        ({"time": "when"}, ValueError, "`time` must name a column.*'when'"),
        ({"attributes": ["shop"]}, ValueError, "`attributes` must name a col.*'shop'"),
        ({"attributes": "genre"}, TypeError, "`attributes`.*='genre'"),
        ({"attributes": 3}, TypeError, "`attributes`.*=3"),
        ({"attributes": ["genre", "genre"]}, ValueError, "distinct names.*'genre'"),
        ({"user": "item"}, ValueError, "distinct names.*'item'"),
        ({"attributes": {"time_gap": range(9)}}, ValueError, "'time_gap_history'"),
        ({"attributes": {"shop": range(7)}}, ValueError, "'shop'.*up to id 7.*7 rows"),
        ({"attributes": {"shop": [1] * 7 + [0]}}, ValueError, "'shop'.*id 0 at row 7"),
        ({"attributes": {"shop": ["a"] * 8}}, TypeError, "'shop'.*Vocabulary"),
        ({"max_len": 0}, ValueError, "`max_len`.*=0"),
        ({"max_len": 2.0}, TypeError, "`max_len`.*=2.0"),
        ({"min_len": -1}, ValueError, "`min_len`.*=-1"),
        ({"min_len": 4, "max_len": 3}, ValueError, "`min_len`.*`max_len`, 3.*=4"),
        ({"num_negatives": -1}, ValueError, "`num_negatives`.*=-1"),
        ({"negatives": "hard"}, ValueError, "`negatives`.*='hard'"),
        ({"start": 30, "end": 30}, ValueError, "`start` must be before.*=30, end=30"),
        ({"start": float("nan")}, ValueError, "`start` must be finite.*nan"),
        ({"end": "2024-01-01"}, TypeError, "`end` must be a number.*'2024-01-01'"),
        ({"start": 61}, ValueError, "no such event, with start=61"),
        ({"min_len": 5}, ValueError, "no such event.*min_len=5"),
        ({"batch_size": 0}, ValueError, "`batch_size`.*=0"),
        (
            {"batch_size": 19, "drop_remainder": True},
            ValueError,
            "`batch_size`.*number of samples, 18.*=19",
        ),
        ({"boundaries": [2, 2]}, ValueError, r"`boundaries` must increase.*\[2, 2\]"),
        ({"boundaries": [0]}, ValueError, "`boundaries`.*=0"),
        ({"boundaries": 5}, TypeError, "`boundaries`.*=5"),
        ({"shuffle": 1}, TypeError, "`shuffle`.*=1"),
        ({"drop_remainder": 0}, TypeError, "`drop_remainder`.*=0"),
        ({"seed": -1}, ValueError, "`seed`.*=-1"),
    ],
)
def test_says_what_argument_was_given(arguments, error, match):
    with pytest.raises(error, match=match):
        make_ranking_dataset(TINY, **arguments)


def test_says_what_log_or_bound_was_given():
    with pytest.raises(TypeError, match="`log` must be a dict.*list"):
        make_ranking_dataset([1])
    log = tiny(time=np.datetime64("2024-01-01") + np.arange(9))
    utc = datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc)
    for bound in (5, utc):
        with pytest.raises(TypeError, match="`start` must be a datetime without"):
            make_ranking_dataset(log, start=bound)
    with pytest.raises(ValueError, match="`end` must be an ISO 8601.*'tomorrow'"):
        make_ranking_dataset(log, end="tomorrow")
    with pytest.raises(ValueError, match="`end` must be a datetime.*NaT"):
        make_ranking_dataset(log, end=pd.NaT)


def test_features_choose_the_inputs():
    log = {"user": [1, 1, 1, 2], "item": [5, 3, 4, 6], "time": [10, 20, 25, 10]}
    features = [
        CategoricalFeature("item", 7, table="item", dtype="int64"),
        SequenceFeature("item_history", 7, table="item", max_len=4),
        TimeGapFeature("time_gap_history", dtype="float32"),
    ]
    dataset = make_ranking_dataset(log, features=features, max_len=4, num_negatives=0)
    assert dataset.cardinality() == 1
    (inputs, labels), *rest = dataset
    assert not rest
    assert list(inputs) == [feature.name for feature in features]
    assert [x.dtype.name for x in inputs.values()] == ["int64", "int32", "float32"]
    # By length of the history, then by user: none, none, one and two events.
    np.testing.assert_array_equal(inputs["item"], [5, 6, 3, 4])
    history = [[0, 0, 0, 0], [0, 0, 0, 0], [5, 0, 0, 0], [5, 3, 0, 0]]
    np.testing.assert_array_equal(inputs["item_history"], history)
    gaps = [[0, 0], [0, 0], [10, 0], [15, 5]]
    np.testing.assert_array_equal(inputs["time_gap_history"], gaps)
    np.testing.assert_array_equal(labels, np.ones((4, 1)))
    assert dataset.element_spec[0]["item_history"].shape[1] == 4


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (CategoricalFeature("genre", 9), r"names of inputs, \['user'.*'genre'"),
        (CategoricalFeature("item_history", 9), "SequenceFeature or TimeGapFeature"),
        (SequenceFeature("item", 9), "SequenceFeature or TimeGapFeature"),
        (CategoricalFeature("item", 6), "above its largest id, 6.*vocab_size=6"),
        (SequenceFeature("item_history", 9, max_len=3), "dataset, 4, or.*max_len=3"),
    ],
)
def test_says_which_feature_does_not_fit(feature, message):
    log = {"user": [1, 1], "item": [5, 6], "time": [10, 20]}
    with pytest.raises((TypeError, ValueError), match=message):
        make_ranking_dataset(log, features=[feature], max_len=4, num_negatives=0)


def test_context_is_that_of_the_target_event():
    log = {
        "user": [1, 1, 2],
        "item": [5, 3, 4],
        "time": [10, 20, 10],
        "hour": [7, 8, 9],
        "price": [0.5, 1.5, 2.5],
    }
    features = [
        CategoricalFeature("hour", 10),
        NumericFeature("price"),
        CategoricalFeature("item", 6),
    ]
    options = {"context": ("hour", "price"), "features": features, "seed": 0}
    (inputs, labels), *_ = make_ranking_dataset(log, **options)
    # By length of the history: the first events of both users, then the second of one;
    # each with a negative behind it.
    np.testing.assert_array_equal(labels[:, 0], [1, 0, 1, 0, 1, 0])
    np.testing.assert_array_equal(inputs["hour"], [7, 7, 9, 9, 8, 8])
    np.testing.assert_array_equal(inputs["price"], [0.5, 0.5, 2.5, 2.5, 1.5, 1.5])
    assert inputs["price"].dtype == "float32"
    for column, message in (
        (["a", "b", "c"], "encode raw values with a keras_recsys.data.Vocabulary"),
        ([0.5, 1.5], "a number for each of 3 rows.*2 of dtype"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            make_ranking_dataset({**log, "hour": column}, context=["hour"])
    with pytest.raises(TypeError, match="NumericFeature for floats.*'price'"):
        make_ranking_dataset(
            log, context=["price"], features=[CategoricalFeature("price", 9)]
        )


@pytest.mark.parametrize(
    ("bounds", "want"),
    [
        ({"end": "9999-01-01"}, [1, 2, 3]),
        ({"start": "1500-01-01", "end": datetime.datetime(3000, 1, 1)}, [1, 2, 3]),
        ({"start": "2024-01-02", "end": "9999-01-01"}, [2, 3]),
    ],
)
def test_bounds_that_nanoseconds_cannot_hold(bounds, want):
    times = np.array(["2024-01-01", "2024-01-02", "2024-01-03"], "datetime64[ns]")
    log = {"user": [1, 1, 1], "item": [1, 2, 3], "time": times}
    inputs, _ = next(iter(make_ranking_dataset(log, num_negatives=0, **bounds)))
    np.testing.assert_array_equal(inputs["item"], want)
    with pytest.raises(ValueError, match="no such event"):
        make_ranking_dataset(log, num_negatives=0, start="3000-01-01")


def test_nothing_wraps_in_int32():
    log = {"user": [1, 1], "item": [2**32 + 1, 3], "time": [0, 3 * 10**9]}
    gap = TimeGapFeature("time_gap_history", dtype="int32")
    options = {"num_negatives": 0, "min_len": 1}
    inputs, _ = next(iter(make_ranking_dataset(log, features=[gap], **options)))
    np.testing.assert_array_equal(inputs["time_gap_history"], [[2**31 - 1]])
    item = CategoricalFeature("item", 7, out_of_range="zero")
    with pytest.raises(ValueError, match="must be 'int64' for its largest id, 42949"):
        make_ranking_dataset(log, features=[item], **options)
