"""Where data files are, and how they are opened. `images_text.formats` reads their formats.

Files are searched for in the folder that the environment variable ``RESOLVENT_DATA`` names, then in the user's cache
folder, to which ``resolvent data fetch`` downloads. Gzip is recognised by a file's content, not by its name.
"""

import contextlib
import gzip
import lzma
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import platformdirs

from resolvent.errors import InputError, MissingDataError, nearest, shorten

READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)
_GZIP_MAGIC = b"\x1f\x8b"


def data_folders() -> list[Path]:
    """The folders in which data files are searched for, in this order."""
    folder = os.environ.get("RESOLVENT_DATA")
    cache = platformdirs.user_cache_path("resolvent", appauthor=False) / "data"
    return [*([Path(folder).expanduser()] if folder else []), cache]


def find(*names: str, fetch: str | None = None) -> Path:
    """The first of these files that exists: under its own path, or in one of the data folders, plain or gzipped.

    Args:
        names: paths, absolute or relative; ``.gz`` may be left out.
        fetch: the data set that ``resolvent data fetch`` downloads, for the error.
    """
    folders = data_folders()
    for name in names:
        for folder in (Path(), *folders):
            for ending in ("", ".gz"):
                path = folder / (str(Path(name).expanduser()) + ending)
                with contextlib.suppress(OSError):  # such as that the name is too long
                    if path.exists():
                        return path
    searched = " and ".join(str(f.absolute()) for f in folders)
    present: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        present = [p.name for folder in folders for p in (folder / names[0]).parent.glob("*")]
    download = f", or run `resolvent data fetch {fetch}`" if fetch else ""
    unset = "" if os.environ.get("RESOLVENT_DATA") else " (the environment variable RESOLVENT_DATA is not set)"
    raise MissingDataError(f"there is no file {shorten(' or '.join(names))} in {searched}{unset}: set RESOLVENT_DATA "
                           f"to the folder that has it{download}{nearest(Path(names[0]).name, present)}")


def open_unpacked(path: Path) -> BinaryIO:
    """Open a file for reading; a gzipped file is unpacked while it is read."""
    try:
        with path.open("rb") as file:
            is_gzipped = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        return gzip.open(path) if is_gzipped else path.open("rb")  # type: ignore[return-value]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def read(path: Path) -> bytes:
    """The whole content of a file, unpacked if it is gzipped."""
    with open_unpacked(path) as file:
        try:
            return file.read()
        except READ_ERRORS as error:
            raise InputError(f"{path} is cut off or damaged ({shorten(error)}): download it again") from error


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
