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

A population may admit *strangers*, units that have nothing in common with the others:

.. code-block:: text

    theta_k = wide e_k  with probability pi,  otherwise as above;   pi ~ Beta(1, 1/m - 1), mean m

pi is integrated too. Where a second measurement says which units are strangers, its likelihood ratio enters.

Source: Gelman, *Prior Distributions for Variance Parameters in Hierarchical Models*, Bayesian Analysis 2006; Lange,
Little, Taylor, *Robust Statistical Modeling Using the t Distribution*, JASA 1989.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MIXTURE = np.geomspace(0.01, 6.0, 16)  # nodes u of the mixture; Student's distribution has four degrees of freedom
_NODES = {"mean": 11, "spread": 13, "slope": 5, "strangers": 12}
_REACH = 4.0  # the grid reaches this many standard deviations
_REFINEMENTS = 3  # each grid covers the mass of the one before
_SMALLEST_WEIGHT = 1e-3  # nodes with less than this share of the largest posterior weight are left out
_SMALLEST_PART = 1e-6  # parts of a unit's mixture with less than this weight do not enter its quantiles
_MOST_STEPS, _PROBABILITY = 40, 1e-5  # of Newton's method for a quantile, and how far its probability may be off

Array = NDArray[np.float64]


class Posterior(NamedTuple):
    """The posterior of K effects.

    Attributes:
        mean: [K] expected effects.
        low: [K] lower ends of the central intervals.
        high: [K] upper ends.
        positive: [K] the probability that the effect is above zero.
        loss: [K] the expected size of a negative effect beyond the margin, E[max(-theta - margin, 0)].
        variance: [K] of the effects.
        strange: [K] the probability that the unit is a stranger.
    """

    mean: Array
    low: Array
    high: Array
    positive: Array
    loss: Array
    variance: Array
    strange: Array


class Strangers(NamedTuple):
    """Units that need not belong to the population.

    Attributes:
        share: m, the prior mean of their share, between 0 and 1.
        wide: the scale of their effects, positive.
        log_ratio: [K] the logarithm of the likelihood of further measurements if the unit is a stranger, minus that if
            it is none.
        effects: [K] the measured effects of strangers; they differ from the others' where the error of a further
            measurement, which is correlated with the effect's, has another expectation.
        variances: [K] the variances of their errors, positive.
    """

    share: float
    wide: float
    log_ratio: Array
    effects: Array
    variances: Array


def population_posterior(effects: Array, variances: Array, features: Array | None = None, *, scale: float,
                         level: float = 0.95, margin: float = 0.0, strangers: Strangers | None = None,
                         luck: Array | None = None) -> Posterior:
    """The posterior of each unit's effect.

    Args:
        effects: [K] measured effects y_k.
        variances: [K] variances v_k of their errors, positive.
        features: [K, P] what is known of the units, centred, with a standard deviation of at most about 1.
        scale: s, a size that a typical effect will hardly exceed, positive.
        margin: losses up to this size do not count, see ``Posterior.loss``.
        strangers: which units may be strangers; None: all belong to the population.
        luck: [K] variances of what is added to the effects and measured by nothing; the posterior is of the sum.
            None: zero.
    """
    features = np.zeros((len(effects), 0)) if features is None else np.asarray(features, dtype=float)
    prior = np.array([1.0, 0.5, *[0.5] * features.shape[1]]) * scale  # standard deviations of mean, spread and slopes
    box = np.stack([-_REACH * prior, _REACH * prior])
    share, log_prior, strange = _strangers(strangers, len(effects))
    for refinement in range(_REFINEMENTS + 1):
        nodes, volume = _grid(box)
        log_weight = np.log(volume) - 0.5 * np.sum((nodes / prior) ** 2, axis=1)
        centre = nodes[:, :1] + nodes[:, 2:] @ features.T
        components = _components(centre, nodes[:, 1], effects, variances)
        of_shares = _log_likelihoods(components.of_unit, strange.of_unit, share) + log_prior + log_weight[:, None]
        weight = np.exp(of_shares - of_shares.max()).sum(axis=1)
        weight /= weight.sum()
        if refinement < _REFINEMENTS:
            middle = weight @ nodes
            reach = _REACH * np.sqrt(weight @ (nodes - middle) ** 2 + (np.diff(box, axis=0)[0] / 40) ** 2)
            box = np.stack([np.maximum(middle - reach, box[0]), np.minimum(middle + reach, box[1])])
    keep = weight > _SMALLEST_WEIGHT * weight.max()
    components = _Components(*(part[keep] for part in components))
    of_shares = np.exp(of_shares[keep] - of_shares[keep].max())
    of_shares /= of_shares.sum()
    belongs = _belongs(components.of_unit, strange.of_unit, share, of_shares)
    # The posterior of a unit is a mixture of normal distributions, one for each node and each component; the last node
    # is the population of strangers.
    parts = _Components(*(np.concatenate([of_nodes, of_strangers]) for of_nodes, of_strangers in zip(
        components, strange, strict=True)))
    of_unit = np.concatenate([belongs, 1 - belongs.sum(axis=0, keepdims=True)])
    weights = of_unit[:, :, None] * np.exp(parts.log_density - np.concatenate(
        [components.of_unit, strange.of_unit])[:, :, None])
    deviation = parts.deviation if luck is None else np.sqrt(parts.deviation**2 + luck[:, None])
    return _summary(weights, parts.middle, deviation, level, margin, of_unit[-1])


def _strangers(strangers: Strangers | None, units: int) -> tuple[Array, Array, "_Components"]:
    """[J] nodes of the share of strangers, [J] logarithms of their prior weights, and the strangers' distribution."""
    if strangers is None:
        nothing = _components(np.zeros((1, units)), np.ones(1), np.zeros(units), np.ones(units))
        return np.zeros(1), np.zeros(1), nothing
    root = _midpoints(_NODES["strangers"])  # denser near zero
    share = root**2
    log_prior = (1 / strangers.share - 2) * np.log1p(-share) + np.log(root)
    components = _components(np.zeros((1, units)), np.array([strangers.wide]), strangers.effects, strangers.variances)
    components = components._replace(log_density=components.log_density + strangers.log_ratio[None, :, None],
                                     of_unit=components.of_unit + strangers.log_ratio)
    return share, log_prior - log_prior.max(), components


def _log_likelihoods(of_members: Array, of_strangers: Array, share: Array) -> Array:
    """[G, J] of all units together, for every node and every share of strangers."""
    largest = np.maximum(of_members, of_strangers)
    members, strangers = np.exp(of_members - largest), np.exp(of_strangers - largest)
    of_shares = np.stack([np.log(np.maximum(q * strangers + (1 - q) * members, 1e-300)).sum(axis=1) for q in share],
                         axis=1)
    return np.asarray(of_shares + largest.sum(axis=1, keepdims=True))


def _belongs(of_members: Array, of_strangers: Array, share: Array, of_shares: Array) -> Array:
    """[G, K] the weight of each node for a unit, times the probability that it is no stranger.

    Args:
        of_shares: [G, J] posterior weights of the nodes and shares.
    """
    largest = np.maximum(of_members, of_strangers)
    members, strangers = np.exp(of_members - largest), np.exp(of_strangers - largest)
    return np.asarray(sum(of_shares[:, j, None] * (1 - q) * members / np.maximum(
        q * strangers + (1 - q) * members, 1e-300) for j, q in enumerate(share)))


class _Components(NamedTuple):
    """Given the nodes of the grid, K mixtures of normal distributions."""

    log_density: Array  # [G, K, Q] logarithm of the weight of a component times the density of the measurement
    of_unit: Array  # [G, K] logarithm of the density of the measurement
    middle: Array  # [G, K, Q] mean of the effect in a component, given the measurement
    deviation: Array  # [G, K, Q] its standard deviation


def _components(centre: Array, spread: Array, effects: Array, variances: Array) -> _Components:
    """Of the expected effects [G, K] and the spreads [G] of populations."""
    centre = centre[:, :, None]
    wide = (spread[:, None] ** 2 / _MIXTURE)[:, None, :]  # [G, 1, Q]
    total = wide + variances[:, None]
    residual = effects[:, None] - centre
    log_density = np.log(_mixture_weights()) - 0.5 * (np.log(2 * np.pi * total) + residual**2 / total)
    largest = log_density.max(axis=2, keepdims=True)
    of_unit = largest[..., 0] + np.log(np.exp(log_density - largest).sum(axis=2))  # 5 times as fast as np.logaddexp
    pull = wide / total
    return _Components(log_density, of_unit, centre + pull * residual, np.sqrt(pull * variances[:, None]))


def _summary(share: Array, middle: Array, deviation: Array, level: float, margin: float, strange: Array) -> Posterior:
    """Moments, tails and quantiles of K mixtures of normal distributions, [G, K, Q] each."""
    deviation = np.maximum(deviation, 1e-12)
    above = _normal_cdf(middle / deviation)
    mean = np.sum(share * middle, axis=(0, 2))
    variance = np.sum(share * (deviation**2 + (middle - mean[:, None]) ** 2), axis=(0, 2))
    loss = np.sum(share * _part_above_zero(-middle - margin, deviation), axis=(0, 2))
    low, high = (_quantile(share, middle, deviation, p) for p in ((1 - level) / 2, (1 + level) / 2))
    positive = np.minimum(np.sum(share * above, axis=(0, 2)), 1.0)
    return Posterior(mean, low, high, positive, np.maximum(loss, 0), variance, strange)


def _part_above_zero(middle: Array, deviation: Array) -> Array:
    """E[max(X, 0)] of normal variables."""
    ratio = middle / deviation
    return np.asarray(middle * _normal_cdf(ratio) + deviation * np.exp(-ratio**2 / 2) / np.sqrt(2 * np.pi))


def _normal_cdf(x: Array) -> Array:
    from scipy.special import ndtr  # here, because its import takes 0.1 s, and a run does not need it

    return np.asarray(ndtr(x))


def _quantile(share: Array, middle: Array, deviation: Array, probability: float) -> Array:
    """[K] by Newton's method, inside an interval that is halved where a step leaves it."""
    mean = np.sum(share * middle, axis=(0, 2))
    spread = np.sqrt(np.sum(share * (deviation**2 + (middle - mean[:, None]) ** 2), axis=(0, 2)))
    reach = np.sqrt(max(probability, 1 - probability) / min(probability, 1 - probability))  # Cantelli's inequality
    low, high = mean - reach * spread, mean + reach * spread
    chosen = share.max(axis=1) > _SMALLEST_PART  # the parts of the mixture that a quantile could notice
    share, middle, deviation = (part.transpose(0, 2, 1)[chosen] for part in (share, middle, deviation))
    x = mean + spread * (1.96 if probability > 0.5 else -1.96)
    open_ = np.arange(len(x))  # units whose quantile is not found yet
    for _ in range(_MOST_STEPS):
        ratio = (x[open_] - middle) / deviation
        excess = np.sum(share * _normal_cdf(ratio), axis=0) - probability * share.sum(axis=0)
        density = np.sum(share / deviation * np.exp(-ratio**2 / 2), axis=0) / np.sqrt(2 * np.pi)
        low[open_] = np.where(excess < 0, x[open_], low[open_])
        high[open_] = np.where(excess < 0, high[open_], x[open_])
        newton = x[open_] - excess / np.maximum(density, 1e-300)
        is_open = np.abs(excess) > _PROBABILITY
        x[open_] = np.where((low[open_] < newton) & (newton < high[open_]), newton, (low[open_] + high[open_]) / 2)
        if not is_open.any():
            break
        open_ = open_[is_open]
        share, middle, deviation = (part[:, is_open] for part in (share, middle, deviation))
    return np.asarray(x)


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
