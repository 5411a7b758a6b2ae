"""The schema of a reader, and the check of its rows."""

import glob
import numbers
import os

import numpy as np

from keras_recsys._checks import check_choice
from keras_recsys.data._base_vocabulary import check_vocabularies
from keras_recsys.data.read_report import MAX_TEXT, ReadReport
from keras_recsys.data.vocabulary import Vocabulary

KINDS = ("string", "int64", "int32", "float32")
INTEGER = r"^[+-]?[0-9]+$"
FLOAT = (
    r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
    r"|^[+-]?(?i:nan|inf|infinity)$"
)
ERRORS = ("raise", "skip")
MUST = {
    "short line": "must have as many cells as there are columns",
    "long line": "must have as many cells as there are columns",
    "stray quote": "must have quotes around whole cells only, each within one line",
    "control character": "must hold no NUL, and no carriage return but at its end",
    "not UTF-8": "must be UTF-8",
    "empty file": "must have a line of column names",
    "bad number": "must hold a number of dtype {kind}",
    "not finite": "must hold a finite number of dtype {kind}",
    "out of range": "must hold an integer that fits {kind}",
    "missing value": "must hold no missing value where `fill` gives no value for it",
    "unknown category": "must hold values of its vocabulary, whose `num_oov` is 0",
}


def kind_of(dtype):
    """Returns the dtype of single values and whether there are several a row."""
    is_list = isinstance(dtype, str) and dtype.endswith("[]")
    return (dtype[:-2] if is_list else dtype), is_list


def find_files(paths):
    """Returns the files of a path, a pattern, or a list of them.

    Raises:
        ValueError: If there is no file for one of them.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files = []
    for path in map(os.fspath, given):
        found = [path] if os.path.isfile(path) else sorted(glob.glob(path))
        found = [file for file in found if os.path.isfile(file)]
        if not found:
            raise ValueError(
                f"`paths` must be files, or patterns of files. Received: {path!r}."
            )
        files += found
    if not files:
        raise ValueError(
            f"`paths` must hold at least one file. Received: paths={paths!r}."
        )
    return files


def check_schema(schema, label):
    """Returns a dict of the dtypes of the columns to read, the label last.

    Raises:
        TypeError: If `schema` is no dict, or `label` no string.
        ValueError: If a dtype is unknown, or `label` is a column of `schema`.
    """
    if not isinstance(schema, dict):
        raise TypeError(
            "`schema` must be a dict from column name to dtype. "
            f"Received: schema={schema!r}."
        )
    if not schema:
        raise ValueError("`schema` must name at least one column. Received: {}.")
    allowed = KINDS + tuple(f"{kind}[]" for kind in KINDS)
    for name, dtype in schema.items():
        check_choice(f"schema[{name!r}]", dtype, allowed)
    if label is None:
        return dict(schema)
    if not isinstance(label, str):
        raise TypeError(
            f"`label` must be None or a column name. Received: label={label!r}."
        )
    if label in schema:
        raise ValueError(
            "`label` must be no column of `schema`: models must not see it. "
            f"Received: label={label!r}."
        )
    return {**schema, label: "float32"}


def check_columns(file, columns, given):
    """Checks that a file has the columns of the schema, each once.

    Raises:
        ValueError: If it has not.
    """
    given = list(given)
    missing = [name for name in columns if name not in given]
    if missing:
        raise ValueError(
            f"{file} must have the columns {missing}. Received: columns {given}."
        )
    double = sorted({name for name in given if given.count(name) > 1})
    if double:
        raise ValueError(
            f"{file} must have distinct column names. "
            f"Received: {double} more than once."
        )


def shorten(text):
    """Returns as much of a text as errors show."""
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."


class DamageLog:
    """Raises at a damaged row, or has it left out and reported.

    Args:
        errors: `"raise"` or `"skip"`.
        report: A `ReadReport`, or `None`.
        unit: What rows are counted in, `"line"` or `"row"`.
    """

    def __init__(self, errors, report, unit):
        check_choice("errors", errors, ERRORS)
        if report is not None and not isinstance(report, ReadReport):
            raise TypeError(
                f"`report` must be None or a `ReadReport`. Received: report={report!r}."
            )
        self.errors = errors
        self.unit = unit
        self.is_given = report is not None
        self.report = ReadReport() if report is None else report

    def add(self, file, number, reason, text, column=None, kind=None):
        """Takes note of one damaged row.

        Raises:
            ValueError: If `errors` is `"raise"`.
        """
        text = shorten(text)
        if self.errors == "raise":
            where = "" if column is None else f", column {column!r}"
            raise ValueError(
                f"{file}, {self.unit} {number}{where}: {reason}; "
                f"{MUST[reason].format(kind=kind)}. Received: {text!r}."
            )
        self.report.add(file, number, reason, text)


class RowChecks:
    """Turns tables of a file into typed columns, and finds the rows that do not fit.

    Args:
        schema: Dict from column name to dtype, without the label.
        label: Name of the label, or `None`.
        fill: `None`, the number for missing numbers, or a dict from column name to the
            value for missing ones.
        vocabularies: `None`, or a dict from column name to vocabulary.
        log: A `DamageLog`.
        is_utf8: Whether all text is known to be UTF-8. Defaults to `False`.
    """

    def __init__(self, schema, label, fill, vocabularies, log, *, is_utf8=False):
        self.columns = check_schema(schema, label)
        self.log = log
        self.is_utf8 = is_utf8
        self.fill = self._check_fill(fill, schema)
        self.known = self._known_values(vocabularies)

    def convert(self, table):
        """Returns typed columns, and the damages `(column, reason, mask)` of `table`.

        A column of text that should be one of numbers is parsed. Damaged values stand
        as 0 or `""` in the columns.
        """
        columns, damages = {}, []
        for name, dtype in self.columns.items():
            kind, is_list = kind_of(dtype)
            column = _plain(table.column(name))
            if is_list:
                columns[name], found = self._convert_lists(name, kind, column)
            else:
                columns[name], found = self._convert(name, kind, column)
            damages += [(name, reason, mask) for reason, mask in found if mask.any()]
        return columns, damages

    def keep_good(self, columns, damages, table, file, numbers):
        """Returns the columns without damaged rows, which are logged.

        Args:
            columns: As of `convert`.
            damages: As of `convert`.
            table: The table given to `convert`.
            file: Name of the file.
            numbers: Number of each row in the file.

        Raises:
            ValueError: If a row is damaged and the log raises.
        """
        if damages:
            import pyarrow as pa

            masks = np.stack([mask for _, _, mask in damages])
            bad = masks.any(axis=0)
            rows = np.flatnonzero(bad)
            first = masks[:, rows].argmax(axis=0)  # a row counts once
            num_shown = max(1, self.log.report.num_free)
            for row, damage in zip(rows[:num_shown], first, strict=False):
                name, reason, _ = damages[damage]
                value = table.column(name)[int(row)].as_py()
                text = value if isinstance(value, str | bytes) else repr(value)
                if isinstance(text, bytes):
                    text = text.decode(errors="backslashreplace")
                kind, _ = kind_of(self.columns[name])
                self.log.add(file, int(numbers[row]), reason, text, name, kind)
            counts = np.bincount(first[num_shown:], minlength=len(damages))
            for (_, reason, _), count in zip(damages, counts.tolist(), strict=True):
                self.log.report.add_count(reason, count)
            good = pa.array(~bad)
            columns = {name: column.filter(good) for name, column in columns.items()}
        self.log.report.add_rows(len(next(iter(columns.values()))))
        return columns

    def _check_fill(self, fill, schema):
        kinds = {name: kind_of(dtype)[0] for name, dtype in self.columns.items()}
        if not isinstance(fill, dict):
            numbers = [name for name in schema if kinds[name] != "string"]
            fill = {} if fill is None else dict.fromkeys(numbers, fill)
        checked = {}
        for name, value in fill.items():
            if name not in kinds:
                raise ValueError(
                    f"`fill` must have names of columns, {list(kinds)}. "
                    f"Received: {name!r}."
                )
            if not _fits(value, kinds[name]):
                raise ValueError(
                    f"`fill` must be a value of dtype {kinds[name]!r} for column "
                    f"{name!r}. Received: {value!r}."
                )
            make = {"string": str.encode, "float32": float}.get(kinds[name], int)
            checked[name] = make(value)
        return checked

    def _known_values(self, vocabularies):
        vocabularies = {} if vocabularies is None else vocabularies
        check_vocabularies(vocabularies)
        known = {}
        for name, vocabulary in vocabularies.items():
            if name not in self.columns:
                raise ValueError(
                    f"`vocabularies` must have names of columns, {list(self.columns)}. "
                    f"Received: {name!r}."
                )
            kind, _ = kind_of(self.columns[name])
            if vocabulary.dtype != {"int32": "int64"}.get(kind, kind):
                raise TypeError(
                    f"`vocabularies[{name!r}]` must hold values of dtype {kind!r}, as "
                    f"its column does. Received: {vocabulary!r}."
                )
            if isinstance(vocabulary, Vocabulary) and vocabulary.num_oov == 0:
                known[name] = vocabulary
        return known

    def _convert(self, name, kind, values):
        """Returns typed values without nulls, and pairs of reason and mask."""
        import pyarrow as pa

        found = []
        if kind == "string":
            values = values.cast(pa.binary())
            if not self.is_utf8:
                wrong = _not_utf8(values)
                found.append(("not UTF-8", wrong))
                values = _without(values, wrong)
        else:
            if pa.types.is_binary(values.type):
                values, found = _parse(values, kind)
            elif pa.types.is_floating(values.type) and kind != "float32":
                values, found = _whole(values)
            if kind == "float32":
                values = values.cast(pa.float32(), safe=False)
                infinite = ~np.isfinite(_numpy(values.fill_null(0)))
                found.append(("not finite", infinite))
            else:
                wrong = _out_of_range(values, kind)
                found.append(("out of range", wrong))
                values = _without(values, wrong).cast(_arrow_type(kind))
        nulls = np.zeros(len(values), bool)
        if values.null_count:
            nulls = _numpy(values.is_null())
            for _, mask in found:
                nulls = nulls & ~mask
            filler = self.fill.get(name)
            if filler is not None:
                nulls = np.zeros(len(values), bool)
            empty = b"" if kind == "string" else 0
            filler = empty if filler is None else filler
            values = values.fill_null(pa.scalar(filler, values.type))
        found.append(("missing value", nulls))
        if name in self.known:
            unknown = _unknown(values, self.known[name], kind)
            for _, mask in found:
                unknown = unknown & ~mask
            found.append(("unknown category", unknown))
        return values, [(reason, mask) for reason, mask in found if mask.any()]

    def _convert_lists(self, name, kind, lists):
        import pyarrow as pa

        nulls = _numpy(lists.is_null())
        lengths = _numpy(lists.value_lengths().fill_null(0)).astype("int64")
        values, found = self._convert(name, kind, _plain(lists.flatten()))
        row_of = np.repeat(np.arange(len(lists)), lengths)
        damages = [("missing value", nulls)] if nulls.any() else []
        for reason, mask in found:
            rows = np.zeros(len(lists), bool)
            rows[row_of[mask]] = True
            damages.append((reason, rows))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        column = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
        return column, damages


def check_arrow_types(file, columns, types, *, whole_floats=False):
    """Checks that the Arrow types of a file are those of the schema.

    Integers of any width stand for integers, and floats and integers for `"float32"`;
    where `whole_floats`, floats also for columns of single integers.

    Raises:
        ValueError: If they are not.
    """
    import pyarrow as pa

    for name, dtype in columns.items():
        kind, is_list = kind_of(dtype)
        may_float = whole_floats and not is_list
        given = _value_type(types[name])
        if is_list:
            fits = pa.types.is_list(given) or pa.types.is_large_list(given)
            fits = fits or pa.types.is_fixed_size_list(given)
            given = _value_type(given.value_type) if fits else given
        else:
            fits = True
        is_text = pa.types.is_string(given) or pa.types.is_large_string(given)
        is_text = is_text or pa.types.is_binary(given)
        is_integer = pa.types.is_integer(given)
        fits = fits and {
            "string": is_text or pa.types.is_large_binary(given),
            "float32": is_integer
            or pa.types.is_floating(given)
            or pa.types.is_boolean(given),
        }.get(kind, is_integer or (may_float and pa.types.is_floating(given)))
        if not (fits or pa.types.is_null(types[name])):
            raise ValueError(
                f"{file}, column {name!r} must be of dtype {dtype!r}. "
                f"Received: {types[name]}."
            )


def _value_type(dtype):
    return getattr(dtype, "value_type", dtype) if _is_dictionary(dtype) else dtype


def _is_dictionary(dtype):
    import pyarrow as pa

    return pa.types.is_dictionary(dtype)


def _fits(value, kind):
    """Whether a value to fill in is of a dtype."""
    if kind == "string":  # a lone surrogate is no text
        return isinstance(value, str) and _is_encodable(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    if kind == "float32":
        return bool(abs(value) <= float(np.finfo("float32").max))
    limits = np.iinfo(kind)
    return limits.min <= value <= limits.max and value == int(value)


def _is_encodable(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _arrow_type(kind):
    import pyarrow as pa

    return {
        "string": pa.binary(),
        "int64": pa.int64(),
        "int32": pa.int32(),
        "float32": pa.float32(),
    }[kind]


def _plain(column):
    """Returns one array that is no dictionary."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
    if _is_dictionary(column.type):
        column = column.dictionary_decode()
    return column


def _numpy(array):
    return array.to_numpy(zero_copy_only=False)


def _not_utf8(values):
    """Returns a mask of the bytes that are no text."""
    import pyarrow as pa

    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([not _is_utf8(value) for value in values.to_pylist()], bool)
    return np.zeros(len(values), bool)


def _is_utf8(value):
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _out_of_range(values, kind):
    """Returns a mask of the integers that do not fit a dtype."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wrong = np.zeros(len(values), bool)
    if pa.types.is_null(values.type):
        return wrong
    given = np.iinfo(values.type.to_pandas_dtype())
    limits = np.iinfo(kind)
    if given.max > limits.max:
        above = pc.greater(values, pa.scalar(limits.max, values.type))
        wrong |= _numpy(above.fill_null(False))
    if given.min < limits.min:
        below = pc.less(values, pa.scalar(limits.min, values.type))
        wrong |= _numpy(below.fill_null(False))
    return wrong


def _whole(values):
    """Returns the integers that floats stand for, and the damages.

    From `2**53` on, in float64, neighbouring integers are one float: which one was
    meant is not known.
    """
    import pyarrow as pa

    limit = 2.0 ** (np.finfo(values.type.to_pandas_dtype()).nmant + 1)
    values = values.cast(pa.float64())
    numbers = _numpy(values.fill_null(0))
    too_large = np.abs(numbers) >= limit
    broken = np.isnan(numbers) | (np.floor(numbers) != numbers)
    damages = [("out of range", too_large), ("bad number", broken)]
    values = _without(values, too_large | broken)
    return values.cast(pa.int64()), damages


def _without(values, mask):
    """Returns the values with null in place of those in a mask."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not mask.any():
        return values
    return pc.if_else(pa.array(mask), pa.scalar(None, values.type), values)


def _parse(texts, kind):
    """Returns the numbers of text, null where there is none, and the damages.

    Integers are int64, whatever `kind`. What no pattern fits never gets to the parser
    of Arrow, which takes hexadecimal numbers and fails as a whole at a bad one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.ascii_trim_whitespace(texts.cast(pa.string()))
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
    pattern = FLOAT if kind == "float32" else INTEGER
    fits = pc.match_substring_regex(texts, pattern).fill_null(True)
    wrong = ~_numpy(fits)
    texts = _without(texts, wrong)
    if kind == "float32":
        return texts.cast(pa.float32()), [("bad number", wrong)]
    texts = pc.replace_substring_regex(texts, r"^\+?(-?)0*([0-9]+)$", r"\1\2")
    digits = pc.replace_substring(texts, "-", "")
    limit = str(2**63 - 1)
    is_negative = pc.starts_with(texts, "-")
    most = pc.if_else(is_negative, str(2**63), limit)
    num_digits = pc.utf8_length(digits)
    too_large = pc.or_(
        pc.greater(num_digits, len(limit)),
        pc.and_(pc.equal(num_digits, len(limit)), pc.greater(digits, most)),
    )
    too_large = _numpy(too_large.fill_null(False))
    damages = [("out of range", too_large), ("bad number", wrong)]
    return _without(texts, too_large).cast(pa.int64()), damages


def _unknown(values, vocabulary, kind):
    """Returns a mask of the values that a vocabulary does not have."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind != "string":
        known = pa.array(vocabulary.values, pa.int64())
        return ~_numpy(pc.is_in(values.cast(pa.int64()), value_set=known))
    known = pa.array(["", *vocabulary.values]).cast(pa.binary())
    if vocabulary.separator is None:
        return ~_numpy(pc.is_in(values, value_set=known[1:]))
    parts = pc.split_pattern(values, vocabulary.separator)
    is_known = _numpy(pc.is_in(parts.flatten(), value_set=known))
    unknown = np.zeros(len(values), bool)
    unknown[_numpy(pc.list_parent_indices(parts))[~is_known]] = True
    return unknown
