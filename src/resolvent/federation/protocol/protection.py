"""Clipping and Gaussian noise at the site, before anything leaves it.

.. code-block:: text

    update = reply - reference
    sent   = reference + update * min(1, clip / |update|) + noise * clip * N(0, I)

The reference is the model that the server sent if the replies are models, and zero otherwise. With noise, the update is
rounded towards zero to a grid with the step clip/unit, and the noise on it is discrete Gaussian, see
``math.gaussian_noise``. It comes from the operating system: the server cannot compute it. A reply is
stored before it is sent, so that the same question never gets an answer with other noise. The standard deviation holds
for one reply; the privacy loss of a run is not computed here.
"""

import math
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.combinator import layers
from resolvent.algorithms.combinators.private_parties import PrivateParties
from resolvent.algorithms.method import local_solvers
from resolvent.math.codecs import Wire
from resolvent.math.discrete_gaussian import discrete_gaussian
from resolvent.problem.solvers.dpsgd import DPSGD

_UNIT = 2.0**40
_ROUNDING = 1e-9  # relative errors of the norm and of the products, at most


def protect(reply: PyTree[Any], message: PyTree[Any], algorithm: Algorithm, clip: float, noise: float) -> PyTree[Any]:
    """Clip the update of a reply, and add noise to it. Dtypes and integers stay the same.

    Args:
        reply: the party's reply, without encoded vectors.
        message: the server's message to which the reply is the answer.
        noise: standard deviation of the noise in multiples of ``clip``.
    """
    has_reference = algorithm.replies_models and _same_shapes(reply, message)
    reference = message if has_reference else jax.tree.map(lambda leaf: np.zeros(()), reply)
    update = jax.tree.map(lambda new, old: np.asarray(new, np.float64) - np.asarray(old, np.float64)
                          if _is_real(new) else None, reply, reference)
    with np.errstate(over="ignore"):
        norm = math.sqrt(sum(float(np.sum(leaf**2)) for leaf in jax.tree.leaves(update)))
    if norm <= clip and not noise:
        return reply
    is_finite = math.isfinite(norm)  # otherwise no length bounds the other numbers: the update counts as zero
    scale = min(1.0, clip / norm) if norm > 0 else 1.0
    unit = _UNIT / (1 + noise)  # grid steps in ``clip``

    def on_grid(difference: NDArray[np.float64]) -> NDArray[np.float64]:
        """The update with its noise, from which the server cannot read more than from the integers."""
        integers = np.trunc(difference * (scale * unit / clip * (1 - _ROUNDING))).astype(np.int64)
        released: NDArray[np.float64] = (clip / unit) * (
            integers + discrete_gaussian(noise * unit, integers.size).reshape(integers.shape)).astype(np.float64)
        return released

    def protected(new: Any, old: Any) -> Any:
        if not _is_real(new):
            return new
        difference = (np.asarray(new, np.float64) - np.asarray(old, np.float64) if is_finite
                      else np.zeros(np.shape(new)))
        sent = np.asarray(old, np.float64) + (on_grid(difference) if noise else scale * difference)
        return sent.astype(np.asarray(new).dtype)

    return jax.tree.map(protected, reply, reference)


def has_encoded_vector(shapes: PyTree[Any]) -> bool:
    """Whether a reply has a vector that a codec encoded, which can no longer be clipped."""
    return any(isinstance(part, Wire) for part in jax.tree.leaves(shapes, is_leaf=lambda part: isinstance(part, Wire)))


def adds_private_noise(algorithm: Algorithm) -> bool:
    """Whether parties add noise for differential privacy: by ``DPSGD``, or their part of ``PrivateParties``."""
    return (any(isinstance(solver, DPSGD) for solver in local_solvers(algorithm))
            or any(isinstance(layer, PrivateParties) and layer.noise == "parties" for layer in layers(algorithm)))


def protects_parties(algorithm: Algorithm) -> bool:
    """Whether the server adds noise for differential privacy, or counts on cohorts that others do not know."""
    return any(isinstance(layer, PrivateParties) for layer in layers(algorithm))


def _is_real(leaf: Any) -> bool:
    return bool(jax.numpy.issubdtype(np.asarray(leaf).dtype, np.floating))


def _same_shapes(a: PyTree[Any], b: PyTree[Any]) -> bool:
    same: bool = jax.tree.structure(a) == jax.tree.structure(b)  # type: ignore[operator]
    return same and all(np.shape(x) == np.shape(y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
