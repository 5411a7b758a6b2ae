import math
import os
import pathlib

import numpy as np
import pytest

from keras_recsys.analysis import repeat_statistics
from keras_recsys.data import (
    Sequences,
    read_sequence_baskets,
    read_sequence_lines,
    read_sequence_sessions,
)

REPOSITORY = pathlib.Path(__file__).parents[2]
FOLDER = os.environ.get("KERAS_RECSYS_DATA", REPOSITORY / ".." / "shared" / "data")
SEQUENCES = pathlib.Path(FOLDER) / "sequences"


def make(*sequences):
    users = np.repeat(np.arange(len(sequences)), [len(x) for x in sequences])
    return Sequences.from_events(users, list("".join(sequences)))


def loop(sequences, max_len):
    """The docstring, one event at a time."""
    events, by_len = [], {}
    for ids in map(list, sequences):
        for n, item in enumerate(ids):
            repeat = item in ids[:n]
            events.append((n, repeat, n > 0 and item == ids[n - 1], n == len(ids) - 1))
            if 2 <= n <= max_len:
                key = n, len(set(ids[:n])) < n
                by_len.setdefault(key, []).append(repeat)
    return events, by_len


def test_by_hand():
    # Repeats: the third and fourth of "abab", the second and third of "ccc".
    got = repeat_statistics(make("abab", "ccc", "d"), max_len=3)
    assert (got.num_sequences, got.num_events) == (3, 8)
    assert got.repeat == 4 / 8
    assert got.immediate == 2 / 8
    assert got.next_repeat == 4 / 5
    assert got.last_repeat == 1.0
    assert got.prefix_len.tolist() == [2, 3]
    # After "ab" and "cc" a repeat each, after "aba" another.
    assert got.num_after_repeat.tolist() == [1, 1]
    assert got.num_after_none.tolist() == [1, 0]
    assert got.after_repeat.tolist() == [1.0, 1.0]
    np.testing.assert_array_equal(got.after_none, [1.0, np.nan])


def test_equals_the_loop():
    rng = np.random.default_rng(0)
    sequences = Sequences.from_events(
        rng.integers(0, 30, 400), rng.integers(0, 12, 400)
    )
    got = repeat_statistics(sequences, max_len=12)
    events, by_len = loop(sequences, 12)
    assert got.repeat == pytest.approx(np.mean([e[1] for e in events]))
    assert got.immediate == pytest.approx(np.mean([e[2] for e in events]))
    assert got.next_repeat == pytest.approx(np.mean([e[1] for e in events if e[0]]))
    last = [e[1] for e in events if e[0] and e[3]]
    assert got.last_repeat == pytest.approx(np.mean(last))
    frame = got.to_frame()
    assert frame.index.name == "prefix_len"
    for n, row in frame.iterrows():
        for name, had in (("after_repeat", True), ("after_none", False)):
            want = by_len.get((n, had), [])
            assert row[f"num_{name}"] == len(want)
            want = np.mean(want) if want else np.nan
            np.testing.assert_allclose(row[name], want)


def test_without_repeats_and_without_events():
    got = repeat_statistics(make("abc", "ba"))
    assert (got.repeat, got.immediate, got.last_repeat) == (0, 0, 0)
    assert len(got.prefix_len) == 48
    got = repeat_statistics(Sequences(np.zeros(0, int), [0], []))
    assert got.num_events == 0
    assert all(map(math.isnan, (got.repeat, got.immediate, got.last_repeat)))
    assert "repeat" in str(got)
    got = repeat_statistics(make("a", "b"))
    assert (got.repeat, got.immediate) == (0, 0)
    assert math.isnan(got.last_repeat)


@pytest.mark.parametrize(
    ("name", "read", "want"),
    [
        ("Beauty.txt", read_sequence_lines, (0, 0, 0)),
        ("yoochoose-clicks-100k_*.txt", read_sequence_sessions, (26.7, 19.4, 37.3)),
        ("TMS.json", read_sequence_baskets, (46.7, 5.5, 56.3)),
    ],
)
def test_real_files(name, read, want):
    if not SEQUENCES.is_dir():
        pytest.skip("the real sequences are not here")
    got = repeat_statistics(read(SEQUENCES / name))
    # A few clicks at one time may stand in another order.
    got = (100 * got.repeat, 100 * got.immediate, 100 * got.last_repeat)
    assert got == pytest.approx(want, abs=0.06)


def test_says_what_was_given():
    with pytest.raises(ValueError, match=r"`max_len`.*max_len=1"):
        repeat_statistics(make("abc"), max_len=1)
    with pytest.raises(TypeError, match=r"`sequences`.*list"):
        repeat_statistics([[1, 2]])
