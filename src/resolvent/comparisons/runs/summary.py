"""``summary.json``: what ran, on what, and with what outcome."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from resolvent.algorithms.combinators.pooled_data import uses_pooled_data
from resolvent.algorithms.participation import Stragglers
from resolvent.comparisons.experiment.checks import straggler_policy_note
from resolvent.comparisons.experiment.experiment_file import Experiment, ExperimentFile
from resolvent.comparisons.judgement.advice import SiteAdvice
from resolvent.comparisons.judgement.convergence import bound_warnings, exact_solve_warning
from resolvent.comparisons.judgement.divergence import divergences
from resolvent.comparisons.judgement.metrics import GAP
from resolvent.comparisons.judgement.sites import Means, SiteJudgement
from resolvent.comparisons.judgement.verdict import Verdict, refusals, used_method
from resolvent.comparisons.runs.compared_methods import ComparedMethods, MethodRun
from resolvent.comparisons.runs.environment import device, versions
from resolvent.comparisons.runs.settings_text import settings_text
from resolvent.data.federated import FederatedData
from resolvent.data.files.digests import check_files, file_digests, read_sealed, write_sealed
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.predict.intervals import LEVEL
from resolvent.problem.models import Model
from resolvent.problem.problem import SolvedProblem
from resolvent.simulator.checkpoint.fingerprint import fingerprint_of
from resolvent.simulator.record.diagnostics import dissimilarity

if TYPE_CHECKING:
    import pandas as pd

EXPERIMENT_FILE, METRICS_FILE, SUMMARY_FILE = "experiment.yaml", "metrics.parquet", "summary.json"
ROWS_FILE = "test_rows.parquet"
_ADVICE = "run the experiment again"


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
        parts, settings = file.bound.parts, file.bound.settings()
        return cls(file.name, settings, {label: file.preset_of(label) for label in settings["algorithms"]},
                   file.part_name("problem").replace("_", " ") if "problem" in parts else "", code=file.bound.codes())

    @classmethod
    def of_program(cls, name: str, comparison: ComparedMethods, title: str = "") -> "Source":
        """The source of a comparison that a program made."""
        experiment = comparison.experiment
        presets = {label: type(algorithm).__name__ for label, algorithm in experiment.algorithms.items()}
        return cls(name, None, presets, type(experiment.problem).__name__, title, program=settings_text(experiment))


def write_summary(folder: Path, summary: dict[str, Any], files: Sequence[str]) -> dict[str, Any]:
    """Write ``summary.json`` into a run folder, with the digests of these files and of itself.

    Returns:
        The summary as ``read_summary`` returns it.
    """
    write_sealed(folder / SUMMARY_FILE, summary | {"files": file_digests(folder, files)})
    return read_summary(folder)


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished run, whose experiment and metrics are those that the run wrote.

    Raises:
        InputError: there is no finished run in the folder, or one of these files is damaged.
    """
    path = folder / SUMMARY_FILE
    if not path.is_file():
        raise InputError(f"there is no finished run in {folder}: {path} is missing; name a folder that `resolvent run` "
                         "wrote")
    summary = read_sealed(path, _ADVICE)
    files = summary.get("files", {})
    if any("advice" not in site for site in summary.get("sites", [])):
        raise InputError(f"{folder} was written by an earlier version of resolvent, whose advice followed another "
                         f"rule: {_ADVICE}")
    names = [METRICS_FILE, *([EXPERIMENT_FILE] if summary.get("experiment") is not None else [])]
    check_files(folder, {name: files.get(name, "") for name in names}, _ADVICE)
    return summary


def summarize(source: Source, comparison: ComparedMethods) -> dict[str, Any]:
    """The summary of a comparison, as plain data."""
    experiment, verdict = comparison.experiment, comparison.verdict
    return {
        "name": source.name,
        "title": experiment.title or source.title or source.name,
        "warnings": _warnings(comparison),
        "experiment": source.settings,
        "code": dict(source.code),
        "program": source.program,
        "seed": experiment.seed,
        "seeds": list(comparison.seeds),
        "folds": experiment.folds,
        "rounds": experiment.rounds,
        **judgement(verdict),
        "coefficients": comparison.evidence.coefficients,
        "data": _federation(source, comparison),
        "methods": {label: _method(source.presets[label], label, comparison) for label in comparison.results},
        "privacy": _privacy(comparison),
        "versions": versions(),
        "device": device(),
    }


def decided(comparison: ComparedMethods) -> dict[str, Any]:
    """The part of a summary that says which model each site should use."""
    data = comparison.experiment.data
    return {**judgement(comparison.verdict), "methods": {
        label: {"tuned": [run.point for run in runs if run.point]} for label, runs in comparison.runs.items()},
            "data": {"parties": list(comparison.experiment.parties), **(
                {"train": data.sizes("train").tolist()} if isinstance(data, FederatedData) else {})}}


def _warnings(comparison: ComparedMethods) -> list[str]:
    """Replies that did not count, trainings that diverged, bounds that are none, and exact solves of few rows."""
    experiment, verdict, evidence = comparison.experiment, comparison.verdict, comparison.evidence
    lines = [refusals(label, _refused(runs)) for label, runs in comparison.runs.items()]
    for label, algorithm in experiment.algorithms.items():
        lines.append(divergences(label, verdict.diverged.get(label, {}), algorithm))
        if evidence.train is not None and isinstance(experiment.model, Model) and not experiment.model.l2:
            shapes = jax.tree.leaves(jax.eval_shape(experiment.model.init, jax.random.key(0)))
            parameters = sum(int(np.prod(leaf.shape)) for leaf in shapes)
            lines.append(exact_solve_warning(label, algorithm, list(experiment.parties), evidence.train, parameters))
    return [*(line for line in lines if line is not None), *bound_warnings(evidence, experiment.algorithms)]


def judgement(verdict: Verdict) -> dict[str, Any]:
    """A verdict as plain data, without the numbers of single methods."""
    return {
        "finding": verdict.finding,
        "score": verdict.score,
        "split": verdict.split,
        "higher_is_better": verdict.higher_is_better,
        "alone": verdict.alone,
        "baseline": verdict.baseline,
        "level": LEVEL if verdict.sites.sites else None,
        "diverged": {method: dict(sites) for method, sites in verdict.diverged.items()},
        "converged": {method: part.has_converged for method, part in verdict.convergence.items()},
        "rounds_to_try": {method: part.rounds for method, part in verdict.convergence.items() if part.rounds},
        "decides": verdict.decides,
        "sites": [plain_site(site) | {"advice": _plain_advice(verdict, site.advice)} for site in verdict.sites.sites],
        "federation": _plain_federation(verdict),
        "means": None if verdict.sites.means is None else _means_of_sites(verdict.sites.means),
    }


def final_scores(verdict: Verdict, label: str) -> dict[str, Any]:
    """The row of a method in the table of scores."""
    row = verdict.table[verdict.table["method"] == label].iloc[0].drop("method").to_dict()
    return {str(key): _json_number(value) for key, value in row.items()}


def _plain_advice(verdict: Verdict, advice: SiteAdvice | None) -> dict[str, Any] | None:
    if advice is None:
        return None
    assert verdict.alone is not None
    assert verdict.sites.federation is not None
    return {"use": used_method(advice, verdict.sites.federation.method, verdict.alone), "answer": advice.answer,
            "reason": advice.reason, "model": advice.model, "probability": _json_number(advice.probability),
            "expected": _numbers(advice.expected), "own": _numbers(advice.own), "further_rows": advice.further_rows,
            "settled_by": advice.settled_by, "strange": _json_number(advice.strange)}


def _plain_federation(verdict: Verdict) -> dict[str, Any] | None:
    """The advice to the federation; a site that should not use its shared model is named."""
    federation = verdict.sites.federation
    if federation is None:
        return None
    return {"method": federation.method, "about": federation.about, "gain": _json_number(federation.gain),
            "values": {method: _json_number(value) for method, value in federation.values.items()},
            "not_shared": [site.name for site, is_not in zip(verdict.sites.sites, federation.not_shared, strict=True)
                           if is_not]}


def plain_site(site: SiteJudgement) -> dict[str, Any]:
    """The judgement of a site, without its advice; an interval is [value, low, high]."""
    return {
        "name": site.name,
        "test_rows": site.test_rows,
        "rarest_class": site.rarest_class,
        "has_few_rows": site.has_few_rows,
        "scores": {method: _numbers(score) for method, score in site.scores.items()},
        "gains": {method: _numbers(gain) for method, gain in site.gains.items()},
        "variances": {method: _json_number(variance) for method, variance in site.variances.items()},
        "unit": _json_number(site.facts.unit),
        "losses": {method: _numbers([loss])[0] for method, loss in site.facts.losses.items()},
        "evidence": {method: {model: _numbers(numbers) for model, numbers in of_method.items()}
                     for method, of_method in site.facts.evidence.items()},
        "calibrations": {method: {name: _numbers(interval) for name, interval in calibration._asdict().items()}
                         for method, calibration in site.facts.calibrations.items()},
        "columns": {method: [[name, *_numbers(numbers)] for name, *numbers in found]
                    for method, found in site.facts.columns.items()},
    }


def _means_of_sites(means: Means) -> dict[str, dict[str, Any]]:
    return {name: {method: _numbers(interval) for method, interval in part.items()}
            for name, part in means._asdict().items()}


def _numbers(numbers: Sequence[float]) -> list[float | int | str | None]:
    """An interval, or other numbers, as JSON can hold them; infinite numbers are texts."""
    return [str(end) if np.isinf(end) else _json_number(end) for end in numbers]


def _refused(runs: Sequence[MethodRun]) -> dict[str, int]:
    """The number of refused replies of each party, over all seeds."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.refused)
    return dict(counts)


def _federation(source: Source, comparison: ComparedMethods) -> dict[str, Any]:
    """The parties, their numbers of samples, and notes for the reader."""
    experiment = comparison.experiment
    data, problem, parties = experiment.data, experiment.problem, list(experiment.parties)
    if isinstance(data, FederatedData):
        train, tested = data.sizes("train"), data.sizes("test").tolist()
        if experiment.folds > 1:
            fold = next(iter(comparison.results.values())).data
            assert fold is not None
            train, rows = fold.sizes("train"), {site.party: site.test_rows for site in comparison.verdict.sites.sites}
            tested = [rows.get(party, 0) for party in range(len(parties))]
        return {"name": data.name, "parties": parties, "train": train.tolist(),
                "test": tested, "digest": fingerprint_of(data),
                "notes": [*data.notes, *straggler_notes(experiment)]}
    assert problem is not None
    if not isinstance(problem, SolvedProblem):
        notes = [] if data is None else data.notes
        name = source.problem if data is None else data.name
        return {"name": name, "parties": parties, "train": np.asarray(problem.sizes).tolist(),
                "notes": [*notes, *straggler_notes(experiment)]}
    optimum = problem.optimum(experiment.participation.shares(problem.sizes))
    heterogeneity = float(dissimilarity(problem, optimum).heterogeneity)
    notes = [f"The heterogeneity H, the mean of |grad f_k|^2 at the optimum, is {heterogeneity:.3g}",
             f"The numbers are computed in {experiment.precision}", *straggler_notes(experiment)]
    return {"name": source.problem, "parties": parties, "train": np.asarray(problem.sizes).tolist(), "notes": notes}


def _privacy(comparison: ComparedMethods) -> dict[str, Any] | None:
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
    return {"delta": budget.delta, "limit": budget.epsilon, "epsilons": epsilons}


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


def _method(preset: str, label: str, comparison: ComparedMethods) -> dict[str, Any]:
    verdict, runs = comparison.verdict, comparison.runs[label]
    higher = verdict.higher_is_better
    means = _means(runs, verdict)
    values = means.fillna(-np.inf if higher else np.inf).to_numpy()
    best = int(values.argmax() if higher else values.argmin())
    facts = [run.facts for run in runs]
    return {
        "preset": preset,
        "is_bound": uses_pooled_data(comparison.experiment.algorithms[label]),
        "final": final_scores(verdict, label),
        "best": {"round": int(means.index[best]), "mean": _json_number(means.iloc[best])},
        "rounds": comparison.experiment.rounds,
        "seconds_per_round": float(np.median([s for f in facts for s in f["seconds_per_round"]])),
        "compile_seconds": sum(f["seconds"]["compile"] for f in facts),
        "evaluation_seconds": sum(f["seconds"]["evaluation"] for f in facts),
        "bytes": {way: round(sum(f["bytes"][way] for f in facts) / len(facts)) for way in ("down", "up")},
        "refused": _refused(runs),
        "digest": runs[0].digest,
        "digests": [run.digest for run in runs],
        **({"tuned": [run.point for run in runs]} if runs[0].point is not None else {}),
    }


def _means(runs: Sequence[MethodRun], verdict: Verdict) -> "pd.Series":
    """The score by round: the median gap over the seeds, or the mean over the parties and the seeds."""
    import pandas as pd

    metrics = pd.concat([run.metrics for run in runs])
    rows = metrics[metrics["metric"] == verdict.score]
    if verdict.score == GAP:
        gaps: pd.Series = rows.groupby("round")["value"].median()
        return gaps
    by_round = rows[rows["split"] == verdict.split].groupby("round")["value"]
    means: pd.Series = by_round.agg(lambda values: values.mean(skipna=False))
    return means


def _json_number(value: Any) -> float | int | None:
    """A number as JSON can hold it; None if it is not finite."""
    if isinstance(value, int | np.integer):
        return int(value)
    return float(value) if np.isfinite(value) else None


def as_number(value: float | str | None) -> float:
    """A number of the summary, in which infinite numbers are texts and undefined numbers are null."""
    return float("nan") if value is None else float(value)


def sign_of(interval: list[Any]) -> int:
    """1 if an interval is above zero, -1 if it is below, 0 otherwise."""
    low, high = as_number(interval[1]), as_number(interval[2])
    return int(low > 0) - int(high < 0)


def score_rows(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of the table of scores: the methods, and the predictions that need no training."""
    rows: dict[str, Any] = dict(summary["methods"])
    baseline, sites = summary.get("baseline"), summary.get("sites", [])
    if baseline is None:
        return rows
    values = np.array([as_number(site["scores"][baseline][0]) for site in sites])
    values = values[np.isfinite(values)]
    if not len(values):
        return rows
    higher = summary["higher_is_better"]
    final = {"mean": values.mean(), "p10": np.quantile(values, 0.1 if higher else 0.9),
             "worst": values.min() if higher else values.max(),
             **dict.fromkeys(("global mean", "global p10", "global worst"))}
    if summary["alone"] is not None:
        signs = [sign_of(gain) for site in sites if (gain := site["gains"][baseline])[0] is not None]
        final |= {"better": signs.count(1), "level": signs.count(0), "worse": signs.count(-1)}
    return {**rows, baseline: {"final": final}}
