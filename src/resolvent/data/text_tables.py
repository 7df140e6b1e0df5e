"""Text tables (CSV, TSV) as frames whose index holds the line on which each row begins, for errors."""

import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read_text_table"]


def read_text_table(path: Path, separator: str, party: str) -> "pd.DataFrame":
    """Read a text table with a header, gzipped if its name ends in ``.gz``; the column ``party`` is read as text.

    Raises:
        InputError: a row has more or fewer values than the header has names.
    """
    import pandas as pd

    data = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    frame = pd.read_csv(io.BytesIO(data), sep=separator, dtype={party: str}, low_memory=False)
    header = next(_records(data, separator))[1]
    if not isinstance(frame.index, pd.RangeIndex):
        raise InputError(f"{path.name!r} has rows with more values than the header's {len(header)} names: "
                         "name every column, or remove the last separator of each row")
    lines: Sequence[int] = range(2, len(frame) + 2)
    line_count = data.count(b"\n") + (not data.endswith(b"\n"))
    # Reading the records again is slow. It is needed only if rows and lines differ, or if a row may be cut off.
    if line_count != len(frame) + 1 or frame.iloc[:, -1].isna().any():
        records = list(_records(data, separator))[1:]
        lines = [line for line, _ in records]
        for line, fields in records:
            if len(fields) < len(header):
                raise InputError(f"{path.name!r}, row {line} is cut off, with {len(fields)} values for "
                                 f"{len(header)} columns: complete it, or leave it out")
    # pandas renames the second of two equal names; the original names let a later check refuse them.
    names = [h or c for h, c in zip(header, frame.columns, strict=True)]
    return frame.set_axis(names, axis=1).set_axis(pd.Index(lines), axis=0)


def _records(data: bytes, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The records of a text file without blank lines, each with the line on which it begins."""
    reader = csv.reader(io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline=""), delimiter=separator)
    line = 1
    for fields in reader:
        if len(fields) > 1 or "".join(fields).strip():
            yield line, fields
        line = reader.line_num + 1
