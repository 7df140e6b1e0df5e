"""``simulate``: run an algorithm on a problem, evaluate it on the way, remember where it was."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.pooled_data import uses_pooled_data
from resolvent.algorithms.participation import Full, Participation
from resolvent.algorithms.round import uses_held_out
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, nearest
from resolvent.math.tree import Vector
from resolvent.problem.models.model import Model
from resolvent.problem.learning import LearningProblem
from resolvent.problem.problem import Problem, SolvedProblem
from resolvent.simulate.cache import keep_compiled
from resolvent.simulate.checkpoints import RunCheckpoints
from resolvent.simulate.clock import stopwatch
from resolvent.simulate.engine import Chunk, Federation, run_chunk
from resolvent.simulate.host_storage import HostStorage, fits_device
from resolvent.simulate.measure import PER_ROUND, Diagnostic, Measurements, message_bytes
from resolvent.simulate.progress import Progress, bar
from resolvent.simulate.result import Result
from resolvent.simulate.schedulers import Choice, choose, fastest, rivals
from resolvent.simulate.storage import DeviceStorage, Memory, Place
from resolvent.simulate.systems import VirtualClock
from resolvent.simulate.tree_files import digest

__all__ = ["check_held_out", "simulate"]

_LEAST, _MOST = 5, 20  # evaluations, where nobody says how often
_EVALUATED = 1000  # parties, where more are in host memory and nobody says how many


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
    scheduler: Choice = "auto",
    memory: Place = "auto",
    evaluate_parties: int | None = None,
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
        evaluate_every: rounds between evaluations of every party's model; default: 20 evaluations in all, of small
            cohorts fewer, down to 5: no more than the rounds have room for each evaluated party once.
        diagnostics: what to measure beside: ``model_change``, ``inexactness``, ``steps``, ``dissimilarity``, ``line``,
            ``heterogeneity``.
        clock: measure ``simulated_seconds``, ``bytes_down`` and ``bytes_up`` of each round by a virtual clock.
        scheduler: parties one after the other (``sequential``), side by side (``lanes``), side by side with others
            taking over from those that are done (``queue``), or by backend (``auto``): ``sequential`` on a CPU, else
            ``lanes``; with several devices, on each of them. ``measured`` compiles these in several widths, times a
            round of each on the first state, and takes the fastest: for long runs. A ``Scheduler`` is taken as it is.
        memory: where the parties' data and states are: all on the ``device``, or on the ``host``, from where a chunk of
            rounds is given those of its cohorts (for ``data`` such as ``open_packed`` gives, of more parties than fit);
            default: on the device unless they take more than half of its memory.
        evaluate_parties: how many parties' models are evaluated, drawn once from the seed; default: all, and of more
            than 1,000 in host memory 1,000.
        checkpoint: a folder to write the state to after evaluations, as often as takes a twentieth of the time at
            most, and after the last; in host memory after every one, and the parties' states are in the folder
            ``NAME.parties`` beside it, without a checkpoint in a temporary folder.
        resume: go on from the checkpoint there, if there is one.
        progress: show a progress bar on the terminal, or a function called with (rounds done, rounds in all).
        name: of the method, in the metrics.

    Returns:
        The models, the metrics and how long it took.

    Raises:
        InputError: something given does not fit; nothing has run then.
    """
    keep_compiled()
    home = _home(memory, algorithm, model, data, name)
    problem = _problem(model, data) if home == "device" else None
    parties = problem.parties if data is None else len(data)  # type: ignore[union-attr]
    who = Full() if participation is None else participation
    who.check(parties)
    evaluated = _evaluated(evaluate_parties, parties, seed, home)
    every = _interval(evaluate_every, rounds, who.capacity(parties), len(evaluated))
    _check_diagnostics(diagnostics)
    if data is not None:
        check_held_out(algorithm, model.init, data.sizes("validation"), name)
    elif "validation" in (splits := problem.splits):  # type: ignore[union-attr]
        held_out = problem.split_sizes(splits.index("validation"))  # type: ignore[union-attr]
        check_held_out(algorithm, model.init, held_out, name)
    if scheduler == "measured" and jax.process_count() > 1:
        raise InputError("scheduler='measured' is for one process: several might not choose alike. Measure in one, and "
                         "name its choice")
    folder = Path(checkpoint) if checkpoint is not None else None
    world = (who, seed, every, *(x for x in (evaluate_parties, clock) if x is not None))
    central = uses_pooled_data(algorithm)
    if central:  # one party holds everything: there is nobody to draw, and nothing to say of single parties' work
        who, diagnostics, clock = Full(), [d for d in diagnostics if d not in (*PER_ROUND, "line")], None

    cohort = who.capacity(1 if central else parties)
    how = choose(scheduler, cohort)
    per_round = tuple(sorted(PER_ROUND.intersection(diagnostics) | (set() if clock is None else {"steps"})))
    per_round += ("gap",) if isinstance(problem, SolvedProblem) else ()

    def given(some: Problem, cohorts: Participation, state: Federation, start: int, count: int) -> tuple[Any, ...]:
        return algorithm, some, cohorts, state, jnp.array(seed), jnp.array(start), jnp.array(count)

    timings: dict[str, float] = {}
    try:
        place: Memory
        if problem is not None:
            place = DeviceStorage(algorithm, problem, problem.pooled() if central else problem, who, seed, every, evaluated,
                             how)
        else:
            assert isinstance(model, Model)
            assert data is not None
            place = HostStorage(algorithm, model, data, who, seed, rounds, every, evaluated, _beside(folder))
        first = place.example()
        down, up = (0, 0) if central else message_bytes(algorithm, first[0], first[2])
        static = {"capacity": place.capacity, "record": per_round}
        # What does not fit is found here. The trace is kept: the first chunk does not trace again.
        run_chunk.eval_shape(*given(*first, 0, 1), **static, scheduler=how)  # type: ignore[no-untyped-call]
        if scheduler == "measured":
            how, timings = fastest(rivals(cohort), lambda rival: run_chunk(
                *given(*first[:2], jax.tree.map(jnp.copy, first[2]), 0, 1), **static, scheduler=rival))
        del first  # of the first chunk, whose parties need not stay
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"{name}: {error.args[0] if error.args else error}") from error

    def step(some: Problem, cohorts: Participation, state: Federation, start: int, count: int) -> Chunk:
        chunk: Chunk = run_chunk(*given(some, cohorts, state, start, count), **static, scheduler=how)
        return chunk

    def step_from_host(some: Problem, cohorts: Participation, state: Federation, start: int, count: int) -> Chunk:
        some, cohorts, state = how.place((some, cohorts, state))
        fetched: Chunk = how.fetch(step(some, cohorts, state, start, count))
        return fetched

    measured = Measurements(algorithm, place.problem, tuple(diagnostics), name, who.shares(place.problem.sizes), clock,
                            evaluated, parties)
    # Rows on the host are kept for the last checkpoint until the next one, so there it is never put off.
    saved = RunCheckpoints(folder, place, measured, lambda: _fingerprint(algorithm, *place.identity, *world),
                  paced=problem is not None)
    done = saved.restore(rounds) if resume else 0
    if not done:
        measured.evaluate(place.state(), 0)
    saved.agree(done)

    with bar(progress if saved.speaks else False, name, rounds) as report:
        report(done, rounds)
        while done < rounds:
            count = min(every - done % every, rounds - done)
            with stopwatch() as watch:
                chunk = place.advance(step if problem is not None else step_from_host, done, count)
            done += count
            measured.add_chunk(chunk, done - count, count, watch, down, up)
            measured.evaluate(place.state(), done, chunk.snapshot if done in (every, rounds) else None,
                              place.cohort_problem)
            saved.keep(done, last=done == rounds)
            report(done, rounds)
    saved.agree(done)  # nobody goes on, and perhaps resumes, before the checkpoint is whole
    return Result(name, algorithm, place.problem, data, place.whole(), measured.metrics(),
                  measured.facts() | ({"schedules": timings} if timings else {}), rounds,
                  seed, place.digest(), place if isinstance(place, HostStorage) else None)


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


def _home(memory: Place, algorithm: Algorithm, model: Model | Problem, data: FederatedData | None,
          name: str) -> Literal["device", "host"]:
    """Where the parties' data and states are to be."""
    if memory not in get_args(Place):
        raise InputError(f"memory={memory!r} is not known: use any of {list(get_args(Place))}")
    fitting = isinstance(model, Model) and data is not None
    if memory == "host" and not fitting:
        raise InputError("memory='host' gathers from data: give simulate a model and data=, not a problem of its own")
    if memory == "host" and uses_pooled_data(algorithm):
        raise InputError(f"{name}: it trains on everybody's samples together, which are on the device then: leave it "
                         "out, or use memory='device'")
    if memory == "host" and jax.process_count() > 1:
        raise InputError("memory='host' is for one process, which owns the files: use memory='device' in several")
    if memory != "auto" or not fitting or uses_pooled_data(algorithm) or jax.process_count() > 1:
        return "device" if memory == "auto" else memory
    assert isinstance(model, Model)
    assert data is not None
    try:
        return "device" if fits_device(algorithm, model, data) else "host"
    except (TypeError, ValueError, KeyError):
        return "device"  # where what does not fit together is found and said


def _evaluated(asked: int | None, parties: int, seed: int, home: str) -> NDArray[np.int32]:
    """The numbers of the parties whose models are evaluated, ascending."""
    if asked is not None and not 1 <= asked <= parties:
        raise InputError(f"evaluate_parties={asked} must lie in 1 to {parties}, the number of parties")
    many = asked if asked is not None else min(parties, _EVALUATED) if home == "host" else parties
    if many == parties:
        return np.arange(parties, dtype=np.int32)
    some = np.random.default_rng([seed, _EVALUATED]).choice(parties, many, replace=False, shuffle=False)
    return np.sort(some).astype(np.int32)


def _interval(asked: int | None, rounds: int, cohort: int, evaluated: int) -> int:
    """Rounds between evaluations.

    An evaluation reads the samples of all who are evaluated, a round those of its cohort: where cohorts are small,
    twenty evaluations would take longer than the rounds. The algorithm has no say, so that methods share the rounds.
    """
    every = max(1, rounds // max(_LEAST, min(_MOST, rounds * cohort // evaluated))) if asked is None else asked
    if rounds < 1 or every < 1:
        raise InputError(f"rounds={rounds} and evaluate_every={asked} must be at least 1")
    return every


def _beside(checkpoint: Path | None) -> Path | None:
    return None if checkpoint is None else checkpoint.with_name(f"{checkpoint.name}.parties")


def _check_diagnostics(diagnostics: Sequence[str]) -> None:
    allowed = get_args(Diagnostic)
    for one in diagnostics:
        if one not in allowed:
            raise InputError(f"there is no diagnostic {one!r}{nearest(one, allowed)} Use any of {list(allowed)}")


def check_held_out(algorithm: Algorithm, init: Callable[[Array], Vector], samples: Any, name: str) -> None:
    """Refuse an algorithm that chooses by held-out samples if no party has any.

    Args:
        algorithm: the algorithm.
        init: random key -> first model.
        samples: [N] number of validation samples of each party.
        name: of the method, for the error.

    Raises:
        InputError: naming the method.
    """
    if not np.asarray(samples).any() and uses_held_out(algorithm, jax.eval_shape(init, jax.random.key(0))):
        raise InputError(f"{name}: it chooses by validation samples, and none of the {len(samples)} parties has any: "
                         "set a share for validation in the data")


def _fingerprint(*parts: Any) -> str:
    """A text that differs where the run would: of the structure and every value."""
    total = hashlib.sha256()
    for part in parts:
        total.update(eqx.tree_pformat(part, short_arrays=True).encode())
        total.update(digest([leaf for leaf in jax.tree.leaves(part) if eqx.is_array_like(leaf)]).encode())
    return total.hexdigest()
