"""``resolvent lead``: what those who organise a federation type: kits, the server, runs between sites, the card."""

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from resolvent.cli.exit_codes import FAILURE
from resolvent.cli.federation_events import federation_observer
from resolvent.cli.options import (
    Changes,
    Format,
    Kit,
    OptionalKit,
    OptionalPath,
    OptionalText,
    Reason,
    Run,
    Texts,
    flat,
)

if TYPE_CHECKING:
    from resolvent.federation.protocol.kits import Engine

ConsortiumFile = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CONSORTIUM.yaml")]
Participant = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]

_RULES = "federation."  # settings of --set that begin with it say how long the server waits, and for how many sites


def kits(consortium: ConsortiumFile) -> None:
    """Make a kit for the server, each site and the lead: certificate, private key, address.

    resolvent lead kits consortium.yaml
    resolvent lead kits hearts/consortium.yaml

    They are in the folder kits, next to the file, which has four lines: `name: hearts`, `host: fed.example.org`,
    `sites: [aachen, berlin]` and `lead: lead@example.org`. Send each kit to its owner over a channel that others cannot
    read, and keep the folder `authority`: it makes kits. Again, after a site was added to the file: its kit is added,
    the others stay valid.

    Args:
        consortium: the file: name, host, port (default 8002), sites, lead, members, engine (nvflare or flower).
    """
    from resolvent.cli import terminal
    from resolvent.federation.lead.engines import make_federation_kits
    from resolvent.federation.lead.key_changes import check_not_revoked
    from resolvent.federation.protocol.files import read_consortium
    from resolvent.federation.protocol.kits import SERVER_KIT

    plan = read_consortium(consortium)
    folder = consortium.parent / "kits"
    check_not_revoked(folder, plan)
    made = make_federation_kits(folder, plan)
    commands = {SERVER_KIT: "resolvent lead serve {}", plan.lead: "resolvent lead start mine.yaml {}",
                **dict.fromkeys(plan.sites, "resolvent site start {} site.yaml")}
    for name, kit in made.items():
        terminal.print_path(name, kit)
        if name in commands:
            terminal.print_line(f"    {commands[name].replace('{}', str(kit))}")
    if plan.engine == "flower":
        from resolvent.federation.engines.flower.kits import APP

        terminal.print_path("App that resolvent lead start gives to flwr run", folder / plan.lead / APP)
    if not made:
        terminal.print_line(f"all participants of {consortium} have a kit in {folder}")
    terminal.print_line(f"Keep {folder / 'authority'} to yourself: it signs kits.")


def revoke(consortium: ConsortiumFile, name: Participant, reason: Reason = "") -> None:
    """Exclude a participant that has left, or whose key was stolen.

    resolvent lead revoke consortium.yaml celle
    resolvent lead revoke consortium.yaml celle "left the consortium"

    A running federation refuses the key as soon as the server has the files that the command names.

    Args:
        consortium: the file of the federation.
        name: the site, or the lead's e-mail address.
        reason: a text for the record.
    """
    from resolvent.federation.lead.key_changes import revoke_key

    _change_key(revoke_key, consortium, name, reason)


def rotate(consortium: ConsortiumFile, name: Participant, reason: Reason = "") -> None:
    """Give a participant a kit with a new key; the old one is refused.

    resolvent lead rotate consortium.yaml celle
    resolvent lead rotate consortium.yaml celle "stolen laptop"

    Args:
        consortium: the file of the federation.
        name: the site, or the lead's e-mail address.
        reason: a text for the record.
    """
    from resolvent.federation.lead.key_changes import rotate_key

    _change_key(rotate_key, consortium, name, reason)


def _change_key(change_key: Callable[..., Any], consortium: Path, name: str, reason: str) -> None:
    from resolvent.cli import terminal
    from resolvent.federation.protocol.files import read_consortium

    plan = read_consortium(consortium)
    change = change_key(consortium.parent / "kits", plan, name, reason)
    if change.new is not None:
        terminal.print_path(f"New kit of {name}, to which its owner moves the folder runs of the old one", change.new)
    if change.old is not None:
        terminal.print_path("Old kit, which is refused", change.old)
    for file in change.files:
        terminal.print_path("Copy to the server, to the same folder of its kit; it need not be restarted", file)
    if change.sites_need_list:
        terminal.print_line("Send revoked.json to every site, too, for the folder startup of its kit.")


def serve(kit: Kit, *, models: Texts = (), live: OptionalText = None) -> None:
    """Run the server of a federation until Ctrl-C.

    resolvent lead serve kits/server
    resolvent lead serve kits/server --live 8010

    It accepts connections with a certificate of the federation, and stores the runs, without rows of any site, in the
    folder `runs` of the kit. A process that ends is started again.

    Args:
        kit: the server's kit.
        models: models of your own, module:function, that an experiment may name, with modules in the current folder or
            the environment. Every site has to allow them too, with the key `models` of its site.yaml.
        live: a port at which this machine sees the status: as a page, as JSON (/status.json) and as metrics for
            Prometheus (/metrics). ADDRESS:PORT serves other machines, without a password.
    """
    import json

    from resolvent.cli import supervision, terminal
    from resolvent.federation.lead.engines import require_engine
    from resolvent.federation.protocol.kits import kit_note, started_once
    from resolvent.federation.protocol.names import CODE_FOLDER, MODELS

    note = kit_note(kit, "server")
    require_engine(note.engine)
    with started_once(note):
        terminal.print_line(f"server of {note.address}; Ctrl-C ends it")
        supervision.supervise(note, {MODELS: json.dumps(models), CODE_FOLDER: str(Path.cwd())}, live)


def status(kit: Kit, *, follow: bool = False, format: Format = "text") -> None:
    """Show who is connected, and of the newest run the round, who is waited for, and refusals.

    resolvent lead status kits/server --follow
    resolvent lead status kits/server --format json

    The exit code is 0 if the server runs, and 1 otherwise.

    Args:
        kit: the server's kit, on the server's machine.
        follow: go on and print what is new, until the server ends or Ctrl-C.
        format: text or json; with --follow, an object on a line for each change.
    """
    from resolvent.cli import supervision
    from resolvent.federation.protocol.kits import kit_note

    show = supervision.follow_status if follow else supervision.show_status
    sys.exit(show(kit_note(kit, "server"), format))


def clean(kit: Kit, days: Annotated[float, tyro.conf.Positional, tyro.conf.arg(metavar="[DAYS]")] = 7.0) -> None:
    """Remove the engine's folders of jobs that have ended from the kit of the server or of a site, and no run.

    resolvent lead clean kits/server
    resolvent lead clean kits/aachen 1

    Args:
        kit: the kit of the server or of a site that is not started.
        days: keep jobs that are newer.
    """
    from resolvent.cli import supervision
    from resolvent.federation.protocol.kits import KitNote

    supervision.clean(KitNote(kit), days)


def card(run: Run, kit: OptionalKit = None) -> None:
    """Write the model card of a run; with a kit, check the signed card of a federated run.

    resolvent lead card runs/mine
    resolvent lead card runs/mine-federation kits/aachen

    With any kit of the federation the command checks that the lead has signed the card, and that no file of the card
    and of the run was changed.

    Args:
        run: a run folder.
        kit: the kit of a participant, which has the certificate of the federation's authority.
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.runs.record import read_metrics, read_record
    from resolvent.errors import InputError
    from resolvent.federation.lead.model_card import MODEL_CARD, write_model_card
    from resolvent.federation.protocol.cards import check_card
    from resolvent.federation.protocol.kits import KitNote

    if kit is None:
        if (run / f"{MODEL_CARD}.signature.json").exists():
            raise InputError(f"{run} has a card that its lead has signed: name the kit of a participant to check it")
        terminal.print_path("Model card", write_model_card(run, read_record(run), read_metrics(run)))
        return
    lead, signed = check_card(run, MODEL_CARD, KitNote(kit).verify)
    terminal.print_line(f"{lead} has signed this card of the run {signed['run']}, with the plan "
                        f"{signed['plan']['digest']}; the card and {len(signed['files'])} files of the run are "
                        "unchanged")


def start(
    experiment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.yaml|NAME")],
    kit: OptionalKit = None,
    *,
    rehearse: bool = False,
    out: OptionalPath = None,
    sites: Texts = (),
    set: Changes = (),
    live: OptionalText = None,
) -> None:
    """Run an experiment or another plan between real sites; writes a run folder with a report.

    resolvent lead start digits --rehearse
    resolvent lead start mine.yaml kits/lead@example.org

    The file is the one of `resolvent run`, `regress`, `describe` or `survival`, without a table: `data: {label:
    outcome}`. A rehearsal runs server, three sites and lead on this machine and compares the models with a simulation.
    If the command ends, run it again with the same --out: it continues.

    Args:
        experiment: the file; in a rehearsal also the name of an experiment, such as digits.
        kit: the lead's kit; over Flower on the machine of the SuperLink.
        rehearse: run all participants on this machine, from the table of the experiment.
        out: the run folder; default: runs/NAME-federation, or runs/NAME-rehearsal.
        sites: the sites that take part; default: all, or those of the unfinished run.
        set: change settings, such as rounds=50 privacy='{secure_sums: true}'. federation.quorum: number of sites that
            must answer in a round (default: all); federation.grace: seconds to wait for more after the quorum (0);
            federation.deadline: longest wait for replies (600); federation.retries of a round (3);
            federation.lost_state: refuse or restart a site that has lost its disk (refuse). federation.engine=flower
            rehearses over Flower and not NVIDIA FLARE; elsewhere the kit says it.
        live: a port at which this machine sees the run as a page, while the command runs.
    """
    from resolvent.errors import InputError

    if rehearse == (kit is not None):
        raise InputError("name the lead's kit for a federation, or --rehearse for a rehearsal on this machine")
    changes, rules = _divide(flat(set))
    engine = rules.pop("engine", None)
    if engine is not None and kit is not None:
        raise InputError("--set federation.engine is for a rehearsal: the kit says what connects the participants")
    name = Path(experiment).stem if experiment.endswith((".yaml", ".yml")) else experiment
    folder = Path("runs") / f"{name}-{'rehearsal' if rehearse else 'federation'}" if out is None else out
    if kit is None:
        result, is_equal = _rehearse(experiment, changes, folder, rules, engine or "nvflare")
    else:
        result, is_equal = _federate(experiment, changes, folder, rules, kit, sites, live), True
    _print_result(result, folder)
    if not is_equal:
        sys.exit(FAILURE)


def _federate(source: str, changes: list[str], out: Path, rules: Mapping[str, Any], kit: Path, sites: Texts,
              live: str | None) -> Any:
    """Run a plan between real sites."""
    from resolvent.cli import supervision, terminal
    from resolvent.federation.lead.engines import require_engine
    from resolvent.federation.lead.lead import federate, read_sites
    from resolvent.federation.protocol.job import FederationJob
    from resolvent.federation.protocol.kits import kit_note
    from resolvent.federation.protocol.plan_files import plan_of_file

    note = kit_note(kit, "person")
    require_engine(note.engine)
    plan = plan_of_file(source, changes)
    job = FederationJob("", plan.text, read_sites(note.kit, sites), **rules)
    with federation_observer() as show, supervision.lead_page(live, note, plan.name, job.sites, show) as observe:
        return federate(note, plan, out, job, observe, notify=terminal.print_note, has_sites=bool(sites))


def _print_result(result: Any, folder: Path) -> None:
    """Print what a plan has found, of an experiment its first screen and otherwise the table, and where the page is."""
    from resolvent.cli import outcomes, terminal
    from resolvent.cli.numbers import print_numbers
    from resolvent.cli.regress import print_fit
    from resolvent.comparisons.plan_result import PlanResult
    from resolvent.comparisons.runs.record import RunRecord

    if isinstance(result, RunRecord):
        outcomes.print_outcome(result, folder / "report.html",
                               next_command=f"resolvent show {shlex.quote(str(folder))}")
    else:
        (print_numbers if isinstance(result, PlanResult) else print_fit)(result)
        terminal.print_path("Report", folder / "report.html")


def _divide(changes: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The changes of the experiment, and the rules of the exchange, whose names begin with ``federation.``.

    >>> _divide(["rounds=5", "federation.quorum=2"])
    (['rounds=5'], {'quorum': 2})
    """
    from resolvent.cli.options import chosen, one_of

    kinds: dict[str, Callable[[str], Any]] = {
        "quorum": int, "grace": float, "deadline": float, "retries": int,
        "lost_state": one_of("refuse", "restart"), "engine": one_of("nvflare", "flower")}
    rules = [change for change in changes if change.startswith(_RULES)]
    return ([change for change in changes if not change.startswith(_RULES)],
            {name.removeprefix(_RULES): value for name, value in chosen(
                (tuple(rules),), {f"{_RULES}{name}": kind for name, kind in kinds.items()}).items()})


def _rehearse(source: str, changes: list[str], out: Path, rules: Mapping[str, Any],
              engine: "Engine") -> tuple[Any, bool]:
    """Rehearse a plan; returns its result, and whether the simulation has the same."""
    from resolvent.cli import terminal
    from resolvent.comparisons.runs.record import RunRecord
    from resolvent.federation.lead.engines import require_engine
    from resolvent.federation.lead.rehearsal import hidden_numbers, rehearsal_of_file, rehearse
    from resolvent.federation.protocol.job import FederationJob

    require_engine(engine)
    rehearsal = rehearsal_of_file(source, changes)
    job = FederationJob("", rehearsal.plan.text, tuple(rehearsal.sites), **rules)
    participants = out.with_name(f"{out.name}.rehearsal")
    with federation_observer() as observe:
        result, parities = rehearse(rehearsal, out, job, observe, folder=participants, notify=terminal.print_note,
                                    engine=engine)
    for parity in parities:
        terminal.print_line(parity.line)
    kits = {site: participants / "kits" / site for site in rehearsal.sites}
    for numbers in hidden_numbers(rehearsal.plan, kits, result.run) if isinstance(result, RunRecord) else ():
        received, hidden = (", ".join(f"{value:.4g}" for value in values)
                            for values in (numbers.received, numbers.hidden))
        terminal.print_line(f"{numbers.method}, {numbers.site}: the server got {received}, ...; behind it is {hidden}, "
                            "...")
    terminal.print_path("Kits, tables and runs of the sites", participants)
    return result, all(parity.is_equal for parity in parities)
