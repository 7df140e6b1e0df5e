r"""Effects of a population of units, each measured with an error: a Bayesian model with heavy tails.

.. code-block:: text

    y_k ~ Normal(theta_k, v_k)                                  the measured effect of unit k
    theta_k = mean + slope . x_k + spread e_k,  e_k ~ t_4       the effects of the population
    mean ~ Normal(0, s^2),  slope_j ~ Normal(0, s^2 / 4),  spread ~ half-Normal(s / 2)

Each unit borrows strength from all others: its posterior lies between its measurement and the mean of the population.
Student's distribution with four degrees of freedom lets a unit that differs from all others keep its own effect, where
a normal distribution would pull it to the mean. Nothing is estimated and then held fixed: mean, slope and spread are
integrated over a grid, because with few units the spread is often estimated as zero, which claims far too much.

t_4 is a mixture of normal distributions with variances spread^2 / u, u ~ Gamma(2, 2). Given a node of the grid and of
the mixture, everything is normal and has a closed form.

Source: Gelman, *Prior Distributions for Variance Parameters in Hierarchical Models*, Bayesian Analysis 2006; Lange,
Little, Taylor, *Robust Statistical Modeling Using the t Distribution*, JASA 1989.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MIXTURE = np.geomspace(0.01, 6.0, 16)  # nodes u of the mixture; Student's distribution has four degrees of freedom
_NODES = {"mean": 15, "spread": 13, "slope": 7}
_REACH = 4.0  # the grid reaches this many standard deviations
_REFINEMENTS = 3  # each grid covers the mass of the one before
_SMALLEST_WEIGHT = 1e-5  # nodes with less than this share of the largest posterior weight are left out
_BISECTIONS = 16  # of an interval of 12 standard deviations

Array = NDArray[np.float64]


class Posterior(NamedTuple):
    """The posterior of K effects.

    Attributes:
        mean: [K] expected effects.
        low: [K] lower ends of the central intervals.
        high: [K] upper ends.
        positive: [K] the probability that the effect is above zero.
        gain: [K] the expected size of a positive effect, E[max(theta, 0)].
        loss: [K] the expected size of a negative effect, E[max(-theta, 0)].
        population: expected effect of a unit of the population.
        spread: expected spread of the population.
    """

    mean: Array
    low: Array
    high: Array
    positive: Array
    gain: Array
    loss: Array
    population: float
    spread: float


def population_posterior(effects: Array, variances: Array, features: Array | None = None, *, scale: float,
                         level: float = 0.95) -> Posterior:
    """The posterior of each unit's effect.

    Args:
        effects: [K] measured effects y_k.
        variances: [K] variances v_k of their errors, positive.
        features: [K, P] what is known of the units, centred, with a standard deviation of at most about 1.
        scale: s, a size that a typical effect will hardly exceed, positive.
    """
    features = np.zeros((len(effects), 0)) if features is None else np.asarray(features, dtype=float)
    prior = np.array([1.0, 0.5, *[0.5] * features.shape[1]]) * scale  # standard deviations of mean, spread and slopes
    box = np.stack([-_REACH * prior, _REACH * prior])
    for refinement in range(_REFINEMENTS + 1):
        nodes, volume = _grid(box)
        log_weight = np.log(volume) - 0.5 * np.sum((nodes / prior) ** 2, axis=1)
        components = _components(nodes, effects, variances, features)
        log_weight += components.of_unit.sum(axis=1)
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        if refinement < _REFINEMENTS:
            middle = weight @ nodes
            reach = _REACH * np.sqrt(weight @ (nodes - middle) ** 2 + (np.diff(box, axis=0)[0] / 40) ** 2)
            box = np.stack([np.maximum(middle - reach, box[0]), np.minimum(middle + reach, box[1])])
    keep = weight > _SMALLEST_WEIGHT * weight.max()
    weight, nodes = weight[keep], nodes[keep]
    components = _Components(*(part[keep] for part in components))
    # The posterior of a unit is a mixture of normal distributions, one for each node and each component.
    share = weight[:, None, None] / weight.sum() * np.exp(components.log_density - components.of_unit[:, :, None])
    return _summary(share, components.middle, components.deviation, level, float(weight @ nodes[:, 0]),
                    float(weight @ nodes[:, 1]))


class _Components(NamedTuple):
    """Given the nodes of the grid, K mixtures of normal distributions."""

    log_density: Array  # [G, K, Q] logarithm of the weight of a component times the density of the measurement
    of_unit: Array  # [G, K] logarithm of the density of the measurement
    middle: Array  # [G, K, Q] mean of the effect in a component, given the measurement
    deviation: Array  # [G, K, Q] its standard deviation


def _components(nodes: Array, effects: Array, variances: Array, features: Array) -> _Components:
    centre = (nodes[:, :1] + nodes[:, 2:] @ features.T)[:, :, None]  # [G, K, 1]
    wide = (nodes[:, 1, None] ** 2 / _MIXTURE)[:, None, :]  # [G, 1, Q]
    total = wide + variances[:, None]
    residual = effects[:, None] - centre
    log_density = np.log(_mixture_weights()) - 0.5 * (np.log(2 * np.pi * total) + residual**2 / total)
    largest = log_density.max(axis=2, keepdims=True)
    of_unit = largest[..., 0] + np.log(np.exp(log_density - largest).sum(axis=2))  # 5 times as fast as np.logaddexp
    pull = wide / total
    return _Components(log_density, of_unit, centre + pull * residual, np.sqrt(pull * variances[:, None]))


def _summary(share: Array, middle: Array, deviation: Array, level: float, population: float,
             spread: float) -> Posterior:
    """Moments, tails and quantiles of K mixtures of normal distributions, [G, K, Q] each."""
    deviation = np.maximum(deviation, 1e-12)
    ratio = middle / deviation
    density = deviation * np.exp(-ratio**2 / 2) / np.sqrt(2 * np.pi)
    above = _normal_cdf(ratio)
    mean = np.sum(share * middle, axis=(0, 2))
    gain = np.sum(share * (middle * above + density), axis=(0, 2))
    low, high = (_quantile(share, middle, deviation, p) for p in ((1 - level) / 2, (1 + level) / 2))
    positive = np.minimum(np.sum(share * above, axis=(0, 2)), 1.0)
    return Posterior(mean, low, high, positive, gain, np.maximum(gain - mean, 0),
                     population, spread)


def _normal_cdf(x: Array) -> Array:
    from scipy.special import ndtr  # here, because its import takes 0.1 s, and a run does not need it

    return np.asarray(ndtr(x))


def _quantile(share: Array, middle: Array, deviation: Array, probability: float) -> Array:
    mean = np.sum(share * middle, axis=(0, 2))
    spread = np.sqrt(np.sum(share * (deviation**2 + (middle - mean[:, None]) ** 2), axis=(0, 2)))
    reach = np.sqrt(max(probability, 1 - probability) / min(probability, 1 - probability))  # Cantelli's inequality
    low, high = mean - reach * spread, mean + reach * spread
    for _ in range(_BISECTIONS):
        half = (low + high) / 2
        is_below = np.sum(share * _normal_cdf((half[None, :, None] - middle) / deviation), axis=(0, 2)) < probability
        low, high = np.where(is_below, half, low), np.where(is_below, high, half)
    return np.asarray((low + high) / 2)


def _grid(box: Array) -> tuple[Array, Array]:
    """[G, 2 + P] nodes (mean, spread, slopes) in a box [2, 2 + P], and the volume [G] that each stands for."""
    axes, volumes = [], []
    for i, (low, high) in enumerate(box.T):
        if i == 1:  # the spread: denser near zero, where it matters whether it is zero or small
            roots = np.sqrt(max(low, 0)) + (np.sqrt(high) - np.sqrt(max(low, 0))) * _midpoints(_NODES["spread"])
            axes.append(roots**2)
            volumes.append(2 * roots)
        else:
            axes.append(low + (high - low) * _midpoints(_NODES["slope" if i else "mean"]))
            volumes.append(np.ones(len(axes[-1])))
    nodes, volume = (np.stack([axis.ravel() for axis in np.meshgrid(*parts, indexing="ij")], axis=1)
                     for parts in (axes, volumes))
    return nodes, np.prod(volume, axis=1)


def _midpoints(number: int) -> Array:
    return np.asarray((np.arange(number) + 0.5) / number)


@cache
def _mixture_weights() -> Array:
    """The weights of the nodes of u ~ Gamma(2, 2): its density, 4 u exp(-2 u), times the distance of the nodes."""
    weights: Array = 4 * _MIXTURE * np.exp(-2 * _MIXTURE) * np.gradient(_MIXTURE)
    return np.asarray(weights / weights.sum())
