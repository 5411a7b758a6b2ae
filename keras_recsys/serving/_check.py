"""Answers an exported model in a process of its own and compares.

`export` runs this file as a script, in a process that imports TensorFlow and nothing
else of the training code: `python _check.py folder`. The folder holds `job.json` and
`arrays.npz`; the script leaves `result.json` there.
"""

import json
import pathlib
import sys

import numpy as np


def _describe(specs):
    """Name -> [dtype, shape], as in `export`, from the specs of a signature."""
    return {
        name: [spec.dtype.name, spec.shape.as_list()] for name, spec in specs.items()
    }


def _dtypes(description):
    return {name: dtype for name, (dtype, _) in description.items()}


def _difference(got, want):
    """Absolute difference; equal infinities and two NaNs differ by 0."""
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        distance = np.abs(got - want)
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def _scores_of(found, ids, scores, values=None):
    """The scores of what was found, `(num_rows, k)`; NaN for what is not in `ids`.

    Args:
        found: Array of ids, or of raw values.
        ids: Array of the ids that may be found, `(num_rows, any)`.
        scores: Array of their scores.
        values: Optional array of the raw value of each id.
    """
    if values is not None:
        id_of = {value: number for number, value in enumerate(values.tolist())}
        plain = [x.decode() if isinstance(x, bytes) else x for x in found.ravel()]
        found = np.array([id_of.get(x, -1) for x in plain]).reshape(found.shape)
    same = found[:, :, None] == ids[:, None, :]
    place = same.argmax(axis=2)
    return np.where(same.any(axis=2), np.take_along_axis(scores, place, 1), np.nan)


def check(folder):
    """Does the job in `folder`: loads the model, compares signatures and answers.

    Args:
        folder: `pathlib.Path` of the folder of the job.

    Returns:
        Dict with `max_difference`, a float, and `problems`, a list of sentences.
    """
    import tensorflow as tf

    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    arrays = np.load(folder / "arrays.npz")
    loaded = tf.saved_model.load(job["model"])  # kept: it owns the weights
    problems = []
    if "keras_recsys" in sys.modules:
        problems.append("the fresh process imported keras_recsys")
    for name, want in job["signatures"].items():
        served = loaded.signatures[name]
        inputs = _describe(served.structured_input_signature[1])
        outputs = _describe(served.structured_outputs)
        if inputs != want["inputs"]:
            problems.append(f"signature {name!r} takes {inputs}")
        if _dtypes(outputs) != _dtypes(want["outputs"]):
            problems.append(f"signature {name!r} answers {outputs}")
    max_difference = 0.0
    for number, name, batch_size, ranking in job["calls"]:
        served = loaded.signatures[name]
        specs = served.structured_input_signature[1]
        inputs = {}
        for key, spec in specs.items():
            array = arrays[f"{number}/inputs/{key}"]
            inputs[key] = tf.constant(array[:batch_size] if array.ndim else array)
            if inputs[key].dtype != spec.dtype:  # bfloat16, which is stored as float32
                inputs[key] = tf.cast(inputs[key], spec.dtype)
        outputs = served(**inputs)
        for key, output in outputs.items():
            want = arrays[f"{number}/outputs/{key}"][:batch_size].astype("float64")
            if key == ranking:
                prefix = f"{number}/ranked/"
                ids, scores = (
                    arrays[prefix + x][:batch_size] for x in ("ids", "scores")
                )
                values = (
                    arrays[prefix + "values"] if prefix + "values" in arrays else None
                )
                got = _scores_of(output.numpy(), ids, scores, values).astype("float64")
            else:
                got = tf.cast(output, tf.float64).numpy()
            where = f"{key!r} of signature {name!r} at batch size {batch_size}"
            if got.shape != want.shape:
                problems.append(f"{where} has shape {got.shape}, not {want.shape}")
                continue
            difference = _difference(got, want)
            largest = float(difference.max(initial=0.0))
            max_difference = max(max_difference, largest)
            with np.errstate(invalid="ignore"):
                allowed = job["atol"] + job["rtol"] * np.nan_to_num(np.abs(want))
            if not (difference <= allowed).all():
                problems.append(f"{where} differs by up to {largest:.3g}")
    return {"max_difference": max_difference, "problems": problems}


if __name__ == "__main__":
    _folder = pathlib.Path(sys.argv[1])
    (_folder / "result.json").write_text(json.dumps(check(_folder)), encoding="utf-8")
