"""Evaluation events and the callbacks of a run. A callback can read metrics and models, and stop the run."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.errors import InputError, alternatives, quote
from resolvent.math.tree import Vector
from resolvent.simulator.mesh import from_writer, is_writer
from resolvent.simulator.record.metrics_table import means_by

if TYPE_CHECKING:
    import pandas as pd

    from resolvent.data.federated import FederatedData
    from resolvent.simulator.record.result import Result


@dataclass(eq=False)
class EvaluationEvent:
    """An evaluation of a run, the argument of a callback.

    Attributes:
        name: name of the method.
        seed: seed of the run.
        round: number of rounds so far.
        rounds: number of rounds of the run.
        score_name: name of the score that is reported in addition to the loss.
        directions: name of a metric -> whether larger values are better.
        is_resumed: whether the run continued from a checkpoint.
        metrics: a copy of all metrics so far, the table of ``Result.metrics``.

    Example:
        >>> problem = rv.problems.least_squares(parties=3, samples=20, features=2)
        >>> rounds = []
        >>> result = rv.simulate(rv.fedavg(rv.solvers.GD(0.01)), problem, rounds=2, progress=False,
        ...                      on_evaluation=lambda event: rounds.append(event.round))
        >>> rounds
        [1, 2]
    """

    name: str
    seed: int
    round: int
    rounds: int
    score_name: str
    directions: Mapping[str, bool]
    is_resumed: bool
    metrics: "pd.DataFrame"
    _result: "Callable[[], Result]" = field(repr=False)
    _stop_reason: str | None = field(default=None, init=False)

    def stop(self, reason: str = "") -> None:
        """End the run after this evaluation; ``Result.facts["stopped"]`` then has the reason."""
        self._stop_reason = reason or f"after round {self.round}"

    def result(self) -> "Result":
        """A copy of the models and the metrics so far, which stays valid when the run continues.

        Raises:
            InputError: the run has several processes, and the writer process alone cannot collect all models.
        """
        if jax.process_count() > 1:
            raise InputError("models cannot be read at evaluations of a run in several processes: read them from the "
                             "result of the run, or use one process")
        return self._result()

    @property
    def server_model(self) -> Vector | None:
        """A copy of the shared model, or None if the algorithm has none."""
        return self.result().server_model

    def means(self, round: int | None = None) -> dict[str, float]:
        """The mean over parties of every metric, as ``{"test/accuracy": 0.8, ...}``; NaN if the model of one diverged.

        Args:
            round: number of rounds at the evaluation; default: this evaluation.
        """
        rows = self.metrics[(self.metrics["round"] == (self.round if round is None else round))
                            & self.metrics["party"].notna() & self.metrics["split"].notna()]
        means = means_by(rows, ["split", "metric"]).rename("value").reset_index()
        return {f"{split}/{metric}": float(value) for split, metric, value in zip(
            means["split"], means["metric"], means["value"], strict=True)}

    def history(self, metric: str | None = None, split: str = "validation") -> "pd.Series[float]":
        """The mean over parties of a metric, by round; NaN if the model of a party diverged.

        Args:
            metric: name of the metric; default: the score.
            split: name of the split.

        Raises:
            InputError: the run has no such values.
        """
        name = self.score_name if metric is None else metric
        of_split = self.metrics[self.metrics["split"] == split]
        rows = of_split[of_split["metric"] == name]
        if rows.empty:
            known = sorted(set(of_split["metric"]))
            raise InputError(f"there is no metric {quote(name)} of the split {quote(split)}"
                             + (alternatives(name, known) if known else
                                ": the parties have no such samples; set a share for them in the data"))
        return means_by(rows, "round")


OnEvaluation: TypeAlias = Callable[[EvaluationEvent], None]


def as_callbacks(on_evaluation: OnEvaluation | Sequence[OnEvaluation] | None) -> tuple[OnEvaluation, ...]:
    """One function, several or none as a tuple."""
    callbacks = () if on_evaluation is None else (
        tuple(on_evaluation) if isinstance(on_evaluation, Sequence) else (on_evaluation,))
    for callback in callbacks:
        if not callable(callback):
            raise InputError(f"simulate(on_evaluation={quote(callback)}) must be a function of an EvaluationEvent, "
                             "such as rv.callbacks.EarlyStopping(), or several of them")
    return callbacks


class RunCallbacks:
    """The functions that one run calls at its evaluations, in the writer process.

    Args:
        make_event: number of rounds -> event.
    """

    def __init__(self, callbacks: tuple[OnEvaluation, ...], make_event: Callable[[int], EvaluationEvent]) -> None:
        self._callbacks, self._make_event = callbacks, make_event

    def notify(self, rounds: int) -> str | None:
        """Call the functions in the writer process. Every process returns the reason to stop, or None."""
        if not self._callbacks:
            return None
        reason = None
        if is_writer():
            for callback in self._callbacks:  # each has an event of its own, whose table it may edit
                event = self._make_event(rounds)
                callback(event)
                reason = event._stop_reason or reason
        stops = bool(from_writer(reason is not None))
        return (reason or "in the writer process") if stops else None

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Close the functions that have a method ``close`` after the run, also if it fails."""
        try:
            yield
        finally:
            for callback in self._callbacks:
                close: Any = getattr(callback, "close", None)
                if close is not None and is_writer():
                    close()


def read_only(data: "FederatedData | None") -> "FederatedData | None":
    """The same data whose arrays cannot be edited: in host memory, the next rounds read them."""
    shown = copy.copy(data)
    for name in ("x", "y", "weights"):
        if hasattr(data, name):
            object.__setattr__(shown, name, jax.tree.map(_read_only_view, getattr(data, name)))
    return shown


def _read_only_view(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf
    view = leaf.view()
    view.flags.writeable = False
    return view


def copy_arrays(tree: Any) -> Any:
    """Copies of all arrays: compiled rounds take over the buffers of the state that they start from."""
    def copied(leaf: Any) -> Any:
        return jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf.copy() if isinstance(leaf, np.ndarray) else leaf

    return jax.tree.map(copied, tree)
