"""The data sheet of a run at a site: rows, limits in force, ledger and versions. It stays in the site's folder."""

from pathlib import Path

from resolvent.comparisons.runs.environment import versions
from resolvent.federation.protocol.cards import write_card
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.limits import LIMITS
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.regression_run import RegressionRun
from resolvent.federation.site.site_run import SiteRun

DATA_SHEET = "data-sheet"


def write_data_sheet(folder: Path, name: str, file: SiteFile, run: SiteRun | RegressionRun, journal: Journal, *,
                     plan: str, lead: str) -> Path:
    """Write the data sheet into the site's folder of a run; returns the path of the page.

    Args:
        file: the site's file, whose limits were in force.
        run: the run, whose models are written.
    """
    experiment, fewest = run.experiment, file.limits.min_cell
    return write_card(folder, DATA_SHEET, {
        "title": f"Data sheet of {name}: {folder.name}", "site": name, "run": folder.name, "plan": plan, "lead": lead,
        "label": ", ".join(experiment.table.labels), "methods": list(experiment.labels),
        "rounds_of_the_run": experiment.total_rounds,
        "version_of_the_table": run.version,
        "rows": {split: count if count == 0 or count >= fewest else f"fewer than {fewest}"
                 for split, count in run.row_counts.items()},
        "profile": file.profile,
        "limits": {name: {"value": getattr(file.limits, name), "reason": limit.why} for name, limit in LIMITS.items()},
        "journal": {"entries": len(journal.entries), "digest": journal.head,
                    "rounds_of_all_experiments": journal.usage().rounds},
        "versions": versions()})
