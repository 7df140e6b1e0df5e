"""The records of a site on the command line: the plans that it has received, its ledger, and attacks on a plan."""

import getpass
import math
from pathlib import Path

from resolvent.cli import terminal
from resolvent.cli.output import print_json
from resolvent.data.files.atomic_files import write_text
from resolvent.errors import InputError, check_range
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.kits import KitNote
from resolvent.federation.protocol.names import LEDGER, PLANS, runs_of
from resolvent.federation.site.ledger import FIELDS, Ledger
from resolvent.federation.site.plans import Plans


def decide(note: KitNote, action: str, name: str, reason: str) -> None:
    """Show the plans of a site, or decide about one of them."""
    plans = Plans(runs_of(note.kit) / PLANS)
    if action != "plans":
        decided = plans.decide(name, "approved" if action == "approve" else "rejected",
                               f"{getpass.getuser()}{': ' if reason else ''}{reason}")
        terminal.print_line(f"{decided.name} of {decided.lead} is {decided.decision}")
        return
    for plan in plans.all():
        decision = f"{plan.decision} ({plan.reason})" if plan.reason else plan.decision
        terminal.print_line(f"{plan.name}: {decision}; {plan.run} of {plan.lead}, received {plan.received}")
        for line in plan.experiment.splitlines():
            terminal.print_line(f"    {line}")
    if not plans.all():
        terminal.print_line("no plan has arrived")


def ledger_page(site: str, ledger: Ledger) -> str:
    """The ledger as one file for a browser, without scripts and outside resources. All values are escaped."""
    from resolvent.comparisons.page_text import page_text

    of_tables = [ledger.of_table(table) for table in ledger.tables]
    tables = [(of.name, of.usage(), [(lead, of.usage(lead=lead)) for lead in of.leads]) for of in of_tables]
    return page_text("ledger", package="resolvent.federation", site=site, ledger=ledger, tables=tables,
                     fields=[field for field in FIELDS if field != "table"], infinity=math.inf,
                     digests=("plan", "message", "payload", "chain"))


def show_ledger(note: KitNote, out: Path | None, copy: Path | None) -> None:
    """Show what a site has answered, and compare it with an earlier copy."""
    ledger = Ledger(runs_of(note.kit) / LEDGER)
    for line in ledger.summary():
        terminal.print_line(line)
    if out is not None:
        write_text(out, ledger_page(note.name, ledger) if out.suffix == ".html" else ledger.table())
        terminal.print_path("Ledger", out)
    if copy is not None:
        if not copy.is_file():
            raise InputError(f"there is no file {copy}")
        terminal.print_line(ledger.compare(Ledger(copy)))


def attack_plan(note: KitNote, file: SiteFile, experiment: Path | None, seconds: float, *, has_json: bool) -> None:
    """Attack what a plan would release at a site, and print how many rows come back."""
    from resolvent.federation.site.dry_run import read_experiment
    from resolvent.federation.site.red_team.red_team import attack_site

    if experiment is None:
        raise InputError("party check --attack needs --experiment, the lead's experiment file")
    check_range("party check --attack", "(0, inf)", seconds=seconds)
    report = attack_site(file, note.name, read_experiment(file, experiment), runs_of(note.kit), seconds=seconds,
                         progress=terminal.print_note)
    if has_json:
        print_json(report.plain())
        return
    for line in report.lines():
        terminal.print_line(line)
