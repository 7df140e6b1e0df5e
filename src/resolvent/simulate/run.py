"""``simulate``: run an algorithm on a problem, evaluate it on the way, remember where it was."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.centralised import is_centralised
from resolvent.algorithms.combinator import Combinator, layers
from resolvent.problem.data import FederatedData
from resolvent.problem.errors import InputError, nearest
from resolvent.problem.models import Model
from resolvent.problem.problem import LearningProblem, Problem, SolvedProblem
from resolvent.simulate.cache import keep_compiled
from resolvent.simulate.clock import stopwatch
from resolvent.simulate.engine import Chunk, Schedule, initial, run_chunk
from resolvent.simulate.measure import PER_ROUND, Diagnostic, Measurements, message_bytes
from resolvent.simulate.participation import Full, Participation
from resolvent.simulate.progress import Progress, bar
from resolvent.simulate.result import Result
from resolvent.simulate.store import Checkpoint, digest
from resolvent.simulate.systems import VirtualClock

__all__ = ["check_held_out", "simulate"]


def simulate(
    algorithm: Algorithm,
    model: Model | Problem,
    data: FederatedData | None = None,
    *,
    rounds: int,
    seed: int = 0,
    participation: Participation | None = None,
    evaluate_every: int | None = None,
    diagnostics: Sequence[Diagnostic] = (),
    clock: VirtualClock | None = None,
    schedule: Schedule | Literal["auto"] = "auto",
    checkpoint: Path | str | None = None,
    resume: bool = False,
    progress: bool | Progress = True,
    name: str = "run",
) -> Result:
    """Run a federation in this process.

    Args:
        algorithm: what a round does, such as ``fedavg(SGD(0.1))``.
        model: a model for ``data``; or a ``Problem`` of its own, without data.
        data: the parties' samples.
        rounds: how many rounds, at least 1.
        seed: of everything random: first model, cohorts, stragglers, minibatches.
        participation: who takes part in a round; default: everybody, weighted by size.
        evaluate_every: rounds between evaluations of every party's model; default: 20 evaluations in all.
        diagnostics: what to measure beside: ``model_change``, ``inexactness``, ``steps``, ``dissimilarity``, ``line``,
            ``heterogeneity``.
        clock: measure ``simulated_seconds``, ``bytes_down`` and ``bytes_up`` of each round by a virtual clock.
        schedule: parties one after the other (``sequential``, the better on a CPU), all at once (``lanes``), or by
            backend.
        checkpoint: a folder to write the state to after every evaluation.
        resume: go on from the checkpoint there, if there is one.
        progress: show a progress bar on the terminal, or a function called with (rounds done, rounds in all).
        name: of the method, in the metrics.

    Returns:
        The models, the metrics and how long it took.

    Raises:
        InputError: something given does not fit; nothing has run then.
    """
    keep_compiled()
    problem = _problem(model, data)
    who = Full() if participation is None else participation
    who.check(problem.parties)
    every = max(1, rounds // 20) if evaluate_every is None else evaluate_every
    if rounds < 1 or every < 1:
        raise InputError(f"rounds={rounds} and evaluate_every={evaluate_every} must be at least 1")
    _check_diagnostics(diagnostics)
    if "validation" in problem.splits:
        check_held_out(algorithm, problem.split_sizes(problem.splits.index("validation")), name)
    how: Schedule = schedule if schedule != "auto" else ("sequential" if jax.default_backend() == "cpu" else "lanes")
    folder = Path(checkpoint) if checkpoint is not None else None
    fingerprint = _fingerprint(algorithm, problem, who, seed, every, *(() if clock is None else (repr(clock),)))
    central = is_centralised(algorithm)
    training = problem.pooled() if central else problem
    if central:  # one party holds everything: there is nobody to draw, and nothing to say of single parties' work
        who, diagnostics, clock = Full(), [d for d in diagnostics if d not in (*PER_ROUND, "line")], None

    per_round = tuple(sorted(PER_ROUND.intersection(diagnostics) | (set() if clock is None else {"steps"})))
    per_round += ("gap",) if isinstance(problem, SolvedProblem) else ()
    try:
        state = initial(algorithm, training, who, jnp.array(seed))
        down, up = (0, 0) if central else message_bytes(algorithm, training, state)
        # What does not fit is found here. The trace is kept: the first chunk does not trace again.
        run_chunk.eval_shape(  # type: ignore[no-untyped-call]
            algorithm, training, who, state, jnp.array(seed), jnp.array(0), jnp.array(1), capacity=every,
            record=per_round, schedule=how)
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"{name}: {error.args[0] if error.args else error}") from error
    measured = Measurements(algorithm, problem, tuple(diagnostics), name, who.shares(problem.sizes), clock)
    done = 0
    found = Checkpoint.read(folder, state, fingerprint) if folder and resume else None
    if found:
        if found.rounds > rounds:
            raise InputError(f"the checkpoint in {folder} is of round {found.rounds}, beyond rounds={rounds}")
        state, done = found.state, found.rounds
        measured.restore(found.metrics, found.facts)
    else:
        measured.evaluate(state, 0)

    with bar(progress, name, rounds) as report:
        report(done, rounds)
        while done < rounds:
            count = min(every - done % every, rounds - done)
            with stopwatch() as watch:
                chunk: Chunk = run_chunk(
                    algorithm, training, who, state, jnp.array(seed), jnp.array(done), jnp.array(count),
                    capacity=every, record=per_round, schedule=how)
                jax.tree.leaves(chunk.record)[0].block_until_ready()
            state, done = chunk.state, done + count
            measured.add_chunk(chunk, done - count, count, watch, down, up)
            measured.evaluate(state, done, chunk.snapshot if done in (every, rounds) else None)
            if folder:
                Checkpoint(done, state, measured.metrics(), measured.facts()).write(folder, fingerprint)
            report(done, rounds)
    return Result(name, algorithm, problem, data, state, measured.metrics(), measured.facts(), rounds, seed,
                  digest(state))


def _problem(model: Model | Problem, data: FederatedData | None) -> Problem:
    if isinstance(model, Problem):
        if data is not None:
            raise InputError("a Problem brings its own data: leave data= out")
        return model
    if data is None:
        raise InputError(f"the model {type(model).__name__} needs data=: FederatedData, such as rv.datasets.digits()")
    if not isinstance(model, Model):
        raise InputError(f"model must be a Model, got {type(model).__name__}: see rv.models.from_functions, "
                         "from_equinox and from_flax")
    return LearningProblem(model, data)


def _check_diagnostics(diagnostics: Sequence[str]) -> None:
    allowed = get_args(Diagnostic)
    for one in diagnostics:
        if one not in allowed:
            raise InputError(f"there is no diagnostic {one!r}{nearest(one, allowed)} Use any of {list(allowed)}")


def check_held_out(algorithm: Algorithm, samples: Any, name: str) -> None:
    """Refuse a choice by held-out samples where no party has any.

    Args:
        algorithm: what may choose.
        samples: [N] how many validation samples each party has.
        name: of the method, for the error.
    """
    choosing = [type(a).__name__ for a in layers(algorithm) if isinstance(a, Combinator) and a.needs_held_out]
    if choosing and not np.asarray(samples).any():
        raise InputError(f"{name}: {choosing[0]} chooses by validation samples, and none of the {len(samples)} parties "
                         "has any: give the data a share with validation")


def _fingerprint(*parts: Any) -> str:
    """A text that differs where the run would: of the structure and every value."""
    total = hashlib.sha256()
    for part in parts:
        total.update(eqx.tree_pformat(part, short_arrays=True).encode())
        total.update(digest([leaf for leaf in jax.tree.leaves(part) if eqx.is_array_like(leaf)]).encode())
    return total.hexdigest()
