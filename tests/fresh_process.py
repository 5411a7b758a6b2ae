"""Loads models that a test session saved, in a process that only imports the package.

Usage: python fresh_process.py ARTIFACTS.json
"""

import json
import pathlib
import sys

import keras
import numpy as np

import keras_recsys  # noqa: F401 (registers the layers)


def check(artifact):
    """Compares all forms of one saved model with its outputs."""
    folder = pathlib.Path(artifact["folder"])
    arrays = dict(np.load(folder / "inputs.npz"))
    expected = list(np.load(folder / "expected.npz").values())
    inputs = arrays
    if artifact["inputs"] == "list":
        inputs = list(arrays.values())
    elif artifact["inputs"] == "tensor":
        (inputs,) = arrays.values()
    loaded = keras.models.load_model(folder / "model.keras")
    rebuilt = keras.models.model_from_json((folder / "config.json").read_text())
    rebuilt.load_weights(folder / "model.weights.h5")
    forms = {
        "model.keras": lambda: loaded(inputs),
        "model.weights.h5": lambda: rebuilt(inputs),
    }
    if (folder / "saved_model").exists():
        import tensorflow as tf

        served = tf.saved_model.load(str(folder / "saved_model"))
        tensors = keras.tree.map_structure(tf.constant, inputs)
        forms["saved_model"] = lambda: served.serve(tensors)
    for form, run in forms.items():
        outputs = keras.tree.flatten(run())
        got = [keras.ops.convert_to_numpy(keras.ops.stop_gradient(x)) for x in outputs]
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(
                a, b, rtol=1e-5, atol=1e-6, err_msg=f"{folder / form}"
            )


def main():
    """Checks every artifact and exits with 1 if one differs."""
    failures = 0
    for artifact in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        try:
            check(artifact)
        except Exception as error:  # noqa: BLE001 (every fault is reported, then counted)
            failures += 1
            print(f"{artifact['folder']}: {type(error).__name__}: {error}")  # noqa: T201
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
