"""`build_informer`, the sparse encoder and decoder of long time series."""

import itertools

import keras

from keras_recsys import layers
from keras_recsys._checks import check_int, check_rate, check_widths
from keras_recsys.models.forecasting._frame import (
    ForecastFrame,
    TakeSteps,
    initializers,
)


def build_informer(
    num_channels,
    *,
    seq_len,
    pred_len,
    label_len=None,
    num_outputs=None,
    frequency="h",
    calendar_embedding="timeF",
    hidden_dim=512,
    num_heads=8,
    intermediate_dim=2048,
    encoder_layers=2,
    encoder_exponents=None,
    decoder_layers=1,
    attention="prob_sparse",
    factor=5,
    attention_options=None,
    distill=True,
    mix=True,
    padding="circular",
    normalization=None,
    activation="gelu",
    dropout=0.05,
    initial_values="pytorch",
    seed=None,
    inputs=None,
    name="informer",
):
    """Builds Informer: an encoder that halves the series, and a one-shot decoder.

        embed(x, t) = dropout(token(x) + position + calendar(t))
        memory = norm(block(distill(block(embed(known, t_known)))))
        start = last label_len known steps, then zeros for pred_len steps
        forecast = dense(norm(decoder_block(embed(start, t_start), memory)))

    All steps are forecast at once, in training and in inference. Values are meant to be
    standardised: the zeros stand for means. What is known of the future is the
    calendar alone; no value of it is an input.

    Args:
        num_channels: Positive int, channels of the series.
        seq_len: Positive int, known steps.
        pred_len: Positive int, steps to forecast.
        label_len: Int from 0 to `seq_len`, known steps that the decoder starts with.
            Defaults to `None`, `seq_len // 2`.
        num_outputs: Positive int, how many of the last channels are forecast: 1 for the
            target alone. Defaults to `None`, all.
        frequency: Step of the series, such as `"h"` or `"15min"`, see
            `CalendarEmbedding`. Defaults to `"h"`.
        calendar_embedding: `"timeF"`, `"fixed"` or `"learned"`, see
            `CalendarEmbedding`; `None` leaves the calendar out, as yearly series must.
            Defaults to `"timeF"`.
        hidden_dim: Positive int, width of encoder and decoder. Defaults to `512`.
        num_heads: Positive int, a divisor of `hidden_dim`. Defaults to `8`.
        intermediate_dim: Positive int, inner width of the feed-forward parts. Defaults
            to `2048`.
        encoder_layers: Positive int, blocks of the encoder; or a list of them, a stack
            of encoders whose outputs are joined along time. Defaults to `2`.
        encoder_exponents: For a stack a list of ints of at least 0: the encoder of
            exponent `j` reads the last `seq_len // 2**j` steps. Defaults to `None`, 0,
            1, 2, and so on, as in the authors' code; `encoder_layers=[3, 1]` with `[0,
            2]` is the stack of the paper.
        decoder_layers: Positive int, blocks of the decoder. Defaults to `1`.
        attention: `"prob_sparse"` or `"full"` self-attention, the second the paper's
            variant with the dagger. Defaults to `"prob_sparse"`.
        factor: Positive int, see `ProbSparseAttention`. Defaults to `5`.
        attention_options: Dict of further arguments of `ProbSparseAttention`. Defaults
            to `None`.
        distill: Whether a `DistillConv` stands between two blocks of an encoder.
            Defaults to `True`.
        mix: Whether the decoder joins heads by head, see `InformerDecoderBlock`. Try
            `False` where training is stuck. Defaults to `True`.
        padding: `"circular"` or `"same"`, of the convolutions. Circular ones join the
            end of a window to its beginning. Defaults to `"circular"`.
        normalization: `None`; `"last"`, which takes the last known value from a window
            and adds it to the forecast; or `"instance"`, see
            `ReversibleNormalization`. Both help where the level of a series moves.
            Defaults to `None`.
        activation: Activation of the feed-forward parts. Defaults to `"gelu"`, exact.
        dropout: Float in `[0, 1)`. Defaults to `0.05`.
        initial_values: `"pytorch"`, the uniform ones of the authors' framework, or
            `"keras"`. Defaults to `"pytorch"`.
        seed: Optional int of samples and dropout. Defaults to `None`.
        inputs: Optional dict from input name to an existing `keras.Input`.
        name: Name of the model, and prefix of its layer names.

    Returns:
        An uncompiled `ForecastModel`. Inputs: `"values"`, float32, `(batch_size,
        seq_len, num_channels)`, standardised, and unless `calendar_embedding` is `None`
        `"calendar"`, `(batch_size, seq_len + pred_len, num_features)`, as
        `keras_recsys.data.calendar_features` makes it of known and future times.
        Output: `"forecast"`, float32, `(batch_size, pred_len, num_outputs)`.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If an argument is out of its range.

    Reference:
        Zhou et al., "Informer: Beyond Efficient Transformer for Long Sequence
        Time-Series Forecasting", AAAI 2021; sizes are those of the authors' runner.
        Differs from their code: forecasts are repeatable, see `ProbSparseAttention`;
        the last block of the decoder leaves out what is not in the forecast.
    """
    seq_len = check_int("seq_len", seq_len)
    label_len = (
        seq_len // 2 if label_len is None else check_int("label_len", label_len, 0)
    )
    decoder_layers = check_int("decoder_layers", decoder_layers)
    stack = isinstance(encoder_layers, (list, tuple))
    depths = check_widths(
        "encoder_layers", encoder_layers if stack else (encoder_layers,)
    )
    exponents = _exponents(encoder_exponents, len(depths), seq_len)
    if label_len > seq_len:
        raise ValueError(
            f"`label_len` must be at most `seq_len`, {seq_len}. "
            f"Received: label_len={label_len!r}."
        )
    frame = ForecastFrame(
        num_channels,
        seq_len=seq_len,
        pred_len=pred_len,
        num_outputs=num_outputs,
        calendar=(
            None if calendar_embedding is None else (frequency, calendar_embedding)
        ),
        normalization=normalization,
        inputs=inputs,
        name=name,
    )
    initial = initializers(initial_values)
    seeds = itertools.count(0 if seed is None else check_int("seed", seed, 0), 100)
    dropout = check_rate("dropout", dropout)

    def next_seed():
        return None if seed is None else next(seeds) % 2**31

    def embed(values, calendar, part):
        x = layers.TokenEmbedding(
            hidden_dim, padding=padding, name=f"{name}_{part}_token"
        )(values)
        x = layers.PositionalEncoding(name=f"{name}_{part}_position")(x)
        if calendar is not None:
            times = layers.CalendarEmbedding(
                hidden_dim,
                frequency,
                embedding=calendar_embedding,
                name=f"{name}_{part}_calendar",
                **initial,
            )(calendar)
            x = keras.layers.Add(name=f"{name}_{part}_embedding")([x, times])
        return keras.layers.Dropout(
            dropout, seed=next_seed(), name=f"{name}_{part}_dropout"
        )(x)

    def normalize(x, part):
        return keras.layers.LayerNormalization(
            epsilon=1e-5, name=f"{name}_{part}_norm"
        )(x)

    block = {
        "intermediate_dim": intermediate_dim,
        "attention": attention,
        "factor": factor,
        "attention_options": attention_options,
        "activation": activation,
        "dropout": dropout,
        **initial,
    }

    def encode(x, depth, part):
        for i in range(depth):
            x = layers.InformerEncoderBlock(
                num_heads, seed=next_seed(), name=f"{name}_{part}_block_{i}", **block
            )(x)
            if distill and i < depth - 1:
                x = layers.DistillConv(
                    padding, name=f"{name}_{part}_distill_{i}", **initial
                )(x)
        return normalize(x, part)

    def steps(x, part, *args, **kwargs):
        return TakeSteps(*args, name=f"{name}_{part}", **kwargs)(x)

    known = frame.calendar
    if known is not None:
        known = steps(known, "encoder_times", 0, seq_len)
        future = steps(frame.calendar, "decoder_times", seq_len - label_len)
    else:
        future = None
    x = embed(frame.values, known, "encoder")
    memories = []
    for j, (depth, exponent) in enumerate(zip(depths, exponents, strict=True)):
        part = f"encoder_{j}" if stack else "encoder"
        tail = x
        if exponent:
            tail = steps(x, f"{part}_steps", seq_len - seq_len // 2**exponent)
        memories.append(encode(tail, depth, part))
    memory = memories[0]
    if len(memories) > 1:
        memory = keras.layers.Concatenate(axis=1, name=f"{name}_memory")(memories)

    start = steps(
        frame.values,
        "decoder_values",
        seq_len - label_len,
        length=label_len + frame.pred_len,
    )
    x = embed(start, future, "decoder")
    for i in range(decoder_layers):
        x = layers.InformerDecoderBlock(
            num_heads,
            mix=mix,
            output_len=frame.pred_len if i == decoder_layers - 1 else None,
            seed=next_seed(),
            name=f"{name}_decoder_block_{i}",
            **block,
        )(x, memory)
    x = normalize(x, "decoder")
    if initial:
        initial["bias_initializer"] = type(initial["bias_initializer"])(hidden_dim)
    dense = keras.layers.Dense(
        frame.num_outputs, dtype="float32", name=f"{name}_dense", **initial
    )
    return frame.model_of(dense(x))


def _exponents(exponents, count, seq_len):
    """The exponents of the encoders.

    Raises:
        TypeError: If one is not an integer.
        ValueError: If there are not as many as encoders, or one leaves no step.
    """
    if exponents is None:
        exponents = range(count)
    exponents = [check_int("encoder_exponents", x, 0) for x in exponents]
    if len(exponents) != count or any(seq_len // 2**x == 0 for x in exponents):
        raise ValueError(
            f"`encoder_exponents` must be {count}, one for each encoder, and leave "
            f"one of {seq_len} steps at least. "
            f"Received: encoder_exponents={exponents!r}."
        )
    return exponents
