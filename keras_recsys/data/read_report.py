"""What a reader found in its files."""

import collections
import threading

NUM_EXAMPLES = 10
MAX_TEXT = 80  # characters shown of a damaged line or cell


class ReadReport:
    """Counts the rows that a reader gave and those that it left out.

    A reader fills the report given to it while its dataset is iterated, and empties it
    at the start of each epoch. It tells of one iteration at a time: two that run at
    once over one dataset would mix their counts.

    Attributes:
        num_rows: Number of rows read.
        counts: Dict from reason to the number of rows left out.
        examples: List of tuples `(file, number, reason, text)` of the first rows left
            out, at most 10; `number` is the line, counted from 1, or in files without
            lines the row, counted from 0. Where files are read side by side, in the
            order found.

    Example:
    >>> report = ReadReport()
    >>> report.add("clicks.csv", 7, "short line", "0,3")
    >>> print(report)
    0 rows read, 1 left out
      short line: 1
      clicks.csv, 7: short line: '0,3'
    """

    def __init__(self):
        self._lock = threading.Lock()
        self.reset()

    @property
    def num_skipped(self):
        """Number of rows left out."""
        return sum(self.counts.values())

    @property
    def num_free(self):
        """Number of examples for which there still is room."""
        return NUM_EXAMPLES - len(self.examples)

    def reset(self):
        """Empties the report."""
        with self._lock:
            self.num_rows = 0
            self.counts = collections.Counter()
            self.examples = []

    def add_rows(self, num_rows):
        """Counts rows that were read."""
        with self._lock:
            self.num_rows += num_rows

    def add_count(self, reason, num_rows):
        """Counts rows that are left out, without examples of them."""
        with self._lock:
            self.counts[reason] += num_rows

    def add(self, file, number, reason, text):
        """Counts one row that is left out."""
        with self._lock:
            self.counts[reason] += 1
            if len(self.examples) < NUM_EXAMPLES:
                self.examples.append((file, number, reason, text))

    def __str__(self):
        lines = [f"{self.num_rows} rows read, {self.num_skipped} left out"]
        lines += [f"  {reason}: {n}" for reason, n in self.counts.most_common()]
        lines += [
            f"  {file}, {number}: {reason}: {text!r}"
            for file, number, reason, text in self.examples
        ]
        return "\n".join(lines)
