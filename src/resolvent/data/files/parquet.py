"""Parquet files, read without threads."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def read_parquet(path: Path) -> "pd.DataFrame":
    """The table of a Parquet file.

    pyarrow's threads save nothing in files of this size. Where the address space is limited (``ulimit -v``), one that
    cannot start leaves the reader waiting for ever.
    """
    from pyarrow import parquet

    with parquet.ParquetFile(path, pre_buffer=False) as file:
        frame: pd.DataFrame = file.read(use_threads=False).to_pandas(use_threads=False)
    return frame
