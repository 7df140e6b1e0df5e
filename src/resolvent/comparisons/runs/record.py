"""The record of a run, ``summary.json``: what ran, on what, and with what outcome; of a simulation and of a federation.

``write_record`` and ``read_record`` are the only ones that know the file. All others read the attributes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.comparisons.judgement.advice import FederationAdvice, used_method
from resolvent.comparisons.judgement.metrics import over_parties
from resolvent.comparisons.judgement.site_judgement import (
    Means,
    SiteJudgement,
    number_of,
    plain_advice,
    plain_intervals,
    plain_number,
    plain_site,
    read_advice,
    read_intervals,
    read_site,
)
from resolvent.data.files.data_files import read_parquet
from resolvent.data.files.digests import check_files, file_digests, read_sealed, write_sealed
from resolvent.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

EXPERIMENT_FILE, METRICS_FILE, SUMMARY_FILE = "experiment.yaml", "metrics.parquet", "summary.json"
ROWS_FILE = "test_rows.parquet"
ADVICE = "run the experiment again"

_NOTHING: Sequence[Any] = (None, "", (), [])  # of an entry that may be left out

FinalScores = Mapping[str, float | int | None]  # column of the table of scores -> number; None: it is not finite


@dataclass(frozen=True)
class DataRecord:
    """The samples of a run.

    Attributes:
        parties: the names of the parties.
        train: number of training samples of each party.
        test: number of test samples of each party; None for a problem without samples.
        digest: of the samples; empty if they are not known here.
        notes: facts for the reader of the report.
        party: number of the site whose folder it is, from which the split of its rows follows; otherwise None.
    """

    name: str
    parties: Sequence[str]
    train: Sequence[int]
    test: Sequence[int] | None = None
    digest: str = ""
    notes: Sequence[str] = field(default_factory=tuple)  # always in the file
    party: int | None = None


@dataclass(frozen=True)
class Best:
    """The round with the best mean score, and that score; None if it is not finite."""

    round: int
    mean: float | None = None


@dataclass(frozen=True)
class Traffic:
    """Bytes from the server to the parties, and back, in the run of a seed."""

    down: int = 0
    up: int = 0


@dataclass(frozen=True)
class MethodRecord:
    """What a method has done.

    Attributes:
        preset: name of the algorithm.
        final: its row in the table of scores.
        seconds_per_round: median duration of a round.
        compile_seconds: of all seeds and folds.
        evaluation_seconds: of all seeds and folds.
        refused: party -> number of its replies that did not count.
        digest: SHA-256 of the last state with the first seed.
        digests: with each seed and fold; none at a site of a federation, which has no state of the server.
        is_bound: whether it trains on pooled rows or alone, which is advised to no federation.
        is_untuned: whether it is training alone without a choice of its strength or learning rate.
        tuned: the hyperparameters that were chosen in each fold.
        run: the folder of the run, in a comparison of several.
        method: its label in that run.
    """

    final: FinalScores
    preset: str = ""
    best: Best | None = None
    rounds: int = 0
    seconds_per_round: float = 0.0
    compile_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    bytes: Traffic = Traffic()
    refused: Mapping[str, int] = field(default_factory=dict)
    digest: str = ""
    digests: Sequence[str] = ()
    is_bound: bool = False
    is_untuned: bool = False
    tuned: Sequence[Mapping[str, Any]] = ()
    run: str = ""
    method: str = ""


@dataclass(frozen=True)
class PrivacyRecord:
    """Method -> party -> epsilon after the last round, the largest over the seeds; infinite ones are texts."""

    delta: float | None
    limit: float | None
    epsilons: Mapping[str, Mapping[str, float | str]]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The record of a run.

    Attributes:
        title: heading of the report.
        run: name of the run of a federation; empty for a simulation.
        warnings: what the report shows first.
        experiment: settings of the experiment file, with every default; None for a program.
        code: the functions of the user's own that the file names -> digest of their code.
        program: the settings of a program, as text; empty for a file.
        finding: what the comparison shows; this and the next attributes are those of ``Verdict``.
        level: of all intervals; None if there are none.
        collapsed: method -> why its training counts as collapsed.
        converged: method -> whether its training has converged; None if it is not known.
        rounds_to_try: method -> number of rounds, for those that have not converged.
        sites: the judgement of each site.
        federation: the advice to the federation, if there is one.
        coefficients: see ``Evidence``.
        files: file of the folder -> SHA-256.
    """

    name: str = ""
    run: str = ""
    title: str = ""
    warnings: Sequence[str] = ()
    experiment: Mapping[str, Any] | None = None
    code: Mapping[str, str] = field(default_factory=dict)
    program: str = ""
    seed: int
    seeds: Sequence[int]
    folds: int = 1
    rounds: int = 0
    finding: str
    score: str
    split: str
    higher_is_better: bool
    alone: str | None
    baseline: str | None
    level: float | None
    diverged: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    collapsed: Mapping[str, str] = field(default_factory=dict)
    converged: Mapping[str, bool | None] = field(default_factory=dict)
    rounds_to_try: Mapping[str, int] = field(default_factory=dict)
    decides: bool = False
    sites: Sequence[SiteJudgement] = ()
    federation: FederationAdvice | None = None
    means: Means | None = None
    coefficients: int = 0
    data: DataRecord
    methods: Mapping[str, MethodRecord]
    privacy: PrivacyRecord | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def judged(self) -> Mapping[str, SiteJudgement]:
        """Name of a site -> its judgement."""
        return {site.name: site for site in self.sites}

    @cached_property
    def advised(self) -> Sequence[SiteJudgement]:
        """The sites that have an advice."""
        return [site for site in self.sites if site.advice is not None]

    def marked(self, label: str) -> str:
        """The label of a method in a table, with ``(collapsed)``, or ``(untuned)`` if it is untuned training alone."""
        if label in self.collapsed:
            return f"{label} (collapsed)"
        return f"{label} (untuned)" if label in self.methods and self.methods[label].is_untuned else label

    @property
    def has_untuned_reference(self) -> bool:
        """Whether training alone, with which all methods are compared, has the solver's settings as they are."""
        return self.alone is not None and self.alone in self.methods and self.methods[self.alone].is_untuned

    def use(self, site: SiteJudgement) -> str | None:
        """The method that a site should use; None where training alone diverged, because there is no reference."""
        return None if self.federation is None else used_method(site.advice, self.federation.method, self.alone)

    def score_rows(self) -> dict[str, FinalScores]:
        """The rows of the table of scores: the methods, and the predictions that need no training."""
        rows = {label: method.final for label, method in self.methods.items()}
        if self.baseline is None:
            return rows
        values = [value for site in self.sites if np.isfinite(value := site.scores[self.baseline].value)]
        if not values:
            return rows
        final: dict[str, float | int | None] = {
            **over_parties(values, higher_is_better=self.higher_is_better),
            **dict.fromkeys(("global mean", "global p10", "global worst"))}
        if self.alone is not None:
            gains = [site.gains[self.baseline] for site in self.sites]
            signs = [gain.sign for gain in gains if not np.isnan(gain.value)]
            final |= {"better": signs.count(1), "level": signs.count(0), "worse": signs.count(-1)}
        return {**rows, self.baseline: final}

    def plain(self) -> dict[str, Any]:
        """The record as JSON can hold it."""
        content = {part.name: _plain(getattr(self, part.name)) for part in fields(self)}
        content["sites"] = [plain_site(site) | {"advice": plain_advice(site.advice, self.use(site))}
                            for site in self.sites]
        if self.federation is not None:
            advice = self.federation
            content["federation"] = {
                "method": advice.method, "about": advice.about, "gain": plain_number(advice.gain),
                "values": {method: plain_number(value) for method, value in advice.values.items()},
                "not_shared": [site.name for site, is_not in zip(self.sites, advice.not_shared, strict=True) if is_not]}
        if self.means is not None:
            content["means"] = {name: plain_intervals(part) for name, part in self.means._asdict().items()}
        return content


def _plain(value: Any) -> Any:
    if is_dataclass(value):  # without what is not known, such as the digest at the lead, who has no samples
        known = [part.name for part in fields(value)
                 if getattr(value, part.name) not in _NOTHING or part.default not in _NOTHING]  # 0 is a party
        return {name: _plain(getattr(value, name)) for name in known}
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [*map(_plain, value)] if isinstance(value, list | tuple) else value


def write_record(folder: Path, record: RunRecord, files: Sequence[str]) -> RunRecord:
    """Write ``summary.json`` into a run folder, with the digests of these files and of itself.

    Returns:
        The record with these digests.
    """
    record = replace(record, files=file_digests(folder, files))
    write_sealed(folder / SUMMARY_FILE, record.plain())
    return record


def read_record(folder: Path) -> RunRecord:
    """The record of a finished run, whose experiment and metrics are those that the run wrote.

    Raises:
        InputError: there is no finished run in the folder, one of these files is damaged, or another version of
            resolvent wrote them.
    """
    path = folder / SUMMARY_FILE
    if not path.is_file():
        raise InputError(f"there is no finished run in {folder}: {path} is missing; name a folder that `resolvent run` "
                         "wrote")
    content = read_sealed(path, ADVICE)
    try:
        record = _read(content)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise InputError(f"{folder} was written by another version of resolvent: {ADVICE}") from error
    names = [METRICS_FILE, *([EXPERIMENT_FILE] if record.experiment is not None else [])]
    check_files(folder, {name: record.files.get(name, "") for name in names}, ADVICE)
    return record


def _read(content: Mapping[str, Any]) -> RunRecord:
    parties = content["data"]["parties"]
    sites = tuple(read_site(site, parties.index(site["name"]), site["name"])._replace(
        advice=read_advice(site["advice"])) for site in content["sites"])
    advice = content["federation"]
    federation = None if advice is None else FederationAdvice(
        advice["method"], advice["about"], tuple(site.advice for site in sites if site.advice is not None),
        {method: number_of(value) for method, value in advice["values"].items()}, number_of(advice["gain"]),
        tuple(site.name in advice["not_shared"] for site in sites))
    means = None if content["means"] is None else Means(**{name: read_intervals(part)
                                                          for name, part in content["means"].items()})
    methods = {label: MethodRecord(**method | {
        "bytes": Traffic(**method["bytes"]), "best": Best(**method["best"]) if "best" in method else None})
        for label, method in content["methods"].items()}
    privacy = PrivacyRecord(**content["privacy"]) if content.get("privacy") else None
    return RunRecord(**{**content, "sites": sites, "federation": federation, "means": means, "methods": methods,
                        "data": DataRecord(**content["data"]), "privacy": privacy})


def read_metrics(folder: Path) -> "pd.DataFrame":
    """All metrics of a run; ``read_record`` has checked the file."""
    return read_parquet(folder / METRICS_FILE)
