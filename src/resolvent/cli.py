"""The command line: parses, calls ``study``, prints."""

import os
import sys
from collections.abc import Callable
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import rich.box
import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from resolvent.errors import InputError
from resolvent.study.compare import columns_of
from resolvent.study.components import first_line, listings
from resolvent.study.experiment import ExperimentFile, experiments

if TYPE_CHECKING:
    from resolvent.data.fetch import FileStatus
    from resolvent.study.catalogue import Entry

__all__ = ["main"]

Changes = Annotated[tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="KEY.PATH=VALUE ...")]
Kind = Literal["all", "experiments", "reproductions", "algorithms", "combinators", "data", "models", "problems",
               "solvers", "participation", "penalties", "aggregators", "attacks", "codecs", "schedules", "partitions",
               "shifts", "clocks"]


def run(
    experiment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE.yaml")],
    *,
    set: Changes = (),
    rounds: int | None = None,
    seed: int | None = None,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    devices: int | None = None,
    scheduler: Literal["auto", "sequential", "lanes", "queue", "measured"] = "auto",
) -> None:
    """Train, compare and show a federation; writes a run folder with a report.

    Try `resolvent run digits`.

    For your own table, `resolvent run mine.yaml` with the line
    `data: {table: visits.parquet, party: hospital, label: outcome}` in the file.

    Args:
        experiment: an experiment's name (see `resolvent list`) or a YAML file (see `resolvent show digits`).
        set: change settings, such as rounds=50 solver.learning_rate=0.1 algorithms.FedProx.mu=1; another name (such as
            model.name=mlp) starts from that one's defaults.
        rounds: how many rounds; short for --set rounds=...
        seed: the seed; short for --set seed=...
        out: the run folder; default: runs/NAME, or the next that is free.
        resume: finish a run that was interrupted.
        overwrite: replace what is in the folder, once the new run is complete.
        devices: as how many devices the CPU counts, among which each cohort is dealt; of two cores, 2 is worth it for
            convolutional and recurrent networks.
        scheduler: on each device, parties one after the other (sequential), side by side (lanes), or side by side with
            others taking over from those that are done (queue); auto: sequential on a CPU, else lanes; measured: a
            round of each is timed first, and the fastest taken.
    """
    from resolvent.study.runner import run_experiment

    if devices is not None:
        _divide_the_cpu(devices)
    changes = [change for group in set for change in group]
    changes += [f"{key}={value}" for key, value in (("rounds", rounds), ("seed", seed)) if value is not None]
    file = ExperimentFile.load(experiment, changes)
    columns = (TextColumn("{task.description:>16}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"),
               TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=False) as shown:
        tasks = {}

        def progress(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = shown.add_task(escape(label), total=total)
            shown.update(tasks[label], completed=done)

        folder, summary = run_experiment(file, out, resume=resume, overwrite=overwrite, progress=progress,
                                         scheduler=scheduler)
    Console().print(_score_table(summary))
    Console().print(summary["finding"], highlight=False, markup=False)
    for warning in summary.get("warnings", []):
        Console().print(f"[yellow]warning:[/yellow] {escape(warning)}", highlight=False)
    Console().print(f"Report: {folder / 'report.html'}", highlight=False, markup=False, soft_wrap=True)


def _divide_the_cpu(devices: int) -> None:
    """Make it so many devices, which has to be said before anything is computed."""
    if devices < 1:
        raise InputError(f"--devices {devices} must be at least 1")
    import jax

    setting: Callable[..., None] = jax.config.update
    try:
        setting("jax_num_cpu_devices", devices)
    except RuntimeError as error:
        raise InputError(f"--devices {devices}: this process has computed before, and can have no other number of "
                         "devices now") from error


def list_(what: Annotated[Kind, tyro.conf.Positional] = "all", *, json: bool = False) -> None:
    """List what there is: experiments, algorithms, data sets, models and the rest, each with one line.

    `resolvent list algorithms` says what each keeps, sends and is.

    Args:
        what: one kind, or all of them.
        json: print it for a program: what a person sees as a table, as JSON.
    """
    from resolvent.study.catalogue import catalogue
    from resolvent.study.reproduction import Reproduction, reproductions

    lists = {"experiments": {name: ExperimentFile.load(name).bound.values["title"] for name in experiments()}}
    lists["reproductions"] = {name: Reproduction.load(name).title for name in reproductions()}
    for kind, functions in listings().items():
        lists[kind] = {name: first_line(function) for name, function in functions.items()}
    chosen: dict[str, Any] = {kind: entries for kind, entries in lists.items() if what in ("all", kind)}
    entries = catalogue() if what == "algorithms" else []
    if entries:
        chosen = {what: [entry.record() for entry in entries]}
    if json:
        sys.stdout.write(dumps(chosen, indent=2) + "\n")
    elif entries:
        _console().print(_algorithm_table(entries))
    else:
        for kind, lines in chosen.items():
            shown = Table(title=kind, title_justify="left", show_header=False, box=None, pad_edge=False)
            for name, line in lines.items():
                shown.add_row(f"[bold]{escape(name)}[/bold]", escape(line))
            Console().print(shown)
            Console().print()


def show(
    experiment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE.yaml")],
    *,
    set: Changes = (),
) -> None:
    """Print an experiment as YAML, every default filled in and explained, ready to edit.

    Try `resolvent show digits > mine.yaml`.

    Args:
        experiment: an experiment's name or a YAML file.
        set: change settings first, such as model.name=mlp.
    """
    sys.stdout.write(ExperimentFile.load(experiment, [change for group in set for change in group]).to_yaml())


def report(folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]) -> None:
    """Draw the report of a run folder again.

    Args:
        folder: a folder that `resolvent run` wrote.
    """
    from resolvent.study.report import write_report

    Console().print(f"Report: {write_report(folder)}", highlight=False, markup=False, soft_wrap=True)


def data(
    action: Annotated[Literal["fetch", "check"], tyro.conf.Positional],
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]")] = (),
    *,
    to: Path | None = None,
) -> None:
    """Download data sets from their official addresses, or check which are there and whole.

    Data are looked for in the folder that RESOLVENT_DATA names, then in the user's cache folder. A transfer that broke
    off is gone on with when the command is run again. Checking ends with exit code 1 where a file is damaged.

    Args:
        action: fetch (the named data sets) or check (the named ones, or all).
        names: data sets, such as mnist, fashion_mnist, emnist, cifar10, shakespeare, sentiment140.
        to: the folder to download to; default: RESOLVENT_DATA, or else the user's cache folder.
    """
    from resolvent.data.fetch import check, fetch
    from resolvent.data.sources import SOURCES

    if action == "check":
        _check_data([found for name in names or (None,) for found in check(name)])
        return
    if not names:
        raise InputError(f"say what to fetch: {', '.join(SOURCES)}")
    columns = (TextColumn("{task.description:>28}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as shown:
        tasks: dict[str, TaskID] = {}

        def progress(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = shown.add_task(escape(file), total=total or None)
            shown.update(tasks[file], completed=done)

        paths = [path for name in names for path in fetch(name, to, progress)]
    for path in paths:
        Console().print(str(path), highlight=False, markup=False, soft_wrap=True)


def _check_data(found: "list[FileStatus]") -> None:
    """A line per file; exit code 1 where one is damaged."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(4):
        table.add_column(overflow="fold")
    for one in found:
        colour = {"whole": "green", "damaged": "red"}.get(one.state, "dim")
        table.add_row(f"[bold]{one.data_set}[/bold]", f"[{colour}]{one.state}[/{colour}]", escape(one.path.name),
                      escape(one.detail))
    Console(soft_wrap=True).print(table)
    if any(one.state == "damaged" for one in found):
        sys.exit(1)


def reproduce(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]")] = (),
    *,
    all: bool = False,
    quick: bool = False,
    redraw: bool = False,
    out: Path = Path("results"),
    jobs: int | None = None,
    against: Path | None = None,
) -> None:
    """Run a figure of a paper again and check what the paper says of it; writes JSON, a picture and a page.

    Try `resolvent reproduce splitting-anderson --quick`. At the paper's sizes the convex ones take minutes, those of
    networks hours: the notes in the results, and in the files, say which were run how. Real data are looked for as
    `resolvent data check` says.

    Several of them, or all, run in processes of their own, `jobs` at a time, and print a line each when they are done:
    name, seconds, verdicts, and whether one got worse, apart by tabs. With that a folder gets summary.tsv, a row per
    claim. Exit code 1 where one failed or, with `against`, a verdict is worse than it was.

    Args:
        names: of reproductions, see `resolvent list reproductions`.
        all: all there are.
        quick: in a small setting, minutes on two cores, in which the claims can still be told.
        redraw: run nothing: draw its pictures, and the page, again from the JSON files in the folder of results.
        out: the folder of results.
        jobs: how many run at a time; default: 1.
        against: known verdicts to compare with: the summary.tsv of an earlier run, or a folder of results.
    """
    from resolvent.study import results
    from resolvent.study.reproduce import reproduce as run_again
    from resolvent.study.reproduction import Reproduction, reproductions

    if redraw:
        drawn = [picture for name in names or (None,) for picture in results.redraw(out, name)]
        if not drawn:
            raise InputError(f"{out} holds no results of {' or '.join(names) or 'anything'} to draw: leave --redraw "
                             "out, and it is run")
        for picture in drawn:
            Console().print(f"PredrawnCohorts: {picture}", highlight=False, markup=False, soft_wrap=True)
        return
    if all or len(names) > 1 or jobs is not None or against is not None:
        _reproduce_every(tuple(reproductions()) if all else names, out, quick=quick, jobs=jobs or 1, against=against)
        return
    if not names:
        raise InputError(f"say what to reproduce, or --all: {', '.join(reproductions())}")
    what = Reproduction.load(names[0])
    columns = (TextColumn("{task.description:>24}"), BarColumn(), MofNCompleteColumn(), TextColumn("seeds"),
               TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as shown:
        tasks: dict[str, TaskID] = {}

        def progress(panel: str, done: int, total: int) -> None:
            if panel not in tasks:
                tasks[panel] = shown.add_task(escape(panel), total=total)
            shown.update(tasks[panel], completed=done)

        record = run_again(what, setting="quick" if quick else "paper scale", progress=progress)
    path = results.write_results(record, out)
    for claim in record["claims"]:
        Console().print(f"{claim['verdict']}: {claim['says']}", highlight=False, markup=False)
    Console().print(f"Results: {path}", highlight=False, markup=False, soft_wrap=True)


def _reproduce_every(names: tuple[str, ...], out: Path, *, quick: bool, jobs: int, against: Path | None) -> None:
    """A line for each when it is done, and a summary; exit code 1 where something failed or got worse."""
    from resolvent.study.every import known_verdicts, run_every, write_summary
    from resolvent.study.reproduction import Reproduction

    for name in names:
        Reproduction.load(name)  # what there is not is refused before anything runs
    known = {} if against is None else known_verdicts(against)
    columns = (TextColumn("reproductions"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    ran = []
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task("", total=len(names))
        for one in run_every(names, out, quick=quick, jobs=jobs):
            ran.append(one)
            sys.stdout.write(one.line(known) + "\n")
            sys.stdout.flush()
            shown.advance(task)
    write_summary(ran, out / "summary.tsv")
    sys.stdout.write(f"{out / 'summary.tsv'}\n")
    if any(one.failure or one.worse(known) for one in ran):
        sys.exit(1)


def main() -> None:
    """Run the command line; exit code 0 done, 2 the input is wrong, 1 it failed."""
    # Steps this small do not fill two cores: XLA's other threads would only spin, at up to three times the wall time.
    os.environ.setdefault("PJRT_NPROC", "1")
    commands: dict[str, Callable[..., Any]] = {"run": run, "list": list_, "show": show, "report": report,
                                                "reproduce": reproduce, "data": data}
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands, prog="resolvent", config=(tyro.conf.FlagCreatePairsOff,),
            description="Federated optimization: train, compare and show federations on real data.")
    except InputError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/bold red] {escape(str(error))}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: an unfinished run can be finished with --resume\n")
        sys.exit(130)


def _console() -> Console:
    """A console whose tables are folded for a person's screen, not for a program that reads line by line."""
    return Console(width=None if sys.stdout.isatty() else 250)


def _algorithm_table(entries: "list[Entry]") -> Table:
    """The table of algorithms."""
    from resolvent.study.catalogue import CAPTION, table

    head, rows = table(entries)
    shown = Table(title="algorithms", caption=CAPTION, title_justify="left", caption_justify="left",
                  box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in head:
        shown.add_column(name, overflow="fold", no_wrap=name in ("algorithm", "keeps", "up", "personal"))
    for row in rows:
        shown.add_row(*map(escape, row))
    return shown


def _score_table(summary: dict) -> Table:  # type: ignore[type-arg]
    """The table that a person reads."""
    percent = summary["score"] == "accuracy"
    score, parties = summary["score"].replace("_", " "), len(summary["data"]["parties"])
    against_alone = summary["alone"] is not None
    title = f"test {score} over {parties} parties; global: of the one shared model"
    caption = "better, level, worse: parties against training alone" if against_alone else None
    if score == "gap":
        title = f"optimality gap f(w) - f* of the shared model of {parties} parties"
        caption = "rounds to: until the gap was that share of the first one"
    columns = columns_of(summary["score"])
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=rich.box.SIMPLE_HEAD,
                  pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold")
    for column in columns:
        table.add_column("\n".join(column.rsplit(" ", 1)), justify="right", no_wrap=True)
    if against_alone:
        for column in ("better", "level", "worse"):
            table.add_column(column, justify="right", no_wrap=True)
    for name, method in summary["methods"].items():
        final = method["final"]
        cells = [_cell(final[c], percent, missing or "-") for c, missing in columns.items()]
        if against_alone:
            cells += ["" if name == summary["alone"] else str(final[c]) for c in ("better", "level", "worse")]
        table.add_row(escape(name), *cells)
    return table


def _cell(value: float | None, percent: bool, missing: str) -> str:
    return missing if value is None else f"{value:.1%}" if percent else f"{value:.4g}"


if __name__ == "__main__":
    main()
