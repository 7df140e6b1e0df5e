"""The command that trains the chosen method of a run again on all rows."""

from pathlib import Path
from typing import Annotated

import tyro

from resolvent.cli.options import OptionalInt, OptionalText
from resolvent.simulator.progress import progress_bars

__all__ = ["refit"]

_LABEL_WIDTH = 24
_MAX_SITES = 40  # for which a line is printed


def refit(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    *,
    method: OptionalText = None,
    rounds: OptionalInt = None,
) -> None:
    """Train the chosen method again on all rows of each site; the models are written into the run folder.

    Try `resolvent refit runs/mine`, and then `resolvent predict runs/mine new.csv --site Essen`.

    The models of a run have not seen the validation and test rows, by which the method was chosen and judged. After the
    decision these rows can train, too. A site that was advised to train alone gets its own model, the others their
    personal model of the chosen method. The encoding of a table is fitted to all rows.

    No row is left to measure the new models. Their performance is that of the run, whose models were trained on fewer
    rows. An earlier refit of the run is replaced when the new one is complete.

    Args:
        run: a run folder.
        method: a method of the run instead of the chosen one. Sites that were advised to train alone still do.
        rounds: number of rounds; default: for each method that with the best validation score in the run.
    """
    from resolvent.cli import terminal
    from resolvent.study.refit import refit_run
    from resolvent.study.refit_folder import REFIT_FOLDER, RefitFolder, provenance
    from resolvent.study.summary import read_summary

    with progress_bars("rounds", width=_LABEL_WIDTH) as progress:
        plan = refit_run(run, method, rounds, progress=progress)
    summary = read_summary(run)
    for label, count in plan.rounds.items():
        terminal.print_line(f"{label}: {count} rounds on all rows")
    models = RefitFolder(run)
    for site, label in [*plan.use.items()][:_MAX_SITES]:
        terminal.print_line(f"{site} uses {label}, {provenance(summary, models, label, site)}")
    terminal.print_path("Models", run / REFIT_FOLDER)
