"""What the tests of the optimizers share: Keras' twins, steps by hand, small models."""

import keras
import numpy as np
import pytest
from helpers import BACKEND

from keras_recsys.layers import FullEmbedding
from keras_recsys.optimizers import LazyAdam, RowWiseAdagrad, SparseAdagrad, SparseFtrl

if BACKEND != "tensorflow":
    pytest.skip(
        "gradients of tables have rows on TensorFlow alone", allow_module_level=True
    )

ROWS, DIM = 9, 3
VOCAB = 1237  # a number that no other shape of the test models has


class DenseRowWiseAdagrad(keras.optimizers.Optimizer):
    """`RowWiseAdagrad` on the whole table, in float64 NumPy; eager alone."""

    def __init__(self, learning_rate, initial_accumulator_value=0.0, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.start = initial_accumulator_value

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.accumulators = [
            self.add_variable(
                variable.shape[:1],
                keras.initializers.Constant(self.start),
                name=f"{variable.path}_accumulator",
            )
            for variable in variables
        ]

    def update_step(self, gradient, variable, learning_rate):
        slot = self.accumulators[self._get_variable_index(variable)]
        weight, accumulator = row_wise_adagrad(
            variable.numpy(), gradient.numpy(), slot.numpy(), float(learning_rate)
        )
        variable.assign(weight)
        slot.assign(accumulator)


def row_wise_adagrad(weight, gradient, accumulator, learning_rate, epsilon=1e-8):
    """The formula of the docstring, one row at a time, in float64."""
    weight = np.array(weight, "float64")
    accumulator = np.array(accumulator, "float64")
    for row in range(len(weight)):
        g = np.asarray(gradient[row], "float64")
        accumulator[row] += np.mean(g**2)
        if g.any():
            weight[row] -= learning_rate * g / (np.sqrt(accumulator[row]) + epsilon)
    return weight, accumulator


# Ours, and the optimizer that must give the same numbers on the dense gradient.
TWINS = {
    "lazy_adam": (
        lambda **kw: LazyAdam(0.1, beta_1=0.8, beta_2=0.95, epsilon=0.01, **kw),
        lambda **kw: keras.optimizers.Adam(
            0.1, beta_1=0.8, beta_2=0.95, epsilon=0.01, **kw
        ),
    ),
    "amsgrad": (
        lambda **kw: LazyAdam(0.1, beta_2=0.5, epsilon=0.01, amsgrad=True, **kw),
        lambda **kw: keras.optimizers.Adam(
            0.1, beta_2=0.5, epsilon=0.01, amsgrad=True, **kw
        ),
    ),
    "row_wise_adagrad": (
        lambda **kw: RowWiseAdagrad(0.1, initial_accumulator_value=0.3, **kw),
        lambda **kw: DenseRowWiseAdagrad(0.1, initial_accumulator_value=0.3, **kw),
    ),
    "sparse_adagrad": (
        lambda **kw: SparseAdagrad(0.1, initial_accumulator_value=0.3, **kw),
        lambda **kw: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.3, **kw),
    ),
    "sparse_ftrl": (
        lambda **kw: SparseFtrl(0.3, l1=0.05, l2=0.02, beta=0.1, **kw),
        lambda **kw: keras.optimizers.Ftrl(
            0.3,
            l1_regularization_strength=0.05,
            l2_regularization_strength=0.02,
            beta=0.1,
            **kw,
        ),
    ),
}


def start(seed=0):
    """A table and a kernel, the same for one seed."""
    rng = np.random.default_rng(seed)
    return [
        keras.Variable(rng.normal(size=(ROWS, DIM)), name="table"),
        keras.Variable(rng.normal(size=(4, 2)), name="kernel"),
    ]


def gradients(batches, seed=1):
    """For each list of ids: values of the rows, ids and a gradient of the kernel."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.normal(size=(len(ids), DIM)).astype("float32"),
            np.array(ids, "int32"),
            rng.normal(size=(4, 2)).astype("float32"),
        )
        for ids in batches
    ]


def dense_sum(values, ids):
    """The gradient of the whole table."""
    out = np.zeros((ROWS, values.shape[-1]), "float32")
    np.add.at(out, ids, values)
    return out


def train(optimizer, steps, *, dense=False, jit_compile=None):
    """Applies gradients to the variables of `start`.

    Args:
        optimizer: The optimizer.
        steps: What `gradients` gives.
        dense: Whether the optimizer gets the gradient of the whole table.
        jit_compile: `None` for eager steps, or whether XLA compiles the step.

    Returns:
        Tuple of table, kernel and a dict from name to state.
    """
    import tensorflow as tf

    variables = start()
    optimizer.build(variables)

    def step(values, ids, kernel):
        rows = tf.IndexedSlices(values, ids, tf.constant([ROWS, DIM]))
        optimizer.apply([rows, kernel], variables)

    if jit_compile is not None:
        step = tf.function(step, jit_compile=jit_compile, reduce_retracing=True)
    for values, ids, kernel in steps:
        if dense:
            table = tf.constant(dense_sum(values, ids))
            optimizer.apply([table, tf.constant(kernel)], variables)
        else:
            step(tf.constant(values), tf.constant(ids), tf.constant(kernel))
    return *(v.numpy() for v in variables), state(optimizer)


def state(optimizer):
    """Dict from the name of a state of the optimizer to its value.

    The states of a row lie in one variable; here they have the names of Keras' twins.
    """
    values = {
        variable.path.split("/")[-1]: variable.numpy()
        for variable in optimizer.variables
    }
    for variable, packed in zip(
        getattr(optimizer, "_trainable_variables", []),
        getattr(optimizer, "_states", []),
        strict=False,
    ):
        together = values.pop(packed.path.split("/")[-1])
        axis = optimizer._slot_axis(variable)
        for i, name in enumerate(optimizer.slots()):
            part = together if axis is None else np.take(together, i, axis=axis)
            values[f"{variable.name}_{name}"] = part
    return values


def make_model(
    optimizer,
    *,
    embedding=FullEmbedding,
    vocab=20,
    trainable=True,
    jit_compile=False,
    **kwargs,
):
    """A compiled model of one embedding and one `Dense`; the same start each time."""
    keras.utils.set_random_seed(3)
    ids = keras.Input((2,), dtype="int32", name="ids")
    options = {"name": "table", "trainable": trainable}
    if embedding is not keras.layers.Embedding:
        options["out_of_range"] = "nan"  # XLA refuses "error"
    table = embedding(vocab, 4, **options)
    x = keras.layers.Flatten(name="flatten")(table(ids))
    y = keras.layers.Dense(1, dtype="float32", name="head")(x)
    model = keras.Model(ids, y, name="model")
    model.compile(optimizer, loss="mse", jit_compile=jit_compile, **kwargs)
    return model


def make_data(vocab=20, batches=3, seed=5):
    """Ids with duplicates and targets, batches of 8."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocab // 2, size=(8 * batches, 2)).astype("int32")
    return ids, rng.normal(size=(8 * batches, 1)).astype("float32")


def fit(model, epochs=1, data=None, **kwargs):
    """Trains in the order of the data and returns the weights."""
    x, y = data or make_data()
    model.fit(x, y, 8, epochs, shuffle=False, verbose=0, **kwargs)
    return model.get_weights()


def assert_close(got, want, **kwargs):
    """Compares two lists of arrays."""
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, **{"rtol": 1e-5, "atol": 1e-6, **kwargs})


def tensors_as_large_as(size, model, batch):
    """Names of the tensors of a training step that have a dimension of `size`.

    Args:
        size: Int.
        model: Compiled model whose optimizer has trained a batch.
        batch: Tuple of ids and targets.

    Returns:
        Sorted list of op names of the graph and of every graph inside it.
    """
    import tensorflow as tf

    step = tf.function(model.train_step)
    graph = step.get_concrete_function(batch).graph.as_graph_def(add_shapes=True)
    nodes = list(graph.node)
    for function in graph.library.function:
        nodes += function.node_def
    return sorted(
        node.name
        for node in nodes
        for shape in node.attr["_output_shapes"].list.shape
        if any(dim.size == size for dim in shape.dim)
    )
