"""The folder ``refit`` in a run folder: models that were trained again on all rows.

``refit.json`` names the folder of the models and has their digests. It is replaced at once, after the models are
complete, so that at any moment there are the models of the last complete refit, or none.
"""

import math
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from resolvent.comparisons.after.advised import reason_against
from resolvent.comparisons.after.refit_plan import RefitPlan, plan_of_sites
from resolvent.comparisons.experiment.checks import folder_name
from resolvent.comparisons.judgement.metrics import format_value, title_of
from resolvent.comparisons.runs.environment import versions
from resolvent.comparisons.runs.record import SUMMARY_FILE, RunRecord, read_record
from resolvent.data.files.atomic_files import remove_folder, sync_to_disk
from resolvent.data.files.digests import check_files, file_digest, file_digests, read_sealed, write_sealed
from resolvent.data.files.folder_lock import locked
from resolvent.errors import InputError, count_of
from resolvent.simulator.record.model_folder import NOTE_FILE, SavedModels, write_model_folder

REFIT_FOLDER = "refit"
_NOTE = "refit.json"
_VERSION = 2
_ADVICE = "run resolvent model refit again, or use the models of the run with --set refit=false"


def write_refit(run: Path, plan: RefitPlan, models: Mapping[str, SavedModels | Path],
                rows: Mapping[str, Mapping[str, Sequence[int | None]]]) -> None:
    """Write models that were trained again into their run folder; those of an earlier refit are replaced at the end.

    Args:
        models: label -> its models, or the folder with them.
        rows: label -> site -> number of its training rows, and of all its rows; None: it is not known.

    Raises:
        InputError: another process writes a refit of this run.
    """
    folder = run / REFIT_FOLDER
    with locked(folder, "wait until it has ended"):
        name = secrets.token_hex(4)
        work = folder / name
        folder.mkdir(exist_ok=True)
        for label, saved in models.items():
            if isinstance(saved, Path):
                shutil.copytree(saved, work / folder_name(label))
            else:
                write_model_folder(work / folder_name(label), saved)
        sync_to_disk(work)
        notes = [f"{name}/{folder_name(label)}/{NOTE_FILE}" for label in models]
        write_sealed(folder / _NOTE, {
            "version": _VERSION, "run": file_digest(run / SUMMARY_FILE), "folder": name, **plan._asdict(),
            "against": dict(plan.against),
            "rows": {label: {site: [*counts] for site, counts in of_sites.items()} for label, of_sites in rows.items()},
            "versions": versions(), "files": file_digests(folder, notes)})
        for other in folder.iterdir():
            if other.is_dir() and other.name != name:
                remove_folder(other)


def write_refit_of_site(run: Path, site: str, models: Mapping[str, SavedModels], rows: Sequence[int]) -> None:
    """Write the models of a site of a federation into its folder of the run, see ``write_refit``.

    Args:
        models: label -> its models.
    """
    record = read_record(run)
    method = next((label for label in models if label != record.alone), next(iter(models)))
    # The lead has ordered the training, and the site follows its own record: the models are written, and ``use`` has
    # only one that is worth using.
    plan = plan_of_sites(record, method, [*models])._replace(
        rounds={label: saved.rounds for label, saved in models.items()})
    write_refit(run, plan, models, {label: {site: rows} for label in models})


class RefitFolder:
    """The models that ``write_refit`` wrote.

    Attributes:
        plan: what was trained again.
        rows: method -> site -> number of its training rows, and of all its rows.
    """

    def __init__(self, run: Path) -> None:
        self._folder = run / REFIT_FOLDER
        note = read_sealed(self._folder / _NOTE, _ADVICE)
        if note.get("version") != _VERSION:
            raise InputError(f"{self._folder} was written by another version of resolvent: {_ADVICE}")
        if note["run"] != file_digest(run / SUMMARY_FILE):
            raise InputError(f"{self._folder} belongs to another run than {run}: {_ADVICE}")
        check_files(self._folder, note["files"], _ADVICE)
        self.plan = RefitPlan(**{name: note[name] for name in RefitPlan._fields})
        self.rows: dict[str, dict[str, list[Any]]] = note["rows"]
        self._name: str = note["folder"]

    @classmethod
    def of_run(cls, run: Path) -> "RefitFolder | None":
        """The refit in a run folder; None if there is none."""
        return cls(run) if (run / REFIT_FOLDER / _NOTE).is_file() else None

    @property
    def models(self) -> dict[str, Path]:
        """The folder of each method's models."""
        return {label: self._folder / self._name / folder_name(label) for label in self.plan.rounds}


def provenance(record: RunRecord, refit: RefitFolder | None, method: str, site: str | None) -> str:
    """Which rows a model has seen, and how good models of its method were on rows that they had not seen.

    Args:
        refit: the models that were trained again, if the model is one of them.
        site: name of the site; None: the shared model.
    """
    data = record.data
    train, test = (dict(zip(data.parties, numbers, strict=True)) for numbers in (
        data.train, data.test or [0] * len(data.parties)))
    rows = {name: [count, 0] for name, count in train.items()} if refit is None else refit.rows[method]
    others = sum(counts[0] for name, counts in rows.items() if name != site)
    of_others = f"{count_of(others, 'row')} of {count_of(len(rows) - (site is not None), 'site')}"
    if site is None:
        return f"trained on {of_others}{_measured(record, refit, method, site, train, test)}"
    count, total = rows[site]
    of_site = f"{count_of(count, 'training row' if refit is None else 'row')} of {site}"
    if count == total:
        of_site = f"all {of_site}"
    trains_alone = method == record.alone or (method in record.methods and record.methods[method].is_untuned)
    if not trains_alone and len(rows) > 1:
        of_site += f" and {of_others.replace('site', 'other site')}"
    return (f"trained on {of_site}{_measured(record, refit, method, site, train, test)}"
            f"{_advice_text(record, method, site)}")


def _advice_text(record: RunRecord, method: str, site: str) -> str:
    """What the site was advised, if it was another model; and what is against this one."""
    judged = record.judged.get(site)
    if judged is None:
        return ""
    use, reason = record.use(judged), reason_against(record, judged, method)
    is_other = use not in (method, None)
    text = f"; the advice to {site} is {use}" if is_other else ""
    return f"{text}; {reason}" if reason and (is_other or method == record.alone) else text


def _measured(record: RunRecord, refit: RefitFolder | None, method: str, site: str | None,
              train: Mapping[str, int], test: Mapping[str, int]) -> str:
    """The score of the run's models on test rows; empty if it is not known."""
    score, before = record.score, "" if refit is None else "measured before "
    judged = None if site is None else record.judged.get(site)
    if site is None or judged is None or method not in judged.scores:
        mean = record.methods[method].final.get("mean") if method in record.methods else None
        if mean is None:
            return ""
        return f"; mean {title_of(score)} over the sites {format_value(mean, score)} {before}on their test rows"
    value = judged.scores[method].value
    rows = judged.test_rows or test[site]
    if math.isnan(value):
        return f"; {title_of(score)} not defined on its {count_of(rows, 'test row')}"
    text = f"; {title_of(score)} {format_value(value, score)} {before}on its {count_of(rows, 'test row')}"
    return text if refit is None else f"{text}, by models trained on {train[site]} of its rows"
