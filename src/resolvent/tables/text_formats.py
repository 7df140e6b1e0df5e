"""How a text table is written: its encoding, its separator and its decimal mark.

A format that is clear from the file is recognised. Otherwise an error names the setting that decides.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from resolvent.errors import InputError, nearest, quote, shorten
from resolvent.tables.cells import GROUPS, CellRules, yaml_name

if TYPE_CHECKING:
    import pandas as pd

Decimal = Literal["auto", ".", ","]
_SEPARATORS = (",", ";", "\t", "|")
_SEPARATOR_LINE = re.compile(rb'"?sep=(.)"?(?=\r?\n|\r)')  # Excel reads such a first line as the file's separator
_BYTE_ORDER_MARKS = ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
                     (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_COMMA_NUMBER = re.compile(r"[+-]?(\d+(,\d*)?|,\d+)([eE][+-]?\d+)?")
_COMMA_OF_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_GROUPED_NUMBER = re.compile(rf"[+-]?\d{{1,3}}([{GROUPS}]\d{{3}})+([.,]\d+)?")
_PLAIN_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")


@dataclass(frozen=True)
class TextFormat:
    """How a text table is written; ``auto`` is recognised from the file.

    Attributes:
        separator: the character between two values.
        encoding: a name that Python knows, such as utf-8 or cp1252.
    """

    separator: str = "auto"
    decimal: Decimal = "auto"
    encoding: str = "auto"

    def __post_init__(self) -> None:
        is_suitable = (isinstance(self.separator, str) and len(self.separator) == 1 and self.separator.isascii()
                       and not self.separator.isalnum() and self.separator not in '"\r\n\0.')
        if self.separator != "auto" and not is_suitable:
            raise InputError(f"separator={quote(self.separator)} cannot separate values: use auto, or one "
                             r"character such as ',', ';', '|' or '\t'")
        if self.decimal not in get_args(Decimal):
            raise InputError(f"decimal={quote(self.decimal)} is not known: use one of auto, '.', ','")
        if self.encoding != "auto":
            try:
                "".encode(self.encoding)
            except (LookupError, TypeError, ValueError) as error:
                raise InputError(f"encoding={quote(self.encoding)} is not known: use auto, or a name such as "
                                 "utf-8, latin-1 or cp1252") from error


def to_utf8(data: bytes, encoding: str, name: str) -> bytes:
    """The content of a text file in UTF-8.

    Args:
        encoding: encoding of the file; ``auto``: UTF-8, or UTF-16 or UTF-32 if the file begins with their byte-order
            mark.
    """
    if encoding == "auto":
        encoding = next((e for mark, e in _BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
    if encoding == "utf-8":
        if b"\0" in data:
            raise InputError(f"{name} cannot be read as text in UTF-8, because it has bytes 0: if it is text in "
                             "UTF-16, set encoding: utf-16-le; otherwise it is not a text table")
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(data, error, name) from error
        return data
    try:
        return data.decode(encoding).encode()
    except (UnicodeError, LookupError) as error:
        raise InputError(f"{name} cannot be read as text in {encoding}: {shorten(error)}: set another encoding, or "
                         "write the file in UTF-8") from error


def _not_utf8(data: bytes, error: UnicodeDecodeError, name: str) -> InputError:
    line = data.count(b"\n", 0, error.start) + 1
    start = max(data.rfind(b"\n", 0, error.start) + 1, error.start - 20)
    words = re.split(r"[\r\n]", data[start:error.start + 20].decode("cp1252", "replace"))[0]
    return InputError(f"{name} cannot be read as text in UTF-8: line {line} has the byte 0x{data[error.start]:02x}. If "
                      f"{quote(words)} is right there, set encoding: cp1252 (Windows, Excel); otherwise set "
                      "the encoding in which the file was written (such as latin-1), or write it again in UTF-8")


def find_separator(data: bytes, usual: str, wanted: Iterable[str], name: str) -> tuple[bytes, str]:
    """The separator of a text table, from its header.

    A separator is recognised if it alone gives a header that has the wanted columns, or if it alone divides the
    header. A first line ``sep=;`` states the separator.

    Args:
        data: the content of the file in UTF-8.
        wanted: the names of columns that the header must have.

    Returns:
        The content, in which a line ``sep=;`` is made blank, and the separator.
    """
    content = data.removeprefix(codecs.BOM_UTF8)
    if stated := _SEPARATOR_LINE.match(content):
        return content[stated.end():], stated[1].decode("ascii", "replace")
    wanted = set(map(str, wanted))
    headers = {s: read_header(data, s) for s in dict.fromkeys((usual, *_SEPARATORS))}
    divided = {s: header for s, header in headers.items() if len(header) > 1}
    fitting = [s for s, header in divided.items() if wanted <= set(header)]
    if len(fitting) == 1:
        return data, fitting[0]
    header = headers[usual][0]
    for sign in sorted({*header} if not divided else ()):
        if not sign.isalnum() and len(wanted) > 1 and wanted <= {*header.split(sign)}:
            raise InputError(f"{name}: the names of the columns are divided by {sign!r}: set separator: {sign!r}")
    if len(divided) <= 1:
        return data, next(iter(divided), usual)
    columns = "; ".join(f"{s!r}: {shorten(', '.join(map(repr, header)))}" for s, header in divided.items())
    missing = sorted(wanted.difference(*divided.values()))
    absent = f", and no header has the column {quote(missing[0])}" if missing else ""
    hint = nearest(missing[0], [c for header in divided.values() for c in header]) if missing else ""
    raise InputError(f"{name}: the header can be divided at several characters ({columns}){absent}: set separator: "
                     f"{next(iter(divided))!r}, or another of them{', or correct the name' if missing else ''}{hint}")


class NumberFormatError(InputError):
    """The decimal mark of a text table is not clear.

    Attributes:
        problems: the columns that it is about, each with a message.
    """

    def __init__(self, message: str, problems: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.problems = dict(problems or {})


def with_points(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """A column of texts in which numbers with a decimal comma have a decimal point."""
    return column.replace({text: text.replace(",", ".") for text in column.dropna().unique()
                           if isinstance(text, str) and "," in text and _COMMA_NUMBER.fullmatch(text.strip())})


def find_comma_columns(frame: "pd.DataFrame", used: Iterable[str], cells: CellRules) -> dict[str, str]:
    """The ``used`` columns in which all values are numbers and some have a comma, each with such a value.

    The table was read with decimal points; cells that stand for missing values are no values.
    """
    columns, mixed, wanted = {}, {}, set(used)
    for column, dtype in zip(frame.columns, frame.dtypes, strict=True):
        if column not in wanted or getattr(dtype, "kind", "O") in "biuf":
            continue
        texts = _texts(frame[column]) - cells.words(column)
        if all(map(_COMMA_NUMBER.fullmatch, texts)):
            with_comma = [t for t in texts if "," in t]
            if with_comma:
                columns[column] = min(with_comma, key=lambda t: (_is_of_thousands(t), t))
        elif (all(_GROUPED_NUMBER.fullmatch(t) or _PLAIN_NUMBER.fullmatch(t) for t in texts)
              and any("," in t or _GROUPED_NUMBER.fullmatch(t) for t in texts)):
            grouped = sorted(t for t in texts if _GROUPED_NUMBER.fullmatch(t))
            marks = [min((t for t in texts if mark in t), default="") for mark in ".,"]
            example = " and ".join(quote(t) for t in (grouped[:1] or marks))
            mixed[column] = (f"column {quote(column)} holds numbers with separators of thousands, or with two "
                             f"decimal marks, such as {example}: write all numbers with one decimal "
                             f"mark and nothing else, exclude the column, or set text: [{yaml_name(column)}] if it is "
                             "a category")
    if mixed:
        first, *others = mixed
        also = f"; likewise {', '.join(quote(c) for c in others)}" if others else ""
        raise NumberFormatError(mixed[first] + also, mixed)
    return columns


def check_decimal_comma(point: "pd.DataFrame", comma: "pd.DataFrame", columns: Mapping[str, str], used: Iterable[str],
                        separator: str) -> None:
    """Raise an error unless the commas in a table's numbers can only be decimal commas.

    In a table that is separated by commas, a comma within a value is not taken for a decimal comma.

    Args:
        columns: the result of `find_comma_columns` for ``point``.
    """
    column, example = min(columns.items(), key=lambda item: _is_of_thousands(item[1]))
    title = f"column {quote(column)} holds numbers with a comma, such as {quote(example)}"
    points = [c for c in used if _is_number(point[c]) and not _is_number(comma[c])]
    if points:
        message = (f"{title}, and column {quote(points[0])} holds numbers with a point: write all numbers with "
                   "one decimal mark, or exclude a column")
        raise NumberFormatError(message, {column: message})
    if separator == "," or _is_of_thousands(example):
        message = (f"{title}: set decimal: ',' if it is a decimal comma. Otherwise write thousands without a comma, or "
                   f"set text: [{yaml_name(column)}] if the column is a category")
        raise NumberFormatError(message, {column: message})


def _is_of_thousands(number: str) -> bool:
    """Whether the comma of a number may separate thousands."""
    return _COMMA_OF_THOUSANDS.fullmatch(number) is not None


def iterate_records(data: bytes, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The records of a text file in UTF-8 without blank lines, each with the line on which it begins."""
    reader = csv.reader(io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline=""), delimiter=separator)
    line, limit = 1, csv.field_size_limit(2**31 - 1)  # a header at another separator is one long value
    try:
        for fields in reader:
            if len(fields) > 1 or "".join(fields).strip():
                yield line, fields
            line = reader.line_num + 1
    finally:
        csv.field_size_limit(limit)


def read_header(data: bytes, separator: str) -> list[str]:
    """The names of the columns, without blanks around them."""
    return [name.strip() for name in next(iterate_records(data, separator), (1, [""]))[1]]


def _is_number(column: "pd.Series[float]") -> bool:
    from pandas.api import types

    return types.is_numeric_dtype(column)  # also true of columns of true and false


def _texts(column: "pd.Series[str]") -> set[str]:
    """The different texts of a column that are not blank."""
    return {str(value).strip() for value in column.dropna().unique()} - {""}
