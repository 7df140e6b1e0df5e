"""Names that the commands of a federation and the processes of its jobs share. This module imports no engine."""

from pathlib import Path

__all__ = ["ALLOWED_CLASSES", "CODE_FOLDER", "MODELS", "REHEARSAL", "SERVER_CLASS", "SITE_CLASS", "SITE_FILE",
           "runs_of"]

# The only classes that a job may name.
SERVER_CLASS, SITE_CLASS = ALLOWED_CLASSES = ("resolvent.study.federation_nvflare.FederationServer",
                                              "resolvent.study.federation_nvflare.FederationSite")
# Variables that the command which starts a participant sets for the processes of its jobs.
SITE_FILE, REHEARSAL = "RESOLVENT_SITE_FILE", "RESOLVENT_REHEARSAL"
MODELS, CODE_FOLDER = "RESOLVENT_MODELS", "RESOLVENT_CODE_FOLDER"


def runs_of(kit: Path) -> Path:
    """The folder in which a participant has its runs."""
    return kit / "runs"
