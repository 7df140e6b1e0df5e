"""The privacy losses of the training rows of a site, which its budgets count."""

import math

import jax

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.method import local_solvers
from resolvent.differential_privacy.composition import record_epsilons
from resolvent.errors import InputError
from resolvent.math.tree import Vector
from resolvent.problem.solvers.dpsgd import DPSGD

DELTA = 1e-6
"""The delta at which a site computes the epsilon of a run. The deltas of several runs add up, as their epsilons do."""


def has_private_work(algorithm: Algorithm) -> bool:
    """Whether a local solver is ``DPSGD``, without which the training rows have no bound."""
    return any(isinstance(solver, DPSGD) for solver in local_solvers(algorithm))


def epsilon_of_records(algorithm: Algorithm, model: Vector, samples: int, rounds: int) -> float | None:
    """The epsilon of each training row after all rounds of a method; None without a bound.

    It holds against everybody who sees the replies of the site, the server as well. The noise that a server adds, or
    that protects a party only in the sum of all, is therefore no bound.
    """
    if not has_private_work(algorithm):
        return None
    try:
        epsilon = record_epsilons(algorithm, jax.eval_shape(lambda: model), [samples], rounds=rounds, delta=DELTA)[0]
    except InputError:  # parts of the replies are not noisy, or the accountant is not installed
        return None
    return epsilon if math.isfinite(epsilon) else None
