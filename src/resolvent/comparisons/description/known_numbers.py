"""One round in which every party sends the numbers that it has, for their sum."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, PartyState, Replies
from resolvent.algorithms.method import OnePhaseMethod
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import ValueProblem


class NumbersOracle(Oracle):
    """The numbers of one party; its objective is zero, because nothing is fitted."""

    numbers: Float[Array, " D"]

    @override
    def value(self, w: Vector) -> Float[Array, ""]:
        return jnp.zeros((), self.numbers.dtype)

    @override
    def grad(self, w: Vector) -> Vector:
        return jnp.zeros_like(w)

    @override
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                   memory: PyTree[Any] = ()) -> tuple[Vector, PyTree[Any]]:
        return self.grad(w), memory


class KnownNumbers(ValueProblem):
    """Parties that have numbers.

    Attributes:
        numbers: [N, D].
        sizes: [N] numbers of rows.
    """

    numbers: Float[Array, "N D"]

    def __init__(self, numbers: Any, sizes: Any) -> None:
        self.numbers, self.sizes = jnp.asarray(numbers, float), jnp.asarray(sizes, jnp.int32)
        self.splits, self.score_name, self.higher_is_better = ("train",), "objective", False

    @override
    def init(self, key: Array) -> Vector:
        return jnp.zeros(1, self.numbers.dtype)

    @override
    def oracle(self, k: Int[Array, ""]) -> NumbersOracle:
        return NumbersOracle(self.sizes[k], self.numbers[k])


class NumbersState(NamedTuple):
    """The server's state.

    Attributes:
        model: [1] zero.
        mean: [D] over the parties.
        each: [N, D] the numbers of each party; None if they are not kept.
    """

    model: Vector
    mean: Float[Array, " D"]
    each: Float[Array, "N D"] | None


class SumOfNumbers(OnePhaseMethod):
    """One round for the numbers of ``KnownNumbers``. All parties must take part, with equal weights.

    Attributes:
        count: D, how many numbers a party has.
        keeps_each: whether the server keeps the numbers of each party; otherwise it needs their sum only.
    """

    count: int = eqx.field(static=True)
    keeps_each: bool = eqx.field(static=True, default=True)
    replies_models: ClassVar[bool] = False
    norm_multiple: ClassVar[float | None] = None  # the numbers of one party can be far larger than those of others

    @property
    def needs_individual_replies(self) -> bool:
        """Only to keep them."""
        return self.keeps_each

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> NumbersState:
        zero = jnp.zeros(self.count, w0.dtype)
        return NumbersState(w0, zero, jnp.zeros((*shares.shape, self.count), w0.dtype) if self.keeps_each else None)

    @override
    def message(self, state: NumbersState, k: Int[Array, ""]) -> Vector:
        return state.model

    @override
    def party(self, state: PartyState, message: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Float[Array, " D"], Info]:
        if not isinstance(oracle, NumbersOracle):
            raise TypeError("SumOfNumbers is for KnownNumbers")
        return state, oracle.numbers, {"model": message, "steps": jnp.ones((), message.dtype)}

    @override
    def server(self, state: NumbersState, replies: Replies, key: Array) -> tuple[NumbersState, Info]:
        each = None if state.each is None else state.each.at[replies.index].set(replies.payload)
        return NumbersState(state.model, replies.mean(), each), {}

    @override
    def personal_model(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        return message

    @override
    def server_model(self, state: NumbersState) -> Vector:
        return state.model
