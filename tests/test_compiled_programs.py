"""The folder of compiled programs: whole files only, one folder for every processor."""

from pathlib import Path

import pytest
from jax._src.lru_cache import LRUCache

import compiled_programs

processor = compiled_programs.processor


def test_a_file_has_its_name_when_it_is_whole(tmp_path, monkeypatch):
    cache = LRUCache(str(tmp_path), max_size=-1)
    with monkeypatch.context() as killed:
        killed.setattr(Path, "rename", lambda path, target: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            compiled_programs.put_whole(cache, "a", b"half a pro")
    assert cache.get("a") is None
    for content in (b"program", b"program"):  # compiled by both workers
        compiled_programs.put_whole(cache, "a", content)
    assert LRUCache(str(tmp_path), max_size=-1).get("a") == b"program"


def test_a_folder_above_its_limit_starts_again(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled_programs, "_MAX_BYTES", 20)
    for name, programs in {"a": 1, "b": 2, "c": 0, "d": 1}.items():
        (tmp_path / name).write_bytes(b"ten bytes!")
        compiled_programs.remove_if_large(tmp_path)
        assert len([*tmp_path.iterdir()]) == programs


def test_the_key_depends_on_the_flags_and_on_the_processor(tmp_path, monkeypatch):
    keys = {compiled_programs.key()}
    with monkeypatch.context() as change:
        change.setenv("XLA_FLAGS", "--xla_backend_optimization_level=1")
        keys.add(compiled_programs.key())
    for flags in ("avx2", "avx2 avx512f"):
        file = tmp_path / flags
        file.write_text(f"processor : 0\nmodel name : a\ncpu MHz : 2000\nflags : {flags}\n\nprocessor : 1\n")
        with monkeypatch.context() as change:
            change.setattr(compiled_programs, "processor", lambda file=file: processor(file))
            keys.add(compiled_programs.key())
    assert len(keys) == 4


def test_the_key_does_not_depend_on_the_speed(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor : 0\nmodel name : a\ncpu MHz : 2000\nflags : avx2\n\nprocessor : 1\n")
    assert processor(file) == ["model name : a", "flags : avx2"]
    assert len(processor(tmp_path / "missing")) == 1


@pytest.mark.parametrize(("value", "expected"), [("", False), ("somewhere", True), (None, True)])
def test_an_empty_name_keeps_nothing(monkeypatch, value, expected):
    monkeypatch.delenv("RESOLVENT_COMPILED", raising=False)
    if value is not None:
        monkeypatch.setenv("RESOLVENT_COMPILED", value)
    assert bool(compiled_programs.root()) == expected
