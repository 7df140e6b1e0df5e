"""Faults for own algorithms, models, metrics and callbacks: runs that are stopped, and checkpoints that are damaged.

``torture`` runs a federation once without a fault. Then it stops the run after a random evaluation, may damage one of
its files, and continues. The result must be the same to the last bit, or an ``InputError`` must name the file.
"""

import contextlib
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from resolvent.algorithms.algorithm import Algorithm
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem
from resolvent.simulator.checkpoint.checkpoints import CheckpointTimer
from resolvent.simulator.record.events import EvaluationEvent, OnEvaluation
from resolvent.simulator.record.result import Result
from resolvent.simulator.run import simulate
from resolvent.testing.example import require

_BLOCK = 512  # bytes
_KINDS = ("flip", "flip", "truncate", "zero", "append", "empty", "swap", "delete")
_MEASURED = ("seconds_per_round", "compile_seconds", "evaluation_seconds")


class Damage(NamedTuple):
    """What was done to a file."""

    text: str  # the damage in words
    names: tuple[str, ...]  # the names by which an error may call the file


class _Stopped(BaseException):
    """Ends a run as a signal does: no handler of errors catches it."""


def torture(algorithm: Algorithm, model: Model | Problem, data: FederatedData | None = None, *, rounds: int = 6,
            cases: int = 20, seed: int = 0, on_evaluation: OnEvaluation | Sequence[OnEvaluation] = (),
            **settings: Any) -> int:
    """Stop and damage runs of a federation, and check that each continues to the same result or is refused.

    Args:
        algorithm: the algorithm.
        model: a model for ``data``, or a problem.
        data: the parties' samples; few are sufficient.
        rounds: number of rounds; every round is evaluated.
        cases: number of faults: in half of them the run is stopped only, in the others a file is damaged too.
        seed: seed of the faults.
        on_evaluation: callbacks of the run.
        settings: further settings of ``rv.simulate``, such as ``metrics`` and ``participation``.

    Returns:
        The number of cases in which the damage was noticed and refused; the others gave the same result.

    Raises:
        AssertionError: a run that continued has another result, its error does not name the damaged file, or the run
            ends early without a fault.

    Example:
        >>> problem = rv.problems.least_squares(parties=3, features=2)
        >>> refused = torture(rv.fedavg(rv.solvers.GD(0.1, steps=2)), problem, rounds=3, cases=2)
    """
    callbacks = list(on_evaluation) if isinstance(on_evaluation, Sequence) else [on_evaluation]

    def run(folder: Path, stop: int | None = None, *, resume: bool = False) -> Result:
        def end(event: EvaluationEvent) -> None:
            if stop is not None and event.round == stop:
                raise _Stopped

        # A checkpoint after every evaluation; by default they take at most 5 % of the time.
        with mock.patch.object(CheckpointTimer, "is_due", return_value=True):
            return simulate(algorithm, model, data, rounds=rounds, evaluate_every=1, checkpoint=folder, resume=resume,
                            on_evaluation=[*callbacks, end], progress=False, **settings)

    refused = 0
    with tempfile.TemporaryDirectory() as parent:
        expected = run(Path(parent) / "whole")
        require(expected.rounds == rounds, f"the run ends after round {expected.rounds} of {rounds} without a fault: "
                                           "leave out the callback that stops it")
        for case in range(cases):
            refused += _is_refused(run, expected, Path(parent) / str(case), np.random.default_rng([seed, case]),
                                   with_damage=bool(case % 2))
    return refused


def _is_refused(run: Any, expected: Result, folder: Path, rng: np.random.Generator, *, with_damage: bool) -> bool:
    """Run one case. Returns whether the damage was refused.

    Raises:
        AssertionError: the result is wrong, or an error does not name the file.
    """
    stop = int(rng.integers(1, expected.rounds))
    title = f"stopped after round {stop}"
    with contextlib.suppress(_Stopped):
        run(folder, stop)
    names: tuple[str, ...] = ()
    if with_damage:
        text, names = damage(rng, [path for path in sorted(folder.rglob("*")) if path.is_file()], folder)
        title += f", {text}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run says that it continues from an earlier checkpoint
            result = run(folder, resume=True)
    except InputError as error:
        require(any(name in str(error) for name in names), f"{title}: the error names none of {names}: {error}")
        return True
    require(result.digest == expected.digest, f"{title}: the run that continued has other models: keep all that the "
                                              "next round needs in the states")
    require(_measured(result).equals(_measured(expected)), f"{title}: the run that continued has other metrics: do not "
                                                           "let a metric or a callback keep a state of its own")
    return False


def _measured(result: Result) -> Any:
    """The metrics that do not measure time."""
    return result.metrics[~result.metrics["metric"].isin(_MEASURED)].reset_index(drop=True)


def damage(rng: np.random.Generator, files: Sequence[Path], base: Path) -> Damage:
    """Damage one of the files, and describe it as seen from the base folder."""
    path = files[int(rng.integers(len(files)))]
    content = bytearray(path.read_bytes())
    name = path.relative_to(base).as_posix()
    names = [path.name, path.parent.name]
    kind = _KINDS[rng.integers(len(_KINDS))]
    if kind in ("flip", "truncate", "zero") and not content:
        kind = "append"
    if kind == "flip":
        position, bit = int(rng.integers(len(content))), int(rng.integers(8))
        content[position] ^= 1 << bit
        text = f"bit {bit} of byte {position} of {name} flipped"
    elif kind == "truncate":
        length = int(rng.integers(len(content)))
        del content[length:]
        text = f"{name} truncated to {length} bytes"
    elif kind == "zero":
        first = int(rng.integers(len(content)))
        content[first:first + _BLOCK] = bytes(len(content[first:first + _BLOCK]))
        text = f"{name} zero from byte {first} to {first + _BLOCK}"
    elif kind == "append":
        content += bytes(rng.integers(0, 256, rng.integers(1, 100), dtype=np.uint8))
        text = f"bytes appended to {name}"
    elif kind == "empty":
        content.clear()
        text = f"{name} empty"
    elif kind == "swap":
        other = files[int(rng.integers(len(files)))]
        swapped = other.read_bytes()
        other.write_bytes(content)
        content = bytearray(swapped)
        names += [other.name, other.parent.name]
        text = f"{name} and {other.relative_to(base).as_posix()} swapped"
    else:
        path.unlink()
        return Damage(f"{name} deleted", tuple(names))
    path.write_bytes(content)
    return Damage(text, tuple(names))
