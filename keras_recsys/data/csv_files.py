"""Reading of click logs in text files."""

import gzip
import re
import zlib

import numpy as np

from keras_recsys.data._row_checks import (
    MUST,
    DamageLog,
    RowChecks,
    check_columns,
    check_schema,
    find_files,
    kind_of,
    shorten,
)
from keras_recsys.data._streams import Stream
from keras_recsys.data.read_report import MAX_TEXT

BLOCK_BYTES = 2**22
HEADER_BYTES = 2**20  # of a line of column names
NAME_BYTES = 2**16  # of one of the names
BOM = b"\xef\xbb\xbf"
QUOTE = ord('"')


def read_csv(
    paths,
    schema,
    *,
    label=None,
    header=True,
    delimiter=",",
    quoting=True,
    fill=None,
    errors="raise",
    report=None,
    vocabularies=None,
    batch_size=1024,
    shuffle_rows=0,
    seed=None,
    drop_remainder=False,
    num_open_files=4,
):
    r"""Reads text files, a row a line, as a stream of raw batches.

    Files may be larger than the memory: a few blocks of some MB of each open file are
    held, and the window of the shuffle. Files whose names end in `.gz` are decompressed
    on the way. A byte order mark, carriage returns before line ends, blank lines and
    columns that the schema lacks are passed over.

    No damage goes unseen, and none shifts other rows. The rows found damaged are:

    - `"short line"`, `"long line"`: not as many cells as columns.
    - `"stray quote"`: quotes that do not stand around a whole cell, on one line. Values
      with line ends in them are not supported, so that a lost quote spoils one line.
    - `"control character"`: a NUL, or a carriage return within a line.
    - `"not UTF-8"`.
    - `"bad number"`, `"not finite"` (also the texts `nan` and `inf`), `"out of range"`:
      what is no number of the dtype. Numbers are decimal, with a sign or without;
      integers have neither point nor exponent. Blanks around a number are passed over.
    - `"missing value"`: a cell of a number or label that is empty, or of blanks alone,
      and that `fill` has no value for. An empty cell of strings is the empty string.
    - `"unknown category"`: a value out of a vocabulary with `num_oov=0`.
    - `"empty file"`: a file without a line of names, where `header` says it has one.

    Args:
        paths: A path, a pattern such as `"logs/*.csv.gz"`, or a list of them.
        schema: Dict from the names of the columns to read to their dtypes, `"string"`,
            `"int64"`, `"int32"` or `"float32"`. Numbers are rounded to float32.
        label: Name of the column of labels, which hold any finite numbers, or `None`
            for batches without labels. Defaults to `None`.
        header: `True` if the first line of each file has the names of the columns, or
            the list of all names if no file has such a line. Defaults to `True`.
        delimiter: One ASCII character between cells. Defaults to `","`.
        quoting: Whether `"` around a cell is no part of it, and `""` inside stands for
            `"`. If not, a quote is a character like any other. Defaults to `True`.
        fill: The number for missing numbers of all columns, or a dict from column name
            to number; labels only by their name. Defaults to `None`, a missing number
            is damage.
        errors: `"raise"`, or `"skip"` to leave damaged rows out. A damaged line of
            names, a missing column, a name given twice and a broken gzip file are
            errors always. Defaults to `"raise"`.
        report: A `ReadReport` to fill. Defaults to `None`, where a warning at the end
            of the epoch counts the rows left out.
        vocabularies: Dict from column name to `Vocabulary` or `HashedVocabulary`, those
            that will encode the columns later; here they only serve to find unknown
            categories. Defaults to `None`.
        batch_size: Positive int, rows in a batch. Defaults to `1024`.
        shuffle_rows: Int, the rows of the window that are shuffled as a whole; files
            are then read in random order too, another one each epoch. Defaults to `0`,
            the order of the files.
        seed: Non-negative int of the shuffle: two readers of one seed give equal
            batches, epoch by epoch. Defaults to `None`.
        drop_remainder: Whether a last batch of fewer rows is dropped. Defaults to
            `False`.
        num_open_files: Positive int, files that are read side by side, a block of each
            in turn; 1 for one after the other. Defaults to `4`.

    Returns:
        A `tf.data.Dataset` of pairs `(columns, labels)`, or of `columns` alone:
        `columns` is a dict from name to tensor of shape `(batch_size,)`, `labels`
        float32 of shape `(batch_size, 1)`. While it is iterated, a damaged row or file
        is a `tf.errors.InvalidArgumentError`, whose message has the file, the line
        (counted from 1), the column and the text. Its length is not known beforehand:
        `fit` of a plain `keras.Model` warns at the end of an epoch that the input ran
        out of data, though nothing is missing.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If there is no such file, the line of names of a file is damaged, a
            file lacks a column or has two of one name, or an argument is out of its
            range.

    Example:
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "clicks.csv"
    >>> _ = path.write_text("click,city,age\n1,rome,30\n0,oslo,\n")
    >>> schema = {"city": "string", "age": "float32"}
    >>> batches = read_csv(path, schema, label="click", fill=0)
    >>> columns, labels = next(iter(batches))
    >>> columns["city"].numpy().tolist(), columns["age"].numpy().tolist()
    ([b'rome', b'oslo'], [30.0, 0.0])
    >>> labels.numpy().tolist()
    [[1.0], [0.0]]
    """
    files = find_files(paths)
    columns = check_schema(schema, label)
    for name, dtype in columns.items():
        if kind_of(dtype)[1]:
            raise ValueError(
                f"`schema[{name!r}]` must be a dtype of single values. Read cells of "
                'several values as "string", and give their vocabulary a separator. '
                f"Received: {dtype!r}."
            )
    for name in fill if isinstance(fill, dict) else ():
        if columns.get(name) == "string":
            raise ValueError(
                "`fill` must be for columns of numbers; an empty cell of strings is "
                f"the empty string. Received: a value for column {name!r}."
            )
    log = DamageLog(errors, report, "line")
    checks = RowChecks(schema, label, fill, vocabularies, log, is_utf8=True)
    reader = TextReader(checks, log, header, delimiter, quoting)
    for file in files:
        reader.check_header(file)
    stream = Stream(
        columns,
        label,
        batch_size=batch_size,
        shuffle_rows=shuffle_rows,
        seed=seed,
        drop_remainder=drop_remainder,
        num_open_files=num_open_files,
    )
    return stream.from_tables(lambda i: reader.read(files[i]), len(files), log)


class TextReader:
    """Reads a text file block by block; for the arguments see `read_csv`."""

    def __init__(self, checks, log, header, delimiter, quoting):
        if header is not True and (
            not isinstance(header, list | tuple)
            or not header
            or not all(isinstance(name, str) for name in header)
        ):
            raise ValueError(
                "`header` must be True or the list of the column names. "
                f"Received: header={header!r}."
            )
        if (
            not isinstance(delimiter, str)
            or len(delimiter) != 1
            or not delimiter.isascii()
            or delimiter in '"\r\n\0'
        ):
            raise ValueError(
                "`delimiter` must be one ASCII character, no quote and no line end. "
                f"Received: delimiter={delimiter!r}."
            )
        if not isinstance(quoting, bool):
            raise TypeError(
                f"`quoting` must be True or False. Received: quoting={quoting!r}."
            )
        self.checks = checks
        self.log = log
        self.header = header
        self.delimiter = delimiter
        self.quoting = quoting
        cell = rf'(?:"(?:[^"]|"")*"|[^"{re.escape(delimiter)}]*)'.encode()
        more = re.escape(delimiter).encode()
        self.cell = re.compile(cell)
        self.quoted_line = re.compile(cell + b"(?:" + more + cell + b")*")

    def check_header(self, file):
        """Raises if a file lacks a column, or has no names and damage raises."""
        with _open(file) as stream:
            if self._names(file, stream)[0] is None and self.log.errors == "raise":
                self.log.add(file, 1, "empty file", "")

    def read(self, file):
        """Yields the good rows of a file, a dict of typed columns a block."""
        with _open(file) as stream:
            names, num_lines = self._names(file, stream)
            if names is None:
                self.log.add(file, 1, "empty file", "")
                return
            line = num_lines + 1
            for block in _blocks(file, stream):
                yield self._read_block(file, line, block, names)
                line += block.count(b"\n")

    def _names(self, file, stream):
        """Returns the names of the columns, or `None`, and the lines that they took."""
        _skip_bom(file, stream)
        names, num_lines = self.header, 0
        if names is True:
            line, num_lines = _first_line(file, stream)
            if line is None:
                return None, num_lines
            names = self._cells(file, line, num_lines)
        check_columns(file, self.checks.columns, names)
        return list(names), num_lines

    def _cells(self, file, line, number):
        """Returns the names in a line, which must be as whole as any other."""
        damage = self._damage_of(line)
        if damage is not None:
            text = shorten(line.decode(errors="backslashreplace"))
            raise ValueError(
                f"{file}, line {number}: {damage}; {MUST[damage]}. Received: {text!r}."
            )
        cells = line.split(self.delimiter.encode())
        if self.quoting and b'"' in line:
            cells, start = [], 0
            while start <= len(line):
                found = self.cell.match(line, start)
                cells.append(_unquoted(found.group()))
                start = found.end() + 1
        longest = max(map(len, cells))
        if longest > NAME_BYTES:
            raise ValueError(
                f"{file}, line {number} must have names of at most {NAME_BYTES} bytes. "
                f"Received: a name of {longest} bytes."
            )
        return [cell.decode() for cell in cells]

    def _read_block(self, file, line, block, names):
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        if self._is_clean(block):
            table = self._parse(block, names, self._kinds_in(block))
            if table is not None:
                columns, damages = self.checks.convert(table)
                if not damages:
                    return self.checks.keep_good(columns, damages, table, file, ())
        lines = block.split(b"\n")
        numbers, kept = [], []
        for number, text in enumerate(lines, line):
            damage = self._damage_of(text, len(names))
            if damage is None:
                numbers.append(number)
                kept.append(text)
            elif text:
                text = text.decode(errors="backslashreplace")
                self.log.add(file, number, damage, text)
        # As text, which the log shows, and in which single numbers may be damaged.
        kinds = dict.fromkeys(self.checks.columns, "string")
        table = self._parse(b"\n".join(kept) + b"\n", names, kinds)
        if table is None or table.num_rows != len(kept):
            raise ValueError(
                f"{file} must be a text file of {len(names)} columns. Received: lines "
                f"{line} to {line + len(lines)}, which do not parse."
            )
        columns, damages = self.checks.convert(table)
        return self.checks.keep_good(columns, damages, table, file, numbers)

    def _kinds_in(self, block):
        """Returns the dtypes to parse, text for integers that may be hexadecimal.

        Arrow would take those as numbers, and 0xffffffff as -1.
        """
        if b"0x" not in block and b"0X" not in block:
            return self.checks.columns
        return {
            name: "string" if kind in ("int64", "int32") else kind
            for name, kind in self.checks.columns.items()
        }

    def _parse(self, block, names, kinds):
        """Returns the table of a block, or `None` if a line or a cell does not fit."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        types = {"string": pa.binary(), "int64": pa.int64(), "int32": pa.int32()}
        types["float32"] = pa.float32()
        misfits = []

        def skip(row):
            misfits.append(row)
            return "skip"

        has_quotes = self.quoting and b'"' in block
        try:
            table = arrow_csv.read_csv(
                pa.py_buffer(block),
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, column_names=names, block_size=len(block) + 1
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=self.delimiter,
                    quote_char='"' if has_quotes else False,
                    invalid_row_handler=skip,
                ),
                convert_options=arrow_csv.ConvertOptions(
                    include_columns=list(kinds),
                    column_types={name: types[kind] for name, kind in kinds.items()},
                    null_values=[""],
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid:
            return None
        return None if misfits else table

    def _is_clean(self, block):
        """Whether all lines of a block can be told apart, and all bytes are text."""
        if b"\r" in block or b"\0" in block or not _is_utf8(block):
            return False
        return not self.quoting or b'"' not in block or self._quotes_fit(block)

    def _quotes_fit(self, block):
        """Whether all quotes stand in pairs around cells, or doubled inside."""
        text = np.frombuffer(b"\n" + block + b"\n", "uint8")
        quotes = np.flatnonzero(text == QUOTE)
        if len(quotes) % 2:
            return False
        opening, closing = quotes[::2], quotes[1::2]
        ends = np.array([ord("\n"), ord(self.delimiter)], "uint8")
        doubled = np.zeros(len(opening) + 1, bool)
        doubled[1:-1] = opening[1:] == closing[:-1] + 1
        starts_cell = np.isin(text[opening - 1], ends) | doubled[:-1]
        ends_cell = np.isin(text[closing + 1], ends) | doubled[1:]
        lines = np.flatnonzero(text == ord("\n"))
        one_line = np.searchsorted(lines, opening) == np.searchsorted(lines, closing)
        return bool((starts_cell & ends_cell & one_line).all())

    def _damage_of(self, line, num_columns=None):
        """Returns what is wrong with a line, `None` if nothing; blank is something.

        Without `num_columns`, it may have any number of cells.
        """
        if not line:
            return "short line"
        if b"\r" in line or b"\0" in line:
            return "control character"
        if not _is_utf8(line):
            return "not UTF-8"
        if self.quoting and b'"' in line:
            if not self.quoted_line.fullmatch(line):
                return "stray quote"
            line = self.cell.sub(b"", line)
        num_cells = line.count(self.delimiter.encode()) + 1
        if num_columns is None or num_cells == num_columns:
            return None
        return "short line" if num_cells < num_columns else "long line"


def first_line(file):
    """Returns the first line of a file that is not blank, `None` if there is none."""
    with _open(file) as stream:
        _skip_bom(file, stream)
        return _first_line(file, stream)[0]


def _skip_bom(file, stream):
    if _read_from(file, stream.read, len(BOM)) != BOM:
        stream.seek(0)


def _first_line(file, stream):
    """Returns the first line that is not blank, `None` if there is none; its number."""
    line, num_lines = b"", 0
    while not line:
        text = _read_from(file, stream.readline, HEADER_BYTES)
        num_lines += 1
        if not text:
            return None, num_lines
        line = text.removesuffix(b"\n").removesuffix(b"\r")
    if len(text) == HEADER_BYTES and not text.endswith(b"\n"):
        raise ValueError(
            f"{file}, line {num_lines} must be the first line of a text file, of less "
            f"than {HEADER_BYTES} bytes. Received: {line[:MAX_TEXT]!r}..."
        )
    return line, num_lines


def _unquoted(cell):
    return cell[1:-1].replace(b'""', b'"') if cell.startswith(b'"') else cell


def _open(file):
    return gzip.open(file, "rb") if file.endswith(".gz") else open(file, "rb")


def _blocks(file, stream):
    """Yields blocks of whole lines."""
    rest = b""
    while chunk := _read_from(file, stream.read, BLOCK_BYTES):
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield rest + chunk[:cut]
            rest = b""
        rest += chunk[cut:]
    if rest:
        yield rest + b"\n"


def _read_from(file, read, *args):
    try:
        return read(*args)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{file} must be a whole file. Received: {error}.") from error


def _is_utf8(text):
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
