"""What a site allows, and what no federation allows: the checks of an experiment before it starts at a party."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm, local_solvers
from resolvent.algorithms.combinators import Attacked
from resolvent.algorithms.combinators.combinator import contains
from resolvent.algorithms.combinators.pooled_data import PooledData
from resolvent.algorithms.combinators.private_parties import PrivateParties, is_private
from resolvent.algorithms.traits import is_personal
from resolvent.errors import InputError, check_range, shorten
from resolvent.federation.protocol.refusals import Refusal, RefusalCode
from resolvent.federation.protocol.wire import MAX_BYTES
from resolvent.problem.solvers import LocalSolver, Shuffled
from resolvent.problem.solvers.solver import MinibatchSolver

__all__ = ["MAX_EPSILON", "NO_LIMITS", "WHY", "Limits", "check_parts", "limits_of_weights", "reasons_of_exact_updates",
           "reasons_to_refuse", "refusal_of_limits", "rows_of_update", "scored_splits"]

MAX_EPSILON = 10.0
"""With a larger privacy loss of a training row, an update counts as one without noise."""

# Packages whose functions and classes an algorithm of the library consists of.
_TRUSTED = {"resolvent", "equinox", "jax", "jaxlib", "jaxtyping", "numpy", "optax", "builtins", "functools"}
_MAX_DEPTH = 50
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Limits:
    """What a site allows. The site itself checks it. ``WHY`` has the reason of each limit.

    Attributes:
        algorithms: names of the allowed algorithms; None: all of the library.
        solvers: names of the allowed local solvers, such as ``SGD``; None: all of the library.
        labels: columns that may be the label; None: every column.
        features: columns that may be features or weights; the others are as if they were absent. None: every column
            that is neither free text nor an identifier may be a feature, and none a weight.
        levels: column of text -> the levels that may be named. The rows of the others have no level.
        max_levels: largest number of levels of a column of text, and of classes, without a list; None: any.
        max_level_density: the same as a share of the rows; None: any.
        identifiers: whether columns of whole numbers that all differ may be features without a list.
        max_rounds: largest number of rounds of a method; None: any.
        max_total_rounds: largest number of rounds in which the site answers about its table, over all methods, seeds
            and experiments; None: any.
        max_total_replies: the same for replies; a round has one for each phase.
        max_total_jobs: the same for runs.
        max_total_scores: the same for evaluations of models on its rows.
        max_total_epsilon: the same for the sum of the privacy losses of training rows, at delta 1e-6 for each method
            and seed. A method without ``DPSGD`` has no bound, and does not run with this limit.
        max_lead_rounds: largest number of rounds in all plans of one lead; None: any.
        max_lead_replies: the same for replies.
        max_lead_jobs: the same for runs.
        max_lead_scores: the same for evaluations.
        max_lead_epsilon: the same for the sum of the privacy losses.
        max_local_steps: largest number of local steps that a solver makes in a phase; None: any.
        min_rows: smallest number of its training samples with which this site takes part.
        min_cell: no name of a level with fewer rows leaves this site, and no mean, sum or score over fewer rows; the
            level is not used in training. A table with a class of fewer training rows does not take part, nor does an
            update read all training rows except fewer. A new version of the table is used when at least as many rows
            differ.
        min_batch: smallest number of rows in a minibatch of a solver, the last one of an epoch included.
        min_sites: smallest number of sites of a run in which this site takes part.
        max_parameters_per_row: largest number of parameters of a model that leaves the site without noise, divided by
            the number of training rows that one update reads; None: any.
        networks: whether models that are not linear (or logistic) leave the site without noise, also in a secure sum.
        score_digits: number of significant digits of the scores that leave the site; None: all.
        scores: whether the scores of models on this site's samples may leave it; those of personal models not if single
            parties are protected and they are not: such scores depend on training rows.
        training_scores: whether they may be those on training rows, too. They are exact numbers without noise; default:
            unless the algorithm is differentially private.
        clip: largest Euclidean norm of an update that leaves the site; longer updates are scaled down. None: no limit.
        noise: standard deviation of the Gaussian noise that is added to every number of an update, in multiples of
            ``clip``; noise needs ``clip``.
        max_bytes: largest number of bytes of a message that the site reads.
        secure_sums: whether replies leave in secure sums only.
        refit_with_test_rows: whether a refit may train on the rows that judged the methods; otherwise it trains on
            the training and validation rows of this site, and its test rows stay unseen.

    Raises:
        InputError: a number is out of range, or there is noise without ``clip``.
    """

    algorithms: tuple[str, ...] | None = None
    solvers: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    features: tuple[str, ...] | None = None
    levels: dict[str, list[str]] | None = None
    max_levels: int | None = 40
    max_level_density: float | None = 1 / 3
    identifiers: bool = False
    max_rounds: int | None = None
    max_total_rounds: int | None = None
    max_total_replies: int | None = None
    max_total_jobs: int | None = None
    max_total_scores: int | None = None
    max_total_epsilon: float | None = None
    max_lead_rounds: int | None = None
    max_lead_replies: int | None = None
    max_lead_jobs: int | None = None
    max_lead_scores: int | None = None
    max_lead_epsilon: float | None = None
    max_local_steps: int | None = None
    min_rows: int = 20
    min_cell: int = 5
    min_batch: int = 5
    min_sites: int = 3
    max_parameters_per_row: float | None = 1 / 3
    networks: bool = False
    score_digits: int | None = 3
    scores: bool = True
    training_scores: bool | None = None
    clip: float | None = None
    noise: float = 0.0
    secure_sums: bool = False
    max_bytes: float = MAX_BYTES  # an integer of a file is below 2^31
    refit_with_test_rows: bool = True

    def __post_init__(self) -> None:
        check_range(self, "[1, inf)", min_rows=self.min_rows, min_cell=self.min_cell, min_batch=self.min_batch,
                    min_sites=self.min_sites, score_digits=self.score_digits)
        if self.clip is not None and not 0 < self.clip < float("inf"):
            raise InputError(f"clip={self.clip} must be positive and finite")
        if not 0 <= self.noise < float("inf"):
            raise InputError(f"noise={self.noise} must be finite and not negative")
        if self.noise and self.clip is None:
            raise InputError("noise is a multiple of clip, which is not set: set clip")


WHY: Mapping[str, str] = {
    "algorithms": "an algorithm decides what leaves in a round; a list allows only those that were read",
    "solvers": "a solver decides what an update contains; a list allows only those that were read",
    "labels": "models of a label let others predict it; a list says which columns others may learn to predict",
    "features": "the names of levels, means and deviations of a feature leave; a list says of which columns",
    "levels": "the names of levels leave; a list says which of them, so that none is discovered from the rows",
    "max_levels": "a column with many levels is free text, whose levels are names and notes",
    "max_level_density": "a column with few rows for each level is free text, whose levels describe persons",
    "identifiers": "a model that has learned an identifier can tell whether a person is in the table",
    "max_rounds": "each round is a further answer about the same rows",
    "max_total_rounds": "each round is a further answer about the same rows, whichever experiment asks for it",
    "max_total_replies": "a round of several phases has several answers about the same rows",
    "max_total_jobs": "each run can ask about other columns, and leaves a model of the same rows",
    "max_total_scores": "each evaluation is a further answer about the validation and test rows",
    "max_total_epsilon": "the privacy losses of all runs add up, whoever asks for them",
    "max_lead_rounds": "one lead cannot use up what others need, and learns from this many rounds at most",
    "max_lead_replies": "the same for a lead whose methods have several phases",
    "max_lead_jobs": "the same for a lead who asks about many columns",
    "max_lead_scores": "the same for a lead who evaluates often",
    "max_lead_epsilon": "one lead learns this much about a row at most, from all own runs together",
    "max_local_steps": "it bounds the time that an experiment takes at the site; it protects no row",
    "min_rows": "a model of few rows describes these rows",
    "min_cell": "a number about fewer rows describes single persons; the difference of two numbers does, too",
    "min_batch": "the gradient of one row, divided by that of the bias, is the row",
    "min_sites": "of the mean of two sites each site can subtract its own part",
    "max_parameters_per_row": "a model with more parameters than this for each row that an update reads can memorise "
                              "the rows; such a model leaves with noise only, whose epsilon is at most 10",
    "networks": "a unit of a network begins or ceases to let one row through, and two successive models then differ by "
                "this row",
    "score_digits": "a score with all digits tells how a change of the model changes the prediction of a single row",
    "scores": "a score says something about all rows behind it; without scores no site can be compared",
    "training_scores": "a score on training rows tells whether a row was among them",
    "clip": "an update of bounded length lets noise hide a single row",
    "noise": "noise is the only limit with a bound on what can be learned from an update",
    "secure_sums": "a reply tells more about the rows than the sum of the replies of several sites",
    "max_bytes": "it bounds the memory that a message takes; it protects no row",
    "refit_with_test_rows": "rows that have not trained a model can judge it later; it protects no row",
}
"""The reason of each limit, and what a change of it would cost."""

NO_LIMITS = Limits(max_levels=None, max_level_density=None, identifiers=True, min_rows=1, min_cell=1, min_batch=1,
                   min_sites=1, max_parameters_per_row=None, networks=True, score_digits=None)
"""What a rehearsal allows: a simulation has no limits."""


def reasons_to_refuse(limits: Limits, algorithm: Algorithm, *, method: str, rounds: int,
                      samples: int) -> dict[str, str]:
    """Name of a limit that an experiment exceeds -> the reason; empty if the site takes part.

    Args:
        method: the name of the algorithm in the experiment, such as ``fedprox``.
    """
    solvers, reasons = local_solvers(algorithm), {}
    if limits.algorithms is not None and method not in limits.algorithms:
        reasons["algorithms"] = (f"the algorithm {shorten(method)} is not allowed; allowed: "
                                 f"{', '.join(limits.algorithms)}")
    unknown = sorted({type(solver).__name__ for solver in solvers} - {*(limits.solvers or ())})
    if limits.solvers is not None and unknown:
        reasons["solvers"] = f"the solver {', '.join(unknown)} is not allowed; allowed: {', '.join(limits.solvers)}"
    if limits.max_rounds is not None and rounds > limits.max_rounds:
        reasons["max_rounds"] = f"{rounds} rounds are more than the allowed {limits.max_rounds}"
    if limits.max_local_steps is not None:
        steps = max((_steps_of(solver, samples) for solver in solvers), default=0)
        if steps > limits.max_local_steps:
            reasons["max_local_steps"] = f"{steps} local steps are more than the allowed {limits.max_local_steps}"
    smallest = min((_smallest_minibatch(solver, samples) for solver in solvers if isinstance(solver, MinibatchSolver)),
                   default=limits.min_batch)
    if smallest < limits.min_batch:
        reasons["min_batch"] = (f"{samples} training rows give minibatches of {smallest} rows, fewer than the allowed "
                                f"{limits.min_batch}")
    if samples < limits.min_rows:
        reasons["min_rows"] = f"the site has fewer training samples than the {limits.min_rows} with which it takes part"
    return reasons


def rows_of_update(algorithm: Algorithm, samples: int, effort: float) -> int:
    """Smallest number of training rows that an update of the algorithm reads.

    Args:
        effort: the smallest effort that the plan can ask for; a positive one is at least a step.
    """
    return min((_rows_read(solver, samples, effort) for solver in local_solvers(algorithm)), default=samples)


def reasons_of_exact_updates(limits: Limits, algorithm: Algorithm, *, parameters: int, samples: int, effort: float,
                             is_network: bool, in_a_sum: bool) -> dict[str, str]:
    """Name of a limit that updates without noise exceed -> the reason.

    Args:
        limits: what the site allows.
        samples: number of the site's training samples.
        effort: see ``rows_of_update``.
        is_network: whether the model is not linear in its parameters.
        in_a_sum: whether the updates leave in secure sums only.
    """
    reasons = {}
    if is_network and not limits.networks:
        reasons["networks"] = "the model is neither linear nor logistic"
    if in_a_sum:
        return reasons
    read = rows_of_update(algorithm, samples, effort)
    if limits.max_parameters_per_row is not None and parameters > limits.max_parameters_per_row * read:
        reasons["max_parameters_per_row"] = (
            f"the model has {parameters} parameters, more than {limits.max_parameters_per_row:.3g} for each of the "
            f"{read} training rows that an update reads, of {samples}")
    if 0 < samples - read < limits.min_cell:
        reasons["min_cell"] = (f"an update leaves out {samples - read} of {samples} training rows, fewer than "
                               f"{limits.min_cell}: its difference from one that reads all is their own")
    return reasons


def limits_of_weights(limits: Limits, weights: NDArray[Any]) -> Limits:
    """The limits for training rows of unequal weights: they count as (sum w)^2 / sum w^2 rows of equal ones.

    Raises:
        Refusal: these are fewer than ``min_rows``.
    """
    if not weights.any():
        return limits
    of_row, effective = limits.max_parameters_per_row, float(weights.sum()**2 / (weights**2).sum())
    if effective < limits.min_rows:
        raise refusal_of_limits({"min_rows": f"with their weights the {len(weights)} training rows count as "
                                 f"{effective:.3g}"}, limits)
    return dataclasses.replace(limits, min_batch=math.ceil(limits.min_batch * len(weights) / effective - _ROUNDING),
                               max_parameters_per_row=of_row and of_row * effective / len(weights))


def refusal_of_limits(reasons: Mapping[str, str], limits: Limits) -> Refusal:
    """The refusal for the reasons of ``reasons_to_refuse``: the allowed values leave the site, and no reason."""
    text = "; ".join(f"{reason} (limits.{name}: {WHY[name]})" for name, reason in reasons.items())
    return Refusal(RefusalCode.LIMITS, text, limits={name: getattr(limits, name) for name in reasons})


def scored_splits(limits: Limits, algorithm: Algorithm, splits: Sequence[str]) -> tuple[str, ...]:
    """The splits of which a site lets scores out.

    If single parties are protected, their personal models are not: scores of these would show training rows on any
    split.
    """
    if not limits.scores:
        return ()
    has_training = not is_private(algorithm) if limits.training_scores is None else limits.training_scores
    if not has_training and contains(algorithm, PrivateParties) and is_personal(algorithm):
        return ()
    return tuple(split for split in splits if has_training or split != "train")


def check_parts(algorithm: Algorithm, *, rehearsal: bool) -> None:
    """Refuse an algorithm that real parties cannot run, or that contains code from outside the library."""
    if rehearsal:
        return
    advice = "use it in a simulation or a rehearsal"
    if contains(algorithm, PooledData):
        raise InputError(f"the algorithm trains on pooled samples, and samples do not leave a site: {advice}")
    if contains(algorithm, Attacked):
        raise InputError(f"the algorithm makes some of its parties malicious: {advice}")
    if (part := next(_foreign_parts(algorithm), None)) is not None:
        raise InputError(f"the algorithm has {shorten(part)}, which is not a part of the library: only installed code "
                         f"of resolvent runs at a site; {advice}")


def _smallest_minibatch(solver: MinibatchSolver, samples: int) -> int:
    """The minibatches of an epoch at a site have nearly equal sizes, see ``OwnBatches``."""
    batch_size = solver.budget.batch_size
    return samples // -(-samples // batch_size) if _shuffles(solver) else min(batch_size, samples)


def _shuffles(solver: MinibatchSolver) -> bool:
    return isinstance(getattr(solver, "batches", None), Shuffled)


def _rows_read(solver: LocalSolver, samples: int, effort: float) -> int:
    if not isinstance(solver, MinibatchSolver):
        return samples
    smallest = _smallest_minibatch(solver, samples)
    if not _shuffles(solver):
        return smallest  # the minibatches of other rules can have the same rows
    steps = int(solver.count_steps(jnp.array(samples), jnp.array(effort)))
    return samples if steps * solver.budget.batch_size >= samples else smallest * steps


def _steps_of(solver: LocalSolver, samples: int) -> int:
    """Number of steps of a solver at full effort."""
    count: Callable[..., Any] | None = getattr(solver, "count_steps", None)
    if count is not None:
        return int(count(jnp.array(samples), jnp.ones(())))
    return int(getattr(solver, "steps", 1))


def _foreign_parts(x: Any, depth: int = 0) -> Iterator[str]:
    """The names of functions and classes in a value that other packages define."""
    kind = x if callable(x) and hasattr(x, "__qualname__") else type(x)
    module = getattr(kind, "__module__", None) or ""
    is_part = isinstance(x, eqx.Module) or callable(x)
    if is_part and module.partition(".")[0] not in _TRUSTED:
        yield f"{module}.{kind.__qualname__}"
    if depth > _MAX_DEPTH:
        yield "a part that is nested too deeply"
        return
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        for item in dataclasses.fields(x):
            yield from _foreign_parts(getattr(x, item.name, None), depth + 1)
    elif isinstance(x, dict):
        for value in x.values():
            yield from _foreign_parts(value, depth + 1)
    elif isinstance(x, tuple | list):
        for value in x:
            yield from _foreign_parts(value, depth + 1)
