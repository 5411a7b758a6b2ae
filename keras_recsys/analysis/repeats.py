"""How often the next item of a sequence is one that came before."""

import dataclasses
import math

import numpy as np

from keras_recsys._checks import check_int
from keras_recsys.analysis.clicks import _table, _text
from keras_recsys.data.sequences import check_sequences


@dataclasses.dataclass(frozen=True, eq=False)
class RepeatStatistics:
    """How often items repeat; `print` shows the first figures.

    A share of nothing is NaN.

    Args:
        num_sequences: Sequences.
        num_events: Their events.
        repeat: Share of all events whose item stands earlier in the sequence. The first
            of a sequence counts as none.
        immediate: Share of all events whose item is that right before.
        next_repeat: As `repeat`, of the events but the first of each sequence, those
            that a model of the next item has to say.
        last_repeat: Share of the sequences of two items or more whose last item stands
            earlier: the share of repeated targets when the last one is left out.
        prefix_len: Int array, the lengths `2, 3, ..., max_len` of the items before the
            next one.
        num_after_repeat: Int array like `prefix_len`, how many prefixes of that length
            hold an item twice and have a next item.
        num_after_none: As `num_after_repeat`, of prefixes of distinct items.
        after_repeat: Float array like `prefix_len`, share of next items that repeat one
            of the prefix, where the prefix holds an item twice.
        after_none: As `after_repeat`, where the items of the prefix are distinct.
    """

    num_sequences: int
    num_events: int
    repeat: float
    immediate: float
    next_repeat: float
    last_repeat: float
    prefix_len: np.ndarray
    num_after_repeat: np.ndarray
    num_after_none: np.ndarray
    after_repeat: np.ndarray
    after_none: np.ndarray

    def to_frame(self):
        """Makes a `pandas.DataFrame` of the figures by length, with `prefix_len`."""
        import pandas

        names = ("num_after_repeat", "num_after_none", "after_repeat", "after_none")
        columns = {name: getattr(self, name) for name in names}
        index = pandas.Index(self.prefix_len, name="prefix_len")
        return pandas.DataFrame(columns, index=index)

    def __str__(self):
        lines = [("sequences", f"{self.num_sequences:,}")]
        lines.append(("events", f"{self.num_events:,}"))
        for name in ("repeat", "immediate", "next_repeat", "last_repeat"):
            share = _text(100 * getattr(self, name), "{:.1f} %")
            lines.append((name.replace("_", " "), share))
        return _table(lines)


def repeat_statistics(sequences, max_len=49):
    """Counts how often the next item is one that the sequence already holds.

    Where items repeat, a model gains by copying; where they do not, by leaving out what
    it has seen. Which of the two a sequence is, its first items tell: the share of
    repeats is given apart for prefixes that hold an item twice and for those that do
    not.

    Args:
        sequences: `keras_recsys.data.Sequences`.
        max_len: Int, at least 2, the longest prefix, in items. Defaults to `49`.

    Returns:
        `RepeatStatistics`.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If `max_len` is below 2.

    Example:
    >>> from keras_recsys.data import Sequences
    >>> sequences = Sequences.from_events([1, 1, 1, 1, 2, 2], list("abaacc"))
    >>> print(repeat_statistics(sequences))
    sequences          2
    events             6
    repeat        50.0 %
    immediate     33.3 %
    next repeat   75.0 %
    last repeat  100.0 %
    """
    check_sequences(sequences)
    max_len = check_int("max_len", max_len, minimum=2)
    items, lengths = sequences.items, sequences.lengths
    first = np.repeat(sequences.offsets[:-1], lengths)
    place = np.arange(len(items)) - first  # as many items stand before
    key = np.repeat(np.arange(len(sequences)), lengths) * (sequences.num_items + 1)
    key += items
    _, earliest = np.unique(key, return_index=True)
    repeats = np.ones(len(items), bool)
    repeats[earliest] = False
    immediate = (place[1:] > 0) & (items[1:] == items[:-1])
    repeats_before = np.cumsum(repeats) - repeats
    in_prefix = repeats_before > repeats_before[first]
    last = sequences.offsets[1:][lengths > 1] - 1

    counted = (place >= 2) & (place <= max_len)
    counts = {
        name: np.bincount(place[counted & which], minlength=max_len + 1)[2:]
        for name, which in (
            ("num_after_repeat", in_prefix),
            ("num_after_none", ~in_prefix),
            ("after_repeat", in_prefix & repeats),
            ("after_none", ~in_prefix & repeats),
        )
    }
    for name in ("after_repeat", "after_none"):
        total = counts[f"num_{name}"]
        share = np.full(len(total), np.nan)
        np.divide(counts[name], total, out=share, where=total > 0)
        counts[name] = share
    return RepeatStatistics(
        num_sequences=len(sequences),
        num_events=len(items),
        repeat=_share(repeats),
        immediate=_share(np.append(False, immediate)[: len(items)]),
        next_repeat=_share(repeats[place > 0]),
        last_repeat=_share(repeats[last]),
        prefix_len=np.arange(2, max_len + 1),
        **counts,
    )


def _share(booleans):
    return float(booleans.mean()) if len(booleans) else math.nan
