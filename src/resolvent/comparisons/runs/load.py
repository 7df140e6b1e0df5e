"""``load``: a trained model, or a saved result, from a folder."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from resolvent.arguments import checked
from resolvent.comparisons.runs.record import EXPERIMENT_FILE, SUMMARY_FILE, RunRecord, read_record
from resolvent.data.files.digests import check_files
from resolvent.data.files.folder_lock import check_names
from resolvent.errors import InputError, nearest, quote, shorten
from resolvent.predict.fitted import Fitted
from resolvent.problem.models.model import Model
from resolvent.simulator.record.model_folder import NOTE_FILE, ModelFolder
from resolvent.simulator.record.saved_result import RESULT_FILE, SavedResult

if TYPE_CHECKING:
    from resolvent.comparisons.after.refit_folder import RefitFolder


@overload
def load(path: Path | str, *, method: str, site: int | str | None = None, model: Model | None = None,
         before_refit: bool = False, raw: bool = False) -> Fitted: ...
@overload
def load(path: Path | str, *, method: str | None = None, site: int | str, model: Model | None = None,
         before_refit: bool = False, raw: bool = False) -> Fitted: ...
@overload
def load(path: Path | str, *, model: Model | None = None) -> SavedResult: ...
@checked
def load(path: Path | str, *, method: str | None = None, site: int | str | None = None,
         model: Model | None = None, before_refit: bool = False, raw: bool = False) -> Fitted | SavedResult:
    """Load a trained model from a run folder, or a result that ``Result.save`` wrote.

    With a method or a site it is the model of that method: the personal model of the site, or without a site the shared
    model. With neither it is the saved result.

    If the methods of a run were trained again (``resolvent model refit``), it is the model that was trained on all
    rows, and
    without a method it is that of the method which the site uses. The ``provenance`` of the model says which rows it
    has seen.

    Args:
        path: a folder that ``resolvent run`` or ``Result.save`` wrote, or one folder of its ``models``.
        method: name of a method of the run; default: the one that the site is advised to use.
        site: name or id of a party.
        model: the model of the run, if it is neither one of the library's nor named in the experiment file.
        before_refit: load the model that was trained on the training rows only.
        raw: leave out the calibration and the threshold that ``resolvent model calibrate`` has stored with the model.

    Raises:
        InputError: there is no such folder, method or site; a file is damaged; or the model is needed.

    Example:
        >>> fitted = rv.load("outputs/hospitals", method="fedavg")  # doctest: +SKIP
    """
    folder = Path(path).expanduser()
    check_names(folder)
    if method is None and site is None:
        if (folder / RESULT_FILE).is_file():
            return SavedResult(folder, model)
        raise InputError(f"{folder}: name a method, {_choices(_methods(folder))}, and a site for its personal model")
    fitted = load_fitted(folder, method, site, model, before_refit=before_refit)
    return fitted.raw if raw else fitted


def load_fitted(folder: Path, method: str | None, site: int | str | None, model: Model | None = None, *,
                before_refit: bool = False) -> Fitted:
    """The model of a method: the personal one of a site, or the shared one.

    Args:
        folder: the folder of a run or of a saved result, or one folder of its ``models``.
        method: name of the method; None: the only one.
        site: name or id of a party; None: the shared model.
        model: the model of the run; None: it is built from the folder.
        before_refit: the model of the run, not the one that was trained again.
    """
    models, is_shared = model_of_site(folder, method, site, before_refit=before_refit)
    if model is None and not models.has_description and (folder / EXPERIMENT_FILE).is_file():
        model = _model_of_experiment(folder / EXPERIMENT_FILE, models)
    if is_shared:
        assert site is not None
        name = models.parties[models.index(site)]
        fitted = models.adjust(replace(models.fitted(None, model).raw, site=name))
    else:
        fitted = models.fitted(site, model)
    record, refit = _refit_of(folder, before_refit=before_refit)
    if record is None or record.split != "test":
        return fitted
    from resolvent.comparisons.after.refit_folder import provenance

    has_refit = refit is not None and models.method in refit.models
    # No row is left to which a calibration of a model that was trained again could be fitted.
    fitted = models_of(folder, models.method, before_refit=True).adjust(fitted) if has_refit else fitted
    return replace(fitted, provenance=provenance(record, refit if has_refit else None, models.method, fitted.site))


def models_of(folder: Path, method: str | None, *, before_refit: bool = False) -> ModelFolder:
    """The models of a method.

    Args:
        folder: the folder of a run or of a saved result, or one folder of its ``models``.
        method: name of a method; None: the one that the federation should run, or the only one.
        before_refit: the models of the run, not those that were trained again.
    """
    return model_of_site(folder, method, None, before_refit=before_refit)[0]


def model_of_site(folder: Path, method: str | None, site: int | str | None, *,
                  before_refit: bool = False) -> tuple[ModelFolder, bool]:
    """The models of the method that a site uses, and whether the site uses the shared one of them.

    Args:
        folder: see ``models_of``.
        method: name of a method; None: the one that the site is advised to use.
        site: the name or the number of a site; None: the shared model of the federation's method.

    Raises:
        InputError: there is no such method; or none is named, and no model of the site is worth using.
    """
    check_names(folder)
    methods, (record, refit) = _methods(folder), _refit_of(folder, before_refit=before_refit)
    is_shared = False
    if refit is not None:
        methods |= refit.models
    if method is None and record is not None and len(methods) > 1:
        method, is_shared = _advised(record, refit, site)
    if method is None and len(methods) > 1:
        raise InputError(f"{folder} has several methods: name {_choices(methods)}")
    name = next(iter(methods)) if method is None else method
    if name not in methods:
        raise InputError(f"{folder} has no method {quote(name)}; there are {shorten(', '.join(methods))}"
                         f"{nearest(name, methods)}")
    return ModelFolder(methods[name]), is_shared


def _advised(record: RunRecord, refit: "RefitFolder | None", site: int | str | None) -> tuple[str | None, bool]:
    """The method that a site is advised to use, and whether it is its shared model; None if no method was chosen."""
    from resolvent.comparisons.after.advised import chosen_method, models_of_sites, nothing_to_use

    names = record.data.parties
    name = names[site] if isinstance(site, int) and 0 <= site < len(names) else site
    chosen = chosen_method(record) if refit is None else refit.plan.method
    if name not in names or chosen is None:
        return chosen, False
    if refit is not None:
        plan = refit.plan
        if name not in plan.use:
            raise InputError(nothing_to_use(str(name), plan.against.get(str(name), "the refit has no model of it")))
        return plan.use[str(name)], name in plan.shared
    model = models_of_sites(record)[str(name)]
    if model.against:
        raise InputError(nothing_to_use(str(name), model.against))
    return model.method, model.is_shared


def load_start(start: Any, subject: Any, *, is_private: bool) -> Any:
    """What a run starts from: a shared model; of a private run, the saved result, whose releases count.

    Args:
        start: a folder, see ``load_fitted``; what a program gives is used as it is.
        subject: the model, or the problem, that the run trains.
        is_private: whether the run that starts has a privacy budget.
    """
    if not isinstance(start, str | Path):
        return start
    folder, model = Path(start).expanduser(), subject if isinstance(subject, Model) else None
    if is_private and (folder / RESULT_FILE).is_file():
        return SavedResult(folder, model)
    if is_private and any(_has_budget(run) for run in (folder, folder.parent, folder.parent.parent)):
        raise InputError(f"start: the run in {folder} spent privacy, and its models have no account that this run "
                         "could continue: name the folder of a saved result (Result.save), or leave privacy out")
    # A model that was trained again has seen the test rows, by which the run that starts judges its methods.
    return load_fitted(folder, None, None, model, before_refit=True)


def _refit_of(folder: Path, *, before_refit: bool) -> "tuple[RunRecord | None, RefitFolder | None]":
    """The record of a run folder and its refit; None for a folder that has none."""
    if not (folder / SUMMARY_FILE).is_file():
        return None, None
    from resolvent.comparisons.after.refit_folder import RefitFolder

    return read_record(folder), None if before_refit else RefitFolder.of_run(folder)


def _has_budget(folder: Path) -> bool:
    """Whether a run folder, or a saved result, is that of a run with a privacy budget."""
    if (folder / RESULT_FILE).is_file():
        return SavedResult(folder).privacy_account is not None
    return (folder / SUMMARY_FILE).is_file() and read_record(folder).privacy is not None


def _methods(folder: Path) -> dict[str, Path]:
    """The folder of each method's models, by its name."""
    if (folder / NOTE_FILE).is_file():
        folders = [folder]
    elif (folder / RESULT_FILE).is_file():
        SavedResult(folder)  # it checks that the models are those of the result
        folders = [folder / "models"]
    elif (folder / SUMMARY_FILE).is_file():
        from resolvent.comparisons.experiment.checks import folder_name

        record = read_record(folder)
        names = [f"models/{folder_name(label)}" for label in record.methods]
        notes = {f"{name}/{NOTE_FILE}": record.files.get(f"{name}/{NOTE_FILE}", "") for name in names}
        check_files(folder, notes, "these are not the models that the run wrote: restore them, or run it again")
        folders = [folder / name for name in names]
    else:
        named = folder.resolve()  # "." has no name, and neither has the root
        partial = named.parent / f"{named.name}.partial"
        similar = [p.name for p in named.parent.glob("*") if p.is_dir() and p != named] if named.name else []
        reason = (f"the run is not finished: finish it with --resume (it is in {partial})" if partial.is_dir() else
                  "there is no finished run and no saved result: name a folder that `resolvent run` or Result.save "
                  f"wrote{nearest(named.name, similar)}")
        raise InputError(f"{folder}: {reason}")
    return {ModelFolder(path).method: path for path in folders}


def _choices(methods: dict[str, Path]) -> str:
    return f"one of {shorten(', '.join(methods))}" if len(methods) > 1 else next(iter(methods))


def _model_of_experiment(path: Path, models: ModelFolder) -> Model | None:
    """The model that an experiment file names, for the inputs of the saved models."""
    from resolvent.comparisons.experiment.experiment_file import ExperimentFile

    return ExperimentFile.load(str(path)).build_model(models.encoding)
