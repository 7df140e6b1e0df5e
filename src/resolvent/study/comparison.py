"""The outcome of comparing several methods on one federation with the same random numbers."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.algorithms.combinators.pooled_data import uses_pooled_data
from resolvent.data.federated import FederatedData
from resolvent.data.html_tables import html_facts, html_table
from resolvent.problem.problem import SolvedProblem
from resolvent.problem.threshold import goal_of
from resolvent.simulator.processes import detect_lost_process
from resolvent.simulator.progress import progress_bars
from resolvent.simulator.result import Result
from resolvent.study.decisive_metric import decisive_score
from resolvent.study.experiment import Experiment
from resolvent.study.metrics import GAP
from resolvent.study.row_values import RowValues, baseline_name
from resolvent.study.sites import Evidence
from resolvent.study.tuning.space import Point

if TYPE_CHECKING:
    import pandas as pd

    from resolvent.problem.calibration import CalibrationKind
    from resolvent.study.calibrations import Calibrations
    from resolvent.study.explanations import Explanations
    from resolvent.study.held_out_rows import HeldOutRows
    from resolvent.study.refit import Refit
    from resolvent.study.verdict import Verdict

__all__ = ["Comparison", "MethodRun", "ProgressOfMethod", "Samples"]

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
        facts: seconds and bytes, see ``Result``.
        refused: party -> number of its replies that did not count.
        digest: SHA-256 of the last state.
        point: the hyperparameters that were chosen inside the fold; None if none were searched.
    """

    metrics: "pd.DataFrame"
    facts: dict[str, Any]
    refused: dict[str, int]
    digest: str
    point: Point | None = None


@dataclass(frozen=True, repr=False)
class Comparison:
    """The outcome of comparing several methods on one federation.

    Attributes:
        experiment: the experiment with the compared methods.
        results: the result of each method with the first seed, and with its first fold, by label.
        runs: label -> its run with each seed, and for each seed with each fold.
        seeds: the seeds.
        rows: the value of every test row with every method; None if the problem has no samples.
        alone: the label of local training, or None if the experiment has none.
        fold_choices: the method that the validation rows of each fold choose; empty without folds or a choice.
    """

    experiment: Experiment
    results: dict[str, Result]
    runs: dict[str, tuple[MethodRun, ...]] = field(repr=False)
    seeds: tuple[int, ...]
    rows: RowValues | None = field(repr=False)
    alone: str | None
    fold_choices: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (f"Comparison({', '.join(self.results)}; {self.experiment.rounds} rounds, {len(self.seeds)} seed(s)"
                f"{f', {self.experiment.folds} folds' if self.experiment.folds > 1 else ''})")

    def _repr_html_(self) -> str:
        facts = {"methods": ", ".join(self.results), "rounds": self.experiment.rounds, "seeds": len(self.seeds),
                 **({"folds": self.experiment.folds} if self.experiment.folds > 1 else {}), "finding": self.finding}
        shown = html_facts(self.experiment.title or "Comparison", facts)
        for table in (self.table, *([] if self.alone is None or self.rows is None else [self.recommend()])):
            shown += html_table([*map(str, table.columns)], table.to_numpy(object).tolist())
        return shown

    def collected(self) -> "Comparison":
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
        return Evidence(score, split, higher, tuple(self.results), self.alone if score != GAP else None,
                        self.experiment.parties, self.metrics, self.seeds, self.rows, baseline,
                        data.sizes("train").tolist() if isinstance(data, FederatedData) else None,
                        {label: float(sum(runs[0].facts["bytes"].values())) for label, runs in self.runs.items()},
                        frozenset(m for m, a in self.experiment.algorithms.items() if uses_pooled_data(a)),
                        self.experiment.folds, self.fold_choices)

    @cached_property
    def verdict(self) -> "Verdict":
        """The table of scores, the finding, and the judgement of every site."""
        from resolvent.study.verdict import judge

        return judge(self.evidence, rule=self.experiment.decision)

    @property
    def finding(self) -> str:
        """What the comparison shows, in one or two sentences."""
        return self.verdict.finding

    @property
    def table(self) -> "pd.DataFrame":
        """The scores of each method over the sites, see ``score_table``."""
        return self.verdict.table

    @property
    def sites(self) -> "pd.DataFrame":
        """A row per site and method: its score and its gain over training alone, with the ends of their intervals."""
        return self.verdict.site_table()

    def recommend(self) -> "pd.DataFrame":
        """The method that each site should use, and the gain over training alone that it can expect.

        The federation runs one method, which the validation rows of all sites choose. Each site then joins it or trains
        alone, by the gain that it can expect.

        Returns:
            A row per site: ``use``, the method; ``advice``: ``join``, ``probably join``, ``no difference`` or ``stay
            alone``; ``probability``, that the site gains; ``expected``, ``expected_low`` and ``expected_high``, the
            gain to expect, from the test rows of all sites; ``gain``, ``low`` and ``high``, that on the site's own test
            rows, with its interval of level 0.95; ``test_rows``; ``gain_to_see``, ``further_rows`` and
            ``further_rarest``, the number of further test rows, and of the rarest class, that would show this gain
            with a probability of 80 %, where the advice is not certain. ``use`` and ``advice`` are None and the
            numbers nan at a site where training alone diverged, because there is no reference there.

        Raises:
            InputError: training alone is not among the methods, or the sites have no test rows and there is one seed.
        """
        return self.verdict.recommendations()

    def refit(self, method: str | None = None, *, rounds: int | None = None, folder: Path | str | None = None,
              progress: bool = True) -> "Refit":
        """Train the chosen method again on all rows of each site: training, validation and test rows.

        A site that was advised to train alone gets its own model, trained on all its rows; the others get their
        personal model of the chosen method, for which all sites train together. The encoding of a table is fitted to
        all rows. The number of rounds is that with the best validation score, as the mean over the seeds and the sites,
        weighted by their training rows. A method that chooses by validation rows keeps them for this choice.

        Nothing is measured: no row is left that the models have not seen. The scores of the run are those of models
        that were trained on fewer rows.

        Args:
            method: the method instead of the chosen one.
            rounds: number of rounds; default: by the validation scores.
            folder: the run folder of this comparison, into which the models are written. ``rv.load`` and ``resolvent
                predict`` then use them.
            progress: show progress on the terminal.

        Raises:
            InputError: no method was chosen and none is named, the method is differentially private, the run has no
                samples, or the table has been changed since.

        Example:
            >>> data, solver = rv.datasets.digits(parties=3), rv.SGD(0.1)
            >>> methods = {"alone": rv.local(solver), "FedAvg": rv.fedavg(solver)}
            >>> comparison = rv.compare(methods, rv.models.logistic(64, 10), data, rounds=2, progress=False)
            >>> refit = comparison.refit(progress=False)
            >>> refit.fitted("party 0").predict(data.party(0)[0][:2]).shape
            (2,)
        """
        from resolvent.study.refit import refit_comparison

        with progress_bars("rounds") if progress else contextlib.nullcontext(None) as report:
            return refit_comparison(self, method, rounds, folder=None if folder is None else Path(folder),
                                    progress=report)

    def calibrate(self, method: str | None = None, *, sites: Sequence[str] = (),
                  kind: 'CalibrationKind | Literal["auto"]' = "auto", positive: str | None = None,
                  cost_false_negative: float | None = None, cost_false_positive: float | None = None,
                  sensitivity: float | None = None, specificity: float | None = None) -> "Calibrations":
        """Calibrate the probabilities of a method's models on validation rows, and measure them on test rows.

        The kind is chosen for each site by cross-validated log loss among those for which the site has enough
        validation rows; sites with few rows are shrunk to the fit over all sites. With costs, a sensitivity or a
        specificity, each site also gets a threshold: the probability from which on the class ``positive`` is predicted.

        Args:
            method: name of the method; default: the one that the federation should run, or the only one.
            sites: names of the sites; default: all, and the shared model.
            kind: ``none``, ``temperature``, ``platt`` or ``isotonic``; ``auto`` chooses.
            positive: the class that the threshold is for.
            cost_false_negative: see ``Goal``, as the three other options of the threshold.
            cost_false_positive: see ``Goal``.
            sensitivity: see ``Goal``.
            specificity: see ``Goal``.

        Raises:
            InputError: the model is not a classifier with logits, or there is no such method, site or class.
        """
        from resolvent.study.calibrations import calibrate

        goal = goal_of(cost_false_negative, cost_false_positive, sensitivity, specificity)
        return calibrate(self.held_out_rows(method), sites=sites, kind=kind, positive=positive, goal=goal)

    def explain(self, method: str | None = None, *, sites: Sequence[str] = ()) -> "Explanations":
        """What the models of a method rest on: coefficients in the table's units, and permutation importance.

        The importance of a column is by how much the mean loss on a site's test rows grows if the column is exchanged
        between them, with an interval that is paired over the rows.

        Args:
            method: name of the method; default: the one that the federation should run, or the only one.
            sites: names of the sites; default: all, and the shared model.

        Raises:
            InputError: there is no such method or site, or the inputs are not columns.
        """
        from resolvent.study.explanations import explain_models

        return explain_models(self.held_out_rows(method), sites=sites)

    def held_out_rows(self, method: str | None = None) -> "HeldOutRows":
        """The models of a method with the validation and test rows of their sites, see ``calibrate`` and ``explain``.

        Args:
            method: name of the method; default: the one that the federation should run, or the only one.

        Raises:
            InputError: there is no such method, or there are no samples.
        """
        from resolvent.study.held_out_rows import rows_of_results

        choice = self.verdict.sites.choice
        return rows_of_results(self.results, method, None if choice is None else choice.method)

    def save(self, folder: Path | str, *, title: str = "", overwrite: bool = False) -> Path:
        """Write a run folder: models, metrics, summary and report, as ``resolvent run`` does.

        Args:
            folder: a folder that does not exist or is empty.
            title: heading of the report; default: the folder's name.
            overwrite: replace the content of the folder.

        Raises:
            InputError: the folder is in use.
        """
        from resolvent.study.runner import write_run

        return write_run(Path(folder), self, title=title, overwrite=overwrite)
