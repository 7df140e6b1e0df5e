"""A run at a site that sends nothing: everything that a site computes in a run, in a folder that is removed."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from resolvent.comparisons.experiment.own_parts import limit_own_parts
from resolvent.comparisons.regression.agreement import RowsReport, agree_on_rows
from resolvent.errors import InputError
from resolvent.federation.protocol.experiment import FederatedExperiment, experiment_of_file
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.names import JOURNAL, VERSIONS
from resolvent.federation.protocol.plan import Plan, is_regression_file
from resolvent.federation.protocol.regression import FederatedRegression
from resolvent.federation.protocol.schema import agree
from resolvent.federation.protocol.table_reports import TableReport
from resolvent.federation.secure.local import local_identities
from resolvent.federation.secure.primitives import Identity
from resolvent.federation.site.planned_work import Membership
from resolvent.federation.site.regression_run import RegressionRun
from resolvent.federation.site.site_run import SiteRun


@dataclass(frozen=True)
class DryRun:
    """A run of one site, with the categories and classes of this site alone.

    Attributes:
        folder: a copy of the folder of the site's runs, with the answers about the table up to ``report``.
    """

    run: SiteRun
    name: str
    report: TableReport
    folder: Path

    def prepare(self) -> list[str]:
        """Encode the rows and make the parties; returns the conflicts if the table gives no encoding.

        Raises:
            Refusal: the experiment is beyond the limits of the site.
        """
        experiment = self.run.experiment
        encoding, conflicts = agree({self.name: self.report}, experiment.table)
        if encoding is not None:
            # Equal factors of the weights of all classes: the others follow from the sums of all sites.
            weights = dict.fromkeys(self.report.labels[0].weights or {}, 1.0) if experiment.has_weights else None
            self.run.prepare(encoding, experiment.decide_by, weights)
        return list(conflicts)


@contextmanager
def dry_run(file: SiteFile, name: str, experiment: FederatedExperiment, runs: Path | None) -> Iterator[DryRun]:
    """Begin a run in a temporary folder. It changes neither the versions of the table nor the journal.

    Args:
        runs: the folder of the site's runs; None: there are none.

    Raises:
        Refusal: the experiment is beyond the limits of the site, or does not fit its table.
    """
    with _copied_runs(runs) as folder:
        run = SiteRun(folder / "check", file, experiment, _membership(file, name),
                      identity=_identity(experiment, name))
        try:
            run.check_limits()
            yield DryRun(run, name, run.report(), folder)
        finally:
            run.close()


@contextmanager
def dry_regression(file: SiteFile, name: str, regression: FederatedRegression,
                   runs: Path | None) -> Iterator[RegressionRun]:
    """A prepared regression with the levels of this site alone, in a temporary folder; see ``dry_run``."""
    with _copied_runs(runs) as folder:
        run = RegressionRun(folder / "check", file, regression, _membership(file, name),
                            identity=_identity(regression, name))
        try:
            run.check_limits()
            report = RowsReport.from_plain(run.report())
            run.prepare(asdict(agree_on_rows({name: report}, regression.formula, regression.settings,
                                             regression.table.cells)))
            yield run
        finally:
            run.close()


@contextmanager
def _copied_runs(runs: Path | None) -> Iterator[Path]:
    """A temporary folder with a copy of the versions of the table and of the journal."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if runs is not None and (runs / VERSIONS).is_dir():
            shutil.copytree(runs / VERSIONS, folder / VERSIONS)
        for path in () if runs is None else runs.glob(f"{Path(JOURNAL).stem}.*"):
            shutil.copyfile(path, folder / path.name)
        yield folder


def _identity(plan: Plan, name: str) -> Identity | None:
    """A certificate that only this process knows, for a plan with secure sums."""
    return None if plan.privacy is None else local_identities((name,))[name]


def _membership(file: SiteFile, name: str) -> Membership:
    """The site among as many others as it needs: their number is known when the run begins."""
    return Membership(name, (name, *(f"another site {k}" for k in range(1, file.limits.min_sites))), ())


def read_experiment(file: SiteFile, path: Path) -> FederatedExperiment:
    """The lead's experiment. The site allows its own models only, as in the federation."""
    if is_regression_file(str(path)):
        raise InputError(f"{path} is a regression, which trains no model that could be attacked: leave out --attack. "
                         "The site's limits count the rows behind every sum, see docs/regression.md")
    with limit_own_parts(file.models, file.folder):
        return experiment_of_file(str(path))
