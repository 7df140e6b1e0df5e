"""The rows of a saved run that its training has not used, with its models.

They come from the table of the run, from a federation site's own table, or from a file of new rows with labels.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.after.advised import SiteModel, chosen_method, models_of_sites, reasons_against
from resolvent.comparisons.after.held_out_rows import (
    HeldOutRows,
    LabelledInputs,
    SiteRows,
    choose_method_name,
    rows_of_models,
    with_shared_model,
)
from resolvent.comparisons.experiment.checks import check_same_data, folder_name
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.runs.load import load_fitted, models_of
from resolvent.comparisons.runs.model_files import fold_folder
from resolvent.comparisons.runs.record import EXPERIMENT_FILE, SUMMARY_FILE, read_record
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, nearest, quote, shorten
from resolvent.predict.fitted import Fitted
from resolvent.problem.models.model import Model
from resolvent.simulator.record.model_folder import ModelFolder
from resolvent.tables.columns import read_parties
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.new_rows import read_rows
from resolvent.tables.table_options import SITE_TABLE
from resolvent.tables.text_formats import TextFormat

if TYPE_CHECKING:
    import pandas as pd

_SEED = 20_240_305  # seed of the division of new rows


def rows_of_run(folder: Path, method: str | None = None, rows: str | FederatedData | None = None,
                site: str | None = None, text: TextFormat = TextFormat(), *,  # noqa: B008
                has_validation: bool = True) -> HeldOutRows:
    """The rows of a run that its training has not used, with the models of its first seed.

    Args:
        folder: a run folder, or with ``rows`` any folder with models.
        method: name of a method; None: for each site the model that it is advised to use.
        rows: None: the table of the run, whose validation and test rows are used. Samples: those of a federation's
            site, divided as in the run. A path: a file of new rows with labels, of which half, drawn, are the
            validation rows.
        site: the site of new rows without the column of the party.
        has_validation: whether validation rows are needed; without them all new rows are test rows.
    """
    models = models_of_run(folder, method)
    if isinstance(rows, str):
        return _of_new_rows(folder, method, models, rows, site, text, has_validation=has_validation)
    data = _data_of_run(folder) if rows is None else rows
    record = read_record(folder)
    check_same_data(folder, record.data.digest, data,
                    "restore the data, or name a file of rows with labels that the run has not used")
    use = {} if method is not None else models_of_sites(record)
    # The models of a fold have no experiment file beside them, by which a model of the user's own is built.
    predictor = load_fitted(folder, models.method, None if models.has_shared_model else 0, before_refit=True).model

    def fitted(fold: int, name: str | None) -> Fitted | None:
        if name is None and not models.has_shared_model:
            return None
        model = use.get(str(name), SiteModel(models.method))
        of_fold = folder if not fold else fold_folder(folder / "models" / folder_name(model.method), fold)
        if not of_fold.is_dir():
            raise InputError(f"{folder} has no models of fold {fold + 1}, because an earlier version of resolvent "
                             "wrote it: run the experiment again")
        return _fitted(of_fold, model, name, predictor)

    folds = record.folds if record.data.party is None else 1  # at a site of a federation, its samples are of one fold
    return replace(rows_of_models(models.method, data, models.parties, folds, record.seed, fitted),
                   against=reasons_against(use))


def _fitted(folder: Path, model: SiteModel, site: str | None, predictor: Model | None = None) -> Fitted:
    """The model that a site uses, or the shared one, without calibration and threshold."""
    party = None if model.is_shared else site
    return replace(load_fitted(folder, model.method, party, predictor, before_refit=True).raw, site=site)


def models_of_run(folder: Path, method: str | None = None) -> ModelFolder:
    """The models of a method, as they were before a refit; None: the method that the federation should run."""
    if (folder / SUMMARY_FILE).is_file():
        record = read_record(folder)
        method = choose_method_name(method, list(record.methods), chosen_method(record))
    return models_of(folder, method, before_refit=True)


def _data_of_run(folder: Path) -> FederatedData:
    """The samples of a run folder's experiment, read again."""
    path = folder / EXPERIMENT_FILE
    if not path.is_file():
        raise InputError(f"{folder} has no {EXPERIMENT_FILE} that names its table: name a file of rows with labels "
                         "that the run has not used, or use the methods of rv.compare's result in Python")
    file = ExperimentFile.load(str(path))
    settings = file.bound.settings().get("data")
    if isinstance(settings, dict) and settings.get("table") == SITE_TABLE:
        raise InputError(f"{folder} is of a federation, whose tables are at the sites: name the site's file after the "
                         "folder, such as site.yaml")
    data = file.build().data
    if not isinstance(data, FederatedData):
        raise InputError(f"the run in {folder} has no samples with labels")
    return data


def _of_new_rows(folder: Path, method: str | None, models: ModelFolder, path: str, site: str | None,
                 text: TextFormat, *, has_validation: bool) -> HeldOutRows:
    """New rows of one or several sites; half of each site's rows, drawn, are validation rows."""
    import pandas as pd

    encoding = models.encoding
    frame = read_rows(path, encoding, text)
    if not isinstance(encoding, TableEncoding) or not isinstance(frame, pd.DataFrame):
        raise InputError("only tables have a column of labels: use the table of the run")
    check_has_labels(frame, encoding, path, "give rows with known labels")
    x, y = encoding.encode(frame).x, encoding.encode_labels(frame)
    y = y.astype(np.float32) if encoding.task == "regression" else y
    has_summary = method is None and (folder / SUMMARY_FILE).is_file()
    use, sites = models_of_sites(read_record(folder)) if has_summary else {}, {}
    for name, index in _sites_of_rows(frame, encoding, models, site, path).items():
        order = np.random.default_rng(_SEED).permutation(index)
        count = len(index) // 2 if has_validation else 0
        validation, test = (LabelledInputs(x[part], y[part]) for part in (order[:count], order[count:]))
        sites[name] = SiteRows(_fitted(folder, use.get(name, SiteModel(models.method)), name), validation, test)
    has_shared = models.has_shared_model and site is None
    shared = _fitted(folder, SiteModel(models.method), None) if has_shared else None
    return replace(with_shared_model(models.method, sites, shared),
                   against=reasons_against({name: use[name] for name in sites if name in use}))


def check_has_labels(frame: "pd.DataFrame", encoding: TableEncoding, path: str, advice: str) -> None:
    """Refuse a file without a column of labels."""
    columns = [str(column) for column in frame.columns]
    for label in encoding.labels:
        if label.name not in columns:
            raise InputError(f"{quote(path)} has no column {quote(label.name)}, the label; its columns "
                             f"are {shorten(', '.join(map(repr, columns)))}{nearest(label.name, columns)}: {advice}")


def _sites_of_rows(frame: "pd.DataFrame", encoding: TableEncoding, models: ModelFolder, site: str | None,
                   path: str) -> dict[str, NDArray[np.intp]]:
    columns = [str(column) for column in frame.columns]
    if encoding.party in columns:
        names = read_parties(frame.iloc[:, columns.index(encoding.party)])
        unknown = sorted({*names} - {*models.parties})
        if unknown:
            raise InputError(f"{quote(path)} has rows of {quote(unknown[0])}, for which {models.method} has no "
                             f"model; there are {shorten(', '.join(models.parties))}"
                             f"{nearest(unknown[0], models.parties)}")
        if site is not None and site not in names:
            raise InputError(f"{quote(path)} has no row of {quote(site)}{nearest(site, {*names})}")
        return {name: np.flatnonzero(names == name) for name in models.parties
                if (names == name).any() and site in (None, name)}
    if site is None and len(models.parties) > 1:
        raise InputError(f"{quote(path)} has no column {quote(encoding.party)}, which names the site "
                         "of each row: name the site of all rows with --site")
    return {models.parties[models.index(site or models.parties[0])]: np.arange(len(frame))}
