"""What holds for the package as a whole."""

import ast
import doctest
import functools
import importlib
import os
import pathlib
import pkgutil
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers import BACKEND

import keras_recsys
from keras_recsys import layers, models

ROOT = pathlib.Path(__file__).parent.parent
# JAX compiles each eager operation, which takes its time; the rest is one code anyway,
# and all combinations of arguments are tried on TensorFlow.
SELECTED = {
    "jax": "contract or golden",
    "torch": "contract or golden or loop or twin or mask or says",
}
# Compiled for a small input and once: what XLA would gain in speed, it loses here.
QUICK_XLA = "--xla_backend_optimization_level=0"
QUICK_XLA += " --xla_llvm_disable_expensive_passes=true"
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(keras_recsys.__path__, "keras_recsys.")
    if not module.name.endswith("__main__")
)


def run(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **env},
        check=True,
    ).stdout


@functools.cache
def contract_tests():
    """Names that tests called `test_contract...` use beside `check_layer` and so on."""
    names = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith(
                "test_contract"
            ):
                used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                if used & {"check_head", "check_layer", "check_model"}:
                    names |= used
    return names


@pytest.mark.parametrize(
    "name",
    [*layers.__all__, *(name for name in models.__all__ if name.startswith("build_"))],
)
def test_has_a_contract_test(name):
    assert name in contract_tests()


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    module = importlib.import_module(name)
    if BACKEND != "tensorflow" and ".numpy()" in (module.__doc__ or ""):
        pytest.skip("the example calls `.numpy()`, which is TensorFlow's")
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in finder.find(module, name, globs={**vars(module), "np": np}):
        runner.run(test)
    assert not runner.summarize(verbose=False).failed


def test_public_names_exist_and_are_documented():
    for name in MODULES:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", []):
            value = getattr(module, public)
            if callable(value):
                assert value.__doc__, f"{name}.{public}"


def test_every_source_file_is_free_of_the_old_keras():
    banned = re.compile(r"tensorflow\.python|tf_keras|TF_USE_LEGACY_KERAS|compat\.v1")
    for path in (ROOT / "keras_recsys").rglob("*.py"):
        assert not banned.search(path.read_text()), path


@pytest.mark.slow
def test_import_is_light_and_silent():
    code = """
import sys, keras
before = set(sys.modules)
import keras_recsys
new = set(sys.modules) - before
heavy = {"tensorflow_recommenders", "pandas", "matplotlib", "sklearn"}
print(sorted(heavy & new))
"""
    assert run(code) == "[]\n"


@pytest.mark.backends
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_layers_import_without_tensorflow(backend):
    if importlib.util.find_spec(backend) is None and "CI" not in os.environ:
        pytest.skip(f"{backend} is not installed")
    code = """
import sys
sys.modules["tensorflow"] = None  # makes every import of it fail
import numpy as np
import keras_recsys.layers as layers
x = np.ones((2, 3, 4), "float32")
print(layers.QREmbedding(10, 4)(np.array([9])).shape)
print(layers.BilinearInteraction()(layers.SENETLayer()(x)).shape)
from keras_recsys import CategoricalFeature, models
features = [CategoricalFeature(name, 10) for name in "ab"]
model = models.build_fibinet(features, hidden_units=(3,))
print(model({name: np.array([1, 2]) for name in "ab"})["probability"].shape)
"""
    assert run(code, KERAS_BACKEND=backend).count("4") == 2


@pytest.mark.backends
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_layer_tests_pass_on(backend):
    if importlib.util.find_spec(backend) is None and "CI" not in os.environ:
        pytest.skip(f"{backend} is not installed")
    done = subprocess.run(
        [
            *[sys.executable, "-m", "pytest", "-q", "-x", "tests/layers"],
            *["tests/metrics", "-m", "not gpu", "--each-value-once"],
            *["-k", SELECTED[backend]],
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "XLA_FLAGS": QUICK_XLA,
        },
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed > 120
