"""Serves a sparse PyTorch table to the benchmarks; runs in the environment `torch`.

    python torch_embedding.py NUM_IDS BATCH IDS DIM

Commands, one a line (see `protocol.py` for the replies):

    build      makes the model, its optimizers and the batches
    step       runs one training step and waits for its loss
    versions   gives the version of torch

The model is that of `bench_embedding.py`: `torch.nn.Embedding(sparse=True)`, flattened,
one linear unit, mean squared error; `SparseAdam` for the table, which sums duplicates
and updates the rows of the batch, and `Adam` for the rest.
"""

import sys

from protocol import open_reply, serve

REPLY = open_reply()

import numpy as np  # noqa: E402
import torch  # noqa: E402

NUM_BATCHES = 32


class Runner:
    """Holds model and batches between commands."""

    def __init__(self, num_ids, batch, ids, dim):
        self.sizes = num_ids, batch, ids, dim
        self.done = 0

    def build(self):
        """Makes everything that a step needs."""
        num_ids, batch, ids, dim = self.sizes
        self.table = torch.nn.Embedding(num_ids, dim, sparse=True)
        self.head = torch.nn.Linear(ids * dim, 1)
        self.optimizers = [
            torch.optim.SparseAdam(self.table.parameters(), lr=1e-3),
            torch.optim.Adam(self.head.parameters(), lr=1e-3),
        ]
        self.batches = [
            torch.tensor(np.random.default_rng(seed).integers(0, num_ids, (batch, ids)))
            for seed in range(NUM_BATCHES)
        ]
        rng = np.random.default_rng(0)
        self.labels = torch.tensor(rng.normal(size=(batch, 1)), dtype=torch.float32)

    def step(self):
        """One training step."""
        ids = self.batches[self.done % NUM_BATCHES]
        self.done += 1
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        output = self.head(self.table(ids).flatten(1))
        loss = torch.nn.functional.mse_loss(output, self.labels)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        loss.item()


if __name__ == "__main__":
    runner = Runner(*map(int, sys.argv[1:]))
    serve(
        {
            "build": runner.build,
            "step": runner.step,
            "versions": lambda: {"torch": torch.__version__},
        },
        REPLY,
    )
