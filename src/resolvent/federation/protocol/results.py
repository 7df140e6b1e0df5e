"""The run folder of a federation. It has the files of a simulation's run folder.

The lead's folder has the shared models and the scores that leave the sites. A site's folder has its personal models and
its own scores.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.comparisons.experiment.checks import folder_name
from resolvent.comparisons.judgement.decisive_metric import DecisiveMetric
from resolvent.comparisons.judgement.divergence import divergences
from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.row_values import RowValues, Score
from resolvent.comparisons.judgement.verdict import Verdict
from resolvent.comparisons.runs.environment import device, versions
from resolvent.comparisons.runs.summary import EXPERIMENT_FILE, METRICS_FILE, final_scores, judgement, write_summary
from resolvent.data.files.atomic_files import remove_folder, write_atomically, write_text
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.problem.models.losses import Loss
from resolvent.simulator.record.model_folder import SavedModels, write_model_folder

if TYPE_CHECKING:
    import pandas as pd

SPLIT = "test"  # on which methods are judged


@dataclass(frozen=True)
class MethodRun:
    """The outcome of one method.

    Attributes:
        models: its models with the encoding, of the first seed.
        metrics: table of metrics with the columns of a simulation's metrics, also of ``seed``.
        digests: SHA-256 of the last state of the server, by seed; empty at a site.
        seconds: median duration of a round.
        bytes_down: bytes from the server to the sites in the run of a seed.
        bytes_up: bytes from the sites to the server in the run of a seed.
        refused: site -> number of its replies that did not count.
    """

    models: SavedModels
    metrics: "pd.DataFrame"
    digests: tuple[str, ...] = ()
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def join(cls, runs: Sequence["MethodRun"]) -> "MethodRun":
        """The runs of several seeds as one: means of the bytes, sums of the refused replies."""
        import pandas as pd

        refused: Counter[str] = Counter()
        for run in runs:
            refused.update(run.refused)
        return cls(runs[0].models, pd.concat([run.metrics for run in runs], ignore_index=True),
                   tuple(digest for run in runs for digest in run.digests),
                   float(np.median([run.seconds for run in runs])),
                   round(sum(run.bytes_down for run in runs) / len(runs)),
                   round(sum(run.bytes_up for run in runs) / len(runs)), refused)


@dataclass(frozen=True)
class FederationRun:
    """The outcome of a run, as the lead or a site knows it.

    Attributes:
        sites: names of the sites whose scores the folder can have.
        train: number of training rows of each site.
        test: number of test rows of each site.
        methods: label -> method.
        notes: facts for the reader of the report.
        warnings: facts that the report shows first.
        party: number of the site whose folder it is, from which the split of its rows follows; None for the lead.
        digest: digest of the site's samples without weights; empty for the lead.
    """

    experiment: FederatedExperiment
    sites: Sequence[str]
    train: Sequence[int]
    test: Sequence[int]
    methods: Mapping[str, MethodRun]
    verdict: Verdict
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    party: int | None = None
    digest: str = ""
    name: str = ""


def evidence_of_run(experiment: FederatedExperiment, decisive: DecisiveMetric, methods: Mapping[str, MethodRun],
                    loss: Loss, sites: Mapping[int, str], rows: RowValues | None = None,
                    baseline: str | None = None, train: Sequence[int] | None = None) -> Evidence:
    """The measurements by which the methods of a federation are judged.

    Args:
        methods: label -> method.
        sites: id of a site -> its name.
        rows: the values of single test rows, which a site has of its own rows only.
        baseline: label of the predictions that need no training.
        train: number of training rows of each site, if they are known.
    """
    import pandas as pd

    score = score_of(decisive, loss)
    metrics = pd.concat([method.metrics for method in methods.values()], ignore_index=True)
    alone = experiment.alone if experiment.alone in methods else None
    traffic = {label: float(method.bytes_down + method.bytes_up) for label, method in methods.items()}
    return Evidence(score.name, SPLIT, score.higher_is_better, tuple(methods), alone, sites, metrics, experiment.seeds,
                    rows, baseline, train, traffic, decides=experiment.decide_by is not None)


def score_of(decisive: DecisiveMetric, loss: Loss) -> Score:
    """The number that compares methods."""
    metric = decisive.metrics.get(decisive.name)
    is_better = metric.higher_is_better if metric is not None else (
        loss.higher_is_better and decisive.name == loss.score_name)
    return Score(decisive.name, is_better, metric)


def write_run_folder(folder: Path, run: FederationRun) -> dict[str, Any]:
    """Write the experiment, the models, the metrics and the summary; returns the summary."""
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / EXPERIMENT_FILE, run.experiment.text)
    remove_folder(folder / "models")
    for label, method in run.methods.items():
        write_model_folder(folder / "models" / folder_name(label), method.models)
    metrics = pd.concat([method.metrics for method in run.methods.values()], ignore_index=True)
    write_atomically(folder / METRICS_FILE, lambda path: metrics.to_parquet(path, index=False))
    files = [EXPERIMENT_FILE, METRICS_FILE,
             *(p.relative_to(folder).as_posix() for p in sorted((folder / "models").rglob("*")) if p.is_file())]
    return write_summary(folder, _summary(run), files)


def _summary(run: FederationRun) -> dict[str, Any]:
    experiment, values = run.experiment, run.experiment.file.bound.values
    return {
        "name": experiment.file.name, "run": run.name, "title": values["title"] or experiment.file.name,
        "warnings": [*run.warnings, *(line for label, sites in run.verdict.diverged.items()
                                      if (line := divergences(label, sites, experiment.algorithm(label))) is not None)],
        "experiment": experiment.file.bound.settings(), "code": experiment.file.bound.codes(),
        "seed": experiment.seed, "seeds": list(experiment.seeds),
        "rounds": experiment.rounds, **judgement(run.verdict),
        "data": {"name": "tables of the sites", "parties": list(run.sites), "train": list(run.train),
                 "test": list(run.test), "notes": list(run.notes), "party": run.party,
                 "digest": run.digest},
        "methods": {label: _method(run, label) for label in run.methods},
        "versions": versions(), "device": device()}


def _method(run: FederationRun, label: str) -> dict[str, Any]:
    method, verdict = run.methods[label], run.verdict
    rows = method.metrics[(method.metrics["metric"] == verdict.score) & (method.metrics["split"] == verdict.split)]
    means = rows.groupby("round")["value"].agg(lambda values: values.mean(skipna=False))
    best: dict[str, Any] = {"round": run.experiment.rounds_of(label), "mean": None}
    if len(means):
        values = means.fillna(-np.inf if verdict.higher_is_better else np.inf).to_numpy()
        position = int(values.argmax() if verdict.higher_is_better else values.argmin())
        mean = float(means.iloc[position])
        best = {"round": int(means.index[position]), "mean": mean if np.isfinite(mean) else None}
    return {
        "preset": run.experiment.file.preset_of(label), "final": final_scores(verdict, label), "best": best,
        "rounds": run.experiment.rounds_of(label), "seconds_per_round": method.seconds, "compile_seconds": 0.0,
        "evaluation_seconds": 0.0, "bytes": {"down": method.bytes_down, "up": method.bytes_up},
        "refused": dict(method.refused), "digest": next(iter(method.digests), ""), "digests": list(method.digests)}
