"""What the quickstarts share."""

import contextlib
import importlib.util
import os
import sys


class QuickstartError(Exception):
    """What went wrong in one line, for the user to mend."""


@contextlib.contextmanager
def one_line(*errors):
    """Turns errors that the user can mend into a `QuickstartError`."""
    try:
        yield
    except errors as error:
        raise QuickstartError(" ".join(str(error).split())) from error


def check_packages():
    """Checks that what is imported only later is installed."""
    for name in ("matplotlib", "pandas", "sklearn"):
        if importlib.util.find_spec(name) is None:
            raise QuickstartError(
                f"the quickstart needs the package {name}; install it with: "
                'pip install "keras-recsys[data]"'
            )


def check_out(out, overwrite, known):
    """Absolute path of the folder to write, if the quickstart may.

    Args:
        out: Path of the folder.
        overwrite: Whether it may hold an earlier quickstart.
        known: Names of all that a quickstart writes.

    Raises:
        QuickstartError: If something is there that may not be replaced.
    """
    if not out:
        raise QuickstartError("--out must name a folder")
    path = os.path.realpath(out)
    if not os.path.lexists(path):
        return path
    if not os.path.isdir(path):
        raise QuickstartError(f"--out must be a folder, but {out} is a file")
    if os.path.commonpath([path, os.getcwd()]) == path:
        raise QuickstartError(f"--out must not be the folder you are in, but is {out}")
    present = os.listdir(path)
    if present and not overwrite:
        raise QuickstartError(
            f"--out {out} is not empty; choose another folder, or give --overwrite to "
            "replace an earlier quickstart"
        )
    strange = sorted(set(present) - set(known))
    if strange:
        raise QuickstartError(
            f"--overwrite replaces an earlier quickstart only, but {out} also holds "
            f"{strange[0]!r}"
        )
    return path


def progress():
    """How Keras is to tell of training: a bar on a terminal, else a line an epoch."""
    return 1 if sys.stdout.isatty() else 2


def plot_history(panels, path):
    """Draws figures of training, epoch by epoch.

    Args:
        panels: Dict from the title of a panel to a dict from the label of a line to its
            figures, one an epoch.
        path: Path of the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    every = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, lines) in zip(every, panels.items(), strict=True):
        for label, line in lines.items():
            axes.plot(range(1, len(line) + 1), line, marker="o", label=label)
        axes.set(title=title, xlabel="epoch")
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(lines) > 1:
            axes.legend()
    figure.savefig(path, dpi=100)
