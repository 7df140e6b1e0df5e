"""Fill and read the table of the reference.

    python -m experiments.reference                         # every cell that results.json lacks, then picture and page
    python -m experiments.reference --quick                 # minutes: two problems, two seeds, few rounds
    python -m experiments.reference --method mine.py        # a method of yours against the committed table
    python -m experiments.reference --merge rows.json       # add the rows of another machine
    python -m experiments.reference --redraw                # the picture again

A cell is stored when it is done, so that the same command continues an interrupted run.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

from experiments.reference.cells import Budget, cell
from experiments.reference.methods import METHODS, Method, own_method
from experiments.reference.picture import draw
from experiments.reference.problems import PROBLEMS, Problem
from experiments.reference.readings import ALONE, FEDAVG, Table, paragraph
from experiments.reference.rows import RESULTS, Key, Layer, Row, merge, read_rows, write_rows
from resolvent.errors import InputError
from resolvent.files import write_text

LAYERS: tuple[Layer, ...] = ("honest", "attacked")
QUICK = ("digits, 0.1", "diabetes")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.reference", description=__doc__.split("\n")[0])
    parser.add_argument("--method", type=Path, help="a file with a method, whose row is compared with the table")
    parser.add_argument("--merge", type=Path, help="add the rows of a file to the table")
    parser.add_argument("--quick", action="store_true", help="two problems, two seeds and trials, few rounds")
    parser.add_argument("--problems", nargs="+", choices=[p.name for p in PROBLEMS], help="only these")
    parser.add_argument("--methods", nargs="+", choices=[m.name for m in METHODS], help="only these")
    parser.add_argument("--out", type=Path, help="folder of the rows, the picture and the paragraph; default: that of "
                        "the table, or reference-quick, or with --method the name of its file")
    parser.add_argument("--redraw", action="store_true", help="run nothing; draw the picture again")
    options = parser.parse_args(arguments)
    try:
        _do(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _do(options: argparse.Namespace) -> None:
    if options.merge:
        print(f"{merge(options.merge)} new cells in {RESULTS}")
    elif not options.redraw:
        _fill(options)
    if options.merge or options.redraw:
        report({}, RESULTS.parent)


def _fill(options: argparse.Namespace) -> None:
    """Run the cells that are missing."""
    names = options.problems or (QUICK if options.quick else [p.name for p in PROBLEMS])
    methods = [own_method(options.method)] if options.method else [
        m for m in METHODS if m.name in (options.methods or [m.name])]
    folder = options.out or (Path(options.method.stem) if options.method else
                             Path("reference-quick") if options.quick else RESULTS.parent)
    folder.mkdir(parents=True, exist_ok=True)
    problems, path, budget = [p for p in PROBLEMS if p.name in names], folder / RESULTS.name, Budget(options.quick)
    own = fill(problems, methods, path, budget)
    if not options.quick:
        report(own if options.method else {}, folder, None if options.method else own)
        return
    # A quick row is not to be compared with the table, whose runs are longer: with the two baselines at its own budget.
    baselines = [m for m in METHODS if m.name in (ALONE, FEDAVG)] if options.method else []
    known = fill(problems, baselines, folder / "baselines.json", budget) if baselines else own
    report(own if options.method else {}, folder, known)


def fill(problems: Sequence[Problem], methods: Sequence[Method], path: Path, budget: Budget) -> dict[Key, Row]:
    """The rows of a file with all cells of these problems and methods; each is stored when it is done."""
    rows = read_rows(path)
    for _, group in itertools.groupby(problems, key=lambda p: p.programs):
        members = list(group)
        data = {p.name: p.data() for p in members}
        for method, problem, layer in itertools.product(methods, members, LAYERS):
            if (problem.name, layer, method.name) not in rows:
                honest = rows[problem.name, "honest", method.name] if layer == "attacked" else None
                row = cell(problem, layer, method, data[problem.name], honest, budget)
                rows[row.key] = row
                write_rows(path, rows.values())
                print(f"{', '.join(row.key)}: {row.outcome} {row.reason}", flush=True)
    return rows


def report(own: dict[Key, Row], folder: Path, known: dict[Key, Row] | None = None) -> None:
    """Write the picture, and for a method of a file the paragraph about it.

    Args:
        own: the rows of the method of a file; empty: the picture is that of the table.
        known: the rows with which they are compared; default: the committed table.
    """
    table = Table((read_rows(RESULTS) if known is None else known) | own)
    draw(table).savefig(folder / "reference.svg", metadata={"Date": None})
    for method in dict.fromkeys(row.method for row in own.values()):
        text = paragraph(table, method)
        write_text(folder / "paragraph.md", text)
        print(text)


if __name__ == "__main__":
    sys.exit(main())
