"""The contract that every layer and every model keeps, as checks."""

import inspect
import json

import keras
import numpy as np
from keras import ops

from keras_recsys.layers import FullEmbedding

BACKEND = keras.config.backend()
# JAX has no float64 by default; on torch Keras runs `mean` and `matmul` of float64
# tensors in float32.
FLOATS = ("float32", "float64") if BACKEND == "tensorflow" else ("float32",)
# JAX compiles each operation for each dtype.
HALF_POLICIES = ("mixed_float16", "mixed_bfloat16")[BACKEND == "jax" :]
# Models written by this test session, to be loaded by one fresh process at its end.
ARTIFACTS = []


def check_layer(make_layer, inputs, tmp_path, *, call=None, gradients=True):
    """Checks everything that holds for any layer.

    Args:
        make_layer: Callable that makes the layer, with arguments off their defaults.
        inputs: Array, or list of arrays, of at least two rows; or a tuple of arrays,
            the positional arguments of a call.
        tmp_path: Folder for the round trips.
        call: Optional dict of further call arguments.
        gradients: Whether the layer has weights to train.
    """
    call = call or {}
    rng = np.random.default_rng(7)
    layer = make_layer()
    _check_config(layer)

    layer(*_args(inputs), **call)
    randomize(layer, rng)
    output = array(layer(*_args(inputs), **call))
    assert np.isfinite(output).all()
    assert output.shape == layer.compute_output_shape(*map(_shapes, _args(inputs)))
    more = {key: _symbolic(value) for key, value in call.items()}
    symbolic = layer(*_args(_symbolic(inputs)), **more)
    assert (len(output), *symbolic.shape[1:]) == output.shape
    assert symbolic.shape[0] is None
    assert keras.backend.standardize_dtype(symbolic.dtype) == str(output.dtype)

    if BACKEND != "jax":  # where `predict` compiles, see `check_round_trips`
        one = {key: value[:1] for key, value in call.items()}
        first = array(layer(*_args(_rows(inputs, 1)), **one))
        np.testing.assert_allclose(first, output[:1], rtol=1e-5, atol=1e-6)
        compiled = array(_compiled(layer, call)(inputs))
        np.testing.assert_allclose(compiled, output, rtol=1e-5, atol=1e-6)

    if gradients:
        assert layer.trainable_variables
        check_gradients(layer, inputs, call)
    for policy in HALF_POLICIES:
        _check_half_precision(layer, inputs, policy, call)

    again = type(layer).from_config(layer.get_config())
    again(*_args(_symbolic(inputs)), **more)  # builds it, and reads nothing
    again.set_weights(layer.get_weights())
    got = array(again(*_args(inputs), **call))
    np.testing.assert_array_equal(got, output)
    x = _symbolic(inputs)
    symbolic = [*_args(x), *more.values()]
    arrays = [*_args(inputs), *call.values()]
    model = keras.Model(symbolic if len(symbolic) > 1 else x, layer(*_args(x), **more))
    check_round_trips(model, arrays if len(arrays) > 1 else inputs, tmp_path)


def check_head(make_head, tmp_path, *, table_matters=True):
    """Checks everything that holds for any layer that scores the next item.

    It ends a model here whose table is that of a lookup. What `losses` gives for every
    step is held against the logits of every prefix, gradients included.

    Args:
        make_head: Callable that makes the layer, with arguments off their defaults. It
            takes further ones.
        tmp_path: Folder for the round trips.
        table_matters: Whether scores are made with the table.
    """
    rng = np.random.default_rng(7)
    ids = np.array([[3, 5, 3, 0, 0], [0, 1, 6, 2, 6], [4, 0, 0, 1, 0]], "int32")
    if BACKEND == "jax":  # which compiles each step of each prefix
        ids = ids[:, :3]
    states = rng.normal(size=(*ids.shape, 4)).astype("float32")
    head = make_head()
    _check_config(head)
    config = {k: v for k, v in head.get_config().items() if k != "dtype"}
    assert head.dtype == type(head).from_config(config).dtype == "float32"

    model = _model_of(head)
    randomize(model, rng)
    inputs = [states, ids]
    output = array(model(inputs))
    assert np.isfinite(output).all()
    assert (output[:, 0] < -1e6).all()
    table = model.layers[-2].embeddings
    shapes = states.shape, ids.shape, tuple(table.shape)
    assert output.shape == head.compute_output_shape(*shapes)
    assert model.output.shape == (None, output.shape[1])
    symbolic = _model_of(make_head(), return_user_vector=True).output[1]
    if BACKEND != "jax":
        eager, vector = head(states, ids, array(table), return_user_vector=True)
        np.testing.assert_allclose(array(eager), output, rtol=1e-5, atol=1e-6)
        assert symbolic.shape[1:] == tuple(vector.shape)[1:]
        first = array(model(_rows(inputs, 1)))
        np.testing.assert_allclose(first, output[:1], rtol=1e-5, atol=1e-6)
        compiled = array(_compiled(model, {})(inputs))
        np.testing.assert_allclose(compiled, output, rtol=1e-5, atol=1e-6)

    weights = head.trainable_variables if not table_matters else None
    for weight, gradient in zip(
        model.trainable_variables, output_and_gradients(model, inputs)[1], strict=True
    ):
        if weights is None or any(weight is x for x in weights):
            assert np.isfinite(gradient).all(), weight.path
            assert np.any(gradient), weight.path

    for policy in HALF_POLICIES:
        keras.config.set_dtype_policy(policy)
        try:
            half = _model_of(make_head())
        finally:
            keras.config.set_dtype_policy("float32")
        half.set_weights(model.get_weights())
        got = half(inputs)
        assert keras.backend.standardize_dtype(got.dtype) == "float32"
        np.testing.assert_allclose(array(got), output, atol=0.1, rtol=0.05)
    _check_losses(make_head, model, states, ids)
    check_round_trips(model, inputs, tmp_path)


def _model_of(head, **call):
    """Model of states and ids that ends in `head`, with a table of 7 vectors."""
    states, ids = keras.Input((None, 4)), keras.Input((None,), dtype="int32")
    items = FullEmbedding(7, 4, mask_zero=True, zero_masked=True)
    _, table = items(ids, return_table=True)
    return keras.Model([states, ids], head(states, ids, table, **call))


class _Losses(keras.layers.Layer):
    """Losses of the steps, by `losses`, `loss` or the logits of each prefix."""

    def __init__(self, head, table, targets, by_prefix, weights=None):
        super().__init__()
        self.weights_of_targets = weights
        self.head, self.table, self.targets = head, table, targets
        self.by_prefix = by_prefix
        self.built = True

    def call(self, states, ids):
        table, targets = ops.convert_to_tensor(self.table), self.targets
        if self.weights_of_targets is not None:
            training = not hasattr(self.head, "seed")  # nothing is drawn
            weights = tensor(self.weights_of_targets)
            return self.head.loss(
                states, ids, table, targets, weights, training=training
            )
        if not self.by_prefix:
            return self.head.step_losses(states, ids, table, targets, training=False)
        losses = []
        for step in range(ids.shape[1]):
            part = self.head(states[:, : step + 1], ids[:, : step + 1], table)
            target = np.maximum(targets[:, step], 1)
            norm = ops.logsumexp(part, axis=1)
            hit = ops.take_along_axis(part, tensor(target[:, None]), axis=1)[:, 0]
            losses.append(ops.where(tensor(targets[:, step] > 0), norm - hit, 0.0))
        return ops.stack(losses, axis=1)


def _check_losses(make_head, model, states, ids):
    table = model.layers[-2].embeddings
    head = model.layers[-1]
    targets = np.array([[5, 3, 6, 0, 0], [0, 6, 2, 6, 1], [1, 0, 0, 4, 0]], "int32")
    targets = targets[:, : ids.shape[1]]
    want = _Losses(head, table, targets, True)
    coef = np.random.default_rng(3).normal(size=targets.shape)
    want, want_gradients = output_and_gradients(want, (states, ids), coef)
    assert (want[targets == 0] == 0).all()
    for chunk_size in (None, 4) if BACKEND != "jax" else (4,):
        again = make_head(chunk_size=chunk_size)
        again.build(states.shape, ids.shape, tuple(table.shape))
        again.set_weights(head.get_weights())
        for weights in (None, coef.astype("float32")):
            layer = _Losses(again, table, targets, False, weights)
            each = coef if weights is None else np.ones(())
            got, gradients = output_and_gradients(layer, (states, ids), each)
            expected = want if weights is None else (want * coef).sum()
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
            for a, b in zip(gradients, want_gradients, strict=True):
                assert (a is None) == (b is None)  # of a table that does not matter
                if a is not None:
                    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    if BACKEND == "jax":
        return
    logits = array(head(states, ids, array(table))).astype("float64")
    norms = np.log(np.exp(logits).sum(axis=1))
    last = np.array([6, 1, 5], "int32")
    got = again.step_losses(
        *map(tensor, (states, ids, array(table), last)), training=False
    )
    want = norms - logits[np.arange(3), last]
    np.testing.assert_allclose(array(got), want, rtol=1e-5, atol=1e-5)


def check_model(make_model, inputs, tmp_path):
    """Checks everything that holds for any model of a builder.

    Args:
        make_model: Callable that makes the model and takes `name`.
        inputs: Dict of arrays of at least two rows.
        tmp_path: Folder for the round trips.
    """
    rng = np.random.default_rng(7)
    model = make_model(name="first")
    randomize(model, rng, scale=0.3)
    outputs = model(inputs)
    assert isinstance(outputs, dict)
    for key, value in outputs.items():
        assert keras.backend.standardize_dtype(value.dtype) == "float32"
        assert np.isfinite(array(value)).all()
        assert model.output[key].shape[0] is None
    assert all(layer.name.startswith("first_") for layer in _own_layers(model))
    assert all(model.input[key].name == key for key in inputs)
    check_gradients(model, inputs, {})

    # Two models of one builder live side by side, and joined.
    second = make_model(name="second")
    make_model(name="third")
    joined = make_model(name="joined", inputs=model.input)
    both = keras.Model(model.input, [*model.output.values(), *joined.output.values()])
    np.testing.assert_allclose(
        array(both(inputs)[0]),
        array(next(iter(outputs.values()))),
        rtol=1e-5,
        atol=1e-6,
    )
    second.set_weights(model.get_weights())
    check_round_trips(model, inputs, tmp_path)

    keras.config.set_dtype_policy("mixed_float16")
    try:
        half = make_model(name="half")
    finally:
        keras.config.set_dtype_policy("float32")
    half.set_weights(model.get_weights())
    for key, value in half(inputs).items():
        assert keras.backend.standardize_dtype(value.dtype) == "float32"
        np.testing.assert_allclose(array(value), array(outputs[key]), atol=2e-2)


def check_round_trips(model, inputs, tmp_path):
    """Saves the model in every way, loads it here, and files it for a fresh process.

    `predict`, which traces the model, is tried on the model alone: copies are called.
    """
    expected = _called(model, inputs)
    predicted = _flat(model.predict(_plain(inputs), verbose=0))
    for a, b in zip(predicted, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    folder = tmp_path / f"round_trip_{len(ARTIFACTS)}"
    folder.mkdir()
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    (folder / "config.json").write_text(model.to_json())
    if BACKEND == "tensorflow":
        model.export(folder / "saved_model", verbose=False)
    loaded = keras.models.load_model(folder / "model.keras")
    assert loaded.to_json() == model.to_json()
    rebuilt = keras.models.model_from_json((folder / "config.json").read_text())
    rebuilt.load_weights(folder / "model.weights.h5")
    for other in (loaded, rebuilt):
        assert len(other.weights) == len(model.weights)
        got = _called(other, inputs)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    flat = inputs if isinstance(inputs, dict) else dict(enumerate(_list(inputs)))
    np.savez(folder / "inputs.npz", **{str(k): v for k, v in flat.items()})
    np.savez(folder / "expected.npz", *expected)
    kind = {dict: "dict", list: "list"}.get(type(inputs), "tensor")
    ARTIFACTS.append({"folder": str(folder), "inputs": kind})


def check_gradients(layer, inputs, call):
    """Every trainable weight gets a finite gradient that is not all zero."""
    if not layer.trainable_variables:
        return
    _, gradients = output_and_gradients(layer, inputs, call=call)
    for weight, gradient in zip(layer.trainable_variables, gradients, strict=True):
        assert gradient is not None, weight.path
        assert np.isfinite(gradient).all(), weight.path
        assert np.any(gradient), weight.path


def output_and_gradients(layer, inputs, coef=None, *, call=None, wrt_inputs=False):
    """Output of the layer, and gradients of `sum(coef * output)` on any backend.

    Args:
        layer: A built layer or model.
        inputs: Array, list or dict of arrays; or a tuple of arrays, the positional
            arguments of a call.
        coef: Array of the shape of the output. Defaults to fixed random numbers.
        call: Optional dict of further call arguments.
        wrt_inputs: Whether the gradients start with that of `inputs`, one array; or
            with one for each array of a tuple.

    Returns:
        Tuple of the output and a list of arrays, one a trainable weight.
    """
    call = call or {}

    def loss_of(output):
        total = 0.0
        for i, part in enumerate(keras.tree.flatten(output)):
            weights = coef
            if weights is None:
                rng = np.random.default_rng(i)
                weights = rng.normal(size=part.shape)
            total = total + ops.sum(part * ops.cast(weights, part.dtype))
        return total

    trainable = layer.trainable_variables
    if BACKEND == "tensorflow":
        import tensorflow as tf

        x = keras.tree.map_structure(tensor, inputs) if wrt_inputs else inputs
        sources = [*(_args(x) if wrt_inputs else []), *(v.value for v in trainable)]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            output = layer(*_args(x), **call)
            loss = loss_of(output)
        grads = tape.gradient(loss, sources)
        got = [None if g is None else tf.convert_to_tensor(g) for g in grads]
    elif BACKEND == "jax":
        import jax

        fixed = [v.value for v in layer.non_trainable_variables]

        def run(weights, x):
            output, _ = layer.stateless_call(weights, fixed, *_args(x), **call)
            return loss_of(output), output

        x = keras.tree.map_structure(tensor, inputs)
        weights = [v.value for v in trainable]
        gradient = jax.grad(run, argnums=(0, 1), has_aux=True, allow_int=True)
        grads, output = jax.jit(gradient)(weights, x)
        got = [*(_args(grads[1]) if wrt_inputs else []), *grads[0]]
    else:
        x = keras.tree.map_structure(tensor, inputs) if wrt_inputs else inputs
        sources = [v.value for v in trainable]
        if wrt_inputs:
            sources = [*_args(x), *sources]
            for source in _args(x):
                source.requires_grad_(True)
        for source in sources:
            source.grad = None
        output = layer(*_args(x), **call)
        loss_of(output).backward()
        got = [source.grad for source in sources]
    output = keras.tree.map_structure(array, output)
    return output, [None if g is None else array(g) for g in got]


def count_nodes(layer, x):
    """Nodes of the TensorFlow graph of a step: the output and all its gradients."""
    import tensorflow as tf

    layer.build(x.shape)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x))
        return tape.gradient(loss, [x, *(w.value for w in layer.weights)])

    graph = step.get_concrete_function(tf.constant(x)).graph
    return len(graph.get_operations())


def randomize(layer, rng, scale=0.5):
    """Sets every float weight to random numbers: zeros would hide errors."""
    for weight in layer.weights:
        if "float" in weight.dtype:
            values = rng.normal(size=weight.shape, scale=scale)
            is_variance = weight.name == "moving_variance"
            weight.assign(np.abs(values) + 0.5 if is_variance else values)


def field_table(model, layer, field):
    """The table of one field of a `FieldEmbedding`, float64."""
    layer = model.get_layer(layer)
    return array(layer.embeddings)[layer.rows_of(field)].astype("float64")


def set_field_table(model, layer, field, values):
    """Sets the table of one field of a `FieldEmbedding`."""
    layer = model.get_layer(layer)
    table = array(layer.embeddings).copy()
    table[layer.rows_of(field)] = values
    layer.embeddings.assign(table)


def tensor(x):
    """Tensor of an array, in the dtype of the array on every backend."""
    if BACKEND == "jax" and x.dtype == "int64":  # which JAX has not by default
        x = x.astype("int32")
    return ops.convert_to_tensor(x, dtype=str(x.dtype))


def array(x):
    """NumPy array of a tensor; half precisions come as float32."""
    if keras.backend.standardize_dtype(x.dtype) == "bfloat16":
        x = ops.cast(x, "float32")
    return ops.convert_to_numpy(ops.stop_gradient(x))


def _check_config(layer):
    config = layer.get_config()
    json.dumps(config)
    arguments = set()
    for cls in type(layer).__mro__:
        if cls.__module__.startswith("keras_recsys"):
            arguments |= set(inspect.signature(cls.__init__).parameters)
    arguments -= {"self", "kwargs"}
    assert arguments | {"name", "dtype"} <= set(config), type(layer).__name__
    again = type(layer).from_config(config)
    assert again.get_config() == config
    registered = keras.saving.get_registered_name(type(layer))
    assert registered == f"keras_recsys>{type(layer).__name__}"


def _check_half_precision(layer, inputs, policy, call):
    fixed = (
        layer.dtype_policy.name == "float32" and type(layer)().dtype == "float32"
        if ("dtype" in inspect.signature(type(layer).__init__).parameters)
        else False
    )
    config = layer.get_config()
    if not fixed:
        config["dtype"] = policy
    half = type(layer).from_config(config)
    half(*_args(_symbolic(inputs)), **{k: _symbolic(v) for k, v in call.items()})
    half.set_weights(layer.get_weights())
    output = half(*_args(inputs), **call)
    dtype = keras.backend.standardize_dtype(output.dtype)
    assert dtype in (half.compute_dtype, "bool", "int32")
    assert np.isfinite(array(output)).all()
    for weight in half.weights:
        assert weight.dtype in ("float32", "int32")


def _compiled(layer, call):
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(lambda x: layer(*_args(x), **call), jit_compile=True)
    return lambda x: layer(*_args(x), **call)


def _own_layers(model):
    return [x for x in model.layers if not isinstance(x, keras.layers.InputLayer)]


def _args(inputs):
    """The positional arguments of a call."""
    return inputs if isinstance(inputs, tuple) else (inputs,)


def _list(inputs):
    return inputs if isinstance(inputs, list) else [inputs]


def _called(model, inputs):
    return _flat(keras.tree.map_structure(array, model(_plain(inputs))))


def _flat(outputs):
    return [np.asarray(x) for x in keras.tree.flatten(outputs)]


def _plain(inputs):
    return keras.tree.map_structure(np.asarray, inputs)


def _shapes(inputs):
    shapes = [tuple(x.shape) for x in _list(inputs)]
    return shapes if isinstance(inputs, list) else shapes[0]


def _symbolic(inputs):
    return keras.tree.map_structure(
        lambda x: keras.Input(x.shape[1:], dtype=str(x.dtype)), inputs
    )


def _rows(inputs, count):
    return keras.tree.map_structure(lambda x: x[:count], inputs)
