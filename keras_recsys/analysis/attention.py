"""What attention weights say about a model."""

import inspect

import keras
import numpy as np

from keras_recsys.models._named_model import NamedModel


def attention_entropy(weights):
    """Entropy of attention over a history, in bits: over how much of it is spread.

    With `p = a / sum(a)`,

        H = -sum over j of p_j log2(p_j)

    which is 0 where one item has all the weight, and `log2(n)` where `n` items have
    the same. `2**H` can be read as a number of items.

    Args:
        weights: Array or tensor of numbers of at least 0, `(..., seq_len)`, 0 at
            padding: what a layer returns with `return_attention_scores=True`.

    Returns:
        Float64 array, `(...)`; its mean over the samples is the figure of the paper. A
        history without weight has entropy 0.

    Raises:
        ValueError: If a weight is negative or not finite.

    Example:
    >>> attention_entropy([[0.25, 0.25, 0.25, 0.25], [0.0, 0.9, 0.0, 0.0]]).tolist()
    [2.0, 0.0]

    Reference:
        Lin et al., "Sparse Attentive Memory Network for Click-through Rate Prediction
        with Long Sequences", CIKM 2022, section on attention entropy. The authors' code
        adds 1e-12 to the sum and in the logarithm.
    """
    if hasattr(weights, "detach"):
        weights = weights.detach().cpu()
    weights = np.asarray(weights, "float64")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(
            "`weights` must be finite numbers of at least 0; give the attention "
            "`attention_activation='sigmoid'` or 'softmax'. "
            f"Received: least {weights.min()}, largest {weights.max()}."
        )
    total = weights.sum(axis=-1, keepdims=True)
    shares = weights / np.where(total > 0, total, 1.0)
    # Where a share is 0 the logarithm is that of 1.
    bits = np.log2(np.where(shares > 0, shares, 1.0))
    return 0.0 - (shares * bits).sum(axis=-1)


def attention_scores(model, inputs, *, batch_size=32):
    """The attention weights of every layer of a model that can return them.

    A layer that is called several times gives the weights of its first call. Models
    inside the model are not searched.

    Args:
        model: A functional `keras.Model`, such as a builder makes.
        inputs: What the model takes: a dict of arrays, or a `tf.data` set of such, or
            of `(inputs, labels)`.
        batch_size: Positive int, rows in a batch where `inputs` are arrays. Defaults to
            `32`.

    Returns:
        Dict from the name of a layer to its weights, an array: `(num_rows, seq_len)`
        for one pass over the history, `(num_rows, num_passes, seq_len)` for several,
        `(num_rows, num_heads, seq_len, seq_len)` for self-attention. Histories of
        batches of different lengths are filled with 0 on the right.

    Raises:
        ValueError: If no layer of the model returns attention weights.

    Example:
    >>> from keras_recsys import CategoricalFeature, SequenceFeature
    >>> from keras_recsys.models import build_sam
    >>> features = [
    ...     CategoricalFeature("item", 9),
    ...     SequenceFeature("item_history", 9, table="item"),
    ... ]
    >>> model = build_sam(features, history={"item_history": "item"})
    >>> rows = {"item": np.array([3]), "item_history": np.array([[5, 8, 0]])}
    >>> {name: x.shape for name, x in attention_scores(model, rows).items()}
    {'sam_memory': (1, 3, 3)}
    """
    outputs = {}
    for layer in model.layers:
        if "return_attention_scores" in inspect.signature(layer.call).parameters:
            # What it is first called with; `layer.input` sorts that by name.
            made = layer._inbound_nodes[0].arguments
            kwargs = dict(made.kwargs)
            kwargs.pop("return_attention_scores", None)
            outputs[layer.name] = _Weights(layer)(*made.args, **kwargs)
    if not outputs:
        raise ValueError(
            "`model` must have a layer with `return_attention_scores`. Received: "
            f"layers {[layer.name for layer in model.layers]}."
        )
    reader = NamedModel(model.input, outputs, name=model.name)
    if not hasattr(inputs, "element_spec"):
        return reader.predict(inputs, batch_size=batch_size, verbose=0)
    batches = [
        reader.predict_on_batch(x[0] if isinstance(x, tuple) else x) for x in inputs
    ]
    return {name: _joined([batch[name] for batch in batches]) for name in outputs}


def _joined(arrays):
    """Arrays below each other, shorter rows filled with 0 on the right."""
    longest = np.max([x.shape[1:] for x in arrays], axis=0)
    filled = (
        np.pad(x, [(0, 0), *((0, n) for n in longest - x.shape[1:])]) for x in arrays
    )
    return np.concatenate(list(filled))


class _Weights(keras.layers.Layer):
    """The attention weights of another layer.

    Keras takes a layer of a model to have as many outputs at its second call as at its
    first.
    """

    def __init__(self, layer):
        super().__init__(dtype=layer.dtype_policy)
        self.layer = layer
        self.built = True
        self.supports_masking = True

    def call(self, *args, **kwargs):
        return self.layer(*args, return_attention_scores=True, **kwargs)[1]

    def compute_mask(self, *args, **kwargs):
        return None
