"""Features, builders and layers that the cases of other libraries are tried on."""

import keras
import numpy as np
from helpers import array, randomize

from keras_recsys import layers
from keras_recsys.features import (
    CategoricalFeature,
    NumericFeature,
    SequenceFeature,
)
from keras_recsys.layers.sequential._next_item_head import NextItemHead
from keras_recsys.models import (
    build_autoint,
    build_bst,
    build_dcn,
    build_deepfm,
    build_dien,
    build_din,
    build_dlinear,
    build_dlrm,
    build_ffm,
    build_fibinet,
    build_fibinet_plus,
    build_fm,
    build_fnn,
    build_gru4rec,
    build_informer,
    build_lr,
    build_mimn,
    build_nlinear,
    build_repeat_last,
    build_repeatnet,
    build_sam,
    build_sasrec,
    build_seasonal_naive,
    build_transformer_forecaster,
    build_ubr4ctr,
    build_wide_deep,
    build_xdeepfm,
    build_youtube_dnn,
)

# One feature of each kind; `item` and `history` share a table.
FEATURES = (
    CategoricalFeature("user", 1_000, embedding="qr", dtype="int64"),
    CategoricalFeature("item", 9, table="items", dtype="int64"),
    SequenceFeature("history", 9, table="items", dtype="int64"),
    SequenceFeature("genres", 6, pooling="sqrtn", max_len=3),
    NumericFeature("price", normalization="zscore", mean=20.0, std=4.0),
    NumericFeature("count", normalization="log", mean=1.0, std=0.5),
    CategoricalFeature("city", 5, out_of_range="oov"),
)

_HISTORY = {
    "history": {"history": "item"},
    "embedding_dim": 4,
    "hidden_units": (6,),
}
# Every public builder, in each of its ways to work; small, to be built quickly.
BUILDERS = {
    "fibinet_deep": (
        build_fibinet,
        {"embedding_dim": 4, "hidden_units": (6, 3), "dropout": 0.2, "seed": 1},
    ),
    "fibinet_shallow": (build_fibinet, {"embedding_dim": 4, "deep": False}),
    "fibinet_numbers_in_dnn": (
        build_fibinet,
        {
            "embedding_dim": 4,
            "hidden_units": (6,),
            "numeric_inputs": "dnn",
            "bilinear_type": "all",
            "senet_interaction": "hadamard",
        },
    ),
    "dlrm": (
        build_dlrm,
        {
            "embedding_dim": 4,
            "bottom_units": (5,),
            "top_units": (6, 3),
            "dropout": 0.2,
            "qr_threshold": 9,
            "seed": 1,
        },
    ),
    "lr": (build_lr, {}),
    "fm": (build_fm, {"embedding_dim": 4}),
    "ffm": (build_ffm, {"embedding_dim": 2}),
    "fnn": (build_fnn, {"embedding_dim": 4, "hidden_units": (6,)}),
    "deepfm": (
        build_deepfm,
        {"embedding_dim": 4, "hidden_units": (6,), "numeric_inputs": "dnn"},
    ),
    "dcn": (
        build_dcn,
        {"embedding_dim": 4, "hidden_units": (6,), "projection_dim": 2},
    ),
    "dcn_first": (
        build_dcn,
        {"embedding_dim": 4, "hidden_units": (6,), "version": "v1"},
    ),
    "xdeepfm": (
        build_xdeepfm,
        {"embedding_dim": 4, "cin_units": (4, 3), "hidden_units": (6,)},
    ),
    "autoint": (
        build_autoint,
        {
            "embedding_dim": 4,
            "num_layers": 2,
            "key_dim": 3,
            "hidden_units": (6,),
            "dropout": 0.2,
            "seed": 1,
        },
    ),
    "wide_deep": (build_wide_deep, {"embedding_dim": 4, "hidden_units": (6,)}),
    "fibinet_plus": (
        build_fibinet_plus,
        {
            "embedding_dim": 4,
            "bilinear_dim": 3,
            "normalize": True,
            "hidden_units": (6,),
        },
    ),
    "sam": (
        build_sam,
        {**_HISTORY, "num_passes": 2, "num_steps": 1, "attention_dim": 3},
    ),
    "youtube_dnn": (build_youtube_dnn, _HISTORY),
    "din": (build_din, {**_HISTORY, "attention_units": (3,)}),
    "dien": (build_dien, {**_HISTORY, "attention_units": (3,)}),
    "mimn": (build_mimn, {**_HISTORY, "num_slots": 2}),
    "ubr4ctr": (
        build_ubr4ctr,
        {**_HISTORY, "retrieval_units": (3,), "attention_units": (3,), "seed": 1},
    ),
    "bst": (build_bst, {**_HISTORY, "num_heads": 2}),
}
HISTORY_BUILDERS = [
    kind for kind, (_, settings) in BUILDERS.items() if "history" in settings
]

# The builders of next-item models, which take no features.
_CPR = {"head": layers.CPRSoftmax(rerank=(3,)), "multi_input": True}
NEXT_ITEM_BUILDERS = {
    "sasrec": (build_sasrec, {"embedding_dim": 4, "max_len": 5, **_CPR}),
    "gru4rec": (build_gru4rec, {"embedding_dim": 4, "hidden_dim": 3}),
    "repeatnet": (build_repeatnet, {"embedding_dim": 4, "hidden_dim": 3}),
}


# The builders of forecasters, which take the channels of a series.
_STEPS = {"seq_len": 12, "pred_len": 4}
_ATTENTION = {
    **_STEPS,
    "hidden_dim": 8,
    "num_heads": 2,
    "intermediate_dim": 6,
    "dropout": 0.0,
}
FORECAST_BUILDERS = {
    "informer": (build_informer, {**_ATTENTION, "factor": 1}),
    "informer_full": (build_informer, {**_ATTENTION, "attention": "full"}),
    "transformer": (build_transformer_forecaster, _ATTENTION),
    "dlinear": (build_dlinear, {**_STEPS, "window": 5}),
    "nlinear": (build_nlinear, _STEPS),
    "repeat_last": (build_repeat_last, _STEPS),
    "seasonal_naive": (build_seasonal_naive, {**_STEPS, "period": 6}),
}


def make_forecaster(kind, **kwargs):
    """A forecaster of 3 channels with random weights."""
    build, settings = FORECAST_BUILDERS[kind]
    model = build(3, **{**settings, **kwargs})
    randomize(model, np.random.default_rng(3), scale=0.4)
    return model


def make_windows(model, rows=6, seed=0):
    """Inputs of a forecaster, and what follows."""
    rng = np.random.default_rng(seed)
    inputs = {
        name: rng.normal(size=(rows, *x.shape[1:])).astype("float32")
        for name, x in model.input.items()
    }
    shape = (rows, *model.output["forecast"].shape[1:])
    return inputs, rng.normal(size=shape).astype("float32")


def make_next_item_model(kind, **kwargs):
    """A next-item model of 8 items with random weights."""
    build, settings = NEXT_ITEM_BUILDERS[kind]
    model = build(8, **{**settings, **kwargs})
    randomize(model, np.random.default_rng(3), scale=0.4)
    return model


def make_histories(rows=6, length=4, seed=0):
    """Histories with padding anywhere, and the items that follow."""
    rng = np.random.default_rng(seed)
    histories = rng.integers(0, 9, (rows, length)).astype("int32")
    return {"item_ids": histories}, rng.integers(1, 9, rows).astype("int32")


def make_model(kind, features=FEATURES, **kwargs):
    """A model of a builder with random weights, so that zeros hide no error."""
    build, settings = BUILDERS[kind]
    model = build(features, **{**settings, **kwargs})
    randomize(model, np.random.default_rng(3), scale=0.4)
    for layer in model.layers:
        if isinstance(layer, layers.BehaviorRetrieval):
            layer.score.bias.assign([12.0])  # events are kept, in training too
    return model


def make_rows(rows=6, length=4, seed=0):
    """Rows of `FEATURES`; every id in its vocabulary, padding included."""
    rng = np.random.default_rng(seed)
    return {
        "user": rng.integers(0, 1_000, rows),
        "item": rng.integers(0, 9, rows),
        "history": rng.integers(0, 9, (rows, length)),
        "genres": rng.integers(0, 6, (rows, 3)).astype("int32"),
        "price": rng.normal(20.0, 4.0, rows).astype("float32"),
        "count": rng.integers(-2, 50, rows).astype("float32"),
        "city": rng.integers(0, 5, rows).astype("int32"),
    }


def make_labels(rows=6):
    return (np.arange(rows) % 2).astype("float32")[:, None]


def answer(model, inputs):
    """The probabilities without `predict`, which traces the model first."""
    return array(model(inputs)["probability"])


def predict(model, inputs):
    return model.predict(inputs, verbose=0)["probability"]


IDS = np.array([[0, 3, 9], [5, 0, 10]], "int32")
_FIELDS = np.random.default_rng(5).normal(size=(4, 5, 3)).astype("float32")
_COLUMN = _FIELDS[:, :1, 0]
_TARGET = _FIELDS[:, 0].copy()
_PLACES = np.array([[1, 1, 0], [0, 1, 1]], bool)
_MARKS = np.random.default_rng(6).integers(0, 4, (4, 5, 5)).astype("int32")
_ITEMS = np.random.default_rng(6).integers(0, 9, (4, 5)).astype("int32")

# Every public layer, with arguments off their defaults; a tuple of arrays holds the
# positional arguments of a call.
LAYERS = {
    "BehaviorRetrieval": (
        lambda **kw: layers.BehaviorRetrieval(
            (3,),
            num_heads=3,
            activation="tanh",
            seed=1,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        (_TARGET, _FIELDS),
    ),
    "BilinearDense": (
        lambda **kw: layers.BilinearDense(
            3,
            ("each", "interaction"),
            activation="tanh",
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        [_FIELDS, _FIELDS[:, :, 0].copy()],
    ),
    "BilinearInteraction": (
        lambda **kw: layers.BilinearInteraction("each", reduction="sum", **kw),
        _FIELDS,
    ),
    "BilinearPlus": (
        lambda **kw: layers.BilinearPlus(
            3, "each", kernel_regularizer=keras.regularizers.L2(0.1), **kw
        ),
        _FIELDS,
    ),
    "CPRSoftmax": (
        lambda **kw: layers.CPRSoftmax(
            rerank=(4, 2),
            context_mode="add",
            pointer_reduction="sum",
            chunk_size=3,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        (_FIELDS, _ITEMS),
    ),
    "CalendarEmbedding": (
        lambda **kw: layers.CalendarEmbedding(
            4,
            "15min",
            embedding="learned",
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            bias_initializer="ones",
            embeddings_initializer=keras.initializers.RandomNormal(seed=3),
            **kw,
        ),
        _MARKS,
    ),
    "ClickProbability": (
        lambda **kw: layers.ClickProbability(
            bias_initializer=keras.initializers.Constant(-1.0), **kw
        ),
        [_COLUMN, 2 * _COLUMN],
    ),
    "CompactIds": (
        lambda **kw: layers.CompactIds(2, **kw),
        IDS,
    ),
    "CompositionalEmbedding": (
        lambda **kw: layers.CompositionalEmbedding(
            11,
            4,
            partition=[np.arange(11) // 4, np.arange(11) % 4],
            combiner="stack",
            embeddings_regularizer=keras.regularizers.L2(0.1),
            mask_zero=True,
            pooling="mean",
            pool_first=True,
            out_of_range="zero",
            **kw,
        ),
        IDS,
    ),
    "CompressedInteraction": (
        lambda **kw: layers.CompressedInteraction(
            (4, 3),
            split_half=False,
            activation="tanh",
            use_bias=False,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        _FIELDS,
    ),
    "CrossNetwork": (
        lambda **kw: layers.CrossNetwork(
            3,
            kernel_initializer=keras.initializers.HeUniform(seed=2),
            bias_initializer="ones",
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        _FIELDS[:, 0].copy(),
    ),
    "DistillConv": (
        lambda **kw: layers.DistillConv(
            "same",
            momentum=0.5,
            epsilon=0.01,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            bias_initializer="ones",
            **kw,
        ),
        _FIELDS,
    ),
    "DualQueryAttention": (
        lambda **kw: layers.DualQueryAttention(
            5,
            attention_activation="softmax",
            use_subtraction=False,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            bias_initializer="ones",
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        (_TARGET, -_TARGET, _FIELDS),
    ),
    "ExcludeSeen": (
        lambda **kw: layers.ExcludeSeen(**kw),
        (_FIELDS[:, :, 0].copy(), _ITEMS % 5),
    ),
    "FactorizationMachine": (
        lambda **kw: layers.FactorizationMachine(reduction=None, **kw),
        _FIELDS,
    ),
    "FieldAwareFactorizationMachine": (
        lambda **kw: layers.FieldAwareFactorizationMachine(**kw),
        _FIELDS[:, :3].copy(),
    ),
    "FieldEmbedding": (
        lambda **kw: layers.FieldEmbedding(
            [6, 4, 11],
            4,
            field_names=["city", "hour", "item"],
            embeddings_initializer=keras.initializers.RandomNormal(seed=3),
            embeddings_regularizer=keras.regularizers.L2(0.1),
            embeddings_constraint=keras.constraints.MaxNorm(2.0),
            out_of_range="oov",
            **kw,
        ),
        [IDS[:, field].copy() for field in range(3)],
    ),
    "FieldOrder": (lambda **kw: layers.FieldOrder([4, 0, 4], **kw), _FIELDS),
    "FullAttention": (
        lambda **kw: layers.FullAttention(
            2,
            3,
            value_dim=2,
            output_dim=4,
            causal=True,
            mix=True,
            dropout=0.2,
            seed=1,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            bias_initializer="ones",
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        (_FIELDS, -_FIELDS),
    ),
    "FullEmbedding": (
        lambda **kw: layers.FullEmbedding(
            11, 4, out_of_range="oov", mask_zero=True, zero_masked=True, **kw
        ),
        IDS,
    ),
    "GRUEncoder": (
        lambda **kw: layers.GRUEncoder(
            4,
            2,
            use_bias=True,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        _FIELDS,
    ),
    "HashEmbedding": (
        lambda **kw: layers.HashEmbedding(
            11, 4, num_buckets=3, out_of_range="mod", mask_zero=True, **kw
        ),
        IDS,
    ),
    "InformerDecoderBlock": (
        lambda **kw: layers.InformerDecoderBlock(
            2,
            key_dim=3,
            intermediate_dim=5,
            factor=1,
            attention_options={"lazy": "cummean", "measure": "exact"},
            activation="tanh",
            dropout=0.2,
            attention_dropout=0.1,
            epsilon=0.01,
            seed=1,
            mix=False,
            output_len=2,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            bias_initializer="ones",
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        (_FIELDS, -_FIELDS),
    ),
    "InformerEncoderBlock": (
        lambda **kw: layers.InformerEncoderBlock(
            2,
            key_dim=3,
            intermediate_dim=5,
            factor=1,
            attention_options={"lazy": "cummean", "measure": "exact"},
            activation="tanh",
            dropout=0.2,
            attention_dropout=0.1,
            epsilon=0.01,
            seed=1,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            bias_initializer="ones",
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        _FIELDS,
    ),
    "InteractingLayer": (
        lambda **kw: layers.InteractingLayer(
            3,
            2,
            use_residual=False,
            scale=True,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        _FIELDS,
    ),
    "InterestEvolution": (
        lambda **kw: layers.InterestEvolution(
            4,
            hidden_units=(3,),
            update="released",
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        (_TARGET, _FIELDS),
    ),
    "IterativeMemory": (
        lambda **kw: layers.IterativeMemory(
            2,
            5,
            normalize="sqrt_len",
            share_pass_weights=False,
            return_memories=True,
            reset_after=True,
            gate_bias_initializer="zeros",
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        (_TARGET, _FIELDS),
    ),
    "MemoryEnhancement": (
        lambda **kw: layers.MemoryEnhancement(
            2,
            share_step_transform=False,
            transform_bias=True,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        (-_TARGET, _TARGET),
    ),
    "MemorySlots": (
        lambda **kw: layers.MemorySlots(
            2,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        (_TARGET, _FIELDS),
    ),
    "MixedDimensionEmbedding": (
        lambda **kw: layers.MixedDimensionEmbedding(
            11, 4, table_dim=2, pooling="sqrtn", out_of_range="oov", **kw
        ),
        IDS,
    ),
    "MixtureOfSoftmaxes": (
        lambda **kw: layers.MixtureOfSoftmaxes(
            2,
            "static",
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        (_FIELDS, _ITEMS),
    ),
    "MultiInputState": (
        lambda **kw: layers.MultiInputState(
            2,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        [_FIELDS, _FIELDS[:, ::-1].copy()],
    ),
    "NumericEmbedding": (
        lambda **kw: layers.NumericEmbedding(
            4,
            kernel_initializer=keras.initializers.RandomNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        _FIELDS[:, 0].copy(),
    ),
    "NumericNormalization": (
        lambda **kw: layers.NumericNormalization(
            ["log", None], mean=[1.0, -1.0], std=2.0, **kw
        ),
        [np.array([-1.0, 0.0, 7.0], "float32"), np.array([2.0, 0.0, -7.0], "float32")],
    ),
    "PaddingMask": (lambda **kw: layers.PaddingMask(**kw), IDS),
    "PositionalEncoding": (
        lambda **kw: layers.PositionalEncoding(
            True,
            max_len=6,
            embeddings_initializer=keras.initializers.RandomNormal(seed=3),
            **kw,
        ),
        _FIELDS,
    ),
    "ProbSparseAttention": (
        lambda **kw: layers.ProbSparseAttention(
            2,
            3,
            1,
            value_dim=2,
            output_dim=4,
            causal=True,
            inference_measure="exact",
            divisor="sample",
            lazy="cummean",
            causal_sampling=True,
            dropout=0.2,
            seed=1,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            bias_initializer="ones",
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        (_FIELDS, -_FIELDS),
    ),
    "QREmbedding": (
        lambda **kw: layers.QREmbedding(
            11,
            4,
            num_buckets=4,
            combiner="concat",
            embeddings_initializer=keras.initializers.RandomNormal(seed=3),
            embeddings_constraint=keras.constraints.MaxNorm(2.0),
            out_of_range="nan",
            **kw,
        ),
        IDS,
    ),
    "RepeatHead": (
        lambda **kw: layers.RepeatHead(
            dropout=0.2,
            seed=1,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        (_FIELDS, _ITEMS),
    ),
    "ReversePositionEmbedding": (
        lambda **kw: layers.ReversePositionEmbedding(
            2,
            4,
            most_recent_first=True,
            embeddings_initializer=keras.initializers.RandomNormal(seed=3),
            **kw,
        ),
        _PLACES,
    ),
    "ReversibleNormalization": (
        lambda **kw: layers.ReversibleNormalization(
            "last", affine=True, epsilon=0.01, **kw
        ),
        _FIELDS,
    ),
    "SENETLayer": (
        lambda **kw: layers.SENETLayer(2, squeeze="max", activation="sigmoid", **kw),
        _FIELDS,
    ),
    "SENETPlus": (
        lambda **kw: layers.SENETPlus(
            3,
            1.5,
            activation="sigmoid",
            epsilon=0.01,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        _FIELDS,
    ),
    "SampledSoftmax": (
        lambda **kw: layers.SampledSoftmax(
            4,
            sampling="log_uniform",
            seed=1,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        (_FIELDS, _ITEMS),
    ),
    "SelfAttentionBlock": (
        lambda **kw: layers.SelfAttentionBlock(
            3,
            intermediate_dim=5,
            activation="tanh",
            projection_activation="relu",
            use_output_projection=True,
            pre_norm=False,
            causal=True,
            dropout=0.2,
            seed=1,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        _FIELDS,
    ),
    "SequenceEncoder": (
        lambda **kw: layers.SequenceEncoder(
            1,
            3,
            intermediate_dim=4,
            max_len=6,
            align="last",
            activation="tanh",
            dropout=0.1,
            attention_dropout=0.2,
            seed=1,
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        _FIELDS,
    ),
    "SequencePooling": (lambda **kw: layers.SequencePooling("sqrtn", **kw), _FIELDS),
    "SeriesDecomposition": (
        lambda **kw: layers.SeriesDecomposition(4, **kw),
        _FIELDS,
    ),
    "TargetAttention": (
        lambda **kw: layers.TargetAttention(
            (5, 3),
            interactions=("value", "difference", "product"),
            activation="relu",
            attention_activation="sigmoid",
            normalize="sum",
            bias_initializer="ones",
            kernel_regularizer=keras.regularizers.L2(0.1),
            **kw,
        ),
        (_TARGET, _FIELDS),
    ),
    "TimeBucketEmbedding": (
        lambda **kw: layers.TimeBucketEmbedding(
            4,
            5,
            time_unit=0.5,
            embeddings_initializer=keras.initializers.RandomNormal(seed=3),
            **kw,
        ),
        IDS,
    ),
    "TokenEmbedding": (
        lambda **kw: layers.TokenEmbedding(
            4,
            padding="same",
            kernel_initializer=keras.initializers.HeNormal(seed=2),
            bias_initializer="ones",
            **kw,
        ),
        _FIELDS,
    ),
}


def make_layer_model(name, **kwargs):
    """A model of one public layer, with random weights."""
    make, inputs = LAYERS[name]
    symbolic = keras.tree.map_structure(
        lambda x: keras.Input(x.shape[1:], dtype=str(x.dtype)), inputs
    )
    layer = make(name="tried", **kwargs)
    if name == "BilinearDense":
        output = layer(symbolic[0], field_weights=symbolic[1])
    elif isinstance(layer, NextItemHead):
        items = layers.FullEmbedding(9, 3, name="items")
        output = layer(*symbolic, items(symbolic[1], return_table=True)[1])
    else:
        output = layer(*(symbolic if isinstance(symbolic, tuple) else (symbolic,)))
    if isinstance(output, tuple):
        output = keras.layers.Concatenate()(output)
    model = keras.Model(symbolic, output)
    randomize(model, np.random.default_rng(4))
    return model
