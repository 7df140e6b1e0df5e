"""Which folders of tests concern a change: those of xla, federation and papers run when something below has changed.

``RESOLVENT_BASE`` names the commit with which the working tree is compared. All tests run if it is not set, if git does
not know the commit, and at night.

    python tests/changed_folders.py federation    # prints federation=true if its tests concern the change, or =false
"""

import os
import subprocess
import sys
from pathlib import Path

PACKAGE = "xla_cpu_rewrites"  # a package of its own, beside the library
INDEPENDENT = "xla"  # a part that imports nothing of the library but the package
CORE = ["math", "data", "problem", "algorithms", "simulator", "testing", "comparisons"]
PARTS = ["federation", "papers"]  # neither imports the other
ROOMS = [INDEPENDENT, *CORE, *PARTS, "cli"]
ROOT = Path(__file__).parents[1]
# Folder of tests -> the rooms that its tests call. A change of another room, or of its tests, does not concern them.
CALLED = {PACKAGE: {PACKAGE}, "xla": {PACKAGE, "xla"}, "federation": {PACKAGE, *ROOMS} - {"papers"},
          "papers": {PACKAGE, *ROOMS} - {"federation"}}
# Folders and suffixes that no test of the folder reads.
UNREAD = {PACKAGE: ("benchmarks/", "docs/", "examples/", "results/", ".md"),
          "xla": ("benchmarks/", "docs/", "examples/", "results/", ".md"),
          "federation": ("benchmarks/", "examples/", "results/"),
          "papers": ("benchmarks/", "examples/")}


def changed_files():
    """The files that differ from the base, as paths relative to the repository; None if that is not known."""
    base = os.environ.get("RESOLVENT_BASE")
    if not base or "RESOLVENT_NIGHTLY" in os.environ:
        return None
    files = []
    for command in (["diff", "--name-only", "--no-renames", "--merge-base", base],
                    ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            return None
        files += done.stdout.splitlines()
    return files


def concerns(folder, path):
    """Whether tests of this folder can fail because this file has changed."""
    parts = Path(path).parts
    if parts[:2] == ("src", PACKAGE):
        return PACKAGE in CALLED[folder]
    if parts[:2] == ("src", "resolvent") and len(parts) > 3:
        return parts[2] in CALLED[folder] or parts[2] not in ROOMS
    if parts[0] == "tests" and len(parts) > 2:
        return parts[1] == folder
    unread = UNREAD[folder]
    return not path.startswith(unread) and not path.endswith(unread)


def skipped_folders(files):
    """The folders whose tests the changed files do not concern; none if the changed files are not known."""
    if files is None:
        return []
    return [folder for folder in CALLED if not any(concerns(folder, path) for path in files)]


if __name__ == "__main__":
    print(f"{sys.argv[1]}={str(sys.argv[1] not in skipped_folders(changed_files())).lower()}")
