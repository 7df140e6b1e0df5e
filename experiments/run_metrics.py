"""The runs of a reproduction, which can be continued, and the curves that a panel's view reads from their metrics."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.backtests import WEALTH_BY_DAY, Backtests
from experiments.curves import Curve
from experiments.portfolio import PortfolioProblem
from experiments.portfolio.traded_markets import TradedMarkets
from experiments.reproduction import PanelExperiment
from experiments.schema import View
from resolvent import FederatedData
from resolvent.errors import InputError
from resolvent.experiment_files import compare_file
from resolvent.metrics import higher_is_better

_AXES = {"seconds": ("simulated_seconds",), "bytes": ("bytes_down", "bytes_up"), "bytes_up": ("bytes_up",)}


class RunMetrics:
    """The metrics of an experiment that has run.

    Attributes:
        points: the point of the sweep that each label stands for.
        sizes: for each split, [N] the parties' numbers of samples.
        restored_cpu_seconds: CPU seconds of the rounds that were restored from the checkpoints.
    """

    def __init__(self, experiment: PanelExperiment, checkpoints: Path | None = None) -> None:
        """Run the experiment, or continue it from the checkpoints in a folder.

        Args:
            checkpoints: the folder; default: there are no checkpoints.
        """
        comparison = compare_file(experiment.file, checkpoints=checkpoints, resume=checkpoints is not None,
                                  needs_rows=False)
        data, problem = comparison.experiment.data, comparison.experiment.problem
        self.metrics, self.points = comparison.metrics, experiment.points
        self.sizes = {split: data.sizes(split) for split in data.splits} if isinstance(data, FederatedData) else {}
        self.restored_cpu_seconds = sum(run.facts["restored_cpu_seconds"] for run in comparison.results.values())
        self._backtests = (Backtests(problem, data, comparison.results)
                           if isinstance(data, TradedMarkets) and isinstance(problem, PortfolioProblem) else None)

    def curves(self, view: View) -> dict[str, Curve]:
        """The curve of each method that has the view's measure, in the order of the labels."""
        if self._backtests is None and (view.baselines or view.measure == WEALTH_BY_DAY):
            raise InputError(f"baselines and {WEALTH_BY_DAY} need an experiment on prices: leave them out")
        if self._backtests is not None and view.measure == WEALTH_BY_DAY:
            return self._backtests.wealth_curves(view, self.points)
        if view.measure == "line":
            return self._lines(view)
        splits = self.metrics["split"].fillna("train")
        rows = self.metrics[(self.metrics["metric"] == view.measure) & (splits == view.split)]
        if rows.empty:
            known = {(metric, split) for metric, split in zip(self.metrics["metric"], splits, strict=True)
                     if not metric.startswith("line_")}
            raise InputError(f"there is no measure {view.measure!r} of the split {view.split!r}; there are "
                             f"{', '.join(sorted(f'{metric} ({split})' for metric, split in known))}")
        result, measured = {}, set(rows["method"])
        worst = -np.inf if higher_is_better(view.measure) else np.inf  # of a run that diverged
        for label, point in self.points.items():
            if label in measured:
                of_method = rows[rows["method"] == label]
                by_round = _over_parties(of_method, view, self.sizes)
                values, rounds = by_round.to_numpy(dtype=float), by_round.index.to_numpy(dtype=np.int64)
                last = of_method[of_method["round"] == rounds[-1]].sort_values("party")["value"].to_numpy(dtype=float)
                result[label] = Curve(rounds, np.where(np.isfinite(values), values, worst), point,
                                      self._axes(label, rounds), last)
        if self._backtests is not None:
            result |= self._backtests.baseline_curves(view, next(iter(result.values())).rounds)
        return result

    def _lines(self, view: View) -> dict[str, Curve]:
        """After the last round, the loss between the parties' personal models (lambda = 0) and the shared one (1)."""
        lines = {}
        rows = self.metrics[self.metrics["metric"].str.match(r"line_\d")]
        last = rows[rows["round"] == rows["round"].max()]
        for label, of_method in last.groupby("method"):
            losses = [_over_parties(at_point, view, self.sizes).iloc[-1] for _, at_point in of_method.groupby("metric")]
            values = np.array(losses, float)
            lines[label] = Curve(np.arange(len(values)), np.where(np.isfinite(values), values, np.inf),
                                 self.points[label], {"lambda": np.linspace(0, 1, len(values))})
        if not lines:
            raise InputError("there is no loss between personal and shared models: the measure line needs the "
                             "diagnostic line, and a method that has both models")
        return {label: lines[label] for label in self.points if label in lines}

    def _axes(self, label: str, rounds: np.ndarray) -> dict[str, np.ndarray]:
        """Cumulated seconds and bytes at each round, if a clock measured them."""
        of_method = self.metrics[self.metrics["method"] == label]
        axes = {}
        for name, metrics in _AXES.items():
            sums = of_method[of_method["metric"].isin(metrics)].groupby("round")["value"].sum().cumsum()
            if len(sums):
                axes[name] = np.array([0.0 if r < sums.index[0] else sums.loc[:r].iloc[-1] for r in rounds])
        return axes


def _over_parties(rows: pd.DataFrame, view: View, sizes: Mapping[str, np.ndarray]) -> "pd.Series[float]":
    """The parties' values as one number, by round."""
    if rows["party"].isna().all():
        return rows.groupby("round")["value"].mean()
    table = rows.pivot_table(index="round", columns="party", values="value", dropna=False).astype(float)
    match view.over.split():
        case ["mean"]:
            return table.mean(axis=1, skipna=False)
        case ["samples"]:
            counts = sizes[view.split][table.columns.to_numpy(dtype=np.int64)]
            return pd.Series(table.to_numpy() @ counts / counts.sum(), table.index)
        case ["worst"]:
            return table.agg("min" if view.higher_is_better else "max", axis=1)
        case ["p10"]:
            return table.quantile(0.1 if view.higher_is_better else 0.9, axis=1)
        case ["std"]:
            return table.std(axis=1, ddof=0)
        case ["party", number] if number.isdigit() and int(number) in table.columns:
            return table[int(number)]
    raise InputError(f"over: {view.over!r} must be mean, samples, worst, p10, std, or party K with K one of the "
                     f"{len(table.columns)} parties")


class Checkpoints:
    """Where the runs of a reproduction store their states, if anywhere.

    Attributes:
        restored_cpu_seconds: CPU seconds of the rounds that were restored and did not run again, so far.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.restored_cpu_seconds = 0.0

    def run(self, experiment: PanelExperiment, title: str, seed: int, number: int = 0) -> RunMetrics:
        """Run an experiment, or continue it, or read it if it is complete."""
        digest = hashlib.sha256(title.encode()).hexdigest()[:12]  # a title may have characters that no path has
        metrics = RunMetrics(experiment, None if self._folder is None else self._folder / f"{digest}-{seed}-{number}")
        self.restored_cpu_seconds += metrics.restored_cpu_seconds
        return metrics
