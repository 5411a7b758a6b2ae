"""The models, heads and calls that `bench_softmax` times."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

BATCH, LENGTH, DIM = 128, 50, 64
THREADS = 2

# The class of a head, its arguments, and whether it reads multiple input states.
HEADS = {
    "softmax": ("CPRSoftmax", {"context": False, "pointer": False, "rerank": ()}, 0),
    "c": ("CPRSoftmax", {"pointer": False, "rerank": ()}, 0),
    "cp": ("CPRSoftmax", {"rerank": ()}, 0),
    "cpr100": ("CPRSoftmax", {}, 0),
    "cpr100_mi": ("CPRSoftmax", {}, 1),
    "cpr3_mi": ("CPRSoftmax", {"rerank": (20, 100, 500)}, 1),
    "mos_max": ("MixtureOfSoftmaxes", {"mode": "max"}, 0),
    "mos_dynamic": ("MixtureOfSoftmaxes", {}, 0),
}

# What `runners/cpr_torch.py` calls them.
PEER_METHODS = {
    "softmax": "softmax",
    "c": "c",
    "cp": "cp",
    "cpr100": "cpr:100",
    "cpr100_mi": "cpr:100+mi",
    "cpr3_mi": "cpr:20,100,500+mi",
    "mos_max": "mos:max",
    "mos_dynamic": "mos:dynamic",
}


def limit_threads():
    """Gives TensorFlow as many threads as the peer has; call it before the first op."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)


def make_head(name):
    """The layer of a head, and whether it reads multiple input states."""
    from keras_recsys import layers

    kind, settings, multi_input = HEADS[name]
    return getattr(layers, kind)(**settings), bool(multi_input)


def make_model(name, num_items, encoder="sasrec", **settings):
    """A model with the head of a name, not compiled."""
    from keras_recsys import models

    if name == "repeatnet":
        return models.build_repeatnet(num_items, **settings)
    head, multi_input = make_head(name)
    build = getattr(models, f"build_{encoder}")
    return build(num_items, head=head, multi_input=multi_input, **settings)


def random_rows(num_items, batch_size=BATCH, length=LENGTH, every_step=False):
    """Rows without padding, and their targets."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    ids = rng.integers(1, num_items + 1, (batch_size, length)).astype("int32")
    shape = (batch_size, length) if every_step else (batch_size,)
    targets = rng.integers(1, num_items + 1, shape).astype("int32")
    return {"item_ids": tf.constant(ids)}, tf.constant(targets)


def train_calls(name, num_items, encoder="sasrec", batch=None):
    """A whole training step with Adam, in the graph and in XLA, on one model."""
    import tensorflow as tf

    batch = random_rows(num_items) if batch is None else batch
    model = make_model(name, num_items, encoder)
    model.compile(optimizer="adam", jit_compile=False)
    model.optimizer.build(model.trainable_variables)

    def call(xla):
        step = tf.function(model.train_step, jit_compile=xla)
        return lambda: step(batch)["loss"].numpy()

    return {"graph": call(False), "XLA": call(True)}


def score_calls(name, num_items, encoder="sasrec"):
    """The logits of all items, in the graph and in XLA."""
    import tensorflow as tf

    inputs, _ = random_rows(num_items)
    model = make_model(name, num_items, encoder)

    def call(xla):
        score = tf.function(
            lambda inputs: model(inputs, training=False)["logits"], jit_compile=xla
        )
        # One number is read, to wait for all of them.
        return lambda: score(inputs)[0, 0].numpy()

    return {"graph": call(False), "XLA": call(True)}


def head_calls(name, num_items):
    """Loss of a head and all its gradients, given the states of two layers."""
    import numpy as np
    import tensorflow as tf

    from keras_recsys import layers

    rng = np.random.default_rng(0)
    shapes = [(BATCH, LENGTH, DIM), (BATCH, LENGTH, DIM), (num_items + 1, DIM)]
    *states, table = (rng.normal(size=shape).astype("float32") for shape in shapes)
    states = [tf.constant(state) for state in states]
    table = tf.Variable(0.02 * table)
    inputs, targets = random_rows(num_items)
    ids = inputs["item_ids"]
    head, multi_input = make_head(name)
    join = layers.MultiInputState() if multi_input else (lambda states: states[-1])
    head.build(join(states).shape, ids.shape, table.shape)
    used = states if multi_input else states[-1:]
    weights = [weight.value for weight in head.trainable_variables]
    if multi_input:
        weights += [weight.value for weight in join.trainable_variables]

    def call(xla):
        @tf.function(jit_compile=xla)
        def step():
            with tf.GradientTape() as tape:
                tape.watch(used)
                loss = head.loss(join(states), ids, table, targets) / BATCH
            return [loss, *tape.gradient(loss, [*used, table, *weights])]

        return lambda: step()[0].numpy()

    return {"graph": call(False), "XLA": call(True)}


def prefix_calls(name, num_items, every_step):
    """Training steps with a target a row, or a target for each of its steps."""
    batch = random_rows(num_items, every_step=every_step)
    return train_calls(name, num_items, batch=batch)


# --- What fresh processes do --------------------------------------------------------


def run_steps(name, num_items, batch_size, length, xla=False):
    """Two training steps of a SASRec."""
    batch = random_rows(num_items, batch_size, length)
    call = train_calls(name, num_items, batch=batch)["XLA" if xla else "graph"]
    for _ in range(2):
        call()


def hold_weights(name, num_items, num_copies):
    """Holds tensors of the sizes of the weights of a SASRec, as weights and slots."""
    import tensorflow as tf

    model = make_model(name, num_items)
    held = [
        tf.ones(weight.shape)
        for weight in model.trainable_variables
        for _ in range(num_copies - 1)
    ]
    return len(held)
