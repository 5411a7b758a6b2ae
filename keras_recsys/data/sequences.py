"""Sequences of items, one a user: from events, from files, and their k-core."""

import dataclasses
import itertools
import json
import math
import numbers
import re

import numpy as np

from keras_recsys._checks import check_int
from keras_recsys.data._columns import as_numpy, is_missing, read_column
from keras_recsys.data._row_checks import find_files

INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Sequences:
    """Sequences of item ids, one after another in one array.

    `len(sequences)` is their number, and `sequences[i]` the ids of sequence `i`, oldest
    first. Items have ids from 1, so that 0 is left for padding: an embedding of the
    items needs a `vocab_size` of `num_items + 1`.

    Args:
        items: Int array of ids in `[1, num_items]`, of shape `(num_events,)`; kept as
            int32.
        offsets: Int array of shape `(num_sequences + 1,)`: sequence `i` is
            `items[offsets[i]:offsets[i + 1]]`. Kept as int64.
        item_values: Distinct strings or integers, the raw value of each item; that of
            id `i` stands at `i - 1`.
        user_values: Strings or integers, one a sequence. Defaults to `None`, not known.

    Raises:
        TypeError: If values are neither strings nor integers, or ids no integers.
        ValueError: If the offsets do not divide `items`, an id is out of its range, a
            value is missing or twice in `item_values`, or `user_values` is of another
            length.

    Example:
    >>> sequences = Sequences.from_events(["ann", "bob", "ann"], ["tea", "tea", "cup"])
    >>> len(sequences), sequences[0].tolist(), sequences.item_values.tolist()
    (2, [2, 1], ['cup', 'tea'])
    """

    items: np.ndarray
    offsets: np.ndarray
    item_values: np.ndarray
    user_values: np.ndarray | None = None

    def __post_init__(self):
        item_values = _read_values("`item_values`", self.item_values)
        if len(np.unique(item_values)) != len(item_values):
            raise ValueError(
                "`item_values` must hold each value once. Received: "
                f"{len(item_values)} values, {len(np.unique(item_values))} distinct."
            )
        items = _read_integers("items", self.items)
        offsets = _read_integers("offsets", self.offsets)
        if (
            not len(offsets)
            or offsets[0] != 0
            or offsets[-1] != len(items)
            or (offsets[1:] < offsets[:-1]).any()
        ):
            raise ValueError(
                "`offsets` must rise from 0 to the number of `items`, "
                f"{len(items)}. Received: offsets={self.offsets!r}."
            )
        _check_ids("items", items, len(item_values))
        user_values = self.user_values
        if user_values is not None:
            user_values = _read_values("`user_values`", user_values)
            if len(user_values) != len(offsets) - 1:
                raise ValueError(
                    "`user_values` must hold a value for each of "
                    f"{len(offsets) - 1} sequences. "
                    f"Received: {len(user_values)} values."
                )
        for name, value in (
            ("items", items.astype("int32", copy=False)),
            ("offsets", offsets.astype("int64", copy=False)),
            ("item_values", item_values),
            ("user_values", user_values),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def from_events(cls, user, item, time=None):
        """Makes sequences of events in any order.

        Users are in the order in which they first appear, their events by time; events
        at one time stay in the given order. Ids of items follow the order of the
        sorted values, numbers as numbers.

        Args:
            user: Strings or integers, one an event: an array, `pandas.Series` or list.
            item: As `user`.
            time: Numbers or datetimes, one an event. Defaults to `None`: the events of
                each user are given oldest first.

        Returns:
            `Sequences`, none of them empty.

        Raises:
            TypeError: If `user` or `item` holds anything but only strings or only
                integers, or `time` anything but numbers or datetimes.
            ValueError: If a value is missing, lengths differ, or there is no event.
        """
        users = _read_values("`user`", user)
        items = _read_values("`item`", item)
        columns = {"item": items}
        if time is not None:
            columns["time"] = _read_times(time)
        for name, column in columns.items():
            if len(column) != len(users):
                raise ValueError(
                    f"`{name}` must hold a value for each of {len(users)} events, as "
                    f"`user` does. Received: {len(column)} values."
                )
        if not len(users):
            raise ValueError("`user` must hold at least one event. Received: none.")
        _, first, number = np.unique(users, return_index=True, return_inverse=True)
        appearance = np.argsort(first)
        rank = np.empty_like(appearance)
        rank[appearance] = np.arange(len(first))
        rank = rank[number]
        if time is None:
            order = np.argsort(rank, kind="stable")
        else:
            order = np.lexsort((columns["time"], rank))  # stable as well
        return _of_sorted(items[order], np.bincount(rank), users[first[appearance]])

    @property
    def num_items(self):
        """Distinct items, the largest id."""
        return len(self.item_values)

    @property
    def num_events(self):
        """Events of all sequences."""
        return len(self.items)

    @property
    def lengths(self):
        """Int64 array of the length of each sequence, in events."""
        return np.diff(self.offsets)

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, index):
        if isinstance(index, bool) or not isinstance(index, numbers.Integral):
            raise TypeError(
                "`index` must be an integer; `select` takes several sequences. "
                f"Received: index={index!r}."
            )
        if not -len(self) <= index < len(self):
            raise IndexError(
                f"`index` must be in [{-len(self)}, {len(self)}). "
                f"Received: index={index!r}."
            )
        index = int(index) % len(self)
        return self.items[self.offsets[index] : self.offsets[index + 1]]

    def __repr__(self):
        lengths = self.lengths
        span = f"{lengths.min()} to {lengths.max()}" if len(lengths) else "none"
        return (
            f"Sequences(num_sequences={len(self)}, num_items={self.num_items}, "
            f"num_events={self.num_events}, lengths={span})"
        )

    def select(self, mask):
        """Keeps some sequences, and all ids as they are.

        Args:
            mask: Boolean array, `(num_sequences,)`, `True` keeps; such as
                `sequences.lengths >= 5`.

        Returns:
            `Sequences` of the same items.

        Raises:
            TypeError: If `mask` is not boolean.
            ValueError: If it is of another length.
        """
        mask = np.asarray(mask)
        if mask.dtype != bool:
            raise TypeError(
                f"`mask` must be a boolean array. Received: dtype {mask.dtype}."
            )
        if mask.shape != (len(self),):
            raise ValueError(
                f"`mask` must be of shape ({len(self)},), one a sequence. "
                f"Received: shape {mask.shape}."
            )
        users = self.user_values
        return Sequences(
            self.items[np.repeat(mask, self.lengths)],
            _offsets(self.lengths[mask]),
            self.item_values,
            None if users is None else users[mask],
        )

    def items_of(self, ids):
        """Raw values of ids.

        Args:
            ids: Int array of any shape, ids in `[1, num_items]`, such as those of the
                best items of each row.

        Returns:
            Array of values of the shape of `ids`.

        Raises:
            TypeError: If `ids` are no integers.
            ValueError: If an id is out of its range; 0 is padding.
        """
        ids = _to_numpy(ids)
        flat = _read_integers("ids", ids.reshape(-1))
        _check_ids("ids", flat, self.num_items)
        return self.item_values[flat - 1].reshape(ids.shape)

    def ids_of(self, values):
        """Ids of raw values.

        Args:
            values: Strings or integers: an array, `pandas.Series` or list.

        Returns:
            Int32 array of ids, of shape `(num_values,)`.

        Raises:
            TypeError: If they are neither strings nor integers.
            ValueError: If a value is missing or no item of the sequences.
        """
        values = _read_values("`values`", values)
        if not len(values):
            return np.zeros(0, "int32")
        if not self.num_items or values.dtype != self.item_values.dtype:
            found = np.zeros(len(values), "int64")
            known = np.zeros(len(values), bool)
        else:
            order = np.argsort(self.item_values)
            place = np.searchsorted(self.item_values, values, sorter=order)
            found = order[np.minimum(place, self.num_items - 1)]
            known = self.item_values[found] == values
        if not known.all():
            row = int((~known).argmax())
            kind = "strings" if self.item_values.dtype == object else "integers"
            raise ValueError(
                "`values` must be items of the sequences, of which there are "
                f"{self.num_items}, {kind}. "
                f"Received: {values[row : row + 1].tolist()[0]!r} at row {row}."
            )
        return (found + 1).astype("int32")


def read_sequence_lines(path):
    """Reads a file with one user a line: `user item item ...`, oldest first.

    Values are integers, parted by spaces or tabs. Blank lines are skipped.

    Args:
        path: The file.

    Returns:
        `Sequences`; ids of items from 1 follow the sorted values.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line does not hold a user of its own and at least one item, all
            integers of 64 bits, or the file has no line.
    """
    numbers_, widths = _read_lines(
        path, lambda width: width >= 2, "a user and at least one item"
    )
    starts = _offsets(widths)[:-1]
    users = numbers_[starts]
    _, first, place = np.unique(users, return_index=True, return_inverse=True)
    again = first[place] != np.arange(len(users))
    if again.any():
        row = int(again.argmax())
        raise ValueError(
            f"{path}, line {_line_of(path, row)} must have a user of its own. "
            f"Received: {users[row]}, who has a line before."
        )
    return _of_sorted(np.delete(numbers_, starts), widths - 1, users)


def read_sequence_pairs(path):
    """Reads a file with one event a line: `user item`, those of a user oldest first.

    Values are integers, parted by spaces or tabs. Blank lines are skipped. The lines of
    a user need not stand together.

    Args:
        path: The file.

    Returns:
        `Sequences`; users are in the order of their first lines, and ids of items from
        1 follow the sorted values.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line does not hold two integers of 64 bits, or the file has no
            line.
    """
    pairs, _ = _read_lines(path, lambda width: width == 2, "a user and an item")
    return Sequences.from_events(*pairs.reshape(-1, 2).T)


def read_sequence_sessions(paths, session="SessionId", item="ItemId", time="Time"):
    """Reads clicks of sessions: files with tabs and a line of names, one click a line.

    Several files are read as one, so that a session may stand in two of them. Clicks
    are ordered by time, those at one time as they stand. Sessions and items are
    integers if all of them are, else strings.

    Args:
        paths: A file, a pattern such as `"clicks_*.txt"`, or a list of them.
        session: Name of the column of sessions. Defaults to `"SessionId"`.
        item: Name of the column of items. Defaults to `"ItemId"`.
        time: Name of the column of times, numbers. Defaults to `"Time"`.

    Returns:
        `Sequences`, one a session, in the order of their first lines; ids of items from
        1 follow the sorted values.

    Raises:
        ImportError: If pandas is not installed.
        ValueError: If there is no file, a file has no clicks or lacks a column, or a
            line has fields too many or too few, an empty one, or a time that is no
            finite number.
    """
    import pandas

    wanted = {"session": session, "item": item, "time": time}
    for name, value in wanted.items():
        if not isinstance(value, str) or list(wanted.values()).count(value) > 1:
            raise ValueError(
                f"`{name}` must be a name of a column, another for each. "
                f"Received: {name}={value!r}."
            )
    names = list(wanted.values())
    frames = [_read_tabs(pandas, file, names) for file in find_files(paths)]
    frame = pandas.concat(frames, ignore_index=True)
    columns = [_integers_or_strings(pandas, frame[name]) for name in names[:2]]
    return Sequences.from_events(*columns, _integers_or_floats(frame[time]))


def read_sequence_baskets(path):
    """Reads baskets in JSON: `{"train": {"user0": [[3, 5], [2]], ...}, ...}`.

    Each part holds users, each user a list of baskets, oldest first, and each basket a
    list of items, integers. The baskets of a user are put one after another. Users of
    two parts are two users, whatever their names.

    Args:
        path: The file.

    Returns:
        `Sequences`, part by part, with users named such as `"train/user0"`; ids of
        items from 1 follow the sorted values.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is no such JSON, a user has no item, or a name stands
            twice in one part.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            parts = json.load(stream, object_pairs_hook=_once)
    except ValueError as error:  # of JSON or of the encoding; the former says the line
        raise ValueError(f"{path} must be JSON in UTF-8. Received: {error}.") from error
    if not isinstance(parts, dict) or not parts:
        raise ValueError(
            f"{path} must hold an object from part to users. "
            f"Received: {_shorten(parts)}."
        )
    users, counts, baskets = [], [], []
    for part, people in parts.items():
        if not isinstance(people, dict):
            raise ValueError(
                f"{path}, part {part!r} must hold an object from user to baskets. "
                f"Received: {_shorten(people)}."
            )
        for user, given in people.items():
            if not _are_baskets(given):
                raise ValueError(
                    f"{path}, part {part!r}, user {user!r} must have a list of "
                    "baskets, which are lists of integers, with at least one item in "
                    f"all. Received: {_shorten(given)}."
                )
            users.append(f"{part}/{user}")
            counts.append(sum(map(len, given)))
            baskets += given
    if not users:
        raise ValueError(f"{path} must hold at least one user. Received: none.")
    items = np.fromiter(itertools.chain.from_iterable(baskets), "int64", sum(counts))
    return _of_sorted(items, np.array(counts), np.array(users, object))


def k_core(sequences, min_user=5, min_item=0):
    """Drops short sequences and rare items, again and again until none is left.

    Events are counted, a repeated item as often as it stands. What is kept has new ids
    without holes, in the old order.

    Args:
        sequences: `Sequences`.
        min_user: Positive int, the fewest events of a user. Defaults to `5`.
        min_item: Int, at least 0, the fewest events of an item. Defaults to `0`, items
            go only where their users do.

    Returns:
        `Sequences`, none of them empty, and no item without an event.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of its range, or nothing is left.

    Example:
    >>> events = [(1, 7), (1, 8), (1, 7), (2, 7), (2, 9)]
    >>> core = k_core(Sequences.from_events(*zip(*events)), min_user=3)
    >>> core.user_values.tolist(), core.item_values.tolist(), core[0].tolist()
    ([1], [7, 8], [1, 2, 1])
    """
    check_sequences(sequences)
    min_user = check_int("min_user", min_user)
    min_item = check_int("min_item", min_item, minimum=0)
    items = sequences.items
    users = np.repeat(np.arange(len(sequences)), sequences.lengths)
    while len(items):
        kept = (np.bincount(users) >= min_user)[users]
        kept &= (np.bincount(items) >= min_item)[items]
        if kept.all():
            break
        items, users = items[kept], users[kept]
    if not len(items):
        raise ValueError(
            "`min_user` and `min_item` must leave an event. Received: "
            f"min_user={min_user!r}, min_item={min_item!r} for {sequences!r}, of which "
            "nothing is left."
        )
    kept_users, counts = np.unique(users, return_counts=True)
    kept_items, place = np.unique(items, return_inverse=True)
    names = sequences.user_values
    return Sequences(
        place + 1,
        _offsets(counts),
        sequences.item_values[kept_items - 1],
        None if names is None else names[kept_users],
    )


def check_sequences(sequences):
    """Checks the type of an argument `sequences`.

    Raises:
        TypeError: If it is no `Sequences`.
    """
    if not isinstance(sequences, Sequences):
        raise TypeError(
            "`sequences` must be keras_recsys.data.Sequences. "
            f"Received: {type(sequences).__name__}."
        )


def _to_numpy(array):
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)


def _read_values(what, column):
    """Array of object or int64, without missing values."""
    values, missing, _ = read_column(what, column)
    if missing.any():
        raise ValueError(
            f"{what} must hold no missing value. "
            f"Received: a missing value at row {int(missing.argmax())}."
        )
    return values


def _read_integers(name, array):
    array = _to_numpy(array)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise TypeError(
            f"`{name}` must be integers, with one axis. "
            f"Received: dtype {array.dtype}, shape {array.shape}."
        )
    return array if array.size else array.astype("int64")


def _check_ids(name, ids, num_items):
    bad = (ids < 1) | (ids > num_items)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"`{name}` must be in [1, {num_items}]; 0 is padding. "
            f"Received: {int(ids[row])} at row {row}."
        )


def _read_times(time):
    """Array that sorts as the times do."""
    array = as_numpy(time)
    if array.ndim != 1:
        raise ValueError(
            "`time` must be a one-dimensional array, Series or sequence. "
            f"Received: shape {array.shape}."
        )
    if array.dtype.kind == "O":
        missing = np.array([is_missing(value) for value in array.tolist()], bool)
    elif array.dtype.kind in "fM":
        missing = np.isnan(array)
    else:
        missing = np.zeros(len(array), bool)
    if missing.any():
        raise ValueError(
            "`time` must hold no missing value. "
            f"Received: a missing value at row {int(missing.argmax())}."
        )
    if array.dtype.kind == "O" and not any(
        isinstance(value, str | bytes | bool) for value in array.tolist()
    ):
        try:  # integers of any size, datetimes with a time zone
            return np.unique(array, return_inverse=True)[1]
        except TypeError as error:
            raise TypeError(
                "`time` must hold numbers or datetimes, which can be ordered. "
                f"Received: {error}."
            ) from error
    if array.dtype.kind not in "iufM":  # a sort of strings puts "10" before "9"
        raise TypeError(
            "`time` must hold numbers or datetimes. "
            f"Received: dtype {array.dtype}, {array.tolist()[0]!r} at row 0."
        )
    return array


def _offsets(lengths):
    return np.append(0, np.cumsum(lengths)).astype("int64")


def _of_sorted(items, lengths, users):
    """Sequences of raw items that stand user by user, oldest first."""
    values, ids = np.unique(items, return_inverse=True)
    return Sequences(ids + 1, _offsets(lengths), values, users)


def _fields(path):
    """The fields of each line, none for a blank one."""
    with open(path, encoding="utf-8-sig", errors="replace") as stream:
        return [line.split() for line in stream]


def _line_of(path, row):
    """Number of the line that is not blank, counted from 0."""
    lines = (i for i, fields in enumerate(_fields(path), start=1) if fields)
    return next(itertools.islice(lines, row, None))


def _read_lines(path, fits, allowed):
    """All integers of a file, and how many there are in each line that is not blank."""
    lines = _fields(path)
    widths = np.array([len(fields) for fields in lines if fields], "int64")
    if not len(widths):
        raise ValueError(f"{path} must hold lines of data. Received: an empty file.")
    texts = list(itertools.chain.from_iterable(lines))
    good = all(map(fits, np.unique(widths).tolist()))
    if good and all(map(INTEGER.fullmatch, texts)):
        try:
            return np.fromiter(map(int, texts), "int64", len(texts)), widths
        except OverflowError:
            pass
    for number, fields in enumerate(lines, start=1):
        if fields and not (fits(len(fields)) and all(map(_is_int64, fields))):
            raise ValueError(
                f"{path}, line {number} must hold {allowed}, integers of 64 bits. "
                f"Received: {_shorten(' '.join(fields))}."
            )
    raise ValueError(f"{path} must hold integers. Received: something else.")


def _is_int64(text):
    return bool(INTEGER.fullmatch(text)) and -(2**63) <= int(text) < 2**63


def _shorten(value):
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _read_tabs(pandas, file, names):
    """Frame of strings of some columns of a file with tabs."""
    options = {"sep": "\t", "dtype": str, "encoding": "utf-8-sig", "quoting": 3}
    options |= {"keep_default_na": False, "skip_blank_lines": False}
    try:
        frame = pandas.read_csv(file, **options)
        clean = isinstance(frame.index, pandas.RangeIndex) and set(names) <= set(frame)
    except ValueError:  # pandas' own errors are ValueErrors
        clean = False
    if clean:
        full = frame.notna().all(axis=1) & (frame[names] != "").all(axis=1)
        times = pandas.to_numeric(frame[names[2]], errors="coerce")
        if len(frame) and full.all() and (times.abs() < math.inf).all():
            return frame[names]
    return _read_tabs_slowly(pandas, file, names)


def _read_tabs_slowly(pandas, file, names):
    """Reads line by line, and tells which line is wrong."""
    # What is not UTF-8 comes as surrogates, so that no two bytes are made one.
    with open(file, encoding="utf-8-sig", errors="surrogateescape") as stream:
        lines = [line.rstrip("\r\n") for line in stream]
    for number, line in enumerate(lines, start=1):
        if any("\udc80" <= letter <= "\udcff" for letter in line):
            raise ValueError(
                f"{file}, line {number} must be text in UTF-8. "
                f"Received: {_shorten(line)}."
            )
    header = lines[0].split("\t") if lines else []
    for name in names:
        if header.count(name) != 1:
            raise ValueError(
                f"{file} must have one column {name!r}, parted from others by tabs. "
                f"Received: columns {header}."
            )
    places = [header.index(name) for name in names]
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != len(header) or not all(fields[place] for place in places):
            raise ValueError(
                f"{file}, line {number} must have {len(header)} fields, parted by "
                f"tabs, none of {names} empty. Received: {_shorten(line)}."
            )
        text = fields[places[2]]
        try:
            finite = math.isfinite(float(text))
        except ValueError:
            finite = False
        if not finite:
            raise ValueError(
                f"{file}, line {number} must have a finite number as {names[2]}. "
                f"Received: {text!r}."
            )
        rows.append([fields[place] for place in places])
    if not rows:
        raise ValueError(f"{file} must hold clicks. Received: a file without rows.")
    return pandas.DataFrame(rows, columns=names, dtype=str)


def _integers_or_strings(pandas, column):
    """Array of int64 if all strings are written as integers are, without a 0 before."""
    codes, values = pandas.factorize(column)
    values = np.array(values, object)
    try:
        integers = values.astype("int64")
    except (ValueError, OverflowError):
        return values[codes]
    return (integers if (integers.astype(str) == values).all() else values)[codes]


def _integers_or_floats(column):
    values = column.to_numpy(dtype=object)
    try:  # exact, where floats are not above 2**53
        return values.astype("int64")
    except (ValueError, OverflowError):
        return values.astype("float64")


def _once(pairs):
    """Dict of the pairs of a JSON object, of which a name may not come twice."""
    known = dict(pairs)
    if len(known) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in known if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} twice in one object")
    return known


def _are_baskets(baskets):
    if not isinstance(baskets, list) or set(map(type, baskets)) - {list}:
        return False
    items = list(itertools.chain.from_iterable(baskets))
    return (
        bool(items)
        and set(map(type, items)) == {int}
        and -(2**63) <= min(items)
        and max(items) < 2**63
    )
