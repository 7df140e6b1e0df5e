"""Cox regression stratified by party: each party's partial likelihood is its own problem."""

from functools import partial
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.math.newton import SecondOrder
from resolvent.math.tree import Vector
from resolvent.regression.families import RowTerms
from resolvent.regression.objective import (
    FitSums,
    RegressionOracle,
    RegressionProblem,
    ScoreWeights,
    centred_by_party,
    numbered_clusters,
    padded,
)

Ties: TypeAlias = Literal["efron", "breslow"]


class CoxRegression(RegressionProblem):
    r"""Cox regressions with one baseline hazard per party: f_k = -(log partial likelihood of party k) / n_k.

    .. math:: \ell_k(\beta) = \sum_{i \text{ event}} w_i x_i'\beta - \bar w_i
              \log\Big(\sum_{j \in R_i} w_j e^{x_j'\beta} - \tfrac{l_i}{m_i} \sum_{j \in D_i} w_j e^{x_j'\beta}\Big)

    The risk set R_i are the rows of the same stratum with s_j < t_i <= t_j, where s_j is the time of entry. D_i are the
    events at the time of event i in its stratum, m_i is their number, and l_i = 0, ..., m_i - 1 is the number of event
    i among them; with ties by Breslow, l_i is 0. The weights w_j are 1 by default, and the mean of those of D_i stands
    before the logarithm. With offsets, x'beta is x'beta + offset. The features of each stratum are centred, which
    changes no likelihood: a column that is constant within a stratum is exactly zero there.

    Source: Efron, *The efficiency of Cox's likelihood function for censored data*, 1977; with weights Therneau,
    Grambsch, *Modeling Survival Data*, 2000, section 7.

    Args:
        x: [rows, d] features of all parties, one party after the other.
        time: [rows] time of the event or of the end of observation.
        event: [rows] whether the event occurred.
        sizes: [N] number of rows of each party.
        entry: [rows] time before which a row is not at risk, as of rows (start, stop]; default: all are from the
            beginning.
        strata: [rows] number of the stratum within the party; each has a baseline hazard of its own. Default: one.
        offsets: [rows] what is added to the log hazard; default: zero.
        weights: [rows] the weight of each row; default: 1.
        power: of the weights of the rows' squared scores, as of ``RowRegression``.
        clusters: [rows] number of the row's cluster within its party; default: a party is one.
        ties: ``efron`` or ``breslow``.
        l2: weight of the squares of the coefficients; one number, or [d].
        longest: number of rows to which every party is padded; default: of the largest party.
    """

    x: Float[Array, "rows d"]
    offsets: Float[Array, " rows"]
    weights: Float[Array, " rows"]
    event: Bool[Array, " rows"]
    last: Int[Array, " rows"]  # the last row of the same stratum whose time is not smaller, in the party's order
    before: Int[Array, " rows"]  # number of the party's rows before the first one of the same stratum and time
    rank: Float[Array, " rows"]  # l_i / m_i
    tied: Float[Array, " rows"]  # mean weight of the events at the time of an event; 0 for other rows
    stratum: Int[Array, " rows"]  # number of the party's rows in strata before
    by_entry: Int[Array, " rows"] | None  # the party's rows by stratum and falling entry; None: no row enters late
    later: Int[Array, " rows"] | None  # number of the rows in this order until those of the stratum that enter too late
    cluster: Int[Array, " rows"]
    most: int = eqx.field(static=True)
    first: Int[Array, " N"]
    order: Int[Array, " rows"]  # the given number of each row in this order
    longest: int = eqx.field(static=True)
    power: int = eqx.field(static=True)

    def __init__(self, x: Any, time: Any, event: Any, sizes: Any, *, entry: Any = None, strata: Any = None,
                 offsets: Any = None, weights: Any = None, clusters: Any = None, power: int = 1, ties: Ties = "efron",
                 l2: Any = 0.0,
                 longest: int | None = None) -> None:
        sizes, x = np.asarray(sizes), np.asarray(x, float)
        starts = np.cumsum(sizes) - sizes
        strata = np.zeros(len(x)) if strata is None else np.asarray(strata)
        weights = np.ones(len(x)) if weights is None else np.asarray(weights, float)
        parts = [_sorted_party(np.asarray(time)[a:a + n], np.asarray(event, bool)[a:a + n], strata[a:a + n],
                               weights[a:a + n], ties, None if entry is None else np.asarray(entry, float)[a:a + n])
                 for a, n in zip(starts, sizes, strict=True)]
        order = np.concatenate([a + part[0] for a, part in zip(starts, parts, strict=True)])
        self.longest, self.power = int(sizes.max()) if longest is None else longest, power
        self.order = jnp.asarray(order, jnp.int32)
        pad = partial(jnp.pad, pad_width=(0, self.longest))
        of_stratum = np.concatenate([a + part[5] for a, part in zip(starts, parts, strict=True)])
        self.x = padded(centred_by_party(x[order], np.unique(of_stratum, return_counts=True)[1]), self.longest)
        self.offsets = padded(np.zeros(len(x)) if offsets is None else np.asarray(offsets, float)[order], self.longest)
        self.weights = padded(weights[order], self.longest)
        numbers, self.most = numbered_clusters(clusters, sizes)
        self.cluster = pad(jnp.asarray(np.zeros(len(x), int) if numbers is None else numbers[order]))
        self.event = pad(jnp.asarray(np.asarray(event, bool)[order]))
        self.last, self.before, self.rank, self.tied, self.stratum, *late = (
            pad(jnp.asarray(np.concatenate(column))) for column in zip(*(part[1:] for part in parts), strict=True))
        self.by_entry, self.later = late or (None, None)
        self.first, self.sizes = jnp.asarray(starts, jnp.int32), jnp.asarray(sizes, jnp.int32)
        self.start, self.l2 = (jnp.broadcast_to(jnp.asarray(v, float), self.x.shape[1:]) for v in (0.0, l2))
        self.splits, self.score_name, self.higher_is_better = ("train",), "objective", False

    @override
    def oracle(self, k: Int[Array, ""]) -> "CoxOracle":
        arrays = (self.x, self.offsets, self.weights, self.event, self.last, self.before, self.rank, self.tied,
                  self.stratum, self.by_entry, self.later, self.cluster)
        x, offsets, weights, event, last, before, rank, tied, stratum, by_entry, later, cluster = jax.tree.map(
            lambda array: jax.lax.dynamic_slice_in_dim(array, self.first[k], self.longest), arrays)
        mask = jnp.arange(self.longest) < self.sizes[k]
        return CoxOracle(self.sizes[k], self.l2, x, offsets, weights, event & mask, last, before, rank, tied, stratum,
                         by_entry, later, cluster, self.most, mask, self.power)

    @override
    def row_weights(self, w: Float[Array, " P"]) -> Float[Array, "rows C"]:
        risks = self.oracle(jnp.array(0)).risks(w)
        return self._in_order((risks.hazard * risks.pressure)[:, None])

    @override
    def answered_columns(self, w: Float[Array, " P"], sums: bool = False, scores: bool = False,
                         weights: ScoreWeights | None = None) -> Float[Array, "rows columns"]:
        return self._in_order(self.oracle(jnp.array(0)).answered_columns(w, sums, scores))

    def event_residuals(self, w: Float[Array, " P"]) -> Float[Array, "rows d"]:
        """Schoenfeld's residuals of all rows in the given order; 0 for rows without an event."""
        parties = self.sizes.shape[0]
        of_parties = jax.lax.map(lambda k: self.oracle(k).event_residuals(self.oracle(k).risks(w)), jnp.arange(parties))
        places = self.first[:, None] + jnp.arange(self.longest)
        known = jnp.zeros_like(self.x).at[jnp.where(jnp.arange(self.longest) < self.sizes[:, None], places,
                                                    len(self.x))].set(of_parties, mode="drop")
        return self._in_order(known)

    def _in_order(self, values: Float[Array, "n c"]) -> Float[Array, "rows c"]:
        """The values of a single party in the given order of its rows."""
        known = values[:self.order.shape[0]]
        return jnp.zeros_like(known).at[self.order].set(known)


def _sorted_party(time: NDArray[Any], event: NDArray[np.bool_], strata: NDArray[Any],
                  weights: NDArray[np.float64], ties: Ties,
                  entry: NDArray[np.float64] | None) -> tuple[NDArray[Any], ...]:
    """The order of a party's rows by stratum and falling time, and ``last``, ``before`` and so on of the rows in it."""
    order = np.lexsort((~event, -time, strata))  # events first among equal times
    time, event, strata = time[order], event[order], strata[order]
    is_first = np.append(True, (np.diff(time) != 0) | (strata[1:] != strata[:-1]))
    group, count = np.cumsum(is_first) - 1, np.diff(np.flatnonzero(np.append(is_first, True)))
    end = np.cumsum(count)
    before = (end - count)[group]
    deaths, weight = (np.bincount(group, weights=of_rows)[group] for of_rows in (event, event * weights[order]))
    rank = np.where(event, (np.arange(len(time)) - before) / np.maximum(deaths, 1), 0.0)
    stratum = np.searchsorted(strata, strata)
    places = [(end - 1)[group].astype(np.int32), before.astype(np.int32), rank if ties == "efron" else 0 * rank,
              np.where(event, weight / np.maximum(deaths, 1), 0.0), stratum.astype(np.int32)]
    if entry is not None:
        entry = entry[order]
        by_entry, later = np.lexsort((-entry, strata)), np.empty_like(stratum)
        for first, rows in zip(*np.unique(stratum, return_counts=True), strict=True):
            of_stratum = slice(first, first + rows)
            later[of_stratum] = first + np.searchsorted(-entry[by_entry[of_stratum]], -time[of_stratum], side="right")
        places += [by_entry.astype(np.int32), later.astype(np.int32)]
    return order, *places


class _Risks(eqx.Module):
    """The weighted sums over the risk set of every event, in the party's order of rows."""

    hazard: Float[Array, " n"]  # w exp(x'beta), scaled
    total: Float[Array, " n"]  # S0 of each event; 1 for other rows
    log_total: Float[Array, " n"]
    pressure: Float[Array, " n"]  # sum over events of their mean weight / S0 in whose risk set the row is
    log_hazard: Float[Array, " n"]


class CoxOracle(RegressionOracle):
    """One party's negative log partial likelihood, divided by its number of rows.

    Attributes:
        x: [n, d] features, by falling time, centred and padded.
        offsets: [n] what is added to the log hazard.
        weights: [n] the weight of each row.
        event: [n] whether a row is an event.
        last: [n] last row of the stratum whose time is not smaller than the row's.
        before: [n] number of rows before the first one of the same stratum and time.
        rank: [n] l/m of an event, otherwise 0.
        tied: [n] mean weight of the events at the time of an event, otherwise 0.
        stratum: [n] number of rows in strata before.
        by_entry: [n] the rows by stratum and falling entry; None: no row enters late.
        later: [n] number of the rows in this order up to the last one that enters at the row's time, or later.
        cluster: [n] number of the row's cluster within the party.
        most: the largest number of clusters of a party.
        mask: [n] which rows are the party's.
        power: of the weights of the rows' squared scores.
    """

    x: Float[Array, "n d"]
    offsets: Float[Array, " n"]
    weights: Float[Array, " n"]
    event: Bool[Array, " n"]
    last: Int[Array, " n"]
    before: Int[Array, " n"]
    rank: Float[Array, " n"]
    tied: Float[Array, " n"]
    stratum: Int[Array, " n"]
    by_entry: Int[Array, " n"] | None
    later: Int[Array, " n"] | None
    cluster: Int[Array, " n"]
    most: int = eqx.field(static=True)
    mask: Bool[Array, " n"]
    power: int = eqx.field(static=True)

    @override
    def mean_value(self, w: Vector) -> Float[Array, ""]:
        return self._loss(self.risks(w)) / self.samples

    @override
    def mean_second_order(self, w: Vector) -> SecondOrder:
        risks = self.risks(w)
        means = self._mean_features(risks)
        hessian = ((self.x * (risks.hazard * risks.pressure)[:, None]).T @ self.x
                   - (means * self.tied[:, None]).T @ means)
        return SecondOrder(self._loss(risks) / self.samples, -(self._residuals(risks) @ self.x) / self.samples,
                           hessian / self.samples)

    @override
    def fit_sums(self, w: Vector, weights: ScoreWeights | None = None) -> FitSums:
        if weights is not None:
            raise InputError("a Cox model has no leverages of rows")
        loss, gradient, hessian = self.mean_second_order(w)
        scores = self._row_scores(self.risks(w))
        zero = jnp.zeros((), self.x.dtype)
        of_rows = jnp.where(self.mask, self.weights, 0)
        clusters, groups = self.samples * jnp.outer(gradient, gradient), zero + 1
        if self.most > 1:
            of_clusters, groups = self._cluster_sums(scores), 1 + jnp.max(jnp.where(self.mask, self.cluster, 0))
            clusters = of_clusters.T @ of_clusters / self.samples
        return FitSums(gradient, hessian, hessian, scores.T @ scores / self.samples, clusters,
                       (self.x * of_rows[:, None]).T @ self.x / self.samples,
                       RowTerms(2 * loss, zero, -loss, zero), jnp.sum(of_rows) / self.samples, groups / self.samples)

    def answered_columns(self, w: Vector, sums: bool, scores: bool) -> Float[Array, "n c"]:
        """The martingale residuals, and the second derivatives of the loss in the log hazards times the features."""
        risks = self.risks(w)
        columns, of_rows = [self._residuals(risks)[:, None], self._expected(risks)], self._row_scores(risks)
        if scores or (sums and self.most > 1):
            columns.append(of_rows)
        if sums and self.most > 1:  # the sum over clusters g of s_g s_g' is that over their rows of s_i s_g'
            columns.append(self._cluster_sums(of_rows)[self.cluster])
        return jnp.concatenate(columns, axis=1)

    def _cluster_sums(self, of_rows: Float[Array, "n d"]) -> Float[Array, "clusters d"]:
        """The gradient of each cluster, from the scores of the rows, whose squares have the weights to ``power``."""
        of_rows = jnp.where(self.mask[:, None], of_rows * (self.weights**(1 - self.power / 2))[:, None], 0)
        sums: Array = jnp.zeros((self.most, of_rows.shape[1]), of_rows.dtype).at[self.cluster].add(of_rows)
        return sums

    def risks(self, w: Vector) -> _Risks:
        """The sums over the risk sets at ``w``."""
        log_hazard = jnp.where(self.mask, self.x @ w + self.offsets, 0)
        scale = jnp.max(jnp.where(self.mask, log_hazard, -jnp.inf))
        hazard = jnp.where(self.mask, self.weights * jnp.exp(log_hazard - scale), 0)
        total = jnp.where(self.event, self._over_risk_set(hazard), 1)
        inverse = jnp.where(self.event, self.tied / total, 0)
        return _Risks(hazard, total, jnp.log(total) + scale, self._back(inverse), log_hazard)

    def _loss(self, risks: _Risks) -> Float[Array, ""]:
        return jnp.sum(jnp.where(self.event, self.tied * risks.log_total - self.weights * risks.log_hazard, 0))

    def _residuals(self, risks: _Risks) -> Float[Array, " n"]:
        """The martingale residuals times the weights."""
        return jnp.where(self.event, self.weights, 0) - risks.hazard * risks.pressure

    def _over_risk_set(self, values: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
        """For every event the sum over its risk set, with Efron's reduction of the tied events."""
        column = (slice(None),) + (None,) * (values.ndim - 1)
        every, tied = _sums_before(values), _sums_before(jnp.where(self.event[column], values, 0))
        total = every[self.last + 1] - every[self.stratum]
        if self.by_entry is not None:
            late = _sums_before(values[self.by_entry])
            total -= late[self.later] - late[self.stratum]
        return total - self.rank[column] * (tied[self.last + 1] - tied[self.before])

    def _back(self, values: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
        """The transpose of ``_over_risk_set``: for every row the sum over the events in whose risk sets it is."""
        zero = jnp.zeros_like(values)
        transposed: Array = jax.linear_transpose(self._over_risk_set, zero)(values)[0]
        return transposed

    def _mean_features(self, risks: _Risks) -> Float[Array, "n d"]:
        """The mean features of the risk set of every event; 0 for other rows."""
        sums = self._over_risk_set(self.x * risks.hazard[:, None])
        return jnp.where(self.event[:, None], sums / risks.total[:, None], 0)

    def _row_scores(self, risks: _Risks) -> Float[Array, "n d"]:
        """Each row's part of the gradient: (x_i - mean) at its event minus what the risk sets expect of it.

        With weights its square has their power, as the part has.
        """
        scores = self.weights[:, None] * self.event_residuals(risks) - self._expected(risks)
        return scores if self.power == 2 else scores / jnp.sqrt(jnp.where(self.mask, self.weights, 1))[:, None]

    def event_residuals(self, risks: _Risks) -> Float[Array, "n d"]:
        """Schoenfeld's residuals: the features of each event minus their mean in its risk set; 0 for other rows."""
        return jnp.where(self.event[:, None], self.x - self._mean_over_ties(self._mean_features(risks)), 0)

    def _expected(self, risks: _Risks) -> Float[Array, "n d"]:
        """What the risk sets expect of each row's score."""
        means = self._mean_features(risks) * (self.tied / risks.total)[:, None]
        return risks.hazard[:, None] * (self.x * risks.pressure[:, None] - self._back(means))

    def _mean_over_ties(self, means: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The mean over the events at the same time."""
        sums, counts = _sums_before(means), _sums_before(self.event.astype(int))
        total, count = (of_rows[self.last + 1] - of_rows[self.before] for of_rows in (sums, counts))
        return total / jnp.maximum(count, 1)[:, None]


def _sums_before(values: Shaped[Array, "n ..."]) -> Shaped[Array, "n+1 ..."]:
    """The sums of the first 0, 1, ..., n values."""
    return jnp.concatenate([jnp.zeros_like(values[:1]), jnp.cumsum(values, axis=0)])
