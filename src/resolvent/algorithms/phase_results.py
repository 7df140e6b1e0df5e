"""Checks of what the functions of an algorithm return, made when they are traced.

Without them a missing value would show as an error of JAX far from its origin. A scalar where a state has a vector
would be broadcast, and a fraction where a state has an integer would be rounded, both without an error.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from resolvent.algorithms.algorithm import Algorithm, Info, Message, PartyState, Phase, Replies, Reply, ServerState
from resolvent.errors import InputError, shorten
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)  # each can hold the numbers of those before it
_NUMBERS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def checked_phases(algorithm: Algorithm) -> tuple[Phase, ...]:
    """The phases of the algorithm."""
    phases: Any = algorithm.phases
    if not isinstance(phases, tuple) or isinstance(phases, Phase) or not all(isinstance(p, Phase) for p in phases):
        raise InputError(f"{type(algorithm).__name__}.phases is {_in_words(phases)}: make it a property that returns a "
                         "tuple of phases, such as `return (Phase(message, party, server),)`")
    if algorithm.replies_models and phases[-1].origin is None:
        raise InputError(f"{type(algorithm).__name__}: replies_models is True, so the last phase needs an origin, the "
                         "model of which a reply is an update: Phase(message, party, server, lambda message: message)")
    return phases


def check_models(algorithm: Algorithm, w0: Vector, personal: Vector, shared: Vector | None) -> None:
    """Refuse a personal or a shared model that does not have the structure and the shapes of the first model."""
    for function, model in (("personal_model", personal), ("server_model", w0 if shared is None else shared)):
        title = f"{type(algorithm).__name__}.{function}"
        if not _same_structure(model, w0):
            raise InputError(f"{title} returned {_contents(model)}, but the first model is {_contents(w0)}: return "
                             "parameters like those that init gets" + ", or None if there is no shared model" * (
                                 function == "server_model"))
        for (label, leaf), (_, like) in zip(tree.named_leaves(model), tree.named_leaves(w0), strict=True):
            if jnp.shape(leaf) != jnp.shape(like):
                raise InputError(f"{title} returned a model in which {_leaf(label)} is {_in_words(leaf)}, but it has "
                                 f"shape {list(jnp.shape(like))} in a model")


def party_work(phase: Phase, state: PartyState, message: Message, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[PartyState, Reply, Info]:
    """The results of the phase's party function, checked."""
    return checked_work(phase, state, phase.party(state, message, oracle, key, effort))


def checked_work(phase: Phase, state: PartyState, results: Any) -> tuple[PartyState, Reply, Info]:
    """What the phase's party function returned for this state, or an error that names what is wrong."""
    name = _name(phase.party)
    if not isinstance(results, tuple) or len(results) != 3:
        raise InputError(f"{name} returned {_in_words(results)}: return the party's state, its reply and a dictionary "
                         "with what a run can record, as `return state, reply, info`")
    after, reply, info = results
    _check_info(name, info)
    _check_state(name, after, state, first="init_party")
    check_arrays(f"the reply of {name}", reply)
    return after, reply, info


def server_work(phase: Phase, state: ServerState, replies: Replies, key: Array) -> tuple[ServerState, Info]:
    """The results of the phase's server function."""
    results, name = phase.server(state, replies, key), _name(phase.server)
    if not isinstance(results, tuple) or len(results) != 2:
        raise InputError(f"{name} returned {_in_words(results)}: return the server's state and a dictionary with what "
                         "a run can record, as `return state, {}`")
    after, info = results
    _check_info(name, info)
    _check_state(name, after, state, first="init")
    for label, value in info.items():
        if not isinstance(value, _NUMBERS) or jnp.shape(value):
            raise InputError(f"{name} returned info in which {label!r} is {_in_words(value)}: a run records numbers, "
                             "one for each round. Return a number, such as a norm or a mean")
    return after, info


def check_arrays(title: str, x: PyTree[Any]) -> None:
    """Refuse a tree with a leaf that is neither an array nor a number."""
    for label, leaf in tree.named_leaves(x):
        if not isinstance(leaf, _NUMBERS):
            raise InputError(f"{title} has {_leaf(label)}, which is {_in_words(leaf)}: only arrays and numbers can be "
                             "sent. What never changes is a static field of the algorithm")


def _check_info(name: str, info: Any) -> None:
    if not isinstance(info, dict):
        raise InputError(f"{name} returned info that is {_in_words(info)}: return a dictionary from names to what a "
                         "run can record, or an empty one")


def _check_state(name: str, after: PyTree[Any], before: PyTree[Any], *, first: str) -> None:
    """Refuse a state whose structure, shapes or kinds of numbers are not those of the state before."""
    end = f"a state keeps the structure, the shapes and the kinds of numbers with which {first} creates it"
    if not _same_structure(after, before):
        raise InputError(f"{name} returned as state {_contents(after)}, and the state before was {_contents(before)}: "
                         f"{end}")
    for (label, new), (_, old) in zip(tree.named_leaves(after), tree.named_leaves(before), strict=True):
        if not isinstance(new, _NUMBERS) or jnp.shape(new) != jnp.shape(old) or _loses_numbers(new, old):
            raise InputError(f"{name} returned a state in which {_leaf(label)} is {_in_words(new)}, and before it was "
                             f"{_in_words(old)}: {end}")


def _same_structure(x: PyTree[Any], y: PyTree[Any]) -> bool:
    return bool(jax.tree.structure(x) == jax.tree.structure(y))  # type: ignore[operator]


def _loses_numbers(new: Any, old: Any) -> bool:
    """Whether the kind of ``old`` cannot hold the numbers of ``new``, such as an integer and a fraction."""
    kinds = [[i for i, kind in enumerate(_KINDS) if jnp.issubdtype(_dtype(x), kind)] for x in (new, old)]
    return kinds[0] > kinds[1]  # random keys have no kind


def _dtype(x: Any) -> Any:
    return x.dtype if hasattr(x, "dtype") else jnp.result_type(x)


def _leaf(label: str) -> str:
    return f"the entry {label!r}" if label else "the only entry"


def _in_words(x: Any) -> str:
    """Such as ``an array of float32 with shape [3]`` or ``a tuple of 2 values``."""
    if isinstance(x, tuple):
        return f"a {type(x).__name__} of {len(x)} value{'s' * (len(x) != 1)}"
    if isinstance(x, _NUMBERS):
        return f"an array of {_dtype(x)} with shape {list(jnp.shape(x))}"
    return "None" if x is None else f"a value of type {type(x).__name__}"


def _contents(x: PyTree[Any]) -> str:
    """The structure of a tree for an error, such as ``{'w': array, 'c': array}``."""
    return shorten(jax.tree.unflatten(jax.tree.structure(x), [_Array()] * len(jax.tree.leaves(x))))


class _Array:
    def __repr__(self) -> str:
        return "array"


def _name(function: Callable[..., Any]) -> str:
    """Such as ``FedProto.party``, with the aggregator that it calls, if any."""
    if isinstance(function, partial):
        return _name(function.func)
    owner, method = getattr(function, "__self__", None), getattr(function, "__func__", None)
    name = getattr(function, "__qualname__", type(function).__name__) if method is None else (
        f"{type(owner).__name__}.{method.__name__}")  # the class of the object, which may have inherited the method
    aggregator = getattr(owner, "aggregator", None)
    return name if aggregator is None else f"{name} with {type(aggregator).__name__}"
