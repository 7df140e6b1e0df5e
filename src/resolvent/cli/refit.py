"""The command that trains the chosen method of a run again on all rows."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.cli.federation_events import federation_observer
from resolvent.cli.options import LABEL_WIDTH, OptionalInt, OptionalKit, OptionalText, Run
from resolvent.simulator.record.progress import progress_bars

if TYPE_CHECKING:
    from resolvent.comparisons.after.refit_plan import RefitPlan

_MAX_SITES = 40  # for which a line is printed


def refit(
    run: Run,
    kit: OptionalKit = None,
    *,
    method: OptionalText = None,
    rounds: OptionalInt = None,
    anyway: bool = False,
) -> None:
    """Train the chosen method again on all rows of each site; the models are written into the run folder.

    resolvent model refit runs/mine
    resolvent model refit runs/mine --method FedAvg+

    Each site gets the model that it was advised to use. No row is left to measure the new models: the scores of the run
    are the ones to state. For the run of a federation, name the lead's kit: the sites train together again, each
    within its limits. If the command ends, run it again to continue.

    Args:
        run: a run folder.
        kit: the lead's kit, for the run of a federation; over Flower on the machine of the SuperLink.
        method: a method of the run instead of the chosen one. Sites that were advised to train alone still do.
        rounds: number of rounds; default: for each method the number with the best validation score in the run.
        anyway: also write models that were worse on a site's test rows than the predictions that need no training;
            with --method every site uses this method, also where it was advised to train alone. Not with a kit: a site
            of a federation decides which of its models it uses.
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.after.refit import refit_run
    from resolvent.comparisons.after.refit_folder import REFIT_FOLDER, RefitFolder, provenance
    from resolvent.comparisons.runs.record import read_record
    from resolvent.errors import InputError

    if kit is not None and anyway:
        raise InputError("--anyway: with a kit the sites train again, and each decides by its own record which of the "
                         "models it uses: leave it out. All models are written, and a site names one with --method")
    if kit is not None:
        plan = _refit_federation(run, method, rounds, kit)
    else:
        with progress_bars("rounds", width=LABEL_WIDTH) as progress:
            plan = refit_run(run, method, rounds, anyway=anyway, progress=progress)
    record = read_record(run)
    for label, count in plan.rounds.items():
        terminal.print_line(f"{label}: {count} rounds on all rows")
    models = RefitFolder(run)
    for site, label in [*plan.use.items()][:_MAX_SITES]:
        shared = "the shared model of " if site in plan.shared else ""
        terminal.print_line(f"{site} uses {shared}{label}, {provenance(record, models, label, site)}")
    for site, reason in [*plan.against.items()][:_MAX_SITES]:
        outcome = "this model is written anyway" if site in plan.use else "no model is written (--anyway writes it)"
        terminal.print_note(f"warning: {site}: {reason}; {outcome}")
    terminal.print_path("Models", run / REFIT_FOLDER)
    if plan.use and kit is None:
        site = shlex.quote(next(iter(plan.use)))
        terminal.print_path("Next", f"resolvent model predict {shlex.quote(str(run))} ROWS.csv --site {site}")


def _refit_federation(run: Path, method: str | None, rounds: int | None, kit: Path) -> "RefitPlan":
    """Let the sites of a federation train again."""
    from resolvent.cli import terminal
    from resolvent.federation.lead.engines import require_engine
    from resolvent.federation.lead.lead import read_sites
    from resolvent.federation.lead.refit import RefitOrder, refit_federation
    from resolvent.federation.protocol.kits import kit_note

    note = kit_note(kit, "person")
    require_engine(note.engine)
    order = RefitOrder(run, method, rounds)
    read_sites(note.kit, order.sites)  # refuses a site that the federation does not have
    with federation_observer() as observe:
        return refit_federation(note, order, observe, notify=terminal.print_note)
