"""The run folder of a federation. It has the files of a simulation's run folder.

The lead's folder has the shared models and the scores that leave the sites. A site's folder has its personal models and
its own scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.comparisons.experiment.checks import folder_name
from resolvent.comparisons.judgement.convergence import is_bound, is_untuned
from resolvent.comparisons.judgement.decisive_metric import DecisiveMetric
from resolvent.comparisons.judgement.divergence import divergences
from resolvent.comparisons.judgement.evidence import Evidence, tested_coefficients
from resolvent.comparisons.judgement.row_values import RowValues, Score
from resolvent.comparisons.judgement.verdict import Verdict
from resolvent.comparisons.runs.compared_methods import MethodRun
from resolvent.comparisons.runs.record import EXPERIMENT_FILE, METRICS_FILE, DataRecord, RunRecord, write_record
from resolvent.comparisons.runs.summary import method_record, record_of
from resolvent.data.files.atomic_files import remove_folder, write_atomically, write_text
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.problem.models.losses import Loss
from resolvent.problem.models.model import Model
from resolvent.simulator.record.model_folder import SavedModels, write_model_folder

if TYPE_CHECKING:
    import pandas as pd

SPLIT = "test"  # on which methods are judged
TABLES = "tables of the sites"  # what a run of a federation trains on


@dataclass(frozen=True)
class TrainedMethod:
    """The outcome of one method.

    Attributes:
        models: its models with the encoding, of the first seed.
        runs: its run with each seed and fold.
    """

    models: SavedModels
    runs: tuple[MethodRun, ...]

    @classmethod
    def of_parts(cls, methods: Sequence["TrainedMethod"]) -> "TrainedMethod":
        """The runs with several seeds or folds as one method, with the models of the first."""
        return cls(methods[0].models, tuple(run for method in methods for run in method.runs))

    @property
    def metrics(self) -> "pd.DataFrame":
        """Table of metrics with the columns of a simulation's metrics, also of ``seed``."""
        import pandas as pd

        return pd.concat([run.metrics for run in self.runs], ignore_index=True)


@dataclass(frozen=True)
class FederationRun:
    """The outcome of a run, as the lead or a site knows it.

    Attributes:
        methods: label -> method.
        data: the rows of the sites whose scores the folder can have; of a site, its digest is without weights.
        warnings: facts that the report shows first.
    """

    name: str
    experiment: FederatedExperiment
    methods: Mapping[str, TrainedMethod]
    verdict: Verdict
    data: DataRecord
    warnings: Sequence[str] = ()


def evidence_of_run(experiment: FederatedExperiment, decisive: DecisiveMetric, methods: Mapping[str, TrainedMethod],
                    model: Model, sites: Mapping[int, str], rows: RowValues | None = None,
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

    score = score_of(decisive, model.loss)
    metrics = pd.concat([method.metrics for method in methods.values()], ignore_index=True)
    alone = experiment.alone if experiment.alone in methods else None
    traffic = {label: sum(sum(run.bytes) for run in method.runs) / len(method.runs)
               for label, method in methods.items()}
    return Evidence(score=score.name, split=SPLIT, higher_is_better=score.higher_is_better, methods=tuple(methods),
                    alone=alone, parties=sites, metrics=metrics, seeds=experiment.seeds, rows=rows, baseline=baseline,
                    train=train, traffic=traffic, decides=experiment.decide_by is not None,
                    bounds=frozenset(label for label in methods if is_bound(experiment.algorithm(label))),
                    folds=experiment.folds, coefficients=tested_coefficients(model, experiment.folds))


def score_of(decisive: DecisiveMetric, loss: Loss) -> Score:
    """The number that compares methods."""
    metric = decisive.metrics.get(decisive.name)
    is_better = metric.higher_is_better if metric is not None else (
        loss.higher_is_better and decisive.name == loss.score_name)
    return Score(decisive.name, is_better, metric)


def write_run_folder(folder: Path, run: FederationRun) -> RunRecord:
    """Write the experiment, the models, the metrics and the record."""
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
    return write_record(folder, _record(run), files)


def share_warnings(sites: Sequence[str], train: Sequence[int]) -> list[str]:
    """A sentence about a site with more than half of the training rows of at least three sites.

    The number of rows is what the site says. A mean follows such a site, and so do medians, whose majority is one of
    weight.

    Example:
        >>> [line.partition(",")[0] for line in share_warnings(("aachen", "berlin", "celle"), (20, 30, 150))]
        ['celle says that it has 75 % of the training rows']
    """
    if len(sites) < 3:
        return []
    return [f"{site} says that it has {rows / sum(train):.0%}".replace("%", " %") + " of the training rows, so that it "
            "outweighs all other sites together: the mean follows it, and no median withstands it"
            for site, rows in zip(sites, train, strict=True) if 2 * rows > sum(train)]


def _record(run: FederationRun) -> RunRecord:
    experiment, bound, verdict, data = run.experiment, run.experiment.file.bound, run.verdict, run.data
    model = next(iter(run.methods.values())).models.model
    warnings = [*run.warnings, *share_warnings(data.parties, data.train),
                *(line for label, sites in verdict.diverged.items()
                  if (line := divergences(label, sites, experiment.algorithm(label))) is not None)]
    methods = {label: method_record(experiment.file.preset_of(label), verdict, label, method.runs,
                                    experiment.rounds_of(label), is_bound=is_bound(experiment.algorithm(label)),
                                    is_untuned=is_untuned(experiment.algorithm(label)))
               for label, method in run.methods.items()}
    return record_of(
        verdict, experiment.seeds, data, methods, name=experiment.file.name, run=run.name,
        title=bound.values["title"] or experiment.file.name, warnings=warnings, experiment=bound.settings(),
        code=bound.codes(), rounds=experiment.rounds, folds=experiment.folds,
        coefficients=tested_coefficients(model, experiment.folds))
