"""Serves DeepCTR's FiBiNET to the benchmarks; runs in the environment `deepctr`.

    python deepctr_fibinet.py DATA.npz [--batch-size 1024] [--embedding-dim 16]
        [--bilinear-type interaction] [--jit] [--optimizer adam|legacy_adam]

`DATA.npz` holds `ids` (rows, fields; int32), `numbers` (rows, numeric fields; float32),
`labels` (rows,; float32) and `vocab_sizes` (fields,). Commands, one a line (see
`protocol.py` for the replies):

    warm          trains a model of two fields once, so that what TensorFlow does only
                  the first time in a process is in no measurement
    build         makes and compiles the model, which it forgets at the next `build`
    first_step    traces, compiles and runs the first training step
    step N        runs N training steps
    export DIR    writes a SavedModel for serving with `Model.export`
    save DIR      writes a SavedModel with `Model.save(save_format="tf")`
    versions      gives the versions of deepctr, tf_keras, tensorflow and keras

A training step is one call of the compiled function that `Model.fit` itself calls
(`Model.make_train_function`), on the next batch of a repeated `tf.data` pipeline whose
batches were cut before: no callbacks, progress bar or shuffling is timed. The L2 terms
of DeepCTR are set to 0, since the model that it is raced against has none.
"""

import argparse
import importlib.metadata
import os
import sys
import time
import types

from protocol import open_reply, serve

REPLY = open_reply()
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# DeepCTR asks PyPI for a newer version when it is imported. Nothing else in it uses
# `requests`, and a benchmark should not wait for the network.
sys.modules["requests"] = types.ModuleType("requests")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tf_keras  # noqa: E402
from deepctr.feature_column import DenseFeat, SparseFeat  # noqa: E402
from deepctr.models import FiBiNET  # noqa: E402

OPTIMIZERS = {
    "adam": tf_keras.optimizers.Adam,
    "legacy_adam": tf_keras.optimizers.legacy.Adam,
}


class Runner:
    """Holds the data and the model between commands."""

    def __init__(self, args, data):
        self.args = args
        self.data = data
        self.step_function = self.iterator = self.model = None

    def build(self):
        """Makes and compiles the model, from the inputs to the optimizer."""
        self.step_function = self.iterator = self.model = None
        tf_keras.backend.clear_session()
        start = time.perf_counter()
        columns = [
            SparseFeat(f"c{i}", int(size), embedding_dim=self.args.embedding_dim)
            for i, size in enumerate(self.data["vocab_sizes"])
        ]
        columns += [DenseFeat(f"n{i}") for i in range(self.data["numbers"].shape[1])]
        self.model = FiBiNET(
            columns,
            columns,
            bilinear_type=self.args.bilinear_type,
            reduction_ratio=3,
            dnn_hidden_units=(256, 128, 64),
            l2_reg_linear=0,
            l2_reg_embedding=0,
        )
        self.model.compile(
            OPTIMIZERS[self.args.optimizer](),
            loss="binary_crossentropy",
            jit_compile=self.args.jit,
        )
        seconds = time.perf_counter() - start
        parameters = int(sum(np.prod(w.shape) for w in self.model.trainable_weights))
        return {"seconds": seconds, "parameters": parameters}

    def first_step(self):
        """Makes the training function and runs its first step."""
        self.iterator = iter(self._batches())
        start = time.perf_counter()
        self.step_function = self.model.make_train_function()
        loss = self._one_step()
        return {"seconds": time.perf_counter() - start, "loss": loss}

    def step(self, count="1"):
        """Runs training steps."""
        start = time.perf_counter()
        for _ in range(int(count)):
            loss = self._one_step()
        return {"seconds": time.perf_counter() - start, "loss": loss}

    def export(self, path):
        """Writes a SavedModel for serving, the quickest of the two ways."""
        self.model.export(path)

    def save(self, path):
        """Writes a SavedModel in the older way."""
        self.model.save(path, save_format="tf")

    def warm(self):
        """Builds and trains a model of two fields."""
        small = {
            "ids": self.data["ids"][:8, :2],
            "numbers": self.data["numbers"][:8, :1],
            "labels": self.data["labels"][:8],
            "vocab_sizes": self.data["vocab_sizes"][:2],
        }
        args = argparse.Namespace(**{**vars(self.args), "batch_size": 8})
        other = Runner(args, small)
        other.build()
        other.first_step()

    def versions(self):
        """Gives the versions of what is raced."""
        names = ("deepctr", "tf_keras", "tensorflow", "keras")
        return {name: importlib.metadata.version(name) for name in names}

    def _one_step(self):
        return float(self.step_function(self.iterator)["loss"])

    def _batches(self):
        size = self.args.batch_size
        count = len(self.data["labels"]) // size
        inputs = {}
        for letter, key in (("c", "ids"), ("n", "numbers")):
            columns = self.data[key][: count * size].T
            for i, column in enumerate(columns):
                inputs[f"{letter}{i}"] = column.reshape(count, size, 1)
        labels = self.data["labels"][: count * size].reshape(count, size, 1)
        return tf.data.Dataset.from_tensor_slices((inputs, labels)).repeat()


def main():
    """Parses the arguments and serves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--embedding-dim", type=int, default=16)
    parser.add_argument("--bilinear-type", default="interaction")
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adam")
    args = parser.parse_args()
    with np.load(args.data) as data:
        runner = Runner(args, dict(data))
    names = ("warm", "build", "first_step", "step", "export", "save", "versions")
    serve({name: getattr(runner, name) for name in names}, REPLY)


if __name__ == "__main__":
    main()
