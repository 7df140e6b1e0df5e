"""The papers' figures, run again: ``python -m experiments list``, ``python -m experiments NAME --quick``.

At the paper's scale convex problems take minutes and networks take hours; the notes in the results state the scale.
``resolvent data check`` shows whether real data are available.

Exit codes: 0 done; 1 a figure failed, or a verdict is worse than a known one; 2 an argument or a file is wrong, or a
file is damaged; 4 data are missing.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import NO_DATA, WRONG_INPUT
from resolvent.errors import InputError, MissingDataError

RESULTS = Path("experiments") / "results"


def parser() -> argparse.ArgumentParser:
    """The options."""
    result = argparse.ArgumentParser(prog="python -m experiments", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("names", nargs="+", metavar="NAME", help="figures, one or several; all; list: print their "
                        "names and titles; redraw [NAME ...]: run nothing, draw pictures and write the page again from "
                        "the JSON files in the results folder")
    result.add_argument("--quick", action="store_true", help="run in a small setting, which takes minutes on two "
                        "cores. It decides most claims, but not those about runs that have converged")
    result.add_argument("--scale", choices=("paper", "middle", "quick"), help="paper, the default; middle, where a "
                        "figure has it, between the two others; or quick, the same as --quick")
    result.add_argument("--out", type=Path, default=RESULTS, help="the results folder; default: %(default)s")
    result.add_argument("--panels", nargs="+", default=[], metavar="TITLE", help="the panels of the figure that run, "
                        "with the claims about them; default: all")
    result.add_argument("--seeds", type=int, help="number of seeds; default: that of the setting")
    result.add_argument("--resume", action="store_true", help="store the states of the runs in the results folder, in "
                        "checkpoints, and continue from those that are there. They are shared by runs of single panels "
                        "and of all panels, and by different numbers of seeds")
    result.add_argument("--jobs", type=int, default=1, help="number of figures that run at the same time, each in its "
                        "own process")
    result.add_argument("--against", type=Path, metavar="FILE", help="known verdicts with which those of the runs are "
                        "compared: the summary.tsv of a run, or a results folder")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code."""
    # Options that follow names may be between them: `redraw --out DIR NAME`.
    options = parser().parse_intermixed_args(arguments)
    try:
        return _run(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return NO_DATA if isinstance(error, MissingDataError) else WRONG_INPUT


def _run(options: argparse.Namespace) -> int:
    from experiments.reproduction import Reproduction, reproductions

    action, *others = options.names
    if action == "list":
        for name in reproductions():
            print(f"{name:40} {Reproduction.load(name).title}")
        return 0
    if action == "redraw":
        _redraw(others, options.out)
        return 0
    if options.quick and options.scale not in (None, "quick"):
        raise InputError(f"--quick and --scale {options.scale} exclude each other: give one of them")
    scale = "quick" if options.quick else options.scale or "paper"
    names = [*reproductions()] if options.names == ["all"] else options.names
    for name in names:
        Reproduction.load(name)  # an unknown name is refused before anything runs
    if len(names) == 1 and options.jobs == 1 and options.against is None:
        _reproduce(names[0], scale, options)
        return 0
    if options.panels or options.seeds is not None or options.resume:
        raise InputError("--panels, --seeds and --resume are for one figure without --jobs and --against: leave them "
                         "out, or name one figure")
    from experiments.batch import run_all

    return run_all(names, options.out, scale=scale, jobs=options.jobs, against=options.against)


def _reproduce(name: str, scale: str, options: argparse.Namespace) -> None:
    """Run one figure in this process, and print its verdicts."""
    from experiments import results
    from experiments.progress import show_progress
    from experiments.reproduction import Reproduction
    from experiments.run import reproduce
    from experiments.schema import SETTING_OF_SCALE

    results.read_records(options.out)  # a damaged file is refused before anything runs
    record = reproduce(Reproduction.load(name), setting=SETTING_OF_SCALE[scale], seeds=options.seeds,
                       progress=show_progress, panels=options.panels,
                       checkpoints=options.out / "checkpoints" / f"{name}-{scale}" if options.resume else None)
    path = results.write_results(record, options.out)
    for claim in record["claims"]:
        print(f"{claim['verdict']}: {claim['says']}")
    print(f"Results: {path}")


def _redraw(names: Sequence[str], out: Path) -> None:
    from experiments import results

    pictures = [picture for name in names or (None,) for picture in results.redraw(out, name)]
    if not pictures:
        raise InputError(f"{out} has no results of {' or '.join(names) or 'any figure'} to draw: run it first")
    for picture in pictures:
        print(f"Drawn: {picture}")


if __name__ == "__main__":
    # Before JAX is imported: a step of a small model does not occupy several cores, and further threads only wait.
    os.environ.setdefault("PJRT_NPROC", "1")
    sys.exit(main())
