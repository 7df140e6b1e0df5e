"""Minibatches of a site: in an order that no other participant knows, and of nearly equal sizes.

With small steps an update is a weighted sum of one vector for each training row:

.. code-block:: text

    update_t = -eta sum_i a_ti g_i        a_ti = sum of 1/B over the minibatches of round t that have row i

Whoever knows the random keys of n rounds knows the matrix a, and solves for the n vectors g_i; the vector of a row,
divided by its part for the bias, is the row. So the order of the minibatches comes from the secret of the site. The
same message has the same order, as a process needs that is started again.

With n = 61 rows and B = 10, the last minibatch of an epoch would be one row with the weight 1 instead of 1/10, and its
difference from the update of equal weights this row. So ceil(n/B) minibatches have floor(n/ceil(n/B)) rows, or one
more.
"""

import hashlib

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.math import tree
from resolvent.math.system_keys import SYSTEM_KEY_BYTES, system_key
from resolvent.problem.solvers.minibatches import Batches, Minibatch, Shuffled
from resolvent.xla.shuffle import Shuffle

_PURPOSE = b"minibatches"  # the secret has other uses, too


class OwnBatches(Batches):
    """The minibatches of a rule with random numbers of the site.

    Attributes:
        secret: the key data of a system key that only the site knows.
    """

    rule: Batches
    secret: UInt32[Array, " 4"]

    @override
    def draw(self, key: Array, steps: Int[Array, " S"], samples: Int[Array, ""], batch_size: int) -> Minibatch:
        secret_key = system_key(self.secret)
        for word in jax.random.key_data(key).reshape(-1):
            secret_key = jax.random.fold_in(secret_key, word)
        if not isinstance(self.rule, Shuffled):
            return self.rule.draw(secret_key, steps, samples, batch_size)
        per_epoch = jnp.maximum((samples + batch_size - 1) // batch_size, 1)
        smallest, larger = jnp.divmod(samples, per_epoch)
        epoch, i = jnp.divmod(steps, per_epoch)
        first, size = i * smallest + jnp.minimum(i, larger), smallest + (i < larger)
        index = jnp.arange(batch_size)
        mask = index < size[:, None]
        shuffles: Shuffle = tree.rows(Shuffle.draw_many(secret_key, epoch[0], epoch[-1], samples, capacity=len(steps)),
                                      epoch - epoch[0])
        return Minibatch(shuffles(jnp.where(mask, first[:, None] + index, 0)), mask)


def with_own_batches(algorithm: Algorithm, secret: bytes | None) -> Algorithm:
    """The algorithm whose local solvers have minibatches in an order that follows from a secret.

    Args:
        secret: the secret of the site; None: the algorithm is unchanged.
    """
    if secret is None:
        return algorithm
    key = jax.random.key_data(system_key(hashlib.sha256(_PURPOSE + secret).digest()[:SYSTEM_KEY_BYTES]))
    result: Algorithm = tree.map_parts(lambda rule: OwnBatches(rule, key), algorithm, Batches)
    return result
