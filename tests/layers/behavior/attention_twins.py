"""Plain float64 twins of the attention layers, item by item and without factoring."""

import numpy as np
from helpers import BACKEND, array, output_and_gradients
from twins import DTYPE, TOLERANCE, assert_near

WEIGHTINGS = [
    ("sigmoid", None),
    ("sigmoid", "sum"),
    ("sigmoid", "sqrt_len"),
    ("softmax", None),
    ("linear", None),
    ("linear", "sqrt_len"),
]


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def weigh(scores, activation, normalize):
    """Weights of the real items of one history."""
    if activation == "softmax":
        weights = np.exp(scores - scores.max())
        return weights / weights.sum()
    weights = sigmoid(scores) if activation == "sigmoid" else scores
    if normalize == "sum":
        return weights / weights.sum()
    return weights / len(scores) ** 0.5 if normalize == "sqrt_len" else weights


def attention_loop(value, mask, score, activation="sigmoid", normalize=None):
    """Pools each history by a function of a row and an item, padding left out.

    Returns:
        List of the sums and the weights.
    """
    mask = np.ones(value.shape[:2], bool) if mask is None else mask
    pooled, weights = np.zeros(value[:, 0].shape), np.zeros(value.shape[:2])
    for b, row in enumerate(mask):
        items = np.flatnonzero(row)
        if len(items):
            scores = np.array([score(b, value[b, j]) for j in items])
            weights[b, items] = weigh(scores, activation, normalize)
            pooled[b] = sum(weights[b, j] * value[b, j] for j in items)
    return [pooled, weights]


def dual_query_loop(query, memory, value, *weights, mask=None, **arguments):
    """`DualQueryAttention`, from its inputs and weights."""
    use_target = arguments.pop("use_target", True)
    use_subtraction = arguments.pop("use_subtraction", True)

    def score(b, k):
        v, m = query[b], memory[b]
        if not weights:
            return k @ (v + m if use_target else m) / len(k) ** 0.5
        alpha = []
        for x in (v, m) if use_target else (m,):
            alpha += [x - k if use_subtraction else x * k, x * k]
        kernel, bias, score_kernel, score_bias = weights
        hidden = sigmoid(np.concatenate(alpha) @ kernel + bias)
        return (hidden @ score_kernel + score_bias)[0]

    return attention_loop(value, mask, score, **arguments)


def target_loop(
    query, value, *weights, mask=None, interactions=None, act=sigmoid, **arguments
):
    """`TargetAttention`, from its inputs and weights."""
    layers = list(zip(weights[::2], weights[1::2], strict=True))
    interactions = interactions or ("query", "value", "difference", "product")

    def score(b, k):
        q = query[b]
        parts = {"query": q, "value": k, "difference": q - k, "product": q * k}
        x = np.concatenate([parts[name] for name in interactions])
        for kernel, bias in layers[:-1]:
            x = act(x @ kernel + bias)
        return (x @ layers[-1][0] + layers[-1][1])[0]

    return attention_loop(value, mask, score, **arguments)


def gru_step(x, state, kernel, recurrent, bias):
    """One step of a GRU with gates update, reset and candidate, for all rows."""
    z, r, c = np.split(kernel, 3, axis=1)
    uz, ur, uc = np.split(recurrent, 3, axis=1)
    after = bias.ndim == 2  # whether reset acts after the product
    bz, br, bc = np.split(bias[0] if after else bias, 3)
    dz, dr, dc = np.split(bias[1] if after else 0 * bias, 3)
    update = sigmoid(x @ z + bz + state @ uz + dz)
    reset = sigmoid(x @ r + br + state @ ur + dr)
    if after:
        candidate = np.tanh(x @ c + bc + reset * (state @ uc + dc))
    else:
        candidate = np.tanh(x @ c + bc + (reset * state) @ uc)
    return update * state + (1 - update) * candidate


def memory_loop(query, value, *weights, mask=None, num_passes=3, **arguments):
    """`IterativeMemory`: lists of memories and of weights, one a pass."""
    weights, gru = weights[:-3], weights[-3:]
    shared = len(weights) <= 4
    memory = query
    if not arguments.get("use_target", True):
        kept = np.ones(value.shape[:2], bool) if mask is None else mask
        memory = np.array([x[row].sum(0) for x, row in zip(value, kept, strict=True)])
        memory = memory / np.maximum(kept.sum(1, keepdims=True), 1)
    memories, scores = [], []
    for i in range(num_passes):
        own = weights if shared else weights[4 * i : 4 * i + 4]
        pooled, attention = dual_query_loop(
            query, memory, value, *own, mask=mask, **arguments
        )
        memory = gru_step(pooled, memory, *gru)
        memories.append(memory)
        scores.append(attention)
    return [np.stack(memories, 1), np.stack(scores, 1)]


def enhancement_loop(memory, query, *weights, num_steps=3):
    """`MemoryEnhancement`: transforms with or without a bias, then a GRU."""
    transforms, gru = list(weights[:-3]), weights[-3:]
    kernels = [w for w in transforms if w.ndim == 2]
    biases = [w for w in transforms if w.ndim == 1] or [0.0]
    for i in range(num_steps):
        transformed = memory @ kernels[i % len(kernels)] + biases[i % len(biases)]
        joined = np.concatenate([transformed, query], axis=1)
        memory = gru_step(joined, memory, *gru)
    return memory


def random_mask(rng, rows, length):
    """Any pattern: row 0 is all real, row 1 empty, row 2 has one item."""
    mask = rng.random((rows, length)) < 0.6
    mask[:3] = False
    mask[0] = True
    mask[2, length // 2] = True
    return mask


def check_directions(layer, inputs, twin, mask=None, *, scale=0.7):
    """Compares both outputs, and gradients along a random direction of each source.

    Args:
        layer: A layer of dtype `DTYPE`, not built, that returns its weights.
        inputs: Tuple of arrays.
        twin: Callable from the inputs and the weights, float64, to the outputs.
        mask: Optional boolean array, `value_mask` of the call.
        scale: Of the random weights.
    """
    rng = np.random.default_rng(3)
    inputs = tuple(x.astype(DTYPE) for x in inputs)
    layer.build(*(x.shape for x in inputs))
    layer.set_weights([rng.normal(size=w.shape, scale=scale) for w in layer.weights])
    call = {"return_attention_scores": True}
    if mask is not None:
        call["value_mask"] = mask
    outputs, gradients = output_and_gradients(layer, inputs, call=call, wrt_inputs=True)
    sources = [np.array(x, "float64") for x in (*inputs, *layer.get_weights())]
    want = twin(*sources)
    outputs, want = (
        x if isinstance(x, (list, tuple)) else [x] for x in (outputs, want)
    )
    coefs = []
    for i, (a, b) in enumerate(zip(outputs, want, strict=True)):
        assert_near(a, b, TOLERANCE)
        coefs.append(np.random.default_rng(i).normal(size=b.shape))

    def loss(moved):
        outputs = twin(*moved)
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        return sum(np.sum(c * x) for c, x in zip(coefs, outputs, strict=True))

    step = 1e-5
    for i, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape)
        ends = []
        for sign in (1, -1):
            moved = list(sources)
            moved[i] = sources[i] + sign * step * direction
            ends.append(loss(moved))
        slope = (ends[0] - ends[1]) / (2 * step)
        size = np.abs(gradient * direction).sum()
        assert abs(np.sum(gradient * direction) - slope) <= TOLERANCE * max(1.0, size)
    if mask is not None:
        assert not gradients[len(inputs) - 1][~mask].any()


def graph_of_a_step(layer, shapes):
    """Operations of the TensorFlow graph of the outputs and all gradients.

    Args:
        layer: A layer, built.
        shapes: Shapes of the inputs; the mask follows the last one.
    """
    import tensorflow as tf

    specs = [tf.TensorSpec(shape, "float32") for shape in shapes]
    specs.append(tf.TensorSpec(shapes[-1][:2], "bool"))

    @tf.function(input_signature=specs)
    def step(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs[:-1])
            loss = tf.reduce_sum(layer(*inputs))
        return tape.gradient(loss, [*inputs[:-1], *(w.value for w in layer.weights)])

    return step.get_concrete_function().graph.get_operations()


def check_graph(layer, vectors, dim, expected):
    """No tensor of the history is wider than it must be, and length adds no node.

    Args:
        layer: A layer, not built.
        vectors: How many vectors are called with before the history.
        dim: Width of the history.
        expected: Width of the hidden layer, of which there must be a tensor.
    """
    sizes = []
    layer.build(*[(9, dim)] * vectors, (9, None, dim))
    for length in (120, 240):  # TensorFlow folds constants below a thousand numbers
        shapes = [(9, dim)] * vectors + [(9, length, dim)]
        operations = graph_of_a_step(layer, shapes)
        sizes.append(len(operations))
        found = [
            tuple(tensor.shape.as_list())
            for operation in operations
            for tensor in operation.outputs
            if tensor.shape.rank and length in tensor.shape.as_list()
        ]
        assert any(shape[-1] == expected for shape in found)
        widths = {shape[-1] for shape in found if shape[-1] not in (None, length)}
        assert not widths & {2 * dim, 3 * dim, 4 * dim}, widths
    assert sizes[0] == sizes[1]


def check_outer_products(layer, vectors):
    """No gradient of the history is a matrix product over an axis of one.

    On processors TensorFlow joins such a product of transposed weights with an addition
    to one kernel of oneDNN, which wrote past its output.
    """
    layer.build(*[(9, 4)] * vectors, (9, None, 4))
    shapes = [(9, 4)] * vectors + [(9, 70, 4)]
    products = [x for x in graph_of_a_step(layer, shapes) if "BatchMatMul" in x.type]
    assert products
    for product in products:
        left = product.inputs[0].shape
        assert not (product.get_attr("adj_x") and left[1] == 1 and left[2] == 70)


def check_any_shape(layer, vectors, dim, rng, xla=False):
    """Traced with unknown sizes it gives one answer, for 9 rows, 1 and none."""
    inputs = [rng.normal(size=(9, dim)) for _ in range(vectors)]
    inputs.append(rng.normal(size=(9, 70, dim)))
    inputs = [x.astype("float32") for x in inputs]
    mask = random_mask(rng, 9, 70)
    layer.build(*(x.shape for x in inputs))
    layer.set_weights([rng.normal(size=w.shape, scale=0.5) for w in layer.weights])
    eager, traced, cuts = layer, [layer], ((1, 70), (0, 70), (9, 1), (2, 5), (9, 0))
    if BACKEND == "tensorflow":
        import tensorflow as tf

        specs = [tf.TensorSpec((None, dim))] * vectors
        specs += [tf.TensorSpec((None, None, dim)), tf.TensorSpec((None, None), "bool")]
        traced = [
            tf.function(lambda *x: layer(*x), specs, jit_compile=jit)
            for jit in ((False, True) if xla else (False,))
        ]
    elif BACKEND == "jax":
        import jax

        eager, cuts = jax.jit(lambda *x: layer(*x)), cuts[:3]  # each compiled anew
        traced = [eager]
    whole = array(eager(*inputs, mask))
    for rows, length in ((9, 70), *cuts):
        part = [x[:rows] for x in inputs[:-1]] + [inputs[-1][:rows, :length]]
        part.append(mask[:rows, :length])
        want = whole[:rows] if length == 70 else array(eager(*part))
        for function in traced if (rows, length) == (1, 70) else traced[:1]:
            got = array(function(*part))
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
            assert np.isfinite(got).all()


def long_history(dtype, rng, length=16_384, dim=4):
    """A query and a history of numbers that float16 and bfloat16 hold exactly."""
    query = np.round(rng.normal(size=(1, dim)) * 16) / 16
    value = np.round((1 + 0.25 * rng.normal(size=(1, length, dim))) * 32) / 32
    return query.astype(dtype), value.astype(dtype)
