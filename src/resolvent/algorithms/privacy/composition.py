"""Differential privacy of a whole algorithm: which compositions are private, and their privacy loss (epsilon).

Privacy of *records*: every party protects each of its samples from the server and the other parties, by ``DPSGD`` as
the local solver. Everything that a party sends and stores must depend on its samples only through DPSGD; a trace of the
algorithm without data checks this. Privacy of *parties*: ``PrivateParties`` protects the information which parties took
part.

Neighbouring data sets differ by one added or removed record, or party. The number of a party's samples is public.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, local_solvers
from resolvent.algorithms.combinators.combinator import layers
from resolvent.algorithms.combinators.private_parties import PrivateParties
from resolvent.algorithms.keys import root_key
from resolvent.errors import InputError, check_range
from resolvent.math import accounting
from resolvent.math.accounting import Accountant, gaussian_epsilon, steps_within
from resolvent.math.tree import Vector
from resolvent.problem.oracle import ShapeOracle
from resolvent.problem.solvers.dpsgd import DPSGD
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["PrivateWork", "check_private_records", "noise_within", "party_epsilon", "record_epsilons", "rounds_within"]

_MARK = "private_work"


class PrivateWork(NamedTuple):
    """The private releases of a party in a round.

    Attributes:
        solver: the DPSGD of all local work.
        calls: number of calls of the solver in a round.

    Example:
        >>> solver = rv.solvers.DPSGD(0.1, batch_size=16, steps=5)
        >>> rv.privacy.check_private_records(rv.fedavg(solver), jnp.zeros(3)).calls
        1
    """

    solver: DPSGD
    calls: int


def check_private_records(algorithm: Algorithm, w0: Vector) -> PrivateWork:
    """Check that everything that parties send and store depends on their samples only through DPSGD.

    Args:
        algorithm: the algorithm.
        w0: a model, or its shapes.

    Raises:
        InputError: the algorithm has no DPSGD or several different ones; it reads samples elsewhere, such as for a
            gradient at the shared model or a loss that it sends; or it calls the solver in a loop or before the first
            round.

    Example:
        >>> solver = rv.solvers.DPSGD(0.1, batch_size=16, steps=5)
        >>> rv.privacy.check_private_records(rv.fedavg(solver), jnp.zeros(3)).calls
        1
    """
    solvers = local_solvers(algorithm)
    private = [solver for solver in solvers if isinstance(solver, DPSGD)]
    if not private or len(private) < len(solvers):
        other = next((type(s).__name__ for s in solvers if not isinstance(s, DPSGD)), "none")
        raise InputError(f"the local work is not differentially private: the solver is {other}. Use "
                         "rv.solvers.DPSGD(...) for all local work")
    if any(not _equal(solver, private[0]) for solver in private[1:]):
        raise InputError("the local work has several DPSGD with different settings, which are not accounted for: use "
                         "one")
    marked = jax.tree.map(lambda part: _Marker() if isinstance(part, DPSGD) else part, algorithm,
                          is_leaf=lambda part: isinstance(part, DPSGD))
    before, calls = _count_calls(marked, w0, type(algorithm).__name__)
    if before:
        raise InputError(f"{type(algorithm).__name__} calls the solver before the first round or in a loop, which is "
                         "not accounted for: use a method that calls it once, such as fedavg or fedprox")
    return PrivateWork(private[0], calls)


def record_epsilons(algorithm: Algorithm, w0: Vector, sizes: Sequence[int] | Int[Array, " N"], *, rounds: int,
                    delta: float, accountant: Accountant = "pld") -> list[float]:
    """[N] the epsilon of each party's samples at this delta, if the party takes part in ``rounds`` rounds.

    Sampling of parties does not reduce epsilon, because the server knows which parties take part.

    Args:
        algorithm: an algorithm with ``DPSGD`` as its local solver.
        w0: a model, or its shapes.
        sizes: numbers of samples of the parties.
        rounds: number of rounds in which each party takes part.
        delta: the delta, in (0, 1), usually below one over the number of samples.
        accountant: ``pld`` (tight) or ``rdp``.

    Raises:
        InputError: the composition is not private (``check_private_records``), or dp-accounting is not installed.

    Example:
        >>> solver = rv.solvers.DPSGD(0.1, noise_multiplier=2.0, batch_size=16, steps=5)  # doctest: +SKIP
        >>> rv.privacy.record_epsilons(rv.fedavg(solver), w0, [100, 300], rounds=20, delta=1e-4)  # doctest: +SKIP
    """
    solver, calls = check_private_records(algorithm, w0)
    steps = round(float(solver.steps)) * calls * rounds  # type: ignore[arg-type]
    by_size = {n: gaussian_epsilon(float(solver.noise_multiplier),  # type: ignore[arg-type]
                                   min(1.0, solver.batch_size / n), steps, delta, accountant)
               for n in {int(size) for size in sizes}}
    return [by_size[int(size)] for size in sizes]


def rounds_within(algorithm: Algorithm, w0: Vector, sizes: Sequence[int] | Int[Array, " N"], *, epsilon: float,
                  delta: float, accountant: Accountant = "pld") -> int:
    """The largest number of rounds after which every party's epsilon is at most ``epsilon``; see ``record_epsilons``.

    The smallest party determines it, because its samples are drawn most often.

    Args:
        algorithm: an algorithm with ``DPSGD`` as its local solver.
        w0: a model, or its shapes.
        sizes: numbers of samples of the parties.
        epsilon: largest epsilon of any party, positive.
        delta: the delta, in (0, 1), usually below one over the number of samples.
        accountant: ``pld`` (tight) or ``rdp``.

    Raises:
        InputError: the composition is not private (``check_private_records``), ``epsilon`` is not positive, or
            dp-accounting is not installed.

    Example:
        >>> data = rv.datasets.digits(parties=4)
        >>> solver = rv.solvers.DPSGD(0.1, noise_multiplier=2.0, batch_size=16, steps=5)
        >>> model = rv.models.logistic(64, 10)
        >>> w0 = model.init(jax.random.key(0))
        >>> rv.privacy.check_private_records(rv.fedavg(solver), w0).calls
        1
        >>> rv.privacy.rounds_within(rv.fedavg(solver), w0, data.sizes(), epsilon=3, delta=1e-4)  # doctest: +SKIP
    """
    check_range("rounds_within", "(0, inf)", epsilon=epsilon)
    solver, calls = check_private_records(algorithm, w0)
    rate = min(1.0, solver.batch_size / min(int(size) for size in sizes))
    steps = steps_within(epsilon, float(solver.noise_multiplier), rate, delta, accountant)  # type: ignore[arg-type]
    return steps // (round(float(solver.steps)) * calls)  # type: ignore[arg-type]


def noise_within(algorithm: Algorithm, w0: Vector, sizes: Sequence[int] | Int[Array, " N"], *, rounds: int,
                 epsilon: float, delta: float, accountant: Accountant = "pld") -> float:
    """The smallest noise multiplier, to 0.1 %, for which no party's epsilon is larger after ``rounds`` rounds.

    The smallest party determines it. The noise multiplier that ``algorithm`` has is not read.

    Args:
        algorithm: an algorithm with ``DPSGD`` as its local solver.
        w0: a model, or its shapes.
        sizes: numbers of samples of the parties.
        rounds: number of rounds, at least 1.
        epsilon: largest epsilon of any party, positive.
        delta: the delta, in (0, 1), usually below one over the number of samples.
        accountant: ``pld`` (tight) or ``rdp``.

    Raises:
        InputError: the composition is not private (``check_private_records``), a number is outside its range, or
            dp-accounting is not installed.

    Example:
        >>> solver, w0 = rv.solvers.DPSGD(0.1, batch_size=16, steps=5), {"weight": jnp.zeros((10, 64))}
        >>> noise = rv.privacy.noise_within(rv.fedavg(solver), w0, [100, 300], rounds=20, epsilon=3,
        ...                                 delta=1e-4)  # doctest: +SKIP
        >>> private = dataclasses.replace(solver, noise_multiplier=noise)  # doctest: +SKIP
    """
    check_range("noise_within", "[1, inf)", rounds=rounds)
    solver, calls = check_private_records(algorithm, w0)
    rate = min(1.0, solver.batch_size / min(int(size) for size in sizes))
    steps = round(float(solver.steps)) * calls * rounds  # type: ignore[arg-type]
    return accounting.noise_within(epsilon, rate, steps, delta, accountant)


def party_epsilon(algorithm: Algorithm, *, rate: float, rounds: int, delta: float,
                  accountant: Accountant = "pld") -> float:
    """The epsilon for single parties after ``rounds`` rounds of an algorithm with ``PrivateParties``.

    Args:
        algorithm: an algorithm with ``PrivateParties``.
        rate: probability with which a party takes part in a round, independently of the others
            (``rv.participation.Bernoulli``); 1 if all take part.
        rounds: number of rounds.
        delta: the delta, in (0, 1), usually below 1/N.
        accountant: ``pld`` (tight) or ``rdp``.

    Raises:
        InputError: the algorithm has no ``PrivateParties``, or dp-accounting is not installed.

    Example:
        >>> algorithm = rv.combinators.PrivateParties(rv.fedavg(rv.SGD(0.1)), cohort=10.0)  # doctest: +SKIP
        >>> rv.privacy.party_epsilon(algorithm, rate=0.1, rounds=20, delta=1e-4)  # doctest: +SKIP
    """
    private = [layer for layer in layers(algorithm) if isinstance(layer, PrivateParties)]
    if not private:
        raise InputError(f"{type(algorithm).__name__} does not protect parties: put "
                         "rv.combinators.PrivateParties(...) around a method such as fedavg")
    return gaussian_epsilon(float(private[0].effective_multiplier), rate, rounds, delta, accountant)


class _Marker(LocalSolver):
    """Stands for DPSGD in a trace: it reads no samples and leaves a mark in the jaxpr."""

    @override
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array,
                 effort: Float[Array, ""]) -> tuple[Vector, Int[Array, ""]]:
        return jax.jit(_private_work)(start, key), jnp.array(1)


def _private_work(start: Vector, key: Array) -> Vector:
    return jax.tree.map(lambda leaf: leaf + jax.random.uniform(key, (), leaf.dtype), start)


_private_work.__name__ = _MARK


class _SampleRead(Exception):
    """Raised where an algorithm reads samples outside DPSGD."""


class _ReadProbe(ShapeOracle):
    """An oracle that refuses to be read. Diagnostics, which are neither sent nor stored, are not traced with it."""

    @override
    def value(self, w: Vector) -> Float[Array, ""]:
        raise _SampleRead("the loss")

    @override
    def grad(self, w: Vector) -> Vector:
        raise _SampleRead("a gradient")

    @override
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> Vector:
        raise _SampleRead("a minibatch gradient")

    @override
    def held_out(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        raise _SampleRead("held-out samples")


def _count_calls(algorithm: Algorithm, w0: Vector, name: str) -> tuple[int, int]:
    """The number of calls of the solver before the first round or in a loop, and the number of calls in a round."""
    def first(w0: Vector) -> Any:
        return algorithm.init_party(w0, _ReadProbe(), root_key(0))

    def round_(w0: Vector) -> Any:
        k, key, effort = jnp.array(0), root_key(0), jnp.ones(())
        server, state = algorithm.init(w0, jnp.ones(1)), jax.tree.map(jnp.asarray, first(w0))
        results = []
        for phase in algorithm.phases:
            after, reply, _ = phase.party(state, phase.message(server, k), _ReadProbe(), key, effort)
            results.append((after, reply))
        return results

    try:
        of_first, of_round = jax.make_jaxpr(first)(w0), jax.make_jaxpr(round_)(w0)
    except _SampleRead as error:
        raise InputError(f"{name} reads {error} of a party's samples outside DPSGD, so that what it sends or stores is "
                         "not private: use a method whose parties only solve, such as fedavg or fedprox") from None
    early = sum(1 for _ in _marks(of_first.jaxpr, in_loop=False))
    marks = list(_marks(of_round.jaxpr, in_loop=False))
    return early + sum(marks), len(marks) - early


def _marks(jaxpr: Any, *, in_loop: bool) -> Iterator[bool]:
    """For every call of the solver, whether it is in a loop."""
    for equation in jaxpr.eqns:
        if equation.params.get("name") == _MARK:
            yield in_loop
            continue
        is_loop = in_loop or equation.primitive.name in ("while", "scan")
        for value in jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _marks(inner, in_loop=is_loop)


def _equal(a: Any, b: Any) -> bool:
    same: bool = jax.tree.structure(a) == jax.tree.structure(b)  # type: ignore[operator]
    return same and all(bool(jnp.all(jnp.asarray(x) == jnp.asarray(y)))
                        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
