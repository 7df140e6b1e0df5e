"""Files with a table, as data frames: CSV, TSV and Parquet, with advice for spreadsheets."""

import csv
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.data.files.data_files import read_parquet
from resolvent.errors import InputError, nearest, quote, shorten
from resolvent.tables.cells import CellRules
from resolvent.tables.text_formats import TextFormat
from resolvent.tables.text_tables import read_text_table

if TYPE_CHECKING:
    import pandas as pd

_TEXT_ENDINGS = (".csv", ".csv.gz", ".tsv")
_SPREADSHEET_ENGINES = {".xlsx": "openpyxl", ".xlsm": "openpyxl", ".xls": "xlrd", ".xlsb": "pyxlsb", ".ods": "odfpy"}
_SPREADSHEET_MAGIC = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")  # ZIP, and Excel's older format


def read_table_file(table: str, text: TextFormat, wanted: Sequence[str], cells: CellRules,
                    is_used: Callable[[str], bool]) -> "tuple[pd.DataFrame, str]":
    """Read a table from a file.

    Args:
        table: path of a ``.csv``, ``.csv.gz``, ``.tsv`` or ``.parquet`` file.
        wanted: columns that a text file must have, from which its separator is recognised.
        cells: what the cells mean; a column with a rule of its own has the texts of the file. ``read_cells`` reads the
            columns of any frame by these rules.
        is_used: whether a column is used; the decimal mark is recognised from these columns.

    Returns:
        The table, whose index has the lines on which rows begin if the file is text, and the file's name without its
        ending.
    """
    path = Path(table).expanduser()
    ending = next((s for s in (*_TEXT_ENDINGS, ".parquet") if path.name.lower().endswith(s)), None)
    if ending is None:
        raise _not_a_table(str(table))
    if ending == ".parquet" and text != TextFormat():
        raise InputError(f"{quote(str(table))} is a Parquet file: separator, decimal and encoding are settings "
                         "of text files: leave them out")
    check_exists(path)
    frame = _read_file(path, ending, lambda: read_text_table(path, text, wanted, cells, is_used))
    return frame, path.name[:-len(ending)]


def _not_a_table(table: str) -> InputError:
    """The error for a file whose name does not end as that of a table; it says how to convert a spreadsheet."""
    name = quote(table)
    if Path(table).suffix.lower() not in _SPREADSHEET_ENGINES:
        return InputError(f"{name} cannot be read: name a .csv, .csv.gz, .tsv or .parquet file")
    return InputError(f"{name} is a spreadsheet, which cannot be read: {_conversion(table)}")


def _conversion(table: str) -> str:
    engine = _SPREADSHEET_ENGINES.get(Path(table).suffix.lower(), "openpyxl")
    return (f"save it as CSV (UTF-8) in the spreadsheet program, or convert it with pandas and {engine}: "
            f"pandas.read_excel({quote(table)}).to_csv({quote(str(Path(table).with_suffix('.csv')))}, "
            "index=False)")


def check_exists(path: Path) -> None:
    """Raise an error if there is no such file; it suggests a file with a similar name."""
    try:
        if path.is_file():
            return
        if path.exists():
            kind = "a folder" if path.is_dir() else "a pipe or a device, which cannot be read twice"
            raise InputError(f"{quote(str(path))} is {kind}: name a file")
        similar = nearest(path.name, [p.name for p in path.parent.glob("[!.]*") if p.is_file()])
    except OSError:  # the name is too long, or a folder cannot be searched
        similar = ""
    raise InputError(f"there is no file {quote(str(path.absolute()))}: name an existing one{similar}")


def _read_file(path: Path, ending: str, read_text: "Callable[[], pd.DataFrame]") -> "pd.DataFrame":
    """The table in a file; errors of the libraries that read it become an `InputError`."""
    import pyarrow as pa

    title = quote(str(path))
    try:
        with path.open("rb") as file:
            start = file.read(8)
        if not start:
            raise InputError(f"{title} is empty (0 bytes), or cut off: write or download it again")
        is_spreadsheet = start.startswith(_SPREADSHEET_MAGIC)
        if is_spreadsheet:
            raise InputError(f"{title} cannot be read as {ending}: it is a spreadsheet or a ZIP archive: for a "
                             f"spreadsheet, {_conversion(str(path))}")
        return read_parquet(path) if ending == ".parquet" else read_text()
    except InputError:
        raise
    except (OSError, EOFError, ValueError, OverflowError, csv.Error, zlib.error, pa.ArrowException) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(f"{title} cannot be read as {ending}: {shorten(reason)}. It may be cut off, or in another "
                         "format than its name says: write or download it again") from error
