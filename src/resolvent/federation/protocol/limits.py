"""What a site allows, and what no federation allows: the checks of a plan before and while it runs at a site.

Each limit is one object, ``Limit``: its default, its meaning, its reason, the sentence that a lead reads, and the check
of what is asked. A new limit is one field of ``Limits``; the site's file, ``site check``, the refusals and the data
sheet show it without further code. A plan says what it asks in ``Asked``, and ``reasons_to_refuse`` judges it by all
limits, for every kind of plan.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax.numpy as jnp
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.attacked import Attacked
from resolvent.algorithms.combinators.combinator import contains
from resolvent.algorithms.combinators.private_parties import PrivateParties, is_private
from resolvent.algorithms.method import local_solvers
from resolvent.algorithms.traits import is_personal
from resolvent.errors import InputError, Interval, check_range, quote, shorten
from resolvent.federation.protocol.policy import Policy
from resolvent.federation.protocol.refusals import Refusal, RefusalCode
from resolvent.federation.protocol.wire import MAX_BYTES
from resolvent.problem.solvers.minibatches import Shuffled
from resolvent.problem.solvers.solver import LocalSolver, MinibatchSolver

__all__ = ["LIMITS", "MAX_EPSILON", "NO_LIMITS", "PROFILES", "Asked", "Limit", "Limits", "Usage", "check_parts",
           "limits_of_weights", "one_split_note", "read_refusal", "reasons_to_refuse", "refusal_of_limits",
           "rows_of_update", "scored_splits"]

MAX_EPSILON = 10.0
"""With a larger privacy loss of a training row, an update counts as one without noise."""

# Packages whose functions and classes an algorithm of the library consists of.
_TRUSTED = {"resolvent", "equinox", "jax", "jaxlib", "jaxtyping", "numpy", "optax", "builtins", "functools"}
_MAX_DEPTH = 50
_MAX_SHOWN = 20  # limits in a refusal that is read
_ROUNDING = 1e-6
_Value = TypeVar("_Value")


class Usage(NamedTuple):
    """What a site has answered about rows, or what a plan asks for.

    Attributes:
        rounds: number of rounds of all methods and seeds.
        replies: number of replies; a round has one for each phase.
        epsilon: sum of the privacy losses of a training row, each at the delta of ``budgets``; infinite without bound.
        refusals: number of plans that the site has refused because of its rows; a plan asks for one, because whether it
            is refused is an answer.
    """

    rounds: int = 0
    replies: int = 0
    jobs: int = 0
    scores: int = 0
    epsilon: float = 0.0
    refusals: int = 0


_NOTHING = Usage()


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked of a site, as far as it is known: of a plan, of one of its methods, or of a method's updates.

    A limit judges what it can. None stands for what is not asked, or not known yet.

    Attributes:
        sites: number of sites of the run.
        labels: the columns that are predicted.
        in_a_sum: whether replies leave in secure sums only.
        needed: what the plan needs of each budget.
        scored_rows: number of rows of the site's smallest scored split.
        used: (whose budget, ``total`` or ``lead``; who has used it, for the reason) -> what is used of it.
        method: the name of an algorithm in the plan, such as ``fedprox``.
        rounds: number of rounds of the method.
        samples: number of the site's training samples.
        parameters: number of parameters of a model that leaves without noise.
        effort: see ``rows_of_update``.
        is_network: whether that model is not linear in its parameters.
        is_encoded: whether updates leave as integers or compressed.
    """

    sites: int | None = None
    labels: tuple[str, ...] = ()
    in_a_sum: bool | None = None
    needed: Usage = _NOTHING
    scored_rows: int | None = None
    used: Mapping[tuple[str, str], Usage] = field(default_factory=dict)
    method: str | None = None
    algorithm: Algorithm | None = None
    rounds: int = 0
    samples: int | None = None
    parameters: int | None = None
    effort: float = 1.0
    is_network: bool = False
    is_encoded: bool = False

    @property
    def solvers(self) -> Sequence[LocalSolver]:
        """The local solvers of the algorithm."""
        return () if self.algorithm is None else local_solvers(self.algorithm)

    @property
    def rows_read(self) -> int | None:
        """Smallest number of training rows that an update reads, if it leaves by itself and without noise."""
        if self.parameters is None or self.in_a_sum or self.algorithm is None or self.samples is None:
            return None
        return rows_of_update(self.algorithm, self.samples, self.effort)


@dataclass(frozen=True)
class Limit:
    """One limit of a site.

    Attributes:
        name: its key in ``site.yaml``.
        default: its value in the profile *clinic*.
        meaning: what it limits.
        why: what it protects, and what a change would cost.
        sentence: what a lead reads of a plan beyond it, with the allowed value for {}; empty if no plan is refused by
            it: it then decides what is read of a table, or the refusal has a code of its own.
        check: (allowed value, what is asked) -> the reason to refuse; empty if there is none. None: as ``sentence``.
        interval: where the value lies.
    """

    name: str
    default: Any
    meaning: str
    why: str
    sentence: str = ""
    check: Callable[[Any, Asked], str] | None = None
    interval: Interval | None = None


def _limit(default: _Value, meaning: str, why: str, sentence: str = "",
           check: Callable[[Any, Asked], str] | None = None, interval: Interval | None = None) -> _Value:
    """A field of ``Limits`` with its ``Limit``, which gets the name of the field."""
    limit = Limit("", default, meaning, why, sentence, check, interval)
    return field(default=default, metadata={"limit": limit})


def _budget(scope: str, quantity: str, why: str, default: float | None = None) -> Any:
    """A budget over all plans, or over the plans of a lead."""
    whose = "over all plans" if scope == "total" else "in all plans of one lead"
    what = {"rounds": "largest number of rounds in which the site answers about rows",
            "replies": "largest number of replies, of which a round has one for each phase",
            "jobs": "largest number of runs", "scores": "largest number of evaluations of models on its rows",
            "epsilon": "largest sum of the privacy losses of training rows, at delta 1e-6 for each method and seed; a "
                       "method without DPSGD has no bound, and does not run with this limit",
            "refusals": "largest number of plans that the site refuses because of its rows, such as by min_cell or "
                        "max_leverage; it looks at no plan afterwards"}[quantity]
    unit = {"rounds": "{} rounds", "replies": "{} replies", "jobs": "{} runs", "scores": "{} evaluations",
            "epsilon": "the epsilon {}", "refusals": "{} refused plans"}[quantity]
    left = {"jobs": "none is left", "epsilon": "the plan needs more"}.get(quantity, "too few are left")
    rows = "about its table" if quantity == "replies" else "on its table"
    who = "in all experiments" if scope == "total" else "to one lead"

    def check(allowed: float, asked: Asked) -> str:
        for (of_scope, user), usage in asked.used.items():
            need, spent = getattr(asked.needed, quantity), getattr(usage, quantity)
            if of_scope == scope and need and spent + need > allowed:
                return (f"{_number(need, quantity)} needed, and {_number(spent, quantity)} of the allowed "
                        f"{allowed:.6g} have been used by {user}")
        return ""

    sentence = f"the site allows {unit} {rows} {who}, and {left}"
    return _limit(default, f"{what}, {whose}; null: any", why, sentence, check)


def _number(value: float, quantity: str) -> str:
    return f"{quantity} {'without a bound' if math.isinf(value) else f'{value:.6g}'}"


def _algorithms(allowed: Sequence[str], asked: Asked) -> str:
    if asked.method is None or asked.method in allowed:
        return ""
    return f"the algorithm {shorten(asked.method)} is not allowed; allowed: {', '.join(allowed)}"


def _solvers(allowed: Sequence[str], asked: Asked) -> str:
    unknown = sorted({type(solver).__name__ for solver in asked.solvers} - {*allowed})
    return f"the solver {', '.join(unknown)} is not allowed; allowed: {', '.join(allowed)}" if unknown else ""


def _labels(allowed: Sequence[str], asked: Asked) -> str:
    others = ", ".join(map(repr, sorted({*asked.labels} - {*allowed})))
    return f"{shorten(others)} may not be the label; allowed: {', '.join(allowed)}" if others else ""


def _scores(of_row: float, asked: Asked) -> str:
    used = max((usage.scores for (scope, _), usage in asked.used.items() if scope == "total"), default=0)
    if asked.scored_rows is None or not asked.needed.scores:
        return ""
    allowed = math.floor(of_row * asked.scored_rows * ((asked.sites or 1) if asked.in_a_sum else 1))
    return (f"{asked.needed.scores} evaluations needed, and {used} of the {allowed} for {asked.scored_rows} rows have "
            "been used" if used + asked.needed.scores > allowed else "")


def _rounds(allowed: int, asked: Asked) -> str:
    return f"{asked.rounds} rounds are more than the allowed {allowed}" if asked.rounds > allowed else ""


def _local_steps(allowed: int, asked: Asked) -> str:
    steps = max((_steps_of(solver, asked.samples or 0) for solver in asked.solvers), default=0)
    return f"{steps} local steps are more than the allowed {allowed}" if steps > allowed else ""


def _rows(fewest: int, asked: Asked) -> str:
    if asked.samples is None or asked.samples >= fewest:
        return ""
    return f"the site has fewer training samples than the {fewest} with which it takes part"


def _cell(fewest: int, asked: Asked) -> str:
    read = asked.rows_read
    if read is None or asked.samples is None or not 0 < asked.samples - read < fewest:
        return ""
    return (f"an update leaves out {asked.samples - read} of {asked.samples} training rows, fewer than {fewest}: its "
            "difference from one that reads all is their own")


def _batch(fewest: int, asked: Asked) -> str:
    samples = asked.samples or 0
    smallest = min((_smallest_minibatch(solver, samples) for solver in asked.solvers
                    if isinstance(solver, MinibatchSolver)), default=fewest)
    return (f"{samples} training rows give minibatches of {smallest} rows, fewer than the allowed {fewest}"
            if smallest < fewest else "")


def _sites(fewest: int, asked: Asked) -> str:
    if asked.sites is None or asked.sites >= fewest:
        return ""
    return f"the run has {asked.sites} sites, fewer than {fewest}"


def _networks(are_allowed: bool, asked: Asked) -> str:
    return "the model is neither linear nor logistic" if asked.is_network and not are_allowed else ""


def _parameters(largest: float, asked: Asked) -> str:
    read = asked.rows_read
    if read is None or asked.parameters is None or asked.parameters <= largest * read:
        return ""
    return (f"the model has {asked.parameters} parameters, more than {largest:.3g} for each of the {read} training "
            f"rows that an update reads, of {asked.samples}")


def _clip(norm: float, asked: Asked) -> str:
    return ("the site clips its updates, which is not possible after their compression or as integers, nor from a "
            "compressed model: use an experiment without both" if asked.is_encoded else "")


def _sums(are_required: bool, asked: Asked) -> str:
    return ("the replies of the plan would leave the site outside secure sums"
            if are_required and asked.in_a_sum is False else "")


@dataclass(frozen=True)
class Limits:
    """What a site allows. The site itself checks it; ``LIMITS`` has the meaning and the reason of each limit.

    ``PROFILES`` has three sets of values; ``Limits()`` is the profile *clinic*.

    Raises:
        InputError: a number is out of range, or there is noise without ``clip``.

    Example:
        >>> LIMITS["min_batch"].why
        'the gradient of one row, divided by that of the bias, is the row'
    """

    algorithms: tuple[str, ...] | None = _limit(
        None, "names of the allowed algorithms; null: all of the library",
        "an algorithm decides what leaves in a round; a list allows only those that were read",
        "the site allows the algorithms {}", _algorithms)
    solvers: tuple[str, ...] | None = _limit(
        None, "names of the allowed local solvers, such as SGD; null: all of the library",
        "a solver decides what an update contains; a list allows only those that were read",
        "the site allows the solvers {}", _solvers)
    labels: tuple[str, ...] | None = _limit(
        None, "columns that may be the label; null: every column",
        "models of a label let others predict it; a list says which columns others may learn to predict",
        "the site allows the labels {}", _labels)
    features: tuple[str, ...] | None = _limit(
        None, "columns that may be features or weights; the others are as if they were absent. null: every column that "
        "is neither free text nor an identifier may be a feature, and none a weight",
        "the names of levels, means and deviations of a feature leave; a list says of which columns")
    levels: dict[str, list[str]] | None = _limit(  # noqa: RUF009  # as of dataclasses.field
        None, "column of text -> the levels that may be named; the rows of the others have no level",
        "the names of levels leave; a list says which of them, so that none is discovered from the rows")
    max_levels: int | None = _limit(
        40, "largest number of levels of a column of text, and of classes, without a list; null: any",
        "a column with many levels is free text, whose levels are names and notes")
    max_level_density: float | None = _limit(
        1 / 3, "the same as a share of the rows; null: any",
        "a column with few rows for each level is free text, whose levels describe persons")
    identifiers: bool = _limit(
        False, "whether columns of whole numbers that all differ may be features without a list",
        "a model that has learned an identifier can tell whether a person is in the table")
    max_rounds: int | None = _limit(
        None, "largest number of rounds of a method; null: any", "each round is a further answer about the same rows",
        "the site allows at most {} rounds of a method", _rounds)
    max_total_rounds: int | None = _budget(
        "total", "rounds", "each round is a further answer about the same rows, whichever experiment asks for it")
    max_total_replies: int | None = _budget(
        "total", "replies", "a round of several phases has several answers about the same rows")
    max_total_jobs: int | None = _budget(
        "total", "jobs", "each run can ask about other columns, and leaves a model of the same rows")
    max_scores: float | None = _limit(
        1 / 3, "largest number of evaluations of models, over all plans, divided by the number of rows of the smallest "
        "split that is scored; in secure sums times the number of sites. null: any",
        "each score is an equation about the validation and test rows; as many as there are rows can be solved",
        "the site allows {} evaluations of models for each scored row in all experiments, and too few are left: "
        "use a larger evaluate_every, fewer methods, or secure sums", _scores, "(0, inf)")
    max_total_epsilon: float | None = _budget(
        "total", "epsilon", "the privacy losses of all runs add up, whoever asks for them")
    max_total_refusals: int | None = _budget(
        "total", "refusals", "whether a plan is refused says something about few rows, such as whether a person is "
        "among them; somebody at the site sees why the plans were refused, and raises the number", 10)
    max_lead_rounds: int | None = _budget(
        "lead", "rounds", "one lead cannot use up what others need, and learns from this many rounds at most")
    max_lead_replies: int | None = _budget("lead", "replies", "the same for a lead whose methods have several phases")
    max_lead_jobs: int | None = _budget("lead", "jobs", "the same for a lead who asks about many columns")
    max_lead_scores: int | None = _budget("lead", "scores", "the same for a lead who evaluates often")
    max_lead_epsilon: float | None = _budget(
        "lead", "epsilon", "one lead learns this much about a row at most, from all own runs together")
    max_local_steps: int | None = _limit(
        None, "largest number of local steps that a solver makes in a phase; null: any",
        "it bounds the time that an experiment takes at the site; it protects no row",
        "the site allows at most {} local steps", _local_steps)
    min_rows: int = _limit(
        20, "smallest number of its training samples with which this site takes part",
        "a model of few rows describes these rows",
        "the site has fewer training rows than the {} with which it takes part", _rows, "[1, inf)")
    min_cell: int = _limit(
        5, "no name of a level with fewer rows leaves this site, and no mean, sum or score over fewer rows; the level "
        "is not used in training. Scores leave as multiples of this many rows, at random the one above or below. A "
        "table with a class of fewer training rows does not take part, nor does an update "
        "read all training rows except fewer. A new version of the table is used when at least as many rows differ",
        "a number about fewer rows describes single persons; the difference of two numbers does, too",
        "the site lets out no sum, and no difference of sums, to which fewer rows than {} contribute: join levels, "
        "leave columns out, or use epochs instead of steps", _cell, "[1, inf)")
    min_batch: int = _limit(
        5, "smallest number of rows in a minibatch of a solver, the last one of an epoch included",
        "the gradient of one row, divided by that of the bias, is the row",
        "the site allows no minibatches of fewer rows than {}", _batch, "[1, inf)")
    min_sites: int = _limit(
        3, "smallest number of sites of a run in which this site takes part",
        "of the mean of two sites each site can subtract its own part",
        "the site takes part only with at least {} sites", _sites, "[1, inf)")
    networks: bool = _limit(
        False, "whether models that are not linear (or logistic) leave the site without noise, also in a secure sum",
        "a unit of a network begins or ceases to let one row through, and two successive models then differ by this "
        "row",
        "the site allows linear and logistic models only, others with noise whose epsilon is at most 10", _networks)
    max_parameters_per_row: float | None = _limit(
        1 / 3, "largest number of parameters of a model that leaves the site without noise, divided by the number of "
        "training rows that one update reads; null: any",
        "a model with more parameters than this for each row that an update reads can memorise the rows; such a model "
        "leaves with noise only, whose epsilon is at most 10",
        "the site allows at most {} parameters of a model for each training row that an update reads, or noise: use "
        "more local steps, a larger batch_size or fewer features", _parameters)
    max_leverage: float | None = _limit(
        1 / 2, "largest leverage of a row in the span of all columns about which the site has answered outside secure "
        "sums; the span has at most max_parameters_per_row directions for each row. null: any",
        "combinations of answers about other columns are about one row if its leverage is near 1",
        "the columns of this plan and of all earlier ones, together, come nearer to single rows than the leverage {}: "
        "leave the column, random intercepts or imputations out, ask for secure sums, or let the site have more rows",
        interval="(0, 1]")
    max_leverage_in_sums: float | None = _limit(
        0.8, "the same for answers that leave in secure sums only; null: any",
        "the sum of several sites hides part of what a combination says about a row of one of them",
        "the columns of this plan and of all earlier ones, together, come nearer to single rows than the leverage {}: "
        "leave the column, random intercepts or imputations out, or let the site have more rows", interval="(0, 1]")
    scores: bool = _limit(
        True, "whether the scores of models on this site's samples may leave it; those of personal models not if "
        "single parties are protected and they are not: such scores depend on training rows",
        "a score says something about all rows behind it; without scores no site can be compared")
    training_scores: bool | None = _limit(
        None, "whether they may be those on training rows, too. They are exact numbers without noise; null: unless the "
        "algorithm is differentially private", "a score on training rows tells whether a row was among them")
    clip: float | None = _limit(
        None, "largest Euclidean norm of an update that leaves the site; longer ones are scaled down. null: no limit",
        "an update of bounded length lets noise hide a single row",
        "the site clips updates to the norm {}, which is not possible with compressed messages", _clip, "(0, inf)")
    noise: float = _limit(
        0.0, "standard deviation of the Gaussian noise that is added to every number of an update, in multiples of "
        "clip; noise needs clip", "noise is the only limit with a bound on what can be learned from an update",
        interval="[0, inf)")
    secure_sums: bool = _limit(
        False, "whether replies leave in secure sums only",
        "a reply tells more about the rows than the sum of the replies of several sites",
        "the site takes part in secure sums only (privacy: {{secure_sums: true}})", _sums)
    max_bytes: float = _limit(  # an integer of a file is below 2^31
        MAX_BYTES, "largest number of bytes of a message that the site reads",
        "it bounds the memory that a message takes; it protects no row")
    refit_with_test_rows: bool = _limit(
        True, "whether a refit may train on the rows that judged the methods; otherwise it trains on the training and "
        "validation rows of this site, and its test rows stay unseen",
        "rows that have not trained a model can judge it later; it protects no row")

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            if limit.interval is not None:
                check_range(self, limit.interval, **{name: getattr(self, name)})
        if math.isinf(self.clip or 0) or math.isinf(self.noise):
            raise InputError(f"clip={self.clip} and noise={self.noise} must be finite")
        if self.noise and self.clip is None:
            raise InputError("noise is a multiple of clip, which is not set: set clip")

    def changes(self, profile: str) -> dict[str, Any]:
        """Limit -> value, of those that differ from a profile."""
        return {name: getattr(self, name) for name in LIMITS if getattr(self, name) != getattr(PROFILES[profile], name)}


LIMITS: Mapping[str, Limit] = {
    item.name: dataclasses.replace(item.metadata["limit"], name=item.name) for item in dataclasses.fields(Limits)}
"""Name of a limit -> the limit, in the order of the site's file."""

NO_LIMITS = Limits(max_levels=None, max_level_density=None, identifiers=True, min_rows=1, min_cell=1, min_batch=1,
                   min_sites=1, max_parameters_per_row=None, networks=True, max_leverage=None,
                   max_leverage_in_sums=None, max_scores=None, max_total_refusals=None)
"""What a rehearsal allows: a simulation has no limits."""

PROFILES: Mapping[str, Limits] = {
    "open": NO_LIMITS,
    "clinic": Limits(),
    "strict": Limits(min_rows=50, min_cell=10, min_batch=10, secure_sums=True, max_scores=1 / 10,
                     training_scores=False, max_leverage=1 / 3, max_leverage_in_sums=1 / 3, max_total_rounds=5000,
                     max_lead_rounds=1000, max_total_jobs=100, max_total_refusals=5, max_lead_jobs=20,
                     refit_with_test_rows=False),
}
"""*open*: rows that are public, or a rehearsal. *clinic*: rows of patients, among sites that have agreed to work
together. *strict*: the same where replies must stay secret and every lead has a budget."""


def reasons_to_refuse(limits: Limits, *asked: Asked) -> dict[str, str]:
    """Name of a limit that is exceeded -> the reason; empty if the site takes part.

    Args:
        asked: what the plan asks, each of its methods included.
    """
    return {name: reason for name, limit in LIMITS.items() if limit.check is not None
            and (allowed := getattr(limits, name)) is not None
            for one in asked if (reason := limit.check(allowed, one))}


def rows_of_update(algorithm: Algorithm, samples: int, effort: float) -> int:
    """Smallest number of training rows that an update of the algorithm reads.

    Args:
        effort: the smallest effort that the plan can ask for; a positive one is at least a step.
    """
    return min((_rows_read(solver, samples, effort) for solver in local_solvers(algorithm)), default=samples)


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


def refusal_of_limits(reasons: Mapping[str, str], limits: Limits, *, column: str | None = None) -> Refusal:
    """The refusal for the reasons of ``reasons_to_refuse``: the allowed values leave the site, and no reason.

    Args:
        column: the column with the reason, if it is one of a column.
    """
    text = "; ".join(f"{reason} (limits.{name}: {LIMITS[name].why})" for name, reason in reasons.items())
    return Refusal(RefusalCode.LIMITS, text, column=column, limits={name: getattr(limits, name) for name in reasons})


def read_refusal(content: Any) -> tuple[RefusalCode | None, str]:
    """The code and the sentence of a site's refusal; nothing in it is trusted.

    Args:
        content: plain values of ``outgoing``, as they have arrived.

    Returns:
        The code, None if it is not known; and a sentence for the lead.
    """
    content = content if isinstance(content, Mapping) else {}
    code = next((known for known in RefusalCode if known == content.get("code")), None)
    if code is None:
        return None, f"refused ({quote(content.get('code'))})"
    column, limits = content.get("column"), content.get("limits")
    title = f"column {shorten(repr(column))}: " if isinstance(column, str) else ""
    exceeded = [LIMITS[name].sentence.format(_value(value)) for name, value in (
        [*limits.items()][:_MAX_SHOWN] if isinstance(limits, Mapping) else ())
        if name in LIMITS and LIMITS[name].sentence]
    details = "" if code is RefusalCode.WAITING else "; the site's log has the details"
    return code, f"refused ({code}): {title}{'; '.join(exceeded) or code.sentence}{details}"


def one_split_note(site: str, content: Any) -> str:
    """Why there is one split of the rows where the plan asks for folds.

    Args:
        content: the site's refusal of the folds, see ``read_refusal``.
    """
    return f"The rows have one split instead of folds: {site}: {read_refusal(content)[1]}"


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


def check_parts(algorithm: Algorithm, policy: Policy) -> None:
    """Refuse an algorithm that real parties cannot run, or that contains code from outside the library."""
    if policy.allows_any_part:
        return
    advice = "use it in a simulation or a rehearsal"
    if algorithm.pools_data:
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


def _value(value: Any) -> str:
    return shorten(", ".join(map(str, value)) if isinstance(value, list | tuple) else value)
