"""``resolvent tune``: choose the hyperparameters of an experiment's methods."""

from resolvent.cli.options import LABEL_WIDTH, Changes, OptionalPath, Source, flat
from resolvent.simulator.record.progress import progress_bars


def tune(
    experiment: Source,
    *,
    set: Changes = (),
    out: OptionalPath = None,
    resume: bool = False,
    overwrite: bool = False,
    jobs: int = 1,
) -> None:
    """Choose the hyperparameters of an experiment's methods on validation samples; writes a folder with a page.

    resolvent tune mine.yaml
    resolvent tune mine.yaml --set search.trials=30 search.seeds=3

    The file has a line such as:

    search: {over: {FedProx: {mu: [0.01, 0.1, 1], solver.learning_rate: {low: 0.001, high: 1, scale: log}}}}

    The key `over` names the parameters of each label, or of "*" for all methods. Every method has the same budget,
    trials times rounds. Test samples have no influence. The folder has a table (trials.csv), a page (tuning.html) and
    the experiment with the chosen values (tuned.yaml), which `resolvent run` compares.

    Args:
        experiment: name of an experiment or a YAML file; `search:` may also be set with --set.
        set: change settings, such as 'search.over.FedAvg={solver.learning_rate: [0.01, 0.1]}' or search.rounds=20.
            search.strategy: grid: every combination; random: drawn, spread evenly; optuna: proposed by Optuna from
            earlier trials.
        out: the folder; default: runs/NAME-tuning.
        resume: continue an interrupted search: finished trials are kept.
        overwrite: replace the content of the folder.
        jobs: number of trials of a method that run at the same time.
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.experiment.experiment_file import ExperimentFile
    from resolvent.comparisons.judgement.metrics import format_value, title_of
    from resolvent.comparisons.tuning.files import TUNED_FILE, tune_file

    file = ExperimentFile.load(experiment, flat(set))
    with progress_bars("rounds", width=LABEL_WIDTH) as progress:
        folder, tuned = tune_file(file, out, resume=resume, overwrite=overwrite, jobs=jobs, progress=progress)
    name = tuned.criterion.name
    for label, trial in tuned.best.items():
        values = ", ".join(f"{parameter} = {value}" for parameter, value in trial.point.items())
        terminal.print_line(f"{label}: {values} ({tuned.criterion.split} {title_of(name)} "
                            f"{format_value(trial.reading.score, name)}, best of {len(tuned.trials[label])} trials in "
                            f"{tuned.rounds_spent[label]} rounds)")
    terminal.print_path("Compare the methods with these values", folder / TUNED_FILE)
    terminal.print_path("What was tried", folder / "tuning.html")
