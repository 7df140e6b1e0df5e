"""``resolvent site``: what the person at a site of a federation types."""

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from resolvent.cli.options import Changes, Format, Kit, OptionalPath, OptionalText, Reason, SiteFile, flat

if TYPE_CHECKING:
    from resolvent.federation.protocol.kits import KitNote
    from resolvent.federation.site.plans import Plans

_SECOND = "second session"  # the kind of a message about a plan
Plan = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PLAN")]


def new(table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE")],
        site: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[site.yaml]")] = Path("site.yaml"), *,
        set: Changes = ()) -> None:
    """Write the site's file for a table: a profile of limits, and what only a person at the site can know.

    resolvent site new visits.csv
    resolvent site new visits.csv aachen.yaml --set profile=strict --set limits.labels=[died]

    Read the file and change what does not suit. A file that exists is not replaced.

    Args:
        table: the file with the rows of the site, in the folder of the new file.
        site: the file to write.
        set: further settings.
    """
    from resolvent.cli import terminal
    from resolvent.federation.site.new_file import write_site_file

    write_site_file(site, table, flat(set))
    terminal.print_path("Site", site)
    terminal.print_line("Read it, and change what does not suit. The next command explains every setting and limit: "
                        f"resolvent site check KIT {site}")


def check(kit: Kit, site: SiteFile,
          experiment: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(
              metavar="[EXPERIMENT.yaml]", help_behavior_hint="")] = None, *,
          connect: bool = False, attack: Annotated[float | None, tyro.conf.arg(
              metavar="SECONDS", help_behavior_hint="")] = None, format: Format = "text") -> None:
    """Show a site's table, settings and limits; with an experiment, all that would leave the site.

    resolvent site check kit site.yaml
    resolvent site check kit site.yaml mine.yaml --connect --attack 120

    Nothing about the table leaves the site. With --attack, what insiders of the federation could do is tried on the
    site's own table.

    Args:
        kit: the site's kit.
        site: the site's file, with its table and its limits.
        experiment: the lead's experiment file.
        connect: also test the connection to the server: name, port and certificates.
        attack: attack what the plan would release, and say how many rows come back; the time for the attacks on replies
            and models, apart from compilation.
        format: text, or json for the result of the attacks.
    """
    from resolvent.cli import terminal
    from resolvent.cli.output import print_json
    from resolvent.errors import InputError, check_range
    from resolvent.federation.protocol.files import read_site
    from resolvent.federation.protocol.kits import kit_note
    from resolvent.federation.protocol.names import runs_of

    note, file = kit_note(kit, "site"), read_site(site)
    if connect:
        from resolvent.federation.protocol.connections import connection_problem

        if note.engine == "flower":
            raise InputError("--connect: over Flower the site's SuperNode connects, and its log says whether it can")
        if problem := connection_problem(note):
            raise InputError(problem)
        terminal.print_line(f"The server at {note.address} answers, and accepts this kit")
    if attack is None:
        from resolvent.federation.site.check import check_site

        for line in check_site(file, note.name, experiment, runs_of(note.kit)):
            terminal.print_line(line)
        return
    from resolvent.federation.site.dry_run import read_plan
    from resolvent.red_team.red_team import attack_site

    if experiment is None:
        raise InputError("site check --attack needs the lead's experiment file: write it after the site's file")
    check_range("site check --attack", "(0, inf)", seconds=attack)
    report = attack_site(file, note.name, read_plan(file, experiment), runs_of(note.kit), seconds=attack,
                         progress=terminal.print_note)
    if format == "json":
        print_json(report.plain())
        return
    for line in report.lines():
        terminal.print_line(line)


def start(kit: Kit, site: SiteFile, *, live: OptionalText = None) -> None:
    """Take part in the lead's experiments, within the limits, until Ctrl-C.

    resolvent site start kit site.yaml
    resolvent site start kit site.yaml --live 8010

    The folder `runs` of the kit has, for each run, the site's models for `resolvent model predict` and a log of all
    that left the site. A process that ends is started again.

    Args:
        kit: the site's kit.
        site: the site's file, with its table and its limits.
        live: a port at which this machine sees the plans and the ledger of the site.
    """
    from resolvent.cli import supervision, terminal
    from resolvent.federation.lead.engines import require_engine
    from resolvent.federation.protocol.files import read_site
    from resolvent.federation.protocol.kits import kit_note, started_once
    from resolvent.federation.protocol.names import SITE_FILE

    note = kit_note(kit, "site")
    file = read_site(site)  # a wrong file is an error of this command, not of the process that it starts
    if note.engine != "flower":  # whose SuperNode may be of another environment
        require_engine(note.engine)
    with started_once(note):
        terminal.print_line(f"site {note.name} of the federation at {note.address}; Ctrl-C ends it")
        if note.engine == "flower":
            from resolvent.federation.engines.flower.door import door_setting

            terminal.print_line(f"its SuperNode needs --node-config {shlex.quote(door_setting(note.kit))}")
        supervision.supervise(note, {SITE_FILE: str(site.resolve())}, live, journal_watch(note, file.notify))


def journal_watch(note: "KitNote", command: str) -> Callable[[], None]:
    """A function that says what is new in the site's journal: second sessions, and plans that wait for a decision.

    Args:
        command: what the site runs for each such plan; empty: nothing.
    """
    from resolvent.cli import terminal
    from resolvent.cli.supervision import SECOND_PROCESS
    from resolvent.errors import InputError

    plans, told, changed = _plans_of(note.kit), set[str](), 0.0
    sessions = len(plans.journal.of(_SECOND))

    def look() -> None:
        nonlocal changed, sessions
        try:
            if (time := plans.journal.path.stat().st_mtime) == changed:
                return
            changed, waiting = time, [plan for plan in plans.all() if plan.decision == "waiting"]
            before, sessions = sessions, len(plans.journal.of(_SECOND))
        except FileNotFoundError:  # no plan has arrived
            return
        except (InputError, OSError) as error:  # the site refuses all plans until the journal is put right
            terminal.print_note(f"warning: {error}")
            return
        if sessions > before:
            terminal.print_line(SECOND_PROCESS.format(note.name))
        for plan in waiting:
            if plan.digest in told:
                continue
            told.add(plan.digest)
            text = (f"plan {plan.name} of {plan.lead} waits for a decision, because {plan.reason}: resolvent site "
                    f"plans {note.kit}, then resolvent site approve {note.kit} {plan.name}")
            terminal.print_line(text)
            try:
                if command:
                    subprocess.run(shlex.split(command), input=f"{text}\n\n{plan.experiment}\n", text=True, timeout=60,
                                   check=True, stdout=subprocess.DEVNULL)
            except (OSError, subprocess.SubprocessError) as error:
                terminal.print_note(f"warning: the command notify of the site's file has failed: {error}")

    return look


def plans(kit: Kit) -> None:
    """List the plans that leads have signed and sent, with what was decided about them.

    resolvent site plans kit
    resolvent site approve kit PLAN

    Each has what applied at the site when it arrived: its table, its limits. With the key `approval` in the site's
    file, a plan beyond its rule waits until a person decides.

    Args:
        kit: the site's kit.
    """
    from resolvent.cli import terminal

    received = _plans_of(kit).all()
    for plan in received:
        waits = plan.decision == "waiting"
        decision = plan.decision if waits or not plan.reason else f"{plan.decision} ({plan.reason})"
        terminal.print_line(f"{plan.name}: {decision}; {plan.run} of {plan.lead}, received {plan.received}")
        if waits:
            terminal.print_line(f"  It waits, because {plan.reason}")
        applies = {**plan.applies, **plan.applies.get("limits", {})}
        terminal.print_line("  At this site: " + ", ".join(
            f"{name} {value}" for name, value in applies.items() if name != "limits" and value != {}))
        for line in plan.experiment.splitlines():
            terminal.print_line(f"    {line}")
    if not received:
        terminal.print_line("no plan has arrived")


def approve(kit: Kit, plan: Plan, reason: Reason = "") -> None:
    """Approve a plan that waits for a decision.

    resolvent site approve kit 3f9a
    resolvent site approve kit 3f9a "ethics vote 12"

    Args:
        kit: the site's kit.
        plan: the first characters of the plan's name, as `resolvent site plans` shows it.
        reason: a text for the site's own record.
    """
    _decide(kit, plan, "approved", reason)


def reject(kit: Kit, plan: Plan, reason: Reason = "") -> None:
    """Reject a plan: nothing is computed for it.

    resolvent site reject kit 3f9a
    resolvent site reject kit 3f9a "no consent for this purpose"

    Args:
        kit: the site's kit.
        plan: the first characters of the plan's name, as `resolvent site plans` shows it.
        reason: a text for the site's own record.
    """
    _decide(kit, plan, "rejected", reason)


def _plans_of(kit: Path) -> "Plans":
    from resolvent.federation.protocol.kits import kit_note
    from resolvent.federation.protocol.names import JOURNAL, runs_of
    from resolvent.federation.site.journal import Journal
    from resolvent.federation.site.plans import Plans

    return Plans(Journal(runs_of(kit_note(kit, "site").kit) / JOURNAL))


def _decide(kit: Path, plan: str, decision: Literal["approved", "rejected"], reason: str) -> None:
    import getpass

    from resolvent.cli import terminal

    decided = _plans_of(kit).decide(plan, decision, f"{getpass.getuser()}{': ' if reason else ''}{reason}")
    terminal.print_line(f"{decided.name} of {decided.lead} is {decided.decision}")


def ledger(kit: Kit, copy: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(
        metavar="[COPY]", help_behavior_hint="")] = None, *, out: OptionalPath = None) -> None:
    """Show what the site has answered in all experiments; a changed journal, or file of a finished run, is an error.

    resolvent site ledger kit
    resolvent site ledger kit --out ledger.html

    Args:
        kit: the site's kit.
        copy: an earlier copy of the file journal.sqlite, or an earlier digest, which the journal must continue, such as
            the one in journals.json of the lead's run folder.
        out: a file for the entries of the journal, as a page for a browser (.html) or as CSV.
    """
    from resolvent.cli import terminal
    from resolvent.data.files.atomic_files import write_text
    from resolvent.errors import InputError, quote
    from resolvent.federation.protocol.kits import kit_note
    from resolvent.federation.protocol.names import JOURNAL, runs_of
    from resolvent.federation.site.journal import Journal, head_of

    note = kit_note(kit, "site")
    journal = Journal(runs_of(note.kit) / JOURNAL)
    journal.check_runs()
    for line in (*journal.summary(), *journal.check_files()):
        terminal.print_line(line)
    if out is not None:
        write_text(out, journal.page(note.name) if out.suffix == ".html" else journal.csv_text())
        terminal.print_path("Ledger", out)
    if copy is not None:
        is_digest = re.fullmatch("[0-9a-f]{64}", copy) is not None
        if not is_digest and not Path(copy).is_file():
            raise InputError(f"{quote(copy)} is neither a file nor a digest of a journal")
        if not journal.continues(copy if is_digest else head_of(Path(copy))):
            raise InputError("the journal does not continue the copy: entries of the copy are missing, or another "
                             "journal has replaced it: put the newest copy back")
        terminal.print_line("the journal continues the copy")
