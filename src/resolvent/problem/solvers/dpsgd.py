r"""Differentially private SGD: the local work of a party that protects each of its samples.

.. code-block:: text

    S ~ each of the party's n samples with probability q = min(1, batch_size/n), independently (Poisson sampling)
    g = (sum over i in S of clip(grad l_i(w)) + noise_multiplier * clip * N(0, I)) / batch_size
    w <- a step of SGD along g

clip(v) is v shortened to the length ``clip`` at most, so that a sample changes the sum by at most ``clip``. The sum is
divided by ``batch_size``, a public number, also if the party has fewer samples: divided by n, the noise of a step would
tell n, and with it whether a sample is there.

Source: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang, *Deep Learning with Differential Privacy*, Algorithm 1.
"""

import math
from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.math import tree
from resolvent.math.gaussian_noise import NoisySum
from resolvent.math.tree import Vector
from resolvent.problem.oracle import NO_MEMORY, Oracle, PartyMemory
from resolvent.problem.solvers.minibatches import scale_budget
from resolvent.problem.solvers.solver import GradientSolver, ProximalStep, proximal_step
from resolvent.problem.subproblem import Subproblem
from resolvent.xla import loops

_MORE_SAMPLES = 64  # than ten standard deviations above the mean, for small minibatches
# Folded into the key of a solve before the number of a step, so that no step has the key of a substep of the party's
# work: ``split`` and ``fold_in`` derive the same keys. See ``algorithms.keys``.
_STEPS = 2**31 - 7


class _Sampling(NamedTuple):
    """The state of a pass over a Poisson sample: the sum so far, the last position, and the number of blocks."""

    total: Vector
    position: Int[Array, ""]
    blocks: Int[Array, ""]


class DPSGD(GradientSolver):
    """SGD with Poisson sampling, clipped gradients of single samples, and Gaussian noise.

    The privacy loss depends on q = batch_size/n, on ``noise_multiplier`` and on the number of steps, not on ``clip``;
    ``rv.privacy`` computes it. The gradients of a minibatch are computed in blocks of ``block`` samples.

    In ``simulate`` and in a rehearsal the noise is simulated: it is derived from the seed, measures utility and gives
    no protection. At a site of a real federation the sum and the noise are integers on a grid; the noise is discrete
    Gaussian and comes from the site's operating system, and samples are drawn with a key of 128 bits from there.

    Attributes:
        learning_rate: eta, the step size.
        clip: largest length of the gradient of one sample, positive.
        noise_multiplier: standard deviation of the noise in each coordinate, relative to ``clip``; 0 means no noise and
            no privacy.
        batch_size: expected number of samples of a minibatch, at least 1. A party with fewer samples uses all of them
            in every step, which is shorter by n/batch_size than a mean over its samples.
        steps: gradient steps; a straggler makes ceil(effort * steps).
        block: number of samples whose gradients are in memory at the same time, at least 1.
        proximal: the ``implicit`` or the ``explicit`` step, see ``SGD``.

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> solver = rv.solvers.DPSGD(0.1, clip=1.0, noise_multiplier=1.1, batch_size=20, steps=10)

    References:
        Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy, CCS 2016,
        Algorithm 1.
    """

    clip: Annotated[ArrayLike, "(0, inf)"] = 1.0
    noise_multiplier: Annotated[ArrayLike, "[0, inf)"] = 1.0
    batch_size: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=20)
    steps: Annotated[ArrayLike, "(0, inf)"] = 10
    block: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=32)
    proximal: ProximalStep = eqx.field(static=True, default="implicit")
    adds_noise: ClassVar[bool] = True

    @override
    def work(self, samples: Int[Array, " C"]) -> Float[Array, " C"]:
        return jnp.full(samples.shape, self.batch_size * jnp.asarray(self.steps), jnp.result_type(float))

    @override
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array, effort: Float[Array, ""],
                 memory: PartyMemory = NO_MEMORY) -> tuple[Vector, Int[Array, ""], PartyMemory]:
        count = scale_budget(self.steps, effort)
        of_steps = jax.random.fold_in(key, _STEPS)

        noisy = self._noisy_sum(key)

        def step(i: Array, w: Vector) -> Vector:
            sampling, noise, layers = jax.random.split(jax.random.fold_in(of_steps, i), 3)
            total = self._clipped_sum(subproblem.oracle.at_step(layers), w, sampling)
            g = tree.cast(jax.tree.map(lambda leaf: leaf / self.batch_size, noisy.release(total, noise)), w)
            if subproblem.linear is not None:
                g = tree.axpy(1, subproblem.linear, g)
            return proximal_step(subproblem, w, g, self.learning_rate, self.proximal)

        return loops.fori_loop(step, start, total=count, cost=self.batch_size), count, memory

    def _noisy_sum(self, key: Array) -> NoisySum:
        # A Poisson sample has ten standard deviations more samples than expected with a probability below 1e-20.
        terms = self.batch_size + 10 * math.sqrt(self.batch_size) + _MORE_SAMPLES
        return NoisySum.for_key(key, length=self.clip, multiplier=self.noise_multiplier, terms=terms)

    def _clipped_sum(self, oracle: Oracle, w: Vector, key: Array) -> Vector:
        """The sum of the clipped gradients of a Poisson sample, as ``NoisySum`` adds them.

        The gaps between sampled positions are geometric, so that only the sampled positions are visited: the next
        position is the last one plus a draw from the geometric distribution with success probability q.
        """
        # In float32, so that the same samples are drawn in both precisions.
        noisy = self._noisy_sum(key)
        samples = oracle.samples
        rate = jnp.minimum(self.batch_size / samples, 1).astype(jnp.float32)

        def add_block(state: _Sampling) -> _Sampling:
            block_key = jax.random.fold_in(key, state.blocks)
            gaps = jnp.where(rate < 1, jax.random.geometric(block_key, jnp.minimum(rate, 1 - 1e-7), (self.block,),
                                                            dtype=jnp.int32), 1)
            # A sum of gaps may exceed the largest integer. All positions beyond the last sample have the same meaning.
            positions = _saturating_sum(state.position, jnp.minimum(gaps, samples + 1), samples)
            gradients = jax.vmap(lambda p: noisy.clip(oracle.batch_grad(w, p[None], jnp.ones(1, bool))[0]))(
                jnp.minimum(positions, samples - 1))
            inside = positions < samples
            total = jax.tree.map(lambda t, g: t + jnp.sum(jnp.where(tree.column(inside, g), g, 0), axis=0),
                                 state.total, gradients)
            return _Sampling(total, positions[-1], state.blocks + 1)

        first = _Sampling(noisy.zero(w), jnp.full((), -1, jnp.int32), jnp.zeros((), jnp.int32))
        last: _Sampling = jax.lax.while_loop(lambda s: s.position < samples, add_block, first)
        return last.total


def _saturating_sum(start: Int[Array, ""], gaps: Int[Array, " B"], limit: Int[Array, ""]) -> Int[Array, " B"]:
    """start + cumulative sums of the gaps, at most ``limit``."""
    def add(position: Array, gap: Array) -> tuple[Array, Array]:
        after = jnp.minimum(position + gap, limit)
        return after, after

    positions: Array = jax.lax.scan(add, start, gaps)[1]
    return positions
