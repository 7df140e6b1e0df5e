"""The runs of several methods on one federation with the same random numbers, and how they are judged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.experiment.experiment_file import Experiment
from resolvent.comparisons.judgement.convergence import is_bound
from resolvent.comparisons.judgement.decisive_metric import decisive_score
from resolvent.comparisons.judgement.evidence import Evidence, tested_coefficients
from resolvent.comparisons.judgement.metrics import GAP
from resolvent.comparisons.judgement.row_values import RowValues, baseline_name
from resolvent.comparisons.tuning.space import Point
from resolvent.data.federated import FederatedData
from resolvent.data.html_tables import html_facts, html_table
from resolvent.errors import count_of
from resolvent.problem.problem import SolvedProblem
from resolvent.simulator.mesh import detect_lost_process
from resolvent.simulator.record.model_folder import SavedModels
from resolvent.simulator.record.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from resolvent.comparisons.judgement.verdict import Verdict

ProgressOfMethod = Callable[[str, int, int], None]  # label, rounds done, rounds in total


class Samples(NamedTuple):
    """The samples of a run with one seed, or with one fold of it.

    Attributes:
        data: the samples; None if the problem has its own.
        rows: [total] the number of each row in the data of the first seed; None: 0, 1, and so on.
        is_repeated: [total] the test rows that are counted in another fold; None: there are none.
    """

    data: FederatedData | None
    rows: NDArray[np.integer] | None = None
    is_repeated: NDArray[np.bool_] | None = None


class MethodRun(NamedTuple):
    """The measurements of a method's run with one seed, or with one fold of it.

    Attributes:
        metrics: the metrics of the run, with a column ``seed``, and with folds a column ``fold``.
        digest: SHA-256 of the last state; empty at a site of a federation, which has no state of the server.
        seconds_per_round: the duration of each round; one number if only their median is known.
        bytes: from the server to the parties, and back.
        refused: party -> number of its replies that did not count.
        point: the hyperparameters that were chosen inside the fold; None if none were searched.
    """

    metrics: "pd.DataFrame"
    digest: str = ""
    seconds_per_round: Sequence[float] = (0.0,)
    compile_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    bytes: tuple[int, int] = (0, 0)
    refused: Mapping[str, int] = MappingProxyType({})
    point: Point | None = None

    @classmethod
    def of(cls, result: Result, point: Point | None, **columns: int) -> "MethodRun":
        """The measurements of a result, with the seed and the fold as columns of the metrics."""
        facts = result.facts
        return cls(result.metrics.assign(**columns), result.digest, facts["seconds_per_round"],
                   facts["seconds"]["compile"], facts["seconds"]["evaluation"],
                   (facts["bytes"]["down"], facts["bytes"]["up"]), result.refused, point)


@dataclass(frozen=True, repr=False)
class ComparedMethods:
    """The outcome of comparing several methods on one federation, as run folders, summaries and refits read it.

    Attributes:
        experiment: the experiment with the compared methods.
        results: the result of each method with the first seed, and with its first fold, by label.
        runs: label -> its run with each seed, and for each seed with each fold.
        seeds: the seeds.
        rows: the value of every test row with every method; None if the problem has no samples.
        alone: the label of local training, or None if the experiment has none.
        fold_models: label -> its models of the second fold and the later ones, with the first seed.
    """

    experiment: Experiment
    results: dict[str, Result]
    runs: dict[str, tuple[MethodRun, ...]] = field(repr=False)
    seeds: tuple[int, ...]
    rows: RowValues | None = field(repr=False)
    alone: str | None
    fold_models: dict[str, tuple[SavedModels, ...]] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return (f"{type(self).__name__}({', '.join(self.results)}; {self.experiment.rounds} rounds, "
                f"{count_of(len(self.seeds), 'seed')}"
                f"{f', {self.experiment.folds} folds' if self.experiment.number_of_folds > 1 else ''})")

    def __str__(self) -> str:
        scores = self.verdict.table.to_string(index=False, float_format="{:.3f}".format, na_rep="-")
        return f"{self.finding}\n{scores}"

    def _repr_html_(self) -> str:
        facts = {"methods": ", ".join(self.results), "rounds": self.experiment.rounds, "seeds": len(self.seeds),
                 "folds": self.experiment.number_of_folds, "finding": self.finding}
        shown = html_facts(self.experiment.title or "Comparison", facts)
        for table in (self.verdict.table, *([] if self.alone is None or self.rows is None else [self.recommend()])):
            shown += html_table([*map(str, table.columns)], table.to_numpy(object).tolist())
        return shown

    def collected(self) -> Self:
        """The comparison with all personal models in this process. If there are several processes, all must call it."""
        with detect_lost_process():
            return replace(self, results={label: result.collected() for label, result in self.results.items()})

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """All metrics of all methods and seeds, one long table: those of ``Result``, and the column ``seed``."""
        import pandas as pd

        return pd.concat([run.metrics for runs in self.runs.values() for run in runs], ignore_index=True)

    @property
    def evidence(self) -> Evidence:
        """The measurements by which the methods are judged."""
        problem = next(iter(self.results.values())).problem
        score, higher = decisive_score(self.experiment.metrics, self.experiment.decide_by, problem)
        split = "test" if "test" in problem.splits else problem.splits[-1]
        if isinstance(problem, SolvedProblem):
            score, split, higher = GAP, "train", False
        data, baseline = self.experiment.data, None
        if self.rows is not None and isinstance(data, FederatedData):
            baseline = baseline_name(data, self.results)
            baseline = baseline if baseline in self.rows.values else None
        return Evidence(
            score=score, split=split, higher_is_better=higher, methods=tuple(self.results),
            alone=self.alone if score != GAP else None, parties=self.experiment.parties, metrics=self.metrics,
            seeds=self.seeds, rows=self.rows, baseline=baseline,
            train=data.sizes("train").tolist() if isinstance(data, FederatedData) else None,
            traffic={label: float(sum(runs[0].bytes)) for label, runs in self.runs.items()},
            bounds=frozenset(m for m, a in self.experiment.algorithms.items() if is_bound(a)),
            folds=self.experiment.number_of_folds, decides=self.experiment.decisive is not None
            and self.experiment.decisive.decides,
            coefficients=tested_coefficients(self.experiment.model, self.experiment.number_of_folds))

    @cached_property
    def verdict(self) -> "Verdict":
        """The table of scores, the finding, and the judgement of every site."""
        from resolvent.comparisons.judgement.verdict import judge

        return judge(self.evidence, rule=self.experiment.decision)

    @property
    def finding(self) -> str:
        """What the comparison shows, in one or two sentences."""
        return self.verdict.finding

    @property
    def sites(self) -> "pd.DataFrame":
        """A row per site and method: its score and its gain over training alone, with the ends of their intervals."""
        return self.verdict.site_table()

    def recommend(self) -> "pd.DataFrame":
        """The method that each site should use, and the gain over training alone that it can expect.

        The federation runs the method that harms nobody and helps most. Each site uses its best model of that run, or
        trains alone.

        Returns:
            A row per site: ``use``, the method; ``model``: ``shared``, ``personal`` or ``alone``; ``advice``: ``join``,
            ``stay alone`` or ``unclear``, which means alone; ``reason``; ``probability``, that the site gains;
            ``expected``, ``expected_low`` and ``expected_high``, the expected gain in skill, by the rows of all sites;
            ``own``, ``own_low`` and ``own_high``, the gain by the site's own rows, with its interval of level 0.95;
            ``test_rows``; ``settled_by``, what would settle an unclear advice. ``use`` and ``advice`` are None and the
            numbers nan at a site where training alone diverged, because there is no reference there.

        Raises:
            InputError: training alone is not among the methods, or the sites have no test rows and there is one seed.
        """
        return self.verdict.recommendations()
