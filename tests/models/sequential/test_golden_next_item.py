import keras
import numpy as np
from golden_files import golden, load
from helpers import array, output_and_gradients, tensor

from keras_recsys.layers import CPRSoftmax
from keras_recsys.models import build_gru4rec, build_sasrec


class MeanLoss(keras.layers.Layer):
    """The loss of a model, with targets that it knows."""

    def __init__(self, model, targets):
        super().__init__()
        self.model, self.targets = model, targets
        self.built = True

    def call(self, ids):
        outputs = self.model({"item_ids": ids}, training=False)
        return self.model.compute_loss(
            {"item_ids": ids}, tensor(self.targets), outputs, training=False
        )


FACETS = {"V": "vocabulary", "C": "context", "P": "pointer", "L": "key"}
# Widths of the references say nothing of the heads of their attention.
NUM_HEADS = 2


def gru_kernels(arrays, prefix):
    """The two kernels in Keras' layout: gates in another order, and transposed."""
    kernels = []
    for name in ("weight_ih_l0", "weight_hh_l0"):
        reset, update, new = np.split(arrays[f"{prefix}gru_layers/{name}"], 3)
        kernels.append(np.concatenate([update, reset, new]).T)
    return kernels


def model_of(arrays):
    """Model with the weights of a file, and dict from weight to the name there.

    The values of the dict are functions from a prefix to the array of the file.
    """
    num_ids, dim = arrays["item_embedding/table"].shape
    facets = sorted({name.split("/")[0][5:] for name in arrays if name[:5] == "proj_"})
    sizes = [int(facet[1:]) for facet in facets if facet[1:].isdigit()]
    common = {
        "embedding_dim": dim,
        "max_len": arrays["item_seq"].shape[1],
        "head": CPRSoftmax("C" in facets, "P" in facets, sizes),
        "multi_input": "mi/kernel" in arrays,
    }
    if "position_embedding/table" in arrays:
        left = ((arrays["item_seq"][:, 0] == 0) & (arrays["item_seq"][:, -1] > 0)).any()
        inner = arrays["layer0_ffn_dense_1/kernel"].shape[1]
        layers = sum(name.endswith("ffn_norm/gamma") for name in arrays) // 3
        model = build_sasrec(
            num_ids - 1,
            num_layers=layers,
            num_heads=NUM_HEADS,
            intermediate_dim=inner,
            align="last" if left else "first",
            **common,
        )
    else:
        units = arrays["dense/kernel"].shape[0]
        model = build_gru4rec(num_ids - 1, hidden_dim=units, **common)
    return model, names_of(model, facets)


def names_of(model, facets):
    """Pairs of weight and function from a prefix to the array of that weight."""
    pairs = []

    def add(weight, name):
        pairs.append((weight, lambda arrays, prefix: arrays[prefix + name]))

    def add_dense(layer, name):
        add(layer.kernel, f"{name}/kernel")
        add(layer.bias, f"{name}/bias")

    def add_norm(layer, name):
        add(layer.gamma, f"{name}/gamma")
        add(layer.beta, f"{name}/beta")

    find = {layer.name.partition("_")[2]: layer for layer in model.layers}
    add(find["items"].embeddings, "item_embedding/table")
    head = find["head"]
    for facet in facets:
        name = FACETS.get(facet) or f"rerank_{facet[1:]}"
        add(head.kernels[name], f"proj_{facet}/kernel")
        add(head.biases[name], f"proj_{facet}/bias")
    if "multi-input" in find:
        add_dense(find["multi-input"], "mi")
    encoder = find["encoder"]
    if hasattr(encoder, "gru"):
        add_dense(encoder.dense, "dense")
        cell = encoder.gru.cell
        for i, weight in enumerate((cell.kernel, cell.recurrent_kernel)):
            pairs.append((weight, lambda arrays, p, i=i: gru_kernels(arrays, p)[i]))
        return pairs
    add(encoder.positions, "position_embedding/table")
    add_norm(encoder.norm, "norm")
    for i, block in enumerate(encoder.blocks):
        add_norm(block.attention_norm, f"layer{i}_attn_norm")
        add_norm(block.feed_forward_norm, f"layer{i}_ffn_norm")
        add_dense(block.inner, f"layer{i}_ffn_dense_1")
        add_dense(block.outer, f"layer{i}_ffn_dense_2")
        add_dense(block.output_projection, f"layer{i}_attn_dense")
        for name in ("query", "key", "value"):
            add_dense(getattr(block, name), f"layer{i}_attn_{name}")
    return pairs


def loaded(path):
    arrays = load(path)
    model, pairs = model_of(arrays)
    assert {id(w) for w, _ in pairs} == {id(w) for w in model.trainable_variables}
    for weight, of in pairs:
        weight.assign(of(arrays, ""))
    return arrays, model, pairs


@golden("softmax_cpr", having=["item_embedding/table", "state_1"], lacking=["gate"])
def test_states(path):
    arrays, model, _ = loaded(path)
    _, steps = model._run({"item_ids": tensor(arrays["item_seq"])}, training=False)
    last = max(
        name for name in arrays if name.startswith("state_") and name[6:].isdigit()
    )
    # The steps of the model are packed: those of a row in front, in their order.
    for row, real, want in zip(
        array(steps[0]), arrays["valid"], arrays[last], strict=True
    ):
        got = row[: real.sum(), : want.shape[1]]
        np.testing.assert_allclose(got, want[real.astype(bool)], rtol=1e-5, atol=2e-5)


@golden("softmax_cpr", having=["item_embedding/table", "state_1"], lacking=["gate"])
def test_scores_and_gradients(path):
    arrays, model, pairs = loaded(path)
    inputs = {"item_ids": arrays["item_seq"]}
    logits = array(model(inputs)["logits"]).astype("float64")
    table = arrays["item_embedding/table"]
    if not arrays["item_seq"][:, -1].all():
        # The published code reads padding here; the last item makes these scores.
        want = arrays["state_last_real"] @ arrays["proj_V/kernel"]
        want = (want + arrays["proj_V/bias"]) @ table.T
        np.testing.assert_allclose(logits[:, 1:], want[:, 1:], rtol=1e-5, atol=5e-5)
        return
    norm = np.log(np.exp(logits[:, 1:]).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(
        logits[:, 1:] - norm, arrays["logprob_items"], rtol=1e-5, atol=2e-5
    )
    layer = MeanLoss(model, arrays["target"])
    loss, gradients = output_and_gradients(layer, arrays["item_seq"], np.ones(()))
    np.testing.assert_allclose(loss, arrays["loss_items"], atol=1e-5)
    places = {id(w): i for i, w in enumerate(layer.trainable_variables)}
    for weight, of in pairs:
        got, want = gradients[places[id(weight)]], of(arrays, "grad_items/")
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5, err_msg=weight.path)
