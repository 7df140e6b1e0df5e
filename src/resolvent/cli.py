"""The command line: parses, calls ``study``, prints."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import rich.box
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from resolvent.problem.errors import InputError
from resolvent.study.components import REGISTRIES, first_line
from resolvent.study.experiment import ExperimentFile, experiments

__all__ = ["main"]

out_console = Console()
Changes = Annotated[tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="KEY.PATH=VALUE ...")]
Kind = Literal["all", "experiments", "algorithms", "data", "models", "solvers", "participation", "penalties",
               "aggregators"]


def run(
    experiment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE.yaml")],
    *,
    set: Changes = (),
    rounds: int | None = None,
    seed: int | None = None,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Train, compare and show a federation; writes a run folder with a report.

    Try: resolvent run digits
    Your own table: resolvent run mine.yaml, with data: {table: visits.parquet, party: hospital, label: outcome}

    Args:
        experiment: an experiment's name (see `resolvent list`) or a YAML file (see `resolvent show digits`).
        set: change settings, such as rounds=50 solver.learning_rate=0.1 algorithms.FedProx.mu=1.
        rounds: how many rounds; short for --set rounds=...
        seed: the seed; short for --set seed=...
        out: the run folder; default: runs/NAME, or the next that is free.
        resume: finish a run that was interrupted.
        overwrite: replace what is in the folder, once the new run is complete.
    """
    from resolvent.study.session import run_experiment

    changes = [change for group in set for change in group]
    changes += [f"{key}={value}" for key, value in (("rounds", rounds), ("seed", seed)) if value is not None]
    file = ExperimentFile.load(experiment, changes)
    columns = (TextColumn("{task.description:>16}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"),
               TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=False) as shown:
        tasks = {}

        def progress(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = shown.add_task(label, total=total)
            shown.update(tasks[label], completed=done)

        folder, summary = run_experiment(file, out, resume=resume, overwrite=overwrite, progress=progress)
    out_console.print(_score_table(summary))
    out_console.print(summary["finding"], highlight=False)
    out_console.print(f"Report: {folder / 'report.html'}", highlight=False, soft_wrap=True)


def list_(what: Annotated[Kind, tyro.conf.Positional] = "all") -> None:
    """List what there is: experiments, algorithms, data sets, models and the rest, each with one line.

    Args:
        what: one kind, or all of them.
    """
    lists = {"experiments": {name: ExperimentFile.load(name).bound.values["title"] for name in experiments()}}
    for kind, registry in zip(("data", "models", "algorithms", "solvers", "participation", "penalties", "aggregators"),
                              REGISTRIES.values(), strict=True):
        lists[kind] = {name: first_line(function) for name, function in registry.functions.items()}
    for kind, entries in lists.items():
        if what in ("all", kind):
            table = Table(title=kind, title_justify="left", show_header=False, box=None, pad_edge=False)
            for name, line in entries.items():
                table.add_row(f"[bold]{name}[/bold]", line)
            out_console.print(table)
            out_console.print()


def show(
    experiment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE.yaml")],
    *,
    set: Changes = (),
) -> None:
    """Print an experiment as YAML, every default filled in and explained, ready to edit.

    Try: resolvent show digits > mine.yaml

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

    out_console.print(f"Report: {write_report(folder)}", highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command line; exit code 0 done, 2 the input is wrong, 1 it failed."""
    commands: dict[str, Callable[..., Any]] = {"run": run, "list": list_, "show": show, "report": report}
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands, prog="resolvent", config=(tyro.conf.FlagCreatePairsOff,),
            description="Federated optimization: train, compare and show federations on real data.")
    except InputError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/bold red] {error}", markup=True, highlight=False)
        sys.exit(2)


def _score_table(summary: dict) -> Table:  # type: ignore[type-arg]
    """The table that a person reads."""
    percent = summary["score"] == "accuracy"
    score = summary["score"].replace("_", " ")
    against_alone = summary["alone"] is not None
    title = f"test {score} over {len(summary['data']['parties'])} parties; global: of the one shared model"
    caption = "better, level, worse: parties against training alone" if against_alone else None
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=rich.box.SIMPLE_HEAD,
                  pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for column in ("mean", "p10", "worst", "global\nmean", "global\np10", "global\nworst"):
        table.add_column(column, justify="right")
    if against_alone:
        for column in ("better", "level", "worse"):
            table.add_column(column, justify="right")
    for name, method in summary["methods"].items():
        final = method["final"]
        columns = ("mean", "p10", "worst", "global mean", "global p10", "global worst")
        cells = [_cell(final[c], percent) for c in columns]
        if against_alone:
            cells += ["" if name == summary["alone"] else str(final[c]) for c in ("better", "level", "worse")]
        table.add_row(name, *cells)
    return table


def _cell(value: float | None, percent: bool) -> str:
    return "-" if value is None else f"{value:.1%}" if percent else f"{value:.4g}"


if __name__ == "__main__":
    main()
