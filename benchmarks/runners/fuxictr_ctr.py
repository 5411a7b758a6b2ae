"""Serves click models of FuxiCTR to the benchmarks; runs in its environment.

    python fuxictr_ctr.py DATA.npz [--model fibinet|deepfm] [--batch-size 1024]
        [--embedding-dim 16] [--hidden-units 256,128,64]
        [--bilinear-form gather|pairs] [--compile] [--threads N]

`DATA.npz` is that of `deepctr_ctr.py`. Commands, one a line (see `protocol.py` for the
replies):

    warm          trains a model of two fields once, so that what PyTorch does only the
                  first time in a process is in no measurement
    build         makes the model and its optimizer, forgotten at the next `build`
    first_step    runs the first training step; with `--compile`, it compiles too
    step N        runs N training steps
    versions      gives the versions of fuxictr and torch

A training step is one call of FuxiCTR's own `BaseModel.train_step` (gradients to zero,
forward, loss, backward, gradient norm clipped at 10, Adam) and the `loss.item()` that
follows it in `train_epoch`, on batches cut before into the dict of columns that its
data loaders give, ids as int64: no loader, log or progress bar is timed. `--compile`
compiles the forward and backward pass with `torch.compile`, without its caches on disk.

The package has the layers but not the models, which are in the `model_zoo` folder of
FuxiCTR's repository. They are put together here from the layers in the same way,
dropout, batch normalization and regularizers off, as is its default. The zoo's FiBiNET
has the `gather` form of the bilinear layer; `pairs` is the older layer, which loops
over the pairs. Numbers are fields, an embedding times the value, so 26 ids and 13
numbers make 39 fields and 741 pairs. Id 0 is an id like all others, not padding.
"""

import importlib.metadata
import itertools
import os
import time

from protocol import open_reply, serve

REPLY = open_reply()
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

import torch  # noqa: E402
from ctr_shared import CtrRunner, load_data, make_parser  # noqa: E402
from fuxictr.features import FeatureMap  # noqa: E402
from fuxictr.pytorch import layers  # noqa: E402
from fuxictr.pytorch.models import BaseModel  # noqa: E402

BILINEAR_FORMS = {
    "gather": layers.BilinearInteractionV2,
    "pairs": layers.BilinearInteraction,
}
MAX_GRADIENT_NORM = 10.0  # the default of `BaseModel.fit`


class ClickModel(BaseModel):
    """What the two models have in common: embeddings, the MLP and the training.

    Args:
        feature_map: The `FeatureMap` of the data.
        args: What the parser returned.
    """

    def __init__(self, feature_map, args):
        super().__init__(feature_map, verbose=0, model_root="", metrics=[])
        self._max_gradient_norm = MAX_GRADIENT_NORM  # `fit` would set it
        self.embedding = layers.FeatureEmbedding(feature_map, args.embedding_dim)
        self.mlp = layers.MLP_Block(
            self.add_interactions(feature_map, args),
            hidden_units=list(args.hidden_units),
            output_dim=1,
        )
        self.compile("adam", "binary_crossentropy", lr=1e-3)
        self.reset_parameters()
        self.model_to_device()

    def forward(self, inputs):
        """Gives the probabilities of a batch in a dict, as `train_step` takes them."""
        columns = self.get_inputs(inputs)
        logits = self.logits(columns, self.embedding(columns))
        return {"y_pred": self.output_activation(logits)}


class DeepFM(ClickModel):
    """Factorization machine and MLP on the same embeddings."""

    def add_interactions(self, feature_map, args):
        """Makes the layers before the MLP and gives the width of its input."""
        self.fm = layers.FactorizationMachine(feature_map)
        return feature_map.num_fields * args.embedding_dim

    def logits(self, columns, fields):
        """Adds the two parts."""
        return self.fm(columns, fields) + self.mlp(fields.flatten(1))


class FiBiNET(ClickModel):
    """Bilinear products of the embeddings before and after SENet, MLP, linear part."""

    def add_interactions(self, feature_map, args):
        """Makes the layers before the MLP and gives the width of its input."""
        count, dim = feature_map.num_fields, args.embedding_dim
        bilinear = BILINEAR_FORMS[args.bilinear_form]
        self.senet = layers.SqueezeExcitation(count)
        self.plain_pairs = bilinear(count, dim)
        self.senet_pairs = bilinear(count, dim)
        self.linear = layers.LogisticRegression(feature_map, use_bias=False)
        return count * (count - 1) * dim

    def logits(self, columns, fields):
        """Adds the two parts."""
        plain, weighted = self.plain_pairs(fields), self.senet_pairs(self.senet(fields))
        pairs = torch.cat([plain, weighted], dim=1)
        return self.linear(columns) + self.mlp(pairs.flatten(1))


MODELS = {"fibinet": FiBiNET, "deepfm": DeepFM}


class Runner(CtrRunner):
    """Trains the models of FuxiCTR."""

    def build(self):
        """Makes the model and its optimizer."""
        self.model = self.iterator = None
        torch.compiler.reset()
        start = time.perf_counter()
        self.model = MODELS[self.args.model](self._feature_map(), self.args)
        if self.args.compile:
            self.model.forward = torch.compile(self.model.forward)
        seconds = time.perf_counter() - start
        weights = [w.numel() for w in self.model.parameters() if w.requires_grad]
        return {"seconds": seconds, "parameters": sum(weights)}

    def versions(self):
        """Gives the versions of what is raced."""
        return {name: importlib.metadata.version(name) for name in ("fuxictr", "torch")}

    def _feature_map(self):
        feature_map = FeatureMap("clicks", "")
        for i, size in enumerate(self.data["vocab_sizes"]):
            spec = {"source": "", "type": "categorical", "vocab_size": int(size)}
            feature_map.features[f"c{i}"] = spec
        for i in range(self.data["numbers"].shape[1]):
            feature_map.features[f"n{i}"] = {"source": "", "type": "numeric"}
        feature_map.labels = ["label"]
        feature_map.num_fields = feature_map.get_num_fields()
        feature_map.default_emb_dim = self.args.embedding_dim
        return feature_map

    def _batches(self):
        columns, labels = self._columns()
        tensors = {name: torch.tensor(column) for name, column in columns.items()}
        for name in tensors:
            if name.startswith("c"):
                tensors[name] = tensors[name].long()
        tensors["label"] = torch.tensor(labels)
        batches = [
            {name: column[i] for name, column in tensors.items()}
            for i in range(len(labels))
        ]
        return itertools.cycle(batches)

    def _make_step(self):
        self.model.train()

    def _one_step(self):
        return self.model.train_step(next(self.iterator)).item()


def main():
    """Parses the arguments and serves."""
    parser = make_parser(list(MODELS))
    parser.add_argument(
        "--bilinear-form", choices=list(BILINEAR_FORMS), default="gather"
    )
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    serve(Runner(args, load_data(args.data)).handlers(), REPLY)


if __name__ == "__main__":
    main()
