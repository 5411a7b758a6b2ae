"""`build_transformer_forecaster`, full attention in the shape of Informer."""

from keras_recsys.models.forecasting.informer import build_informer


def build_transformer_forecaster(num_channels, *, name="transformer", **kwargs):
    """Builds a Transformer that forecasts all steps at once, as Informer does.

    It has the embeddings, the one-shot decoder and the sizes of `build_informer`, full
    attention instead of a sparse one, and neither halves the series nor mixes the
    heads. Its time and memory grow with the square of `seq_len`. The variant of
    Informer with full attention is `build_informer(attention="full")`.

    Args:
        num_channels: Positive int, channels of the series.
        name: Name of the model, and prefix of its layer names.
        **kwargs: Further arguments of `build_informer`, but for `attention`, `factor`,
            `attention_options`, `distill` and `mix`.

    Returns:
        An uncompiled `ForecastModel`, of inputs and output as of `build_informer`.

    Raises:
        TypeError: If a size is not an integer, or an argument is not taken.
        ValueError: If an argument is out of its range.

    Reference:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017, with the decoder of
        Zhou et al., "Informer", AAAI 2021, Section 3.
    """
    return build_informer(
        num_channels, attention="full", distill=False, mix=False, name=name, **kwargs
    )
