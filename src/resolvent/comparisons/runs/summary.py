"""The record of a comparison: what ran, on what, and with what outcome."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from resolvent.algorithms.participation.rules import Stragglers
from resolvent.comparisons.experiment.checks import straggler_policy_note
from resolvent.comparisons.experiment.experiment_file import Experiment, ExperimentFile
from resolvent.comparisons.judgement.convergence import (
    bound_warnings,
    exact_solve_warning,
    is_bound,
    is_untuned,
)
from resolvent.comparisons.judgement.divergence import collapse_text, divergences
from resolvent.comparisons.judgement.metrics import GAP
from resolvent.comparisons.judgement.verdict import Verdict, refusals
from resolvent.comparisons.runs.compared_methods import ComparedMethods, MethodRun
from resolvent.comparisons.runs.environment import device, versions
from resolvent.comparisons.runs.record import (
    Best,
    DataRecord,
    FinalScores,
    MethodRecord,
    PrivacyRecord,
    RunRecord,
    Traffic,
)
from resolvent.comparisons.runs.settings_text import settings_text
from resolvent.data.federated import FederatedData
from resolvent.math import tree
from resolvent.predict.intervals import LEVEL
from resolvent.problem.models.model import LinearModel, Model
from resolvent.problem.problem import SolvedProblem
from resolvent.simulator.checkpoint.identity import fingerprint_of
from resolvent.simulator.doubts import doubt_of_replies
from resolvent.simulator.record.diagnostics import dissimilarity


class Source(NamedTuple):
    """The origin of a comparison: an experiment file, or a program.

    Attributes:
        settings: settings of the file, with every default; None for a program.
        presets: label -> name of the algorithm.
        problem: name of the problem, for experiments without data.
        title: heading of the report.
        code: the functions of the user's own that the file names -> digest of their code.
        program: the settings of a program, as text; empty for a file.
    """

    name: str
    settings: dict[str, Any] | None
    presets: dict[str, str]
    problem: str
    title: str = ""
    code: Mapping[str, str] = MappingProxyType({})
    program: str = ""

    @classmethod
    def of_file(cls, file: ExperimentFile) -> "Source":
        """The source of an experiment file."""
        settings = file.bound.settings()
        problem = str(file.bound.part("problem").name).replace("_", " ") if "problem" in file.bound.parts else ""
        return cls(file.name, settings, {label: file.preset_of(label) for label in settings["algorithms"]}, problem,
                   code=file.bound.codes())

    @classmethod
    def of_program(cls, name: str, comparison: ComparedMethods, title: str = "") -> "Source":
        """The source of a comparison that a program made."""
        experiment = comparison.experiment
        presets = {label: type(algorithm).__name__ for label, algorithm in experiment.algorithms.items()}
        return cls(name, None, presets, type(experiment.problem).__name__, title, program=settings_text(experiment))


def summarize(source: Source, comparison: ComparedMethods) -> RunRecord:
    """The record of a comparison."""
    experiment = comparison.experiment
    return record_of(
        comparison.verdict, comparison.seeds, _data(source, comparison),
        {label: method_record(source.presets[label], comparison.verdict, label, runs, experiment.rounds,
                              is_bound=is_bound(experiment.algorithms[label]),
                              is_untuned=is_untuned(experiment.algorithms[label]))
         for label, runs in comparison.runs.items()},
        name=source.name, title=experiment.title or source.title or source.name, warnings=_warnings(comparison),
        experiment=source.settings, code=dict(source.code), program=source.program, seed=experiment.seed,
        folds=experiment.number_of_folds, rounds=experiment.rounds, coefficients=comparison.evidence.coefficients,
        privacy=_privacy(comparison))


def record_of(verdict: Verdict, seeds: Sequence[int], data: DataRecord, methods: Mapping[str, MethodRecord],
              **facts: Any) -> RunRecord:
    """The record of a run that has been judged.

    Args:
        facts: further attributes of the record.
    """
    evidence = verdict.evidence
    return RunRecord(
        finding=verdict.finding, score=evidence.score, split=evidence.split, higher_is_better=evidence.higher_is_better,
        alone=evidence.alone, baseline=verdict.baseline, level=LEVEL if verdict.sites.sites else None,
        diverged={method: dict(sites) for method, sites in verdict.diverged.items()},
        collapsed=dict(verdict.collapsed),
        converged={method: part.has_converged for method, part in verdict.convergence.items()},
        rounds_to_try={method: part.rounds for method, part in verdict.convergence.items() if part.rounds},
        decides=evidence.decides and bool(verdict.sites.sites), sites=verdict.sites.sites,
        federation=verdict.sites.federation, means=verdict.sites.means, seeds=[*seeds], data=data, methods=methods,
        versions=versions(), device=device(), **{"seed": seeds[0], **facts})


def method_record(preset: str, verdict: Verdict, label: str, runs: Sequence[MethodRun], rounds: int, *,
                  is_bound: bool = False, is_untuned: bool = False) -> MethodRecord:
    """The record of a method.

    Args:
        runs: its run with each seed and fold.
    """
    tuned = [run.point for run in runs if run.point is not None]
    digests = [run.digest for run in runs if run.digest]
    return MethodRecord(
        final_scores(verdict, label), preset, _best(runs, verdict, rounds), rounds,
        float(np.median([seconds for run in runs for seconds in run.seconds_per_round])),
        sum(run.compile_seconds for run in runs), sum(run.evaluation_seconds for run in runs),
        Traffic(*(round(sum(sent) / len(runs)) for sent in zip(*(run.bytes for run in runs), strict=True))),
        refused_replies(runs), next(iter(digests), ""), digests, is_bound, is_untuned and not tuned, tuned)


def _warnings(comparison: ComparedMethods) -> list[str]:
    """Replies that did not count, trainings that diverged, bounds that are none, and exact solves of few rows."""
    experiment, verdict, evidence = comparison.experiment, comparison.verdict, comparison.evidence
    lines = [doubt_of_replies(evidence.metrics, label) or refusals(label, refused_replies(runs))
             for label, runs in comparison.runs.items()]
    for label, algorithm in experiment.algorithms.items():
        lines.append(divergences(label, verdict.diverged.get(label, {}), algorithm))
        lines += [collapse_text(label, verdict.collapsed[label])] if label in verdict.collapsed else []
        if evidence.train is not None and isinstance(experiment.model, Model) and not experiment.model.l2:
            shapes = jax.tree.leaves(jax.eval_shape(experiment.model.init, jax.random.key(0)))
            parameters = sum(int(np.prod(leaf.shape)) for leaf in shapes)
            lines.append(exact_solve_warning(label, algorithm, list(experiment.parties), evidence.train, parameters))
    return [*(line for line in lines if line is not None), *bound_warnings(evidence, experiment.algorithms)]


def final_scores(verdict: Verdict, label: str) -> FinalScores:
    """The row of a method in the table of scores."""
    row = verdict.table[verdict.table["method"] == label].iloc[0].drop("method").to_dict()
    return {str(key): int(value) if isinstance(value, int | np.integer) else _finite(value)
            for key, value in row.items()}


def refused_replies(runs: Sequence[MethodRun]) -> dict[str, int]:
    """The number of refused replies of each party, over all seeds."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.refused)
    return dict(counts)


def _data(source: Source, comparison: ComparedMethods) -> DataRecord:
    """The parties, their numbers of samples, and notes for the reader."""
    experiment = comparison.experiment
    data, problem, parties = experiment.data, experiment.problem, list(experiment.parties)
    if isinstance(data, FederatedData):
        train, tested = data.sizes("train"), data.sizes("test").tolist()
        if experiment.number_of_folds > 1:
            fold = next(iter(comparison.results.values())).data
            assert fold is not None
            train, rows = fold.sizes("train"), {site.party: site.test_rows for site in comparison.verdict.sites.sites}
            tested = [rows.get(party, 0) for party in range(len(parties))]
        return DataRecord(data.name, parties, train.tolist(), tested, fingerprint_of(data),
                          [*data.notes, *straggler_notes(experiment), *_ridge_notes(comparison)])
    assert problem is not None
    if not isinstance(problem, SolvedProblem):
        notes = [] if data is None else data.notes
        name = source.problem if data is None else data.name
        return DataRecord(name, parties, np.asarray(problem.sizes).tolist(),
                          notes=[*notes, *straggler_notes(experiment)])
    optimum = problem.optimum(experiment.participation.shares(problem.sizes))
    heterogeneity = float(dissimilarity(problem, optimum).heterogeneity)
    notes = [f"The heterogeneity H, the mean of |grad f_k|^2 at the optimum, is {heterogeneity:.3g}",
             f"The numbers are computed in {experiment.precision}", *straggler_notes(experiment)]
    return DataRecord(source.problem, parties, np.asarray(problem.sizes).tolist(), notes=notes)


def _ridge_notes(comparison: ComparedMethods) -> list[str]:
    """By how much the federated methods shrink their weights, if the comparison chooses it."""
    ridges = {result.model.ridge for result in comparison.results.values() if isinstance(result.model, LinearModel)}
    return [f"federated methods have the ridge {float(ridge):.3g} |W|^2 / 2 in each site's mean loss, chosen by "
            "cross-validation on the training rows of all sites, as the site's own model chooses its ridge"
            for ridge in ridges if ridge]


def _privacy(comparison: ComparedMethods) -> PrivacyRecord | None:
    """Each party's epsilon after the last round, the largest over the seeds; infinite ones are texts."""
    budget = comparison.experiment.privacy
    if budget is None:
        return None
    epsilons = {}
    for label, runs in comparison.runs.items():
        tables = (run.metrics[run.metrics["metric"] == "epsilon"] for run in runs)
        last = [table[table["round"] == table["round"].max()].set_index("party")["value"] for table in tables]
        largest = {party: max(float(of_run.get(party, 0.0)) for of_run in last) for party in last[0].index}
        epsilons[label] = {comparison.experiment.parties[int(party)]: value if np.isfinite(value) else str(value)
                           for party, value in largest.items()}
    return PrivacyRecord(budget.delta, budget.epsilon, epsilons)


def straggler_notes(experiment: Experiment) -> list[str]:
    """Who the stragglers are, and which methods count their work if the methods differ in it."""
    parties, notes = experiment.parties, list[str]()
    for stragglers in tree.parts(experiment.participation, Stragglers):
        notes += [f"{parties[k]} is a straggler: in each round it does a random part of its work"
                  for k in stragglers.parties]
        if stragglers.share:
            notes.append(f"{stragglers.share:.0%} of each round's parties are stragglers")
        if stragglers.work == "drop":
            notes.append("the partial work of stragglers is dropped")
    if note := straggler_policy_note(experiment.algorithms, experiment.participation):
        notes.append(note)
    return notes


def _best(runs: Sequence[MethodRun], verdict: Verdict, rounds: int) -> Best:
    """The round with the best score: the median gap over the seeds, or the mean over the parties and the seeds.

    Without scores, as at the lead of sites that keep theirs, it is the last round.
    """
    import pandas as pd

    metrics, evidence = pd.concat([run.metrics for run in runs]), verdict.evidence
    rows, higher = metrics[metrics["metric"] == evidence.score], evidence.higher_is_better
    if evidence.score == GAP:
        means: pd.Series = rows.groupby("round")["value"].median()
    else:
        by_round = rows[rows["split"] == evidence.split].groupby("round")["value"]
        means = by_round.agg(lambda values: values.mean(skipna=False))
    if not len(means):
        return Best(rounds)
    values = means.fillna(-np.inf if higher else np.inf).to_numpy()
    best = int(values.argmax() if higher else values.argmin())
    return Best(int(means.index[best]), _finite(means.iloc[best]))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
