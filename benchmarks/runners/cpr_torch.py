"""Serves Softmax-CPR in plain PyTorch to the benchmarks; runs in `torch`.

    python cpr_torch.py [--encoder sasrec|gru4rec] [--num-ids 12102] [--length 50]
        [--width 64] [--batch-size 128] [--learning-rate 0.001] [--threads N]

Commands, one a line (see `protocol.py` for the replies). `METHOD` is `softmax`, `c`,
`cp`, `cpr:100`, `cpr:20,100,500`, `mos:max`, `mos:dynamic`, `mos:static` or
`mos:uniform`, each with `+mi` behind it or without. One process holds a model for each
method, so that the caller can run them in turn:

    build METHOD [SEED]            makes the model and its optimizer
    step METHOD [N]                runs N training steps on random rows without padding
    predict METHOD [N]             scores N random batches, all ids
    epoch METHOD FILE [STEPS]      trains on the shuffled rows of an .npz, all or STEPS
                                   batches of them
    evaluate METHOD FILE [without_repeats]
                                   ranks all ids for the rows of an .npz
    versions                       gives the version of torch

An .npz holds `item_ids` of shape `(num_rows, length)`, padded with 0 on the left, and
`target` of shape `(num_rows,)`. It is read once, outside of the seconds of the reply.

The models are written as a PyTorch user would from the equations. As in the published
implementation, id 0 is an id like the others for the softmax, for `topk` and as an item
of a padded row, the state is that of the last slot, and the loss is the mean of
`-log(probability + 1e-8)` at that slot. Id 0 is left out of the ranking only. Where no
pointer needs the states of all slots, the output layer reads the last ones alone.
"""

import argparse
import re
import time
import typing

import numpy as np
import torch
from protocol import open_reply, serve
from torch.nn import functional

NUM_BATCHES = 8
NUM_COMPONENTS = 3  # of a mixture of softmaxes
WINDOW = 3  # slots that multiple input states join
PROBABILITY_FLOOR = 1e-8
MASKED_SCORE = -10000.0
TOP = 10  # ranks that count in the metrics
LEAVES = {
    torch.nn.Embedding: {"weight": "table"},
    torch.nn.LayerNorm: {"weight": "gamma", "bias": "beta"},
    torch.nn.Linear: {"weight": "kernel"},
}
"""What the golden files call a weight, by the kind of module that owns it."""


class Method(typing.NamedTuple):
    """An output layer, as `read_method` takes it from a name."""

    context: bool = False
    pointer: bool = False
    candidates: tuple[int, ...] = ()  # descending
    mixture: str | None = None
    multi_input: bool = False


def read_method(text):
    """Reads the name of a method, such as `"cpr:20,100,500+mi"`."""
    match = re.fullmatch(
        r"(softmax|c|cp|cpr:([1-9]\d*(?:,[1-9]\d*)*)|mos:(max|dynamic|static|uniform))"
        r"(\+mi)?",
        text,
    )
    if match is None:
        raise ValueError(
            "`text` must be softmax, c, cp, cpr:K, cpr:K,K,K, mos:max, mos:dynamic, "
            f"mos:static or mos:uniform, with or without +mi. Received: text={text!r}."
        )
    name, sizes, mixture, multi_input = match.groups()
    sizes = sizes.split(",") if sizes else []
    return Method(
        context=name.startswith("c"),
        pointer=name.startswith("cp"),
        candidates=tuple(sorted(set(map(int, sizes)), reverse=True)),
        mixture=mixture,
        multi_input=multi_input is not None,
    )


# --- Output layer -------------------------------------------------------------------


class OutputLayer(torch.nn.Module):
    """Probabilities of the next id from the states of an encoder.

    Args:
        method: A `Method`.
        width: Width of the states and of the item table.
        num_layers: Number of layers whose states are given.
    """

    def __init__(self, method, width, num_layers):
        super().__init__()
        self.method = method
        query_dim = 2 * width if method.multi_input else width
        if method.mixture:
            names = [f"S{i}" for i in range(1, NUM_COMPONENTS + 1)]
        else:
            names = ["V", *(f"R{k}" for k in method.candidates)]
            names += ["C"] * method.context + ["P", "L"] * method.pointer
        self.proj = torch.nn.ModuleDict(
            {name: torch.nn.Linear(query_dim, width) for name in names}
        )
        if method.multi_input:
            self.mi = torch.nn.Linear(WINDOW * num_layers * width, width)
        if method.mixture == "dynamic":
            self.mix = torch.nn.Linear(query_dim, NUM_COMPONENTS)
        elif method.mixture == "static":
            self.mix = torch.nn.ParameterDict({"logits": torch.ones(NUM_COMPONENTS)})

    def forward(self, states, item_ids, table):
        """Gives the probabilities, `(batch_size, num_ids)`.

        Args:
            states: List of the states of all layers, bottom first, each of shape
                `(batch_size, length, width)`.
            item_ids: Ids of the rows, `(batch_size, length)`.
            table: Item table, `(num_ids, width)`.
        """
        queries = self.queries(states)
        logits = self.logits(queries, item_ids, table)
        return self.probability(logits, queries[:, -1])

    def queries(self, states):
        """Gives what the projections read; without a pointer, right at the end only."""
        if not self.method.pointer:
            states = [state[:, -WINDOW:] for state in states]
        top = states[-1]
        if not self.method.multi_input:
            return top
        window = [
            functional.pad(state, (0, 0, back, 0))[:, : state.shape[1]]
            for state in reversed(states)
            for back in range(WINDOW)
        ]
        joined = self.mi(torch.cat(window, dim=-1))
        return torch.cat([top, functional.gelu(joined, approximate="tanh")], dim=-1)

    def logits(self, queries, item_ids, table):
        """Gives the logits, `(batch_size, num_ids)`; a mixture has one a component."""
        last = queries[:, -1]
        if self.method.mixture:
            parts = torch.stack([proj(last) @ table.T for proj in self.proj.values()])
            return parts.amax(dim=0) if self.method.mixture == "max" else parts
        logits = self.proj["V"](last) @ table.T
        for k in self.method.candidates:
            best = logits.topk(min(k, len(table)), dim=1).indices
            rows = functional.embedding(best, table)
            again = self._dot(self.proj[f"R{k}"](last), rows)
            logits = logits.scatter(1, best, again)
        if not self.method.context:
            return logits
        slots = self._dot(self.proj["C"](last), functional.embedding(item_ids, table))
        if self.method.pointer:
            slots = slots + self._dot(self.proj["P"](last), self.proj["L"](queries))
        zeros = torch.zeros_like(logits)
        sums = zeros.scatter_add(1, item_ids, slots)
        counts = zeros.scatter_add(1, item_ids, torch.ones_like(slots))
        return torch.where(counts > 0, sums / counts.clamp(min=1), logits)

    def probability(self, logits, last):
        """Gives the probabilities of logits; mixes those of the components."""
        probability = logits.softmax(dim=-1)
        if probability.dim() == 2:
            return probability
        weights = self.mixture_weights(last).T.unsqueeze(-1)
        return (probability * weights).sum(dim=0)

    def mixture_weights(self, last):
        """Gives the weights of the components, `(batch_size or 1, components)`."""
        if self.method.mixture == "dynamic":
            return self.mix(last).softmax(dim=-1)
        if self.method.mixture == "static":
            return self.mix["logits"].softmax(dim=-1).unsqueeze(0)
        return last.new_full((1, NUM_COMPONENTS), 1 / NUM_COMPONENTS)

    @staticmethod
    def _dot(vector, rows):
        return torch.bmm(rows, vector.unsqueeze(-1)).squeeze(-1)


# --- Encoders -----------------------------------------------------------------------


class Block(torch.nn.Module):
    """Self-attention and a feed-forward part, each normalized after the sum.

    Args:
        width: Width of the states.
        num_heads: Number of heads.
        inner: Inner width of the feed-forward part.
        attention_dropout: Rate of the dropout on the attention weights.
    """

    def __init__(self, width, num_heads, inner, attention_dropout):
        super().__init__()
        self.num_heads = num_heads
        self.attention_dropout = attention_dropout
        self.attn_query = torch.nn.Linear(width, width)
        self.attn_key = torch.nn.Linear(width, width)
        self.attn_value = torch.nn.Linear(width, width)
        self.attn_dense = torch.nn.Linear(width, width)
        self.attn_norm = torch.nn.LayerNorm(width, eps=1e-12)
        self.ffn_dense_1 = torch.nn.Linear(width, inner)
        self.ffn_dense_2 = torch.nn.Linear(inner, width)
        self.ffn_norm = torch.nn.LayerNorm(width, eps=1e-12)

    def forward(self, x, added):
        """Gives the states after the block; `added` is put on the scores."""
        query, key, value = map(
            self._split, (self.attn_query(x), self.attn_key(x), self.attn_value(x))
        )
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + added
        weights = functional.dropout(
            scores.softmax(dim=-1), self.attention_dropout, self.training
        )
        heads = (weights @ value).transpose(1, 2).flatten(2)
        x = self.attn_norm(x + self.attn_dense(heads))
        return self.ffn_norm(x + self.ffn_dense_2(functional.gelu(self.ffn_dense_1(x))))

    def _split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class SASRec(torch.nn.Module):
    """Post-norm self-attention over the row, positions counted by slot.

    There is no dropout on the hidden states.

    Args:
        num_ids: Number of ids, padding included.
        width: Width of the item table and of the states.
        length: Number of slots.
        num_layers: Number of blocks. Defaults to `2`.
        num_heads: Number of heads. Defaults to `2`.
        inner: Inner width of the feed-forward part. Defaults to `256`.
        attention_dropout: Rate of the dropout on the attention weights. Defaults to
            `0.1`.
    """

    def __init__(
        self,
        num_ids,
        width,
        length,
        *,
        num_layers=2,
        num_heads=2,
        inner=256,
        attention_dropout=0.1,
    ):
        super().__init__()
        self.num_layers = num_layers
        self.item_embedding = torch.nn.Embedding(num_ids, width, padding_idx=0)
        self.position_embedding = torch.nn.Embedding(length, width)
        self.norm = torch.nn.LayerNorm(width, eps=1e-12)
        self.layers = torch.nn.ModuleList(
            Block(width, num_heads, inner, attention_dropout) for _ in range(num_layers)
        )
        past = torch.ones(length, length, dtype=torch.bool).tril()
        self.register_buffer("past", past, persistent=False)

    def forward(self, item_ids):
        """Gives the list of the states of all blocks, bottom first."""
        x = self.norm(self.item_embedding(item_ids) + self.position_embedding.weight)
        seen = self.past & (item_ids > 0)[:, None, None, :]
        added = torch.zeros(seen.shape).masked_fill(~seen, MASKED_SCORE)
        states = []
        for layer in self.layers:
            x = layer(x, added)
            states.append(x)
        return states

    def initialize(self, model):
        """Draws the weights of the whole model, tables and kernels from N(0, 0.02)."""
        for module in model.modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                torch.nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.zeros_(module.bias)


class GRU4Rec(torch.nn.Module):
    """One GRU without biases over the row and a dense layer; no dropout.

    Args:
        num_ids: Number of ids, padding included.
        width: Width of the item table and of the states.
        length: Number of slots, which no weight depends on.
        units: Units of the GRU. Defaults to `None`, which means `width`.
    """

    def __init__(self, num_ids, width, length, *, units=None):
        super().__init__()
        units = units or width
        self.num_layers = 1
        self.item_embedding = torch.nn.Embedding(num_ids, width, padding_idx=0)
        self.gru_layers = torch.nn.GRU(width, units, bias=False, batch_first=True)
        self.dense = torch.nn.Linear(units, width)

    def forward(self, item_ids):
        """Gives the list of the one state."""
        return [self.dense(self.gru_layers(self.item_embedding(item_ids))[0])]

    def initialize(self, model):
        """Draws table and GRU anew by Glorot; the rest keeps what PyTorch draws."""
        torch.nn.init.xavier_normal_(self.item_embedding.weight)
        for weight in self.gru_layers.parameters():
            torch.nn.init.xavier_uniform_(weight)


ENCODERS = {"sasrec": SASRec, "gru4rec": GRU4Rec}


# --- Model --------------------------------------------------------------------------


class Recommender(torch.nn.Module):
    """An encoder and an output layer that share the item table.

    Args:
        encoder: A `SASRec` or `GRU4Rec`.
        method: A `Method`.
    """

    def __init__(self, encoder, method):
        super().__init__()
        self.encoder = encoder
        width = encoder.item_embedding.embedding_dim
        self.output = OutputLayer(method, width, encoder.num_layers)
        encoder.initialize(self)

    def forward(self, item_ids):
        """Gives the probabilities of the next id, `(batch_size, num_ids)`."""
        states = self.encoder(item_ids)
        return self.output(states, item_ids, self.encoder.item_embedding.weight)


def cross_entropy(probability, target):
    """Gives the mean of `-log(probability + 1e-8)` at the targets."""
    chosen = probability.gather(1, target.unsqueeze(1))
    return -(chosen + PROBABILITY_FLOOR).log().mean()


def golden_weights(module):
    """Gives the weights by their names in the golden files.

    Args:
        module: A `Recommender`, or one of its parts.

    Returns:
        A dict from a name, such as `"layer0_attn_query/kernel"`, to the parameter and
        whether the file holds it transposed.
    """
    found = {}
    for path, owner in module.named_modules():
        path = re.sub(r"^(encoder|output)\.", "", path)
        path = re.sub(r"^layers\.(\d+)\.", r"layer\1_", path).replace("proj.", "proj_")
        for leaf, parameter in owner.named_parameters(recurse=False):
            name = LEAVES.get(type(owner), {}).get(leaf, leaf)
            found[f"{path}/{name}"] = parameter, name == "kernel"
    return found


def load(module, arrays):
    """Sets all weights of a module from the arrays of a golden file."""
    with torch.no_grad():
        for name, (parameter, transposed) in golden_weights(module).items():
            value = torch.tensor(arrays[name])
            parameter.copy_(value.T if transposed else value)


# --- Ranking ------------------------------------------------------------------------


def ranks(probability, item_ids, target, *, without_repeats=False):
    """Gives the rank of each target among all ids but 0, from 1 on.

    Args:
        probability: Scores, `(num_rows, num_ids)`; changed in place.
        item_ids: Ids of the rows, `(num_rows, length)`.
        target: Ids to rank, `(num_rows,)`.
        without_repeats: Whether the ids of a row come after all others.
    """
    probability[:, 0] = -1.0
    if without_repeats:
        probability.scatter_(1, item_ids, -1.0)
    return 1 + (probability > probability.gather(1, target.unsqueeze(1))).sum(dim=1)


def ranking_metrics(rank, repeated):
    """Gives HR, NDCG and MRR at 10, and NDCG for repeated and for new targets.

    Args:
        rank: Ranks of the targets, `(num_rows,)`, from 1 on.
        repeated: Booleans, `(num_rows,)`; `True` where the row holds the target.

    Returns:
        A dict of floats; `None` where there is no target of that sort.
    """
    rank = rank.double()
    hit = (rank <= TOP).double()
    gain = hit / (rank + 1).log2()
    split = {"ndcg_repeated": gain[repeated], "ndcg_new": gain[~repeated]}
    return {
        "hr": hit.mean().item(),
        "ndcg": gain.mean().item(),
        "mrr": (hit / rank).mean().item(),
        "repeated": repeated.double().mean().item(),
        **{key: x.mean().item() if len(x) else None for key, x in split.items()},
    }


# --- Commands -----------------------------------------------------------------------


class Runner:
    """Holds models, optimizers and data between commands.

    Args:
        args: What the parser returned.
    """

    commands = ("build", "step", "predict", "epoch", "evaluate", "versions")

    def __init__(self, args):
        self.args = args
        self.built = {}
        self.files = {}
        self.done = 0
        rng = np.random.default_rng(0)
        rows = rng.integers(
            1, args.num_ids, (NUM_BATCHES, args.batch_size, args.length + 1)
        )
        self.batches = [(rows[i, :, :-1], rows[i, :, -1]) for i in range(NUM_BATCHES)]
        self.batches = [tuple(map(torch.tensor, batch)) for batch in self.batches]

    def handlers(self):
        """Gives the dict from a command to its method, as `serve` takes it."""
        return {name: getattr(self, name) for name in self.commands}

    def build(self, method, seed="0"):
        """Makes the model of a method and its optimizer."""
        args = self.args
        torch.manual_seed(int(seed))
        encoder = ENCODERS[args.encoder](args.num_ids, args.width, args.length)
        model = Recommender(encoder, read_method(method))
        optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
        order = torch.Generator().manual_seed(int(seed))
        self.built[method] = model, optimizer, order
        return {"parameters": sum(weight.numel() for weight in model.parameters())}

    def step(self, method, count="1"):
        """Runs training steps on random rows."""
        model, optimizer, _ = self.built[method]
        model.train()
        start = time.perf_counter()
        for _ in range(int(count)):
            loss = self._train(model, optimizer, *self._next())
        return {"seconds": time.perf_counter() - start, "loss": loss}

    def predict(self, method, count="1"):
        """Scores random rows."""
        model = self.built[method][0].eval()
        start = time.perf_counter()
        with torch.inference_mode():
            for _ in range(int(count)):
                model(self._next()[0])
        return {"seconds": time.perf_counter() - start}

    def epoch(self, method, path, steps=None):
        """Trains on the rows of a file in a new order."""
        model, optimizer, order = self.built[method]
        item_ids, target = self._rows(path)
        model.train()
        start = time.perf_counter()
        chunks = torch.randperm(len(target), generator=order)
        chunks = chunks.split(self.args.batch_size)[: int(steps) if steps else None]
        total = sum(
            len(rows) * self._train(model, optimizer, item_ids[rows], target[rows])
            for rows in chunks
        )
        return {
            "seconds": time.perf_counter() - start,
            "loss": total / sum(map(len, chunks)),
            "steps": len(chunks),
        }

    def evaluate(self, method, path, scoring="all"):
        """Ranks all ids for the rows of a file."""
        if scoring not in ("all", "without_repeats"):
            raise ValueError(
                "`scoring` must be all or without_repeats. "
                f"Received: scoring={scoring!r}."
            )
        model = self.built[method][0].eval()
        item_ids, target = self._rows(path)
        start = time.perf_counter()
        found, exclude = [], scoring == "without_repeats"
        with torch.inference_mode():
            for rows, wanted in zip(
                item_ids.split(self.args.batch_size),
                target.split(self.args.batch_size),
                strict=True,
            ):
                found.append(ranks(model(rows), rows, wanted, without_repeats=exclude))
        repeated = (item_ids == target.unsqueeze(1)).any(dim=1)
        metrics = ranking_metrics(torch.cat(found), repeated)
        return {"seconds": time.perf_counter() - start, **metrics}

    def versions(self):
        """Gives the version of what is raced."""
        return {"torch": torch.__version__}

    def _next(self):
        self.done += 1
        return self.batches[self.done % NUM_BATCHES]

    def _rows(self, path):
        if path not in self.files:
            with np.load(path) as arrays:
                rows = arrays["item_ids"], arrays["target"]
            self.files[path] = tuple(torch.tensor(x.astype("int64")) for x in rows)
        return self.files[path]

    @staticmethod
    def _train(model, optimizer, item_ids, target):
        optimizer.zero_grad()
        loss = cross_entropy(model(item_ids), target)
        loss.backward()
        optimizer.step()
        return loss.item()


def make_parser():
    """Makes the parser of the arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--encoder", choices=list(ENCODERS), default="sasrec")
    parser.add_argument("--num-ids", type=int, default=12102, help="with id 0")
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, help="default: what PyTorch takes")
    return parser


def main():
    """Parses the arguments and serves."""
    args = make_parser().parse_args()
    reply = open_reply()
    if args.threads:
        torch.set_num_threads(args.threads)
    serve(Runner(args).handlers(), reply)


if __name__ == "__main__":
    main()
