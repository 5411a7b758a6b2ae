"""Sequences to batches for next-item models, split by leaving one out."""

import dataclasses

import numpy as np

from keras_recsys._checks import check_choice, check_int
from keras_recsys.data.ranking_dataset import _batches, _check_boundaries, _narrow
from keras_recsys.data.sequences import check_sequences

# The items at the end of a sequence that are the targets of other splits.
HELD_OUT = {"all": 0, "test": 0, "validation": 1, "train": 2}


def make_sequence_dataset(
    sequences,
    split="train",
    *,
    targets="last",
    max_len=50,
    batch_size=128,
    padding="right",
    shuffle=None,
    seed=None,
    pad_to_max_len=False,
    drop_remainder=False,
    bucket=True,
):
    """Makes a `tf.data.Dataset` of sequences and the items that follow.

    Each item of a sequence but the first is the target of one split, given the items
    before it: the last of `"test"`, the one before of `"validation"`, the others of
    `"train"`. So a sequence of one item is in no split, one of two items in `"test"`,
    one of three in `"validation"` too, and only those of four or more have something to
    train on. `"all"` trains on every item but the first, for a model that is served
    without a test. The input of the test contains the target of the validation.

    With `targets="last"` a row is the latest `max_len` items before one target. With
    `targets="all"` a row holds the target of each of its slots, for a model that
    answers at each of them, and training takes fewer rows: the sequence is cut into
    windows of `max_len` slots, counted from its end, so that the first may be shorter.
    Each target counts once. A target sees the items of its window alone, on average
    half as many as with `"last"` where the sequence is longer than `max_len`. Rows of
    validation and test are the same as with `"last"`, and their one target stands at
    the last slot.

    Args:
        sequences: `Sequences`.
        split: `"train"`, `"validation"`, `"test"` or `"all"`. Defaults to `"train"`.
        targets: `"last"`, one target a row, or `"all"`, one a slot. Defaults to
            `"last"`.
        max_len: Positive int, the longest input, in items. Defaults to `50`.
        batch_size: Positive int, rows in a batch. Defaults to `128`.
        padding: `"right"`, zeros stand behind the items, or `"left"`, before them.
            Defaults to `"right"`.
        shuffle: Whether each epoch has another random order. Otherwise rows are in the
            order of the sequences, and of the targets. Defaults to `None`, `True` for
            `"train"` and `"all"`.
        seed: Non-negative int: two datasets of one seed are equal, epoch by epoch.
            Defaults to `None`, another order each time.
        pad_to_max_len: Whether all batches are `max_len` wide, not as wide as their
            longest row. Defaults to `False`.
        drop_remainder: Whether a last partial batch is dropped: random rows with
            `shuffle`, else the last. Defaults to `False`.
        bucket: Whether with `shuffle` rows of like length share a batch, so that little
            is padding. The batches too are in random order. Defaults to `True`.

    Returns:
        A `tf.data.Dataset` of known length. Its elements are pairs `({"item_ids": x},
        y)`: `x` is int32 of shape `(batch_size, seq_len)`; `y` is int32 of shape
        `(batch_size,)`, or with `targets="all"` of the shape of `x`, the item that
        follows that slot, and 0 where there is no target.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of its range, or no sequence is long enough.

    Example:
    >>> from keras_recsys.data import Sequences
    >>> sequences = Sequences([3, 1, 2, 4, 5], [0, 5], [10, 20, 30, 40, 50])
    >>> inputs, y = next(iter(make_sequence_dataset(sequences, "test")))
    >>> inputs["item_ids"].numpy().tolist(), y.numpy().tolist()
    ([[3, 1, 2, 4]], [5])
    >>> inputs, y = next(iter(make_sequence_dataset(sequences, targets="all")))
    >>> inputs["item_ids"].numpy().tolist(), y.numpy().tolist()
    ([[3, 1]], [[1, 2]])
    """
    check_sequences(sequences)
    check_choice("split", split, tuple(HELD_OUT))
    check_choice("targets", targets, ("last", "all"))
    check_choice("padding", padding, ("right", "left"))
    max_len = check_int("max_len", max_len)
    batch_size = check_int("batch_size", batch_size)
    trains = split in ("train", "all")
    shuffle = trains if shuffle is None else shuffle
    for name, value in (
        ("shuffle", shuffle),
        ("pad_to_max_len", pad_to_max_len),
        ("drop_remainder", drop_remainder),
        ("bucket", bucket),
    ):
        if not isinstance(value, bool):
            raise TypeError(
                f"`{name}` must be True or False. Received: {name}={value!r}."
            )
    if seed is not None:
        seed = check_int("seed", seed, minimum=0)

    held_out = HELD_OUT[split]
    step = max_len if targets == "all" else 1
    rows = _choose_rows(sequences, held_out, max_len, step if trains else None)
    num_rows = len(rows.event)
    if not num_rows:
        raise ValueError(
            f"`sequences` must hold one of at least {held_out + 2} items for "
            f"split={split!r}. Received: {sequences!r}."
        )
    if drop_remainder and batch_size > num_rows:
        raise ValueError(
            f"`batch_size` must be at most the number of rows, {num_rows}, where "
            "`drop_remainder` is True, or there is no batch. "
            f"Received: batch_size={batch_size!r}."
        )
    if shuffle and bucket:
        boundaries = _check_boundaries(None, max_len)
        places = np.searchsorted(boundaries, rows.length, side="right")
        rows = dataclasses.replace(rows, bucket=places.astype("int32"))
    gather = _make_gather(
        sequences.items,
        rows,
        targets,
        trains,
        padding,
        max_len if pad_to_max_len else None,
    )
    return _batches(gather, rows, 0, batch_size, shuffle, seed, drop_remainder)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """The rows in the order of the sequences."""

    event: np.ndarray  # the last target
    length: np.ndarray  # of the input, the items right before `event`
    bucket: np.ndarray


def _choose_rows(sequences, held_out, max_len, step):
    """Rows of the targets at every `step` from the last one on back.

    Args:
        sequences: `Sequences`.
        held_out: Int, how many items at the end of a sequence are no targets.
        max_len: The longest input.
        step: Positive int, or `None` for the last target alone.
    """
    num_targets = np.maximum(sequences.lengths - held_out - 1, 0)
    last = sequences.offsets[1:] - held_out - 1
    num_rows = np.minimum(num_targets, 1)
    if step is not None:
        num_rows = -(-num_targets // step)
    sequence = np.repeat(np.arange(len(sequences)), num_rows)
    behind = np.repeat(np.cumsum(num_rows), num_rows) - 1 - np.arange(len(sequence))
    event = last[sequence] - behind * (step or 1)
    length = np.minimum(event - sequences.offsets[sequence], max_len)
    return _Rows(event, length.astype("int32"), np.zeros(len(event), "int32"))


def _make_gather(items, rows, targets, every_slot, padding, width):
    """Returns the function from row numbers and a seed to a batch.

    Args:
        items: All items, one sequence after another.
        rows: `_Rows`.
        targets: `"last"` or `"all"`.
        every_slot: Whether with `"all"` each slot has a target, not the last alone.
        padding: `"right"` or `"left"`.
        width: The width of all batches, or `None` for that of the longest row.
    """
    import tensorflow as tf

    # Behind the last item stands what padding reads.
    blank = _narrow(np.array(len(items)))
    position = blank.dtype
    if targets == "all":
        table = np.stack([items, np.append(items[1:], 0)], axis=1)
    else:
        table = items
    table = np.concatenate([table, np.zeros_like(table[:1])])
    begins = np.stack([rows.event - rows.length, rows.length], axis=1)
    # On the CPU even where there is a GPU: the batches are cut on the host.
    with tf.device("CPU:0"):
        table = tf.constant(table, "int32")
        spans = tf.constant(begins, position)

    def gather(numbers, seed):
        begin, length = tf.unstack(tf.gather(spans, numbers), axis=1)
        end = (begin + length)[:, None]
        begin, length = begin[:, None], length[:, None]
        longest = tf.reduce_max(length) if width is None else width
        slots = tf.range(longest, dtype=position)[None, :]
        if padding == "right":
            places = begin + slots
            read = tf.gather(table, tf.where(places < end, places, blank))
        else:
            places = end - longest + slots
            read = tf.gather(table, tf.where(places >= begin, places, blank))
        if targets == "last":
            return {"item_ids": read}, tf.gather(table, end[:, 0])
        item_ids, y = tf.unstack(read, axis=2)
        if not every_slot:
            y = tf.where(places == end - 1, y, 0)
        return {"item_ids": item_ids}, y

    return gather
