"""Bilinear pair products against a loop over pairs, and FiBiNET against DeepCTR's.

    python benchmarks/bench_interaction.py [--quick] [--json OUT] [--case REGEX]

`bilinear_{type}_{build,step}[_jit]`: batch 1024, 39 fields, width 16. The peer is a
loop over pairs as DeepCTR builds it: the fields are separate tensors, the products of
the pairs are joined at the end. A step is the output, and from a fixed gradient of it
the gradients for the inputs and all weights; the output is returned, so that a compiler
cannot drop it. A build is the layer, its variables,
tracing and the first step. `_jit` compiles both sides with XLA, and
`bilinear_{type}_step_best` takes the better of the two modes of each side. Rows of
steps have `moved_bytes`, what any algorithm has to read and write at least (see that
function), and the bandwidth that this makes on each side.

`fibinet_{build,first_step,step,export}`: 26 categorical features of 1000 ids, width 16,
13 numeric features that join the input of the DNN, Adam, batch 1024. The peer is the
FiBiNET of DeepCTR in a process of its own; it waits for commands, so the two alternate.
Each side takes the fastest of its modes (`OUR_MODES`, `PEER_MODES`): that of the
fastest step for `step`, that of the fastest first step for the others; the row names
it. What the first use of TensorFlow in a process costs is paid before. Our export
checks what it wrote in a fresh process, DeepCTR's does not.

`over_limit_fibinet`: our training step over the matrix products of its own DNN, the
three that each dense layer needs, on each side in the better of the two modes.

The full run takes about an hour, most of it the builds of the peers: those cases stop
after `BUDGET` seconds and at least 3 runs, so `runs` is below 20 there; one build of
DeepCTR with its first step takes one and a half minutes. With `--json OUT` it goes on
where it was stopped. `--quick` drops what `suite.drops` lists, all XLA compilations of
the loop, 25 to 60 s each, and the race against DeepCTR, and gives a build 30 s and at
least 3 runs. What is left takes about three minutes on 2 cores.
"""

import contextlib
import functools
import gc
import io
import itertools
import os
import pathlib
import shutil
import statistics
import tempfile
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from harness import PeerMissing, Suite, clock
from peers import PeerProcess, require_peer

BATCH = 1024
BILINEAR_FIELDS = 39
DIM = 16
TYPES = ("all", "each", "interaction")
CATEGORICAL, NUMERIC, VOCAB = 26, 13, 1000
HIDDEN = (256, 128, 64)
BUDGET = 60

OUR_MODES = {
    "no XLA": {"jit": False, "out_of_range": "error"},
    "XLA, out_of_range='nan'": {"jit": True, "out_of_range": "nan"},
}
PEER_MODES = {
    "no XLA, legacy Adam": ("--optimizer", "legacy_adam"),
    "no XLA": (),
    "XLA": ("--jit",),
}

suite = Suite(
    "interaction",
    drops={
        "bilinear_*_jit": "the loop takes 25 to 60 s to compile",
        "bilinear_*_step_best": "the loop takes 25 to 60 s to compile",
        "fibinet_*": "DeepCTR takes minutes to build",
    },
)

# --- Bilinear interaction -----------------------------------------------------------


def num_pairs(num_fields):
    """How many pairs some fields make."""
    return num_fields * (num_fields - 1) // 2


def num_matrices(bilinear_type, num_fields):
    """How many matrices a type has."""
    counts = {"all": 1, "each": num_fields - 1, "interaction": num_pairs(num_fields)}
    return counts[bilinear_type]


def moved_bytes(bilinear_type, batch=BATCH, num_fields=BILINEAR_FIELDS, dim=DIM):
    """Bytes that a step has to move at least.

    The output is written once and its gradient read once, the inputs and the matrices
    are read once and their gradients written once.
    """
    output = batch * num_pairs(num_fields) * dim
    inputs = batch * num_fields * dim
    matrices = num_matrices(bilinear_type, num_fields) * dim**2
    return 4 * 2 * (output + inputs + matrices)


def pair_loop(fields, matrices, bilinear_type):
    """The peer: products of pairs one by one, as DeepCTR's layer makes them.

    Args:
        fields: List of tensors, `(batch_size, 1, dim)`.
        matrices: List of `(dim, dim)` variables, as many as the type has.
        bilinear_type: `"all"`, `"each"` or `"interaction"`.
    """
    pairs = list(itertools.combinations(range(len(fields)), 2))
    if bilinear_type == "interaction":
        left = [
            tf.tensordot(fields[i], w, 1)
            for (i, _), w in zip(pairs, matrices, strict=True)
        ]
    else:
        if bilinear_type == "all":
            matrices = matrices * (len(fields) - 1)
        by_field = [
            tf.tensordot(v, w, 1) for v, w in zip(fields[:-1], matrices, strict=True)
        ]
        left = [by_field[i] for i, _ in pairs]
    products = [x * fields[j] for x, (_, j) in zip(left, pairs, strict=True)]
    return tf.concat(products, axis=1)


class Bilinear:
    """Inputs of one size, and training steps of both sides on them."""

    def __init__(self, bilinear_type, batch=BATCH, num_fields=BILINEAR_FIELDS):
        rng = np.random.default_rng(0)
        count = num_matrices(bilinear_type, num_fields)
        self.type = bilinear_type
        self.x = tf.constant(rng.normal(size=(batch, num_fields, DIM)), "float32")
        self.fields = tf.split(self.x, num_fields, axis=1)
        shape = (batch, num_pairs(num_fields), DIM)
        self.upstream = tf.constant(rng.normal(size=shape), "float32")
        self.kernel = rng.normal(0, DIM**-0.5, size=(count, DIM, DIM)).astype("float32")

    def ours(self, jit):
        """Makes our layer and a function that runs one step."""
        from keras_recsys.layers import BilinearInteraction

        layer = BilinearInteraction(self.type)
        layer.build(self.x.shape)
        layer.set_weights([self.kernel.reshape(layer.kernel.shape)])
        weights = [w.value for w in layer.trainable_weights]
        return self._step(lambda fields: layer(fields[0]), [self.x], weights, jit)

    def loop(self, jit):
        """Makes the variables of the peer and a function that runs one step."""
        weights = [tf.Variable(matrix) for matrix in self.kernel]
        return self._step(
            lambda fields: pair_loop(fields, weights, self.type),
            self.fields,
            weights,
            jit,
        )

    def _step(self, forward, inputs, weights, jit):
        @tf.function(jit_compile=jit)
        def step(inputs, upstream):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                output = forward(inputs)
            sources = [*inputs, *weights]
            return output, tape.gradient(output, sources, output_gradients=upstream)

        def run():
            output, gradients = step(inputs, self.upstream)
            gradients[-1].numpy()  # waits for the device
            return output, gradients

        return run

    def check(self, ours, loop):
        """Makes sure that both sides compute the same, gradients included."""
        output, (dx, *dw) = ours()
        want, gradients = loop()
        fields = len(self.fields)
        close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-2)
        close(output, want)
        close(dx, np.concatenate(gradients[:fields], axis=1))
        close(np.reshape(dw[0], self.kernel.shape), np.stack(gradients[fields:]))


def collected(timed):
    """Frees the graphs of earlier builds outside of the time of `timed`."""

    def call():
        gc.collect()
        return timed()

    return call


def bilinear_build(run, bilinear_type, jit):
    """Times layer, variables, tracing and the first step of both sides."""
    small = Bilinear(bilinear_type, batch=2, num_fields=3)
    small.ours(jit)()
    small.loop(jit)()
    setup = Bilinear(bilinear_type)
    times = run.interleave(
        {
            "ours": collected(clock(lambda: setup.ours(jit)())),
            "loop": collected(clock(lambda: setup.loop(jit)())),
        },
        warmup=0,
        budget=30 if run.quick else BUDGET,
    )
    return run.row(
        f"bilinear_{bilinear_type}_build{'_jit' if jit else ''}",
        times["ours"],
        "ms",
        "per-pair loop",
        times["loop"],
        note="both with XLA" if jit else "both without XLA",
    )


def bilinear_steps(run, bilinear_type):
    """Times the training steps of both sides, in all modes wanted, in one go."""
    case = f"bilinear_{bilinear_type}_step"
    best = run.wants(f"{case}_best")
    modes = [False] if best or run.wants(case) else []
    modes += [True] if best or run.wants(f"{case}_jit") else []
    setup = Bilinear(bilinear_type)
    functions = {}
    for jit in modes:
        ours, loop = setup.ours(jit), setup.loop(jit)
        setup.check(ours, loop)
        functions |= {("ours", jit): clock(ours), ("loop", jit): clock(loop)}
    times = run.interleave(functions)

    moved = moved_bytes(bilinear_type)

    def row(name, our_mode, loop_mode, note):
        ours, loop = times["ours", our_mode], times["loop", loop_mode]
        return run.row(
            name,
            ours,
            "ms",
            "per-pair loop",
            loop,
            note=note,
            moved_bytes=moved,
            gb_per_s=moved / statistics.median(ours) / 1e9,
            peer_gb_per_s=moved / statistics.median(loop) / 1e9,
        )

    words = {False: "without XLA", True: "with XLA"}
    for jit in modes:
        yield row(case + "_jit" * jit, jit, jit, f"both {words[jit]}")
    if best:
        mode = {
            side: min(modes, key=lambda jit: statistics.median(times[side, jit]))
            for side in ("ours", "loop")
        }
        note = f"ours {words[mode['ours']]}, loop {words[mode['loop']]}"
        yield row(f"{case}_best", mode["ours"], mode["loop"], note)


def register_bilinear(bilinear_type):
    """Registers the cases of one type."""
    case = f"bilinear_{bilinear_type}"

    @suite.cases(f"{case}_build")
    def build(run):
        yield bilinear_build(run, bilinear_type, jit=False)

    @suite.cases(f"{case}_step", f"{case}_step_jit", f"{case}_step_best")
    def steps(run):
        yield from bilinear_steps(run, bilinear_type)

    @suite.cases(f"{case}_build_jit")
    def build_jit(run):
        yield bilinear_build(run, bilinear_type, jit=True)


for _type in TYPES:
    register_bilinear(_type)

# --- FiBiNET ------------------------------------------------------------------------


def click_data(rows=8 * BATCH, categorical=CATEGORICAL, numeric=NUMERIC):
    """Makes random clicks: the arrays that `runners/deepctr_ctr.py` reads."""
    rng = np.random.default_rng(0)
    return {
        "ids": rng.integers(0, VOCAB, (rows, categorical), dtype="int32"),
        "numbers": rng.normal(size=(rows, numeric)).astype("float32"),
        "labels": (rng.random(rows) < 0.25).astype("float32"),
        "vocab_sizes": np.full(categorical, VOCAB, "int64"),
    }


def our_fibinet(vocab_sizes, num_numeric, *, jit, out_of_range):
    """Builds and compiles our model; what it is called and takes is said only here."""
    from keras_recsys.features import CategoricalFeature, NumericFeature
    from keras_recsys.models import build_fibinet

    features = [
        CategoricalFeature(f"c{i}", int(size), out_of_range=out_of_range)
        for i, size in enumerate(vocab_sizes)
    ]
    features += [NumericFeature(f"n{i}") for i in range(num_numeric)]
    model = build_fibinet(
        features,
        embedding_dim=DIM,
        bilinear_type="interaction",
        hidden_units=HIDDEN,
        numeric_inputs="dnn",
    )
    model.compile(
        keras.optimizers.Adam(),
        loss={"probability": "binary_crossentropy"},
        jit_compile=jit,
    )
    return model


class OurFibinet:
    """Our side of the race, with the commands of `runners/deepctr_ctr.py`."""

    def __init__(self, data, jit=False, out_of_range="error", batch=BATCH):
        self.data = data
        self.mode = {"jit": jit, "out_of_range": out_of_range}
        self.batch = batch
        self.model = self.step_function = self.iterator = None

    def warm(self):
        """Builds and trains a model of two fields."""
        small = {key: value[:8] for key, value in self.data.items()}
        small["ids"], small["numbers"] = small["ids"][:, :2], small["numbers"][:, :1]
        small["vocab_sizes"] = small["vocab_sizes"][:2]
        other = OurFibinet(small, batch=8, **self.mode)
        other.build()
        other.first_step()

    def build(self):
        """Makes and compiles the model."""
        self.model = self.step_function = self.iterator = None
        keras.backend.clear_session()
        gc.collect()
        start = time.perf_counter()
        numeric = self.data["numbers"].shape[1]
        self.model = our_fibinet(self.data["vocab_sizes"], numeric, **self.mode)
        return time.perf_counter() - start

    def first_step(self):
        """Makes the function that `Model.fit` calls, and runs its first step."""
        self.iterator = iter(self._batches())
        start = time.perf_counter()
        self.step_function = self.model.make_train_function()
        if self.step_function is None:  # Keras keeps it on the model
            self.step_function = self.model.train_function
        self.step()
        return time.perf_counter() - start

    def step(self):
        """Runs one training step."""
        start = time.perf_counter()
        float(self.step_function(self.iterator)["loss"])
        return time.perf_counter() - start

    def export(self, path):
        """Writes a SavedModel and checks it, as `keras_recsys.serving.export` does."""
        from keras_recsys.serving import export

        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):  # it prints a client
            export(self.model, path)
        return time.perf_counter() - start

    def parameters(self):
        """Counts the trainable weights."""
        return int(sum(np.prod(w.shape) for w in self.model.trainable_weights))

    def _batches(self):
        """The same pipeline as the runner's: batches cut before, repeated."""
        count = len(self.data["labels"]) // self.batch
        rows = count * self.batch
        inputs = {}
        for letter, key in (("c", "ids"), ("n", "numbers")):
            for i, column in enumerate(self.data[key][:rows].T):
                inputs[f"{letter}{i}"] = column.reshape(count, self.batch)
        labels = self.data["labels"][:rows].reshape(count, self.batch, 1)
        batches = (inputs, {"probability": labels})
        return tf.data.Dataset.from_tensor_slices(batches).repeat()


class PeerFibinet:
    """DeepCTR's side, the same commands sent to a process of its own."""

    def __init__(self, data_path, *arguments):
        self.process = PeerProcess("deepctr", "deepctr_ctr.py", data_path, *arguments)
        self.step = self.process.seconds("step 1")
        self.built = None

    def warm(self):
        """Builds and trains a model of two fields."""
        self.process.ask("warm")

    def build(self):
        """Makes and compiles the model."""
        self.built = self.process.ask("build")
        return self.built["seconds"]

    def first_step(self):
        """Makes the function that `Model.fit` calls, and runs its first step."""
        return self.process.ask("first_step", timeout=300)["seconds"]

    def export(self, path):
        """Writes a SavedModel with `Model.export`."""
        return self.process.ask(f"export {path}")["seconds"]

    def parameters(self):
        """Counts the trainable weights."""
        return self.built["parameters"]

    def versions(self):
        """Gives the versions in the environment of DeepCTR."""
        names = self.process.ask("versions")
        return {key: names[key] for key in ("deepctr", "tf_keras")}


class Modes:
    """One side in all its modes, each built and trained for some steps.

    Args:
        side: Name of the side, for what is printed.
        makers: Dict from the name of a mode to a function that makes the model. A mode
            of a peer that does not run is said and left out.

    Raises:
        PeerMissing: If no mode runs.
    """

    def __init__(self, side, makers):
        self.models, self.times = {}, {}
        for name, make in makers.items():
            try:
                model = make()
                model.warm()
                model.build()
                first = model.first_step()
                step = statistics.median([model.step() for _ in range(5)])
            except PeerMissing as missing:
                print(f"{side}, {name}: {missing}")
                problem = missing
                continue
            print(f"{side}, {name}: first step {first:.2f} s, step {step:.4f} s")
            self.models[name] = model
            self.times[name] = {"first_step": first, "step": step}
        if not self.models:
            raise problem

    def best(self, kind):
        """Gives the name and the model of the mode with the fastest `kind`."""
        name = min(self.times, key=lambda name: self.times[name][kind])
        return name, self.models[name]


@functools.cache
def our_modes(quick):
    """Makes our side, for `--quick` without the mode that takes a compilation."""
    data = click_data()
    makers = {
        name: functools.partial(OurFibinet, data, **mode)
        for name, mode in OUR_MODES.items()
        if not (quick and mode["jit"])
    }
    return Modes("ours", makers)


@contextlib.contextmanager
def peer_modes(data_path):
    """Makes DeepCTR's side, one process a mode, and ends them."""
    require_peer("deepctr")
    with contextlib.ExitStack() as stack:

        def make(arguments):
            peer = PeerFibinet(data_path, *arguments)
            stack.callback(peer.process.close)
            return peer

        makers = {
            name: functools.partial(make, arguments)
            for name, arguments in PEER_MODES.items()
        }
        yield Modes("DeepCTR", makers)


def dnn_products(jit, num_inputs):
    """Makes the matrix products of the DNN alone, forward and backward.

    Args:
        jit: Whether XLA compiles them.
        num_inputs: Width of the input of the DNN.
    """
    rng = np.random.default_rng(0)

    def normal(*shape):
        return tf.constant(rng.normal(size=shape), "float32")

    widths = (num_inputs, *HIDDEN, 1)
    layers = [
        (normal(BATCH, before), normal(before, after), normal(BATCH, after))
        for before, after in itertools.pairwise(widths)
    ]

    @tf.function(jit_compile=jit)
    def products(layers):
        results = []
        for x, w, g in layers:
            results.append(tf.matmul(x, w))
            results.append(tf.matmul(g, w, transpose_b=True))
            results.append(tf.matmul(x, g, transpose_a=True))
        return results

    return lambda: products(layers)[-1].numpy()


@suite.cases("over_limit_fibinet")
def over_limit(run):
    """Times our step and the products in turn."""
    mode, ours = our_modes(run.quick).best("step")
    width = 2 * num_pairs(CATEGORICAL) * DIM + NUMERIC
    times = run.interleave(
        {
            "ours": ours.step,
            "no XLA": clock(dnn_products(False, width)),
            "XLA": clock(dnn_products(True, width)),
        }
    )
    base = min("no XLA", "XLA", key=lambda name: statistics.median(times[name]))
    yield run.row(
        "over_limit_fibinet",
        times["ours"],
        "ms",
        "matrix products of its own DNN",
        times[base],
        note=f"ours {mode}, products {base}",
        parameters=ours.parameters(),
    )


@suite.cases("fibinet_step", "fibinet_build", "fibinet_first_step", "fibinet_export")
def fibinet(run):
    """Races both models; if DeepCTR is missing, ours runs alone and the rows say so."""
    sides = {"ours": our_modes(run.quick)}
    more = {}
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        np.savez(folder / "data.npz", **click_data())
        try:
            sides["DeepCTR"] = stack.enter_context(peer_modes(folder / "data.npz"))
        except PeerMissing as missing:
            more["reason"] = str(missing)

        def race(mode_of, kinds, **kwargs):
            """Alternates the sides, each in the mode that is best at `mode_of`."""
            functions, modes = {}, []
            for side, models in sides.items():
                mode, model = models.best(mode_of)
                modes.append(f"{side} {mode}")
                more["note"] = ", ".join(modes)
                if side == "ours":
                    more["parameters"] = model.parameters()
                else:
                    more["peer_parameters"] = model.parameters()
                    more["peer_versions"] = model.versions()
                for kind in kinds:
                    function = getattr(model, kind)
                    if kind == "export":
                        function = fresh_export(function, folder / side)
                    functions[side, kind] = function
            return run.interleave(functions, **kwargs)

        def row(kind, unit, times, **kwargs):
            return run.row(
                f"fibinet_{kind}",
                times["ours", kind],
                unit,
                "DeepCTR",
                times.get(("DeepCTR", kind)),
                **{**more, **kwargs},
            )

        if run.wants("fibinet_step"):
            times = race("step", ["step"])
            yield row("step", "rows/s", times, amount=BATCH)
        if run.wants("fibinet_build", "fibinet_first_step"):
            kinds = ["build", "first_step"]
            times = race("first_step", kinds, warmup=0, budget=2 * BUDGET)
            yield row("build", "s", times)
            yield row("first_step", "s", times)
        if run.wants("fibinet_export"):
            times = race("first_step", ["export"], warmup=0, budget=BUDGET)
            note = f"{more['note']}; ours checks the file in a fresh process too"
            yield row("export", "s", times, note=note)


def fresh_export(export, path):
    """Makes a function that exports to a folder, which is removed before."""

    def call():
        shutil.rmtree(path, ignore_errors=True)
        return export(str(path))

    return call


if __name__ == "__main__":
    suite.main()
