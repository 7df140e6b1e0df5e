"""What a plan lets a server ask of a site in the rounds of a method: numbers, keys, efforts and evaluations.

A site can compute all of it from the plan that the lead has signed, so that a server has no choice left in it. Two
things remain the server's: the models that it sends, because only the server knows the replies of the other sites; and
efforts and cohorts that depend on the sizes of all sites, or on the secret of a server that protects parties.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from numpy.typing import NDArray

from resolvent.algorithms import keys
from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.participation.rules import Participation, draw_cohort
from resolvent.algorithms.round import working_parties
from resolvent.federation.protocol.policy import Policy
from resolvent.federation.protocol.protection import protects_parties
from resolvent.federation.protocol.refusals import Refusal, RefusalCode

_TOLERANCE = 1e-6  # of an effort, which is a number of 32 bits


class Membership(NamedTuple):
    """A site among the sites of a run, as the lead has signed it.

    Attributes:
        sites: the sites that take part.
        roster: if sites have joined or left, all sites that the run has had, in the order in which they joined.
    """

    name: str
    sites: tuple[str, ...]
    roster: tuple[str, ...]

    @property
    def number(self) -> int:
        """The number of the site: its position among all sites that the run has had."""
        return (self.roster or self.sites).index(self.name)

    @property
    def has_founders_only(self) -> bool:
        """Whether no site has joined or left: the parties of every method then have the numbers of the sites."""
        return not self.roster


@dataclass(frozen=True)
class PlannedWork:
    """The messages of a method with a seed that a plan contains for one site.

    Attributes:
        participation: draws the cohorts.
        membership: the site among the sites of the run.
        seed: seed of all random keys.
        evaluate_every: rounds between evaluations.
        policy: that of the site.
        may_end_early: whether the run may end after fewer rounds, when the algorithm has converged.
        fold: number of the fold whose rows are tested; None: the one split of the rows.
    """

    algorithm: Algorithm
    participation: Participation
    membership: Membership
    seed: int
    rounds: int
    evaluate_every: int
    policy: Policy
    may_end_early: bool = False
    fold: int | None = None

    @cached_property
    def scored(self) -> frozenset[int]:
        """The numbers of rounds after which a score counts: with folds one, that of the judgement over all of them."""
        return self.evaluations if self.fold is None else frozenset({self.rounds} if self.fold == 0 else ())

    @cached_property
    def evaluations(self) -> frozenset[int]:
        """The numbers of rounds after which the models are evaluated, once each; see ``Policy.scores_first_model``.

        The models of folds are not: a site answers once for a method, about all of its rows.
        """
        if self.fold is not None:
            return frozenset()
        first = 0 if self.policy.scores_first_model else self.evaluate_every
        return frozenset((*range(first, self.rounds, self.evaluate_every), self.rounds))

    def number_of(self, key: NDArray[np.uint32]) -> int:
        """The number of the party to which the data of the key of the first state belong.

        In a run that sites have joined or left, a method that began later can number its parties otherwise.
        """
        initial = keys.initial_key(self.seed)
        membership = self.membership
        numbers = [membership.number] if membership.has_founders_only else range(len(membership.roster))
        for k in numbers:
            if _equal(key, keys.initial_party_key(initial, jnp.array(k))):
                return k
        raise Refusal(RefusalCode.PLAN, f"the key of the first state is not that of {membership.name} in this plan")

    def check_work(self, t: int, phase: int, k: int, key: NDArray[np.uint32], effort: float) -> None:
        """Check the message of a phase.

        Args:
            effort: the share of the work that the party is to do.
        """
        of_round = keys.round_key(keys.root_key(self.seed), jnp.asarray(t))
        if not _equal(key, keys.party_key(keys.phase_key(of_round, phase), jnp.array(k))):
            raise Refusal(RefusalCode.PLAN, f"the random key of round {t + 1}, phase {phase + 1} is not that of party "
                          f"{k} in this plan")
        planned = self._effort(t, k)
        if planned is None:
            return
        if not planned:
            raise Refusal(RefusalCode.PLAN, f"party {k} does not work in round {t + 1} of this plan")
        if abs(effort - planned) > _TOLERANCE:
            raise Refusal(RefusalCode.PLAN, f"round {t + 1} asks for the effort {effort:.6g}, and the plan for "
                          f"{planned:.6g}")

    def check_evaluation(self, t: int) -> None:
        """Check that models are evaluated after t rounds."""
        if t not in self.evaluations:
            raise Refusal(RefusalCode.PLAN, f"the plan has no evaluation after {t} rounds")

    def check_finish(self, t: int) -> None:
        """Check that the run ends after t rounds."""
        if t > self.rounds or (t < self.rounds and not self.may_end_early):
            raise Refusal(RefusalCode.PLAN, f"the run ends after {t} rounds, and the plan has {self.rounds}")

    @cached_property
    def smallest_effort(self) -> float:
        """The smallest effort that the plan can ask of the site; a tiny one if it is drawn, or known to the server."""
        dependence, (index, _, effort) = self._dependence, self._cohort(0)
        if not dependence.effort and (effort == effort[0]).all():
            return float(effort[0])
        if not dependence.effort | dependence.working and self.membership.has_founders_only:
            return float(effort[index == self.membership.number].sum())
        return _TOLERANCE

    def working_sites(self, t: int) -> tuple[str, ...] | None:
        """The sites that work in round t; None if the site cannot know them."""
        if not self._knows(self._dependence.working):
            return None
        index, works, _ = self._cohort(t)
        return tuple(self.membership.sites[k] for k in index[works].tolist())

    def _knows(self, needed: frozenset[str]) -> bool:
        """Whether the site has what a draw depends on."""
        has_secret = protects_parties(self.algorithm) and self.policy.has_secret_noise
        return self.membership.has_founders_only and not needed & ({"sizes", "key"} if has_secret else {"sizes"})

    def _effort(self, t: int, k: int) -> float | None:
        """The planned effort of party k in round t; 0 if it does not work; None if the site cannot know it."""
        needed = self._dependence
        if self._knows(needed.working | needed.effort):
            index, works, effort = self._cohort(t)
            return float(np.where(works & (index == k), effort, 0).sum())
        if not needed.effort:
            effort = self._cohort(t)[2]
            return float(effort[0]) if (effort == effort[0]).all() else None
        return None

    def _cohort(self, t: int) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.float32]]:
        """[C] ids of the cohort, whether they work, and their efforts, for sites of equal sizes."""
        sizes = jnp.ones(len(self.membership.sites), jnp.int32)
        cohort = _draw(self.participation, keys.root_key(self.seed), sizes, t)
        works = working_parties(self.algorithm, cohort)
        return np.asarray(cohort.index), np.asarray(works), np.asarray(cohort.effort)

    @cached_property
    def _dependence(self) -> "_Dependence":
        """On what the draws depend. It is read from a trace: a result of a dependent input is dependent."""
        sizes = jnp.ones(len(self.membership.sites), jnp.int32)

        def outputs(root: Array, sizes: Int[Array, " N"], t: Int[Array, ""]) -> tuple[Array, ...]:
            cohort = _cohort_of_round(self.participation, root, sizes, t)
            return cohort.index, working_parties(self.algorithm, cohort), cohort.effort

        program = jax.make_jaxpr(outputs)(keys.root_key(self.seed), sizes, jnp.array(0)).jaxpr
        origins = {id(value): {name} for value, name in zip(program.invars, ("key", "sizes", "key"), strict=True)}
        for operation in program.eqns:
            of_inputs = set[str]().union(*(origins.get(id(value), set()) for value in operation.invars))
            origins |= {id(value): of_inputs for value in operation.outvars}
        index, works, effort = (frozenset(origins.get(id(value), set())) for value in program.outvars)
        return _Dependence(index | works, effort)


class _Dependence(NamedTuple):
    """Which of ``key`` and ``sizes`` determine who works in a round, and the efforts."""

    working: frozenset[str]
    effort: frozenset[str]


def _cohort_of_round(participation: Participation, root: Array, sizes: Int[Array, " N"],
                     t: int | Int[Array, ""]) -> Cohort:
    return draw_cohort(participation, sizes, root, jnp.asarray(t))[1]


_draw = jax.jit(_cohort_of_round)


def _equal(data: NDArray[np.uint32], key: Array) -> bool:
    return np.array_equal(np.asarray(data), np.asarray(jax.random.key_data(key)))
