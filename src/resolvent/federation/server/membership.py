"""The parties of each round of a federation that parties join and leave.

A party keeps its id for the whole run; ids are never used again. A party that joins later is treated as a party that
was absent before: its first state and its keys are those that it would have had from the beginning. The cohort of a
round is drawn among the members of the round, with their numbers of samples: the shares of the members sum to 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from resolvent.algorithms import keys
from resolvent.algorithms.algorithm import Algorithm, Replies, Reply, ServerState
from resolvent.algorithms.cohort import Cohort, check_cohort
from resolvent.algorithms.description import Description
from resolvent.algorithms.participation import rules
from resolvent.algorithms.participation.rules import Participation
from resolvent.errors import InputError
from resolvent.federation.protocol.events import MembersReport
from resolvent.federation.protocol.server_messages import Ready
from resolvent.federation.protocol.stores import ServerRecord
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.simulator.task import check_sizes

MembershipHistory = Sequence[tuple[int, tuple[int, ...]]]
"""(first round, ids of the members from this round on), in the order of the rounds."""


def members_of_round(members: MembershipHistory, t: int) -> tuple[int, ...]:
    """The ids of the parties that are members in round t."""
    return next(ids for first, ids in reversed(members) if first <= t)


def draw_cohort(participation: Participation, members: Sequence[int], sizes: Sequence[int], root: Array,
                t: int) -> tuple[Array, Cohort]:
    """The key of round t, and its cohort with the ids of the run.

    Args:
        sizes: [N] number of training samples of each party of the run.
        root: ``keys.root_key`` of the run, or the server's own key.

    Raises:
        InputError: the participation draws a party twice in a round, or a cohort that is wrong otherwise.
    """
    of_members = jnp.asarray([sizes[k] for k in members], jnp.int32)
    round_key, cohort = _draw(participation, of_members, root, t)
    check_cohort(cohort, rows=participation.capacity(len(members)), parties=len(members),
                 owner=type(participation).__name__, start=t)
    return round_key, replace(cohort, index=jnp.asarray(members, cohort.index.dtype)[cohort.index])


@jax.jit
def _draw(participation: Participation, sizes: Int[Array, " M"], root: Array, t: int) -> tuple[Array, Cohort]:
    return rules.draw_cohort(participation, sizes, root, jnp.asarray(t))


def check_change_of_members(algorithm: Algorithm, shapes: Description, participation: Participation,
                            parties: int) -> None:
    """Check that parties may join and leave during a run of an algorithm that has this number of members.

    Raises:
        InputError: the server's state depends on the parties' shares or on their number, or the participation has a
            state.
    """
    if rules.has_state(participation, parties):
        raise InputError(f"the sites of a run cannot change with {type(participation).__name__}, whose cohorts depend "
                         "on those of earlier rounds: continue with the same sites, or start a new run with another "
                         "--out")
    if _depends_on_shares(algorithm, shapes):
        raise InputError("the sites of a run cannot change with this algorithm: its server stores a part for each "
                         "party, or a sum over the parties' states with their shares, which would no longer be right. "
                         "Continue with the same sites, or start a new run with another --out")


def change_members(record: ServerRecord, names: Sequence[str], joined: Mapping[str, Ready],
                   draw: Callable[[Sequence[int], Sequence[int]], Cohort]) -> tuple[ServerRecord, MembersReport]:
    """The record of a run whose members are others from the next round on, and the report of the change.

    A round that has begun keeps its cohort. The messages of the record's round can have been sent although no phase is
    stored, and a party that has answered refuses another message for the same phase. If the new members would change
    the effort of a party, the change therefore begins one round later.

    Args:
        joined: for each of them that was never a member, its answer to the start, in the order of ``names``.
    """
    for name, party in joined.items():
        if (party.splits, party.score) != (record.splits, record.score):
            raise InputError(f"{name} has other sample sets or another score than the run: use the same experiment")
    parties = (*record.parties, *joined)
    sizes = (*record.sizes, *(party.samples for party in joined.values()))
    check_sizes(np.array(sizes))
    split_sizes = tuple((*of_split, *(party.split_sizes[i] for party in joined.values()))
                        for i, of_split in enumerate(record.split_sizes))
    protected = (*record.protected, *(parties.index(name) for name, party in joined.items() if party.protected))
    ids = tuple(sorted(parties.index(name) for name in names))
    cohort = draw(members_of_round(record.members, record.round), sizes)
    has_begun = record.working is not None or _has_another_effort(cohort, draw(ids, sizes))
    first = record.round + has_begun
    earlier = tuple(entry for entry in record.members if entry[0] < first)
    before = {record.parties[k] for k in record.members[-1][1]}
    report = MembersReport(first, tuple(name for name in names if name not in before),
                           tuple(name for name in record.parties if name in before and name not in names), sizes)
    return record._replace(parties=parties, sizes=sizes, split_sizes=split_sizes, protected=protected,
                           members=(*earlier, (first, ids))), report


def _has_another_effort(before: Cohort, after: Cohort) -> bool:
    """Whether a party of both cohorts has another effort."""
    old, new = (dict(zip(np.asarray(cohort.index).tolist(), np.asarray(cohort.effort).tolist(), strict=True))
                for cohort in (before, after))
    return any(old[k] != new[k] for k in old.keys() & new.keys())


def _depends_on_shares(algorithm: Algorithm, shapes: Description) -> bool:
    """Whether the server's state depends on the shares lambda_k, or its shape on the number of parties.

    It is read from a trace: an operation that has one dependent input has dependent results only.
    """
    def first_state(parties: int) -> PyTree[Any]:
        return jax.eval_shape(lambda w0: algorithm.init(w0, jnp.ones(parties)), shapes.model)

    if [leaf.shape for leaf in jax.tree.leaves(first_state(2))] != [
            leaf.shape for leaf in jax.tree.leaves(first_state(3))]:
        return True

    def run_round(shares: Array, w0: Vector, payloads: tuple[Reply, ...]) -> ServerState:
        state = algorithm.init(w0, shares)
        for phase, payload in zip(algorithm.phases, payloads, strict=True):
            replies = Replies(payload, jnp.ones(2), jnp.arange(2), jnp.ones(2, bool), shares)
            state, _ = phase.server(state, replies, keys.root_key(0))
        return state

    payloads = jax.eval_shape(lambda replies: tree.stack(replies, 2), shapes.replies)
    program = jax.make_jaxpr(run_round)(jnp.ones(2), shapes.model, payloads).jaxpr
    dependent = {id(program.invars[0])}
    for operation in program.eqns:
        if any(id(value) in dependent for value in operation.invars):
            dependent |= {id(value) for value in operation.outvars}
    return any(id(value) in dependent for value in program.outvars)
