"""Vocabularies of a `tf.data.Dataset` of raw columns, and its encoding in the graph."""

from keras_recsys._checks import check_int
from keras_recsys.data._base_vocabulary import (
    check_padding_and_separator,
    check_vocabularies,
    pad_ids,
)
from keras_recsys.data._counting import ValueCounts
from keras_recsys.data.vocabulary import Vocabulary

DEFAULTS = {
    "min_count": 1,
    "max_size": None,
    "num_oov": 1,
    "padding": False,
    "separator": None,
}
ROWS_AT_ONCE = 1024  # single rows that are counted together
BATCHES_AT_ONCE = 16


def fit_vocabularies(dataset, settings):
    """Makes the vocabularies of several columns in one pass over a dataset.

    Each is equal to what `Vocabulary.fit` makes of the whole column, but the rows are
    streamed: memory grows with the distinct values alone.

    All numbers of a sequence are counted, one by one. They are raw values like any
    other, 0 too, since a raw 0 may be an item: sequences of different lengths belong in
    a `tf.RaggedTensor`, which has no padding, and not in a tensor filled up with 0.

    Args:
        dataset: A finite `tf.data.Dataset` of single rows or of batches. Its elements
            are dicts from column name to tensor, or tuples of such a dict and labels or
            weights. Columns are strings in UTF-8 or integers, of any shape, dense or
            ragged; those without settings may be anything and are ignored.
        settings: Non-empty dict from column name to a dict of the keyword arguments of
            `Vocabulary.fit`: `min_count`, `max_size`, `num_oov`, `padding` and
            `separator`; `{}` for its defaults.

    Returns:
        Dict from column name to `Vocabulary`, in the order of `settings`.

    Raises:
        TypeError: If `dataset` is no dataset of dicts, a column holds neither strings
            nor integers, or integers where there is a separator, or an option is of a
            wrong type.
        ValueError: If a column is not in the dataset, the dataset is infinite or empty,
            no value of a column is left, a string is not UTF-8, or an option is unknown
            or out of its range.

    Example:
    >>> import tensorflow as tf
    >>> rows = {"city": ["rome", "oslo", "rome"], "tags": ["new|old", "", "old"]}
    >>> dataset = tf.data.Dataset.from_tensor_slices(rows).batch(2)
    >>> found = fit_vocabularies(dataset, {"city": {}, "tags": {"separator": "|"}})
    >>> found["city"].values, found["tags"].values
    (('rome', 'oslo'), ('old', 'new'))
    """
    import tensorflow as tf

    columns = _columns_of(dataset)
    settings = _check_settings(settings)
    _check_names("settings", settings, columns)
    for name, options in settings.items():
        dtype = _raw_dtype(name, columns[name])
        if options["separator"] is not None and dtype != "string":
            raise TypeError(
                f"Column {name!r} must hold strings where `separator` is given. "
                f"Received: dtype {columns[name].dtype.name!r}."
            )
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "`dataset` must be finite; cut it with `dataset.take(n)`. "
            "Received: a dataset of infinite cardinality."
        )
    totals = {
        name: ValueCounts(options["min_count"], options["max_size"])
        for name, options in settings.items()
    }
    is_empty = True
    for counted in _counted(dataset, columns, settings).as_numpy_iterator():
        is_empty = False
        for name, (values, counts, num_cells) in counted.items():
            totals[name].add(values.tolist(), counts.tolist(), int(num_cells))
    if is_empty:
        raise ValueError(
            "`dataset` must hold at least one row. Received: an empty dataset."
        )
    vocabularies = {}
    for name, options in settings.items():
        what = f"Column {name!r}"
        if columns[name].dtype == tf.string:
            totals[name].decode(what)
        special = {key: options[key] for key in ("num_oov", "padding", "separator")}
        vocabularies[name] = Vocabulary(totals[name].values(what), **special)
    return vocabularies


def encode_dataset(dataset, vocabularies, *, max_len=None, columns=None):
    """Encodes the raw columns of a dataset of batches inside the `tf.data` graph.

    The ids are those of `encode` of each vocabulary. Columns without a vocabulary,
    labels and weights are passed on.

    Args:
        dataset: A `tf.data.Dataset` of batches: dicts from column name to tensor, or
            tuples of such a dict and labels or weights. A column with a vocabulary
            holds strings or integers of any shape, or of shape `(batch_size,)` for a
            vocabulary with a separator, or is a `tf.RaggedTensor`.
        vocabularies: Dict from column name to `Vocabulary` or `HashedVocabulary`.
        max_len: Length of the rows of ids, a positive int for all columns of several
            values a row, or a dict from column name to int; the first `max_len` values
            are kept. Columns of several values a row are those of a vocabulary with a
            separator, and ragged ones of a vocabulary with padding. A dict may also
            name ragged columns without a vocabulary, which hold ids already and are
            only padded. Defaults to `None`, the length of the longest row of each
            batch, at least 1; so is `None` in a dict.
        columns: Names of the columns to give, such as those that a model reads, which
            takes no others. Defaults to `None`, all.

    Returns:
        A `tf.data.Dataset` of the same structure with ids of `id_dtype`: in the shape
        of the column, or `(batch_size, max_len)`, padded with 0 at the end, where there
        are several values a row. Ragged columns of a vocabulary without padding stay
        ragged.

    Raises:
        TypeError: If `dataset` is no dataset of dicts, `vocabularies` no dict of
            vocabularies, a column is not of the dtype of its vocabulary, or `max_len`
            is of a wrong type.
        ValueError: If a name is no column, a column is of a wrong shape, or `max_len`
            is out of its range or for a column of single values.

    Example:
    >>> import tensorflow as tf
    >>> batch = {"city": ["rome", "bonn"], "age": [7, 8]}
    >>> dataset = tf.data.Dataset.from_tensors(batch)
    >>> encoded = encode_dataset(dataset, {"city": Vocabulary(["rome"])})
    >>> {name: ids.numpy().tolist() for name, ids in next(iter(encoded)).items()}
    {'city': [1, 0], 'age': [7, 8]}
    """
    import tensorflow as tf

    kept, columns = columns, _columns_of(dataset)
    kept = list(columns if kept is None else kept)
    check_vocabularies(vocabularies)
    _check_names("columns", kept, columns)
    _check_names("vocabularies", vocabularies, columns)
    vocabularies = {n: v for n, v in vocabularies.items() if n in kept}
    for name, vocabulary in vocabularies.items():
        dtype = _raw_dtype(name, columns[name])
        if dtype != vocabulary.dtype:
            raise TypeError(
                f"Column {name!r} must hold values of dtype {vocabulary.dtype!r}, as "
                f"its vocabulary does. Received: dtype {columns[name].dtype.name!r}."
            )
    lengths = _lengths(max_len, vocabularies, columns)
    with tf.device("CPU:0"):
        lookups = {name: vocab.lookup() for name, vocab in vocabularies.items()}

    is_tuple = isinstance(dataset.element_spec, tuple)

    def encode(columns, *rest):
        ids = {
            name: lookup.look_up(columns[name], lengths.get(name))
            for name, lookup in lookups.items()
        }
        for name in set(lengths) & set(kept) - set(lookups):
            ids[name] = pad_ids(columns[name], lengths[name], columns[name].shape[0])
        encoded = {name: ids.get(name, columns[name]) for name in kept}
        return (encoded, *rest) if is_tuple else encoded

    return dataset.map(encode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _columns_of(dataset):
    """Returns the dict of the specs of the columns of a dataset."""
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"`dataset` must be a `tf.data.Dataset`. Received: dataset={dataset!r}."
        )
    columns = spec = dataset.element_spec
    if isinstance(spec, tuple) and spec:
        columns = spec[0]
    if not isinstance(columns, dict):
        raise TypeError(
            "`dataset` must have elements that are dicts of columns, or tuples that "
            f"begin with one. Received: elements {spec!r}."
        )
    return columns


def _check_names(argument, given, columns):
    unknown = [name for name in given if name not in columns]
    if unknown:
        raise ValueError(
            f"`{argument}` must have names of columns of the dataset, which are "
            f"{list(columns)}. Received: {unknown}."
        )


def _raw_dtype(name, spec):
    """Returns the dtype of the vocabulary of a column, by its spec."""
    import tensorflow as tf

    if isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec):
        if spec.dtype == tf.string:
            return "string"
        if spec.dtype.is_integer and spec.dtype != tf.uint64:  # which has larger ones
            return "int64"
    raise TypeError(
        f"Column {name!r} must be a tensor of strings or of integers that fit int64, "
        f"dense or ragged. Received: {spec!r}."
    )


def _check_settings(settings):
    """Returns the settings with all options filled in."""
    if not isinstance(settings, dict) or not all(
        isinstance(options, dict) for options in settings.values()
    ):
        raise TypeError(
            "`settings` must be a dict from column name to a dict of options. "
            f"Received: settings={settings!r}."
        )
    if not settings:
        raise ValueError(
            "`settings` must name at least one column. "
            f"Received: settings={settings!r}."
        )
    for name, options in settings.items():
        unknown = [key for key in options if key not in DEFAULTS]
        if unknown:
            raise ValueError(
                f"`settings[{name!r}]` must have options of {list(DEFAULTS)} only. "
                f"Received: {unknown}."
            )
    filled = {name: {**DEFAULTS, **options} for name, options in settings.items()}
    for name, options in filled.items():
        try:  # all before the pass, which may be long
            ValueCounts(options["min_count"], options["max_size"])
            check_int("num_oov", options["num_oov"], minimum=0)
            check_padding_and_separator(options["padding"], options["separator"])
        except (TypeError, ValueError) as error:
            raise type(error)(f"In `settings[{name!r}]`: {error}") from error
    return filled


def _counted(dataset, columns, settings):
    """Makes a dataset of distinct values, their counts and the number of cells."""
    import tensorflow as tf

    def flatten(element, *_):
        return {name: flat(element[name]) for name in settings}

    def flat(values):
        if isinstance(values, tf.RaggedTensor):
            values = values.flat_values
        return tf.reshape(values, (-1,))

    def count(element):
        return {name: distinct(name, flat(element[name])) for name in settings}

    def distinct(name, cells):
        separator = settings[name]["separator"]
        values = cells
        if separator is not None:
            values = tf.strings.split(cells, separator).flat_values
            values = tf.boolean_mask(values, tf.not_equal(values, ""))
        values, _, counts = tf.unique_with_counts(values, out_idx=tf.int64)
        return values, counts, tf.size(cells)

    # Several elements at a time, or a Python loop over the rows would be what takes
    # the time where the elements are single rows.
    are_rows = any(columns[name].shape.rank == 0 for name in settings)
    return (
        dataset.map(flatten, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
        .ragged_batch(ROWS_AT_ONCE if are_rows else BATCHES_AT_ONCE)
        .map(count, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
        .prefetch(tf.data.AUTOTUNE)
    )


def _lengths(max_len, vocabularies, columns):
    """Returns a dict from column name to the length of its rows of ids."""
    import tensorflow as tf

    several = [
        name
        for name, vocabulary in vocabularies.items()
        if vocabulary.separator is not None
        or (vocabulary.padding and isinstance(columns[name], tf.RaggedTensorSpec))
    ]
    if max_len is None:
        return {}
    if isinstance(max_len, dict):
        for name, length in max_len.items():
            if length is not None:
                check_int(f"max_len[{name!r}]", length)
        several += [
            name
            for name, column in columns.items()
            if name not in vocabularies
            and isinstance(column, tf.RaggedTensorSpec)
            and column.dtype.is_integer
            and column.shape.rank == 2
        ]
        unfit = [name for name in max_len if name not in several]
    else:
        check_int("max_len", max_len)
        unfit = [] if several else list(vocabularies)
        max_len = dict.fromkeys(several, max_len)
    if unfit:
        raise ValueError(
            "`max_len` must be for columns of a vocabulary with a separator, or ragged "
            "ones of a vocabulary with padding, or in a dict ragged ones of ids, here "
            f"{several}. Received: {unfit}."
        )
    return max_len
