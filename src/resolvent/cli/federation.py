"""The commands of a federation: ``federation new``, ``server start``, ``party check``, ``party start``, ``federate``.

A command imports the modules that it needs when it runs, as in ``commands``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from resolvent.cli.exit_codes import FAILURE
from resolvent.cli.federation_events import federation_observer
from resolvent.cli.options import Changes, OptionalInt, OptionalPath, OptionalText, Texts, flat

if TYPE_CHECKING:
    from resolvent.federation.protocol.files import Consortium
    from resolvent.federation.protocol.kits import Engine

__all__ = ["FEDERATION_COMMANDS", "federation_observer"]

def federation(
    action: Annotated[Literal["new", "revoke", "rotate", "services", "card", "verify"], tyro.conf.Positional],
    consortium: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CONSORTIUM.yaml|RUN")],
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = "",
    *,
    out: OptionalPath = None,
    reason: str = "",
    kit: OptionalPath = None,
) -> None:
    """Make a kit for the server, each site and the lead of a federation, or change the key of one of them.

    Try it with a file of four lines: `name: hearts`, `host: fed.example.org`, `sites: [aachen, berlin]` and
    `lead: lead@example.org`.

    A kit is a folder with a certificate, a private key and the address of the server. Send each kit to its owner over
    a channel that others cannot read, and keep the folder `authority`: it can make kits in the name of the federation.
    Run the command again after a site was added to the file: its kit is added, the others stay valid.

    The action `revoke` excludes a site that has left, or whose key was stolen, and `rotate` gives it a kit with a new
    key. The old key is refused in a running federation as soon as the server has the files that the command names.

    The action `verify` checks with any kit of the federation that the lead has signed the model card of a run folder,
    and that no file of the card and of the run was changed. The action `card` writes the card of a run folder of
    `resolvent run`, without a signature.

    Args:
        action: new makes kits; revoke excludes a participant; rotate replaces its kit; verify checks the model card of
            a federated run; card writes the card of a simulated one; services names the page with files for systemd.
        name: for revoke and rotate: the site, or the lead's e-mail address.
        reason: for revoke and rotate: a text for the record.
        consortium: the file: name, host, port (default 8002), sites, lead, members, engine (nvflare or flower); for
            verify and card: the run folder.
        out: the folder of the kits; default: kits, next to the file.
        kit: for verify: the kit of a participant, which has the certificate of the federation's authority.
    """
    from resolvent.cli import terminal
    from resolvent.errors import InputError

    if action == "services":
        raise InputError("federation services writes no files any more: the page docs/services.md of the documentation "
                         "has units of systemd, the rotation of logs and a compose file to copy")
    if action == "card":
        _write_card(consortium)
        return
    if action == "verify":
        _verify_card(consortium, kit)
        return
    from resolvent.federation.lead.engines import lead_kit, make_federation_kits, require_engine
    from resolvent.federation.lead.key_changes import check_not_revoked
    from resolvent.federation.protocol.files import read_consortium
    from resolvent.federation.protocol.kits import SERVER_KIT

    plan = read_consortium(consortium)
    require_engine(plan.engine)
    folder = consortium.parent / "kits" if out is None else out
    if action != "new":
        _change_key(folder, plan, action, name, reason)
        return
    check_not_revoked(folder, plan)
    kits = make_federation_kits(folder, plan)
    commands = {SERVER_KIT: "resolvent server start --kit {}",
                **dict.fromkeys(plan.sites, "resolvent party start --kit {} --site site.yaml")}
    lead = lead_kit(folder, plan).name
    commands[lead] = "\n    ".join(filter(None, (commands.get(lead), "resolvent federate mine.yaml --kit {}")))
    for name, kit in kits.items():
        terminal.print_path(name, kit)
        if name in commands:
            terminal.print_line(f"    {commands[name].replace('{}', str(kit))}")
    if not kits:
        terminal.print_line(f"all participants of {consortium} have a kit in {folder}")
    terminal.print_line(f"Keep {folder / 'authority'} to yourself: it signs kits.")


def _write_card(run: Path) -> None:
    """Write the model card of a simulated run."""
    from resolvent.cli import terminal
    from resolvent.errors import InputError
    from resolvent.federation.lead.model_card import MODEL_CARD, write_model_card

    if (run / f"{MODEL_CARD}.signature.json").exists():
        raise InputError(f"{run} has a card that its lead has signed: check it with federation verify")
    terminal.print_path("Model card", write_model_card(run))


def _verify_card(run: Path, kit: Path | None) -> None:
    """Check that the model card and the files of a federated run are as the lead has signed them."""
    from resolvent.cli import terminal
    from resolvent.errors import InputError
    from resolvent.federation.lead.model_card import MODEL_CARD
    from resolvent.federation.protocol.cards import check_card
    from resolvent.federation.protocol.kits import KitNote

    if kit is None:
        raise InputError("federation verify needs --kit, the kit of any participant of the federation")
    lead, card = check_card(run, MODEL_CARD, KitNote(kit).verify)
    terminal.print_line(f"{lead} has signed this card of the run {card['run']}, with the plan "
                        f"{card['plan']['digest']}; the card and {len(card['files'])} files of the run are unchanged")


def _change_key(folder: Path, plan: "Consortium", action: str, name: str, reason: str) -> None:
    from resolvent.cli import terminal
    from resolvent.federation.lead.key_changes import revoke_key, rotate_key

    change = (revoke_key if action == "revoke" else rotate_key)(folder, plan, name, reason)
    if change.new is not None:
        terminal.print_path(f"New kit of {name}, to which its owner moves the folder runs of the old one", change.new)
    if change.old is not None:
        terminal.print_path("Old kit, which is refused", change.old)
    for file in change.files:
        terminal.print_path("Copy to the server, to the same folder of its kit; it need not be restarted", file)
    if change.sites_need_list:
        terminal.print_line("Send revoked.json to every site, too, for the folder startup of its kit.")


def server(
    action: Annotated[Literal["start", "status", "clean"], tyro.conf.Positional],
    *,
    kit: Path,
    models: Texts = (),
    live: OptionalText = None,
    format: Literal["text", "json"] = "text",
    days: float = 7.0,
) -> None:
    """Run the server of a federation until it is interrupted, show its status, or remove what old jobs have left.

    It listens on the port of the federation for connections with a certificate of the federation. It stores the runs,
    without rows of any site, in the folder `runs` of the kit. A process that ends is started again.

    The action `status` shows who is connected, and of the newest run the round, who is waited for, replies, refusals by
    code, traffic and memory. Its exit code is 0 if the server runs, and 1 otherwise.

    Args:
        action: start runs the server; status shows its status; clean removes the engine's folders of jobs that have
            ended, and no run.
        kit: the server's kit.
        models: models of your own, module:function, that an experiment may name, with modules in the current folder or
            the environment. Every site has to allow them too, with the key `models` of its site.yaml.
        live: for start: a port, such as 8010, at which this machine sees the status: as a page, as JSON (/status.json)
            and as metrics for Prometheus (/metrics). ADDRESS:PORT serves other machines, without a password.
        format: for status: text or json.
        days: for clean: jobs of the last days are left.
    """
    import json
    import sys

    from resolvent.cli import supervision, terminal
    from resolvent.federation.lead.engines import ENGINES, require_engine
    from resolvent.federation.protocol.kits import kit_note, started_once
    from resolvent.federation.protocol.names import CODE_FOLDER, MODELS

    note = kit_note(kit, "server")
    if action == "status":
        sys.exit(supervision.show_status(note, format))
    if action == "clean":
        supervision.clean(note, days)
        return
    require_engine(note.engine)
    with started_once(note):
        terminal.print_line(f"server of {note.address}; Ctrl-C ends it")
        supervision.supervise(note, {MODELS: json.dumps(models), CODE_FOLDER: str(Path.cwd())},
                              ENGINES[note.engine].server_news, live)


def party(
    action: Annotated[Literal["new", "check", "start", "plans", "approve", "reject", "ledger", "clean"],
                      tyro.conf.Positional],
    plan: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PLAN")] = "",
    *,
    kit: OptionalPath = None,
    site: OptionalPath = None,
    table: OptionalText = None,
    set: Changes = (),
    experiment: OptionalPath = None,
    reason: str = "",
    out: OptionalPath = None,
    compare: OptionalPath = None,
    live: OptionalText = None,
    days: float = 7.0,
    attack: bool = False,
    seconds: float = 120.0,
    format: Literal["text", "json"] = "text",
) -> None:
    """Check a site's table and limits, decide about plans, or take part in a federation until it is interrupted.

    The action `new` writes the site's file, site.yaml, for the table of --table: every setting with its meaning and its
    default, and the reason of every limit. Read it and change what does not suit. It never overwrites a file.

    The action `check` reads the table and shows its columns, its rows, the limits and, with an experiment, all
    that would leave the site, by name and size. With --attack it tries, on the site's own table, what insiders of the
    federation could, and says how many rows come back from the plan. Nothing leaves the site.

    The action `start` connects to the server and takes part in the experiments of the lead, within the limits. The
    folder `runs` of the kit has, for each run, the site's models for `resolvent predict` and a log of all that left the
    site. A process that ends is started again.

    The action `plans` lists the plans that leads have signed and sent. With the key `approval` in the site's file, a
    plan beyond its rule waits until a person decides with `approve PLAN` or `reject PLAN`.

    The action `ledger` shows what the site has answered in all experiments. A line that was changed or removed is an
    error.

    Args:
        action: new: write the site's file; check the table and the limits, start to take part, show the plans, approve
            or reject one of them, show the ledger, or clean: remove the engine's folders of jobs that have ended, and
            no run.
        plan: for approve and reject: the first characters of the plan's name, as `plans` shows it.
        kit: the site's kit; new needs none.
        reason: for approve and reject: a text for the site's own record.
        out: for ledger: a file for the lines of the ledger, as a page for a browser (.html) or as CSV.
        compare: for ledger: an earlier copy of the file ledger.jsonl, which the ledger must continue.
        site: the site's file, for check and start: its table, names of columns that differ, and its limits. For new:
            the file to write; default: site.yaml.
        table: for new: the file with the rows of the site, in the folder of its file.
        set: for new: further settings, such as limits.min_cell=10.
        experiment: the lead's experiment file, for check.
        live: for start: a port, such as 8010, at which this machine sees the plans and the ledger of the site.
        days: for clean: jobs of the last days are left.
        attack: for check with an experiment: attack what the plan would release.
        seconds: for check with --attack: the time for the attacks on replies and models, apart from compilation.
        format: for check with --attack: text or json.
    """
    from resolvent.cli import site_records, supervision, terminal
    from resolvent.errors import InputError
    from resolvent.federation.protocol.files import read_site
    from resolvent.federation.protocol.kits import kit_note, started_once

    if action == "new":
        from resolvent.federation.site.new_file import write_site_file

        if table is None:
            raise InputError("party new needs --table, the file with the rows of the site, in the folder of its file")
        path = site or Path("site.yaml")
        write_site_file(path, table, flat(set))
        terminal.print_path("Site", path)
        terminal.print_line("It has every setting with its meaning. Read it, and change what does not suit. Next: "
                            f"resolvent party check --kit KIT --site {path} [--experiment FILE.yaml]")
        return
    if kit is None:
        raise InputError(f"party {action} needs --kit, the site's kit")
    note = kit_note(kit, "site")
    if action == "clean":
        supervision.clean(note, days)
        return
    if action in ("plans", "approve", "reject"):
        site_records.decide(note, action, plan, reason)
        return
    if action == "ledger":
        site_records.show_ledger(note, out, compare)
        return
    if site is None:
        raise InputError(f"party {action} needs --site, the site's file with its table and its limits")
    file = read_site(site)
    if action == "check":
        from resolvent.federation.protocol.names import runs_of
        from resolvent.federation.site.check import check_site

        if attack:
            site_records.attack_plan(note, file, experiment, seconds, has_json=format == "json")
            return

        for line in check_site(file, note.name, experiment, runs_of(note.kit)):
            terminal.print_line(line)
        return
    from resolvent.federation.lead.engines import ENGINES, require_engine
    from resolvent.federation.protocol.names import SITE_FILE
    from resolvent.federation.protocol.second_sessions import SECOND_SESSION

    require_engine(note.engine)
    with started_once(note):
        terminal.print_line(f"site {note.name} of the federation at {note.address}; Ctrl-C ends it")
        news = {**ENGINES[note.engine].site_news, SECOND_SESSION: "the server has refused a second process, such as "
                "one with a copy of this kit, that connects as: "}
        supervision.supervise(note, {SITE_FILE: str(site.resolve())}, news, live)


def federate(
    experiment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.yaml|NAME")],
    *,
    kit: OptionalPath = None,
    rehearse: bool = False,
    secure: bool = False,
    engine: Literal["nvflare", "flower"] = "nvflare",
    out: OptionalPath = None,
    sites: Texts = (),
    set: Changes = (),
    quorum: OptionalInt = None,
    grace: float = 0.0,
    deadline: float = 600.0,
    retries: int = 3,
    lost_state: Literal["refuse", "restart"] = "refuse",
    live: OptionalText = None,
) -> None:
    """Run an experiment between real sites; writes a run folder with a report.

    Try `resolvent federate digits --rehearse`: server, three sites and lead run on this machine, connected with
    certificates, and the models are compared with those of a simulation.

    The file is that of `resolvent run`. In a federation every site has its own table, so that data needs no table and
    no party: `data: {label: outcome}`. The sites agree on columns, categories and scaling first; nothing starts while
    their tables do not fit together.

    A file with `regression: {formula: ill ~ age}` is that of `resolvent regress`: the table and the page are the same.

    The folder has the shared models, the scores that sites let out, and who answered. Every site has its personal
    model. If a process ends, the run continues from the server's checkpoint. If this command ends, run it again with
    the same --out.

    Args:
        experiment: an experiment file; in a rehearsal also the name of an experiment, such as digits.
        kit: the lead's kit; in a federation over Flower the server's kit, on the server's machine.
        rehearse: run server, sites and lead on this machine, from the table of the experiment, and compare with a
            simulation.
        secure: the server learns sums of the replies only; the same as --set "privacy={secure_sums: true}". A rehearsal
            prints what the server got, and what was behind it.
        engine: the program that connects the participants of a rehearsal: nvflare (NVIDIA FLARE) or flower. Elsewhere
            the kit says it.
        out: the run folder; default: runs/NAME-federation, or runs/NAME-rehearsal.
        sites: the sites that take part; default: all of the federation. An unfinished run continues with these sites
            from its next round on; without this option it continues with the sites that it has.
        set: change settings, such as rounds=50 solver.learning_rate=0.1.
        quorum: number of sites that must answer in a round; default: all, which gives the models of a simulation.
        grace: seconds for which the server waits for further replies after the quorum.
        deadline: longest wait for replies in seconds.
        retries: how often a round is repeated if fewer sites than the quorum have answered; then the run stops and can
            be continued.
        lost_state: what happens to a site that has lost its disk: refuse it, or let it restart.
        live: a port, such as 8010, at which this machine sees the run as a page, while the command runs.
    """
    from resolvent.cli import supervision, terminal
    from resolvent.errors import InputError
    from resolvent.federation.lead.engines import ENGINES, require_engine
    from resolvent.federation.protocol.job import FederationJob
    from resolvent.federation.protocol.kits import KitNote, kit_note
    from resolvent.federation.protocol.plan import is_regression_file

    if rehearse == (kit is not None):
        raise InputError("give the lead's --kit for a federation, or --rehearse for a rehearsal on this machine")
    changes = [*flat(set), *(["privacy={secure_sums: true}"] if secure else [])]
    rules: dict[str, Any] = {"quorum": quorum, "grace": grace, "deadline": deadline, "retries": retries,
                             "lost_state": lost_state}
    name = Path(experiment).stem if experiment.endswith((".yaml", ".yml")) else experiment
    folder = Path("runs") / f"{name}-{'rehearsal' if rehearse else 'federation'}" if out is None else out
    if is_regression_file(experiment):
        from resolvent.cli.regress import federate_file

        federate_file(experiment, changes, folder, rules, None if rehearse else kit, sites, engine, live)
        return
    if rehearse:
        summary = _rehearse(experiment, changes, folder, rules, engine)
    else:
        from resolvent.federation.lead.lead import federate as run_federation
        from resolvent.federation.lead.lead import read_sites
        from resolvent.federation.protocol.experiment import experiment_of_file

        assert kit is not None
        note = kit_note(kit, ENGINES[KitNote(kit).engine].lead_kind)
        require_engine(note.engine)
        plan = experiment_of_file(experiment, changes)
        job = FederationJob("", plan.text, read_sites(note.kit, sites), **rules)
        with (federation_observer() as show,
              supervision.lead_page(live, note, name, job.sites, show) as observe):
            summary = run_federation(note, plan, folder, job, observe, notify=terminal.print_note,
                                     has_sites=bool(sites))
    terminal.print_table(terminal.score_table(summary))
    terminal.print_line(summary["finding"])
    terminal.print_path("Report", folder / "report.html")


def _rehearse(source: str, changes: list[str], out: Path, rules: Mapping[str, Any],
              engine: "Engine") -> dict[str, Any]:
    import sys

    from resolvent.cli import terminal
    from resolvent.comparisons.experiment.experiment_file import ExperimentFile
    from resolvent.federation.lead.engines import require_engine
    from resolvent.federation.lead.rehearsal import prepare_rehearsal, rehearse, shipped_changes
    from resolvent.federation.lead.secure_view import hidden_numbers
    from resolvent.federation.protocol.job import FederationJob

    require_engine(engine)
    rehearsal = prepare_rehearsal(ExperimentFile.load(source, [*shipped_changes(source), *changes]))
    job = FederationJob("", rehearsal.experiment.text, tuple(rehearsal.sites), rehearsal=True, **rules)
    participants = out.with_name(f"{out.name}.rehearsal")
    with federation_observer() as observe:
        summary, parities = rehearse(rehearsal, out, job, observe, folder=participants, notify=terminal.print_note,
                                      engine=engine)
    for parity in parities:
        verdict = "the same models as the simulation" if parity.is_equal else "OTHER MODELS THAN THE SIMULATION"
        terminal.print_line(f"{parity.method}: {verdict}; largest difference of a parameter {parity.difference:.1e}, "
                            f"largest parameter {parity.largest:.2g}")
    kits = {site: participants / "kits" / site for site in rehearsal.sites}
    for numbers in hidden_numbers(rehearsal.experiment, kits, summary["run"]):
        received, hidden = (", ".join(f"{value:.4g}" for value in values)
                            for values in (numbers.received, numbers.hidden))
        terminal.print_line(f"{numbers.method}, {numbers.site}: the server got {received}, ...; behind it is {hidden}, "
                            "...")
    terminal.print_path("Kits, tables and runs of the sites", participants)
    if not all(parity.is_equal for parity in parities):
        sys.exit(FAILURE)
    return summary


FEDERATION_COMMANDS: dict[str, Callable[..., Any]] = {"federation": federation, "server": server, "party": party,
                                                      "federate": federate}
