"""Names that the commands of a federation and the processes of its jobs share. This module imports no engine."""

import hashlib
import os
import re
import secrets
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from resolvent.errors import InputError, quote

# The only classes that a job may name.
SERVER_CLASS, SITE_CLASS = ALLOWED_CLASSES = ("resolvent.federation.engines.nvflare.programs.FederationServer",
                                              "resolvent.federation.engines.nvflare.programs.FederationSite")
# Variables that the command which starts a participant sets for the processes of its jobs.
SITE_FILE, MODELS, CODE_FOLDER = "RESOLVENT_SITE_FILE", "RESOLVENT_MODELS", "RESOLVENT_CODE_FOLDER"

# In the folder of a site's runs: the versions of its tables, and its journal. In that of a run: its version.
VERSIONS, JOURNAL, VERSION_FILE = "table.versions", "journal.sqlite", "table.json"
JOURNALS_FILE = "journals.json"  # of the lead: site -> the head of its journal when the run ended
NOTE_FILE = "job.json"  # of the lead, in the folder of a run that is not complete
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")


@cache
def library_version() -> str:
    """The version of the library with a digest of its sources, which must be the same at the server and at the sites.

    Two checkouts can call themselves by one version.
    """
    return f"{version('resolvent')} ({digest_of_sources(Path(__file__).parents[2])})"


def digest_of_sources(folder: Path) -> str:
    """The first 12 digits of the SHA-256 of all Python files of a package, with their names and without line ends."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\n".encode())
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:12]


def check_run_name(run: Any) -> str:
    """Check the name of a run, which becomes the name of a folder."""
    if not isinstance(run, str) or not _RUN.fullmatch(run):
        raise InputError(f"{quote(run)} cannot be the name of a run")
    return run


def run_of_method(run: str, number: int, plan: str) -> str:
    """The name in the messages of the rounds of a method: the site answers only those of the plan that it has approved.

    Args:
        number: number of the method and seed; methods are numbered from 0, with one seed after the other.
    """
    return f"{run}/{number}/{plan}"


def run_of_table(run: str, plan: str) -> str:
    """The name in the messages of the secure sum of the numbers of the tables; see ``run_of_method``."""
    return f"{run}/table/{plan}"


def name_refit(run: str) -> str:
    """A name for a run that trains the methods of another run again on all rows."""
    return f"{run}-refit-{secrets.token_hex(3)}"


def refitted_run(name: str) -> str | None:
    """The run whose methods a run of this name trains again; None for a name that ``name_refit`` has not made."""
    match = re.fullmatch(r"(.+)-refit-[0-9a-f]{6}", name)
    return None if match is None else match[1]


def runs_of(kit: Path) -> Path:
    """The folder in which a participant has its runs."""
    return kit / "runs"


def code_folder() -> Path | None:
    """The folder that is searched for modules of the user's own; None: the command has named none."""
    folder = os.environ.get(CODE_FOLDER)
    return None if folder is None else Path(folder)
