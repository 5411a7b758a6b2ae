"""The frame of click models that read a history."""

import keras
from keras import ops

from keras_recsys import layers
from keras_recsys.features import (
    CategoricalFeature,
    SequenceFeature,
    TimeGapFeature,
    check_shared,
    make_table,
)
from keras_recsys.layers.embedding._id_embedding import IdEmbedding
from keras_recsys.models._blocks import ClickModel


class BehaviorModel(ClickModel):
    """The frame of a click model with a history: what `ClickModel` has, and more.

    A builder computes from `target`, `events` and `mask` what the user may want, and
    ends with `model_of`.

    Args:
        features: Sequence of features.
        history: Dict from the name of each `SequenceFeature` of the history to that of
            the `CategoricalFeature` of the target.
        embedding_dim: Positive int, width of a vector.
        num_positions: Optional int, see `ReversePositionEmbedding`.
        embeddings_regularizer: See `embed_fields`.
        inputs: Optional dict from feature name to `KerasTensor`, see `make_inputs`.
        name: Name of the model and prefix of its layer names.

    Attributes:
        target: Tensor, `(batch_size, dim)`.
        events: Tensor, `(batch_size, seq_len, dim)`; what stands at padding is to be
            masked.
        mask: Boolean tensor, `(batch_size, seq_len)`.
    """

    def __init__(
        self,
        features,
        history,
        *,
        embedding_dim,
        num_positions=None,
        embeddings_regularizer=None,
        inputs=None,
        name,
    ):
        super().__init__(features, inputs=inputs, name=name)
        self.pairs = _check_history(history, self.features)
        self.embedding_dim = embedding_dim
        self.regularizer = embeddings_regularizer
        self.tables = {}
        self.mask = layers.PaddingMask(name=f"{name}_history-mask")(
            self.inputs[self.pairs[0][0].name]
        )
        self.target = self._joined([of for _, of in self.pairs], "target")
        items = self._joined([of for of, _ in self.pairs], "history-items")
        self.events = self._encoded(items, num_positions)
        self._watched.append(self.target)

    def model_of(self, interests, hidden_units, *, activation, dropout, seed):
        """The model: a network on interests, target and all other features.

        Args:
            interests: List of tensors, `(batch_size, dim)`.
            hidden_units: Widths of the hidden layers.
            activation: Their activation.
            dropout: Rate of the dropout after each.
            seed: Optional int of the dropout.

        Returns:
            A `keras.Model`.
        """
        self._watched += interests
        parts = [*interests, self.target]
        in_history = {feature.name for pair in self.pairs for feature in pair}
        others = [
            feature
            for feature in self.features
            if feature.name not in in_history
            and not isinstance(feature, TimeGapFeature)
        ]
        if others:
            parts.append(
                self.dense_input(
                    self.embedding_dim,
                    others,
                    tables=self.tables,
                    embeddings_regularizer=self.regularizer,
                )
            )
        joined = keras.layers.Concatenate(name=f"{self.name}_head-input")(parts)
        logit = self.deep_logit(
            joined, hidden_units, activation=activation, dropout=dropout, seed=seed
        )
        return self.model([logit])

    def _joined(self, features, part):
        """The vectors of some features side by side."""
        vectors = [self._vectors(feature) for feature in features]
        if len(vectors) == 1:
            return vectors[0]
        return keras.layers.Concatenate(name=f"{self.name}_{part}")(vectors)

    def _vectors(self, feature):
        """The vectors of a feature, from the table that target and history share."""
        key = feature.table or feature.name
        if key not in self.tables:
            self.tables[key] = make_table(
                feature,
                self.embedding_dim,
                combiner="multiply",
                embeddings_regularizer=self.regularizer,
                name=f"{self.name}_fields_{key}",
            )
        table, ids = self.tables[key], self.inputs[feature.name]
        if not isinstance(table, IdEmbedding):
            return table(ids)
        if not isinstance(feature, SequenceFeature):
            return table(ids, source=feature.name)
        if feature is not self.pairs[0][0]:  # whose padding is the mask
            padded = PaddedIds(name=f"{self.name}_fields_{feature.name}-padded")
            ids = padded(ids, self.mask)
        return table(ids, source=feature.name, padding_mask=self.mask)

    def _encoded(self, items, num_positions):
        """Items of the history, with vectors for how long ago and how many ago."""
        parts, dim = [items], items.shape[-1]
        gaps = [f for f in self.features if isinstance(f, TimeGapFeature)]
        if len(gaps) > 1:
            raise ValueError(
                "`features` must hold at most one TimeGapFeature. "
                f"Received: {[feature.name for feature in gaps]}."
            )
        for feature in gaps:
            times = layers.TimeBucketEmbedding(
                dim,
                feature.num_buckets,
                time_unit=feature.time_unit,
                name=f"{self.name}_fields_{feature.name}",
            )
            parts.append(times(self.inputs[feature.name]))
        if num_positions is not None:
            positions = layers.ReversePositionEmbedding(
                num_positions, dim, name=f"{self.name}_history-positions"
            )
            parts.append(positions(self.mask))
        if len(parts) == 1:
            return items
        return SumOfEvents(name=f"{self.name}_history-encoding")(parts)


@keras.saving.register_keras_serializable(package="keras_recsys")
class PaddedIds(keras.layers.Layer):
    """Ids with 0 where the mask of the history is `False`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.autocast = False

    def call(self, inputs, mask):
        inputs = _as_long_as(mask, inputs, self.name)
        return ops.where(mask, inputs, ops.zeros_like(inputs))

    def compute_output_spec(self, inputs, mask):
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)


@keras.saving.register_keras_serializable(package="keras_recsys")
class SumOfEvents(keras.layers.Layer):
    """A sum of histories that must have one length: nothing is broadcast."""

    def call(self, inputs):
        total, *others = inputs
        for other in others:
            total = total + _as_long_as(total, other, self.name)
        return total

    def compute_output_shape(self, input_shape):
        return tuple(input_shape[0])


def _as_long_as(first, other, name):
    """`other`, of the shape of `first` or refused, so that nothing is broadcast.

    Raises:
        ValueError: If their lengths are known, and two.
    """
    lengths = first.shape[1], other.shape[1]
    if None not in lengths and lengths[0] != lengths[1]:
        raise ValueError(
            "All histories of a sample must have one length, that of the first, "
            f"{lengths[0]}. Received: length {lengths[1]} at {name!r}."
        )
    return ops.reshape(other, ops.shape(first))


def _check_history(history, features):
    """List of pairs of the feature of the history and that of the target.

    Raises:
        TypeError: If `history` is no dict, is empty, or names a feature of another
            kind.
        ValueError: If it names no feature, or a target twice, a pair has two tables,
            features of its table disagree about it, or lengths differ.
    """
    if not isinstance(history, dict) or not history:
        raise TypeError(
            "`history` must be a dict from the name of each SequenceFeature of the "
            "history to that of the CategoricalFeature of the target, with one entry "
            f"at least. Received: history={history!r}."
        )
    by_name = {feature.name: feature for feature in features}
    pairs = []
    for names in history.items():
        pair = []
        for name, kind in zip(
            names, (SequenceFeature, CategoricalFeature), strict=True
        ):
            if name not in by_name:
                raise ValueError(
                    f"`history` must hold names of features, {list(by_name)}. "
                    f"Received: {name!r}."
                )
            if not isinstance(by_name[name], kind):
                raise TypeError(
                    f"`history` must go from a SequenceFeature to a CategoricalFeature."
                    f" Received: {names[0]!r}: {names[1]!r}, where {name!r} is a "
                    f"{type(by_name[name]).__name__}."
                )
            pair.append(by_name[name])
        events, target = pair
        tables = [feature.table or feature.name for feature in pair]
        if tables[0] != tables[1]:
            raise ValueError(
                "`history` must pair features that share a table; give both "
                f"`table={tables[1]!r}`. Received: table {tables[0]!r} for "
                f"{events.name!r}, {tables[1]!r} for {target.name!r}."
            )
        for feature in features:
            key = hasattr(feature, "vocab_size") and (feature.table or feature.name)
            if key == tables[1]:
                check_shared(target, feature, key)
        pairs.append((events, target))
    targets = [target.name for _, target in pairs]
    lengths = {events.name: events.max_len for events, _ in pairs}
    lengths |= {f.name: f.max_len for f in features if isinstance(f, TimeGapFeature)}
    if len(set(targets)) < len(targets):
        raise ValueError(
            f"`history` must name each feature of the target once. Received: {targets}."
        )
    if len(set(lengths.values())) > 1:
        raise ValueError(
            "`max_len` must be the same for all features of the history. "
            f"Received: {lengths}."
        )
    return pairs
