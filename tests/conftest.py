"""Shared fixtures, and the one fresh process that loads every saved model."""

import json
import os
import pathlib
import subprocess
import sys

import helpers
import keras
import numpy as np
import pytest

TESTS = pathlib.Path(__file__).parent


@pytest.fixture(autouse=True)
def _same_numbers():
    """Every test starts from the same random state and the default policy."""
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace["np"] = np


@pytest.fixture(scope="session", autouse=True)
def _fresh_process(tmp_path_factory):
    """At the end of the session one new process loads all that the tests saved."""
    yield
    if not helpers.ARTIFACTS:
        return
    listing = tmp_path_factory.mktemp("fresh") / "artifacts.json"
    listing.write_text(json.dumps(helpers.ARTIFACTS))
    done = subprocess.run(
        [sys.executable, TESTS / "fresh_process.py", listing],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    if done.returncode:
        pytest.fail(f"In a fresh process:\n{done.stdout}\n{done.stderr[-4000:]}")
