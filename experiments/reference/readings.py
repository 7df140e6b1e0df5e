"""What the table says: ranks, gains, costs, recommendations by kind of data, and the paragraph of one method."""

from collections.abc import Iterable, Sequence
from functools import cache
from statistics import median

import numpy as np
import pandas as pd

from experiments.reference.methods import METHODS
from experiments.reference.problems import MALICIOUS, PROBLEMS, Problem
from experiments.reference.rows import RESULTS, SEEDS, Key, Layer, Row, read_rows
from resolvent.errors import count_of
from resolvent.statistics import Interval, Ranks, mean_interval, rank_methods

ALONE, FEDAVG, MINUS = "alone", "FedAvg", "\N{MINUS SIGN}"
COLLAPSED = 0.1  # of the gain of training alone over the first model
WORSE = 0.01  # of the score of training alone
NAMES = {problem.name: problem for problem in PROBLEMS}


class Table:
    """The rows of the table, and perhaps of a method that is not in it.

    Attributes:
        rows: the rows by cell.
        methods: the methods that have a row, in the order of the table.
    """

    def __init__(self, rows: dict[Key, Row]) -> None:
        self.rows = rows
        known = {method for _, _, method in rows}
        order = [method.name for method in METHODS]
        self.methods = [*(m for m in order if m in known), *sorted(known - {*order})]

    def row(self, problem: str, method: str, layer: Layer = "honest") -> Row | None:
        """A cell that was measured or diverged; None if it is empty or the method does not apply."""
        row = self.rows.get((problem, layer, method))
        return None if row is None or row.outcome == "refused" else row

    def score(self, problem: str, method: str, layer: Layer = "honest") -> float:
        """The mean score, of which larger is better: minus infinity if a model diverged, NaN in an empty cell."""
        row = self.row(problem, method, layer)
        return np.nan if row is None else row.sign * value(row) if row.is_finite else -np.inf

    def ranks(self, layer: Layer = "honest", problems: Iterable[str] = NAMES, methods: Sequence[str] = (),
              figure: str = "means") -> Ranks:
        """The ranks over the data sets with a setting in which all of these methods have a cell.

        A data set with several such settings counts once, with the mean over them.

        Args:
            methods: the methods that are ranked; default: all.
            figure: ``means``, or ``worst``: the worst tenth of the parties.
        """
        blocks: dict[str, list[pd.Series[float]]] = {}
        for problem in problems:
            scores = {m: self.score(problem, m, layer) if figure == "means" else self.worst(problem, m, layer)
                      for m in methods or self.methods}
            blocks.setdefault(NAMES[problem].data_set, []).append(pd.Series(scores))
        table = pd.DataFrame({name: pd.concat(settings, axis=1).dropna(axis=1).mean(axis=1)
                              for name, settings in blocks.items()}).T
        return rank_methods(table, higher_is_better=True)

    def worst(self, problem: str, method: str, layer: Layer = "honest") -> float:
        """The score of the worst tenth of the parties, as ``score``."""
        row = self.row(problem, method, layer)
        if row is None or not (row.worst or row.outcome == "diverged"):
            return np.nan
        return row.sign * float(np.mean([float(v) for v in row.worst if v is not None])) if row.is_finite else -np.inf

    def worse_than_alone(self, problem: str, method: str, layer: Layer = "honest") -> float:
        """The share of the parties whose score is more than a hundredth below that of training alone."""
        row, alone = self.row(problem, method, layer), self.row(problem, ALONE, layer)
        if row is None or alone is None or not alone.parties:
            return np.nan
        if not row.is_finite:
            return 1.0
        own, own_alone = (np.array(r.parties, float) for r in (row, alone))
        return float(np.mean(row.sign * (own - own_alone) < -WORSE * np.abs(own_alone)))

    def is_collapsed(self, problem: str, method: str, layer: Layer) -> bool:
        """Whether a model diverged, or gains less than a tenth of what training alone gains over the first model."""
        row, alone = self.row(problem, method, layer), self.row(problem, ALONE, layer)
        if row is None or alone is None:
            return False
        start = alone.sign * float(alone.curve[0] or 0)
        return self.score(problem, method, layer) - start < COLLAPSED * (self.score(problem, ALONE, layer) - start)

    def difference(self, problem: str, method: str, other: str, layer: Layer = "honest") -> Interval | None:
        """The mean difference of two methods over the seeds with its interval; positive if the first is better."""
        row, reference = self.row(problem, method, layer), self.row(problem, other, layer)
        if row is None or reference is None or not (row.is_finite and reference.is_finite):
            return None
        return mean_interval(row.sign * (np.array(row.means, float) - np.array(reference.means, float)))

    def rounds_to_target(self, problem: str, method: str) -> float:
        """The first evaluated round with 99 % of what FedAvg gains over the first model; infinite if there is none."""
        row, fedavg = self.row(problem, method), self.row(problem, FEDAVG)
        if row is None or fedavg is None or not fedavg.is_finite:
            return np.nan
        start, end = (row.sign * float(v or 0) for v in (fedavg.curve[0], fedavg.curve[-1]))
        return next((float(t) for t, v in zip(row.evaluated, row.curve, strict=True)
                     if v is not None and row.sign * v >= start + 0.99 * (end - start)), np.inf)

    def cpu(self, method: str, problems: Iterable[str]) -> list[float]:
        """The CPU seconds of a run in units of FedAvg's, on each problem with both."""
        pairs = [(self.row(p, method), self.row(p, FEDAVG)) for p in problems]
        return [row.seconds / other.seconds for row, other in pairs if row and other and row.seconds and other.seconds]

    def covered(self, layer: Layer = "honest") -> list[str]:
        """The problems with cells of at least half of the methods, training alone and FedAvg among them."""
        known = {p: {m for m in self.methods if (p, layer, m) in self.rows} for p in NAMES}
        return [p for p, of_problem in known.items()
                if {ALONE, FEDAVG} <= of_problem and 2 * len(of_problem) >= len(self.methods)]

    def common(self, problems: Iterable[str], layer: Layer = "honest") -> list[str]:
        """The methods that have a cell on each of these problems."""
        return [m for m in self.methods if all(self.row(p, m, layer) for p in problems)]

    def overall(self, layer: Layer = "honest", figure: str = "means") -> Ranks:
        """The ranks over all covered problems but those with a known optimum."""
        names = [p for p in self.covered(layer) if not NAMES[p].is_solved]
        return self.ranks(layer, names, self.common(names, layer), figure)


def value(row: Row) -> float:
    """The mean over the seeds."""
    return float(np.mean([float(v) for v in row.means if v is not None]))


def shown(row: Row | None) -> str:
    """The mean of a cell as text: percent, an error, or digits of a gap."""
    if row is None:
        return ""
    if not row.is_finite:
        return "diverged"
    mean = value(row)
    return f"{100 * mean:.1f}" if row.score == "accuracy" else f"{mean:.3g}" if mean < 1e4 else "diverged"


@cache
def committed() -> Table:
    """The committed table."""
    return Table(read_rows(RESULTS))


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def size() -> str:
    """How much of the table is there."""
    table = committed()
    cells = len(NAMES) * len(METHODS) * 2
    measured = sum(row.outcome == "measured" for row in table.rows.values())
    other = len(table.rows) - measured
    left = f", and {cells - len(table.rows):,} were not run" if len(table.rows) < cells else ""
    return (f"{len(METHODS)} methods, {len(NAMES)} problems, with and without malicious parties: {cells:,} cells, of "
            f"which {measured:,} are measured; in {other:,} the method does not apply or every trial diverged{left}")


def empty() -> str:
    """Why cells have no number: the reasons, with their problems and numbers of cells; and those that were not run."""
    table, reasons = committed(), dict[str, list[Key]]()
    for key, row in table.rows.items():
        if row.outcome != "measured":
            diverged = "every trial diverged: " if row.outcome == "diverged" else ""
            reasons.setdefault(diverged + row.reason, []).append(key)
    cells: list[Key] = [(name, layer, method.name) for name in NAMES for layer in ("honest", "attacked")
                        for method in METHODS]
    if lacking := [cell for cell in cells if cell not in table.rows]:
        reasons["not run"] = lacking

    def named(names: Iterable[str], what: str) -> str:
        found = [*dict.fromkeys(names)]
        return ", ".join(found) if len(found) < 8 else f"{len(found)} {what}"

    return "\n".join(f"- {len(of_reason)} cells, {named((p for p, _, _ in of_reason), 'problems')}: {reason} "
                     f"({named((m for _, _, m in of_reason), 'methods')})"
                     for reason, of_reason in reasons.items()) or "None."


def problems() -> str:
    """The problems."""
    return markdown(("problem", "data", "rounds", "take part"), (
        (p.name, p.title, str(p.rounds), "all" if p.participation == PROBLEMS[0].participation else
         "half, half of them with partial work" if p.data_set != "Synthetic(1, 1)" else
         "a third, half of them with partial work") for p in PROBLEMS))


def methods() -> str:
    """Each method's figures over all problems."""
    table = committed()
    means, worst, attacked = (ranks.mean for ranks in (
        table.overall(), table.overall(figure="worst"), table.overall("attacked")))
    return markdown(
        ("method", "mean rank", "rank of the worst tenth", "parties worse than alone", "rounds to FedAvg's score",
         "bytes", "CPU", "rank under attack", "collapses under attack"),
        ([name, *(_number(series.get(name)) for series in (means, worst)), *_costs(table, name),
          _number(attacked.get(name)), _collapses(table, name)] for name in order(table, "honest")[0]))


def _number(number: float | None) -> str:
    return "" if number is None or not np.isfinite(number) else f"{number:.1f}"


def _costs(table: Table, method: str) -> list[str]:
    """The share of parties worse than alone, and rounds, bytes and CPU seconds in units of FedAvg's.

    Over the covered problems: a method with cells on others would be compared on more difficult or easier ones.
    """
    names = table.covered()
    worse = [share for p in names if not np.isnan(share := table.worse_than_alone(p, method))]
    pairs = [(row, other) for p in names if (row := table.row(p, method)) and (other := table.row(p, FEDAVG))
             and row.is_finite and other.is_finite]
    rounds = [share / row.rounds for row, _ in pairs if not np.isnan(share := table.rounds_to_target(row.problem,
                                                                                                   method))]
    ratios = [[float(row.bytes or 0) / other.bytes for row, other in pairs if other.bytes], table.cpu(method, names)]
    to_target = median(rounds) if rounds else np.inf
    return [f"{100 * float(np.mean(worse)):.0f} %" if worse else "",
            f"{100 * to_target:.0f} %" if np.isfinite(to_target) else "not in half", *(
                f"{median(of_cost):.1f}" if of_cost else "" for of_cost in ratios)]


def _collapses(table: Table, method: str) -> str:
    measured = [p for p in table.covered("attacked") if table.row(p, method, "attacked")]
    return f"{sum(table.is_collapsed(p, method, 'attacked') for p in measured)} of {len(measured)}" if measured else ""


def kinds(layer: Layer = "honest") -> str:
    """For each kind of data, the methods to begin with, each with its cells."""
    table = committed()
    lines = []
    for kind in dict.fromkeys(p.kind for p in PROBLEMS):
        names = [p.name for p in PROBLEMS if p.kind == kind and p.name in table.covered(layer)]
        candidates = table.common(names, layer)
        if names and len(candidates) > 1:
            lines.append(f"- {_advice(table, kind, names, candidates, layer)}")
    return "\n".join(lines)


def _advice(table: Table, kind: str, names: list[str], candidates: list[str], layer: Layer) -> str:
    def cells(method: str) -> str:
        return ", ".join(shown(table.row(p, method, layer)) for p in names)

    personal = {row.method: row.personal for row in table.rows.values()}
    ranked = [str(m) for m in table.ranks(layer, names, candidates).mean.index]
    best = ranked[0]
    level = [m for m in ranked[1:] if all((d := table.difference(p, best, m, layer)) is not None and d.low <= 0
                                          for p in names)]
    shared = next((m for m in ranked if not personal[m]), None)
    parts = [f"**{kind}** ({'; '.join(names)}; {len(candidates)} methods): begin with {best} ({cells(best)})"]
    if len(costs := table.cpu(best, names)) and (times := median(costs)) >= 3:
        parts.append(f"it takes {times:.0f} times the CPU time of FedAvg")
    if level:
        parts.append(f"the seeds do not distinguish it from {', '.join(level[:4])}"
                     + (f" and {count_of(len(level) - 4, 'other')}" if len(level) > 4 else ""))
    if shared and shared != best:
        parts.append(f"the best with one model is {shared} ({cells(shared)})")
    parts += [f"{m} has {cells(m)}" for m in (FEDAVG, ALONE) if m in candidates and m not in (best, shared)]
    return "; ".join(parts) + "."


def compared(problem: str, method: str, other: str, layer: Layer = "honest") -> str:
    """Two cells and their difference with its interval, in the unit of the table."""
    table = committed()
    rows = [table.row(problem, m, layer) for m in (method, other)]
    difference = table.difference(problem, method, other, layer)
    if None in rows:
        return f"{problem}: not measured"
    text = f"{problem}: {method} {shown(rows[0])}, {other} {shown(rows[1])}"
    return text if difference is None else f"{text}, difference {_interval(difference, rows[0])}"


def _interval(interval: Interval, row: Row | None) -> str:
    factor, digits = (100, 1) if row and row.score == "accuracy" else (1, 3)
    value, half = (factor * v for v in (interval.value, interval.high - interval.value))
    return f"{value:+.{digits}f} ± {half:.{digits}f}".replace("-", MINUS)


def paragraph(table: Table, method: str) -> str:
    """The paragraph of one method, and its row."""
    names = [p for p in NAMES if table.row(p, method)]
    lines = [f"# {method}", ""]
    ranked = table.ranks(problems=names, methods=[m for m in table.methods if all(table.row(p, m) for p in names)])
    if len(ranked.mean) > 1:
        others = ", ".join(f"{m} {ranked.mean[m]:.1f}" for m in (FEDAVG, ALONE) if m in ranked.mean)
        lines.append(f"{method} has the mean rank {ranked.mean[method]:.1f} among {len(ranked.mean)} methods over "
                     f"{ranked.blocks} data sets ({others}; the best, {ranked.mean.index[0]}, "
                     f"{ranked.mean.iloc[0]:.1f}).")
        if np.isfinite(ranked.critical_difference):
            lines.append(f"Mean ranks that differ by less than {ranked.critical_difference:.1f} are not distinguished.")
    known = {p: d for p in names if (d := table.difference(p, method, FEDAVG)) is not None}
    lines.append(f"It is better than {FEDAVG} on {sum(d.sign > 0 for d in known.values())} and worse on "
                 f"{sum(d.sign < 0 for d in known.values())} of {len(known)} problems, by intervals of level 0.95 over "
                 "the seeds.")
    attacked = [p for p in NAMES if table.row(p, method, "attacked")]
    if attacked:
        collapsed = [p for p in attacked if table.is_collapsed(p, method, "attacked")]
        lines.append(f"With every {MALICIOUS}th party malicious it collapses on {len(collapsed)} of {len(attacked)} "
                     "problems.")
    rows = ((p, shown(table.row(p, method)), _interval(known[p], table.row(p, method)) if p in known else "",
             f"{100 * table.worse_than_alone(p, method):.0f} %" if not NAMES[p].is_solved else "",
             shown(table.row(p, method, "attacked"))) for p in names)
    refused = [f"- {p}: {row.reason}" for (p, layer, m), row in table.rows.items()
               if m == method and layer == "honest" and row.outcome != "measured"]
    return "\n".join([*lines, "", markdown(("problem", "score", f"better than {FEDAVG} by", "parties worse than alone",
                                            "under attack"), rows), *(["", *refused] if refused else []), ""])


def order(table: Table, layer: Layer) -> tuple[list[str], list[Problem]]:
    """Methods from the best mean rank, those without one last, and the problems with a row."""
    names = [p for p in PROBLEMS if any((p.name, layer, m) in table.rows for m in table.methods)]
    ranked = [str(m) for m in table.overall(layer).mean.index] if table.covered(layer) else []
    return [*ranked, *(m for m in table.methods if m not in ranked)], names


__all__ = ["SEEDS", "Table", "committed", "compared", "empty", "kinds", "methods", "order", "paragraph", "problems",
           "shown", "size"]
