"""Which folders of tests a change concerns; everything runs if the change is not known."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import changed_folders


@pytest.mark.parametrize(("path", "skipped"), [
    ("src/resolvent/math/tree.py", ["xla_cpu_rewrites", "xla"]),
    ("src/resolvent/errors.py", []),
    ("src/resolvent/a_new_room/file.py", []),
    ("tests/conftest.py", []),
    ("pyproject.toml", []),
    ("src/xla_cpu_rewrites/kernels.py", []),
    ("src/resolvent/xla/loops.py", ["xla_cpu_rewrites"]),
    ("src/resolvent/problem/oracle.py", ["xla_cpu_rewrites", "xla"]),
    ("src/resolvent/federation/protocol/wire.py", ["xla_cpu_rewrites", "xla", "papers"]),
    ("tests/federation/test_wire.py", ["xla_cpu_rewrites", "xla", "papers"]),
    ("src/resolvent/papers/claims.py", ["xla_cpu_rewrites", "xla", "federation"]),
    ("tests/xla/test_loops.py", ["xla_cpu_rewrites", "federation", "papers"]),
    ("tests/xla_cpu_rewrites/test_kernels.py", ["xla", "federation", "papers"]),
    ("tests/simulator/test_cache.py", ["xla_cpu_rewrites", "xla", "federation", "papers"]),
    ("docs/papers.md", ["xla_cpu_rewrites", "xla"]),
    ("benchmarks/zoo.py", ["xla_cpu_rewrites", "xla", "federation", "papers"]),
])
def test_folders_that_a_file_does_not_concern(path, skipped):
    assert changed_folders.skipped_folders([path]) == skipped
    assert changed_folders.skipped_folders([path, "pyproject.toml"]) == []


def test_all_tests_run_if_the_change_is_not_known(monkeypatch):
    monkeypatch.delenv("RESOLVENT_NIGHTLY", raising=False)
    for base in ("", "0000000000000000000000000000000000000000", "no-such-branch"):
        monkeypatch.setenv("RESOLVENT_BASE", base)
        assert changed_folders.changed_files() is None
    assert changed_folders.skipped_folders(None) == []


def test_changes_are_those_since_the_base_and_new_files(tmp_path, monkeypatch):
    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True,
                       capture_output=True)

    def commit(name):
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "-m", name)

    monkeypatch.setattr(changed_folders, "ROOT", tmp_path)
    monkeypatch.setenv("RESOLVENT_BASE", "main")
    monkeypatch.delenv("RESOLVENT_NIGHTLY", raising=False)
    git("init", "--initial-branch", "main")
    commit("first")
    git("checkout", "-b", "mine")
    commit("committed")
    git("checkout", "main")
    commit("of-others")
    git("checkout", "mine")
    (tmp_path / "new").touch()
    (tmp_path / "first").write_text("edited")
    assert sorted(changed_folders.changed_files()) == ["committed", "first", "new"]
    monkeypatch.setenv("RESOLVENT_NIGHTLY", "1")
    assert changed_folders.changed_files() is None


@pytest.mark.parametrize(("base", "expected"), [("HEAD~0", "false"), ("no-such-branch", "true")])
def test_the_command_says_whether_the_tests_of_a_folder_concern_the_change(base, expected, tmp_path):
    (tmp_path / "tests").mkdir()
    script = tmp_path / "tests" / "changed_folders.py"
    script.write_bytes(Path(changed_folders.__file__).read_bytes())
    for command in (["init"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "all"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
    environment = {name: value for name, value in os.environ.items() if name != "RESOLVENT_NIGHTLY"}
    done = subprocess.run([sys.executable, script, "federation"], check=True, capture_output=True, text=True,
                          env=environment | {"RESOLVENT_BASE": base})
    assert done.stdout == f"federation={expected}\n"
