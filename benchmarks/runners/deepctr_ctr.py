"""Serves the click models of DeepCTR to the benchmarks; runs in its environment.

    python deepctr_ctr.py DATA.npz [--model fibinet|deepfm|dcn|dcn_matrix|xdeepfm]
        [--batch-size 1024] [--embedding-dim 16] [--hidden-units 256,128,64]
        [--bilinear-type interaction] [--jit] [--optimizer adam|legacy_adam]
        [--threads N]

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
of DeepCTR are set to 0, since the models that it is raced against have none; what no
option names has DeepCTR's default: two cross layers, two CIN layers of 128 maps of
which half go on, reduction ratio 3. Numbers join the input of the DNN and the linear
part; they are no fields.
"""

import importlib.metadata
import inspect
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
from ctr_shared import CtrRunner, load_data, make_parser  # noqa: E402
from deepctr.feature_column import DenseFeat, SparseFeat  # noqa: E402
from deepctr.models import DCN, DeepFM, FiBiNET, xDeepFM  # noqa: E402

OPTIMIZERS = {
    "adam": tf_keras.optimizers.Adam,
    "legacy_adam": tf_keras.optimizers.legacy.Adam,
}

MODELS = {
    "fibinet": (FiBiNET, {"reduction_ratio": 3}),
    "deepfm": (DeepFM, {}),
    "dcn": (DCN, {"cross_parameterization": "vector"}),
    "dcn_matrix": (DCN, {"cross_parameterization": "matrix"}),
    "xdeepfm": (xDeepFM, {"cin_layer_size": (128, 128)}),
}
"""The builder of each model and what it is called with."""


class Runner(CtrRunner):
    """Trains the models of DeepCTR."""

    commands = (*CtrRunner.commands, "export", "save")

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
        builder, options = MODELS[self.args.model]
        names = inspect.signature(builder).parameters
        no_l2 = {name: 0 for name in names if name.startswith("l2_reg")}
        if self.args.model == "fibinet":
            options = {**options, "bilinear_type": self.args.bilinear_type}
        self.model = builder(
            columns,
            columns,
            dnn_hidden_units=self.args.hidden_units,
            **options,
            **no_l2,
        )
        self.model.compile(
            OPTIMIZERS[self.args.optimizer](),
            loss="binary_crossentropy",
            jit_compile=self.args.jit,
        )
        seconds = time.perf_counter() - start
        parameters = int(sum(np.prod(w.shape) for w in self.model.trainable_weights))
        return {"seconds": seconds, "parameters": parameters}

    def export(self, path):
        """Writes a SavedModel for serving, the quickest of the two ways."""
        self.model.export(path)

    def save(self, path):
        """Writes a SavedModel in the older way."""
        self.model.save(path, save_format="tf")

    def versions(self):
        """Gives the versions of what is raced."""
        names = ("deepctr", "tf_keras", "tensorflow", "keras")
        return {name: importlib.metadata.version(name) for name in names}

    def _batches(self):
        columns, labels = self._columns()
        inputs = {name: column[..., None] for name, column in columns.items()}
        return tf.data.Dataset.from_tensor_slices((inputs, labels[..., None])).repeat()

    def _make_step(self):
        self.step_function = self.model.make_train_function()

    def _one_step(self):
        return float(self.step_function(self.iterator)["loss"])


def main():
    """Parses the arguments and serves."""
    parser = make_parser(list(MODELS))
    parser.add_argument("--bilinear-type", default="interaction")
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adam")
    args = parser.parse_args()
    if args.threads:
        tf.config.threading.set_intra_op_parallelism_threads(args.threads)
        tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    serve(Runner(args, load_data(args.data)).handlers(), REPLY)


if __name__ == "__main__":
    main()
