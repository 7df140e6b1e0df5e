"""What happens in a round outside an algorithm: the same functions for the simulator and for a network.

First states, which parties' work counts, how replies are collected, which party states are committed, the server's
step, and the scores of a model on a party's samples. Keys are in ``keys``, cohorts in ``participation``, the check of a
reply in ``admission``.
"""

import gc
import math
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree
from numpy.typing import NDArray

from resolvent.algorithms.admission import admitted, median_norm, reason_to_refuse
from resolvent.algorithms.aggregators.aggregator import with_limited_shares
from resolvent.algorithms.algorithm import Algorithm, Info, PartyState, Replies, Reply, ServerState, server_work
from resolvent.algorithms.cohort import Cohort, check_ids
from resolvent.algorithms.description import describe
from resolvent.algorithms.keys import initial_party_key
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle


class Private(eqx.Module):
    """A part of a party's state that the server does not mirror.

    If a reply is refused, the rest of the party's state goes back to what it was before the round, because the server's
    counterparts (Scaffold's c, DIANA's h) have not moved either. A private part keeps its new value.

    Attributes:
        value: the part.
    """

    value: PyTree[Any]


class CollectedReplies(NamedTuple):
    """The replies that count, and why others do not.

    Attributes:
        replies: rows of parties without a reply that counts are zero and not alive.
        refused: party id -> reason.
        norms: party id -> norm of its update, see ``admission.update_norm``.
    """

    replies: Replies
    refused: dict[int, str]
    norms: Mapping[int, float]


def initial_server(algorithm: Algorithm, w0: Vector, shares: Float[Array, " N"]) -> ServerState:
    """The server's state before the first round.

    Raises:
        InputError: a setting does not fit the number of parties.
    """
    algorithm.check(len(shares))
    return tree.strongly_typed(algorithm.init(w0, shares))


def initial_party(algorithm: Algorithm, w0: Vector, oracle: Oracle, initial: Array, k: Int[Array, ""]) -> PartyState:
    """Party k's state before the first round; ``initial`` is ``keys.initial_key(seed)``."""
    return first_party_state(algorithm, w0, oracle, initial_party_key(initial, k))


def first_party_state(algorithm: Algorithm, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
    """A party's state before the first round; ``key`` is its ``keys.initial_party_key``, all that a party is sent."""
    return tree.strongly_typed(algorithm.init_party(w0, oracle, key))


def reply_shapes(algorithm: Algorithm, w0: Vector) -> tuple[Reply, ...]:
    """The shapes and dtypes of a party's reply in each phase, from a model or its shapes.

    Raises:
        TypeError: the algorithm asks its oracle for something that ``ShapeOracle`` does not have.
    """
    return describe(algorithm, w0).replies


def working_parties(algorithm: Algorithm, cohort: Cohort) -> Bool[Array, " C"]:
    """[C] whose work is used: everybody who takes part, without stragglers if the algorithm or the run drops theirs."""
    policy = algorithm.straggler_policy or cohort.stragglers
    return cohort.alive if policy == "keep" else cohort.alive & ~cohort.late


def counted_parties(algorithm: Algorithm, norms: Float[Array, " C"], cohort: Cohort,
                    working: Bool[Array, " C"]) -> Bool[Array, " C"]:
    """[C] whether each party's reply counts, from its ``admission.update_norm`` and whether its work is used.

    A reply that is not admitted counts as one that did not arrive, see ``admission``. If the weights of the others sum
    to zero, their mean is not defined, and no reply counts.
    """
    return _with_total_weight(admitted(norms, working, algorithm.norm_multiple), cohort)


def _with_total_weight(arrived: Bool[Array, " C"], cohort: Cohort) -> Bool[Array, " C"]:
    """[C] the replies that arrived if their weights have a positive sum, otherwise none."""
    return arrived & (jnp.sum(jnp.where(arrived, cohort.weight, 0)) > 0)


def stacked_replies(payload: Reply, cohort: Cohort, counted: Bool[Array, " C"]) -> Replies:
    """Replies from the stacked rows of a cohort, leaves [C, ...]; rows that do not count are set to zero."""
    return _weighted_replies(tree.where(counted, payload, jax.tree.map(jnp.zeros_like, payload)), cohort, counted)


def _weighted_replies(payload: Reply, cohort: Cohort, counted: Bool[Array, " C"]) -> Replies:
    """Replies from rows that are zero if they do not count."""
    return Replies(
        payload=payload,
        weight=jnp.where(counted, cohort.weight, 0),
        index=cohort.index,
        alive=counted,
        shares=jnp.where(counted, cohort.shares, 0),
    )


def collect_replies(replies: MutableMapping[int, Reply], expected: Reply, cohort: Cohort,
                    norm_of: Callable[[int, Reply], Any] | None = None,
                    multiple: float | None = None) -> CollectedReplies:
    """Replies from single messages, as a network receives them.

    Args:
        replies: party id -> its reply; absent parties are left out. It is emptied: each reply is removed when it is
            copied, because large ones need much memory.
        expected: leaves with the shape and dtype of a reply (``jax.eval_shape`` gives them).
        cohort: the cohort of the round.
        norm_of: (party id, valid reply) -> the norm of its update; None: norms are not computed.
        multiple: the largest norm that counts, in multiples of the median; None: any.

    Raises:
        InputError: the cohort has a party twice.
    """
    check_ids(cohort.index, parties=None, owner="the participation")
    ids = [int(k) for k in np.asarray(cohort.index)]
    refused = {k: "the party is not in this round's cohort" for k in replies if k not in ids}
    for k in ids:
        if k in replies and (reason := reason_to_refuse(replies[k], expected)) is not None:
            refused[k] = reason
    arrived = np.array([k in replies and k not in refused for k in ids], bool)
    # In the precision of the simulator, so that both refuse the same replies. One after the other: JAX copies a reply.
    norms = jnp.asarray([np.asarray(norm_of(k, replies[k])) if has_arrived and norm_of else 0.0
                         for k, has_arrived in zip(ids, arrived, strict=True)], jnp.result_type(float))
    is_admitted, median = _admitted(norms, jnp.asarray(arrived), multiple)
    is_admitted, median = np.asarray(is_admitted), float(median)
    refused |= {k: f"the norm of its update, {float(norm):.3g}, is over {multiple:g} times the median, {median:.3g}"
                for k, norm, has_arrived, counts in zip(ids, norms, arrived, is_admitted, strict=True)
                if has_arrived and not counts}
    counted = np.asarray(_with_total_weight(jnp.asarray(is_admitted), cohort))
    refused |= {k: "the replies of the round have a total weight of zero"
                for k, is_valid, counts in zip(ids, is_admitted, counted, strict=True) if is_valid and not counts}
    rows = {position: replies.pop(ids[position]) for position in np.flatnonzero(counted).tolist()}
    replies.clear()
    payload = _stacked_rows(rows, expected, len(ids))
    return CollectedReplies(
        _weighted_replies(payload, cohort, jnp.asarray(counted)), refused,
        {k: float(norm) for k, norm, has_arrived in zip(ids, norms, arrived, strict=True) if has_arrived and norm_of})


@partial(jax.jit, static_argnames="multiple")
def _admitted(norms: Float[Array, " C"], arrived: Bool[Array, " C"],
              multiple: float | None) -> tuple[Bool[Array, " C"], Float[Array, ""]]:
    return admitted(norms, arrived, multiple), median_norm(norms, arrived)


def summed_replies(total: Reply | None, expected: Reply, cohort: Cohort, summed: Collection[int]) -> CollectedReplies:
    """Replies of which the server has nothing but their sum: a payload with one row, for ``FixedPointSums``.

    Args:
        total: the sum as a reply, leaves [1, ...]; None if there is none, so that no reply counts.
        expected: leaves with the shape and dtype of a reply.
        summed: ids of the parties whose replies are in the sum.
    """
    ids = np.asarray(cohort.index).tolist()
    counted = jnp.asarray([total is not None and k in summed for k in ids], bool)
    payload = jax.tree.map(lambda like: jnp.zeros((1, *like.shape), like.dtype), expected) if total is None else total
    return CollectedReplies(_weighted_replies(payload, cohort, _with_total_weight(counted, cohort)), {}, {})


_ALIGNMENT = 64  # bytes; JAX uses memory of NumPy with this alignment without a copy


def _stacked_rows(rows: MutableMapping[int, Reply], expected: Reply, count: int) -> Reply:
    """[count, ...] the rows at their positions, and zeros elsewhere; each row is removed when it is copied."""
    stacked = jax.tree.map(lambda like: _aligned_zeros((count, *like.shape), np.dtype(like.dtype)), expected)
    while rows:
        position, row = rows.popitem()
        jax.tree.map(lambda leaf, value, position=position: leaf.__setitem__(position, value), stacked, row)
        del row
        gc.collect(0)  # JAX drops its references to memory of NumPy when the collector runs
    return jax.tree.map(jax.device_put, stacked)


def _aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start:start + size].view(dtype).reshape(shape)


def commit_rows(new: PartyState, old: PartyState, *, working: Bool[Array, " C"],
                counted: Bool[Array, " C"]) -> PartyState:
    """The states of a cohort after a phase, leaves [C, ...].

    A party whose reply counts gets its new state, every other party keeps its old one. ``Private`` parts are new for
    everybody who worked.
    """
    return _merge(partial(tree.where, working), partial(tree.where, counted), new, old)


def commit_party(new: PartyState, old: PartyState, *, counted: bool) -> PartyState:
    """One party's state after its work, once it knows whether its reply counted."""
    return _merge(lambda after, before: after, lambda after, before: after if counted else before, new, old)


def _merge(of_private: Any, of_mirrored: Any, new: PartyState, old: PartyState) -> PartyState:
    """Combine two states of the same structure, private parts by one function and all else by another."""
    def is_private(part: Any) -> bool:
        return isinstance(part, Private)

    def combine(after: Any, before: Any) -> Any:
        return (of_private if is_private(after) else of_mirrored)(after, before)

    return jax.tree.map(combine, new, old, is_leaf=is_private)


def server_step(algorithm: Algorithm, number: int, state: ServerState, replies: Replies,
                key: Array) -> tuple[ServerState, Info]:
    """The server's step of a phase, with the ``keys.server_key`` of the phase and limited weights of the replies.

    Its state is unchanged if the replies that count have no weight, unless the algorithm ``steps_without_replies``.

    Raises:
        InputError: see ``algorithm.server_work``.
    """
    replies = replace(replies, weight=with_limited_shares(algorithm, replies.weight))
    after, info = server_work(algorithm.phases[number], state, replies, key)
    # Rows that do not count have weight 0.
    is_step = jnp.asarray(algorithm.steps_without_replies) | (jnp.sum(replies.weight) > 0)
    return tree.where(is_step, after, state), info
