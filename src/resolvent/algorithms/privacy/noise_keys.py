"""The keys with which an algorithm draws noise, from a trace of a party's work without data.

The trace is followed with the party's key, its number, its effort and the numbers of the algorithm; the states of the
server and of the party are unknown. Then every key must be known, and so must be how often noise is drawn: all runs
have the keys of this trace. Two releases with one key have the same noise, and their difference has none:

.. code-block:: text

    solve f_k from v with the key K:  v - eta (g(v) + noise(K))
    solve f_k from w with the key K:  w - eta (g(w) + noise(K))        the difference reveals g(v) - g(w)
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.keys import initial_key, initial_party_key, party_key, phase_key, root_key, round_key
from resolvent.errors import InputError
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle, ShapeOracle
from resolvent.problem.solvers.dpsgd import DPSGD
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem
from resolvent.xla.known_values import NotKnownError, Value, count_marked, follow, known

__all__ = ["NoiseKeys", "check_same_noise", "noise_keys"]

_MARK = "private_work"
Key: TypeAlias = tuple[int, ...]


class NoiseKeys(NamedTuple):
    """The keys of the releases of two parties in two rounds, at full effort.

    Attributes:
        first: party -> the keys before the first round.
        rounds: (round, party) -> the keys of all phases, in the order of the calls of the solver.
        personal: number of releases whenever a party computes its personal model; a loop counts once.
    """

    first: dict[int, tuple[Key, ...]]
    rounds: dict[tuple[int, int], tuple[Key, ...]]
    personal: int


def noise_keys(algorithm: Algorithm, w0: Vector, oracle: Oracle) -> NoiseKeys:
    """The keys of the releases of an algorithm.

    Args:
        algorithm: the algorithm; its releases are those of its solvers ``DPSGD``.
        w0: a model, or its shapes.
        oracle: answers the reads of samples outside the solvers.

    Raises:
        InputError: a key, or the number of releases, depends on the state of the server or of the party.
    """
    marked: Algorithm = jax.tree.map(lambda part: _Marker() if isinstance(part, DPSGD) else part, algorithm,
                                     is_leaf=lambda part: isinstance(part, DPSGD))
    model = jax.eval_shape(lambda w: w, w0)
    root, number, effort = root_key(0), jnp.array(0), jnp.ones(())

    def first(key: Array, w: Vector) -> Any:
        return jax.tree.map(jnp.asarray, marked.init_party(w, oracle, key))

    def personal(server: Any, state: Any) -> Vector:
        return marked.personal_model(state, marked.model_message(server, number), ShapeOracle())

    server = jax.eval_shape(lambda w: marked.init(w, jnp.ones(1)), model)
    state = jax.eval_shape(first, root, model)
    of_first = jax.make_jaxpr(first)(root, model)
    of_phases = [jax.make_jaxpr(_party_work(marked, phase, oracle))(number, root, effort, server, state)
                 for phase in range(len(marked.phases))]
    initial = initial_key(0)
    try:
        return NoiseKeys(
            {k: _keys(of_first, initial_party_key(initial, jnp.array(k))) for k in range(2)},
            {(t, k): tuple(key for phase, program in enumerate(of_phases) for key in _keys(
                program, jnp.array(k), party_key(phase_key(round_key(root, jnp.array(t)), phase), jnp.array(k)),
                effort)) for t in range(2) for k in range(2)},
            count_marked(jax.make_jaxpr(personal)(server, state).jaxpr, _MARK))
    except NotKnownError as error:
        raise InputError(f"{type(algorithm).__name__} calls the solver {error}, so that its noise cannot be accounted "
                         "for: call it a fixed number of times, with keys that are derived from the key of the "
                         "party's function") from None


def check_same_noise(keys: NoiseKeys, name: str) -> None:
    """Refuse an algorithm in which two releases have one key.

    Args:
        keys: of ``noise_keys``.
        name: name of the algorithm, for the error.

    Raises:
        InputError: two releases of a round, of two rounds or of two parties have the same key.
    """
    for releases in (*keys.first.values(), *keys.rounds.values()):
        if len(set(releases)) < len(releases):
            raise InputError(f"{name} calls the solver {len(releases)} times in a round with {len(set(releases))} "
                             "different keys: with one key two releases have the same noise, and their difference "
                             "reveals the samples. Derive a key for each call, such as jax.random.fold_in(key, number)")
    together = Counter(key for releases in (*keys.first.values(), *keys.rounds.values()) for key in releases)
    if any(count > 1 for count in together.values()):
        raise InputError(f"{name} calls the solver with a key that is the same in several rounds or for several "
                         "parties: their releases have the same noise, and differences of them reveal the samples. "
                         "Derive every key from the key of the party's function")


def _party_work(algorithm: Algorithm, phase: int, oracle: Oracle) -> Callable[..., Any]:
    """A party's work in a phase; its info is neither sent nor stored."""
    message, party, _ = algorithm.phases[phase]

    def work(k: Int[Array, ""], key: Array, effort: Float[Array, ""], server: Any, state: Any) -> Any:
        return party(state, message(server, k), oracle, key, effort)[:2]

    return work


def _keys(program: Any, *inputs: Array) -> tuple[Key, ...]:
    """The keys of the releases of a program whose first inputs are known."""
    keys: list[Key] = []

    def record(values: list[Value]) -> None:
        if values[0] is None:
            raise NotKnownError("with a key that depends on a state")
        data = np.asarray(values[0]())
        keys.extend(tuple(row) for row in data.reshape(-1, data.shape[-1]).tolist())  # several keys under vmap

    states: list[Value] = [None] * (len(program.jaxpr.invars) - len(inputs))
    follow(program, [*map(known, inputs), *states], _MARK, record)
    return tuple(keys)


class _Marker(LocalSolver):
    """Stands for DPSGD in a trace: it reads no samples, and its key is the first input of an operation."""

    adds_noise: ClassVar[bool] = True

    @override
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array,
                 effort: Float[Array, ""]) -> tuple[Vector, Int[Array, ""]]:
        data = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
        return jax.jit(_private_work)(data, start), jnp.array(1)


def _private_work(key_data: Array, start: Vector) -> Vector:
    return jax.tree.map(lambda leaf: leaf + key_data[0].astype(leaf.dtype), start)


_private_work.__name__ = _MARK
