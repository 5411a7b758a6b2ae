"""The command line: `python -m keras_recsys quickstart`.

It trains a model on real data, compares it with simple ones, and leaves a folder with
plots, the model and a SavedModel that is ready to serve.
"""

import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # for what TensorFlow has yet to say

from keras_recsys._quickstart import RECIPES, quickstart
from keras_recsys._quickstart.common import QuickstartError
from keras_recsys.version import __version__


class Parser(argparse.ArgumentParser):
    """Tells an error in one line and without the usage."""

    def error(self, message):
        """Ends the program with status 2."""
        self.exit(2, f"error: {message}\n")


def positive_int(text):
    """Reads an integer of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"must be a positive integer. Received: {text!r}"
        )
    return value


def seed_int(text):
    """Reads an integer of 32 bits."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(
            f"must be an integer from 0 to 2**32 - 1. Received: {text!r}"
        )
    return value


def parse(argv):
    """Reads the command line."""
    parser = Parser(
        prog="python -m keras_recsys",
        description="Keras 3 layers and models for recommenders and forecasting.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    command = commands.add_parser(
        "quickstart",
        help="train, compare and export a model on real data",
        description=(
            "Trains a model on real data, compares it with simple ones on what came "
            "later, and writes plots, the Keras model and a checked SavedModel. "
            "fibinet: clicks, the 100,004 MovieLens ratings of 1995 to 2016 (a click "
            "is a rating of 4 stars or more), against a logistic regression on the "
            "last tenth of each user's ratings; about a minute on two cores. "
            "informer: a long time series, the hourly weather at the airports of New "
            "York in 2013, whose temperature is forecast for a day, against linear "
            "models and the last day again on the last fifth of the year; about three "
            "minutes."
        ),
    )
    command.add_argument(
        "--model",
        choices=sorted(RECIPES),
        default="fibinet",
        help="model to train (default: %(default)s)",
    )
    epochs = ", ".join(f"{recipe.EPOCHS} for {x}" for x, recipe in RECIPES.items())
    command.add_argument(
        "--epochs",
        type=positive_int,
        metavar="N",
        help=f"passes of the model over the training rows (default: {epochs})",
    )
    command.add_argument(
        "--out",
        default="quickstart_out",
        metavar="DIR",
        help="folder to write (default: %(default)s)",
    )
    command.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the folder of an earlier quickstart",
    )
    command.add_argument(
        "--seed",
        type=seed_int,
        default=0,
        metavar="S",
        help="seed of all that is random (default: %(default)s)",
    )
    command.add_argument(
        "--data",
        metavar="PATH",
        help="your data instead of those built in; fibinet: folder of an unpacked "
        "ml-100k, ml-1m or ml-latest-small; informer: CSV file of one series, with a "
        "line of column names, the time first and what to forecast last",
    )
    command.add_argument(
        "--rows",
        type=positive_int,
        metavar="N",
        help="use the first N ratings, or rows of each series, for a quick try",
    )
    options = parser.parse_args(argv)
    if options.epochs is None:
        options.epochs = RECIPES[options.model].EPOCHS
    return options


def main(argv=None):
    """Runs the command line.

    Args:
        argv: List of arguments, or `None` for those of the process.

    Returns:
        The exit status: 0, or 1 after an error, which is told in one line.
    """
    options = parse(argv)
    try:
        quickstart(options)
    except QuickstartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted, nothing was written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
