"""Counting of the distinct values of a column, all at once or piece by piece."""

import collections

import numpy as np

from keras_recsys._checks import check_int
from keras_recsys.data._columns import read_column


class ValueCounts:
    """How often each value of a column was seen; it grows with the distinct values.

    Args:
        min_count: Positive int, a value seen fewer times is left out.
        max_size: Positive int, the number of values kept, or `None` for all.

    Raises:
        TypeError: If one of them is not an integer.
        ValueError: If one of them is not positive.
    """

    def __init__(self, min_count, max_size):
        self.min_count = check_int("min_count", min_count)
        self.max_size = None if max_size is None else check_int("max_size", max_size)
        self.num_cells = 0
        self.counts = {}

    def add(self, values, counts, num_cells):
        """Adds distinct values and their counts, found in `num_cells` cells."""
        self.num_cells += num_cells
        for value, count in zip(values, counts, strict=True):
            self.counts[value] = self.counts.get(value, 0) + count

    def add_column(self, column, separator, dtype=None):
        """Adds a column of raw values; missing ones are passed over.

        Raises:
            TypeError: If the column holds anything but strings or integers, both, other
                values than those of `dtype`, or integers where there is a separator.
        """
        array, missing, kind = read_column("`column`", column)
        wanted = "string" if separator is not None else dtype
        if kind is not None and wanted not in (None, kind):
            row = int(missing.argmin())
            reason = (
                "strings where `separator` is given"
                if separator is not None
                else f"values of dtype {dtype!r}, as the vocabulary does"
            )
            raise TypeError(
                f"`column` must hold {reason}. "
                f"Received: {array.tolist()[row]!r} at row {row}."
            )
        present = array[~missing]
        if kind == "int64":
            values, counts = np.unique(present, return_counts=True)
            self.add(values.tolist(), counts.tolist(), len(array))
            return
        cells = present.tolist()
        if separator is not None:
            cells = [part for cell in cells for part in cell.split(separator) if part]
        counter = collections.Counter(cells)
        self.add(counter.keys(), counter.values(), len(array))

    def decode(self, what):
        """Makes strings of the values, which are bytes.

        Raises:
            ValueError: If a value is not UTF-8.
        """
        decoded = {}
        for value, count in self.counts.items():
            try:
                decoded[value.decode()] = count
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{what} must hold UTF-8. Received: {value!r}."
                ) from error
        self.counts = decoded

    def new_values(self, known=()):
        """Returns the values to keep, by falling count, those of equal count by value.

        Args:
            known: Values that are kept already, in front of the new ones; `max_size`
                counts them too.
        """
        kept = [
            value
            for value, count in self.counts.items()
            if count >= self.min_count and value not in known
        ]
        kept.sort(key=lambda value: (-self.counts[value], value))
        return kept if self.max_size is None else kept[: self.max_size - len(known)]

    def values(self, what):
        """Returns `new_values`, all of them.

        Raises:
            ValueError: If no value is left.
        """
        kept = self.new_values()
        if not kept:
            raise ValueError(
                f"{what} must hold at least one value seen `min_count` times. "
                f"Received: {self.num_cells} cells with {len(self.counts)} distinct "
                f"values, min_count={self.min_count!r}."
            )
        return kept
