"""Differential privacy of a whole algorithm: which compositions are private, and their privacy loss (epsilon).

Privacy of *records*: every party protects each of its samples from the server and the other parties, by ``DPSGD`` as
the local solver. Everything that a party sends and stores must depend on its samples only through DPSGD, and each
release must have noise of its own; a trace of the algorithm without data checks both. Privacy of *parties*:
``PrivateParties`` protects the information which parties took part.

Neighbouring data sets differ in one record that is replaced by one with the gradient zero, or in one party that takes
part in no round (``account.ADJACENCY``). The numbers of parties and of a party's samples are public: they are in the
rate of sampling and in the weights of parties. DPSGD itself divides by ``batch_size`` only, so that with
``batch_size >= n`` its releases have the same epsilon for a record that is removed.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.description import describe
from resolvent.algorithms.method import local_solvers
from resolvent.errors import InputError, check_range
from resolvent.math import accounting
from resolvent.math.accounting import Accountant, gaussian_epsilon, steps_within
from resolvent.math.tree import Vector
from resolvent.problem.solvers.dpsgd import DPSGD
from resolvent.problem.solvers.minibatches import scale_budget


class PrivateWork(NamedTuple):
    """The private releases of a party in a round.

    Attributes:
        solver: the DPSGD of all local work.
        calls: number of calls of the solver in a round, at full effort.

    Example:
        >>> solver = rv.solvers.DPSGD(0.1, batch_size=16, steps=5)
        >>> rv.privacy.check_private_records(rv.fedavg(solver), jnp.zeros(3)).calls
        1
    """

    solver: DPSGD
    calls: int

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise of a sum with sensitivity 1."""
        return float(self.solver.noise_multiplier)  # type: ignore[arg-type]

    @property
    def steps(self) -> int:
        """Number of noisy sums in a round, at full effort."""
        return int(scale_budget(self.solver.steps, jnp.ones(()))) * self.calls  # 2.4 steps are three

    def rate(self, samples: int) -> float:
        """Probability with which each sample of a party is in a sum."""
        return min(1.0, self.solver.batch_size / samples)


def check_private_records(algorithm: Algorithm, w0: Vector) -> PrivateWork:
    """Check that everything that parties send and store depends on their samples only through DPSGD.

    Args:
        algorithm: the algorithm.
        w0: a model, or its shapes.

    Raises:
        InputError: the algorithm has no DPSGD or several different ones; it reads samples elsewhere, such as for a
            gradient at the shared model or a loss that it sends; it calls the solver before the first round, for the
            personal model, or as often as a state says; or two of its releases have the same noise.

    Example:
        >>> solver = rv.solvers.DPSGD(0.1, batch_size=16, steps=5)
        >>> rv.privacy.check_private_records(rv.fedavg(solver), jnp.zeros(3)).calls
        1
    """
    from resolvent.differential_privacy.noise_keys import check_same_noise, noise_keys  # few runs are private

    solvers = local_solvers(algorithm)
    private = [solver for solver in solvers if isinstance(solver, DPSGD)]
    if not private or len(private) < len(solvers):
        other = next((type(s).__name__ for s in solvers if not isinstance(s, DPSGD)), "none")
        raise InputError(f"the local work is not differentially private: the solver is {other}. Use "
                         "rv.solvers.DPSGD(...) for all local work")
    if any(not _equal(solver, private[0]) for solver in private[1:]):
        raise InputError("the local work has several DPSGD with different settings, which are not accounted for: use "
                         "one")
    name = type(algorithm).__name__
    description = describe(algorithm, w0)
    if description.reads:
        raise InputError(f"{name} reads {description.reads[0]} of a party's samples outside DPSGD, so that what it "
                         "sends or stores is not private: use a method whose parties only solve, such as fedavg or "
                         "fedprox")
    keys = noise_keys(algorithm, description)
    if any(keys.first.values()):
        raise InputError(f"{name} calls the solver before the first round, which is not accounted for: use a method "
                         "that calls it in rounds, such as fedavg or fedprox")
    if keys.personal:
        raise InputError(f"{name} trains the personal model whenever it is used, each time with the same noise, which "
                         "is not accounted for: use a method that trains it in rounds, such as ditto")
    check_same_noise(keys, name)
    calls, *others = {len(releases) for releases in keys.rounds.values()}
    if others:
        raise InputError(f"{name} calls the solver {calls} or {others[0]} times in a round, depending on the round or "
                         "the party, which is not accounted for: call it equally often")
    return PrivateWork(private[0], calls)


def record_epsilons(algorithm: Algorithm, w0: Vector, sizes: Sequence[int] | Int[Array, " N"], *, rounds: int,
                    delta: float, accountant: Accountant = "pld") -> list[float]:
    """[N] the epsilon of each party's samples at this delta, if the party takes part in ``rounds`` rounds.

    Neighbouring data sets differ in one record that is replaced by one with the gradient zero. Sampling of parties does
    not reduce epsilon, because the server knows which parties take part.

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
    work = check_private_records(algorithm, w0)
    by_size = {n: gaussian_epsilon(work.noise_multiplier, work.rate(n), work.steps * rounds, delta, accountant)
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
        >>> solver, w0 = rv.solvers.DPSGD(0.1, batch_size=16, steps=5), {"weight": jnp.zeros((10, 64))}
        >>> rv.privacy.rounds_within(rv.fedavg(solver), w0, [100, 300], epsilon=3, delta=1e-4)  # doctest: +SKIP
    """
    check_range("rounds_within", "(0, inf)", epsilon=epsilon)
    work = check_private_records(algorithm, w0)
    rate = work.rate(min(int(size) for size in sizes))
    return steps_within(epsilon, work.noise_multiplier, rate, delta, accountant) // work.steps


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
    work = check_private_records(algorithm, w0)
    rate = work.rate(min(int(size) for size in sizes))
    return accounting.noise_within(epsilon, rate, work.steps * rounds, delta, accountant)


def _equal(a: Any, b: Any) -> bool:
    same: bool = jax.tree.structure(a) == jax.tree.structure(b)  # type: ignore[operator]
    return same and all(bool(jnp.all(jnp.asarray(x) == jnp.asarray(y)))
                        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
