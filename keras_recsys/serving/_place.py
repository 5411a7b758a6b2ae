"""Where an export is written: beside its place first, then renamed into it."""

import contextlib
import os
import pathlib
import shutil
import tempfile


def check_path(path, overwrite):
    """Absolute path as text, if `export` may write there.

    Raises:
        FileExistsError: If something is there that may not be replaced.
        ValueError: If it is no path of a local file system.
    """
    text = os.fspath(path)
    if isinstance(text, bytes) or not text or "://" in text:
        raise ValueError(
            "`path` must be a path in a local file system; copy the finished export to "
            f"a bucket. Received: path={path!r}."
        )
    text = os.path.abspath(text)
    if os.path.islink(text):
        text = os.path.realpath(text)
    if not os.path.lexists(text):
        return text
    if not overwrite:
        raise FileExistsError(
            "`path` must not exist, unless `overwrite=True`, which replaces an earlier "
            f"export. Received: path={text!r}."
        )
    if not os.path.isdir(text) or (
        os.listdir(text) and not os.path.exists(os.path.join(text, "saved_model.pb"))
    ):
        raise FileExistsError(
            "`path` must be an earlier export, for `overwrite=True` to replace; what "
            f"is there is no SavedModel. Received: path={text!r}."
        )
    return text


@contextlib.contextmanager
def workspace(path):
    """A folder beside `path`, on the same file system, which is gone afterwards.

    Missing parents are made, and removed again if nothing was put into them.

    Raises:
        NotADirectoryError: If a parent of `path` is a file.
        PermissionError: If the parent may not be written to; other `OSError`s likewise.
    """
    parent, name = os.path.split(path)
    made = []
    ancestor = parent
    while not os.path.lexists(ancestor):
        made.append(ancestor)
        ancestor = os.path.dirname(ancestor)
    if not os.path.isdir(ancestor):
        raise NotADirectoryError(
            "`path` must lie in a directory, but one of its parents is a file. "
            f"Received: path={path!r}, of which {ancestor!r} is a file."
        )
    folder = None
    try:
        try:
            os.makedirs(parent, exist_ok=True)
            folder = tempfile.mkdtemp(prefix=f".{name}.", suffix=".tmp", dir=parent)
        except OSError as error:
            raise type(error)(
                "`path` must lie in a directory that can be written to "
                f"({error.strerror}). Received: path={path!r}."
            ) from error
        yield pathlib.Path(folder)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        for directory in made:
            with contextlib.suppress(OSError):  # not empty: the export lies in it
                os.rmdir(directory)


def move_into_place(new, path, room):
    """Renames `new` to `path`; what was there is moved into the room, to go."""
    old = room / "old"
    if os.path.lexists(path):
        os.rename(path, old)
    try:
        os.rename(new, path)
    except OSError:
        if old.exists():
            os.rename(old, path)
        raise
