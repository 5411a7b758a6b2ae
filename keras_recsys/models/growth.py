"""`grow_vocabulary`, more ids for a trained model."""

from keras_recsys._checks import check_int
from keras_recsys.layers import FieldEmbedding
from keras_recsys.layers.embedding._id_embedding import IdEmbedding, copy_rows


def grow_vocabulary(model, vocab_sizes):
    """Makes a copy of a trained model that knows more ids.

    Old ids keep their vectors, bit by bit, and all other weights stay. New ids start
    from the initializers of their tables; with `QREmbedding` and mixed radix a new id
    may share rows with old ones, and only the quotients (or the last digit) get rows.

    Args:
        model: A functional model, of a builder or your own, whose embedding layers are
            those of this library.
        vocab_sizes: Dict from the name of an input to its new number of ids. Inputs
            that share a table need to be named once.

    Returns:
        A model of the same class, names and settings. If `model` is compiled and its
        optimizer has a state, so is the copy, and its optimizer goes on: the states of
        old rows are kept.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If the model is not functional, an input is unknown or feeds no such
            embedding, two sizes for one table differ, a layer cannot grow to a size, or
            the model was compiled with what Keras cannot load or before layers were
            frozen.

    Example:
    >>> from keras_recsys import CategoricalFeature
    >>> from keras_recsys.models import build_fibinet
    >>> features = [CategoricalFeature("item", 1000), CategoricalFeature("hour", 24)]
    >>> larger = grow_vocabulary(build_fibinet(features), {"item": 1500})
    >>> larger.get_layer("fibinet_fields-tables").vocab_sizes
    (1500, 24)
    """
    config = _functional_config(model)
    sizes = {}
    for name, size in vocab_sizes.items():
        check_int(f"vocab_sizes[{name!r}]", size)
        for layer in _embeddings_of(name, model, config):
            if isinstance(model.get_layer(layer), FieldEmbedding):
                sizes.setdefault(layer, {})[name] = size
            elif sizes.setdefault(layer, size) != size:
                raise ValueError(
                    f"`vocab_sizes` must have one size for table {layer!r}, which "
                    f"several inputs share. Received: {sizes[layer]} and {size}."
                )
    for entry in config["layers"]:
        if entry["name"] in sizes:
            layer = model.get_layer(entry["name"])
            entry["config"] = layer.grown_config(sizes[entry["name"]])
    grown = type(model).from_config(config)
    moved = {}
    for layer in model.layers:
        copy = grown.get_layer(layer.name)
        if layer.name in sizes:
            copy.take_rows(layer)
            if isinstance(copy, FieldEmbedding):
                moved[copy.embeddings.path] = copy.moved_rows(layer)
        else:
            copy.set_weights(layer.get_weights())
    if model.compiled:
        _copy_optimizer(model, grown, moved)
    return grown


def _embeddings_of(name, model, config):
    """Names of the embedding layers that read an input, directly or by other layers."""
    names = [tensor.name for tensor in model.inputs]
    if name not in names:
        raise ValueError(
            f"`vocab_sizes` must have names of inputs, {names}. Received: {name!r}."
        )
    reached, found = {name}, []
    layers = {layer.name: layer for layer in model.layers}  # without plain operations
    for entry in config["layers"]:  # in the order of the graph
        layer = layers.get(entry["name"])
        is_embedding = isinstance(layer, IdEmbedding | FieldEmbedding)
        nodes = entry["inbound_nodes"]
        if is_embedding:  # the ids, and not the weights of a bag
            nodes = [node["args"][0] for node in nodes]
        if not reached & set(_sources(nodes)):
            continue
        if is_embedding:
            found.append(entry["name"])
        else:
            reached.add(entry["name"])
    if not found:
        raise ValueError(
            "`vocab_sizes` must name inputs that feed an embedding layer of this "
            f"library. Received: {name!r}, which feeds none."
        )
    return found


def _sources(node):
    """Names of the layers whose outputs occur in a part of a config."""
    if isinstance(node, dict):
        if "keras_history" in node:
            return [node["keras_history"][0]]
        node = list(node.values())
    if not isinstance(node, list | tuple):
        return []
    return [name for part in node for name in _sources(part)]


def _functional_config(model):
    """Config of a functional model.

    Raises:
        ValueError: If the model is of another kind.
    """
    try:
        config = model.get_config()
    except NotImplementedError:
        config = {}
    layers = config.get("layers", ())
    if not layers or any("inbound_nodes" not in entry for entry in layers):
        raise ValueError(
            "`model` must be a functional model, as `keras.Model(inputs, outputs)` "
            f"and the builders make it. Received: a {type(model).__name__}."
        )
    return config


def _copy_optimizer(model, grown, moved):
    """Compiles the copy as the model is, and takes over the state of its optimizer.

    Args:
        model: The model.
        grown: The copy.
        moved: Dict from the path of a weight to the new places of its rows, where they
            are not the first ones.
    """
    try:
        grown.compile_from_config(model.get_compile_config())
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`model` must be compiled with losses and metrics that Keras can load: "
            "give your own ones `keras.saving.register_keras_serializable()`. "
            f"Received: {error}"
        ) from error
    if not model.optimizer.built:
        return
    trained = [v.path for v in model.optimizer._trainable_variables]
    if trained != [v.path for v in model.trainable_variables]:
        raise ValueError(
            "`model` must be compiled anew after layers were frozen or unfrozen: its "
            "optimizer has the state of other weights than those that train now."
        )
    if not grown.optimizer.built:
        grown.optimizer.build(grown.trainable_variables)
    pairs = zip(grown.optimizer.variables, model.optimizer.variables, strict=True)
    # An average starts from the weight, as Keras' own does at its first step.
    starts = {
        f"{weight.path.replace('/', '_')}_average": weight
        for weight in grown.trainable_variables
    }
    moved = {f"{path.replace('/', '_')}_": rows for path, rows in moved.items()}
    for new, old in pairs:
        state = new.path.split("/")[-1]
        if state in starts:
            new.assign(starts[state])
        rows = next((moved[key] for key in moved if state.startswith(key)), None)
        if rows is not None and new.shape != old.shape and len(rows) != old.shape[0]:
            raise ValueError(
                "`model` must have an optimizer whose states have a row for each row "
                f"of a table. Received: {type(model.optimizer).__name__}, whose state "
                f"{state!r} is of shape {tuple(old.shape)}."
            )
        copy_rows(new, old, rows)
