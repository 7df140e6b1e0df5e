"""``resolvent tune``: choose the hyperparameters of an experiment's methods."""

from typing import Annotated, Literal

import tyro

from resolvent.cli.options import LABEL_WIDTH, Changes, OptionalInt, OptionalPath, Source, flat
from resolvent.simulator.record.progress import progress_bars


def tune(
    experiment: Source,
    *,
    set: Changes = (),
    strategy: Annotated[Literal["grid", "random", "halving", "optuna"] | None,
                        tyro.conf.arg(metavar="{grid,random,halving,optuna}", help_behavior_hint="")] = None,
    trials: OptionalInt = None,
    rounds: OptionalInt = None,
    out: OptionalPath = None,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Choose the hyperparameters of an experiment's methods on validation samples; writes a folder with a page.

    Try `resolvent tune mine.yaml` with this line in the file:

    search: {over: {FedProx: {mu: [0.01, 0.1, 1], solver.learning_rate: {low: 0.001, high: 1, scale: log}}}}

    The key `over` names the parameters of each label, or of "*" for all methods. Every method has the same budget,
    trials times rounds. Test samples have no influence. The folder has a table (trials.csv), a page (tuning.html) and
    the experiment with the chosen values (tuned.yaml), which `resolvent run` compares.

    Args:
        experiment: name of an experiment or a YAML file; `search:` may also be set with --set.
        set: change settings, such as 'search.over.FedAvg={solver.learning_rate: [0.01, 0.1]}'.
        strategy: grid: every combination; random: drawn, spread evenly; halving: many candidates run a few rounds, and
            the best of them run on; optuna: proposed by Optuna from earlier trials. Short for --set search.strategy=...
        trials: full trials of each method; short for --set search.trials=...
        rounds: rounds of a full trial; short for --set search.rounds=...
        out: the folder; default: runs/NAME-tuning.
        resume: continue an interrupted search: finished trials are kept.
        overwrite: replace the content of the folder.
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.experiment.experiment_file import ExperimentFile
    from resolvent.comparisons.judgement.metrics import format_value, title_of
    from resolvent.comparisons.tuning.files import TUNED_FILE, tune_file

    shortcuts = {"strategy": strategy, "trials": trials, "rounds": rounds}
    changes = flat(set) + [f"search.{key}={value}" for key, value in shortcuts.items() if value is not None]
    file = ExperimentFile.load(experiment, changes)
    with progress_bars("rounds", width=LABEL_WIDTH) as progress:
        folder, tuned = tune_file(file, out, resume=resume, overwrite=overwrite, progress=progress)
    name = tuned.criterion.name
    for label, trial in tuned.best.items():
        values = ", ".join(f"{parameter} = {value}" for parameter, value in trial.point.items())
        terminal.print_line(f"{label}: {values} ({tuned.criterion.split} {title_of(name)} "
                            f"{format_value(trial.reading.score, name)}, best of {len(tuned.trials[label])} trials in "
                            f"{tuned.rounds_spent[label]} rounds)")
    terminal.print_path("Compare the methods with these values", folder / TUNED_FILE)
    terminal.print_path("What was tried", folder / "tuning.html")
