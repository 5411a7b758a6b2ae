"""Serves Informer in plain PyTorch to the benchmarks; runs in `torch`.

    python informer_torch.py [--seq-len 96] [--label-len 48] [--pred-len 24]
        [--num-channels 7] [--hidden-dim 512] [--num-heads 8]
        [--intermediate-dim 2048] [--encoder-layers 2] [--decoder-layers 1]
        [--dropout 0.05] [--attention prob|full] [--batch-size 32]
        [--learning-rate 0.0001] [--threads N]

Commands, one a line (see `protocol.py` for the replies):

    build [SEED]     makes the model and its optimizer
    step [N]         runs N training steps on random windows of hourly rows
    predict [N]      forecasts N random batches
    versions         gives the version of torch

The model is written as a PyTorch user would from the equations. The sparse attention
is in the published form, which gathers the sampled keys of all queries as one tensor,
but keeps that out of the gradient. Full attention is the fused one of PyTorch. Dropout
acts on the attention weights of both.
"""

import argparse
import math
import re
import time

import numpy as np
import torch
from protocol import open_reply, serve
from torch.nn import functional

NUM_BATCHES = 8
FACTOR = 5
NUM_FEATURES = 4  # of the calendar of hourly rows
TABLES = {"month": 13, "day": 32, "weekday": 7, "hour": 24, "minute": 4}
"""Rows of the calendar tables, in the order of the columns."""
TOKEN_WIDTH = 3
LEAVES = {
    torch.nn.BatchNorm1d: {
        "weight": "gamma",
        "bias": "beta",
        "running_mean": "mean",
        "running_var": "var",
    },
    torch.nn.Conv1d: {"weight": "W", "bias": "b"},
    torch.nn.Embedding: {"weight": "table"},
    torch.nn.LayerNorm: {"weight": "gamma", "bias": "beta"},
    torch.nn.Linear: {"weight": "W", "bias": "b"},
}
"""What the golden files call a weight, by the kind of module that owns it."""


# --- Attention ----------------------------------------------------------------------


def sample_size(length, factor=FACTOR):
    """Gives how many keys are sampled, or queries selected, of a length."""
    return max(1, min(factor * math.ceil(math.log(length)), length))


def draw_keys(num_queries, num_keys, factor=FACTOR):
    """Draws the keys of each query, `(num_queries, sample_size)`, with repeats."""
    return torch.randint(num_keys, (num_queries, sample_size(num_keys, factor)))


def sparsity(query, key, key_index):
    """Gives the measure that ranks the queries, `(batch_size, heads, num_queries)`.

    Args:
        query: Tensor, `(batch_size, heads, num_queries, key_dim)`.
        key: Tensor, `(batch_size, heads, num_keys, key_dim)`.
        key_index: Integers, `(num_queries, num_samples)`.
    """
    sampled = key[:, :, key_index]  # (batch_size, heads, queries, samples, key_dim)
    scores = (sampled @ query.unsqueeze(-1)).squeeze(-1)
    return scores.amax(dim=-1) - scores.sum(dim=-1) / key.shape[2]


def prob_sparse_attention(
    query, key, value, key_index, *, factor=FACTOR, causal=False, scale=None, dropout=0
):
    """Attends with the queries that the sampled keys tell apart; the rest is lazy.

    Args:
        query: Tensor, `(batch_size, num_queries, heads, key_dim)`.
        key: Tensor, `(batch_size, num_keys, heads, key_dim)`.
        value: Tensor, `(batch_size, num_keys, heads, value_dim)`.
        key_index: Integers, `(num_queries, num_samples)`.
        factor: Sampling factor. Defaults to `5`.
        causal: Whether keys behind a query are hidden, and lazy queries get the running
            sum of the values and not their mean. Defaults to `False`.
        scale: Factor of the scores. Defaults to `1 / sqrt(key_dim)`.
        dropout: Rate of the dropout on the weights. Defaults to `0`.

    Returns:
        Tensor, `(batch_size, num_queries, heads, value_dim)`.
    """
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    num_queries, width = query.shape[2:]
    with torch.no_grad():
        measure = sparsity(query, key, key_index)
        top = measure.topk(sample_size(num_queries, factor), sorted=False).indices
    rows = top.unsqueeze(-1)
    chosen = query.gather(2, rows.expand(-1, -1, -1, width))
    scores = chosen @ key.transpose(-1, -2) * (scale or width**-0.5)
    if causal:
        future = torch.arange(key.shape[2], device=top.device) > rows
        scores = scores.masked_fill(future, -math.inf)
        lazy = value.cumsum(dim=2)
    else:
        lazy = value.mean(dim=2, keepdim=True).expand(-1, -1, num_queries, -1)
    weights = functional.dropout(scores.softmax(dim=-1), dropout)
    rows = rows.expand(-1, -1, -1, value.shape[-1])
    return lazy.scatter(2, rows, weights @ value).transpose(1, 2)


def full_attention(query, key, value, *, causal=False, scale=None, dropout=0):
    """Attends with all queries; arguments as in `prob_sparse_attention`."""
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, scale=scale, dropout_p=dropout
    ).transpose(1, 2)


class Attention(torch.nn.Module):
    """Multi-head attention, sparse or full.

    Args:
        width: Width of the states.
        num_heads: Number of heads.
        sparse: Whether the attention is sparse. Defaults to `False`.
        causal: See `prob_sparse_attention`. Defaults to `False`.
        mix: Whether the context is read head by head. Defaults to `False`.
        factor: Sampling factor. Defaults to `5`.
        dropout: Rate of the dropout on the weights. Defaults to `0.0`.
    """

    def __init__(
        self,
        width,
        num_heads,
        *,
        sparse=False,
        causal=False,
        mix=False,
        factor=FACTOR,
        dropout=0.0,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.sparse = sparse
        self.causal = causal
        self.mix = mix
        self.factor = factor
        self.dropout = dropout
        self.q = torch.nn.Linear(width, width)
        self.k = torch.nn.Linear(width, width)
        self.v = torch.nn.Linear(width, width)
        self.o = torch.nn.Linear(width, width)

    def forward(self, x, memory, draw):
        """Gives the new states; `draw` makes a sample of keys."""
        heads = self._split(self.q(x)), self._split(self.k(memory))
        heads = *heads, self._split(self.v(memory))
        options = {
            "causal": self.causal,
            "dropout": self.dropout if self.training else 0.0,
        }
        if self.sparse:
            index = draw(x.shape[1], memory.shape[1], self.factor)
            context = prob_sparse_attention(
                *heads, index, factor=self.factor, **options
            )
        else:
            context = full_attention(*heads, **options)
        if self.mix:
            context = context.transpose(1, 2)
        return self.o(context.reshape(x.shape))

    def _split(self, x):
        return x.unflatten(-1, (self.num_heads, -1))


# --- Encoder and decoder ------------------------------------------------------------


class Block(torch.nn.Module):
    """Attention and a feed-forward part, each normalized after the sum.

    Args:
        width: Width of the states.
        inner: Inner width of the feed-forward part.
        num_norms: Number of layer norms.
        activation: `"gelu"` or `"relu"`.
        dropout: Rate of all dropout.
    """

    def __init__(self, width, inner, num_norms, activation, dropout):
        super().__init__()
        self.activation = getattr(functional, activation)
        self.ffn1 = torch.nn.Linear(width, inner)
        self.ffn2 = torch.nn.Linear(inner, width)
        for i in range(1, num_norms + 1):
            self.add_module(f"ln{i}", torch.nn.LayerNorm(width, eps=1e-5))
        self.dropout = torch.nn.Dropout(dropout)

    def feed_forward(self, x):
        """Gives what is added to `x` in the end."""
        hidden = self.dropout(self.activation(self.ffn1(x)))
        return self.dropout(self.ffn2(hidden))


class EncoderLayer(Block):
    """Self-attention over all steps.

    Args:
        attention: Dict of the arguments of `Attention`.
        **block: The arguments of `Block`.
    """

    def __init__(self, attention, **block):
        super().__init__(num_norms=2, **block)
        self.attn = Attention(block["width"], **attention)

    def forward(self, x, draw):
        """Gives the new states; `draw` makes a sample of keys."""
        x = self.ln1(x + self.dropout(self.attn(x, x, draw)))
        return self.ln2(x + self.feed_forward(x))


class DecoderLayer(Block):
    """Causal self-attention, then full attention to the memory.

    Args:
        attention: Dict of the arguments of `Attention`.
        mix: Whether the self-attention is read head by head.
        **block: The arguments of `Block`.
    """

    def __init__(self, attention, mix, **block):
        super().__init__(num_norms=3, **block)
        self.self_attn = Attention(block["width"], **attention, causal=True, mix=mix)
        self.cross_attn = Attention(block["width"], **{**attention, "sparse": False})

    def forward(self, x, memory, draw):
        """Gives the new states; `draw` makes a sample of keys."""
        x = self.ln1(x + self.dropout(self.self_attn(x, x, draw)))
        x = self.ln2(x + self.dropout(self.cross_attn(x, memory, draw)))
        return self.ln3(x + self.feed_forward(x))


class Distill(torch.nn.Module):
    """Convolution, batch norm, ELU and a pool that halves the number of steps.

    Args:
        width: Width of the states.
    """

    def __init__(self, width):
        super().__init__()
        self.conv = make_convolution(width, width)
        self.bn = torch.nn.BatchNorm1d(width)

    def forward(self, x):
        """Gives the states of half as many steps."""
        x = functional.elu(self.bn(self.conv(x.transpose(1, 2))))
        return functional.max_pool1d(x, 3, stride=2, padding=1).transpose(1, 2)


class Encoder(torch.nn.Module):
    """Encoder layers with distilling between them.

    Args:
        num_layers: Number of encoder layers.
        distill: Whether to halve the number of steps between two layers.
        **layer: The arguments of `EncoderLayer`.
    """

    def __init__(self, num_layers, distill, **layer):
        super().__init__()
        width = layer["width"]
        self.layers = torch.nn.ModuleList(
            EncoderLayer(**layer) for _ in range(num_layers)
        )
        self.distils = torch.nn.ModuleList(
            Distill(width) if distill else torch.nn.Identity()
            for _ in range(num_layers - 1)
        )
        self.ln = torch.nn.LayerNorm(width, eps=1e-5)

    def forward(self, x, draw):
        """Gives the normalized states; `draw` makes a sample of keys."""
        for layer, distil in zip(self.layers, [None, *self.distils], strict=True):
            x = layer(x if distil is None else distil(x), draw)
        return self.ln(x)


class Decoder(torch.nn.Module):
    """Decoder layers.

    Args:
        num_layers: Number of decoder layers.
        **layer: The arguments of `DecoderLayer`.
    """

    def __init__(self, num_layers, **layer):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            DecoderLayer(**layer) for _ in range(num_layers)
        )
        self.ln = torch.nn.LayerNorm(layer["width"], eps=1e-5)

    def forward(self, x, memory, draw):
        """Gives the normalized states; `draw` makes a sample of keys."""
        for layer in self.layers:
            x = layer(x, memory, draw)
        return self.ln(x)


# --- Inputs -------------------------------------------------------------------------


def make_convolution(inputs, outputs):
    """Makes a convolution over three steps whose ends are joined."""
    return torch.nn.Conv1d(
        inputs, outputs, TOKEN_WIDTH, padding=1, padding_mode="circular"
    )


def sinusoids(num_rows, width):
    """Gives the table of sines and cosines, `(num_rows, width)`."""
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(num_rows, dtype=torch.float64).unsqueeze(1) * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()


class InputEmbedding(torch.nn.Module):
    """Sum of the embeddings of the values, the positions and the calendar.

    Args:
        num_channels: Number of channels of the values.
        width: Width of the states.
        max_len: Number of positions.
        embedding: `"timeF"`, `"fixed"` or `"learned"`.
        num_features: Number of columns of the calendar.
        dropout: Rate of the dropout on the sum.
    """

    def __init__(self, num_channels, width, max_len, embedding, num_features, dropout):
        super().__init__()
        self.token = make_convolution(num_channels, width)
        torch.nn.init.kaiming_normal_(self.token.weight, nonlinearity="relu")
        self.register_buffer("position", sinusoids(max_len, width), persistent=False)
        self.fields = list(TABLES)[:num_features] if embedding != "timeF" else []
        for field in self.fields:
            self.add_module(field, torch.nn.Embedding(TABLES[field], width))
            if embedding == "fixed":
                table = self.get_submodule(field).weight.requires_grad_(False)
                table.copy_(sinusoids(TABLES[field], width))
        if not self.fields:
            self.time = torch.nn.Linear(num_features, width)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, values, calendar):
        """Gives the states, `(batch_size, length, width)`."""
        x = self.token(values.transpose(1, 2)).transpose(1, 2)
        x = x + self.position[: values.shape[1]]
        for i, field in enumerate(self.fields):
            x = x + self.get_submodule(field)(calendar[..., i])
        return self.dropout(x if self.fields else x + self.time(calendar))


def decoder_inputs(values, calendar, label_len, pred_len):
    """Gives the values and the calendar that the decoder reads.

    Args:
        values: History, `(batch_size, seq_len, channels)`.
        calendar: That of history and horizon, `(batch_size, seq_len + pred_len,
            features)`.
        label_len: Number of last steps that the decoder sees.
        pred_len: Number of steps to forecast.
    """
    start = values[:, values.shape[1] - label_len :]
    return functional.pad(start, (0, 0, 0, pred_len)), calendar[
        :, calendar.shape[1] - label_len - pred_len :
    ]


# --- Model --------------------------------------------------------------------------


class Informer(torch.nn.Module):
    """Informer, or with a list of encoders the one with a stack of them.

    Args:
        num_channels: Number of channels of the values.
        num_outputs: Number of channels of the forecast.
        seq_len: Number of steps that the encoder reads.
        label_len: Number of them that the decoder reads.
        pred_len: Number of steps of the forecast.
        width: Width of the states. Defaults to `512`.
        num_heads: Number of heads. Defaults to `8`.
        inner: Inner width of the feed-forward parts. Defaults to `2048`.
        encoder_layers: Number of encoder layers; for a stack a list of them, whose
            encoder `j` reads the last `seq_len // 2**j` steps. Defaults to `2`.
        decoder_layers: Number of decoder layers. Defaults to `1`.
        attention: `"prob"` or `"full"`. Defaults to `"prob"`.
        factor: Sampling factor. Defaults to `5`.
        embedding: `"timeF"`, `"fixed"` or `"learned"`. Defaults to `"timeF"`.
        num_features: Number of columns of the calendar. Defaults to `4`.
        activation: `"gelu"` or `"relu"`. Defaults to `"gelu"`.
        distill: Whether to halve the number of steps between two encoder layers.
            Defaults to `True`.
        mix: See `DecoderLayer`. Defaults to `True`.
        dropout: Rate of all dropout. Defaults to `0.05`.
    """

    def __init__(
        self,
        num_channels,
        num_outputs,
        seq_len,
        label_len,
        pred_len,
        *,
        width=512,
        num_heads=8,
        inner=2048,
        encoder_layers=2,
        decoder_layers=1,
        attention="prob",
        factor=FACTOR,
        embedding="timeF",
        num_features=NUM_FEATURES,
        activation="gelu",
        distill=True,
        mix=True,
        dropout=0.05,
    ):
        super().__init__()
        self.pred_len = pred_len
        inputs = (embedding, num_features, dropout)
        self.enc_embed = InputEmbedding(num_channels, width, seq_len, *inputs)
        steps = label_len + pred_len
        self.dec_embed = InputEmbedding(num_channels, width, steps, *inputs)
        layer = {
            "attention": {
                "num_heads": num_heads,
                "sparse": attention == "prob",
                "factor": factor,
                "dropout": dropout,
            },
            "width": width,
            "inner": inner,
            "activation": activation,
            "dropout": dropout,
        }
        if isinstance(encoder_layers, int):
            sizes = {"enc": encoder_layers}
        else:
            sizes = {f"stack{j}": count for j, count in enumerate(encoder_layers)}
        self.encoders = torch.nn.ModuleDict(
            {name: Encoder(count, distill, **layer) for name, count in sizes.items()}
        )
        self.dec = Decoder(decoder_layers, mix=mix, **layer)
        self.out = torch.nn.Linear(width, num_outputs)

    def forward(self, values, calendar, start, horizon, key_indices=None):
        """Gives the forecast, `(batch_size, pred_len, num_outputs)`.

        Args:
            values: What the encoder reads, `(batch_size, seq_len, num_channels)`.
            calendar: Its calendar, `(batch_size, seq_len, num_features)`.
            start: What the decoder reads, `(batch_size, label_len + pred_len,
                num_channels)`.
            horizon: Its calendar.
            key_indices: Samples of keys for the calls of sparse attention in their
                order. Defaults to new ones.
        """
        draw = draw_keys
        if key_indices is not None:
            given = iter(key_indices)

            def draw(*sizes):
                return next(given)

        x = self.enc_embed(values, calendar)
        length = values.shape[1]
        memory = [
            encoder(x[:, length - length // 2**j :], draw)
            for j, encoder in enumerate(self.encoders.values())
        ]
        x = self.dec(self.dec_embed(start, horizon), torch.cat(memory, dim=1), draw)
        return self.out(x)[:, -self.pred_len :]


def golden_name(path):
    """Gives the name of a module in the golden files, from its path in the model."""
    path = re.sub(r"^encoders\.", "", path)
    path = re.sub(r"\b(self|cross)_attn\b", r"\1", path)
    return re.sub(r"\b(layer|distil)s\.(\d+)", r"\1\2", path)


def golden_weights(model):
    """Gives the weights, running statistics included, by their golden names.

    Args:
        model: An `Informer`.

    Returns:
        A dict from a name, such as `"enc.layer0.attn.q.W"`, to the tensor, whose shape
        lacks the window where the file has a convolution over one step.
    """
    found = {}
    for path, owner in model.named_modules():
        for leaf, name in LEAVES.get(type(owner), {}).items():
            found[f"{golden_name(path)}.{name}"] = getattr(owner, leaf)
    return found


def load(model, arrays):
    """Sets all weights of a model from the arrays of a golden file."""
    with torch.no_grad():
        for name, weight in golden_weights(model).items():
            weight.copy_(torch.tensor(arrays[f"w.{name}"]).reshape(weight.shape))


# --- Commands -----------------------------------------------------------------------


class Runner:
    """Holds the model, its optimizer and the data between commands.

    Args:
        args: What the parser returned.
    """

    commands = ("build", "step", "predict", "versions")

    def __init__(self, args):
        self.args = args
        self.model = self.optimizer = None
        self.done = 0
        rng = np.random.default_rng(0)
        sizes = NUM_BATCHES, args.batch_size
        values = rng.normal(
            size=(*sizes, args.seq_len + args.pred_len, args.num_channels)
        )
        calendar = rng.random((*sizes, args.seq_len + args.pred_len, NUM_FEATURES))
        values, calendar = (
            torch.tensor(x, dtype=torch.float32) for x in (values, calendar - 0.5)
        )
        self.batches = [
            (x[:, : args.seq_len], marks, x[:, args.seq_len :])
            for x, marks in zip(values, calendar, strict=True)
        ]

    def handlers(self):
        """Gives the dict from a command to its method, as `serve` takes it."""
        return {name: getattr(self, name) for name in self.commands}

    def build(self, seed="0"):
        """Makes the model and its optimizer."""
        args = self.args
        torch.manual_seed(int(seed))
        self.model = Informer(
            args.num_channels,
            args.num_channels,
            args.seq_len,
            args.label_len,
            args.pred_len,
            width=args.hidden_dim,
            num_heads=args.num_heads,
            inner=args.intermediate_dim,
            encoder_layers=args.encoder_layers,
            decoder_layers=args.decoder_layers,
            attention=args.attention,
            dropout=args.dropout,
        )
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=args.learning_rate, fused=True
        )
        return {"parameters": sum(x.numel() for x in self.model.parameters())}

    def step(self, count="1"):
        """Runs training steps on random windows."""
        self.model.train()
        start = time.perf_counter()
        for _ in range(int(count)):
            values, calendar, target = self._next()
            self.optimizer.zero_grad()
            loss = functional.mse_loss(self._forecast(values, calendar), target)
            loss.backward()
            self.optimizer.step()
            loss = loss.item()
        return {"seconds": time.perf_counter() - start, "loss": loss}

    def predict(self, count="1"):
        """Forecasts random windows."""
        self.model.eval()
        start = time.perf_counter()
        with torch.inference_mode():
            for _ in range(int(count)):
                self._forecast(*self._next()[:2])
        return {"seconds": time.perf_counter() - start}

    def versions(self):
        """Gives the version of what is raced."""
        return {"torch": torch.__version__}

    def _forecast(self, values, calendar):
        args = self.args
        inputs = decoder_inputs(values, calendar, args.label_len, args.pred_len)
        return self.model(values, calendar[:, : args.seq_len], *inputs)

    def _next(self):
        self.done += 1
        return self.batches[self.done % NUM_BATCHES]


def make_parser():
    """Makes the parser of the arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seq-len", type=int, default=96)
    parser.add_argument("--label-len", type=int, default=48)
    parser.add_argument("--pred-len", type=int, default=24)
    parser.add_argument("--num-channels", type=int, default=7)
    parser.add_argument("--hidden-dim", type=int, default=512)
    parser.add_argument("--num-heads", type=int, default=8)
    parser.add_argument("--intermediate-dim", type=int, default=2048)
    parser.add_argument("--encoder-layers", type=int, default=2)
    parser.add_argument("--decoder-layers", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--attention", choices=["prob", "full"], default="prob")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
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
