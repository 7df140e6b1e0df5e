"""Text tables (CSV, TSV) as frames whose index holds the line on which each row begins, for errors."""

import gzip
import io
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent.data.files import data_files
from resolvent.errors import InputError, count_of, quote, shorten
from resolvent.tables.cells import LEADING_ZERO, MISSING_WORDS, NUMBER, CellRules
from resolvent.tables.text_formats import (
    TextFormat,
    check_decimal_comma,
    find_comma_columns,
    find_separator,
    iterate_records,
    read_header,
    to_utf8,
    with_points,
)

if TYPE_CHECKING:
    import pandas as pd


def read_text_table(path: Path, text: TextFormat, wanted: Sequence[str], cells: CellRules,
                    is_used: Callable[[str], bool]) -> "pd.DataFrame":
    """Read a text table with a header, gzipped if its name ends in ``.gz``.

    If the name contains ``.tsv``, tabs are the usual separator, otherwise commas. The other arguments are those of
    ``read_table_file``.
    """
    import pandas as pd

    name = quote(path.name)
    data = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    data, separator = to_utf8(data, text.encoding, name), text.separator
    if separator == "auto":
        data, separator = find_separator(data, "\t" if ".tsv" in path.name.lower() else ",", wanted, name)
    header = read_header(data, separator)
    if wanted and not {*wanted} & {*header} and any(map(NUMBER.fullmatch, header)):
        raise InputError(f"{name} has no line with the names of the columns: its first line is "
                         f"{shorten(', '.join(map(repr, header)))}: write one before it")
    first_row = next(islice(iterate_records(data, separator), 1, None), (2, []))[1]
    if len(first_row) > len(header):  # pandas takes the first values for names of the rows
        hint = ", and put numbers with a decimal comma in quotes" if separator == "," else ""
        raise InputError(f"{name} has rows with more values than the header's {len(header)} names: "
                         f"name every column, or remove the last separator of each row{hint}")
    try:
        frame = _read_frame(data, separator, text.decimal, cells, is_used)
    except pd.errors.ParserError:
        for line, fields in iterate_records(data, separator):
            if len(fields) > len(header):
                raise InputError(f"{name}, row {line} has {len(fields)} values, and the first line names "
                                 f"{count_of(len(header), 'column')}, {shorten(', '.join(map(repr, header)))}: put "
                                 "values with a separator in quotes, and remove lines before that with the names"
                                 ) from None
        raise
    lines = pd.Index(range(2, len(frame) + 2))
    line_count = data.count(b"\n") + (not data.endswith(b"\n"))
    # Reading the records again is slow. It is needed only if rows and lines differ, or if a row may be cut off.
    if line_count != len(frame) + 1 or frame.iloc[:, -1].isna().any():
        records = list(iterate_records(data, separator))[1:]
        lines = pd.Index([line for line, _ in records])
        for line, fields in records:
            if len(fields) < len(header):
                raise InputError(f"{name}, row {line} is cut off, with {len(fields)} values for "
                                 f"{len(header)} columns: complete it, or leave it out")
    # pandas renames the second of two equal names; the original names let a later check refuse them.
    names = [h or c for h, c in zip(header, frame.columns, strict=True)]
    return frame.set_axis(names, axis=1).set_axis(lines, axis=0)


def text_records(path: str, columns: Sequence[str], *, separator: str = "auto",
                 encoding: str = "auto") -> tuple[str, Iterator[tuple[int, list[str]]]]:
    """The records of a text table, the header first, each with the line on which it begins.

    Args:
        path: a file, gzipped or not; it is also searched for in the folders of data.
        columns: names that the header must have, by which the separator is recognised.
        separator: the character between two values; ``auto``: recognised from the header.
        encoding: encoding of the file; ``auto``: UTF-8, or what the file's byte-order mark says.

    Returns:
        The name of the file, for errors, and its records without blank lines.

    Raises:
        InputError: there is no such file, it cannot be read, or an argument is not known.
    """
    TextFormat(separator, encoding=encoding)  # raises an error for unknown settings
    found = data_files.find(path)
    name = shorten(found.name)
    data = to_utf8(data_files.read(found), encoding, name)
    if separator == "auto":
        data, separator = find_separator(data, ",", columns, name)
    return name, iterate_records(data, separator)


def _read_frame(data: bytes, separator: str, decimal: str, cells: CellRules,
                is_used: Callable[[str], bool]) -> "pd.DataFrame":
    """The table with pandas' names of the columns; its decimal mark is recognised if ``decimal`` is ``auto``."""
    import pandas as pd

    def read(mark: str) -> "pd.DataFrame":
        options: dict[str, Any] = {"sep": separator, "decimal": mark, "low_memory": False, "keep_default_na": False}
        frame: pd.DataFrame = pd.read_csv(io.BytesIO(data), na_values=[*MISSING_WORDS], **options)
        stripped = pd.Index([str(name).strip() for name in frame.columns], dtype=object)
        frame.columns = stripped.where(~stripped.duplicated(), [f"{i}\n" for i in range(len(stripped))])
        # Types of single columns would give every column a block of its own, which is slow for 100,000 columns.
        named = [c for c in frame.columns if not cells.has_no_rule(c)]
        numeric = [c for c in frame.columns if c not in named and getattr(frame[c].dtype, "kind", "O") in "if"
                   ] if has_zeros else []
        if named or numeric:
            texts = pd.read_csv(io.BytesIO(data), names=[*frame.columns], header=0, usecols=[*named, *numeric],
                                dtype=str, na_values=[""], **options)
            named += [c for c in numeric if any(map(LEADING_ZERO.fullmatch, texts[c].dropna().str.strip().unique()))]
            frame[named] = texts[named]
        if mark == ",":  # pandas leaves numbers beside texts as they are
            kinds = {c: getattr(dtype, "kind", "O") for c, dtype in zip(frame.columns, frame.dtypes, strict=True)}
            frame = frame.assign(**{c: with_points(frame[c]) for c, kind in kinds.items()
                                    if kind not in "biuf" and c not in cells.text})
        return frame.copy()  # with few blocks

    has_zeros = re.search(rb"(?:^|[\n\r\"%s])[ \t]*0\d" % re.escape(separator.encode()), data) is not None
    if decimal != "auto":
        return read(decimal)
    frame = read(".")
    used = [c for c in frame.columns if is_used(c) and c not in cells.text]
    columns = find_comma_columns(frame, used, cells)
    if not columns:
        return frame
    with_commas = read(",")
    check_decimal_comma(frame, with_commas, columns, used, separator)
    return with_commas
