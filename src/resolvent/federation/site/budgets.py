"""The budgets of a site: how much it answers about a table in all experiments, and how much of it one lead may ask."""

import math

import jax

from resolvent.algorithms.algorithm import Algorithm, local_solvers
from resolvent.differential_privacy import record_epsilons
from resolvent.errors import InputError
from resolvent.federation.protocol.limits import Limits
from resolvent.federation.site.ledger import Ledger, Usage
from resolvent.math.tree import Vector
from resolvent.problem.solvers.dpsgd import DPSGD

DELTA = 1e-6
"""The delta at which a site computes the epsilon of a run. The deltas of several runs add up, as their epsilons do."""


def reasons_of_budgets(limits: Limits, ledger: Ledger, lead: str, needed: Usage, *,
                       without: str = "") -> dict[str, str]:
    """Name of a budget that would be exceeded -> the reason; empty if enough is left.

    Args:
        limits: what the site allows.
        without: name of a run whose answers are not counted, because ``needed`` has them.
    """
    reasons = {}
    for scope, name, title in (("total", None, "all experiments"), ("lead", lead, f"the plans of {lead}")):
        used = ledger.usage(lead=name, without=without)
        for quantity, need, spent in zip(Usage._fields, needed, used, strict=True):
            limit = getattr(limits, f"max_{scope}_{quantity}")
            if limit is not None and need and spent + need > limit:
                reasons[f"max_{scope}_{quantity}"] = (
                    f"{_number(need, quantity)} needed, and {_number(spent, quantity)} of the allowed {limit:.6g} have "
                    f"been used by {title}")
    return reasons


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


def _number(value: float, quantity: str) -> str:
    return f"{quantity} {'without a bound' if math.isinf(value) else f'{value:.6g}'}"
