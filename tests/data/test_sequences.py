import json
import os
import pathlib
import re

import numpy as np
import pandas as pd
import pytest

from keras_recsys.data import (
    Sequences,
    k_core,
    read_sequence_baskets,
    read_sequence_lines,
    read_sequence_pairs,
    read_sequence_sessions,
)

REPOSITORY = pathlib.Path(__file__).parents[2]
FOLDER = os.environ.get("KERAS_RECSYS_DATA", REPOSITORY / ".." / "shared" / "data")
SEQUENCES = pathlib.Path(FOLDER) / "sequences"
CLICKS = "SessionId\tItemId\tTime\n"


def lists(sequences):
    return [ids.tolist() for ids in sequences]


def raw(sequences):
    return [sequences.items_of(ids).tolist() for ids in sequences]


def write(folder, text, name="file.txt"):
    path = folder / name
    path.write_bytes(text.encode())
    return path


def real(name):
    if not SEQUENCES.is_dir():
        pytest.skip("the real sequences are not here")
    return SEQUENCES / name


def k_core_loop(events, min_user, min_item):
    """Drops users and items one at a time until none is too short."""
    while True:
        users = [user for user, _ in events]
        items = [item for _, item in events]
        short = {user for user in users if users.count(user) < min_user}
        rare = {item for item in items if items.count(item) < min_item}
        if not short and not rare:
            return events
        events = [(u, i) for u, i in events if u not in short and i not in rare]


def test_events_by_hand():
    sequences = Sequences.from_events(
        ["bob", "ann", "bob", "ann", "bob"], [30, 5, 7, 5, 30], [3, 9, 1, 2, 2]
    )
    assert sequences.user_values.tolist() == ["bob", "ann"]
    assert sequences.item_values.tolist() == [5, 7, 30]  # numbers as numbers
    assert lists(sequences) == [[2, 3, 3], [1, 1]]
    assert raw(sequences) == [[7, 30, 30], [5, 5]]
    assert (len(sequences), sequences.num_items, sequences.num_events) == (2, 3, 5)
    assert sequences.lengths.tolist() == [3, 2]
    assert sequences.items.dtype == "int32"
    assert sequences.offsets.tolist() == [0, 3, 5]
    assert sequences[-1].tolist() == [1, 1]
    assert repr(sequences) == (
        "Sequences(num_sequences=2, num_items=3, num_events=5, lengths=2 to 3)"
    )


def test_events_at_one_time_keep_their_order():
    items = [4, 3, 2, 1, 9, 8]
    time = [1, 1, 1, 1, 0, 0]
    assert raw(Sequences.from_events([7] * 6, items, time)) == [[9, 8, 4, 3, 2, 1]]
    assert raw(Sequences.from_events([7] * 6, items)) == [items]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        np.array,
        lambda x: np.array(x, object),
        pd.Series,
        lambda x: pd.Series(x, dtype="string"),
        lambda x: pd.Series(x, dtype="category"),
        lambda x: np.array([4 if v == "a" else 10 for v in x], "uint8"),
        lambda x: np.array([4.0 if v == "a" else 10.0 for v in x]),
        lambda x: pd.Series([4 if v == "a" else 10 for v in x], dtype="Int64"),
    ],
)
def test_columns_of_any_dtype(make):
    column = make(["b", "a", "a", "b"])
    sequences = Sequences.from_events(column, column)
    assert lists(sequences) == [[2, 2], [1, 1]]


@pytest.mark.parametrize(
    "time",
    [
        [2.5, 0.5, 1.5],
        np.array([3, 1, 2], "datetime64[ns]"),
        pd.to_datetime(["2024-01-03", "2024-01-01", "2024-01-02"], utc=True),
        [2**70, 0, 2**69],
        np.array([2**63 + 2, 2**63, 2**63 + 1], "uint64"),
    ],
)
def test_times(time):
    assert raw(Sequences.from_events([1, 1, 1], [7, 8, 9], time)) == [[8, 9, 7]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"user": [1, None, 1]}, r"`user`.*missing value at row 1"),
        ({"item": pd.Series([1, 2, pd.NA], dtype="Int64")}, r"`item`.*at row 2"),
        ({"item": np.array([np.nan, 1, 2])}, r"`item`.*missing value at row 0"),
        ({"time": [1.0, 2.0, np.nan]}, r"`time`.*missing value at row 2"),
        ({"time": [None, 2, 3]}, r"`time`.*missing value at row 0"),
        ({"item": [1, 2]}, r"`item`.*each of 3 events.*2 values"),
        ({"time": [1]}, r"`time`.*each of 3 events.*1 values"),
        ({"time": [[1, 2, 3]]}, r"`time`.*shape \(1, 3\)"),
        ({"user": [], "item": []}, r"`user`.*at least one event"),
    ],
)
def test_says_what_event_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        Sequences.from_events(**{"user": [1, 1, 2], "item": [3, 4, 5], **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": ["10", "9", "8"]}, r"`time` must hold numbers.*'10' at row 0"),
        ({"time": [1, "9", 8]}, r"`time` must hold numbers"),
        ({"item": [1, "a", 2]}, r"`item`.*'a' at row 1"),
        ({"item": [0.5, 1.5, 2.5]}, r"`item`.*0.5 at row 0"),
    ],
)
def test_says_what_type_is_wrong(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Sequences.from_events(**{"user": [1, 1, 2], "item": [3, 4, 5], **change})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([1, 3], [0, 2], [5, 6]), r"`items`.*\[1, 2\].*3 at row 1"),
        (([0, 1], [0, 2], [5, 6]), r"`items`.*0 is padding.*0 at row 0"),
        (([1, 2], [0, 1], [5, 6]), r"`offsets`.*\[0, 1\]"),
        (([1, 2], [1, 2], [5, 6]), r"`offsets`"),
        (([1, 2], [0, 2, 1, 2], [5, 6]), r"`offsets`"),
        (([1, 2], [], [5, 6]), r"`offsets`"),
        (([1, 2], [0, 2], [6, 6]), r"`item_values`.*2 values, 1 distinct"),
        (([1, 2], [0, 2], [6, None]), r"`item_values`.*missing value at row 1"),
        (([1, 2], [0, 2], [5, 6], [1, 2]), r"`user_values`.*1 sequences.*2 values"),
    ],
)
def test_says_what_field_is_wrong(args, message):
    with pytest.raises(ValueError, match=message):
        Sequences(*args)


def test_ids_are_no_floats():
    with pytest.raises(TypeError, match=r"`items`.*float64"):
        Sequences(np.array([1.0]), [0, 1], [5])


def test_index_errors():
    sequences = Sequences([1, 1], [0, 1, 2], [5])
    for index in (2, -3):
        with pytest.raises(IndexError, match=rf"\[-2, 2\).*index={index}"):
            sequences[index]
    with pytest.raises(TypeError, match="`select`"):
        sequences[:1]


def test_from_values_to_ids_and_back():
    for values in (["a", "c", "b"], [10, 30, 20]):  # not in order
        sequences = Sequences([1, 2, 3], [0, 3], values)
        assert sequences.ids_of(values[::-1]).tolist() == [3, 2, 1]
        assert sequences.ids_of([]).tolist() == []
        assert sequences.ids_of(values).dtype == "int32"
        table = sequences.items_of(np.array([[1, 3], [2, 2]]))
        assert table.tolist() == [[values[0], values[2]], [values[1]] * 2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([10, 40], r"`values`.*3, integers.*40 at row 1"),
        ([5], r"`values`.*5 at row 0"),
        (["10"], r"`values`.*integers.*'10' at row 0"),
        ([10, None], r"`values`.*missing value at row 1"),
    ],
)
def test_says_what_value_is_unknown(values, message):
    with pytest.raises(ValueError, match=message):
        Sequences([1, 2, 3], [0, 3], [10, 30, 20]).ids_of(values)


@pytest.mark.parametrize("ids", [[[1, 0]], [1, 4]])
def test_says_what_id_has_no_value(ids):
    with pytest.raises(ValueError, match=r"`ids`.*\[1, 3\].*at row 1"):
        Sequences([1, 2, 3], [0, 3], [10, 30, 20]).items_of(ids)


def test_select():
    sequences = Sequences([1, 2, 3, 1], [0, 1, 3, 4], [10, 20, 30], ["x", "y", "z"])
    kept = sequences.select(np.array([True, False, True]))
    assert lists(kept) == [[1], [1]]
    assert kept.user_values.tolist() == ["x", "z"]
    assert kept.item_values.tolist() == [10, 20, 30]
    assert lists(sequences.select(sequences.lengths > 9)) == []
    with pytest.raises(ValueError, match=r"`mask`.*\(3,\).*\(2,\)"):
        sequences.select(np.array([True, False]))
    with pytest.raises(TypeError, match=r"`mask`.*int64"):
        sequences.select(np.array([0, 1, 2]))


def test_lines_by_hand(tmp_path):
    path = write(tmp_path, "9 100 20\n\n7\t-3  20 20 \r\n")
    sequences = read_sequence_lines(path)
    assert sequences.user_values.tolist() == [9, 7]
    assert sequences.item_values.tolist() == [-3, 20, 100]
    assert lists(sequences) == [[3, 2], [1, 2, 2]]


def test_pairs_by_hand(tmp_path):
    sequences = read_sequence_pairs(write(tmp_path, "9 100\n7 20\n9 3\n\n7 100"))
    assert sequences.user_values.tolist() == [9, 7]
    assert raw(sequences) == [[100, 3], [20, 100]]


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_sequence_lines, "1 2\n\n3\n", "line 3 must hold a user and at least one"),
        (read_sequence_lines, "1 2\n3 4x 5\n", "line 2 must .*integers.*'3 4x 5'"),
        (read_sequence_lines, "1 2\n3 1_0\n", "line 2 must .*integers"),
        (read_sequence_lines, "1 9223372036854775808\n", "line 1 must .*64 bits"),
        (read_sequence_lines, f"1 {'9' * 5000}\n", "line 1 must .*64 bits"),
        (read_sequence_lines, "1 2\n\n3 4\n1 5\n", "line 4 must have a user of its"),
        (read_sequence_lines, "\n", "must hold lines of data"),
        (read_sequence_pairs, "1 2\n3\n4 5 6\n", "line 2 must hold a user and an item"),
        (read_sequence_pairs, "1 2\n3 1.5\n", "line 2 must .*'3 1.5'"),
        (read_sequence_pairs, "", "must hold lines of data"),
    ],
)
def test_says_what_line_is_wrong(read, text, message, tmp_path):
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*{message}"):
        read(path)


@pytest.mark.parametrize(
    "read", [read_sequence_lines, read_sequence_pairs, read_sequence_baskets]
)
def test_says_that_there_is_no_file(read, tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        read(tmp_path / "none")


def test_sessions_by_hand(tmp_path):
    write(tmp_path, f"{CLICKS}5\t300\t2.5\n4\t20\t7\n5\t20\t1.5\n", "a.tsv")
    write(tmp_path, "Time\tItemId\tx\tSessionId\n9\t300\t\t4\n9\t20\tz\t4\n", "b.tsv")
    sequences = read_sequence_sessions(tmp_path / "*.tsv")
    assert sequences.user_values.tolist() == [5, 4]
    assert sequences.item_values.tolist() == [20, 300]
    assert raw(sequences) == [[20, 300], [20, 300, 20]]


def test_says_which_line_of_sessions_is_no_text(tmp_path):
    path = tmp_path / "clicks.tsv"
    path.write_bytes(b"SessionId\tItemId\tTime\n1\ta\t1\n1\t\xe9\t2\n")
    with pytest.raises(ValueError, match=r"line 3 must be text in UTF-8"):
        read_sequence_sessions(path)


def test_says_that_offsets_fall():
    with pytest.raises(ValueError, match="`offsets` must rise"):
        Sequences(np.array([1, 1]), np.array([0, 2, 1, 2], "uint64"), [5])


def test_sessions_of_strings_and_other_names(tmp_path):
    path = write(
        tmp_path, "s\ti\tt\nNA\t007\t9007199254740993\nNA\t7\t9007199254740992"
    )
    sequences = read_sequence_sessions([path], session="s", item="i", time="t")
    assert sequences.user_values.tolist() == ["NA"]
    assert raw(sequences) == [["7", "007"]]  # two items, and times no floats


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{CLICKS}1\t2\t3\n1\t2\n", "line 3 must have 3 fields.*'1.t2'"),
        (f"{CLICKS}1\t2\t3\n1\t\t3\n", "line 3 .*empty"),
        (f"{CLICKS}1\t2\t3\t4\n", "line 2 must have 3 fields"),
        (f"{CLICKS}1\t2\t3\n1\t2\t3\t4\n", "line 3 must have 3 fields"),
        (f"{CLICKS}1\t2\t3\n\n1\t2\tnoon\n", "line 4 .*finite number as Time.*'noon'"),
        (f"{CLICKS}1\t2\tnan\n", "line 2 .*finite number"),
        (f"{CLICKS}1\t2\tinf\n", "line 2 .*finite number"),
        ("SessionId\tItem\tTime\n1\t2\t3\n", "must have one column 'ItemId'.*'Item'"),
        ("SessionId,ItemId,Time\n1,2,3\n", "must have one column 'SessionId'"),
        (CLICKS, "must hold clicks"),
        ("", "must have one column"),
    ],
)
def test_says_what_click_is_wrong(text, message, tmp_path):
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*{message}"):
        read_sequence_sessions(path)


def test_blank_lines_between_clicks_are_skipped(tmp_path):
    path = write(tmp_path, f"{CLICKS}1\t2\t3\n\n1\t5\t4\n\n")
    assert raw(read_sequence_sessions(path)) == [[2, 5]]


def test_says_what_name_of_a_column_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="`session`.*another for each.*'SessionId'"):
        read_sequence_sessions(write(tmp_path, CLICKS), item="SessionId")


def test_baskets_by_hand(tmp_path):
    parts = {
        "train": {"user0": [[5, 0], [], [5]]},
        "test": {"user0": [[7]], "user1": [[0, 7]]},
    }
    sequences = read_sequence_baskets(write(tmp_path, json.dumps(parts)))
    assert sequences.user_values.tolist() == ["train/user0", "test/user0", "test/user1"]
    assert sequences.item_values.tolist() == [0, 5, 7]
    assert lists(sequences) == [[2, 1, 2], [3], [1, 3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"train": {"u": [[1],\n]}}', "must be JSON.*line 2"),
        ("[1]", "must hold an object from part"),
        ("{}", "must hold an object from part"),
        ('{"train": [[1]]}', "part 'train' must hold an object from user"),
        ('{"train": {}}', "at least one user"),
        ('{"train": {"u": [[1]], "v": [1]}}', "user 'v' must have a list of baskets"),
        ('{"train": {"u": [[1, "2"]]}}', "user 'u' must"),
        ('{"train": {"u": [[1, true]]}}', "user 'u' must"),
        ('{"train": {"u": [[1.5]]}}', "user 'u' must"),
        ('{"train": {"u": [[9223372036854775808]]}}', "user 'u' must"),
        ('{"train": {"u": [[]]}}', "user 'u' must .*at least one item"),
        ('{"train": {"u": [[1]], "u": [[2]]}}', "the name 'u' twice"),
    ],
)
def test_says_what_basket_is_wrong(text, message, tmp_path):
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*{message}"):
        read_sequence_baskets(path)


@pytest.mark.parametrize(
    ("name", "read", "want"),
    [
        ("Beauty.txt", read_sequence_lines, (22363, 12101, 198502, 6, 5, 204)),
        ("LastFM.txt", read_sequence_lines, (1090, 3646, 52551, 19, 5, 899)),
        ("Video.txt", read_sequence_pairs, (31013, 23715, 287107, 6, 1, 860)),
        (
            "yoochoose-clicks-100k_*.txt",
            read_sequence_sessions,
            (21210, 2933, 83846, 3, 2, 78),
        ),
        ("TMS.json", read_sequence_baskets, (15726, 1565, 533209, 32, 10, 96)),
    ],
)
def test_real_files(name, read, want):
    x = read(real(name))
    lengths = x.lengths
    assert want == (
        len(x),
        x.num_items,
        x.num_events,
        np.median(lengths),
        lengths.min(),
        lengths.max(),
    )


def test_core_of_a_real_file():
    sequences = k_core(read_sequence_pairs(real("Video.txt")))
    assert len(sequences) == 31_013 - 1_672
    assert sequences.lengths.min() == 5
    assert (np.bincount(sequences.items)[1:] > 0).all()


def test_core_by_hand():
    # Item 9 is rare; without it user 2 is short; without user 2 item 8 is rare.
    user = [1, 1, 1, 2, 2, 3, 3, 3]
    item = [7, 6, 8, 8, 9, 6, 7, 6]
    core = k_core(Sequences.from_events(user, item), min_user=2, min_item=2)
    assert core.user_values.tolist() == [1, 3]
    assert core.item_values.tolist() == [6, 7]
    assert lists(core) == [[2, 1], [1, 2, 1]]


@pytest.mark.parametrize(("min_user", "min_item"), [(1, 0), (4, 0), (1, 5), (5, 4)])
def test_core_equals_the_loop(min_user, min_item):
    rng = np.random.default_rng(3)
    events = list(zip(rng.integers(0, 40, 250), rng.integers(0, 40, 250), strict=True))
    want = k_core_loop(events, min_user, min_item)
    assert want
    core = k_core(Sequences.from_events(*zip(*events, strict=True)), min_user, min_item)
    assert core.num_events == len(want)
    for user, items in zip(core.user_values, raw(core), strict=True):
        assert items == [item for other, item in want if other == user]
    assert core.item_values.tolist() == sorted({item for _, item in want})


def test_core_of_nothing():
    sequences = Sequences([1, 2], [0, 2], [5, 6])
    with pytest.raises(ValueError, match=r"min_user=3, min_item=0.*nothing is left"):
        k_core(sequences, 3)
    with pytest.raises(ValueError, match=r"`min_user`.*min_user=0"):
        k_core(sequences, 0)
    with pytest.raises(TypeError, match=r"`sequences`.*list"):
        k_core([[1, 2]])
