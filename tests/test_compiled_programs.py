"""The folder of compiled programs: whole files only, one folder for every processor."""

import os
import time

import pytest

import compiled_programs
from compiled_programs import StoredPrograms

processor = compiled_programs.processor


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_process_reads_the_files_of_earlier_ones_and_adds_its_own(tmp_path):
    first, meanwhile = StoredPrograms(tmp_path), StoredPrograms(tmp_path)
    (first.links / "a-cache").write_bytes(b"program")
    assert names(first.common) == []  # not before it is written whole
    first.close()
    (meanwhile.links / "a-cache").write_bytes(b"program")  # compiled by both
    (meanwhile.links / "b-cache").write_bytes(b"program")
    meanwhile.close()
    assert names(StoredPrograms(tmp_path).links) == ["a-cache", "b-cache"]


def test_files_of_a_killed_process_are_not_added_and_are_removed_later(tmp_path):
    killed = StoredPrograms(tmp_path)
    (killed.links / "a-cache").write_bytes(b"half a pro")
    assert names(StoredPrograms(tmp_path).links) == []
    assert killed.links.exists()
    os.utime(killed.links, times=(time.time() - 100_000,) * 2)
    StoredPrograms(tmp_path)
    assert not killed.links.exists()


def test_a_folder_above_its_limit_starts_again(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled_programs, "_MAX_BYTES", 20)
    for name, programs_before in {"a-cache": 0, "b-cache": 1, "c-cache": 2, "d-cache": 0}.items():
        programs = StoredPrograms(tmp_path)
        assert len(names(programs.links)) == programs_before
        (programs.links / name).write_bytes(b"ten bytes!")
        programs.close()


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
