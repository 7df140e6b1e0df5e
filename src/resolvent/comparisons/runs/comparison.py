"""The outcome of ``compare``: the runs, their judgement, and what is done after the decision."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from typing_extensions import override

from resolvent.comparisons.runs.compared_methods import ComparedMethods
from resolvent.comparisons.study.parts import StudyPart, part_of
from resolvent.comparisons.study.readings import StudyReadings
from resolvent.predict.threshold import Goal
from resolvent.simulator.record.progress import progress_bars

if TYPE_CHECKING:
    from resolvent.comparisons.after.calibrations import Calibrations
    from resolvent.comparisons.after.explanations import Explanations
    from resolvent.comparisons.after.held_out_rows import HeldOutRows
    from resolvent.comparisons.after.refit import Refit
    from resolvent.predict.calibration import CalibrationKind


@dataclass(frozen=True, repr=False)
class Comparison(ComparedMethods, StudyReadings):
    """The outcome of ``rv.compare``: several methods on one federation. It can be saved, refitted and calibrated.

    It is also a study of one data set: ``rv.Study`` has several.
    """

    @classmethod
    def of(cls, compared: ComparedMethods) -> Self:
        """The comparison of these runs."""
        return cls(**{field.name: getattr(compared, field.name) for field in fields(compared)})

    @property
    @override
    def parts(self) -> Mapping[str, StudyPart]:
        experiment = self.experiment
        name = experiment.title or getattr(experiment.data, "name", "") or type(experiment.problem).__name__
        return {name: part_of(self)}

    def refit(self, method: str | None = None, *, rounds: int | None = None, anyway: bool = False,
              folder: Path | str | None = None, progress: bool = True) -> "Refit":
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
            anyway: also train models that were worse on the site's test rows than the predictions that need no
                training; and with ``method`` let every site use this method, also where it was advised to train alone.
            folder: the run folder of this comparison, into which the models are written. ``rv.load`` and ``resolvent
                predict`` then use them.
            progress: show progress on the terminal.

        Raises:
            InputError: no method was chosen and none is named, the method is differentially private, the run has no
                samples, or the table has been changed since.

        Example:
            >>> data, solver = rv.datasets.digits(parties=3), rv.SGD(0.1)
            >>> methods = {"alone": rv.careful_local(solver), "FedAvg": rv.fedavg(solver)}
            >>> comparison = rv.compare(methods, rv.models.logistic(64, 10), data, rounds=2, progress=False)
            >>> refit = comparison.refit(progress=False)
            >>> refit.fitted("party 0").predict(data.party(0)[0][:2]).shape
            (2,)
        """
        from resolvent.comparisons.after.refit import refit_comparison

        with progress_bars("rounds") if progress else contextlib.nullcontext(None) as report:
            return refit_comparison(self, method, rounds, anyway=anyway, progress=report,
                                    folder=None if folder is None else Path(folder))

    def calibrate(self, method: str | None = None, *, sites: Sequence[str] = (),
                  kind: 'CalibrationKind | Literal["auto"]' = "auto", positive: str | None = None,
                  cost_false_negative: float | None = None, cost_false_positive: float | None = None,
                  sensitivity: float | None = None, specificity: float | None = None) -> "Calibrations":
        """Calibrate the probabilities of a method's models on validation rows, and measure them on test rows.

        The kind is chosen for each site by cross-validated log loss among those for which the site has enough
        validation rows; sites with few rows are shrunk to the fit over all sites. With costs, a sensitivity or a
        specificity, each site also gets a threshold: the probability from which on the class ``positive`` is predicted.

        Args:
            method: name of the method; default: for each site the model that it is advised to use.
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
        from resolvent.comparisons.after.calibrations import calibrate

        stated = (cost_false_negative, cost_false_positive, sensitivity, specificity)
        goal = None if stated == (None,) * len(stated) else Goal(*stated)
        return calibrate(self.held_out_rows(method), sites=sites, kind=kind, positive=positive, goal=goal)

    def explain(self, method: str | None = None, *, sites: Sequence[str] = ()) -> "Explanations":
        """What the models of a method rest on: coefficients in the table's units, and permutation importance.

        The importance of a column is by how much the mean loss on a site's test rows grows if the column is exchanged
        between them, with an interval that is paired over the rows.

        Args:
            method: name of the method; default: for each site the model that it is advised to use.
            sites: names of the sites; default: all, and the shared model.

        Raises:
            InputError: there is no such method or site, or the inputs are not columns.
        """
        from resolvent.comparisons.after.explanations import explain_models

        return explain_models(self.held_out_rows(method), sites=sites)

    def held_out_rows(self, method: str | None = None) -> "HeldOutRows":
        """The models of a method with the validation and test rows of their sites, see ``calibrate`` and ``explain``.

        Args:
            method: name of the method; default: for each site the model that it is advised to use.

        Raises:
            InputError: there is no such method, or there are no samples.
        """
        from resolvent.comparisons.after.advised import chosen_method, models_of_sites
        from resolvent.comparisons.after.held_out_rows import choose_method_name, rows_of_results
        from resolvent.comparisons.runs.summary import Source, summarize

        record = summarize(Source.of_program("", self), self)
        name = choose_method_name(method, list(self.results), chosen_method(record))
        return rows_of_results(self.results, name, models_of_sites(record) if method is None else {},
                               self.experiment.data, self.fold_models)

    def save(self, folder: Path | str, *, title: str = "", overwrite: bool = False) -> Path:
        """Write a run folder: models, metrics, summary and report, as ``resolvent run`` does.

        Args:
            folder: a folder that does not exist or is empty.
            title: heading of the report; default: the folder's name.
            overwrite: replace the content of the folder.

        Raises:
            InputError: the folder is in use.
        """
        from resolvent.comparisons.runs.runner import write_run

        return write_run(Path(folder), self, title=title, overwrite=overwrite)
