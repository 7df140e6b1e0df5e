"""Downloads from a server in this process: complete, interrupted and resumed, damaged, unpacked."""

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from resolvent.data.files.fetch import check, fetch
from resolvent.data.files.sources import SOURCES, Download
from resolvent.errors import InputError

CONTENT = np.random.default_rng(0).bytes(700_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves ``files``; stops after ``limit`` bytes; honours ranges if ``has_ranges``; redirects as ``redirects``."""

    def do_GET(self):
        server = self.server
        if self.path in server.redirects:
            self.send_response(302)
            self.send_header("Location", server.redirects[self.path])
            self.end_headers()
            return
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        byte_range = self.headers.get("Range")
        server.requested_ranges.append(byte_range)
        start = int(byte_range.removeprefix("bytes=").removesuffix("-")) if byte_range and server.has_ranges else 0
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
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.redirects, server.requested_ranges = {"/a.bin": CONTENT}, {}, []
        server.limit, server.has_ranges = None, True
        server.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def sources(server, name="a.bin", sha256=SHA256, members=()):
    return {"a": [Download(f"{server.address}/{name}", sha256, "set" if members else f"set/{name}", members)]}


@pytest.mark.parametrize("has_ranges", [True, False])
def test_an_interrupted_download_is_resumed(server, data_folder, has_ranges):
    server.limit, server.has_ranges = 300_000, has_ranges
    with pytest.raises(InputError, match=r"interrupted after 300000 of 700000.*a.bin.part has 300000 bytes"):
        fetch("a", sources=sources(server))
    assert not (data_folder / "set/a.bin").exists()
    assert (data_folder / "set/a.bin.part").read_bytes() == CONTENT[:300_000]
    server.limit, reports = None, []
    [path] = fetch("a", progress=lambda *report: reports.append(report), sources=sources(server))
    assert server.requested_ranges == [None, "bytes=300000-"]
    assert path.read_bytes() == CONTENT
    assert reports[-1] == ("a.bin", 700_000, 700_000)
    assert (reports[0][1] > 300_000) is has_ranges  # without ranges the download starts again
    assert [p.name for p in path.parent.iterdir()] == ["a.bin"]
    fetch("a", sources=sources(server))  # the file is complete: there is no request
    assert len(server.requested_ranges) == 2
    [status] = check(sources=sources(server))
    assert (status.state, status.path) == ("whole", path)


def test_a_complete_part_needs_no_other_byte(server, data_folder):
    (data_folder / "set").mkdir()
    (data_folder / "set/a.bin.part").write_bytes(CONTENT)
    [path] = fetch("a", sources=sources(server))
    assert path.read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_no_file(server, data_folder):
    with pytest.raises(InputError, match=rf"has the SHA-256 {SHA256}, expected {'0' * 64}"):
        fetch("a", sources=sources(server, sha256="0" * 64))
    assert list((data_folder / "set").iterdir()) == []


def test_only_https_addresses_are_used_also_after_a_redirect(server, data_folder):
    with pytest.raises(InputError, match="over https only"):
        Download("http://example.org/a.bin", SHA256, "a.bin")
    server.redirects |= {"/old.bin": "/a.bin", "/plain.bin": "http://example.org/a.bin"}
    [path] = fetch("a", sources=sources(server, "old.bin"))
    assert path.read_bytes() == CONTENT
    with pytest.raises(InputError, match=r"http://example.org/a.bin is not an https address"):
        fetch("a", sources=sources(server, "plain.bin"))


def archive(kind):
    """An archive with two members, one of which has a path outside the folder."""
    packed = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(packed, "w") as zipped:
            zipped.writestr("deep/first.txt", "first")
            zipped.writestr("../second.txt", "second")
        return packed.getvalue()
    with tarfile.open(fileobj=packed, mode="w") as tarred:
        for name, text in (("deep/first.txt", b"first"), ("../second.txt", b"second")):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tarred.addfile(info, io.BytesIO(text))
    return gzip.compress(packed.getvalue())


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archives_are_unpacked_and_nothing_is_written_outside_the_folder(server, data_folder, kind):
    name, content = f"b.{kind}", archive(kind)
    server.files[f"/{name}"] = content
    sha256 = hashlib.sha256(content).hexdigest()
    paths = fetch("a", data_folder, sources=sources(server, name, sha256, ("deep/first.txt", "../second.txt")))
    assert paths == [data_folder / "set/first.txt", data_folder / "set/second.txt"]
    assert [p.read_text() for p in paths] == ["first", "second"]
    assert sorted(p.name for p in (data_folder / "set").iterdir()) == ["first.txt", "second.txt"]
    with pytest.raises(InputError, match="cannot be unpacked"):
        fetch("a", data_folder / "other", sources=sources(server, name, sha256, ("absent.txt",)))


def test_errors_name_the_data_set_the_address_or_the_folder(server, data_folder, tmp_path):
    with pytest.raises(InputError, match=r"'minst' to download; did you mean 'mnist'\? There are mnist, "):
        fetch("minst")
    with pytest.raises(InputError, match=r"could not be downloaded \(HTTP Error 404"):
        fetch("a", sources=sources(server, "absent.bin"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written .*RESOLVENT_DATA"):
        fetch("a", tmp_path / "file", sources=sources(server))


def test_check_tells_missing_from_damaged_files(data_folder, real_data):
    (data_folder / "mnist").mkdir()
    for name in ("train-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        content = (real_data / "mnist" / name).read_bytes()
        (data_folder / "mnist" / name).write_bytes(content[:-9] if name.startswith("t10k") else content)
    assert {status.path.name: status.state for status in check("mnist")} == {
        "train-images-idx3-ubyte.gz": "missing", "train-labels-idx1-ubyte.gz": "whole",
        "t10k-images-idx3-ubyte.gz": "missing", "t10k-labels-idx1-ubyte.gz": "damaged"}
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        check("cifar")


def test_the_real_files_have_the_expected_content(real_data):
    for data_set in ("mnist", "shakespeare"):
        assert {(s.state, s.path.parent) for s in check(data_set)} == {("whole", real_data / data_set)}


def test_every_source_has_an_https_address_and_a_checksum():
    for downloads in SOURCES.values():
        for download in downloads:
            assert download.url.startswith("https://")
            assert len(bytes.fromhex(download.sha256)) == 32
