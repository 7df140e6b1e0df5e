"""Random compositions of the parts of the library, the same in every process. A new part is a line in a table here."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle, product
from typing import Any

import numpy as np
import optax

import resolvent as rv
from resolvent.algorithms.methods.aggregation import ModelAggregation
from resolvent.algorithms.methods.ditto import Ditto
from resolvent.algorithms.methods.fedplus import FedPlus, ProxAnchor, PullAnchor
from resolvent.algorithms.methods.splitting import DecentralisedSplitting, Relaxation, Splitting
from resolvent.errors import BreakdownWarning
from resolvent.testing import example_participation

SOLVERS = {
    "SGD": rv.SGD(0.05, batch_size=4, epochs=2),
    "GD": rv.solvers.GD(0.05, steps=3),
    "explicit GD": rv.solvers.GD(0.05, steps=2, proximal="explicit"),
}

AGGREGATORS = {
    "mean": rv.aggregators.Mean(),
    "geometric median": rv.aggregators.GeometricMedian(),
    "coordinate median": rv.aggregators.CoordinateMedian(),
    "Huber centre": rv.aggregators.MoreauCentre(rv.penalties.L2Norm(), 0.3),
    "trimmed mean": rv.aggregators.TrimmedMean(0.3),
    "Krum": rv.aggregators.Krum(0.2),
    "multi-Krum": rv.aggregators.MultiKrum(0.2),
    "Bulyan": rv.aggregators.Bulyan(0.1),
    "centred clipping": rv.aggregators.CentredClipping(0.5),
    "norm bound": rv.aggregators.NormBound(),
    "mixed median": rv.aggregators.NearestNeighbourMixing(rv.aggregators.CoordinateMedian()),
    "median of buckets": rv.aggregators.Bucketing(rv.aggregators.CoordinateMedian()),
}

CODECS = {
    "RandK": rv.codecs.RandK(k=2),
    "TopK": rv.codecs.TopK(k=2),
    "natural": rv.codecs.NaturalCompression(),
    "QSGD": rv.codecs.QSGD(4),
    "Identity": rv.codecs.Identity(),
}

ATTACKS = {
    "sign flip": rv.attacks.SignFlip(2.0),
    "scaled": rv.attacks.Scaled(),
    "Gaussian": rv.attacks.Gaussian(),
    "ALIE": rv.attacks.ALIE(1.0),
    "IPM": rv.attacks.IPM(),
    "NaN": rv.attacks.NaN(),
    "mimic": rv.attacks.Mimic(),
    "min-max": rv.attacks.MinMax(),
    "adaptive": rv.attacks.Adaptive(rv.aggregators.CoordinateMedian()),
}

PARTIES = 5

# Built from a solver and an aggregator; some do not use the aggregator.
BASES: dict[str, Callable[[Any, Any], rv.Algorithm]] = {
    "averaging": lambda solver, aggregator: ModelAggregation(solver, 0.1, aggregator=aggregator),
    "fedplus": lambda solver, aggregator: FedPlus(solver, ProxAnchor(rv.penalties.L1(), 0.1), aggregator, 0.2, 0.3),
    "pulled": lambda solver, aggregator: FedPlus(solver, PullAnchor(0.4), aggregator, 0.2),
    "ditto": lambda solver, aggregator: Ditto(solver, 0.3, aggregator=aggregator),
    "splitting": lambda solver, _: Splitting(solver, Relaxation(rv.schedules.InversePower(1.0), 1.5, 1.7, 0.8)),
    "decentralised": lambda solver, _: DecentralisedSplitting(solver, Relaxation(0.5, 2.0, 2.0, 0.5)),
    "gradient splitting": lambda solver, _: Splitting(solver, Relaxation(0.5), local="gradient"),
    "scaffold": lambda solver, _: rv.scaffold(solver, server_rate=0.7),
    "feddane": lambda solver, _: rv.feddane(solver, mu=1.0),
    "local": lambda solver, _: rv.local(solver),
    "gradient": lambda *_: rv.dgd(alpha=1.0),
    "adaptive": lambda solver, _: rv.fedprox_adaptive(solver, mu=0.2),
    "FedNova": lambda solver, _: rv.fednova(solver),
    "APFL": lambda solver, _: rv.apfl(solver),
    "pFedMe": lambda solver, _: rv.pfedme(solver, lam=2.0, eta=0.1, steps=2),
    "L2GD": lambda solver, _: rv.l2gd(solver, p=0.6),
    "FedDyn": lambda solver, _: rv.feddyn(solver, alpha=1.0),
    "primal-dual": lambda solver, _: rv.fedpd(solver, eta=0.5),
    "FedExP": lambda solver, _: rv.fedexp(solver),
    "FedLin": lambda solver, _: rv.fedlin(solver),
    "Scaffnew": lambda solver, _: rv.scaffnew(solver, p=0.5),
    "IFCA": lambda solver, _: rv.ifca(solver),
    "FedCAC": lambda solver, _: rv.fedcac(solver, beta=3),
    "MARINA": lambda solver, _: rv.marina(solver, codec=rv.codecs.RandK(k=2), p=0.5),
    "PAGE": lambda solver, _: rv.page(solver, p=0.5),
    "personal splitting": lambda solver, _: rv.fedpi_plus(solver, rv.penalties.L2Norm(), sigma=0.5),
}

# Built from the inner algorithm.
COMBINATORS: dict[str, Callable[[rv.Algorithm], rv.Algorithm]] = {
    "Anderson": lambda inner: rv.combinators.Anderson(inner, history_size=2),
    "StaleReplies": rv.combinators.StaleReplies,
    "momentum": lambda inner: rv.combinators.ServerOptimizer(
        inner, rv.solvers.traced_optimizer(optax.sgd, learning_rate=0.5, momentum=0.5)),
    "Adam": lambda inner: rv.combinators.ServerOptimizer(
        inner, rv.solvers.traced_optimizer(optax.adam, learning_rate=0.05)),
    "ErgodicAveraging": lambda inner: rv.combinators.ErgodicAveraging(inner, rv.schedules.InversePower(1.0)),
    "CentreFromSums": lambda inner: rv.combinators.CentreFromSums(inner, steps=2),
    "DecentralisedAnderson": lambda inner: rv.combinators.DecentralisedAnderson(inner, history_size=2),
    "ExplicitMixture": lambda inner: rv.combinators.ExplicitMixture(inner, rv.solvers.GD(0.1, steps=5), alpha=0.6),
    "MetaLearned": lambda inner: rv.combinators.MetaLearned(inner, step=rv.problems.GradientStep(0.1)),
    "Momentum": lambda inner: rv.combinators.Momentum(inner, decay=0.6),
    "SharpnessAware": lambda inner: rv.combinators.SharpnessAware(inner, ascent=rv.problems.Ascent(0.1)),
    "SharedUntilTrained": rv.combinators.SharedUntilTrained,
    "FineTuned": lambda inner: rv.combinators.FineTuned(inner, rv.solvers.GD(0.1)),
    "HeldOutInterpolation": lambda inner: rv.combinators.HeldOutInterpolation(inner, rv.solvers.GD(0.1), points=3),
    **{f"{name} compressed": lambda inner, codec=codec: rv.combinators.Compressed(inner, codec)
       for name, codec in CODECS.items()},
    "CompressedMessages": lambda inner: rv.combinators.CompressedMessages(inner, rv.codecs.TopK(k=3)),
    "QSGD without shifts": lambda inner: rv.combinators.Compressed(inner, rv.codecs.QSGD(), step=0.0),
    **{f"{name} attack": lambda inner, attack=attack: rv.combinators.Attacked(inner, attack, share=0.2)
       for name, attack in ATTACKS.items()},
}

PARTICIPATIONS = {
    "all": rv.participation.Full("uniform"),
    "uniform": rv.participation.Uniform(3),
    "by size": rv.participation.BySize(3),
    "Bernoulli": rv.participation.Bernoulli(0.6),
    "stragglers": rv.participation.Stragglers(rv.participation.Uniform(4), share=0.5),
    "fixed effort": rv.participation.FixedEffort(np.array([1.0, 0.4, 0.7, 0.2, 1.0]), rv.participation.Bernoulli(0.8)),
}


@dataclass(frozen=True)
class Composition:
    """The names of the parts of a composition, of its participation and of its problem."""

    base: str
    solver: str
    aggregator: str
    combinators: tuple[str, ...]
    participation: str
    problem: str

    def __str__(self):
        combinators = "".join(f"{name}-of-" for name in reversed(self.combinators))
        parts = (f"{combinators}{self.base}", self.solver, self.aggregator, self.participation, self.problem)
        return "-".join(parts).replace(" ", "_")

    def build(self) -> rv.Algorithm:
        """The algorithm; an attack may exceed the breakdown point of its aggregator."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BreakdownWarning)
            return self._build()

    def _build(self) -> rv.Algorithm:
        algorithm = BASES[self.base](SOLVERS[self.solver], AGGREGATORS[self.aggregator])
        for name in self.combinators:
            algorithm = COMBINATORS[name](algorithm)
        return algorithm

    def build_participation(self) -> rv.participation.Dropout:
        return example_participation(PARTICIPATIONS[self.participation], PARTIES)


def draw_compositions(seed: int = 2026):
    """An endless sequence of compositions that uses the entries of every table equally often, in random order."""
    random = np.random.default_rng(seed)

    def entries(table):
        return cycle(random.permutation(np.array([*table], dtype=object)).tolist())

    bases, solvers, aggregators, participations, combinators = map(
        entries, (BASES, SOLVERS, AGGREGATORS, PARTICIPATIONS, COMBINATORS))
    problems = cycle(["quadratic"] * 4 + ["classification"])
    while True:
        names = tuple(next(combinators) for _ in range(int(random.integers(0, 4))))
        yield Composition(next(bases), next(solvers), next(aggregators), names, next(participations), next(problems))


def sample(count: int, *, complete: bool) -> tuple[list[Composition], list[tuple[Composition, Exception]]]:
    """Compositions that can be built, and those that were refused before their outermost combinator was removed.

    ``count`` compositions are drawn; if ``complete``, combinators that are in none of them are added around a base.
    """
    built: list[Composition] = []
    refused = []
    draws = draw_compositions()
    while len(built) < count:
        composition = next(draws)
        while composition not in built:
            try:
                composition.build()
            except (TypeError, ValueError) as error:
                if not composition.combinators:
                    raise
                refused.append((composition, error))
                composition = replace(composition, combinators=composition.combinators[:-1])
            else:
                built.append(composition)
    if not complete:
        return built, refused
    used = {name for c in built for name in c.combinators}
    return built + [_simplest(name) for name in COMBINATORS if name not in used], refused


def _simplest(combinator: str) -> Composition:
    """The combinator around the first base that it accepts, with the mean or a median."""
    for base, aggregator in product(BASES, ("mean", "geometric median")):
        composition = Composition(base, "GD", aggregator, (combinator,), "stragglers", "quadratic")
        try:
            composition.build()
        except (TypeError, ValueError):
            continue
        return composition
    raise AssertionError(f"no base is accepted by {combinator}")
