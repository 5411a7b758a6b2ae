"""`build_two_stage`, a next-item model that scores some of the items alone."""

import keras
from keras import ops

from keras_recsys._checks import check_int
from keras_recsys.layers.sequential._next_item_head import NextItemHead
from keras_recsys.layers.sequential._steps import LOWEST
from keras_recsys.models._named_model import NamedModel
from keras_recsys.models.sequential._frame import INPUT
from keras_recsys.models.sequential._next_item_model import NextItemModel

CANDIDATES = "candidate_ids"


def build_two_stage(
    model, *, num_candidates=None, k=10, exclude_seen=False, name="two_stage"
):
    """Builds a model of the best next items, of which some alone are scored in full.

        candidates = items of the largest user_vector . e_x, or those that are given
        scores = head(candidates and history)
        item_ids = the k items of the largest scores

    The history is always among the scored. Where `num_candidates` is at least the sum
    of `k` and the sizes of `rerank`, the items are the best `k` of `model`, and the
    scores its logits; where it is smaller, they are near to them.

    Args:
        model: A `NextItemModel` whose head scores candidates: `CPRSoftmax` or
            `SampledSoftmax`. Its layers are shared, not copied.
        num_candidates: Optional positive int, not below `k`: the candidates are found
            by one exact search among all items, which takes about as long as all
            logits. Defaults to `None`: they are the input `"candidate_ids"`, which an
            index fills from the output `"user_vector"` of `model`, and time does not
            grow with the number of items.
        k: Positive int, how many items are given; at most the number of items.
            Defaults to `10`.
        exclude_seen: Whether the items of the input are left out, those before the last
            `max_len` too, and others given for them. An index then has to give as many
            more. Defaults to `False`.
        name: Name of the model, and prefix of its layer names.

    Returns:
        An uncompiled `keras.Model`. Inputs: `"item_ids"`, int32, `(batch_size,
        seq_len)`, and without `num_candidates` `"candidate_ids"`, int32, `(batch_size,
        any)`; what is no id of an item counts as none. Outputs: `"item_ids"`, int32,
        and `"scores"`, float32, both `(batch_size, k)`, best first; a row with fewer
        items ends in id 0 with -1e9.

    Raises:
        TypeError: If `model` is no `NextItemModel`, or a size is not an integer.
        ValueError: If a size is out of its range, or the head has no scores of
            candidates.
    """
    head = candidate_head(model)
    k, num_items = check_int("k", k), head.input[2].shape[0] - 1
    if k > num_items:
        raise ValueError(
            f"`k` must be at most the number of items, {num_items}. Received: k={k!r}."
        )
    inputs = dict(model.input)
    if num_candidates is None:
        candidates = keras.Input((None,), name=CANDIDATES, dtype="int32")
        inputs[CANDIDATES] = candidates
    else:
        candidates = check_int("num_candidates", num_candidates, minimum=k)
    excluded = inputs[INPUT] if exclude_seen else None
    logits, ids = head(*head.input, candidates=candidates, excluded=excluded)
    ids, scores = TopItems(k, name=f"{name}_top")(logits, ids)
    return NamedModel(inputs, {"item_ids": ids, "scores": scores}, name=name)


def candidate_head(model):
    """The head of a model, if it scores candidates.

    Raises:
        TypeError: If `model` is no `NextItemModel`.
        ValueError: If its head has no scores of candidates.
    """
    if not isinstance(model, NextItemModel):
        raise TypeError(
            "`model` must be a `NextItemModel`, such as `build_sasrec` returns. "
            f"Received: model={model!r}."
        )
    head = next(x for x in model.layers if isinstance(x, NextItemHead))
    if not head.has_candidate_scores:
        raise ValueError(
            "`model` must have a head that scores candidates alone, `CPRSoftmax` or "
            f"`SampledSoftmax`. Received: a `{type(head).__name__}`."
        )
    return head


@keras.saving.register_keras_serializable(package="keras_recsys")
class TopItems(keras.layers.Layer):
    """The ids of the `k` largest logits of each row, and these, best first."""

    def __init__(self, k, *, dtype="float32", **kwargs):
        super().__init__(dtype=dtype, **kwargs)
        self.k = k

    def call(self, logits, ids):
        # There may be fewer.
        logits = ops.pad(logits, ((0, 0), (0, self.k)), constant_values=LOWEST)
        ids = ops.pad(ids, ((0, 0), (0, self.k)))
        scores, places = ops.top_k(logits, self.k)
        ids = ops.take_along_axis(ids, ops.cast(places, "int32"), axis=1)
        return ids, scores

    def compute_output_spec(self, logits, ids):
        shape = (logits.shape[0], self.k)
        return (
            keras.KerasTensor(shape, dtype="int32"),
            keras.KerasTensor(shape, dtype=self.compute_dtype),
        )

    def get_config(self):
        return {**super().get_config(), "k": self.k}
