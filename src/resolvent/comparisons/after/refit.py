"""``resolvent model refit``: the chosen method, trained again on all rows of each site.

The models of a run were trained on the training rows, so that the other rows could choose and judge the method. Once
this is done, those rows can train too. The performance that is reported stays the one that was measured before, on rows
that no model had seen.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from resolvent.algorithms.combinators.ridge_path import uses_held_out
from resolvent.comparisons.after.refit_folder import write_refit
from resolvent.comparisons.after.refit_plan import RefitPlan, check_can_be_refitted, plan_refit
from resolvent.comparisons.experiment.checks import check_same_data
from resolvent.comparisons.experiment.experiment_file import Experiment, ExperimentFile
from resolvent.comparisons.runs.compared_methods import ComparedMethods, ProgressOfMethod
from resolvent.comparisons.runs.comparison_runs import ignore_progress
from resolvent.comparisons.runs.load import load_start
from resolvent.comparisons.runs.record import EXPERIMENT_FILE, RunRecord, read_metrics, read_record
from resolvent.comparisons.runs.shared_ridge import RIDGE, has_shared_ridge, shared_ridge, with_ridge
from resolvent.comparisons.runs.summary import Source, summarize
from resolvent.data.federated import SPLITS, FederatedData
from resolvent.data.partition.splits import encode_by_all_rows, join_splits
from resolvent.errors import InputError, quote
from resolvent.predict.fitted import Fitted
from resolvent.problem.models.model import Model
from resolvent.simulator.record.result import Result
from resolvent.simulator.run import simulate


@dataclass(frozen=True, repr=False)
class Refit:
    """Methods that were trained again on all rows.

    Attributes:
        plan: the chosen method, its number of rounds, and the method of each site.
        results: label -> the result of each method that a site uses.
        rows: label -> site -> number of its training rows, and of all its rows.
    """

    plan: RefitPlan
    results: dict[str, Result]
    rows: dict[str, dict[str, tuple[int, int]]]

    def __repr__(self) -> str:
        rounds = ", ".join(f"{label} ({rounds} rounds)" for label, rounds in self.plan.rounds.items())
        return f"Refit({rounds}; {len(self.plan.use)} sites)"

    def fitted(self, site: int | str) -> Fitted:
        """The model that a site uses, by its name or its number: its personal model of its method.

        Raises:
            InputError: there is no such site.
        """
        names = [*next(iter(self.rows.values()))]
        name = names[site] if isinstance(site, int) and 0 <= site < len(names) else site
        if name in self.plan.against and name not in self.plan.use:
            raise InputError(f"{name} has no model: {self.plan.against[str(name)]}. anyway=True trains it nevertheless")
        if name not in self.plan.use:
            raise InputError(f"there is no site {quote(site)}; there are {', '.join(names)}")
        result = self.results[self.plan.use[str(name)]]
        return replace(result.fitted(), site=str(name)) if name in self.plan.shared else result.fitted(name)


def refit_run(run: Path, method: str | None = None, rounds: int | None = None, *, anyway: bool = False,
              progress: ProgressOfMethod | None = None) -> RefitPlan:
    """Train the chosen method of a run folder again on all rows, and write the models into the folder.

    Args:
        run: a folder that ``resolvent run`` wrote.
        rounds: number of rounds; default: by the validation scores.
        anyway: see ``plan_refit``.
        progress: a function that is called with (label, rounds done, rounds in total).
    """
    record = read_record(run)
    if record.run:
        raise InputError(f"{run} is the run of a federation, whose rows are at the sites: name the lead's kit, and "
                         "the sites train again")
    if record.experiment is None:
        raise InputError(f"{run} is the run of a program, whose data and parts are not in the folder: call "
                         "comparison.refit(folder=...) in the program")
    plan = plan_refit(record, read_metrics(run), method, rounds, anyway=anyway)
    file = ExperimentFile.load(str(run / EXPERIMENT_FILE))
    with file.precision():
        experiment = file.build()
        _check_data(run, record, experiment)
        _write(run, _train(experiment, plan, progress))
    return plan


def refit_comparison(comparison: ComparedMethods, method: str | None = None, rounds: int | None = None, *,
                     anyway: bool = False, folder: Path | None = None,
                     progress: ProgressOfMethod | None = None) -> Refit:
    """Train the chosen method of a comparison again on all rows, see ``Comparison.refit``."""
    data = comparison.experiment.data
    if not isinstance(data, FederatedData):
        raise _no_samples()
    plan = plan_refit(summarize(Source.of_program("", comparison), comparison), comparison.metrics, method, rounds,
                      anyway=anyway)
    refit = _train(comparison.experiment, plan, progress)
    if folder is not None:
        digests = {label: method.digest for label, method in read_record(folder).methods.items()}
        if digests != {label: result.digest for label, result in comparison.results.items()}:
            raise InputError(f"the run in {folder} is another one than this comparison: give the folder to which "
                             "compare(out=...) or Comparison.save wrote it")
        _write(folder, refit)
    return refit


def _check_data(run: Path, record: RunRecord, experiment: Experiment) -> None:
    """Refuse data that are not those of the run."""
    data = experiment.data
    if not isinstance(data, FederatedData):
        raise _no_samples()
    check_same_data(run, record.data.digest, data, "restore the data, or run the experiment again, and refit that run")


def _no_samples() -> InputError:
    return InputError("the run is on prices or on a problem of its own, which has no rows that were held out: there is "
                      "nothing to train again")


def _train(experiment: Experiment, plan: RefitPlan, progress: ProgressOfMethod | None) -> Refit:
    """Run each method of the plan on the rows of all splits."""
    data, model = experiment.data, experiment.model
    assert isinstance(data, FederatedData)
    assert isinstance(model, Model)
    for label in plan.rounds:
        check_can_be_refitted(label, experiment.algorithms[label])
    encoded = encode_by_all_rows(data)
    options = experiment.of_trial(start=load_start(experiment.start, model, is_private=False), clock=None)
    results, rows, report = {}, {}, progress or ignore_progress
    if has_shared_ridge(experiment, encoded):
        report(RIDGE, 0, 1)
    for label, rounds in plan.rounds.items():
        report(label, 0, rounds)
    for number, (label, rounds) in enumerate(plan.rounds.items()):
        algorithm = experiment.algorithms[label]
        # A method that chooses by validation rows needs them again: a choice among models that have seen the rows
        # would always prefer the one that fits them most closely.
        samples = join_splits(encoded, ("validation",) if uses_held_out(algorithm, model) else ())
        ridge = shared_ridge(experiment, samples, experiment.seed, None if number else partial(report, RIDGE))
        subject = with_ridge(model, algorithm, ridge)
        results[label] = simulate(algorithm, subject, samples, rounds=rounds, seed=experiment.seed,
                                  evaluate_every=rounds, name=label, progress=partial(report, label), **options)
        total = np.sum([data.sizes(split) for split in SPLITS], axis=0)
        rows[label] = dict(zip(data.parties, zip(samples.sizes().tolist(), total.tolist(), strict=True), strict=True))
    return Refit(plan, results, rows)


def _write(run: Path, refit: Refit) -> None:
    models = {label: result.saved_models for label, result in refit.results.items()}
    write_refit(run, refit.plan, models, refit.rows)
