"""The file operations of a program, and what is on the disk when it stops at one of them.

A kill at an operation leaves what the operations before it have written. ``Disk`` counts the operations below a folder
in this process, and copies the folder at one of them. So the copy is what a kill would leave, and the program can be
stopped in any way, or not at all. A *torn* write leaves half of the bytes of the file that is being written.
"""

import builtins
import contextlib
import io
import os
import shutil
import sys
from pathlib import Path
from unittest import mock

import pyarrow.parquet
import safetensors.numpy

_TWO_PATHS = ("rename", "replace", "link", "symlink")
_ONE_PATH = ("mkdir", "rmdir", "unlink", "remove", "truncate")
_HANDLES = ("fsync", "ftruncate", "write", "pwrite")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Stopped(BaseException):
    """The program ends here."""


class Disk:
    """Counts the file operations below a folder, and stops at one of them.

    Attributes:
        folder: the folder.
        stop_at: the number of the operation before which the program stops, counted from 0; None: never.
        is_torn: whether half of the last write is on the disk.
        copy: where the content of the folder at the stop is copied; None: the process is ended with SIGKILL.
        operations: the operations so far, in words.
    """

    def __init__(self, folder, *, stop_at=None, is_torn=False, copy=None):
        self.folder, self.stop_at, self.is_torn, self.copy = Path(folder).resolve(), stop_at, is_torn, copy
        self.operations, self.has_stopped = [], False
        self._written = None  # the file that the last operation wrote
        self._size_before = 0  # its bytes from before, to which the operation appended
        self._is_inside = False  # an operation may call another one

    @contextlib.contextmanager
    def watched(self):
        """Watch the operations of this process; a stop ends the block."""
        with contextlib.ExitStack() as stack:
            for name in (*_TWO_PATHS, *_ONE_PATH):
                stack.enter_context(mock.patch.object(os, name, self._on_path(name, getattr(os, name))))
            for name in _HANDLES:
                stack.enter_context(mock.patch.object(os, name, self._on_handle(name, getattr(os, name))))
            stack.enter_context(mock.patch.object(os, "open", self._on_os_open(os.open)))
            opened = self._on_open(io.open)
            stack.enter_context(mock.patch.object(io, "open", opened))
            stack.enter_context(mock.patch.object(builtins, "open", opened))
            stack.enter_context(mock.patch.object(
                safetensors.numpy, "serialize_file", self._on_write(safetensors.numpy.serialize_file)))
            stack.enter_context(mock.patch.object(
                pyarrow.parquet, "write_table", self._on_write(pyarrow.parquet.write_table)))
            stack.enter_context(contextlib.suppress(Stopped))
            yield self

    def _before(self, operation, path, torn=None):
        """Count an operation, and stop before it. ``torn`` does half of the operation itself."""
        if self.has_stopped:
            return
        number = len(self.operations)
        self.operations.append(f"{operation} {path.relative_to(self.folder)}")
        if number == self.stop_at:
            self._stop(torn)
        self._written = None

    def _stop(self, torn):
        self.has_stopped = self._is_inside = True
        if self.is_torn and torn is not None:
            torn()
        elif self.is_torn and self._written is not None and self._written.is_file():
            size = self._written.stat().st_size
            os.truncate(self._written, self._size_before + max(size - self._size_before, 0) // 2)
        if self.copy is None:
            os.kill(os.getpid(), 9)
        shutil.copytree(self.folder, self.copy, symlinks=True)
        self._is_inside = False
        raise Stopped

    def _path_of(self, path, dir_fd=None):
        """The path below the folder, or None."""
        if isinstance(path, int):
            dir_fd, path = path, ""
        with contextlib.suppress(OSError, ValueError, TypeError):
            base = Path.cwd() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()
            full = base / os.fsdecode(path)
            full = Path(os.path.realpath(full.parent)) / full.name
            return full if full.is_relative_to(self.folder) else None
        return None

    def _run(self, function, path, operation, arguments, keywords, torn=None):
        if self._is_inside or path is None:
            return function(*arguments, **keywords)
        self._is_inside = True
        try:
            self._before(operation, path, torn)
            return function(*arguments, **keywords)
        finally:
            self._is_inside = False

    def _on_path(self, name, function):
        def operation(path, *arguments, **keywords):
            dir_fd = keywords.get("dir_fd", keywords.get("src_dir_fd"))
            return self._run(function, self._path_of(path, dir_fd), name, (path, *arguments), keywords)
        return operation

    def _on_handle(self, name, function):
        def operation(handle, *arguments):
            def torn():
                function(handle, bytes(arguments[0])[:len(arguments[0]) // 2], *arguments[1:])
            return self._run(function, self._path_of(handle), name, (handle, *arguments), {},
                             torn if "write" in name else None)
        return operation

    def _on_os_open(self, function):
        def operation(path, flags, *arguments, **keywords):
            is_counted = flags & _WRITING and not flags & os.O_DIRECTORY
            target = self._path_of(path, keywords.get("dir_fd")) if is_counted else None
            return self._run(function, target, "open", (path, flags, *arguments), keywords)
        return operation

    def _on_open(self, function):
        def operation(file, mode="r", *arguments, **keywords):
            is_counted = set(mode) & set("wax+") and not isinstance(file, int)
            target = self._path_of(file) if is_counted else None
            if target is not None:
                self._size_before = target.stat().st_size if "a" in mode and target.is_file() else 0
            result = self._run(function, target, "write", (file, mode, *arguments), keywords)
            self._written = self._written if target is None else target
            return result
        return operation

    def _on_write(self, function):
        """A function of a library that writes in C or Rust: function(content, path, ...)."""
        def operation(content, path, *arguments, **keywords):
            target = self._path_of(path)
            result = self._run(function, target, "write", (content, path, *arguments), keywords)
            self._written = self._written if target is None else target
            return result
        return operation


def main():
    """Run the command line, and end this process with SIGKILL at a file operation.

    Arguments: the number of the operation, 1 if the write is torn, and those of the command.
    """
    from resolvent import cli
    from torture.scenario import quick_runs

    stop_at, is_torn, *arguments = sys.argv[1:]
    sys.argv = ["resolvent", *arguments]
    with quick_runs(), Disk(Path.cwd(), stop_at=int(stop_at), is_torn=is_torn == "1").watched():
        cli.main()


if __name__ == "__main__":
    main()
