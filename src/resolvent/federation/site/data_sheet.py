"""The data sheet of a run at a site: rows, limits in force, journal and versions. It stays in the site's folder."""

from pathlib import Path
from typing import Any

from resolvent.comparisons.runs.environment import versions
from resolvent.federation.protocol.cards import write_card
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.limits import LIMITS
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.plan_run import PlanRun

DATA_SHEET = "data-sheet"


def write_data_sheet(folder: Path, name: str, file: SiteFile, run: PlanRun[Any], journal: Journal, *,
                     plan: str, lead: str) -> Path:
    """Write the data sheet into the site's folder of a run; returns the path of the page.

    Args:
        file: the site's file, whose limits were in force.
        run: the run, whose models are written.
    """
    plan_of_run, fewest = run.plan, file.limits.min_cell
    return write_card(folder, DATA_SHEET, {
        "title": f"Data sheet of {name}: {folder.name}", "site": name, "run": folder.name, "plan": plan, "lead": lead,
        "label": ", ".join(plan_of_run.table.labels), "methods": list(plan_of_run.labels),
        "rounds_of_the_run": plan_of_run.total_rounds,
        "version_of_the_table": run.version,
        "rows": {split: count if count == 0 or count >= fewest else f"fewer than {fewest}"
                 for split, count in run.row_counts.items()},
        "training_rows_of_all_sites": run.sizes and {
            site: {"rows": rows, "share": rows / sum(run.sizes.values())} for site, rows in run.sizes.items()},
        "profile": file.profile,
        "limits": {name: {"value": getattr(file.limits, name), "reason": limit.why} for name, limit in LIMITS.items()},
        "journal": {"entries": len(journal.entries), "digest": journal.head,
                    "rounds_of_all_experiments": journal.usage().rounds},
        "versions": versions()})
