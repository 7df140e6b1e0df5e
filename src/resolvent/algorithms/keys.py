"""Random keys: every tag and every derivation, shared by the simulator, a network and the tests.

Every key is folded from (seed, round, phase, party). So the order of a cohort, the scheduler, the devices and the
network do not change what a party draws, and two algorithms in one comparison meet the same cohorts, stragglers and
minibatches.

.. code-block:: text

    root            = key(seed)
    initial         = fold(root, INITIAL)            the first model
    initial, party  = fold(initial, k)               party k's first state
    round t         = fold(root, t)
    participation   = fold(root, PARTICIPATION)      the first state of the participation
    cohort          = fold(round, COHORT)            who takes part; stragglers and drop-outs fold it further
    phase p         = fold(round, p)
    party k         = fold(phase, k)                 the party's work; codecs, attacks and random layers fold it further
    server          = fold(phase, SERVER)

Tags are close to 2^31, where no round, phase or party number lies. The generator is pinned to Threefry, so that a
user's ``jax_default_prng_impl`` does not change results.
"""

import jax
from jaxtyping import Array, ArrayLike, Int

__all__ = [
    "attack_key", "availability_key", "codec_key", "cohort_key", "dropout_key", "initial_key", "initial_party_key",
    "participation_key", "party_key", "phase_key", "root_key", "round_key", "selection_key", "server_key",
    "straggler_keys", "substep_key",
]

GENERATOR = "threefry2x32"

# Folded in where a round, phase or party number is folded in elsewhere.
_COHORT = 2**31 - 1
_INITIAL = 2**31 - 2
_SERVER = 2**31 - 3
_PARTICIPATION = 2**31 - 8
# Folded into a party's key, as are the numbers of the substeps of its work. The tag of random layers is 2**31 - 6, in
# ``problem.solvers.minibatches``, and that of the steps of DPSGD 2**31 - 7, in ``problem.solvers.dpsgd``.
_CODEC = 2**31 - 4
_ATTACK = 2**31 - 5
# Folded into a cohort's key.
_STRAGGLERS = 1
_DROPOUT = 2
_SELECTION = 3
_AVAILABILITY = 2**30  # and above: the number of the availability among nested ones is added


def root_key(seed: ArrayLike) -> Array:
    """The key of a whole run, from which all its other keys are derived."""
    return jax.random.key(seed, impl=GENERATOR)


def key_shape() -> jax.ShapeDtypeStruct:
    """The shape of a key, for traces, in which nothing is drawn."""
    shape: jax.ShapeDtypeStruct = jax.eval_shape(root_key, 0)
    return shape


def initial_key(seed: ArrayLike) -> Array:
    """The key of the first model; it depends on the seed alone."""
    return jax.random.fold_in(root_key(seed), _INITIAL)


def initial_party_key(initial: Array, k: Int[Array, ""]) -> Array:
    """The key of party k's first state, from ``initial_key``."""
    return jax.random.fold_in(initial, k)


def round_key(root: Array, t: Int[Array, ""]) -> Array:
    """The key of round t, from ``root_key``."""
    return jax.random.fold_in(root, t)


def participation_key(root: Array) -> Array:
    """The key of the first state of the participation, from ``root_key``."""
    return jax.random.fold_in(root, _PARTICIPATION)


def cohort_key(round_: Array) -> Array:
    """The key with which a round's cohort is drawn."""
    return jax.random.fold_in(round_, _COHORT)


def phase_key(round_: Array, phase: int) -> Array:
    """The key of a phase of the round."""
    return jax.random.fold_in(round_, phase)


def party_key(phase: Array, k: Int[Array, ""]) -> Array:
    """The key of party k's work in a phase. Over a network a party is sent this key, never the seed."""
    return jax.random.fold_in(phase, k)


def server_key(phase: Array) -> Array:
    """The key of the server's step in a phase."""
    return jax.random.fold_in(phase, _SERVER)


def substep_key(key: Array, number: ArrayLike) -> Array:
    """The key of one of several draws or solves that a party or a server makes in one phase."""
    return jax.random.fold_in(key, number)


def codec_key(party: Array) -> Array:
    """The key of a codec's random choices; the inner algorithm keeps the party's own key."""
    return jax.random.fold_in(party, _CODEC)


def attack_key(party: Array) -> Array:
    """The key of an attack's random numbers."""
    return jax.random.fold_in(party, _ATTACK)


def straggler_keys(cohort: Array) -> tuple[Array, Array]:
    """The keys of how much work each straggler does, and of which parties straggle."""
    effort, choice = jax.random.split(jax.random.fold_in(cohort, _STRAGGLERS))
    return effort, choice


def dropout_key(cohort: Array) -> Array:
    """The key of which parties of a cohort drop out."""
    return jax.random.fold_in(cohort, _DROPOUT)


def availability_key(key: Array, depth: int) -> Array:
    """The key of the availability that is this deep among nested ones, from a cohort's or a participation's key."""
    return jax.random.fold_in(key, _AVAILABILITY + depth)


def selection_key(cohort: Array) -> Array:
    """The key of which of the available parties are selected."""
    return jax.random.fold_in(cohort, _SELECTION)
