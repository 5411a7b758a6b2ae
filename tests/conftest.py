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
# Tests whose optimizers make their variables in the first step, as users' do.
LAZY = ("tests/optimizers", "tests/models/test_compile.py")


def pytest_addoption(parser):
    parser.addoption(
        "--each-value-once",
        action="store_true",
        help="run parametrized tests with each value of each argument, but not with "
        "all combinations of them",
    )


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: "backends" not in item.keywords)  # the longest first
    if not config.getoption("each_value_once"):
        return
    seen, kept = set(), set()
    for is_new in (all, any):  # tests of nothing but new values come first
        for item in items:
            values = item.callspec.params if hasattr(item, "callspec") else {}
            test = (item.path, item.originalname)
            tried = {(*test, name, id(value)) for name, value in values.items()}
            new = is_new(value not in seen for value in tried)
            if new or not tried or "golden" in item.keywords:
                kept.add(item)
                seen |= tried
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.fixture(autouse=True)
def _same_numbers():
    """Every test starts from the same random state and the default policy."""
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(autouse=True)
def _one_trace(request, monkeypatch):
    """Optimizers are built before the first step, which TensorFlow then traces once.

    A step that makes variables is traced twice, which takes most of a small `fit`.
    """
    if request.node.nodeid.startswith(LAZY):
        return
    make = keras.Model.make_train_function

    def build_first(model, force=False):
        optimizer = model.optimizer
        if optimizer is not None and model.built and not optimizer.built:
            optimizer.build(model.trainable_variables)
        return make(model, force)

    monkeypatch.setattr(keras.Model, "make_train_function", build_first)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace["np"] = np


@pytest.fixture(scope="session", autouse=True)
def _fresh_process(tmp_path_factory):
    """At the end of the session one new process loads all that the tests saved."""
    yield
    # The files are Keras', the same on any backend; one process for one is enough.
    if not helpers.ARTIFACTS or helpers.BACKEND != "tensorflow":
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
