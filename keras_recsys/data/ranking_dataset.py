"""An interaction log to batches for ranking with the history of each user."""

import collections.abc
import dataclasses
import datetime
import math
import numbers

import numpy as np

from keras_recsys._checks import check_choice, check_int
from keras_recsys.data._columns import INT64, as_numpy, is_missing
from keras_recsys.features import NumericFeature, TimeGapFeature, check_features

GROWTH = 1.25  # a bucket is padded by a fifth at the very most, by a tenth on average
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def make_ranking_dataset(
    log,
    *,
    user="user",
    item="item",
    time="time",
    attributes=(),
    context=(),
    features=None,
    max_len=100,
    min_len=0,
    num_negatives=1,
    negatives="uniform",
    start=None,
    end=None,
    batch_size=256,
    boundaries=None,
    shuffle=False,
    seed=None,
    drop_remainder=False,
):
    """Makes a `tf.data.Dataset` of targets with the events of the user before them.

    An event of the log is a positive sample if its time is in `[start, end)` and its
    history has at least `min_len` events. The history is what the same user did
    strictly before the time of the event, the latest `max_len` of it, oldest first;
    other events at the same time are no history. Each positive has `num_negatives`
    negatives: items of the log that the user has nowhere in the log, neither before nor
    after, at the time and with the history of the positive. They are drawn with
    replacement. Draws are exact: no item that the user has can be drawn, and a user who
    has all items but one gets that one.

    Samples of like history length share a batch, so that little is padding. They are
    ordered by bucket of length, then in random order with `shuffle` and else by user
    and time, each positive right before its negatives; then they are cut into batches,
    of which only the last is partial. With `shuffle` the batches too are in random
    order, and each epoch has another order and other negatives. Each sample is in one
    batch of an epoch. The log is kept once; histories are cut from it batch by batch.

    Target and history of a column are a `CategoricalFeature` and a `SequenceFeature` of
    one `table`, both with a `vocab_size` of the largest id plus one.

    For a split by time, take the events before `split` to train and those from `split`
    on to test, whose histories then reach back over it:
    `split = np.quantile(log["time"], 0.8)`, given as `end=split` and as `start=split`.

    Args:
        log: Dict of arrays of equal length, or `pandas.DataFrame`; one row an event, in
            any order. Other columns are ignored. Events of a user at one time stay in
            the order of the rows.
        user: Name of the column of user ids, integers from 1. Defaults to `"user"`.
        item: Name of the column of item ids, integers from 1; 0 is padding. Defaults to
            `"item"`.
        time: Name of the column of times, integers or datetimes without time zone.
            Defaults to `"time"`.
        attributes: Further ids of an item, from 1, such as its genre: a sequence of
            names of columns, each with one value an item; or a dict from name to a
            table, an array of shape `(num_ids,)` indexed by item id. Defaults to `()`.
        context: Names of columns that say something about the moment or the user, such
            as an hour or a country: integers or floats, of which a negative has those
            of its positive. Defaults to `()`.
        features: Optional sequence of the features of a model: batches then hold their
            inputs alone, in their dtypes, and histories of a feature with a `max_len`,
            which is that of the dataset, are all that long. Defaults to `None`, all
            inputs.
        max_len: Positive int, the longest history, in events. Defaults to `100`.
        min_len: Int in `[0, max_len]`, the shortest history of a positive. Defaults to
            `0`.
        num_negatives: Int, at least 0, negatives of each positive. Defaults to `1`.
        negatives: `"uniform"`, each item alike, or `"popularity"`, as often as the item
            stands in the log. Defaults to `"uniform"`.
        start: First time of a positive: a number, or for datetimes a datetime or an ISO
            8601 string. Defaults to `None`, no bound.
        end: As `start`, the time before which the positives lie. Defaults to `None`.
        batch_size: Positive int, samples in a batch. Defaults to `256`.
        boundaries: Increasing positive ints, the lengths at which a new bucket begins;
            `()` puts all into one. Defaults to `None`, buckets that grow by a quarter.
        shuffle: Whether order and negatives are drawn anew in each epoch. Defaults to
            `False`, each epoch is the same.
        seed: Non-negative int: two datasets of one seed are equal, epoch by epoch.
            Without `shuffle` the negatives depend on `log`, `num_negatives`,
            `negatives` and `seed` alone. Defaults to `None`, other draws each time.
        drop_remainder: Whether a last partial batch is dropped: random samples with
            `shuffle`, else the last, those of the longest histories. Defaults to
            `False`.

    Returns:
        A `tf.data.Dataset` of known length. Its elements are pairs `(inputs, labels)`.
        `inputs` is a dict of the user ids, target item ids, target attributes and
        context under the names of their columns, of shape `(batch_size,)`; and of the
        histories, of shape `(batch_size, seq_len)`: `"{item}_history"`,
        `"{attribute}_history"` for each attribute, and `"time_gap_history"`, the time
        from the event to the target, int64, in the unit of the log or, for datetimes,
        in whole seconds. They are padded with 0 on the right to the longest of the
        batch, to at least 1. Ids are int32, or int64 in a column with an id above
        `2**31 - 1`. `labels` is float32 of shape `(batch_size, 1)`, 1 for a positive
        and 0 for a negative.

    Raises:
        TypeError: If a column or an argument is of a wrong type.
        ValueError: If a column is missing, lengths differ, an id is below 1, a time is
            missing, an attribute has two values for one item or none, a feature is no
            input or has too few ids, an argument is out of its range, no event is a
            positive, or a user has all items and there is no negative.

    Example:
    >>> log = {"user": [1, 1, 1, 2], "item": [5, 3, 4, 6], "time": [10, 20, 25, 10]}
    >>> dataset = make_ranking_dataset(log, min_len=2, attributes={"genre": range(9)})
    >>> inputs, labels = next(iter(dataset))
    >>> inputs["item"].numpy().tolist(), labels.numpy().tolist()
    ([4, 6], [[1.0], [0.0]])
    >>> inputs["genre_history"].numpy().tolist()
    [[5, 3], [5, 3]]
    >>> inputs["time_gap_history"].numpy().tolist()
    [[15, 5], [15, 5]]
    """
    max_len = check_int("max_len", max_len)
    min_len = check_int("min_len", min_len, minimum=0)
    if min_len > max_len:
        raise ValueError(
            f"`min_len` must be at most `max_len`, {max_len}. "
            f"Received: min_len={min_len!r}."
        )
    num_negatives = check_int("num_negatives", num_negatives, minimum=0)
    check_choice("negatives", negatives, ("uniform", "popularity"))
    batch_size = check_int("batch_size", batch_size)
    for name, value in (("shuffle", shuffle), ("drop_remainder", drop_remainder)):
        if not isinstance(value, bool):
            raise TypeError(
                f"`{name}` must be True or False. Received: {name}={value!r}."
            )
    if seed is not None:
        seed = check_int("seed", seed, minimum=0)
    boundaries = _check_boundaries(boundaries, max_len)
    names = _check_names(log, user, item, time, attributes, context)
    users, items, times, columns = _read_log(log, user, item, time, attributes, names)
    per_second = 1
    in_range = _in_range(times, start, end)
    if times.dtype.kind == "M":
        times, per_second = _count_datetimes(times)
    if int(times.max()) - int(times.min()) > INT64.max:
        raise ValueError(
            f"Column {time!r} must span less than 2**63. Received: times from "
            f"{times.min()} to {times.max()}."
        )

    events = _sort_events(users, items, times)
    tables = {item: events.item_ids}
    for name in names:
        if name in columns:
            tables[name] = _table_of_column(name, columns[name], item, items)
        else:
            tables[name] = _table_of_array(name, attributes[name], events.item_ids)
    moments = {
        name: _read_context(f"Column {name!r}", log[name], len(users))[events.rows]
        for name in context
    }
    samples = _choose_positives(
        events, in_range[events.rows], max_len, min_len, boundaries
    )
    if not len(samples.event):
        raise ValueError(
            "`log` must hold an event from `start` to before `end` with a history of "
            f"`min_len` events. Received: no such event, with start={start!r}, "
            f"end={end!r}, min_len={min_len!r}."
        )
    complement = None
    if num_negatives:
        complement = _find_complement(events, negatives)
        _check_complement(complement, events, samples, user)
    num_samples = len(samples.event) * (1 + num_negatives)
    if drop_remainder and batch_size > num_samples:
        raise ValueError(
            f"`batch_size` must be at most the number of samples, {num_samples}, where "
            "`drop_remainder` is True, or there is no batch. "
            f"Received: batch_size={batch_size!r}."
        )
    gather = _make_gather(
        events,
        samples,
        complement,
        tables,
        moments,
        (user, item),
        num_negatives,
        per_second,
    )
    dataset = _batches(
        gather, samples, num_negatives, batch_size, shuffle, seed, drop_remainder
    )
    if features is None:
        return dataset
    largest = {name: int(table.max()) for name, table in tables.items()}
    largest |= {f"{name}_history": size for name, size in largest.items()}
    largest[user] = int(events.user_ids.max())
    largest |= {name: column.max().item() for name, column in moments.items()}
    return _only(dataset, check_features(features), largest, context, max_len)


@dataclasses.dataclass(frozen=True)
class _Events:
    """The log by user and time, in arrays of the number of events or as said."""

    rows: np.ndarray  # row of the log
    user: np.ndarray  # position in `user_ids`
    item: np.ndarray  # position in `item_ids`
    time: np.ndarray
    first: np.ndarray  # the first event of the user
    stop: np.ndarray  # the first event of the user at this time: the end of the history
    user_ids: np.ndarray  # (num_users,), sorted
    item_ids: np.ndarray  # (num_items,), sorted


@dataclasses.dataclass(frozen=True)
class _Positives:
    """The positive samples by bucket, then in the order of the events."""

    event: np.ndarray
    begin: np.ndarray  # the first event of the history
    length: np.ndarray  # of the history, which ends before `begin + length`
    bucket: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Complement:
    """What finds the items that a user does not have.

    Lay the items on a line, each as long as its weight, and cut out those of the user:
    `free[user]` is left. A point `x` of what is left lies behind all items of the user
    whose `gap`, the length that is left before them, is at most `x`. Their lengths are
    added to `x` for the place on the whole line.
    """

    free: np.ndarray  # (num_users,)
    keys: np.ndarray  # (num_pairs,), user * stride + gap, sorted
    stride: int
    weight_before: np.ndarray  # (num_pairs + 1,), of the pairs before
    first_pair: np.ndarray  # (num_users,)
    line: np.ndarray  # (num_items,), where each item ends on the line


def _check_boundaries(boundaries, max_len):
    """Returns the lengths at which a bucket begins, an int64 array."""
    if boundaries is None:
        steps = math.ceil(math.log(max_len, GROWTH))
        lengths = np.append(np.floor(GROWTH ** np.arange(steps)), max_len)
        return np.unique(lengths).astype("int64")
    if isinstance(boundaries, str) or not isinstance(
        boundaries, collections.abc.Iterable
    ):
        raise TypeError(
            "`boundaries` must be a sequence of integers. "
            f"Received: boundaries={boundaries!r}."
        )
    lengths = [check_int("boundaries", length) for length in boundaries]
    if np.any(np.diff(lengths) <= 0):
        raise ValueError(
            f"`boundaries` must increase. Received: boundaries={boundaries!r}."
        )
    return np.array(lengths, "int64")


def _check_names(log, user, item, time, attributes, context):
    """Returns the names of the attributes."""
    is_frame = hasattr(log, "columns") and hasattr(log, "keys")
    if not is_frame and not isinstance(log, collections.abc.Mapping):
        raise TypeError(
            "`log` must be a dict of arrays or a pandas.DataFrame. "
            f"Received: log of type {type(log).__name__}."
        )
    if isinstance(attributes, str) or not isinstance(
        attributes, collections.abc.Iterable
    ):
        raise TypeError(
            "`attributes` must be a sequence of names or a dict from name to table. "
            f"Received: attributes={attributes!r}."
        )
    if isinstance(context, str):
        raise TypeError(
            f"`context` must be a sequence of names. Received: context={context!r}."
        )
    names = list(attributes)
    used = [user, item, time, *names, *context]
    used += [f"{name}_history" for name in (item, "time_gap", *names)]
    for name in used:
        if not isinstance(name, str):
            raise TypeError(
                "`user`, `item`, `time`, `attributes` and `context` must be strings, "
                f"names of inputs. Received: {name!r}."
            )
    twice = sorted({str(name) for name in used if used.count(name) > 1})
    if twice:
        raise ValueError(
            "`user`, `item`, `time` and `attributes` must be distinct names, of inputs "
            f"too. Received: {twice} more than once."
        )
    given = list(log.keys())
    wanted = {"user": user, "item": item, "time": time}
    tables = isinstance(attributes, collections.abc.Mapping)
    columns = [] if tables else [("attributes", name) for name in names]
    columns += [("context", name) for name in context]
    for argument, name in (*wanted.items(), *columns):
        if name not in given:
            raise ValueError(
                f"`{argument}` must name a column of `log`, one of {given}. "
                f"Received: {name!r}."
            )
    return names


def _read_log(log, user, item, time, attributes, names):
    """Returns users, items, times and a dict of the attributes that are columns."""
    arrays = {name: _read_ids(f"Column {name!r}", log[name]) for name in (user, item)}
    arrays[time] = _read_times(f"Column {time!r}", log[time])
    if not isinstance(attributes, collections.abc.Mapping):
        for name in names:
            arrays[name] = _read_ids(f"Column {name!r}", log[name])
    num_events = len(arrays[user])
    for name, array in arrays.items():
        if len(array) != num_events:
            raise ValueError(
                f"Column {name!r} must have as many rows as column {user!r}, "
                f"{num_events}. Received: {len(array)} rows."
            )
    if not num_events:
        raise ValueError("`log` must hold at least one event. Received: 0 rows.")
    return arrays.pop(user), arrays.pop(item), arrays.pop(time), arrays


def _as_vector(what, column):
    """Returns an array without missing values, of numbers where it holds numbers."""
    array = as_numpy(column)
    if array.ndim != 1:
        raise ValueError(
            f"{what} must be of shape (num_rows,). Received: shape {array.shape}."
        )
    missing = np.zeros(len(array), bool)
    if array.dtype == object:
        missing[:] = [is_missing(value) for value in array]
    elif array.dtype.kind in "fM":
        missing = np.isnan(array)
    if missing.any():
        raise ValueError(
            f"{what} must hold no missing value. "
            f"Received: a missing value at row {int(missing.argmax())}."
        )
    if array.dtype == object and all(
        isinstance(value, numbers.Integral) for value in array
    ):
        array = np.array(array.tolist())
    return array


def _read_context(what, column, num_events):
    """Integers as int32 or int64, floats as float32."""
    array = _as_vector(what, column)
    if array.dtype.kind not in "iuf" or len(array) != num_events:
        raise TypeError(
            f"{what} must hold a number for each of {num_events} rows; encode raw "
            "values with a keras_recsys.data.Vocabulary. "
            f"Received: {len(array)} of dtype {array.dtype}."
        )
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ValueError(
                f"{what} must hold finite numbers. Received: a NaN or inf."
            )
        return array.astype("float32")
    return _narrow(array.astype("int64"))


def _first_of(array):
    return f"dtype {array.dtype}" + (f", {array[0]!r} at row 0" if len(array) else "")


def _read_ids(what, column, skip=0):
    """Returns int64 ids; what the first `skip` rows hold does not matter."""
    array = _as_vector(what, column)
    if array.dtype.kind not in "iu" and len(array):
        raise TypeError(
            f"{what} must hold integer ids from 1; encode raw values with a "
            "keras_recsys.data.Vocabulary of padding=True. "
            f"Received: {_first_of(array)}."
        )
    bad = (array < 1) | (array > INT64.max)
    bad[:skip] = False
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"{what} must hold ids from 1 to 2**63 - 1; 0 is padding. "
            f"Received: id {array[row].item()!r} at row {row}."
        )
    return array.astype("int64")


def _read_times(what, column):
    """Returns int64 or datetime64 times."""
    array = _as_vector(what, column)
    if array.dtype.kind == "M":
        unit = np.datetime_data(array.dtype)[0]
        return array.astype(f"datetime64[{unit if unit in PER_SECOND else 's'}]")
    if array.dtype.kind not in "iu" and len(array):
        raise TypeError(
            f"{what} must hold integers or datetimes without time zone. "
            f"Received: {_first_of(array)}."
        )
    bad = array > INT64.max
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"{what} must hold integers of 64 bits. "
            f"Received: {array[row].item()!r} at row {row}."
        )
    return array.astype("int64")


def _count_datetimes(times):
    """Returns int64 ticks and their number in a second."""
    unit = np.datetime_data(times.dtype)[0]
    return times.astype("int64"), PER_SECOND[unit]


def _in_range(times, start, end):
    """Whether each time is in `[start, end)`."""
    bound = _datetime_bound if times.dtype.kind == "M" else _number_bound
    start = None if start is None else bound("start", start)
    end = None if end is None else bound("end", end)
    if start is not None and end is not None and _at_least(np.array([start]), end)[0]:
        raise ValueError(
            f"`start` must be before `end`. Received: start={start!r}, end={end!r}."
        )
    inside = np.ones(len(times), bool)
    if start is not None:
        inside &= _at_least(times, start)
    if end is not None:
        inside &= ~_at_least(times, end)
    return inside


def _at_least(times, bound):
    """Whether each time is at the bound or after it.

    NumPy brings datetimes to the finer unit, in which a far bound has no place: there
    the years decide.
    """
    if times.dtype.kind == "M":
        first, last, year = (
            x.astype("datetime64[Y]") for x in (times.min(), times.max(), bound)
        )
        if year > last or year < first:
            return np.full(len(times), year < first)
    return times >= bound


def _number_bound(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"`{name}` must be a number, since the times are integers. "
            f"Received: {name}={value!r}."
        )
    if not math.isfinite(value):
        raise ValueError(f"`{name}` must be finite. Received: {name}={value!r}.")
    return math.ceil(value)  # the same events, compared as exact integers


def _datetime_bound(name, value):
    allowed = str | datetime.date | np.datetime64
    if not isinstance(value, allowed) or getattr(value, "tzinfo", None) is not None:
        raise TypeError(
            f"`{name}` must be a datetime without time zone or an ISO 8601 string, "
            f"since the times are datetimes. Received: {name}={value!r}."
        )
    if hasattr(value, "to_datetime64"):  # of pandas, which counts nanoseconds
        value = value.to_datetime64()
    try:
        bound = np.datetime64(value)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be an ISO 8601 string, such as '2024-01-31T12:00'. "
            f"Received: {name}={value!r}."
        ) from error
    if np.isnat(bound):
        raise ValueError(f"`{name}` must be a datetime. Received: {name}={value!r}.")
    return bound


def _sort_events(users, items, times):
    rows = np.lexsort((times, users))  # stable: ties stay in the order of the rows
    times = times[rows]
    users = users[rows]
    item_ids, item = np.unique(items[rows], return_inverse=True)
    new_user = np.append(True, users[1:] != users[:-1])
    new_time = new_user | np.append(True, times[1:] != times[:-1])
    number = np.arange(len(rows))
    return _Events(
        rows=rows,
        user=np.cumsum(new_user) - 1,
        item=item,
        time=times,
        first=np.maximum.accumulate(np.where(new_user, number, 0)),
        stop=np.maximum.accumulate(np.where(new_time, number, 0)),
        user_ids=users[new_user],
        item_ids=item_ids,
    )


def _table_of_column(name, column, item, items):
    """Returns the attribute of each item, by position in the sorted item ids."""
    _, row, position = np.unique(items, return_index=True, return_inverse=True)
    table = column[row]
    bad = table[position] != column
    if bad.any():
        second = int(bad.argmax())
        first = int(row[position[second]])
        raise ValueError(
            f"Column {name!r} must hold one id for each {item}. Received: "
            f"{int(column[first])} at row {first} and {int(column[second])} at row "
            f"{second} for {item} {int(items[second])}."
        )
    return table


def _table_of_array(name, table, item_ids):
    what = f"`attributes[{name!r}]`"
    if len(table) <= item_ids[-1]:
        raise ValueError(
            f"{what} must be indexed by item id, up to id {int(item_ids[-1])}. "
            f"Received: {len(table)} rows."
        )
    table = np.asarray(table)
    is_used = np.zeros(len(table), bool)
    is_used[item_ids] = True
    if table.dtype.kind in "iu" and table.ndim == 1:
        table = np.where(is_used, table, 1)  # of other items nothing is read
    return _read_ids(what, table)[item_ids]


def _choose_positives(events, inside, max_len, min_len, boundaries):
    event = np.flatnonzero(inside & (events.stop - events.first >= min_len))
    stop = events.stop[event]
    begin = np.maximum(events.first[event], stop - max_len)
    length = stop - begin
    bucket = np.searchsorted(boundaries, length, side="right").astype("int32")
    order = np.argsort(bucket, kind="stable")
    return _Positives(
        event=event[order],
        begin=begin[order],
        length=length[order],
        bucket=bucket[order],
    )


def _find_complement(events, negatives):
    num_users, num_items = len(events.user_ids), len(events.item_ids)
    counts = np.bincount(events.item, minlength=num_items)
    weights = counts if negatives == "popularity" else np.ones_like(counts)
    line = np.cumsum(weights)
    pairs = np.unique(events.user * num_items + events.item)
    user, item = np.divmod(pairs, num_items)
    weight_before = np.append(0, np.cumsum(weights[item]))
    first_pair = np.searchsorted(user, np.arange(num_users))
    taken = weight_before[:-1] - weight_before[first_pair[user]]
    gap = line[item] - weights[item] - taken
    stride = int(line[-1]) + 1
    owned = np.diff(np.append(weight_before[first_pair], weight_before[-1]))
    return _Complement(
        free=line[-1] - owned,
        keys=user * stride + gap,
        stride=stride,
        weight_before=weight_before,
        first_pair=first_pair,
        line=line,
    )


def _check_complement(complement, events, samples, user):
    full = complement.free[events.user[samples.event]] == 0
    if full.any():
        given = events.user_ids[events.user[samples.event[full.argmax()]]]
        raise ValueError(
            f"`log` must leave an item as negative to each {user}; give "
            "num_negatives=0 or leave that one out. "
            f"Received: {user} {int(given)}, who has all "
            f"{len(events.item_ids)} items."
        )


def _narrow(integers):
    """Returns integers as int32 where they fit."""
    fits = integers.min(initial=0) >= -(2**31) and integers.max(initial=0) < 2**31
    return integers.astype("int32") if fits else integers


def _make_gather(
    events, samples, complement, tables, moments, names, num_negatives, per_second
):
    """Returns the function from sample numbers and a seed to a batch.

    Sample `i` is of positive `i // (1 + num_negatives)`, and is its negative number
    `i % (1 + num_negatives)`, of which 0 is the positive itself.
    """
    import tensorflow as tf

    user, item = names
    ticks = events.time - events.time.min()
    columns = [table[events.item] for table in tables.values()]
    # The columns side by side: one gather of rows of numbers takes a third of the time
    # of one gather a column. The last row is what padding reads.
    rows = np.stack([*columns, ticks], axis=1)
    rows = np.concatenate([rows, np.zeros_like(rows[:1])])
    padding = _narrow(np.array(len(events.item)))  # no position is above it
    position = padding.dtype
    # On the CPU even where there is a GPU: the batches are cut on the host.
    with tf.device("CPU:0"):
        log_rows = tf.constant(_narrow(rows))
        event_user = tf.constant(events.user, position)
        event_item = tf.constant(events.item, position)
        user_ids = tf.constant(_narrow(events.user_ids))
        item_columns = {
            name: tf.constant(_narrow(table)) for name, table in tables.items()
        }
        moments = {name: tf.constant(column) for name, column in moments.items()}
        positive_event = tf.constant(samples.event, position)
        positive_begin = tf.constant(samples.begin, position)
        positive_length = tf.constant(samples.length, position)
        if complement is not None:
            complement = {
                field.name: tf.constant(getattr(complement, field.name), "int64")
                for field in dataclasses.fields(complement)
            }

    def gather(numbers, seed):
        positive = numbers // (1 + num_negatives)
        negative = numbers % (1 + num_negatives)
        event = tf.gather(positive_event, positive)
        users = tf.gather(event_user, event)
        target = tf.gather(event_item, event)
        if complement is not None:
            draw = tf.cast(event, "int64") * num_negatives + negative - 1
            drawn = _draw(complement, users, _random_bits(seed, draw))
            target = tf.where(negative == 0, target, tf.cast(drawn, target.dtype))
        begin = tf.gather(positive_begin, positive)[:, None]
        length = tf.gather(positive_length, positive)[:, None]
        steps = tf.range(tf.maximum(tf.reduce_max(length), 1))[None, :]
        is_event = steps < length  # (batch_size, seq_len)
        history = tf.where(is_event, begin + steps, padding)
        *histories, times = tf.unstack(tf.gather(log_rows, history), axis=2)
        inputs = {user: tf.gather(user_ids, users)}
        for (name, column), values in zip(item_columns.items(), histories, strict=True):
            inputs[name] = tf.gather(column, target)
            inputs[f"{name}_history"] = tf.cast(values, column.dtype)
        for name, column in moments.items():
            inputs[name] = tf.gather(column, event)
        gaps = tf.gather(log_rows, event)[:, -1:] - times
        gaps = tf.cast(tf.where(is_event, gaps, 0), "int64")
        inputs["time_gap_history"] = gaps // per_second if per_second > 1 else gaps
        return inputs, tf.cast(negative == 0, "float32")[:, None]

    return gather


def _only(dataset, features, largest, context, max_len):
    """The inputs of some features, in their dtypes and lengths.

    Args:
        dataset: Dataset of all inputs.
        features: Tuple of features.
        largest: Dict from the name of an input of ids to the largest one.
        context: Names of the columns of context.
        max_len: The longest history.
    """
    import tensorflow as tf

    known = dataset.element_spec[0]
    for feature in features:
        if feature.name not in known:
            raise ValueError(
                f"`features` must have names of inputs, {list(known)}; `context` and "
                f"`attributes` make more of them. Received: {feature.name!r}."
            )
        if known[feature.name].shape.rank != 1 + len(feature.shape):
            raise TypeError(
                "`features` must have a SequenceFeature or TimeGapFeature for each "
                f"history, and others for targets. Received: {feature!r}."
            )
        if isinstance(feature, TimeGapFeature) != (feature.name == "time_gap_history"):
            raise TypeError(
                "`features` must have a TimeGapFeature for 'time_gap_history' and for "
                f"nothing else. Received: {feature!r}."
            )
        is_number = isinstance(feature, NumericFeature)
        if is_number and feature.name not in context:
            raise TypeError(
                "`features` must hold no NumericFeature for an input of ids. "
                f"Received: {feature!r}."
            )
        if not is_number and not known[feature.name].dtype.is_integer:
            raise TypeError(
                "`features` must have a NumericFeature for floats. "
                f"Received: {feature!r}."
            )
        size = getattr(feature, "vocab_size", math.inf)
        if largest.get(feature.name, 0) >= size and feature.out_of_range == "error":
            raise ValueError(
                f"`vocab_size` of feature {feature.name!r} must be above its largest "
                f"id, {largest[feature.name]}. Received: vocab_size={size!r}."
            )
        if feature.dtype == "int32" and largest.get(feature.name, 0) > 2**31 - 1:
            raise ValueError(
                f"`dtype` of feature {feature.name!r} must be 'int64' for its largest "
                f"id, {largest[feature.name]}. Received: dtype='int32'."
            )
        if feature.shape and feature.shape[0] not in (None, max_len):
            raise ValueError(
                f"`max_len` of feature {feature.name!r} must be that of the dataset, "
                f"{max_len}, or None. Received: max_len={feature.max_len!r}."
            )

    def choose(inputs, labels):
        chosen = {}
        for feature in features:
            x = inputs[feature.name]
            if feature.dtype == "int32":  # a gap beyond it is in the last bucket
                x = tf.minimum(x, tf.cast(2**31 - 1, x.dtype))
            x = tf.cast(x, feature.dtype)
            if feature.shape and feature.max_len is not None:
                x = tf.pad(x, [[0, 0], [0, max_len - tf.shape(x)[1]]])
                x = tf.ensure_shape(x, (None, max_len))
            chosen[feature.name] = x
        return chosen, labels

    return dataset.map(choose, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _random_bits(seed, numbers):
    """A random uint64 for each number, by the finalizer of SplitMix64.

    It depends on nothing else, so that a sample keeps its draw in any batch.
    """
    import tensorflow as tf

    def mix(bits):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            shifted = tf.bitwise.right_shift(bits, tf.constant(shift, "uint64"))
            bits = (bits ^ shifted) * tf.constant(factor, "uint64")
        return bits ^ tf.bitwise.right_shift(bits, tf.constant(31, "uint64"))

    golden = tf.constant(0x9E3779B97F4A7C15, "uint64")
    return mix(mix(tf.cast(seed, "uint64")) + tf.cast(numbers, "uint64") * golden)


def _draw(complement, users, bits):
    """Positions of items that the users do not have."""
    import tensorflow as tf

    users = tf.cast(users, "int64")
    free = tf.gather(complement["free"], users)
    # A user without a free item has no sample.
    place = tf.cast(bits % tf.cast(free, "uint64"), "int64")
    pair = tf.searchsorted(
        complement["keys"],
        users * complement["stride"] + place,
        side="right",
        out_type="int64",
    )
    before = tf.gather(complement["weight_before"], pair)
    first = tf.gather(complement["first_pair"], users)
    place += before - tf.gather(complement["weight_before"], first)
    return tf.searchsorted(complement["line"], place, side="right")


def _batches(gather, samples, num_negatives, batch_size, shuffle, seed, drop_remainder):
    import tensorflow as tf

    num_samples = len(samples.event) * (1 + num_negatives)
    num_kept = num_samples - num_samples % batch_size if drop_remainder else num_samples
    num_batches = -(-num_kept // batch_size)
    with tf.device("CPU:0"):
        buckets = tf.constant(samples.bucket)

    def batch_of(numbers, seed):
        if drop_remainder:
            numbers = tf.ensure_shape(numbers, (batch_size,))
        return gather(numbers, seed)

    def shuffled_batches(seeds):
        numbers = tf.range(num_samples, dtype="int64")
        order = tf.random.experimental.stateless_shuffle(numbers, seeds[:2])[:num_kept]
        by_bucket = tf.gather(buckets, order // (1 + num_negatives))
        order = tf.gather(order, tf.argsort(by_bucket, stable=True))
        starts = tf.range(0, num_kept, batch_size, dtype="int64")
        starts = tf.random.experimental.stateless_shuffle(starts, seeds[2:4])
        return tf.data.Dataset.from_tensor_slices(starts).map(
            lambda start: (order[start : start + batch_size], seeds[4])
        )

    if shuffle:
        seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)
        rows = seeds.batch(5).take(1).flat_map(shuffled_batches)
        rows = rows.apply(tf.data.experimental.assert_cardinality(num_batches))
    else:
        fixed = np.random.default_rng(seed).integers(2**63)
        rows = tf.data.Dataset.range(0, num_kept, batch_size).map(
            lambda start: (
                tf.range(start, tf.minimum(start + batch_size, num_kept)),
                tf.constant(fixed, "int64"),
            )
        )
    return rows.map(
        batch_of, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    ).prefetch(tf.data.AUTOTUNE)
