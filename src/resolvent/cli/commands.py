"""The commands run, list and data.

What a command needs is imported when it runs: help is printed without it.
"""

import shlex
import sys
from collections.abc import Callable
from typing import Annotated, Literal

import tyro

from resolvent.cli.options import LABEL_WIDTH, Changes, Format, Names, OptionalInt, OptionalPath, Source, flat
from resolvent.cli.output import is_started_process, print_json, print_names, print_texts
from resolvent.simulator.record.progress import progress_bars


def run(
    experiment: Source,
    *,
    set: Changes = (),
    rounds: OptionalInt = None,
    out: OptionalPath = None,
    resume: bool = False,
    overwrite: bool = False,
    devices: OptionalInt = None,
    processes: int | Literal["cluster"] = 1,
    jobs: int = 1,
) -> None:
    """Train and compare the methods of an experiment; writes a run folder with a report.

    resolvent run digits
    resolvent run mine.yaml --set rounds=50 seeds=5

    The file of your own table has the line `data: {table: visits.parquet, party: hospital, label: outcome}`. A file
    whose `data` is a list, or that has a `sweep`, is a study: a folder for each, and one page for all of them.

    Args:
        experiment: name of an experiment (see `resolvent list`) or a YAML file (see `resolvent show digits`).
        set: change settings, such as solver.learning_rate=0.1 or algorithms.FedProx.mu=1; 'algorithms=[local, fedavg]'
            compares algorithms at their defaults. seeds=5: other splits, intervals over all of them; folds=5: every row
            is tested once.
        rounds: number of rounds; short for --set rounds=...
        out: the run folder; default: runs/NAME, or the next free number.
        resume: finish an interrupted run, if there is one.
        overwrite: replace the content of the folder when the new run is complete.
        devices: split the CPU into this many JAX devices, which share each cohort.
        processes: share the parties' data and states among this many processes on this machine; or cluster: this is one
            of the processes that Slurm or Open MPI has started.
        jobs: number of experiments that run at the same time, of a file with several data sets or a sweep.
    """
    from resolvent.cli import terminal
    from resolvent.cli.processes import connect_processes, run_in_processes

    if sys.stderr.isatty() and not is_started_process():
        terminal.print_note(f"Loading JAX and {experiment}")  # before the imports, which take seconds
    from resolvent.cli import outcomes
    from resolvent.comparisons.experiment.experiment_file import ExperimentFile
    from resolvent.comparisons.experiment.first_lines import first_lines
    from resolvent.comparisons.runs.runner import run_experiment
    from resolvent.comparisons.study.study_file import read_study, run_study
    from resolvent.errors import InputError
    from resolvent.simulator.mesh import is_writer

    if processes != 1 and processes != "cluster" and not is_started_process():
        sys.exit(run_in_processes(processes))
    if devices is not None:
        _set_cpu_devices(devices)
    if processes != 1:
        connect_processes(processes)
    changes = [*flat(set), *([] if rounds is None else [f"rounds={rounds}"])]
    study = read_study(experiment, changes)
    if study is not None:
        if processes != 1:
            raise InputError("--processes is for a single experiment: leave it out, or give --jobs")
        with progress_bars("rounds", width=LABEL_WIDTH) as progress:
            folder, result = run_study(study, out, resume=resume, overwrite=overwrite, jobs=jobs, progress=progress,
                                       notify=terminal.print_note)
        terminal.print_line(result.paragraph())
        terminal.print_path("Report", folder / "report.html")
        return
    file = ExperimentFile.load(experiment, changes)
    if is_writer() and not resume:
        lines = first_lines(file)
        for line in lines:
            terminal.print_note(line)
        if any(line.startswith("error: ") for line in lines):
            raise InputError(f"{experiment}: data: the table has the errors above, for which it cannot be used: "
                             "mend them in the table, or by the settings that they name, and try again")
    with progress_bars("rounds", width=LABEL_WIDTH) as progress:
        folder, record = run_experiment(file, out, resume=resume, overwrite=overwrite, progress=progress,
                                         notify=terminal.print_note)
    if record is None:  # another process writes it
        return
    outcomes.print_outcome(record, folder / "report.html", next_command=f"resolvent show {shlex.quote(str(folder))}")


def list_(kind: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[KIND]")] = "all", *,
          format: Format = "text") -> None:
    """List what a file can name: experiments, algorithms, data sets, models and all other parts.

    resolvent list
    resolvent list solvers

    Args:
        kind: the parts of one kind, such as algorithms, data, models or solvers, each with its explanation. Without
            it, a line for each kind.
        format: text, or json; for algorithms with the sources and what parties store and send.
    """
    from resolvent.comparisons.experiment.catalogue import catalogue, lines

    kinds = lines()
    if kind not in ("all", *kinds):
        from resolvent.errors import InputError, alternatives, quote

        raise InputError(f"there is no kind {quote(kind)}{alternatives(kind, kinds)}")
    if format == "json":
        print_json({kind: catalogue()} if kind == "algorithms" else
                   {listed: kinds[listed] for listed in kinds if kind in ("all", listed)})
    elif kind == "all":
        print_names(kinds)
        sys.stdout.write("Next: resolvent list KIND\n")
    else:
        print_texts(kind, kinds[kind])


def data(action: Annotated[Literal["fetch", "check"], tyro.conf.Positional], names: Names = ()) -> None:
    """Download data sets from their official addresses, or check the downloaded files.

    resolvent data fetch mnist
    resolvent data check

    Downloads are in the folder RESOLVENT_DATA, or in the user's cache folder if it is not set. An interrupted download
    is resumed when the command runs again. The exit code of check is 1 if a file is damaged.

    Args:
        action: fetch downloads the named data sets; check checks them, or all data sets if none is named.
        names: data sets, such as mnist, fashion_mnist, emnist, cifar10, shakespeare, sentiment140.
    """
    from resolvent.cli import terminal
    from resolvent.data.files.fetch import check, fetch
    from resolvent.data.files.sources import SOURCES
    from resolvent.errors import InputError

    if action == "check":
        files = [file for name in names or (None,) for file in check(name)]
        terminal.print_table(terminal.file_table(files), soft_wrap=True)
        if any(file.state == "damaged" for file in files):
            sys.exit(1)
        return
    if not names:
        raise InputError(f"name the data sets to fetch: {', '.join(SOURCES)}")
    with progress_bars("bytes", width=LABEL_WIDTH) as progress:
        paths = [path for name in names for path in fetch(name, progress=progress)]
    for path in paths:
        terminal.print_path("", path)


def _set_cpu_devices(devices: int) -> None:
    """Split the CPU into JAX devices, which is possible only before the first computation."""
    from resolvent.errors import InputError

    if devices < 1:
        raise InputError(f"--devices {devices} must be at least 1")
    import jax

    setting: Callable[..., None] = jax.config.update
    try:
        setting("jax_num_cpu_devices", devices)
    except RuntimeError as error:
        raise InputError(f"--devices {devices}: JAX has already computed in this process, so that the number of "
                         "devices cannot change") from error
