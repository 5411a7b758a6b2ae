"""What the runners of click models share: arguments, data and commands.

It needs NumPy only, since it runs in the environments of the peers. A runner imports
it after it has called `open_reply` (see `protocol.py`).
"""

import argparse
import time

import numpy as np


def widths(text):
    """Reads the widths of hidden layers, such as `"256,128,64"`."""
    try:
        units = tuple(int(word) for word in text.split(","))
    except ValueError:
        units = (0,)
    if min(units) < 1:
        raise argparse.ArgumentTypeError(
            f"must be positive ints with commas between. Received: {text!r}"
        )
    return units


def make_parser(models):
    """Makes the parser of a runner, which adds the options of its library.

    Args:
        models: Names of the models that the runner serves, the default one first.

    Returns:
        An `argparse.ArgumentParser`.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--model", choices=models, default=models[0])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--embedding-dim", type=int, default=16)
    parser.add_argument("--hidden-units", type=widths, default=(256, 128, 64))
    parser.add_argument("--threads", type=int, help="default: what the library takes")
    return parser


def load_data(path):
    """Reads the data file whole, a dict of arrays."""
    with np.load(path) as data:
        return dict(data)


def two_fields(data, rows=8):
    """Cuts the data to a few rows of two categorical fields and one number."""
    return {
        "ids": data["ids"][:rows, :2],
        "numbers": data["numbers"][:rows, :1],
        "labels": data["labels"][:rows],
        "vocab_sizes": data["vocab_sizes"][:2],
    }


class CtrRunner:
    """Holds the data and the model between commands.

    A subclass has `build`, `versions` and the private methods that raise
    `NotImplementedError` here.

    Args:
        args: What the parser returned.
        data: Dict of arrays, see `load_data`.
    """

    commands = ("warm", "build", "first_step", "step", "versions")

    def __init__(self, args, data):
        self.args = args
        self.data = data
        self.model = self.iterator = None

    def handlers(self):
        """Gives the dict from a command to its method, as `serve` takes it."""
        return {name: getattr(self, name) for name in self.commands}

    def warm(self):
        """Builds and trains a model of two fields and one number."""
        small = two_fields(self.data)
        args = argparse.Namespace(**{**vars(self.args), "batch_size": 8})
        other = type(self)(args, small)
        other.build()
        other.first_step()

    def first_step(self):
        """Makes the training function and runs its first step."""
        self.iterator = iter(self._batches())
        start = time.perf_counter()
        self._make_step()
        loss = self._one_step()
        return {"seconds": time.perf_counter() - start, "loss": loss}

    def step(self, count="1"):
        """Runs training steps."""
        start = time.perf_counter()
        for _ in range(int(count)):
            loss = self._one_step()
        return {"seconds": time.perf_counter() - start, "loss": loss}

    def _columns(self):
        """Cuts the columns into batches.

        Returns:
            A dict from `c0`, `c1`, ... (ids) and `n0`, `n1`, ... (numbers) to arrays of
            shape `(batches, batch_size)`, and the labels of the same shape. What is
            left of the rows is dropped.
        """
        size = self.args.batch_size
        count = len(self.data["labels"]) // size
        columns = {}
        for letter, key in (("c", "ids"), ("n", "numbers")):
            for i, column in enumerate(self.data[key][: count * size].T):
                columns[f"{letter}{i}"] = column.reshape(count, size)
        return columns, self.data["labels"][: count * size].reshape(count, size)

    def _batches(self):
        raise NotImplementedError("gives the batches over and over")

    def _make_step(self):
        raise NotImplementedError("makes what `_one_step` needs, in the first step")

    def _one_step(self):
        raise NotImplementedError("trains on the next batch and returns the loss")
