"""``resolvent tune``: the search of an experiment file, and its folder."""

import hashlib
import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resolvent.comparisons.experiment.binding import bind
from resolvent.comparisons.experiment.experiment_file import Experiment, ExperimentFile
from resolvent.comparisons.experiment.merged_settings import with_choices
from resolvent.comparisons.experiment.yaml_files import write_yaml
from resolvent.comparisons.runs.load import load_start
from resolvent.comparisons.tuning.searching import (
    Criterion,
    ProgressOfSearch,
    Subject,
    TunableMethod,
    Tuned,
    run_search,
)
from resolvent.comparisons.tuning.settings import Search
from resolvent.comparisons.tuning.space import Point, draw_points, space_of
from resolvent.comparisons.tuning.strategies import count_trials
from resolvent.comparisons.tuning.tune import criterion_of
from resolvent.data.federated import FederatedData
from resolvent.data.files.atomic_files import remove_folder, write_text
from resolvent.data.files.folder_lock import locked
from resolvent.errors import InputError, alternatives, quote
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem

if TYPE_CHECKING:
    from resolvent.algorithms.algorithm import Algorithm

TUNED_FILE = "tuned.yaml"
_TABLE, _PARTIES, _PAGE = "trials.csv", "parties.csv", "tuning.html"


def tune_file(file: ExperimentFile, out: Path | None = None, *, resume: bool = False, overwrite: bool = False,
              jobs: int = 1, progress: ProgressOfSearch | None = None) -> tuple[Path, Tuned]:
    """Run the search of an experiment file and write its folder.

    The folder has ``trials.csv`` (a row per trial), ``parties.csv`` (the choice of each party, with ``per_site``),
    ``tuning.html`` (the tables and a picture per method), ``tuned.yaml`` (the experiment with the chosen values, for
    ``resolvent run``) and ``trials`` (a file per finished trial, from which an interrupted search continues).

    Args:
        file: the checked experiment.
        out: the folder; default: ``runs/NAME-tuning``.
        resume: continue the search in the folder; if there is none, it starts from the beginning.
        overwrite: replace the content of the folder.
        jobs: number of trials of a method that run at the same time.
        progress: a function that is called with (label, rounds done, rounds in total).

    Returns:
        The folder and the trials.

    Raises:
        InputError: the file has no search, it has a privacy budget, the folder is in use, or the parts do
            not fit together.
    """
    settings = file.bound.settings()
    if (settings["folds"] or 1) > 1:
        raise InputError(f"{file.location('folds')}: folds: {settings['folds']}: the search is part of each fold, and "
                         "`resolvent run` does this. To choose one set of values from all validation rows, set folds=1")
    settings["folds"] = 1  # also of the tuned file: in other folds, its values have read the rows that are tested
    if "search" not in file.bound.parts:
        raise InputError(f"{file.location('search')}: search: missing; state what is searched, such as search: {{over: "
                         "{fedprox: {mu: [0.01, 0.1, 1]}}}")
    _check_no_privacy(file)
    folder = Path("runs") / f"{file.name}-tuning" if out is None else out
    with locked(folder):
        if folder.exists() and not resume:
            if not overwrite:
                raise InputError(f"{folder} exists: continue the search with --resume, replace it with --overwrite, or "
                                 "choose another folder with --out")
            remove_folder(folder)
        experiment = file.build()
        search = experiment.search
        assert search is not None
        with _located(file):
            methods = _methods(settings, search)
        subject = experiment.model if experiment.problem is None else experiment.problem
        assert isinstance(subject, Model | Problem)
        data = experiment.data if isinstance(experiment.data, FederatedData) else None
        with file.precision(), _located(file):
            criterion = criterion_of(subject, data, search.by or experiment.decide_by, experiment.metrics)
            tuned = run_search(search, methods, _subject(experiment, subject, data), criterion,
                               rounds=experiment.rounds, folder=folder, identity=_identity(file), jobs=jobs,
                               progress=progress)
            _write(folder, tuned, settings, experiment.title or file.name)
    return folder, tuned


class FoldSearch(NamedTuple):
    """A search that runs inside each fold of a comparison, on its training and validation samples.

    Attributes:
        methods: the methods with values to choose, by label.
        criterion: the metric by which trials are compared.
        experiment: the experiment, whose samples are replaced by those of a fold.
    """

    search: Search
    methods: dict[str, TunableMethod]
    criterion: Criterion
    experiment: Experiment
    identity: str

    @property
    def rounds(self) -> int:
        """The rounds of all trials of one fold, at most."""
        trials = sum(count_trials(self.search, method.space, label) for label, method in self.methods.items())
        return trials * (self.search.rounds or self.experiment.rounds) * self.search.seeds

    def choose(self, data: FederatedData, folder: Path | None, progress: ProgressOfSearch | None) -> dict[str, Point]:
        """Label -> the values that are best on the validation samples of a fold.

        Args:
            folder: stores the finished trials, so that an interrupted run continues after them.
            progress: a function that is called with (label, rounds done, rounds in total).
        """
        experiment = self.experiment
        assert isinstance(experiment.model, Model)
        subject = _subject(experiment, experiment.model, data)
        tuned = run_search(self.search, self.methods, subject, self.criterion, rounds=experiment.rounds, folder=folder,
                           identity=self.identity, progress=progress)
        return {label: trial.point for label, trial in tuned.best.items()}


def fold_search(file: ExperimentFile, experiment: Experiment) -> FoldSearch | None:
    """The search of an experiment file that has one; None without folds."""
    search = experiment.search
    assert search is not None
    if experiment.folds == 1 or not isinstance(experiment.data, FederatedData):
        return None
    _check_no_privacy(file)
    with _located(file):
        methods = _methods(file.bound.settings(), search)
        assert isinstance(experiment.model, Model)
        criterion = criterion_of(experiment.model, experiment.data, search.by or experiment.decide_by,
                                 experiment.metrics)
    return FoldSearch(search, methods, criterion, experiment, _identity(file))


def _subject(experiment: Experiment, subject: Model | Problem, data: FederatedData | None) -> Subject:
    start = load_start(experiment.start, subject, is_private=False)
    return Subject(subject, data, experiment.of_trial(start=start), experiment.parties)


def _identity(file: ExperimentFile) -> str:
    content = json.dumps([file.bound.settings(), file.bound.codes()], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _check_no_privacy(file: ExperimentFile) -> None:
    if "privacy" in file.bound.parts:
        raise InputError(f"{file.location('privacy')}: privacy: a search cannot keep a budget: every trial trains on "
                         "the same samples and spends again, and trials are compared on validation samples without "
                         "noise. Search with samples that need no protection, or without privacy")


def _located(file: ExperimentFile) -> AbstractContextManager[None]:
    """A context that says where the setting of a search is that an error is about."""
    return file.location.of_errors("search", within=("over", "strategy", "by:"))


def _methods(settings: dict[str, Any], search: Search) -> dict[str, TunableMethod]:
    """The methods to search, by label. The first candidate of each is built to check the names of the parameters."""
    labels = list(settings["algorithms"])
    for label in search.over:
        if label != "*" and label not in labels:
            raise InputError(f"over.{label}: there is no algorithm {quote(label)}{alternatives(label, labels)}")
    methods = {}
    for label in labels:
        space = space_of(search.over, label)
        if space:
            methods[label] = TunableMethod(space, lambda point, label=label: _build(settings, label, point))  # type: ignore[misc]
            methods[label].make(draw_points(space, search.seed, 1)[0])
    return methods


def _build(settings: dict[str, Any], label: str, point: Point) -> "Algorithm":
    only = {**settings, "algorithms": {label: settings["algorithms"][label]}}
    bound = bind(Experiment, with_choices(only, {label: point}))
    algorithm: Algorithm = bound.labelled("algorithms")[label].build(solver=bound.part("solver").build())
    return algorithm


def _write(folder: Path, tuned: Tuned, settings: dict[str, Any], title: str) -> None:
    from resolvent.comparisons.tuning.page import write_tuning_page  # imports matplotlib and jinja2, which take long

    write_text(folder / _TABLE, tuned.table.to_csv(index=False))
    if tuned.search.per_site:
        write_text(folder / _PARTIES, party_table(tuned).to_csv(index=False))
    write_tuning_page(folder / _PAGE, tuned, title)
    chosen = with_choices(settings, {label: trial.point for label, trial in tuned.best.items()})
    write_text(folder / TUNED_FILE, write_yaml({key: value for key, value in chosen.items() if key != "search"}))


def party_table(tuned: Tuned) -> Any:
    """A row per method and party: the trial that the party chooses, and the metric on its validation and test samples.

    ``test`` is the metric of the chosen trial, ``test common`` that of the trial that is best for all parties together.
    """
    import pandas as pd

    rows = []
    for label, of_parties in tuned.best_of_parties.items():
        common = tuned.best[label]
        rows += [{"method": label, "party": party, "trial": trial.number, **trial.point,
                  "validation": trial.reading.of_parties.get(party), "test": trial.reading.test.get(party),
                  "test common": common.reading.test.get(party)} for party, trial in of_parties.items()]
    return pd.DataFrame(rows)
