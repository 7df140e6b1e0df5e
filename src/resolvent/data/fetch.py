"""Downloads from the official addresses, with checksum and resumption, and a check of what is there.

A transfer goes to a file that ends in ``.part`` and takes its name only when it is whole and has the published MD5;
what an interruption leaves is gone on with by an HTTP range.
"""

import hashlib
import http.client
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from resolvent.data import files
from resolvent.errors import InputError, nearest

__all__ = ["CATALOGUE", "Download", "Found", "check", "fetch"]

Progress = Callable[[str, int, int], None]
_BLOCK = 1 << 18


@dataclass(frozen=True)
class Download:
    """A file at an official address.

    Attributes:
        url: the address.
        md5: of the file, as published; empty where none is.
        path: where it goes, in the data folder; an archive's is a folder.
        members: for an archive, the files to take out of it; empty for a plain file.
        content: MD5 of the unzipped content, where it is published too.
    """

    url: str
    md5: str
    path: str
    members: tuple[str, ...] = ()
    content: str = ""

    def files(self) -> list[str]:
        """What it leaves in the data folder."""
        return [f"{self.path}/{Path(m).name}" for m in self.members] or [self.path]


def _idx_files(address: str, folder: str, md5: tuple[str, ...], content: tuple[str, ...] = ("",) * 4) -> list[Download]:
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return [Download(address + name, sum_, f"{folder}/{name}", (), inner)
            for name, sum_, inner in zip(names, md5, content, strict=True)]


_BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
CATALOGUE: dict[str, list[Download]] = {
    "mnist": _idx_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/", "mnist",
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
         "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
        ("6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624",
         "2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637")),
    "fashion_mnist": _idx_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", "fashion_mnist",
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
         "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310")),
    "emnist": [Download(
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e", "emnist",
        tuple(f"gzip/emnist-{split}-{part}-{kind}-ubyte.gz" for split in ("byclass", "letters")
              for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")))],
    "cifar10": [Download(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin", tuple(f"cifar-10-batches-bin/{name}.bin" for name in _BATCHES))],
    "shakespeare": [Download(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "6fb458f1232090904fb40fe944165e91", "shakespeare/tinyshakespeare.txt")],
    "sentiment140": [Download(
        "https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip", "1647eb110dd2492512e27b9a70d5d1bc",
        "sentiment", ("training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv"))],
}


def fetch(name: str, folder: Path | None = None, progress: Progress | None = None, *,
          catalogue: dict[str, list[Download]] = CATALOGUE) -> list[Path]:
    """Download a data set; files that are there and whole are left alone.

    Args:
        name: of the data set in the catalogue.
        folder: where to; default: the first of the data folders, which is ``RESOLVENT_DATA`` where that is set.
        progress: called with (file, bytes so far, bytes in all or 0 where the server does not say).
        catalogue: what there is to download.

    Returns:
        The files of the data set.

    Raises:
        InputError: an unknown name, no network, a transfer that broke off (run it again to go on), a wrong checksum.
    """
    if name not in catalogue:
        raise InputError(f"there is nothing to download that is called {name!r}; there are {', '.join(catalogue)}"
                         f"{nearest(name, catalogue)}")
    place, result = folder or files.folders()[0], []
    for download in catalogue[name]:
        wanted = [place / path for path in download.files()]
        if not all(p.is_file() and _state(p, download)[0] for p in wanted):
            _download(download, place, progress)
        result += wanted
    return result


def _download(download: Download, place: Path, progress: Progress | None) -> None:
    target = place / (f"{download.path}/{Path(download.url).name}" if download.members else download.path)
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _transfer(download.url, part, progress)
        found = _md5(part)
        if download.md5 and found != download.md5:
            part.unlink()
            raise InputError(f"{download.url} has the MD5 {found}, expected {download.md5}: it was damaged on its way, "
                             "or another file is there now; nothing was kept")
        if download.members:
            _unpack(part, target.parent, download.members)
            part.unlink()
        else:
            part.replace(target)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        there = part.stat().st_size if part.exists() else 0
        raise InputError(f"{download.url} could not be downloaded ({error}): {there} bytes are kept in {part}; run it "
                         "again to go on from there, or put the file there yourself") from error
    except OSError as error:
        raise InputError(f"{target.parent} cannot be written ({error}): choose another folder with --to, or set "
                         "RESOLVENT_DATA") from error


def _transfer(url: str, part: Path, progress: Progress | None) -> None:
    """Append what is missing; start over where the server knows no ranges."""
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        answer = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is missing: the checksum will tell
            error.close()
            return
        raise
    with answer:
        start = start if answer.status == 206 else 0
        length = int(answer.headers.get("Content-Length") or 0)
        with part.open("ab" if start else "wb") as file:
            done = start
            while block := answer.read(_BLOCK):
                file.write(block)
                done += len(block)
                if progress:
                    progress(Path(url).name, done, start + length if length else 0)
        if length and done < start + length:
            raise ConnectionError(f"it broke off after {done} of {start + length} bytes")


def _unpack(archive: Path, folder: Path, members: tuple[str, ...]) -> None:
    """The members that were asked for, by their last name only, so that nothing lands outside the folder."""
    try:
        for name, source in _members(archive, members):
            part = folder / f"{Path(name).name}.part"
            with source, part.open("wb") as file:
                shutil.copyfileobj(source, file)
            part.replace(folder / Path(name).name)
    except (KeyError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise InputError(f"{archive} cannot be unpacked ({error}): remove it and download it again") from error


def _members(archive: Path, members: tuple[str, ...]) -> Iterator[tuple[str, IO[bytes]]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for name in members:
                yield name, packed.open(name)
    else:
        with tarfile.open(archive) as tarred:
            for name in members:
                source = tarred.extractfile(name)
                if source is None:
                    raise KeyError(f"{name} is no file")
                yield name, source


@dataclass(frozen=True)
class Found:
    """A file of the catalogue, as it was found.

    Attributes:
        data_set: whose it is.
        path: where it lies, or would lie.
        state: ``whole``, ``damaged`` or ``missing``.
        detail: why, in words.
    """

    data_set: str
    path: Path
    state: str
    detail: str


def check(name: str | None = None, *, catalogue: dict[str, list[Download]] = CATALOGUE) -> list[Found]:
    """What of the catalogue is in the data folders, and whether it is whole: by checksum, or by reading all of it.

    Args:
        name: one data set; default: all of them.
        catalogue: what to look for.

    Raises:
        InputError: an unknown name.
    """
    if name is not None and name not in catalogue:
        raise InputError(f"there is no data set {name!r} to check; there are {', '.join(catalogue)}"
                         f"{nearest(name, catalogue)}")
    result = []
    for data_set in catalogue if name is None else [name]:
        for download in catalogue[data_set]:
            for path in download.files():
                places = [p for folder in files.folders()
                          for p in (folder / path, folder / path.removesuffix(".gz")) if p.is_file()]
                if not places:
                    result.append(Found(data_set, files.folders()[0] / path, "missing",
                                        f"resolvent data fetch {data_set}"))
                for there in places[:1]:
                    whole, detail = _state(there, download)
                    result.append(Found(data_set, there, "whole" if whole else "damaged", detail))
    return result


def _state(path: Path, download: Download) -> tuple[bool, str]:
    """Whether a file is whole, and how that is known."""
    if not download.members and download.md5 and _md5(path) == download.md5:
        return True, "it has the published checksum"
    try:
        if download.content:
            found = hashlib.md5(files.read(path), usedforsecurity=False).hexdigest()
            whole = found == download.content
            return whole, ("its content has the published checksum" if whole else
                           f"its content has the MD5 {found}, expected {download.content}")
        name = path.name.removesuffix(".gz")
        if name.endswith("-ubyte"):
            shape = files.idx(path).shape
            return True, f"an array of {' x '.join(map(str, shape))} values can be read"
        if path.parent.name.startswith("cifar-10"):
            labels: Any = files.cifar_batch(path)[1]
            whole = len(labels) == 10_000
            return whole, f"{len(labels):,} images can be read" + ("" if whole else ", expected 10,000")
        return bool(size := len(files.read(path))), f"{size:,} bytes can be read; no checksum is published"
    except InputError as error:
        return False, str(error)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
