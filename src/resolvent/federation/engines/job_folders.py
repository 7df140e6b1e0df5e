"""The folders that an engine leaves for each job that has ended; runs, models and records are in other folders."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from resolvent.data.files.atomic_files import remove_folder

_JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # the engine's id of a job
_PARENTS = ("", "engine/jobs")  # of a kit: the working folders of jobs, and the server's store of jobs
_DAY = 86_400.0


class Cleaned(NamedTuple):
    """What was removed: the number of folders, and their size in bytes."""

    folders: int
    bytes: int


def clean_jobs(kit: Path, days: float) -> Cleaned:
    """Remove the folders of jobs in which nothing was written for some days.

    The caller holds the lock of the kit, so that no job runs.
    """
    folders, size = 0, 0
    for parent in _PARENTS:
        for folder in sorted((kit / parent).glob("*-*-*-*-*")):
            if not _JOB.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
                continue
            states = [path.lstat() for path in (folder, *folder.rglob("*"))]
            if datetime.now(UTC).timestamp() - max(state.st_mtime for state in states) >= days * _DAY:
                remove_folder(folder)
                folders, size = folders + 1, size + sum(state.st_size for state in states)
    return Cleaned(folders, size)
