"""A run at a site that sends nothing: everything that a site computes in a run, in a folder that is removed."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resolvent.comparisons.experiment.own_parts import limit_own_parts
from resolvent.errors import InputError
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.names import JOURNAL, VERSIONS
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.plan_files import plan_of_file
from resolvent.federation.secure.primitives import local_identities
from resolvent.federation.site.kinds import begin_run
from resolvent.federation.site.plan_run import PlanRun
from resolvent.federation.site.planned_work import Membership
from resolvent.federation.site.table_versions import TableVersions


@dataclass(frozen=True)
class DryRun:
    """A plan at one site, with the categories and classes of this site alone.

    Attributes:
        folder: a copy of the folder of the site's runs, with the answers about the table up to the report.
    """

    run: PlanRun[Any]
    name: str
    folder: Path

    def prepare(self) -> list[str]:
        """Encode the rows and make the parties; returns why the table gives no encoding.

        Raises:
            Refusal: the plan is beyond the limits of the site.
        """
        try:
            content = self.run.agree_alone()
        except InputError as error:
            return [str(error)]
        self.run.prepare(content)
        return []


@contextmanager
def dry_run(file: SiteFile, name: str, plan: Plan, runs: Path | None) -> Iterator[DryRun]:
    """Begin a run in a temporary folder. Of the site's runs it changes nothing; the secret of their splits is drawn.

    Args:
        runs: the folder of the site's runs; None: there are none, and the splits are of this call alone.

    Raises:
        Refusal: the plan is beyond the limits of the site, or does not fit its table.
    """
    if runs is not None:
        TableVersions(runs / VERSIONS, file.limits.min_cell).draw_splits()
    with _copied_runs(runs) as folder:
        run = begin_run(folder / "check", file, plan, _membership(file, name), local_identities((name,))[name])
        try:
            run.report()
            yield DryRun(run, name, folder)
        finally:
            run.close()


@contextmanager
def _copied_runs(runs: Path | None) -> Iterator[Path]:
    """A temporary folder with a copy of the versions of the table and of the journal."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if runs is not None:
            shutil.copytree(runs / VERSIONS, folder / VERSIONS)
        for path in () if runs is None else runs.glob(f"{Path(JOURNAL).stem}.*"):
            shutil.copyfile(path, folder / path.name)
        yield folder


def _membership(file: SiteFile, name: str) -> Membership:
    """The site among as many others as it needs: their number is known when the run begins."""
    return Membership(name, (name, *(f"another site {k}" for k in range(1, file.limits.min_sites))), ())


def read_plan(file: SiteFile, path: Path) -> Plan:
    """The lead's plan. The site allows its own models only, as in the federation."""
    with limit_own_parts(file.models, file.folder):
        return plan_of_file(str(path))
