"""Schemas of files by the features of a model."""

from keras_recsys.features import check_features

__all__ = ["schema_of"]


def schema_of(features):
    """Makes the schema of the encoded columns that a model of some features reads.

    Args:
        features: Non-empty sequence of features.

    Returns:
        Dict from feature name to dtype, as the readers take it: `"int32"` or `"int64"`
        for ids, with `"[]"` behind it for histories and their times, and `"float32"`
        for numbers.

    Raises:
        TypeError: If an entry is no feature.
        ValueError: If `features` is empty or holds a name twice.

    Example:
    >>> from keras_recsys import CategoricalFeature, NumericFeature, SequenceFeature
    >>> schema_of([CategoricalFeature("city", 9), SequenceFeature("tags", 5)])
    {'city': 'int32', 'tags': 'int32[]'}
    >>> schema_of([NumericFeature("age")])
    {'age': 'float32'}
    """
    return {
        feature.name: feature.dtype + "[]" * bool(feature.shape)
        for feature in check_features(features)
    }
