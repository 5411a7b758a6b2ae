import gzip
import warnings

import numpy as np
import pytest
import tensorflow as tf

from keras_recsys.data import HashedVocabulary, ReadReport, Vocabulary, read_csv
from keras_recsys.data._row_checks import DamageLog, RowChecks
from keras_recsys.data.csv_files import TextReader

SCHEMA = {"city": "string", "age": "float32", "item": "int64", "shop": "int32"}
HEADER = "click,city,age,item,shop"
GOOD = ["1,rome,30,9007199254740993,5", "0,,-1.5,-3,-7", "1,東京,2e3,0,0"]


def write(folder, lines, name="clicks.csv", end="\n"):
    path = folder / name
    text = "".join(line + end for line in lines)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def read(path, schema=SCHEMA, label="click", **kwargs):
    return read_csv(path, schema, label=label, **kwargs)


def rows_of(dataset):
    """The rows of a dataset of batches as tuples, the label last."""
    rows = []
    for columns, labels in dataset:
        arrays = [values.numpy().tolist() for values in columns.values()]
        rows += zip(*arrays, labels[:, 0].numpy().tolist(), strict=True)
    return rows


def numbered(folder, num_files=4, num_rows=30):
    """Files of rows of one running number."""
    for file in range(num_files):
        numbers = range(file * num_rows, (file + 1) * num_rows)
        lines = ["label,number", *(f"{n % 2},{n}" for n in numbers)]
        write(folder, lines, f"part-{file}.csv")
    return str(folder / "part-*.csv")


def numbers_of(dataset):
    return [row[0] for row in rows_of(dataset)]


WANT = [
    (b"rome", 30.0, 9007199254740993, 5, 1.0),
    (b"", -1.5, -3, -7, 0.0),
    ("東京".encode(), 2000.0, 0, 0, 1.0),
]


def test_values_shapes_and_dtypes(tmp_path):
    dataset = read(write(tmp_path, [HEADER, *GOOD]), batch_size=2)
    assert rows_of(dataset) == WANT
    first, last = dataset
    assert {name: column.dtype.name for name, column in first[0].items()} == SCHEMA
    assert [column.shape for column in first[0].values()] == [(2,)] * 4
    assert first[1].shape == (2, 1)
    assert first[1].dtype == "float32"
    assert last[1].shape == (1, 1)
    (only,) = read(tmp_path / "clicks.csv", batch_size=2, drop_remainder=True)
    assert only[1].shape == (2, 1)


def test_no_label_and_fewer_columns_in_another_order(tmp_path):
    path = write(tmp_path, [HEADER, *GOOD])
    (batch,) = read_csv(path, {"shop": "int32", "city": "string"})
    assert list(batch) == ["shop", "city"]
    assert batch["shop"].numpy().tolist() == [5, -7, 0]


@pytest.mark.parametrize(
    ("lines", "end", "prefix"),
    [
        ([HEADER, *GOOD], "\r\n", b""),
        ([HEADER, *GOOD], "\n", b"\xef\xbb\xbf"),
        (["", HEADER, "", *GOOD, "", ""], "\n", b""),
        (["", HEADER, "", *GOOD, ""], "\r\n", b"\xef\xbb\xbf"),
    ],
)
@pytest.mark.parametrize("at_end", [True, False])
def test_line_ends_byte_order_mark_and_blank_lines(
    tmp_path, lines, end, prefix, at_end
):
    text = end.join(lines) + (end if at_end else "")
    (tmp_path / "a.csv").write_bytes(prefix + text.encode())
    assert rows_of(read(tmp_path / "a.csv")) == WANT


def test_headerless_with_byte_order_mark(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"\xef\xbb\xbf1\tx\n0\ty\n")
    dataset = read(
        tmp_path / "a.tsv", {"city": "string"}, header=["click", "city"], delimiter="\t"
    )
    assert rows_of(dataset) == [(b"x", 1.0), (b"y", 0.0)]


def test_gzip(tmp_path):
    text = "\n".join([HEADER, *GOOD]).encode()
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text))
    assert rows_of(read(tmp_path / "a.csv.gz")) == WANT
    half = gzip.compress(text)[:-12]
    (tmp_path / "b.csv.gz").write_bytes(half)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="b.csv.gz"):
        rows_of(read(tmp_path / "b.csv.gz", errors="skip"))
    (tmp_path / "c.csv.gz").write_bytes(text)
    with pytest.raises(ValueError, match="c.csv.gz must be a whole file"):
        read(tmp_path / "c.csv.gz")


def test_quotes(tmp_path):
    lines = ["click,city", '1,"a,b"', '0,"say ""hi"""', '"1",""', '0,""""', "1,x"]
    path = write(tmp_path, lines)
    want = [(b"a,b", 1.0), (b'say "hi"', 0.0), (b"", 1.0), (b'"', 0.0), (b"x", 1.0)]
    assert rows_of(read(path, {"city": "string"})) == want


def test_quotes_are_text_without_quoting(tmp_path):
    path = write(tmp_path, ["click,city", '1,5" disk', '0,"', '1,"x"'])
    dataset = read(path, {"city": "string"}, quoting=False)
    assert rows_of(dataset) == [(b'5" disk', 1.0), (b'"', 0.0), (b'"x"', 1.0)]


def test_fill(tmp_path):
    path = write(tmp_path, ["click,age,item", "1,,", ",3,4"])
    schema = {"age": "float32", "item": "int64"}
    filled = read(path, schema, fill={"age": 0.5, "item": -1, "click": 0})
    assert rows_of(filled) == [(0.5, -1, 1.0), (3.0, 4, 0.0)]
    report = ReadReport()
    filled = read(path, schema, fill=7, errors="skip", report=report)
    assert rows_of(filled) == [(7.0, 7, 1.0)]  # a label is not filled by the way
    assert report.examples == [(path, 3, "missing value", "")]


DAMAGES = {
    "short line": ("1,rome,3,4", "short line", None, "1,rome,3,4"),
    "long line": ("1,rome,3,4,5,6", "long line", None, "1,rome,3,4,5,6"),
    "bad float": ("1,rome,x7,4,5", "bad number", "age", "x7"),
    "bad integer": ("1,rome,3,4.0,5", "bad number", "item", "4.0"),
    "bad label": ("yes,rome,3,4,5", "bad number", "click", "yes"),
    "lost quote": ('1,"rome,3,4,5', "stray quote", None, '1,"rome,3,4,5'),
    "quote inside": ('1,ro"me,3,4,5', "stray quote", None, '1,ro"me,3,4,5'),
    "quotes inside": ('1,r"o"me,3,4,5', "stray quote", None, '1,r"o"me,3,4,5'),
    "after quote": ('1,"ro"me,3,4,5', "stray quote", None, '1,"ro"me,3,4,5'),
    "two halves": ('1,ro","me,3,4,5', "stray quote", None, '1,ro","me,3,4,5'),
    "NUL": ("1,ro\0me,3,4,5", "control character", None, "1,ro\0me,3,4,5"),
    "return": ("1,ro\rme,3,4,5", "control character", None, "1,ro\rme,3,4,5"),
    "latin": (b"1,r\xf6m,3,4,5", "not UTF-8", None, "1,r\\xf6m,3,4,5"),
    "missing float": ("1,rome,,4,5", "missing value", "age", ""),
    "missing label": (",rome,3,4,5", "missing value", "click", ""),
    "nan": ("1,rome,NaN,4,5", "not finite", "age", "NaN"),
    "inf": ("1,rome,-inf,4,5", "not finite", "age", "-inf"),
    "huge float": ("1,rome,1e39,4,5", "not finite", "age", "1e39"),
    "infinite label": ("inf,rome,3,4,5", "not finite", "click", "inf"),
    "int64": ("1,rome,3,9223372036854775808,5", "out of range", "item", None),
    "int32": ("1,rome,3,4,2147483648", "out of range", "shop", "2147483648"),
    "unknown": ("1,oslo,3,4,5", "unknown category", "city", "oslo"),
    "unknown integer": ("1,rome,3,4,99", "unknown category", "shop", "99"),
}
KNOWN = {
    "city": Vocabulary(["rome", "", "東京"], num_oov=0),
    "shop": Vocabulary([5, -7, 0], num_oov=0),
    "item": Vocabulary([1]),  # which has an id for other values
}


def write_damaged(folder, damage):
    """Line 3 of the file, of 5, is damaged."""
    line = damage if isinstance(damage, bytes) else damage.encode()
    lines = [text.encode() for text in (HEADER, *GOOD)]
    lines.insert(2, line)
    path = folder / "clicks.csv"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


@pytest.mark.parametrize("case", DAMAGES)
def test_damage_is_an_error_that_names_the_place(tmp_path, case):
    damage, reason, column, text = DAMAGES[case]
    path = write_damaged(tmp_path, damage)
    log = DamageLog("raise", None, "line")
    checks = RowChecks(SCHEMA, "click", None, KNOWN, log, is_utf8=True)
    with pytest.raises(ValueError, match="clicks.csv, line 3") as caught:
        list(TextReader(checks, log, True, ",", True).read(path))
    message = str(caught.value)
    place = f"{path}, line 3" + ("" if column is None else f", column {column!r}")
    assert message.startswith(f"{place}: {reason}; must ")
    text = "9223372036854775808" if text is None else text
    assert message.endswith(f" Received: {text!r}.")


@pytest.mark.parametrize("case", ["short line", "bad float"])
def test_error_reaches_the_user_through_tensorflow(tmp_path, case):
    damage, reason, _, text = DAMAGES[case]
    path = write_damaged(tmp_path, damage)
    message = rf"{path}, line 3.*: {reason}; must.* Received: '{text}'\."
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        rows_of(read(path))


def test_damaged_rows_are_left_out_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_recsys.data.read_report.NUM_EXAMPLES", 99)
    paths, examples = [], []
    for number, (damage, reason, _, text) in enumerate(DAMAGES.values()):
        (tmp_path / str(number)).mkdir()
        paths.append(write_damaged(tmp_path / str(number), damage))
        text = "9223372036854775808" if text is None else text
        examples.append((paths[-1], 3, reason, text))
    report = ReadReport()
    dataset = read(
        paths, vocabularies=KNOWN, errors="skip", report=report, num_open_files=1
    )
    for _ in range(2):  # the report starts anew
        assert rows_of(dataset) == WANT * len(DAMAGES)
        assert sorted(report.examples) == sorted(examples)
        assert report.num_rows == 3 * len(DAMAGES)
        assert report.num_skipped == len(DAMAGES)
    assert "69 rows read, 23 left out" in str(report)
    assert "stray quote: 5" in str(report)


def test_all_damages_in_one_block(tmp_path):
    lines = [HEADER.encode()]
    want = []
    for damage, *_ in DAMAGES.values():
        lines += [GOOD[len(want) % 3].encode()]
        want += [WANT[len(want) % 3]]
        lines += [damage if isinstance(damage, bytes) else damage.encode()]
    (tmp_path / "a.csv").write_bytes(b"\n".join(lines))
    report = ReadReport()
    dataset = read(tmp_path / "a.csv", vocabularies=KNOWN, errors="skip", report=report)
    assert rows_of(dataset) == want
    assert report.num_skipped == len(DAMAGES)
    assert len(report.examples) == 10
    structural = [2 * i + 3 for i, case in enumerate(DAMAGES.values()) if not case[2]]
    assert [number for _, number, *_ in report.examples[:9]] == structural[:9]


@pytest.mark.parametrize("quoting", [True, False])
def test_random_damage_equals_a_loop_over_lines(tmp_path, quoting, monkeypatch):
    monkeypatch.setattr("keras_recsys.data.csv_files.BLOCK_BYTES", 200)
    rng = np.random.default_rng(int(quoting))
    pieces = np.array([",", '"', "1", "x", "", '"a"', "\r", "2.5", '""'])
    lines, want = ["label,a,b"], []
    for _ in range(400):
        if rng.random() < 0.5:
            lines.append(f"{len(lines) % 2},{len(lines)},v")
        else:
            lines.append("".join(rng.choice(pieces, rng.integers(1, 9))))
    for line in lines[1:]:
        row = parse_by_hand(line, quoting)
        want += [] if row is None else [row]
    path = tmp_path / "a.csv"
    path.write_bytes("\n".join(lines).encode())
    schema = {"a": "float32", "b": "string"}
    report = ReadReport()
    dataset = read(
        path, schema, label="label", quoting=quoting, errors="skip", report=report
    )
    assert rows_of(dataset) == want
    blank = sum(line in ("", "\r") for line in lines)
    assert report.num_skipped == len(lines) - 1 - len(want) - blank


def parse_by_hand(line, quoting):
    """One line, one character at a time; `None` if it is damaged."""
    line = line[:-1] if line.endswith("\r") else line
    if "\r" in line:
        return None
    cells, rest = [], line
    while True:
        if quoting and rest.startswith('"'):
            cell, i = "", 1
            while i < len(rest) and (rest[i] != '"' or rest[i + 1 : i + 2] == '"'):
                cell += rest[i]
                i += 2 if rest[i] == '"' else 1
            if i >= len(rest):
                return None
            rest = rest[i + 1 :]
        else:
            cell = rest.split(",")[0]
            if quoting and '"' in cell:
                return None
            rest = rest[len(cell) :]
        cells.append(cell)
        if not rest:
            break
        if rest[0] != ",":
            return None
        rest = rest[1:]
    if len(cells) != 3:
        return None
    try:
        return float(cells[1]), cells[2].encode(), float(cells[0])
    except ValueError:
        return None


def test_blocks_of_any_size_give_the_same_lines(tmp_path, monkeypatch):
    lines = [HEADER, *(GOOD[i % 3] for i in range(40))]
    lines[30] = "1,rome,x,4,5"
    path = write(tmp_path, lines)
    for size in (1, 64):
        monkeypatch.setattr("keras_recsys.data.csv_files.BLOCK_BYTES", size)
        report = ReadReport()
        dataset = read(path, errors="skip", report=report)
        assert rows_of(dataset) == [WANT[i % 3] for i in range(40) if i != 29]
        assert report.examples == [(path, 31, "bad number", "x")]


def test_a_lost_quote_swallows_no_line(tmp_path):
    lines = ["click,city", '1,"a', "0,b", '1,c"', "0,d"]
    report = ReadReport()
    path = write(tmp_path, lines)
    dataset = read(path, {"city": "string"}, errors="skip", report=report)
    assert rows_of(dataset) == [(b"b", 0.0), (b"d", 0.0)]
    assert [(number, reason) for _, number, reason, _ in report.examples] == [
        (2, "stray quote"),
        (4, "stray quote"),
    ]


def test_unknown_part_of_a_cell(tmp_path):
    path = write(tmp_path, ["click,tags", "1,a|b", "0,", "1,a|c", "0,||b"])
    tags = Vocabulary(["a", "b"], separator="|", num_oov=0)
    report = ReadReport()
    dataset = read(
        path,
        {"tags": "string"},
        vocabularies={"tags": tags},
        errors="skip",
        report=report,
    )
    assert [row[0] for row in rows_of(dataset)] == [b"a|b", b"", b"||b"]
    assert report.examples == [(path, 4, "unknown category", "a|c")]
    hashed = {"tags": HashedVocabulary(5)}
    assert len(rows_of(read(path, {"tags": "string"}, vocabularies=hashed))) == 4


def test_warning_without_a_report(tmp_path):
    path = write(tmp_path, [HEADER, "1,rome", *GOOD])
    with pytest.warns(UserWarning, match="3 rows read, 1 left out(.|\n)*short line: 1"):
        rows_of(read(path, errors="skip"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows_of(read(path, errors="skip", report=ReadReport()))
        good = write(tmp_path, [HEADER, *GOOD], "good.csv")
        rows_of(read(good, errors="skip"))


def test_empty_files(tmp_path):
    empty = write(tmp_path, [], "empty.csv")
    blank = write(tmp_path, ["", ""], "blank.csv")
    names = write(tmp_path, [HEADER], "names.csv")
    full = write(tmp_path, [HEADER, *GOOD], "full.csv")
    for path in (empty, blank):
        with pytest.raises(ValueError, match="empty file; must have a line of"):
            read([path, full])
    report = ReadReport()
    dataset = read([empty, names, full, blank], errors="skip", report=report)
    assert rows_of(dataset) == WANT
    assert report.counts == {"empty file": 2}
    assert rows_of(read(names)) == []
    headerless = HEADER.split(",")
    assert rows_of(read([empty, blank], header=headerless)) == []


@pytest.mark.parametrize("errors", ["raise", "skip"])
def test_a_wrong_header_is_an_error_always(tmp_path, errors):
    path = write(tmp_path, ["click,city,age,item", "1,rome,3,4"])
    with pytest.raises(ValueError, match=r"clicks.csv must have.*\['shop'\].*'item'"):
        read(path, errors=errors)
    path = write(tmp_path, [HEADER + ",city", "1,rome,3,4,5,6"])
    with pytest.raises(ValueError, match=r"clicks.csv.*distinct.*\['city'\]"):
        read(path, errors=errors)
    (tmp_path / "clicks.csv").write_bytes(b"click,\xff\n")
    with pytest.raises(ValueError, match=r"clicks.csv, line 1: not UTF-8; must be"):
        read(path, errors=errors)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'click,"city\n1,x\n', "line 1: stray quote; must have quotes around whole"),
        (b'\nclick,ci"t"y\n1,x\n', "line 2: stray quote"),
        (b"click,city\r1,x\r", "line 1: control character"),
        (b"click,ci\0ty\n1,x\n", "line 1: control character"),
        (b"click,city," + b"z" * 70_000 + b"\n", "line 1 must have names of at most"),
        (b"click,city," + b"z" * 2**20 + b"\n", "line 1 must be the first line of a"),
    ],
)
def test_a_damaged_line_of_names(tmp_path, text, message):
    (tmp_path / "a.csv").write_bytes(text)
    with pytest.raises(ValueError, match="a.csv, " + message):
        read(tmp_path / "a.csv", {"city": "string"}, errors="skip")


def test_quoted_names(tmp_path):
    path = write(tmp_path, ['"click","a ""b"", c",', "1,x,"])
    assert rows_of(read(path, {'a "b", c': "string"})) == [(b"x", 1.0)]


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
@pytest.mark.parametrize("is_damaged", [True, False])
def test_numbers_are_decimal(tmp_path, dtype, is_damaged):
    texts = ["+5", "-5", " 7", "7 ", "007", "-0", "+0000000000000000000000000000009"]
    bad = ["0x10", "0XFF", "0xFFFFFFFF", "0xFFFFFFFFFFFFFFFF", "1_0", "+-5", "- 5"]
    lines = ["click,a,city", *(f"1,{text},0x" for text in texts)]
    lines += [f"1,{text}," for text in bad if is_damaged]
    report = ReadReport()
    path = write(tmp_path, lines)
    dataset = read_csv(path, {"a": dtype}, label="click", errors="skip", report=report)
    assert numbers_of(dataset) == [5, -5, 7, 7, 7, 0, 9]
    want = {"bad number": len(bad)} if is_damaged else {}
    assert report.counts == want


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_blanks_alone_are_an_empty_cell(tmp_path, dtype):
    path = write(tmp_path, ["click,a", "1,  ", "1,\t"])
    report = ReadReport()
    rows = read_csv(path, {"a": dtype}, errors="skip", report=report)
    assert list(rows) == []
    assert report.counts == {"missing value": 2}
    (batch,) = read_csv(path, {"a": dtype}, fill=3)
    assert batch["a"].numpy().tolist() == [3, 3]


def test_limits_of_integers(tmp_path):
    texts = [2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64, "x", 10**30]
    path = write(tmp_path, ["a", *map(str, texts)])
    report = ReadReport()
    (batch,) = read_csv(path, {"a": "int64"}, errors="skip", report=report)
    assert batch["a"].numpy().tolist() == [2**63 - 1, -(2**63)]
    assert report.counts == {"out of range": 4, "bad number": 1}


def test_many_bad_cells(tmp_path):
    path = write(tmp_path, ["a,b", *(f"{i},x{i}\nx{i},{i}" for i in range(20_000))])
    report = ReadReport()
    schema = {"a": "int64", "b": "float32"}
    assert list(read_csv(path, schema, errors="skip", report=report)) == []
    assert report.counts == {"bad number": 40_000}
    assert len(report.examples) == 10
    assert report.examples[:2] == [
        (path, 2, "bad number", "x0"),
        (path, 3, "bad number", "x0"),
    ]


@pytest.mark.parametrize(
    ("num_open_files", "shuffle_rows"), [(1, 0), (3, 0), (3, 16), (9, 1000)]
)
def test_each_row_once_an_epoch(tmp_path, num_open_files, shuffle_rows, monkeypatch):
    monkeypatch.setattr("keras_recsys.data.csv_files.BLOCK_BYTES", 64)
    paths = numbered(tmp_path)
    kwargs = {"num_open_files": num_open_files, "batch_size": 7}
    first, second = (
        read_csv(
            paths,
            {"number": "int64"},
            label="label",
            shuffle_rows=shuffle_rows,
            seed=3,
            **kwargs,
        )
        for _ in range(2)
    )
    epochs = [numbers_of(first) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(120))] * 2
    assert [numbers_of(second) for _ in range(2)] == epochs
    assert (epochs[0] == epochs[1]) == (not shuffle_rows)
    for columns, labels in first:
        np.testing.assert_array_equal(columns["number"] % 2, labels[:, 0])
    if num_open_files == 1 and not shuffle_rows:
        assert epochs[0] == list(range(120))
    if num_open_files == 3 and not shuffle_rows:
        assert epochs[0][:40] != list(range(40))


def test_seeds_differ_and_a_window_of_all_mixes_files(tmp_path):
    paths = numbered(tmp_path)

    def numbers(seed):
        return numbers_of(
            read_csv(
                paths, {"number": "int64"}, label="label", shuffle_rows=120, seed=seed
            )
        )

    assert numbers(1) != numbers(2)
    assert numbers(None) != numbers(None)
    assert len({number // 30 for number in numbers(1)[:30]}) == 4


def test_repeat_and_take(tmp_path):
    dataset = read_csv(numbered(tmp_path), {"number": "int64"}, label="label")
    assert sorted(numbers_of(dataset.repeat(2))) == sorted([*range(120)] * 2)
    small = read_csv(
        numbered(tmp_path), {"number": "int64"}, label="label", batch_size=5
    )
    assert len(numbers_of(small.take(3))) == 15


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"schema": ["city"]}, TypeError, r"`schema`.*\['city'\]"),
        ({"schema": {}}, ValueError, "`schema` must name"),
        ({"schema": {"city": "text"}}, ValueError, r"`schema\['city'\]`.*='text'"),
        ({"schema": {"city": "int64[]"}}, ValueError, "single values.*separator"),
        ({"label": "city"}, ValueError, "`label`.*='city'"),
        ({"label": 3}, TypeError, "`label`.*=3"),
        ({"header": False}, ValueError, "`header`.*=False"),
        ({"header": []}, ValueError, r"`header`.*=\[\]"),
        ({"delimiter": ";;"}, ValueError, "`delimiter`.*=';;'"),
        ({"delimiter": '"'}, ValueError, "`delimiter`.*='\"'"),
        ({"quoting": 1}, TypeError, "`quoting`.*=1"),
        ({"fill": {"town": 0}}, ValueError, "`fill`.*'town'"),
        ({"fill": {"city": "x"}}, ValueError, "`fill`.*'city'"),
        ({"fill": {"item": 0.5}}, ValueError, "`fill`.*'item'.*0.5"),
        ({"fill": float("nan")}, ValueError, "`fill`.*'age'.*nan"),
        ({"fill": 10**400}, ValueError, "`fill`.*'age'"),
        ({"fill": {"shop": 2**31}}, ValueError, "`fill`.*'shop'.*2147483648"),
        ({"errors": "drop"}, ValueError, "`errors`.*='drop'"),
        ({"report": []}, TypeError, r"`report`.*=\[\]"),
        ({"vocabularies": {"town": Vocabulary(["a"])}}, ValueError, "'town'"),
        ({"vocabularies": {"shop": Vocabulary(["a"])}}, TypeError, "'shop'.*'int32'"),
        ({"vocabularies": [1]}, TypeError, "`vocabularies`"),
        ({"batch_size": 0}, ValueError, "`batch_size`.*=0"),
        ({"shuffle_rows": -1}, ValueError, "`shuffle_rows`.*=-1"),
        ({"seed": 1.5}, TypeError, "`seed`.*=1.5"),
        ({"num_open_files": 0}, ValueError, "`num_open_files`.*=0"),
        ({"paths": "nowhere/*.csv"}, ValueError, "`paths`.*'nowhere/"),
        ({"paths": []}, ValueError, r"`paths`.*=\[\]"),
    ],
)
def test_says_what_is_wrong(tmp_path, kwargs, error, message):
    path = write(tmp_path, [HEADER, *GOOD])
    given = {"paths": path, "schema": SCHEMA, "label": "click", **kwargs}
    with pytest.raises(error, match=message):
        read_csv(given.pop("paths"), given.pop("schema"), **given)
