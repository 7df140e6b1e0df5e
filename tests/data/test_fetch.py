"""Downloads from a server in this process: whole, broken off and gone on with, damaged, unpacked."""

import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import resolvent as rv
from resolvent.data.fetch import CATALOGUE, Download, check, fetch

CONTENT = np.random.default_rng(0).bytes(700_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves ``files``; breaks off after ``limit`` bytes; honours ranges if ``ranges``."""

    def do_GET(self):
        server = self.server
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        asked = self.headers.get("Range")
        server.seen.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.ranges else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][:server.limit])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.files, made.seen, made.limit, made.ranges = {"/a.bin": CONTENT}, [], None, True
        made.address = f"http://127.0.0.1:{made.server_port}"
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "data"


def catalogue(server, name="a.bin", md5=MD5, members=()):
    return {"a": [Download(f"{server.address}/{name}", md5, "set" if members else f"set/{name}", members)]}


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_transfer_is_gone_on_with(server, folder, ranges):
    server.limit, server.ranges = 300_000, ranges
    with pytest.raises(rv.InputError, match=r"broke off after 300000 of 700000.*300000 bytes are kept in .*a.bin.part"):
        fetch("a", catalogue=catalogue(server))
    assert not (folder / "set/a.bin").exists()
    assert (folder / "set/a.bin.part").read_bytes() == CONTENT[:300_000]
    server.limit, told = None, []
    [path] = fetch("a", progress=lambda *a: told.append(a), catalogue=catalogue(server))
    assert server.seen == [None, "bytes=300000-"]
    assert path.read_bytes() == CONTENT
    assert told[-1] == ("a.bin", 700_000, 700_000)
    assert (told[0][1] > 300_000) is ranges  # or from the beginning
    assert [p.name for p in path.parent.iterdir()] == ["a.bin"]
    fetch("a", catalogue=catalogue(server))  # whole: nothing is asked of the server
    assert len(server.seen) == 2
    [found] = check(catalogue=catalogue(server))
    assert (found.state, found.path) == ("whole", path)


def test_a_whole_part_is_taken_without_another_byte(server, folder):
    (folder / "set").mkdir(parents=True)
    (folder / "set/a.bin.part").write_bytes(CONTENT)
    [path] = fetch("a", catalogue=catalogue(server))
    assert path.read_bytes() == CONTENT


def test_a_wrong_checksum_keeps_nothing(server, folder):
    with pytest.raises(rv.InputError, match=rf"has the MD5 {MD5}, expected {'0' * 32}"):
        fetch("a", catalogue=catalogue(server, md5="0" * 32))
    assert list((folder / "set").iterdir()) == []


def archive(kind):
    packed = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(packed, "w") as made:
            made.writestr("deep/one.txt", "one")
            made.writestr("../two.txt", "two")
    else:
        with tarfile.open(fileobj=packed, mode="w:gz") as made:
            for name, text in (("deep/one.txt", b"one"), ("../two.txt", b"two")):
                info = tarfile.TarInfo(name)
                info.size = len(text)
                made.addfile(info, io.BytesIO(text))
    return packed.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archives_are_unpacked_and_nothing_leaves_the_folder(server, folder, kind):
    server.files[f"/b.{kind}"] = archive(kind)
    md5 = hashlib.md5(archive(kind)).hexdigest() if kind == "zip" else ""  # gzip writes the time
    wanted = catalogue(server, f"b.{kind}", md5 if kind == "zip" else "", ("deep/one.txt", "../two.txt"))
    paths = fetch("a", folder, catalogue=wanted)
    assert paths == [folder / "set/one.txt", folder / "set/two.txt"]
    assert [p.read_text() for p in paths] == ["one", "two"]
    assert sorted(p.name for p in (folder / "set").iterdir()) == ["one.txt", "two.txt"]
    with pytest.raises(rv.InputError, match=r"cannot be unpacked"):
        fetch("a", folder / "other", catalogue=catalogue(server, f"b.{kind}", "", ("absent.txt",)))


def test_what_cannot_be_fetched_is_said(server, folder, tmp_path):
    with pytest.raises(rv.InputError, match=r"called 'minst'; there are mnist, .*did you mean 'mnist'"):
        fetch("minst")
    with pytest.raises(rv.InputError, match=r"could not be downloaded \(HTTP Error 404"):
        fetch("a", catalogue=catalogue(server, "absent.bin"))
    (tmp_path / "file").write_text("")
    with pytest.raises(rv.InputError, match=r"cannot be written .*--to"):
        fetch("a", tmp_path / "file", catalogue=catalogue(server))


def test_check_says_what_is_there_and_what_is_damaged(folder, real_data):
    (folder / "mnist").mkdir(parents=True)
    for name in ("train-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        content = (real_data / "mnist" / name).read_bytes()
        (folder / "mnist" / name).write_bytes(content[:-9] if name.startswith("t10k") else content)
    found = {f.path.name: f.state for f in check("mnist")}
    assert found == {"train-images-idx3-ubyte.gz": "missing", "train-labels-idx1-ubyte.gz": "whole",
                     "t10k-images-idx3-ubyte.gz": "missing", "t10k-labels-idx1-ubyte.gz": "damaged"}
    with pytest.raises(rv.InputError, match="did you mean 'cifar10'"):
        check("cifar")


def test_the_real_mnist_has_the_published_content(real_data):
    assert {(f.state, f.path.parent) for f in check("mnist")} == {("whole", real_data / "mnist")}


def test_the_catalogue_is_in_order():
    for downloads in CATALOGUE.values():
        for download in downloads:
            assert download.url.startswith(("https://", "http://fashion-mnist."))
            assert len(download.md5) == 32
