import collections

import numpy as np
import pytest

from keras_recsys.data import Sequences, make_sequence_dataset

# Lengths 1 to 5 and 9, items all distinct: item n of sequence s is 10 s + n.
LENGTHS = (1, 2, 3, 4, 5, 9)
VALUES = [10 * s + n for s, length in enumerate(LENGTHS) for n in range(length)]
SEQUENCES = Sequences(
    np.arange(1, len(VALUES) + 1), np.append(0, np.cumsum(LENGTHS)), VALUES
)


def rows_of(dataset):
    """All rows: raw items and raw targets, of which none is `None`."""
    raw = [None, *VALUES]
    rows = []
    for inputs, y in dataset:
        assert list(inputs) == ["item_ids"]
        for x, target in zip(inputs["item_ids"].numpy(), y.numpy(), strict=True):
            target = raw[target] if y.ndim == 1 else [raw[i] for i in target]
            rows.append(([raw[i] for i in x], target))
    return rows


def as_batches(dataset):
    return [
        (inputs["item_ids"].numpy().tolist(), y.numpy().tolist())
        for inputs, y in dataset
    ]


def rows_loop(split, targets, max_len):
    """The docstring, one sequence and one target at a time, without padding."""
    rows = []
    for s, length in enumerate(LENGTHS):
        items = [10 * s + n for n in range(length)]
        held_out = {"train": 2, "all": 0, "validation": 1, "test": 0}[split]
        items = items[: length - held_out]
        if len(items) < 2:
            continue
        if split in ("validation", "test"):
            ends = [len(items) - 1]
        elif targets == "last":
            ends = range(1, len(items))
        else:
            ends = reversed(range(len(items) - 1, 0, -max_len))
        for end in ends:
            x = items[max(end - max_len, 0) : end]
            if targets == "last":
                y = items[end]
            elif split in ("validation", "test"):
                y = [None] * (len(x) - 1) + [items[end]]
            else:
                y = items[end - len(x) + 1 : end + 1]
            rows.append((x, y))
    return rows


def strip(row, padding):
    """A row without padding, which must be on the side that was asked for."""
    x, y = row
    size = len([item for item in x if item is not None])
    kept = slice(size) if padding == "right" else slice(len(x) - size, None)
    assert None not in x[kept]
    if isinstance(y, list):
        assert len(y) == len(x)
        blank = y[size:] if padding == "right" else y[: len(y) - size]
        assert blank == [None] * (len(x) - size)
        y = y[kept]
    return x[kept], y


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("max_len", [3, 50])
@pytest.mark.parametrize("targets", ["last", "all"])
@pytest.mark.parametrize("split", ["train", "validation", "test", "all"])
def test_equals_the_loop(split, targets, max_len, padding):
    want = rows_loop(split, targets, max_len)
    for shuffle in (False, True):
        dataset = make_sequence_dataset(
            SEQUENCES,
            split,
            targets=targets,
            max_len=max_len,
            batch_size=4,
            padding=padding,
            shuffle=shuffle,
            pad_to_max_len=shuffle,
        )
        got = [strip(row, padding) for row in rows_of(dataset)]
        assert (sorted(got, key=str) if shuffle else got) == (
            sorted(want, key=str) if shuffle else want
        )
        assert int(dataset.cardinality()) == -(-len(want) // 4)


def test_splits_by_hand():
    # The sequence of four items is 30, 31, 32, 33; that of three is 20, 21, 22.
    short = SEQUENCES.select(np.array([False, False, True, True, False, False]))
    rows = {
        split: rows_of(make_sequence_dataset(short, split))
        for split in ("train", "validation", "test")
    }
    assert rows == {
        "train": [([30], 31)],
        "validation": [([20, None], 21), ([30, 31], 32)],
        "test": [([20, 21, None], 22), ([30, 31, 32], 33)],
    }


def test_windows_by_hand():
    # Seven items to train on: the last window has targets 54 to 56, the first one 51.
    dataset = make_sequence_dataset(
        SEQUENCES.select(SEQUENCES.lengths == 9),
        targets="all",
        max_len=4,
        shuffle=False,
        padding="left",
    )
    assert rows_of(dataset) == [
        ([None, None, 50, 51], [None, None, 51, 52]),
        ([52, 53, 54, 55], [53, 54, 55, 56]),
    ]


@pytest.mark.parametrize("max_len", [1, 2, 4, 50])
@pytest.mark.parametrize("targets", ["last", "all"])
def test_each_target_counts_once(targets, max_len):
    counts = collections.Counter()
    for split in ("train", "validation", "test"):
        dataset = make_sequence_dataset(
            SEQUENCES, split, targets=targets, max_len=max_len
        )
        for _, y in rows_of(dataset):
            counts.update(y if isinstance(y, list) else [y])
    counts.pop(None, None)
    assert counts == {value: 1 for value in VALUES if value % 10}


def test_width_of_batches():
    def widths(**kwargs):
        dataset = make_sequence_dataset(SEQUENCES, "test", batch_size=2, **kwargs)
        return [inputs["item_ids"].shape for inputs, _ in dataset], dataset.element_spec

    shapes, (spec, y) = widths()
    assert shapes == [(2, 2), (2, 4), (1, 8)]
    assert (spec["item_ids"].shape.as_list(), y.shape.as_list()) == ([None] * 2, [None])
    assert spec["item_ids"].dtype == y.dtype == "int32"
    shapes, (spec, y) = widths(pad_to_max_len=True, drop_remainder=True)
    assert shapes == [(2, 50)] * 2
    assert (spec["item_ids"].shape.as_list(), y.shape.as_list()) == ([2, 50], [2])


def many():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 300)
    items = rng.integers(1, 100, lengths.sum())
    return Sequences(items, np.append(0, np.cumsum(lengths)), np.arange(99))


def test_like_lengths_share_a_batch():
    def filled(bucket):
        slots = items = 0
        dataset = make_sequence_dataset(many(), batch_size=32, seed=0, bucket=bucket)
        for inputs, _ in dataset:
            x = inputs["item_ids"].numpy()
            slots += x.size
            items += np.count_nonzero(x)
        return items / slots

    assert filled(True) > 0.85
    assert filled(False) < 0.6


@pytest.mark.parametrize("bucket", [True, False])
def test_seeds_and_epochs(bucket):
    def epochs(seed, **kwargs):
        dataset = make_sequence_dataset(
            many(), batch_size=64, seed=seed, bucket=bucket, **kwargs
        )
        return [as_batches(dataset) for _ in range(2)]

    first, second = epochs(1)
    assert [first, second] == epochs(1)
    assert first != second
    assert first != epochs(2)[0]
    widths = [len(x[0]) for x, _ in first]
    assert widths != sorted(widths)  # the batches are in random order too
    targets = [sorted(t for _, y in epoch for t in y) for epoch in (first, second)]
    assert targets[0] == targets[1]
    first, second = epochs(None, shuffle=False)
    assert first == second


def test_drop_remainder_leaves_out_other_rows_each_epoch():
    sequences = many()
    num_rows = sum(max(n - 3, 0) for n in sequences.lengths.tolist())
    dataset = make_sequence_dataset(
        sequences, batch_size=1000, seed=0, drop_remainder=True
    )
    assert int(dataset.cardinality()) == num_rows // 1000
    sizes = [len(y) for _, y in as_batches(dataset)]
    assert sizes == [1000] * (num_rows // 1000)


@pytest.mark.parametrize(
    ("split", "too_short"), [("train", 3), ("validation", 2), ("test", 1), ("all", 1)]
)
def test_says_that_nothing_is_left(split, too_short):
    sequences = SEQUENCES.select(SEQUENCES.lengths <= too_short)
    with pytest.raises(
        ValueError, match=rf"at least {too_short + 1} items.*split='{split}'"
    ):
        make_sequence_dataset(sequences, split)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"split": "valid"}, ValueError, "`split`.*split='valid'"),
        ({"targets": "first"}, ValueError, "`targets`.*'first'"),
        ({"padding": "both"}, ValueError, "`padding`.*'both'"),
        ({"max_len": 0}, ValueError, "`max_len`.*max_len=0"),
        ({"batch_size": 1.5}, TypeError, "`batch_size`.*1.5"),
        ({"shuffle": 1}, TypeError, "`shuffle`.*shuffle=1"),
        ({"bucket": None}, TypeError, "`bucket`.*None"),
        ({"pad_to_max_len": 7}, TypeError, "`pad_to_max_len`.*7"),
        ({"drop_remainder": "no"}, TypeError, "`drop_remainder`.*'no'"),
        ({"seed": -1}, ValueError, "`seed`.*-1"),
        (
            {"drop_remainder": True},
            ValueError,
            "`batch_size`.*number of rows, 9.*batch_size=128",
        ),
        ({"sequences": [[1, 2, 3]]}, TypeError, "`sequences`.*list"),
    ],
)
def test_says_what_argument_was_given(change, error, message):
    with pytest.raises(error, match=message):
        make_sequence_dataset(**{"sequences": SEQUENCES, **change})
