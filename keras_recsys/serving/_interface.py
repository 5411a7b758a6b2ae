"""The names, inputs and outputs of a model that is served."""

import collections
import re

import keras

HALF = ("float16", "bfloat16")


class Interface:
    """Names, inputs and outputs of a functional model, whatever structure they have.

    Raises:
        TypeError: If `model` is no Keras model.
        ValueError: If it has no inputs yet, or inputs that cannot be served.
    """

    def __init__(self, model):
        if not isinstance(model, keras.Model):
            raise TypeError(
                f"`model` must be a `keras.Model`. Received: model={model!r}."
            )
        try:
            tensors, outputs = model.inputs, model.outputs
        except AttributeError:
            tensors = outputs = None
        if not tensors or not outputs:
            raise ValueError(
                "`model` must be functional, made as `keras.Model(inputs, outputs)`: "
                "only then are its inputs known by name. "
                f"Received: model={model!r}."
            )
        self.model = model
        if isinstance(model, keras.Sequential):
            self.structure, struct_out = tensors[0], outputs[0]
        else:
            self.structure, struct_out = model.input, model.output
        if _is_flat_dict(self.structure):
            self.tensors = dict(self.structure)
        else:
            flat = keras.tree.flatten(self.structure)
            self.tensors = dict(zip(_layer_names(flat), flat, strict=True))
        if _is_flat_dict(struct_out):
            self.output_tensors = dict(struct_out)
        else:
            flat = keras.tree.flatten(struct_out)
            self.output_tensors = dict(zip(_layer_names(flat), flat, strict=True))
        self._check_names()
        self._check_tensors()

    def _check_names(self):
        for name in self.tensors:
            if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", str(name)) or name == "self":
                raise ValueError(
                    "An input of `model` must have a name of ASCII letters, digits and "
                    "underscores that begins with a letter and is not 'self': "
                    "TensorFlow changes or refuses others in a signature. "
                    f"Received: name={name!r}."
                )
        lower = collections.Counter(name.lower() for name in self.tensors)
        twins = [name for name in self.tensors if lower[name.lower()] > 1]
        if twins:
            raise ValueError(
                "The inputs of `model` must have names that differ in more than case: "
                f"TensorFlow does not tell them apart. Received: names={twins!r}."
            )

    def _check_tensors(self):
        for name, tensor in self.tensors.items():
            if not re.match("bool|u?int|b?float", tensor.dtype):
                raise ValueError(
                    f"Input {name!r} of `model` must hold numbers; texts are served by "
                    "giving its `keras_recsys.data.Vocabulary` in `vocabularies`. "
                    f"Received: dtype={tensor.dtype!r}."
                )
            if not tensor.shape or tensor.shape[0] is not None:
                raise ValueError(
                    f"Input {name!r} of `model` must leave the batch size open. "
                    f"Received: shape={tuple(tensor.shape)}."
                )

    def call(self, inputs):
        """Outputs by name of inputs by name, as tensors."""
        outputs = self.model(self._pack(inputs), training=False)
        return self._unpack(outputs)

    def predict(self, inputs):
        """Outputs by name of inputs by name, as NumPy arrays."""
        rows = len(next(iter(inputs.values())))
        outputs = self.model.predict(self._pack(inputs), batch_size=rows, verbose=0)
        return {
            name: value.astype("float32") if value.dtype.name in HALF else value
            for name, value in self._unpack(outputs).items()
        }

    def table_sizes(self, name):
        """Sizes of the embedding tables that are read with the input, if any."""
        sizes = []
        for layer in self.model.layers:
            size = getattr(layer, "input_dim", None)
            if not isinstance(size, int):
                continue
            for node in layer._inbound_nodes:
                if any(tensor is self.tensors[name] for tensor in node.input_tensors):
                    sizes.append(size)
        return sizes

    def _pack(self, inputs):
        if _is_flat_dict(self.structure):
            return {name: inputs[name] for name in self.tensors}
        return keras.tree.pack_sequence_as(
            self.structure, [inputs[name] for name in self.tensors]
        )

    def _unpack(self, outputs):
        if isinstance(outputs, dict) and set(outputs) == set(self.output_tensors):
            return outputs
        return dict(zip(self.output_tensors, keras.tree.flatten(outputs), strict=True))


def _is_flat_dict(structure):
    return isinstance(structure, dict) and not any(
        isinstance(value, (dict, list, tuple)) for value in structure.values()
    )


def _layer_names(tensors):
    """Name of the layer that makes each tensor; a second one gets `_1`, and so on."""
    names = []
    for tensor in tensors:
        base = name = tensor._keras_history.operation.name
        count = 0
        while name in names:
            count += 1
            name = f"{base}_{count}"
        names.append(name)
    return names
