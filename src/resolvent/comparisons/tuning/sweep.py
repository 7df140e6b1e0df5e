"""``rv.sweep``: one algorithm with several values of its hyperparameters."""

import dataclasses
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.algorithms.algorithm import Algorithm
from resolvent.arguments import checked
from resolvent.comparisons.judgement.metrics import GAP
from resolvent.comparisons.tuning.jobs import in_jobs
from resolvent.comparisons.tuning.space import Point
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, nearest, quote, shorten
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem, SolvedProblem
from resolvent.simulator import run_options
from resolvent.simulator.record.progress import Progress, progress_bar
from resolvent.simulator.record.result import Result
from resolvent.simulator.run import simulate
from resolvent.simulator.together import groups_of_one_structure, simulate_together

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The runs of a sweep.

    Attributes:
        points: the values of each run.
        results: the result of each run.
    """

    points: list[Point]
    results: list[Result]

    @property
    def table(self) -> "pd.DataFrame":
        """A row per run: its values, and after the last round the mean score over the parties and the worst score.

        For a problem whose optimum is known, the optimality gap takes the place of the scores.
        """
        import pandas as pd

        return pd.DataFrame([{**point, **_scores(result)}
                             for point, result in zip(self.points, self.results, strict=True)])

    def plot(self) -> "Figure":
        """The score against the first parameter; one line for each combination of the others."""
        from resolvent.simulator.record.plots import new_figure

        table, names = self.table, list(self.points[0])
        score = next(column for column in table.columns if column not in names)
        figure, axes = new_figure()
        groups = [((), table)] if not names[1:] else [
            (key if isinstance(key, tuple) else (key,), rows) for key, rows in table.groupby(names[1:], sort=False)]
        for key, rows in groups:
            of_line = ", ".join(f"{name} = {value}" for name, value in zip(names[1:], key, strict=True))
            axes.plot(rows[names[0]], rows[score], "o-", label=of_line)
        if (table[names[0]] > 0).all() and table[names[0]].max() / table[names[0]].min() > 20:
            axes.set_xscale("log")
        axes.set_xlabel(names[0])
        axes.set_ylabel(score)
        if names[1:]:
            axes.legend()
        return figure


@checked
def sweep(
    algorithm: Algorithm,
    model: Model | Problem,
    data: FederatedData | None = None,
    *,
    rounds: int,
    progress: bool | Progress = True,
    over: Mapping[str, Any] | None = None,
    trials_at_once: int = 1,
    jobs: int = 1,
    **values: Any,
) -> Sweep:
    """Run an algorithm with every combination of values of its numbers; all runs have the same random numbers.

    A value is a field of the algorithm or of one of its parts, such as ``mu=[0, 0.1, 1]`` or ``learning_rate=[...]``.
    Floating-point numbers are traced, so that runs with different values share a compiled program.

    Args:
        algorithm: the algorithm.
        model: a model for ``data``, or a problem.
        data: the parties' samples.
        rounds: number of rounds of each run.
        progress: show a progress bar on the terminal; or a function that is called with (rounds done, rounds in total)
            of all runs.
        over: further values, for names that are paths, such as ``{"solver.learning_rate": [0.01, 0.1]}``, or for fields
            that have the name of an argument of ``simulate``.
        trials_at_once: number of runs side by side in one compiled call, see ``Search``; for accelerators. Such runs
            have a seed, a participation, metrics and ``evaluate_every``, and no other setting of ``simulate``.
        jobs: number of runs at the same time, in threads; for small models, which leave cores idle.
        values: the values of each field, by name; and options that all runs have, by the names that ``simulate`` gives
            them: seed, start, participation, evaluate_every, diagnostics, metrics, clock, privacy, scheduler, memory,
            evaluate_parties, on_evaluation.

    Returns:
        The runs, and a table of them.

    Raises:
        InputError: the algorithm has no field of this name, or several; a value is refused; or runs side by side cannot
            have a setting.

    Example:
        >>> problem = rv.problems.least_squares(parties=3, features=2)
        >>> algorithm = rv.fedprox(rv.solvers.GD(0.01, steps=5))
        >>> runs = rv.sweep(algorithm, problem, rounds=3, mu=[0, 0.1, 1], progress=False)
        >>> runs.table.columns.tolist(), len(runs.results)
        (['mu', 'gap'], 3)
    """
    options = {name: values.pop(name) for name in run_options.NAMES if name in values}
    lists = {**(over or {}), **values}
    if not lists:
        raise InputError("sweep: name a number of the algorithm and its values, such as mu=[0, 0.1, 1]; it has "
                         f"{', '.join(_fields(algorithm)) or 'none'}")
    for name, of_name in lists.items():
        if isinstance(of_name, str) or not hasattr(of_name, "__len__") or not len(of_name):
            raise InputError(f"sweep({name}={quote(of_name)}) must be a list of values, such as {name}=[0.01, 0.1]")
    points = [dict(zip(lists, point, strict=True)) for point in itertools.product(*lists.values())]
    algorithms = [with_values(algorithm, point) for point in points]  # wrong values are refused before any run
    with progress_bar(progress, "sweep", rounds * len(points)) as report:
        if trials_at_once == 1:
            done = [0] * len(points)

            def run(number: int, algorithm: Algorithm) -> Result:
                def of_run(rounds_done: int, total: int) -> None:
                    done[number] = rounds_done
                    report(sum(done), total * len(points))

                return simulate(algorithm, model, data, rounds=rounds, progress=of_run, **options)

            return Sweep(points, in_jobs([partial(run, number, a) for number, a in enumerate(algorithms)], jobs))
        if jobs > 1:
            raise InputError("jobs and trials_at_once are two ways to run several at the same time: leave one out")
        for name in options.keys() - inspect.signature(simulate_together).parameters.keys():
            raise InputError(f"sweep({name}={quote(options[name])}) is for runs one after the other: leave "
                             "trials_at_once out")
        results: dict[int, Result] = {}
        for group in groups_of_one_structure(dict(enumerate(algorithms)), trials_at_once):
            together = simulate_together([*group.values()], model, data, rounds=rounds, **options)
            results |= zip(group, together, strict=True)
            report(rounds * len(results), rounds * len(points))
    return Sweep(points, [results[number] for number in range(len(points))])


def with_values(algorithm: Algorithm, point: Point) -> Algorithm:
    """The algorithm with other values of its numbers.

    Args:
        point: value by the name of a field, or by the end of its path, such as ``solver.learning_rate``.
    """
    for name, value in point.items():
        paths = [path for path in _fields(algorithm) if f".{path}".endswith(f".{name}")]
        if len(paths) != 1:
            known = list(_fields(algorithm))
            problem = (f"several fields have this name, {', '.join(paths)}: give more of the path, in over="
                       if paths else f"the algorithm has no such number; it has {shorten(', '.join(known))}"
                       f"{nearest(name, [path.rpartition('.')[2] for path in known])}")
            raise InputError(f"{name}: {problem}")
        algorithm = _replace(algorithm, paths[0].split("."), value.item() if hasattr(value, "item") else value)
    return algorithm


def _fields(part: Any, path: str = "") -> Iterator[str]:
    """The paths of the numeric fields of an object and of its parts."""
    if not dataclasses.is_dataclass(part):
        return
    for field in dataclasses.fields(part):
        value, name = getattr(part, field.name, None), f"{path}{field.name}"
        if isinstance(value, int | float | np.generic) and not isinstance(value, bool):
            yield name
        else:
            yield from _fields(value, f"{name}.")


def _replace(part: Any, path: Sequence[str], value: Any) -> Any:
    """The part with another value at a path; constructors check it."""
    first, *further = path
    new = value if not further else _replace(getattr(part, first), further, value)
    return dataclasses.replace(part, **{first: new})


def _scores(result: Result) -> dict[str, float]:
    if isinstance(result.problem, SolvedProblem):
        gaps = result.metrics.loc[result.metrics["metric"] == GAP, "value"]
        if len(gaps):
            return {GAP: float(gaps.iloc[-1])}
    problem = result.problem
    split = "test" if "test" in problem.splits else problem.splits[-1]
    last = result.scores(split).iloc[-1]
    return {f"mean {split} {problem.score_name}": float(last.mean(skipna=False)),
            "worst party": float(last.min() if problem.higher_is_better else last.max())}
