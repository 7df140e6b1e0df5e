"""Files with new rows for a fitted encoding: tables, or arrays in ``.npy`` files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.data.encoded_rows import Encoding
from resolvent.errors import InputError, quote, shorten
from resolvent.tables.cells import CellRules
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.table_files import check_exists, read_table_file
from resolvent.tables.text_formats import TextFormat

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


def read_rows(path: str, encoding: Encoding, text: TextFormat = TextFormat()) -> "pd.DataFrame | NDArray[Any]":  # noqa: B008
    """Read the rows of a file for an encoding.

    Columns of categories are read as text, so that ``007`` stays ``007``. A table has the names of the encoding, or
    those of the model's site.

    Args:
        path: a ``.csv``, ``.csv.gz``, ``.tsv`` or ``.parquet`` file; or an ``.npy`` file, for arrays.
    """
    if Path(path).suffix.lower() == ".npy":
        return _read_array(Path(path).expanduser())
    if not isinstance(encoding, TableEncoding):
        names = set(encoding.features)
        return read_table_file(path, text, encoding.features, CellRules(), lambda column: column in names)[0]
    of_site = dict(encoding.site_names)
    numbers = {column.name for column in encoding.numbers}
    numbers.update(label.name for label in encoding.labels if label.kind != "text")
    numbers.update(of_site[name] for name in numbers & {*of_site})
    frame = read_table_file(path, text, [column.name for column in encoding.columns if column.name not in of_site],
                            encoding.cells | encoding.cells.renamed(of_site), lambda column: column in numbers)[0]
    return encoding.with_common_names(frame)


def _read_array(path: Path) -> "NDArray[Any]":
    check_exists(path)
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{quote(str(path))} cannot be read as .npy: {shorten(error)}: write it again with "
                         "numpy.save") from error
    if not isinstance(array, np.ndarray) or not array.ndim:
        raise InputError(f"{quote(str(path))} holds no array of rows: write one with numpy.save")
    return array
