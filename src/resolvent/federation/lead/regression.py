"""The lead's side of a regression over sites, and its rehearsal on one machine."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from resolvent.comparisons.regression.regress import fit_rows
from resolvent.comparisons.regression.regression import Regression
from resolvent.comparisons.regression.regression_file import RegressionFile
from resolvent.comparisons.regression.rows import read_rows
from resolvent.errors import InputError
from resolvent.federation.lead.lead import ResultFolder, run_plan
from resolvent.federation.lead.rehearsal import LEAD, Rehearsal, name_sites, rehearsed_federation
from resolvent.federation.protocol.fitted_regression import FIT_FILE, read_fit
from resolvent.federation.protocol.job import FederationJob, Observer
from resolvent.federation.protocol.kits import Engine, KitNote
from resolvent.federation.protocol.regression import FederatedRegression
from resolvent.tables.cells import columns_of_codes
from resolvent.tables.party_tables import natural_order
from resolvent.tables.table_files import read_table_file


def federate_regression(note: KitNote, regression: FederatedRegression, out: Path, job: FederationJob,
                        observe: Observer, *, notify: Callable[[str], None]) -> Regression:
    """Fit a regression over sites, and write its page and tables; an interrupted run is resumed.

    Raises:
        FederationEndedError: a site refuses or has not answered.
    """
    def read(folder: Path) -> Regression:
        fit = read_fit(folder)
        if fit.settings != regression.settings:
            raise InputError(f"{folder} has the fit of another regression: give --out another folder")
        return fit.regression()

    def write(work: Path, order: FederationJob) -> Regression:
        fit = read_fit(work).regression()
        fit.save(work, overwrite=True)
        return fit

    folder = ResultFolder(lambda path: (path / FIT_FILE).is_file(), read, write)
    return run_plan(note, regression, out, job, observe, folder, notify=notify)


def prepare_regression(file: RegressionFile) -> Rehearsal[FederatedRegression]:
    """Divide the table of a regression among sites."""
    data = file.data
    if not data.table:
        raise InputError(f"{file.name}: data.table: a rehearsal needs a table with the rows of all sites")
    frame, _ = read_table_file(data.table, data.format, [data.party], data.cells, lambda column: True)
    if data.party not in frame.columns:
        raise InputError(f"{file.name}: data.party: the table has no column {data.party!r}")
    codes = [name for name in columns_of_codes(frame, data.cells) if name != data.party]
    file = dataclasses.replace(file, data=dataclasses.replace(data, text=(*dict.fromkeys([*data.text, *codes]),)))
    names = sorted(set(frame[data.party].astype(str)), key=natural_order)
    return Rehearsal(FederatedRegression(file, is_rehearsal=True), frame, name_sites(names))


def rehearse_regression(rehearsal: Rehearsal[FederatedRegression], out: Path, job: FederationJob, observe: Observer, *,
                        folder: Path, notify: Callable[[str], None],
                        engine: Engine = "nvflare") -> tuple[Regression, float]:
    """Fit a regression in a federation on this machine, and from the pooled rows.

    Args:
        folder: an empty folder for the kits, the sites' tables and their runs.
        engine: the program that connects the participants.

    Returns:
        The fit, and the largest difference of an estimate from that of the simulation.
    """
    regression = rehearsal.experiment
    with rehearsed_federation(rehearsal, folder, notify, engine) as kits:
        fit = federate_regression(KitNote(kits[LEAD]), regression, out, job, observe, notify=notify)
    notify("fitting the same regression in one process")
    rows = read_rows(rehearsal.frame, regression.settings, party=regression.table.party, cells=regression.table.cells)
    simulated = fit_rows(rows, dataclasses.replace(regression.settings, heterogeneity=False))
    return fit, float(np.max(np.abs(fit.estimates - simulated.estimates)))
