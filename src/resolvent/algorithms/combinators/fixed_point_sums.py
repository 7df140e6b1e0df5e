r"""Replies as integers, of which the server uses nothing but the sum.

.. code-block:: text

    party:   q_k = round(w_k x_k 2^f) mod 2^bits for every number x_k of the reply, and its weight w_k
    server:  mean = 2^-f (sum of the q_k) / (sum of the w_k), and the inner server's step with it

A reply that has integers, such as those of ``PrivateParties`` whose parties add noise, is summed as it is; the inner
server gets the sum as one reply.

w_k is the party's number of samples, or 1: the party computes it, so that no server can choose it. Sums of integers do
not depend on the order, so a simulation, a federation and a federation with secure sums have the same numbers to the
bit. A simulation hides nothing; it only computes the same sums.
"""

from typing import Annotated, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, UInt32
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, Info, Replies
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty, InnerServer, Wrapped, contains
from resolvent.algorithms.combinators.private_parties import PrivateParties
from resolvent.algorithms.methods.local import LocalTraining
from resolvent.algorithms.participation.rules import Participation, ParticipationWrapper
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.fixed_point import (
    Bits,
    decode,
    decode_integers,
    encode,
    encode_integers,
    fraction_bits,
    fractions_of_limbs,
    is_in_range,
    total,
)
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem

_ROUNDING = 1e-5  # of a sum of shares


class IntegerReply(NamedTuple):
    """A party's reply.

    Attributes:
        words: leaves [..., limbs, words]: the integers q_k, see ``math.fixed_point``.
        weight: [1, words] the integer w_k.
        kinds: leaves [0]: the dtypes of the inner algorithm's reply.
        check: 0, or nan if a number is out of range: such a reply does not count.
    """

    words: PyTree[UInt32[Array, "... limbs words"]]
    weight: UInt32[Array, "1 words"]
    kinds: PyTree[Float[Array, " 0"]]
    check: Float[Array, ""]


class FixedPointSums(Combinator):
    """A method whose replies are integers, and whose server reads only their sum.

    It is for methods whose server uses replies as weighted sums. Put it around all other combinators.

    Attributes:
        inner: a method that does not need individual replies.
        weighting: ``size``: w_k is the number of samples of the party; ``uniform``: 1. It must be that of the
            participation.
        bits: bits of the modulus. 32 halve the traffic, and need a small ``largest``.
        largest: the range of w_k x_k in absolute value. A reply beyond it does not count: no number wraps around.
        terms: largest number of parties in a round.
        limbs: integers for each number. With 64 bits each has 53 bits of a number if there are 1024 terms; several make
            a large range and a small resolution possible at once. More than 1 needs numbers of 64 bits.

    Raises:
        InputError: the inner algorithm needs individual replies, or a sum does not fit in the bits.

    Example:
        >>> algorithm = rv.combinators.FixedPointSums(rv.fedavg(rv.SGD(0.1)))
    """

    weighting: Literal["size", "uniform"] = eqx.field(static=True, default="size")
    bits: Bits = eqx.field(static=True, default=64)
    largest: Annotated[float, "(0, inf)"] = eqx.field(static=True, default=2.0**24)
    terms: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=1024)
    limbs: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=1)
    replies_models: ClassVar[bool] = False
    # It needs the integers or their sum: a mean of floating-point numbers would not do.
    needs_individual_replies: ClassVar[bool] = True
    norm_multiple: ClassVar[None] = None

    def __check_init__(self) -> None:
        fraction_bits(self.terms, self.largest, self.bits, self.limbs)
        if self.inner.needs_individual_replies:
            raise InputError(f"FixedPointSums needs a method whose server uses sums only, and that of "
                             f"{type(self.inner).__name__} reads every reply. Use fedavg, fedprox, scaffold or another "
                             "method with Mean(), without codecs; and CentreFromSums around a robust method")
        if self.weighting != "uniform" and contains(self.inner, PrivateParties):
            raise InputError("PrivateParties sums updates of equal weight: use FixedPointSums(weighting='uniform')")

    @override
    def check_settings(self, parties: int) -> None:
        if parties > self.terms:
            raise InputError(f"FixedPointSums(terms={self.terms}) has sums of at most that many parties, got "
                             f"{parties}: use terms={parties}")

    @override
    def check_participation(self, participation: Participation, parties: int, problem: Problem | None = None) -> None:
        """Refuse weights that are not those which the parties use."""
        super().check_participation(participation, parties, problem)
        if problem is not None and self.weighting == "size":
            sizes = np.asarray(problem.sizes)
            extremes = (int(sizes.argmin()), int(sizes.argmax()))
            known = [int(problem.oracle(jnp.array(k)).samples) for k in extremes]
            if known[0] * sizes[extremes[1]] != known[1] * sizes[extremes[0]]:
                raise InputError(f"the parties of {type(problem).__name__} have other numbers of samples than its "
                                 "sizes, so that they cannot weigh their replies: use weighting='uniform'")
        self.check_weighting(participation)

    def check_weighting(self, participation: Participation) -> None:
        """Refuse a participation with other weights than those which the parties use."""
        inner, weighting = _weighting(participation)
        if weighting != self.weighting:
            of_other = f"(weighting='{weighting}')" if weighting else ", whose weights a party cannot compute,"
            raise InputError(f"FixedPointSums(weighting='{self.weighting}') and {type(inner).__name__}{of_other}"
                             " do not fit together: a party weighs its own reply. Use Full, Uniform or Bernoulli "
                               "with the same weighting")

    @property
    def fraction(self) -> int:
        """f, the number of bits after the binary point; of the last limb."""
        return fraction_bits(self.terms, self.largest, self.bits, self.limbs)

    @property
    def fractions(self) -> tuple[int, ...]:
        """The number of bits after the binary point of each limb."""
        return fractions_of_limbs(self.fraction, self.terms, self.bits, self.limbs)

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, IntegerReply, Info]:
        after, reply, info = super().party(inner, state, message, oracle, key, effort, phase)
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(reply)]
        if not all(jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype == jnp.int32 for leaf in leaves):
            raise InputError(f"FixedPointSums needs replies of real numbers or of integers of 32 bits, and those of "
                             f"{type(self.inner).__name__} have others")
        if self.limbs > 1 and any(leaf.dtype.itemsize < 8 for leaf in leaves):
            raise InputError(f"FixedPointSums(limbs={self.limbs}) needs numbers of 64 bits: use precision: double, or "
                             "limbs=1")
        weight = oracle.samples if self.weighting == "size" else jnp.ones((), jnp.int32)
        in_range = jnp.array(True)
        for leaf in leaves:
            if leaf.dtype != jnp.int32:
                in_range &= is_in_range(_weighted(leaf, weight), self.largest)
        words = jax.tree.map(lambda leaf: encode_integers(leaf, self.bits) if leaf.dtype == jnp.int32 else encode(
            _weighted(leaf, weight), self.fractions, self.bits), jax.tree.map(jnp.asarray, reply))
        padding = jnp.zeros(self.bits // 32 - 1, jnp.uint32)
        return after, IntegerReply(words, jnp.concatenate([weight[None].astype(jnp.uint32), padding])[None],
                                   jax.tree.map(lambda leaf: jnp.zeros(0, leaf.dtype), reply),
                                   jnp.where(in_range, 0.0, jnp.nan)), info

    @override
    def server(self, inner: InnerServer, state: Wrapped, replies: Replies, key: Array,
               phase: int) -> tuple[Wrapped, Info]:
        """The step in which the mean replaces every reply. A payload of one row is the sum of the cohort's rows."""
        payload: IntegerReply = replies.payload
        weight = decode(total(payload.weight), [0], jnp.zeros((), jnp.result_type(float)))

        def mean(words: Array, kind: Array) -> Array:
            wide = jnp.zeros((), jnp.promote_types(kind.dtype, jnp.float32))
            of_sum = decode(total(words), self.fractions, wide) / jnp.where(weight > 0, weight, 1).astype(wide.dtype)
            return of_sum.astype(kind.dtype)

        first = (jnp.arange(len(replies.alive)) == jnp.argmax(replies.alive)) & replies.alive

        def rows_of(words: Array, kind: Array) -> Array:
            """The mean in every row; of integers, the sum in one."""
            leaf, chosen = ((decode_integers(total(words)), first) if kind.dtype == jnp.int32 else
                            (mean(words, kind), replies.alive))
            return jnp.where(tree.column(chosen, leaf[None]), leaf, jnp.zeros_like(leaf))

        rows = jax.tree.map(rows_of, payload.words, payload.kinds)
        # All rows are equal, so their weights do not matter: equal ones give the same bits to a server that does not
        # know the sizes of the parties. For the same reason the share of all parties is exactly 1.
        alive, share = replies.alive.astype(replies.weight.dtype), jnp.sum(replies.shares)
        share = jnp.where(jnp.abs(share - 1) < _ROUNDING, 1, share)
        after, info = inner(state.inner, Replies(rows, alive, replies.index, replies.alive,
                                                 alive * share / jnp.maximum(jnp.sum(alive), 1)), key)
        return Wrapped(after, state.extra), info


def _weighted(leaf: Array, weight: Int[Array, ""]) -> Array:
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) * weight


def with_integer_sums(algorithm: Algorithm, participation: Participation) -> Algorithm:
    """``FixedPointSums`` of an algorithm with a participation's weights; training alone sends nothing and stays."""
    if isinstance(algorithm, LocalTraining | FixedPointSums):
        return algorithm
    weighting = _weighting(participation)[1]
    integers = FixedPointSums(algorithm, weighting="uniform" if weighting == "uniform" else "size")
    integers.check_weighting(participation)
    return integers


def _weighting(participation: Participation) -> tuple[Participation, str | None]:
    """The participation inside all wrappers, and how it weighs parties; None if otherwise."""
    inner = participation
    while isinstance(inner, ParticipationWrapper):
        inner = inner.inner
    return inner, getattr(inner, "weighting", None)
