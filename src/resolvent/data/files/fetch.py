"""Downloads of the data sets in `sources`, and a check of the files that are present.

A transfer is written to a file that ends in ``.part``. The file gets its name only when it is complete and has the
expected SHA-256. An interrupted download is resumed by an HTTP range request, and redirects lead to https addresses
only. pooch does neither, and would need six further packages.
"""

import hashlib
import http.client
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from typing_extensions import override

from resolvent.data.files import data_files as files
from resolvent.data.files.digests import file_digest
from resolvent.data.files.sources import SOURCES, Download, check_address
from resolvent.data.images_text.formats import read_cifar_batch, read_idx
from resolvent.errors import InputError, alternatives, shorten

Progress = Callable[[str, int, int], None]
Sources = Mapping[str, list[Download]]
_BLOCK_BYTES = 1 << 18
_TIMEOUT_SECONDS = 30
_CIFAR_BATCH_IMAGES = 10_000
_PARTIAL_CONTENT, _RANGE_NOT_SATISFIABLE = 206, 416


def fetch(name: str, folder: Path | None = None, progress: Progress | None = None, *,
          sources: Sources = SOURCES) -> list[Path]:
    """Download a data set; files that are present and complete are not downloaded again.

    Args:
        name: name of the data set in ``sources``.
        folder: folder for the files; default: the first data folder, which is ``RESOLVENT_DATA`` if that is set.
        progress: function of (file, bytes so far, bytes in total); the total is 0 if the server does not state it.
        sources: the data sets that can be downloaded.

    Returns:
        The files of the data set.

    Raises:
        InputError: the name is unknown, there is no network, the transfer was interrupted (run it again to resume it),
            or the checksum is wrong.
    """
    if name not in sources:
        raise InputError(f"there is no data set {shorten(repr(name))} to download{alternatives(name, sources)}")
    target, paths = folder or files.data_folders()[0], []
    for download in sources[name]:
        expected = [target / path for path in download.paths]
        if not all(p.is_file() and _check_file(p, download)[0] for p in expected):
            _download(download, target, progress)
        paths += expected
    return paths


def _download(download: Download, folder: Path, progress: Progress | None) -> None:
    path = folder / (f"{download.path}/{Path(download.url).name}" if download.members else download.path)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _transfer(download.url, part, progress)
        digest = file_digest(part)
        if digest != download.sha256:
            part.unlink()
            raise InputError(f"{download.url} has the SHA-256 {digest}, expected {download.sha256}: it was damaged, or "
                             "there is another file at this address; it was removed: download it again")
        if download.members:
            _unpack(part, path.parent, download.members)
            part.unlink()
        else:
            part.replace(path)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        done = part.stat().st_size if part.exists() else 0
        raise InputError(f"{download.url} could not be downloaded ({shorten(error)}): {part} has {done} bytes: run it "
                         "again to resume it, or download the file by other means") from error
    except OSError as error:
        raise InputError(f"{path.parent} cannot be written ({shorten(error)}): set RESOLVENT_DATA to "
                         "another folder") from error


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https addresses only."""

    @override
    def redirect_request(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str,
                         headers: http.client.HTTPMessage, newurl: str) -> urllib.request.Request | None:
        check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _transfer(url: str, part: Path, progress: Progress | None) -> None:
    """Append the missing bytes; start again from the first byte if the server does not support ranges."""
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.build_opener(_CheckedRedirects).open(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == _RANGE_NOT_SATISFIABLE:  # no bytes are missing; the checksum decides whether they are right
            error.close()
            return
        raise
    with response:
        start = start if response.status == _PARTIAL_CONTENT else 0
        length = int(response.headers.get("Content-Length") or 0)
        done = start
        with part.open("ab" if start else "wb") as file:
            while block := response.read(_BLOCK_BYTES):
                file.write(block)
                done += len(block)
                if progress:
                    progress(Path(url).name, done, start + length if length else 0)
        if length and done < start + length:
            raise ConnectionError(f"interrupted after {done} of {start + length} bytes")


def _unpack(archive: Path, folder: Path, members: tuple[str, ...]) -> None:
    """Extract members under their last name only, so that no file is written outside the folder."""
    try:
        for name, source in _open_members(archive, members):
            part = folder / f"{Path(name).name}.part"
            with source, part.open("wb") as file:
                shutil.copyfileobj(source, file)
            part.replace(folder / Path(name).name)
    except (KeyError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise InputError(f"{archive} cannot be unpacked ({shorten(error)}): remove it and download it again") from error


def _open_members(archive: Path, members: tuple[str, ...]) -> Iterator[tuple[str, IO[bytes]]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for name in members:
                yield name, zipped.open(name)
    else:
        with tarfile.open(archive) as tarred:
            for name in members:
                source = tarred.extractfile(name)
                if source is None:
                    raise KeyError(f"{name} is not a file")
                yield name, source


@dataclass(frozen=True)
class FileStatus:
    """The result of checking a file.

    Attributes:
        path: the path of the file, or the path it would be downloaded to.
        state: ``whole``, ``damaged`` or ``missing``.
        detail: the reason, for the reader.
    """

    data_set: str
    path: Path
    state: Literal["whole", "damaged", "missing"]
    detail: str


def check(name: str | None = None, *, sources: Sources = SOURCES) -> list[FileStatus]:
    """Check the data sets' files in the data folders, by checksum or by reading all of them.

    Args:
        name: one data set; default: all of them.
        sources: the data sets that can be downloaded.

    Raises:
        InputError: the name is unknown.
    """
    if name is not None and name not in sources:
        raise InputError(f"there is no data set {shorten(repr(name))} to check{alternatives(name, sources)}")
    return [_check_path(data_set, path, download) for data_set in (sources if name is None else [name])
            for download in sources[data_set] for path in download.paths]


def _check_path(data_set: str, path: str, download: Download) -> FileStatus:
    """The status of a file in the first data folder that has it, gzipped or not."""
    for folder in files.data_folders():
        for candidate in (folder / path, folder / path.removesuffix(".gz")):
            if candidate.is_file():
                is_whole, detail = _check_file(candidate, download)
                return FileStatus(data_set, candidate, "whole" if is_whole else "damaged", detail)
    return FileStatus(data_set, files.data_folders()[0] / path, "missing", f"resolvent data fetch {data_set}")


def _check_file(path: Path, download: Download) -> tuple[bool, str]:
    """Whether a file is complete, and the reason, for the reader."""
    if not download.members and file_digest(path) == download.sha256:
        return True, "it has the expected checksum"
    try:
        if download.content_sha256:
            digest = hashlib.sha256(files.read(path)).hexdigest()
            is_whole = digest == download.content_sha256
            return is_whole, ("its content has the expected checksum" if is_whole else
                              f"its content has the SHA-256 {digest}, expected {download.content_sha256}")
        return _check_content(path)
    except InputError as error:
        return False, str(error)


def _check_content(path: Path) -> tuple[bool, str]:
    """The same for a file whose checksum is not known, by reading it to its end."""
    if path.name.removesuffix(".gz").endswith("-ubyte"):
        return True, f"an array of {' x '.join(map(str, read_idx(path).shape))} values can be read"
    if path.parent.name.startswith("cifar-10"):
        labels: Any = read_cifar_batch(path)[1]
        is_whole = len(labels) == _CIFAR_BATCH_IMAGES
        expected = "" if is_whole else f", expected {_CIFAR_BATCH_IMAGES:,}"
        return is_whole, f"{len(labels):,} images can be read{expected}"
    size = len(files.read(path))
    return size > 0, f"{size:,} bytes can be read; there is no checksum of its content"
