"""What the command line prints about an error of the machine, and its exit code."""

import errno
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from resolvent import cli
from resolvent.cli.exit_codes import EXIT_CODES
from resolvent.cli.failures import explain
from resolvent.comparisons.runs import runner
from resolvent.errors import InputError, MissingDataError

DISK_FULL = "No space left on device: make room on the disk, then continue with --resume"


def raised(function, *arguments):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any type
        function(*arguments)
    return caught.value


def test_each_error_of_the_machine_is_one_line_with_advice(tmp_path):
    (tmp_path / "file").write_text("")
    long_name = tmp_path / ("x" * 300)
    cases = [
        (OSError(errno.ENOSPC, "No space left on device", "runs/a"), f"runs/a: {DISK_FULL}", 3),
        (OSError(errno.EFBIG, os.strerror(errno.EFBIG), "a"), "a: File too large: raise the limit of file sizes", 3),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "a"), "a: Read-only file system: choose a folder that can", 3),
        (PermissionError(errno.EACCES, "Permission denied", "a"), "a: Permission denied: change the permissions", 3),
        (raised((tmp_path / "file" / "x").read_text), "file/x: Not a directory: a part of the path is a file", 3),
        (raised((tmp_path / "file").mkdir), "file: File exists: a file has the name of a folder that is needed", 3),
        (raised(tmp_path.read_text), f"{tmp_path}: Is a directory: give a file, not a folder", 3),
        (raised(long_name.write_text, ""), "File name too long: choose a shorter name", 3),
        (raised((tmp_path / "none").read_text), "none: No such file or directory: it is missing", 3),
        (OSError("a library's own\nerror"), "a library's own error: correct this", 3),
        (raised(np.zeros, 2**55), "there is not enough memory (Unable to allocate 256. PiB for an array", 3),
        (MemoryError(), "there is not enough memory: use fewer parties", 3),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."),
         "there is not enough memory on the device (Out of memory allocating 9 bytes.): use fewer", 3),
        (raised(b"\xff".decode), "a name or a file is not text in UTF-8", 2),
        (InputError("it is wrong"), "it is wrong", 2),
        (MissingDataError("there is no file"), "there is no file", 4),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "", 141),
    ]
    for error, message, code in cases:
        failure = explain(error)
        assert message in failure.message
        assert "\n" not in failure.message
        assert len(failure.message) < 700
        assert failure.code == code
        assert code in EXIT_CODES
    for defect in (ZeroDivisionError(), jax.errors.JaxRuntimeError("INTERNAL: a defect"), RuntimeError("x")):
        assert explain(defect) is None


def test_an_error_is_printed_without_traceback(call, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device", "runs/digits.partial/experiment.yaml")

    monkeypatch.setattr(runner, "run_experiment", fail)
    outcome = call("run", "digits", cwd=tmp_path)
    assert (outcome.code, outcome.err.lstrip()) == (3, f"error: runs/digits.partial/experiment.yaml: {DISK_FULL}\n")


def test_a_library_that_cannot_be_loaded_is_one_line(call, tmp_path, monkeypatch):
    def fail():
        raise ImportError("libjax_common.so: failed to map segment from shared object")

    monkeypatch.setattr(cli, "_run", fail)
    outcome = call("list", cwd=tmp_path)
    assert (outcome.code, outcome.err) == (
        3, "error: libjax_common.so: failed to map segment from shared object: there is not enough memory for the "
           "library (ulimit -v), or it is not installed completely\n")


def command(*arguments, out, limit="unlimited", **options):
    """The command line in a process, in which files may have at most ``limit`` KiB."""
    return subprocess.run(["bash", "-c", f'ulimit -f {limit}; exec "$@"', "bash", sys.executable, "-m", "resolvent.cli",
                           *map(str, arguments)],
                          stdout=out, stderr=subprocess.PIPE, text=True, timeout=600, check=False, **options)


@pytest.mark.when_changed
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")  # noqa: PTH110
def test_full_closed_and_broken_output(tmp_path):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        process = command("--help", out=full, cwd=tmp_path)
    assert (process.returncode, process.stderr) == (3, f"error: standard output: {DISK_FULL}\n")
    reader, writer = os.pipe()
    os.close(reader)
    process = command("--help", out=writer, cwd=tmp_path)
    os.close(writer)
    assert (process.returncode, process.stderr) == (141, "")
    program = 'import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, "-m", "resolvent.cli", "--help"])'
    process = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")


def test_version(call, tmp_path):
    import resolvent

    assert call("--version", cwd=tmp_path).out == f"resolvent {resolvent.__version__}\n"


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.when_changed
def test_a_limit_of_file_sizes_ends_a_run_that_can_be_resumed(finished, tmp_path, call):
    """The operating system sends SIGXFSZ as well, which is ignored."""
    process = command("run", finished.yaml, "--out", "out", out=subprocess.DEVNULL, limit=4, cwd=tmp_path)
    assert process.returncode == 3
    assert "error: " in process.stderr
    assert "File too large: raise the limit of file sizes (ulimit -f), then continue with --resume" in process.stderr
    assert "Traceback" not in process.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["out.partial"]
    outcome = call("run", finished.yaml, "--out", "out", "--resume", cwd=tmp_path)
    assert outcome.code == 0
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
