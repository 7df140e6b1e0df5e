"""When and how models are evaluated in a run, and what is recorded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.combinator import innermost
from resolvent.algorithms.combinators.pooled_data import uses_pooled_data
from resolvent.errors import InputError, nearest, quote
from resolvent.simulator.record.diagnostics import READS_ALL_PARTIES, RECORDED, Diagnostic
from resolvent.simulator.record.party_metrics import PartyMetrics
from resolvent.simulator.record.systems import VirtualClock

# Metrics of a party and a round that are no diagnostics: info with such a name is not recorded.
_NAMES_OF_METRICS = ("loss", "global_loss", "epsilon", "refused", "memory")
_MIN_EVALUATIONS, _MAX_EVALUATIONS = 5, 20  # by default
_MAX_EVALUATED_ON_HOST = 1000  # parties, by default


@dataclass(frozen=True, eq=False)
class EvaluationPlan:
    """When, on which parties and how models are evaluated.

    Attributes:
        parties: [M] ids of the evaluated parties, ascending.
        diagnostics: what is measured in addition to losses and scores.
        clock: measures simulated seconds and bytes of each round, or None.
        metrics: computes metrics in addition to losses and scores, or None.
    """

    every: int
    parties: NDArray[np.int32]
    diagnostics: tuple[str, ...]
    clock: VirtualClock | None
    metrics: PartyMetrics | None = None


def recorded_names(evaluation: EvaluationPlan) -> tuple[str, ...]:
    """The names of the parties' numbers that each round records, in alphabetical order."""
    custom = set(evaluation.diagnostics).difference(get_args(Diagnostic))
    names = RECORDED.intersection(evaluation.diagnostics) | custom | (
        set() if evaluation.clock is None else {"steps"})
    return tuple(sorted(names))


def plan_evaluation(algorithm: Algorithm, *, rounds: int, cohort: int, every: int | None, parties: NDArray[np.int32],
                    diagnostics: Sequence[str], clock: VirtualClock | None, metrics: PartyMetrics | None = None,
                    info: Sequence[str] = ()) -> EvaluationPlan:
    """Check the arguments of ``simulate`` about evaluation, and complete them.

    By default there are 20 evaluations; fewer, but at least 5, when the cohort is small: an evaluation reads the
    samples of all evaluated parties, a round those of its cohort. The algorithm has no influence on the number, so that
    all methods of a comparison are evaluated after the same rounds.

    Args:
        algorithm: the algorithm; if it pools the data, diagnostics of single parties are left out.
        every: rounds between evaluations, or None.
        parties: [M] ids of the evaluated parties.
        clock: the virtual clock, or None.
        metrics: computes metrics in addition to losses and scores, or None.
        info: names of the numbers that the algorithm's parties return, see ``Description``.
    """
    built_in, custom = get_args(Diagnostic), [
        name for name in (*info, "update_norm") if name not in _NAMES_OF_METRICS]
    for diagnostic in diagnostics:
        if diagnostic not in (allowed := [*dict.fromkeys((*built_in, *custom))]):
            raise InputError(
                f"diagnostics: there is no diagnostic {quote(diagnostic)}{nearest(diagnostic, allowed)} Use any of "
                f"{list(built_in)}, or of the numbers in the info of {type(innermost(algorithm)).__name__}'s parties: "
                f"{[name for name in allowed if name not in built_in]}. Numbers of the server are always recorded")
    if every is None:
        evaluations = max(_MIN_EVALUATIONS, min(_MAX_EVALUATIONS, rounds * cohort // len(parties)))
        every = max(1, rounds // evaluations)
    elif every < 1:
        raise InputError(f"evaluate_every={every} must be at least 1")
    if uses_pooled_data(algorithm):
        diagnostics, clock = [name for name in diagnostics if name in READS_ALL_PARTIES], None
    return EvaluationPlan(every, parties, tuple(diagnostics), clock, metrics)


def choose_evaluated_parties(requested: int | None, parties: int, seed: int, memory: str) -> NDArray[np.int32]:
    """The ids of the parties whose models are evaluated, ascending; a subset is drawn from the seed."""
    if requested is not None and not 1 <= requested <= parties:
        raise InputError(f"evaluate_parties={requested} must lie in 1 to {parties}, the number of parties")
    default = min(parties, _MAX_EVALUATED_ON_HOST) if memory == "host" else parties
    count = default if requested is None else requested
    if count == parties:
        return np.arange(parties, dtype=np.int32)
    generator = np.random.default_rng([seed, _MAX_EVALUATED_ON_HOST])
    return np.sort(generator.choice(parties, count, replace=False, shuffle=False)).astype(np.int32)
