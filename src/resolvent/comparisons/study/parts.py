"""The comparison on one data set of a study, from memory or from run folders."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.runs.compared_methods import ComparedMethods
from resolvent.comparisons.runs.environment import device, versions
from resolvent.comparisons.runs.record import EXPERIMENT_FILE
from resolvent.comparisons.runs.saved_runs import read_runs
from resolvent.comparisons.runs.settings_text import settings_text


class StudyPart(NamedTuple):
    """The comparison on one data set of a study.

    Attributes:
        settings: how they were made, as text: the experiment file, or a description of the parts of the program.
        source: the run folders, or nothing if the comparison is in memory.
    """

    evidence: Evidence
    settings: str
    source: tuple[str, ...] = ()


def part_of(comparison: ComparedMethods) -> StudyPart:
    """A comparison in memory as a part of a study."""
    settings = settings_text(comparison.experiment)
    return StudyPart(comparison.evidence, f"{settings}\n{_environment(versions(), device())}")


def read_part(folders: Sequence[Path | str]) -> StudyPart:
    """One or several run folders as a part of a study.

    Raises:
        InputError: a folder has no finished run, or the runs have other test rows.
    """
    paths = [Path(folder) for folder in folders]
    saved, texts = read_runs(paths), []
    for path, record in zip(paths, saved.records, strict=True):
        settings = record.program if record.experiment is None else (
            path / EXPERIMENT_FILE).read_text("utf-8")
        texts.append(f"{settings.rstrip()}\n{_environment(record.versions, record.device)}")
    return StudyPart(saved.evidence, "\n".join(texts), tuple(map(str, paths)))


def _environment(of_packages: Mapping[str, str], of_device: str) -> str:
    """A line about the programs and the device of a run."""
    return f"# versions: {json.dumps(dict(of_packages))}; device: {of_device}"
