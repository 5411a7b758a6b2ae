"""Finds the golden files, by glob, in the folder that `KERAS_RECSYS_GOLDEN` names."""

import fnmatch
import os
import pathlib

import numpy as np
import pytest

FOLDER = pathlib.Path(
    os.environ.get("KERAS_RECSYS_GOLDEN") or pathlib.Path(__file__).parent / "golden"
)


def golden(kind, *, having=(), lacking=()):
    """Decorator: runs a test on every file of a kind, as argument `path`.

    Args:
        kind: Name of the folder, such as `"fibinet"`.
        having: Names of arrays that a file must hold for this test. A `*` in a name
            stands for anything.
        lacking: Names of arrays that it must not hold.

    Returns:
        A decorator that parametrizes and marks the test.
    """
    params = []
    for path in sorted((FOLDER / kind).glob("**/*.npz")):
        with np.load(path) as arrays:
            names = set(arrays.files)
        if all(_has(names, n) for n in having) and not any(
            _has(names, n) for n in lacking
        ):
            relative = path.relative_to(FOLDER / kind).with_suffix("")
            params.append(pytest.param(path, id=f"{kind}-{relative}"))
    if not params:
        skip = pytest.mark.skip(
            reason=f"no {kind} file with {', '.join(having)} in {FOLDER}"
        )
        params = [pytest.param(None, id=f"{kind}-none", marks=skip)]

    def decorate(test):
        return pytest.mark.golden(pytest.mark.parametrize("path", params)(test))

    return decorate


def load(path):
    """The arrays of a file, all in memory."""
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def assert_close(got, want, dtype):
    """Golden tolerance: float64 abs 1e-9, float32 rel 2e-5 of the largest entry."""
    want = np.asarray(want)
    if dtype == "float64":
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-9)
    else:
        scale = max(1.0, np.abs(want).max(initial=0.0))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * scale)


def _has(names, name):
    return any(fnmatch.fnmatchcase(one, name) for one in names)
