"""Participations: the draw of a round's cohort, rules that depend on the key of the round alone, and stragglers."""

from abc import abstractmethod
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, PyTree
from typing_extensions import override

from resolvent.algorithms import keys
from resolvent.algorithms.cohort import Cohort, StragglerPolicy
from resolvent.algorithms.keys import dropout_key, selection_key, straggler_keys
from resolvent.algorithms.per_party import check_length
from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError, quote
from resolvent.math import tree
from resolvent.problem.problem import shares_by_size
from resolvent.xla.shuffle import Shuffle

ParticipationState: TypeAlias = PyTree[Any]


class Participation(CheckedArguments, eqx.Module):
    """Draws the cohort of a round: from its key, its number, and a state, which ``init`` creates and ``draw`` replaces.

    Most have no state. A state is a function of the seed and the round: a run that is resumed, and a federation over a
    network, replay the draws.

    Example:
        The two largest parties, in every round:

        >>> import jax
        >>> class Largest(rv.participation.Participation):
        ...     def capacity(self, parties):
        ...         return 2
        ...     def shares(self, sizes):
        ...         return sizes / jnp.sum(sizes)
        ...     def draw(self, state, key, t, sizes):
        ...         return rv.participation.Cohort.from_parties(jnp.argsort(-sizes)[:2], self.shares(sizes)), state
        >>> Largest().draw((), jax.random.key(0), 0, jnp.array([10, 30, 20]))[0].index.tolist()
        [1, 2]

        Every party in turn, from a party that is drawn at the start of the run:

        >>> class InTurn(Largest):
        ...     def capacity(self, parties):
        ...         return 1
        ...     def init(self, sizes, key):
        ...         return jax.random.randint(key, (), 0, len(sizes), jnp.int32)
        ...     def draw(self, state, key, t, sizes):
        ...         cohort = rv.participation.Cohort.from_parties(state[None], self.shares(sizes))
        ...         return cohort, (state + 1) % len(sizes)
        >>> from resolvent.testing import check_participation
        >>> check_participation(InTurn())

    Attributes:
        is_asynchronous: whether replies arrive one after the other, so that the server cannot wait for a cohort.
    """

    is_asynchronous: ClassVar[bool] = False

    @abstractmethod
    def capacity(self, parties: int) -> int:
        """C, the number of rows of a cohort."""

    @abstractmethod
    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        """lambda_k, the weights of the objective sum_k lambda_k f_k."""

    def init(self, sizes: Int[Array, " N"], key: Array) -> ParticipationState:
        """The state before the first round; by default there is none.

        Args:
            sizes: [N] number of training samples of each party.
            key: ``keys.participation_key`` of the run.
        """
        return ()

    @abstractmethod
    def draw(self, state: ParticipationState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ParticipationState]:
        """Draw the cohort of round t.

        Args:
            state: the state before the round; () if there is none.
            key: ``keys.cohort_key`` of the round.
            t: number of the round; 0 is the first one.
            sizes: [N] number of training samples of each party.

        Returns:
            The cohort, and the state after the round, of the same structure, shapes and dtypes.
        """

    def check(self, parties: int) -> None:
        """Refuse settings that do not fit the number of parties.

        Raises:
            InputError: the cohort is larger than the federation.
        """
        if self.capacity(parties) > parties:
            raise InputError(f"a cohort of {self.capacity(parties)} cannot be drawn from {parties} parties: "
                             f"set cohort={parties} or less")


class ParticipationWrapper(Participation):
    """Base class for wrappers that modify another participation's cohort, their field ``inner``."""

    @property
    @abstractmethod
    def inner(self) -> Participation:
        """The wrapped participation."""

    def modify(self, cohort: Cohort, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        """The cohort that the wrapper makes of one of ``inner``; by default the same one.

        Args:
            cohort: the cohort that ``inner`` has drawn.
            key: ``keys.cohort_key`` of the round.
            sizes: [N] number of training samples of each party.
        """
        return cohort

    @override
    def check(self, parties: int) -> None:
        self.inner.check(parties)
        self.check_fields(parties)

    def check_fields(self, parties: int) -> None:
        """Refuse the wrapper's own settings that do not fit the number of parties; all fit by default."""

    @override
    def capacity(self, parties: int) -> int:
        return self.inner.capacity(parties)

    @override
    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        return self.inner.shares(sizes)

    @override
    def init(self, sizes: Int[Array, " N"], key: Array) -> ParticipationState:
        return self.inner.init(sizes, key)

    @override
    def draw(self, state: ParticipationState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ParticipationState]:
        cohort, after = self.inner.draw(state, key, t, sizes)
        return self.modify(cohort, key, sizes), after


def first_state(participation: Participation, sizes: Int[Array, " N"], root: Array) -> ParticipationState:
    """The participation's state before the first round of a run with this ``keys.root_key``."""
    return tree.strongly_typed(participation.init(sizes, keys.participation_key(root)))


def has_state(participation: Participation, parties: int) -> bool:
    """Whether the cohorts of a federation of this size depend on earlier draws."""
    sizes = jax.ShapeDtypeStruct((parties,), "int32")  # type: ignore[no-untyped-call]
    state = jax.eval_shape(lambda n: first_state(participation, n, keys.root_key(0)), sizes)
    return bool(jax.tree.leaves(state))


def draw_of_round(participation: Participation, state: ParticipationState, sizes: Int[Array, " N"], root: Array,
                  t: Int[Array, ""]) -> tuple[Cohort, ParticipationState]:
    """The cohort of round t and the state after it, from the state before it."""
    return participation.draw(state, keys.cohort_key(keys.round_key(root, t)), t, sizes)


def state_before(participation: Participation, sizes: Int[Array, " N"], root: Array,
                 t: Int[Array, ""]) -> ParticipationState:
    """The participation's state before round t: the draws of the earlier rounds are repeated, if it has a state."""
    state = first_state(participation, sizes, root)
    if not jax.tree.leaves(state):
        return state
    replayed: ParticipationState = jax.lax.fori_loop(
        0, t, lambda s, before: draw_of_round(participation, before, sizes, root, s)[1], state)
    return replayed


def draw_cohort(participation: Participation, sizes: Int[Array, " N"], root: Array,
                t: Int[Array, ""]) -> tuple[Array, Cohort]:
    """The key of round t and its cohort, without a stored state, see ``state_before``.

    Args:
        sizes: [N] number of training samples of each party.
        root: ``keys.root_key`` of the run.
    """
    state = state_before(participation, sizes, root, t)
    return keys.round_key(root, t), draw_of_round(participation, state, sizes, root, t)[0]


Weighting = Literal["size", "uniform"]


class Full(Participation):
    """All parties take part in every round.

    Attributes:
        weighting: aggregate by the number of samples (``size``), or every party equally (``uniform``, Fed+'s
            objective).

    Example:
        >>> Full().draw((), jax.random.key(0), 0, jnp.array([10, 30]))[0].weight.tolist()
        [0.25, 0.75]
    """

    weighting: Weighting = eqx.field(static=True, default="size")

    @override
    def capacity(self, parties: int) -> int:
        return parties

    @override
    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        return shares_of(sizes, self.weighting)

    @override
    def draw(self, state: ParticipationState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ParticipationState]:
        return Cohort.from_parties(jnp.arange(len(sizes)), self.shares(sizes)), state


class FixedSizeCohort(Participation):
    """Base class of participations that draw a cohort of a fixed size. Shares are by the number of samples.

    Attributes:
        cohort: number of parties, or of draws; or their share of all parties, a decimal number of at most 1, of which
            at least one party results.

    Raises:
        InputError: the number is not whole and not a share.
    """

    cohort: Annotated[int | float, "(0, inf)"] = eqx.field(static=True)

    def __check_init__(self) -> None:
        if isinstance(self.cohort, float) and self.cohort > 1:
            raise InputError(f"{type(self).__name__}(cohort={self.cohort}) must be a whole number, or a share of the "
                             "parties of at most 1.0")

    @override
    def capacity(self, parties: int) -> int:
        return max(1, round(self.cohort * parties)) if isinstance(self.cohort, float) else self.cohort

    @override
    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        return shares_by_size(sizes)


class Uniform(FixedSizeCohort):
    """A cohort drawn uniformly without replacement: FedProx's scheme B when weighted by size.

    The cost of a draw does not depend on N. Source: FedProx, section 5.1 and Figure 12; errata 9.

    Attributes:
        cohort: number of parties, or their share of the parties among which is drawn, such as 0.1.
        weighting: aggregate by the number of samples (``size``), or every party equally (``uniform``).
        among: draw among the first ``among`` parties; the others never take part. Default: among all.

    Raises:
        InputError: ``among`` is less than ``cohort``; when a run starts: there are fewer parties.

    Example:
        >>> len(Uniform(2).draw((), jax.random.key(0), 0, jnp.array([10, 20, 30, 40]))[0].index)
        2
        >>> Uniform(0.1).capacity(parties=200)
        20
    """

    weighting: Weighting = eqx.field(static=True, default="size")
    among: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if self.among is not None and self.among < self.cohort:
            raise InputError(f"Uniform(among={self.among}) must be at least cohort={self.cohort}")

    @override
    def capacity(self, parties: int) -> int:
        return super().capacity(parties if self.among is None else self.among)

    @override
    def check(self, parties: int) -> None:
        super().check(parties)
        if self.among is not None and self.among > parties:
            raise InputError(f"Uniform(among={self.among}) cannot be drawn from {parties} parties")

    @override
    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        return shares_of(sizes, self.weighting)

    @override
    def draw(self, state: ParticipationState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ParticipationState]:
        permutation = Shuffle.draw(key, jnp.array(len(sizes) if self.among is None else self.among))
        drawn = permutation(jnp.arange(self.capacity(len(sizes))))
        return Cohort.from_parties(drawn, self.shares(sizes)), state


class BySize(FixedSizeCohort):
    """Parties drawn with replacement with probability n_k/n, then averaged with equal weights: FedProx's scheme A.

    A party that is drawn several times works once, and its weight is its number of draws / K, so the expected weight of
    party k is n_k/n. A draw takes a training sample uniformly from all n and looks up its party, which costs O(log N);
    the cumulative sizes are computed once per compiled call. Rows of the cohort that repeats leave free name parties
    that do not take part. Source: FedProx, Algorithm 2; Li, Huang, Yang, Wang, Zhang: On the Convergence of FedAvg on
    Non-IID Data, ICLR 2020, scheme I; errata 9.

    Attributes:
        cohort: number of draws K, at most N.

    Example:
        >>> cohort = BySize(4).draw((), jax.random.key(0), 0, jnp.array([10, 20, 30, 40]))[0]
        >>> cohort.index.tolist(), cohort.weight.tolist(), cohort.alive.tolist()
        ([0, 1, 3, 2], [0.25, 0.25, 0.5, 0.0], [True, True, True, False])
    """

    @override
    def draw(self, state: ParticipationState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ParticipationState]:
        # 32 bits in either precision. XLA moves the sum out of the loop over rounds, because sizes do not change.
        ends = jnp.cumsum(sizes, dtype=jnp.int32)
        samples = jax.random.randint(key, (self.capacity(len(sizes)),), 0, ends[-1], jnp.int32)
        return Cohort.from_draws(jnp.searchsorted(ends, samples, side="right"), self.shares(sizes)), state


class BiasedBySize(FixedSizeCohort):
    """Parties drawn without replacement with probabilities proportional to size, then averaged with equal weights.

    This form of FedProx's scheme A is biased: no party has more than 1/K of the weight, so the expected weight of party
    k is not n_k/n, and the rounds do not minimise sum_k n_k/n f_k. For sizes 1, 1, 1, 97 and K = 2, the large party has
    an expected weight of 0.499, not 0.97. ``BySize`` is not biased. Each round draws one number per party (the Gumbel
    trick), so the cost of a draw has a part that grows with N.

    Attributes:
        cohort: number of parties K.

    Example:
        >>> BiasedBySize(2).draw((), jax.random.key(0), 0, jnp.array([10, 20, 30, 40]))[0].weight.tolist()
        [0.5, 0.5]
    """

    @override
    def draw(self, state: ParticipationState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ParticipationState]:
        noise = jax.random.gumbel(key, (len(sizes),), jnp.float32)
        cohort, shares = self.capacity(len(sizes)), self.shares(sizes)
        index = jax.lax.top_k(jnp.log(sizes.astype(noise.dtype)) + noise, cohort)[1]
        weight = jnp.full(cohort, 1 / cohort, shares.dtype)
        return replace(Cohort.from_parties(index, shares), weight=weight), state


class Bernoulli(Participation):
    """Each party takes part with the same probability, independently of the others.

    Attributes:
        probability: the probability, in (0, 1].
        weighting: aggregate by the number of samples (``size``), or every party equally (``uniform``).

    Raises:
        InputError: ``probability`` lies outside (0, 1].

    Example:
        >>> Bernoulli(1.0).draw((), jax.random.key(0), 0, jnp.array([10, 30]))[0].alive.tolist()
        [True, True]
    """

    probability: Annotated[ArrayLike, "(0, 1]"]
    weighting: Weighting = eqx.field(static=True, default="size")

    @override
    def capacity(self, parties: int) -> int:
        return parties

    @override
    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        return shares_of(sizes, self.weighting)

    @override
    def draw(self, state: ParticipationState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ParticipationState]:
        cohort = Cohort.from_parties(jnp.arange(len(sizes)), self.shares(sizes))
        alive = jax.random.uniform(key, (len(sizes),), jnp.float32) < self.probability
        return replace(cohort, alive=alive), state


def as_ids(parties: tuple[int, ...]) -> tuple[int, ...]:
    """A list as a tuple; its annotation is that of the argument, which experiment files read."""
    try:
        return tuple(parties)
    except TypeError as error:
        raise InputError(f"parties={quote(parties)} is not a list of ids: give a list such as [0, 3]") from error


def check_ids_exist(owner: object, ids: tuple[int, ...], parties: int) -> None:
    """Refuse ids of parties that do not exist."""
    for k in ids:
        if not 0 <= k < parties:
            raise InputError(f"{type(owner).__name__}(parties=...) names party {k}, but parties are numbered 0 to "
                             f"{parties - 1}")


class Stragglers(ParticipationWrapper):
    """A fraction of each round's cohort, or certain parties always, can do only a part of their work.

    The effort is uniform on (0, 1], so that a straggler does ceil(effort*E) of E epochs: uniform on 1, ..., E. Whether
    partial work counts is the same for all methods of the run, except for those with a policy of their own
    (``fedavg(stragglers="drop")``). Source: FedProx, 5.2; errata 8.

    Attributes:
        inner: draws the cohort.
        share: fraction of the cohort that straggles, drawn in each round.
        parties: ids of parties that straggle in every round.
        work: ``keep`` or ``drop`` the partial work of stragglers.

    Raises:
        InputError: ``share`` lies outside [0, 1]; when a run starts, a party of ``parties`` does not exist.

    Example:
        >>> cohort = Stragglers(Uniform(2), share=0.5).draw((), jax.random.key(0), 0, jnp.array([10, 20, 30, 40]))[0]
        >>> int(cohort.late.sum())
        1
    """

    inner: Participation = Full()
    share: Annotated[ArrayLike, "[0, 1]"] = 0.0
    parties: tuple[int, ...] = eqx.field(static=True, default=(), converter=as_ids)
    work: StragglerPolicy = eqx.field(static=True, default="keep")

    @override
    def check_fields(self, parties: int) -> None:
        check_ids_exist(self, self.parties, parties)

    @override
    def modify(self, cohort: Cohort, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        effort_key, choice_key = straggler_keys(key)
        n = cohort.index.shape[0]
        rank = jnp.argsort(jax.random.permutation(choice_key, n))
        late = rank < jnp.round(jnp.asarray(self.share) * n)
        for k in self.parties:
            late |= cohort.index == k
        effort = (1 - jax.random.uniform(effort_key, (n,), jnp.float32)).astype(cohort.effort.dtype)
        return replace(cohort, effort=jnp.where(late, cohort.effort * effort, cohort.effort), late=late,
                       stragglers=self.work)


class FixedEffort(ParticipationWrapper):
    """Parties with different budgets: party k does effort[k] of the solver's work in each round (Fed+'s E_k).

    Such work is complete, because the party planned it: no algorithm drops it.

    Attributes:
        effort: [N] the shares of the work, in (0, 1]; or one number for all parties.
        inner: draws the cohort.

    Example:
        >>> FixedEffort(jnp.array([1.0, 0.5])).draw((), jax.random.key(0), 0, jnp.array([10, 30]))[0].effort.tolist()
        [1.0, 0.5]
    """

    effort: Float[Array, " N"] | Float[ArrayLike, ""]
    inner: Participation = Full()

    @override
    def check_fields(self, parties: int) -> None:
        check_length("FixedEffort(effort=...)", self.effort, parties)

    @override
    def modify(self, cohort: Cohort, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        share = of_cohort(self.effort, sizes, cohort).astype(cohort.effort.dtype)
        return replace(cohort, effort=cohort.effort * share)


class Dropout(ParticipationWrapper):
    """Parties with unreliable devices: party k is absent with its own probability, drawn in each round.

    Attributes:
        probability: [N] the probabilities of absence, in [0, 1); or one number for all parties.
        inner: draws the cohort.

    Example:
        >>> participation = Dropout(jnp.array([0.0, 0.5]))
        >>> participation.draw((), jax.random.key(0), 0, jnp.array([10, 30]))[0].alive.tolist()
        [True, True]
    """

    probability: Float[Array, " N"] | Float[ArrayLike, ""]
    inner: Participation = Full()

    @override
    def check_fields(self, parties: int) -> None:
        p = jnp.asarray(self.probability)
        if p.shape not in ((), (parties,)) or not bool(jnp.all((p >= 0) & (p < 1))):
            raise InputError(f"Dropout(probability=...) needs one number in [0, 1) per party, {parties}, got "
                             f"{self.probability}")

    @override
    def modify(self, cohort: Cohort, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        chance = jax.random.uniform(dropout_key(key), cohort.index.shape, jnp.float32)
        return replace(cohort, alive=cohort.alive & (chance >= of_cohort(self.probability, sizes, cohort)))


class UniformAvailable(ParticipationWrapper):
    """A cohort drawn uniformly, without replacement, from the parties that take part in another participation.

    If fewer than ``cohort`` parties take part, all of them do.

    Attributes:
        cohort: number of parties.
        inner: says which parties are available, such as ``MarkovOnOff(on=0.1, off=0.3)``.

    Raises:
        InputError: ``cohort`` is not positive; when a run starts: it is larger than the capacity of ``inner``.

    Example:
        >>> participation = rv.participation.UniformAvailable(2, rv.participation.Bernoulli(0.5))
        >>> len(participation.draw((), jax.random.key(0), 0, jnp.array([10, 20, 30, 40]))[0].index)
        2
    """

    cohort: Annotated[int, "[1, inf)"] = eqx.field(static=True)
    inner: Participation = Full()

    @override
    def check_fields(self, parties: int) -> None:
        if self.cohort > (limit := self.inner.capacity(parties)):
            raise InputError(f"UniformAvailable(cohort={self.cohort}) cannot be drawn from {limit} parties")

    @override
    def capacity(self, parties: int) -> int:
        return self.cohort

    @override
    def modify(self, cohort: Cohort, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        order = jax.random.uniform(selection_key(key), cohort.index.shape, jnp.float32)
        selected = jax.lax.top_k(jnp.where(cohort.alive, order, -1), self.cohort)[1]
        rows: Cohort = tree.rows(cohort, selected)
        return rows


def of_cohort(values: ArrayLike, sizes: Int[Array, " N"], cohort: Cohort) -> Float[Array, " C"]:
    """The numbers of the parties of a cohort, from one number per party or one for all of them."""
    return jnp.broadcast_to(jnp.asarray(values), sizes.shape)[cohort.index]


def shares_of(sizes: Int[Array, " N"], weighting: Weighting) -> Float[Array, " N"]:
    """[N] lambda_k by the numbers of samples, or 1/N."""
    if weighting == "size":
        return shares_by_size(sizes)
    return jnp.full(len(sizes), 1 / len(sizes), jnp.result_type(float))
