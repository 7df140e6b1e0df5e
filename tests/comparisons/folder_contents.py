"""The files of a run folder."""

import hashlib
import json


def contents(folder):
    """Every file below a folder and its digest."""
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(folder.rglob("*")) if p.is_file()}


def digests(folder):
    summary = json.loads((folder / "summary.json").read_text())
    return {name: method["digest"] for name, method in summary["methods"].items()}
