"""The rows of the contract, and which of their clauses a commit checks. A new preset is one row here.

The contract runs once for each composition. Presets in ``SAME`` are shown to be the composition of a row with other
parts (aggregators, penalties, schedules, optimizers). The parts have tests of their own, and ``test_compositions``
draws each of them.
"""

import dataclasses
from itertools import combinations

import jax

import resolvent as rv
from own_algorithms import OWN
from resolvent.algorithms.combinators.combinator import Combinator
from resolvent.algorithms.method import Method
from resolvent.problem.solvers.optimizers import TracedOptimizer
from resolvent.testing import example_solver

LAYERS = rv.penalties.PerLayer({"layer 1": rv.penalties.L1()},
                               default=rv.penalties.Scaled(rv.penalties.SquaredL2(), 2.0))
PARTS = (rv.aggregators.Aggregator, rv.penalties.Penalty, rv.schedules.Schedule, TracedOptimizer)


def compressed_scaffold(solver):
    return rv.combinators.Compressed(rv.scaffold(solver), rv.codecs.QSGD())


ROWS = {
    "local": rv.local,
    "careful_local": rv.careful_local,
    "fedavg": rv.fedavg,
    "fedprox_adaptive": lambda s: rv.fedprox_adaptive(s, mu=0.3, patience=1),
    "pooled": rv.pooled,
    "fedplus": lambda s: rv.fedplus(s, LAYERS, lam=0.3),
    "fedavg_plus": lambda s: rv.fedavg_plus(s, aggregate="all"),
    "fedgeomed_plus": rv.fedgeomed_plus,
    "protected_fedplus": rv.protected_fedplus,
    "splitting": lambda s: rv.splitting(s, eta=rv.schedules.InversePower(2.0), alpha=1.5, beta=1.7, gamma=0.8),
    "fedsplit": lambda s: rv.fedsplit(s, eta=0.5, decentralised=True),
    "fedpi": lambda s: rv.combinators.Anderson(rv.fedpi(s, eta=0.5)),
    "scaffold": rv.scaffold,
    "feddane": rv.feddane,
    "ditto": rv.ditto,
    "fednova": rv.fednova,
    "fomaml": lambda s: rv.fomaml(s, order="second", steps=2),
    "perfedavg": lambda s: rv.perfedavg(s, variant="HF", delta=0.05),
    "pfedme": lambda s: rv.pfedme(s, eta=0.03, steps=3, beta=0.7),
    "apfl": rv.apfl,
    "fedadam": rv.fedadam,
    "qfedavg": lambda s: rv.qfedavg(s, q=2.0),
    "term": lambda s: rv.term(s, t=2.0),
    "afl": rv.afl,
    "feddisco": lambda s: rv.feddisco(s, classes=3),
    "robust": lambda s: rv.robust(s, rv.aggregators.TrimmedMean(0.15)),
    "attacked": lambda s: rv.attacked(rv.feddane(s), rv.attacks.NaN(), share=0.4),
    "personal_splitting": lambda s: rv.personal_splitting(s, LAYERS, alpha=1.5, beta=1.7, gamma=0.8, lam=0.3),
    "fedplus_auto": lambda s: rv.fedplus_auto(s, rv.penalties.SquaredL2(), sigmas=(0.1, 1.0), deltas=(0.3,)),
    "model_interpolation": lambda s: rv.model_interpolation(s, rv.feddane(s), points=3),
    "robust_interpolation": rv.robust_interpolation,
    "fedplus_pull": lambda s: rv.fedplus_pull(s, rv.aggregators.CoordinateMedian(), gamma=0.4),
    "flix": lambda s: rv.flix(s, alpha=0.3, inner=compressed_scaffold(s), repeats=2),
    "one_shot": lambda s: rv.one_shot(s, smoothness=2.0, repeats=2),
    "dgd": lambda s: rv.dgd(s, learning_rate=s.learning_rate, repeats=2),
    "dcgd": lambda s: rv.dcgd(learning_rate=s.learning_rate, codec=rv.codecs.NaturalCompression(), alpha=1.0),
    "diana": lambda s: rv.diana(learning_rate=s.learning_rate, alpha=1.0),
    "l2gd": rv.l2gd,
    "feddyn": rv.feddyn,
    "fedpd": rv.fedpd,
    "feddr": rv.feddr,
    "fedlin": rv.fedlin,
    "fedexp": rv.fedexp,
    "scaffnew": rv.scaffnew,
    "admm": rv.admm,
    "ifca": rv.ifca,
    "fedcac": lambda s: rv.fedcac(s, tau=0.4, beta=5),
    "fedsam": rv.fedsam,
    "fedspeed": rv.fedspeed,
    "fedrep": lambda s: rv.fedrep(s, layers=("layer 1",)),
    "marina": lambda s: rv.marina(s, p=0.5),
    "page": rv.page,
    "fedasync": lambda s: rv.fedasync(s, power=0.7, max_staleness=3),
    "fedbuff": lambda s: rv.fedbuff(s, buffer=2),
    "ca2fl": lambda s: rv.ca2fl(s, buffer=3),
    "mifa": rv.mifa,
    "fedvarp": rv.fedvarp,
    "fedau": lambda s: rv.fedau(s, cutoff=2),
    "ef21_sgdm": rv.ef21_sgdm,
    "moon": rv.moon,
    "fedntd": lambda s: rv.fedntd(s, temperature=2.0),
    "feddecorr": rv.feddecorr,
    "fedlc": rv.fedlc,
    "fedproto": lambda s: rv.fedproto(s, classes=3, features=4),
    "fedbabu": lambda s: rv.fedbabu(s, layers=("layer 1",)),
    "fedbn": lambda s: rv.fedbn(s, layers=("*bias",)),
    "ef21_bc": lambda s: rv.ef21_bc(s, message_codec=rv.codecs.QSGD()),
}
COMBINED = {
    "fedpi_plus with a relative delta": lambda s: rv.fedpi_plus(s, rv.penalties.L2Norm(), sigma=0.5),
    "average of Anderson on the mean": lambda s: rv.combinators.ErgodicAveraging(
        rv.combinators.Anderson(rv.fedpi(s, eta=0.5), history_size=4, on="mean")),
    "average of Anderson at the parties": lambda s: rv.combinators.ErgodicAveraging(
        rv.combinators.DecentralisedAnderson(rv.fedpi(s, eta=0.5, decentralised=True)),
        weight=rv.schedules.InversePower(1.0)),
    "Ditto after training": lambda s: rv.combinators.SharedUntilTrained(rv.ditto(s)),
    "personal layers": lambda s: rv.combinators.PersonalLayers(rv.fedavg(s), ["layer 1"]),
    "Anderson of Fed+": lambda s: rv.combinators.DecentralisedAnderson(rv.fedgeomed_plus(s, sigma=0.5, delta=0.1)),
    "centre from sums": lambda s: rv.combinators.CentreFromSums(rv.fedgeomed_plus(s, sigma=0.5, delta=0.1), steps=3),
    "Anderson of Fed+ with abstention and a relative delta": lambda s: rv.combinators.DecentralisedAnderson(
        rv.fedplus(s, rv.penalties.L2Norm(), sigma=0.5, abstains=True)),
}

# preset -> (the preset with the row's static settings, the row that is the same composition)
SAME = {
    "fedprox": (rv.fedprox, "fedavg"),
    "rfa": (rv.rfa, "robust"),
    "coordinate_median": (rv.coordinate_median, "robust"),
    "fedcomed_plus": (rv.fedcomed_plus, "fedgeomed_plus"),
    "fedrp": (rv.fedrp, "splitting"),
    "reptile": (rv.reptile, "fedadam"),
    "fedavgm": (rv.fedavgm, "fedadam"),
    "fedyogi": (rv.fedyogi, "fedadam"),
    "fedacg": (rv.fedacg, "fedadam"),
    "fedpi_plus": (lambda s: rv.fedpi_plus(s, rv.penalties.L2Norm(), sigma=0.1, delta=0.1), "personal_splitting"),
    "fedmix": (lambda s: rv.fedmix(s, alpha=0.6, inner=compressed_scaffold(s), repeats=2), "flix"),
}


def structure(algorithm):
    """The tree structure, static fields included, with every part replaced by a number."""
    def is_part(node):
        return isinstance(node, PARTS)
    return jax.tree.structure(jax.tree.map(lambda leaf: 0.0, algorithm, is_leaf=is_part))


def parts(node):
    """All modules of an algorithm, with itself."""
    if isinstance(node, dict):
        node = (*node.values(),)
    if isinstance(node, tuple | list):
        for inner in node:
            yield from parts(inner)
    elif dataclasses.is_dataclass(node):
        yield node
        for field in dataclasses.fields(node):
            yield from parts(getattr(node, field.name))


def algorithms_in(algorithm):
    """The classes of the methods and combinators of which it is made."""
    return {type(part) for part in parts(algorithm) if isinstance(part, rv.Algorithm)}


def properties(algorithm):
    """What differs between two programs of the engine, whatever the algorithm computes in them."""
    stores = any(kind.init_party not in (Method.init_party, Combinator.init_party) for kind in algorithms_in(algorithm))
    return {("phases", min(len(algorithm.phases), 2)), ("models", algorithm.replies_models),
            ("single replies", algorithm.needs_individual_replies), ("states of parties", stores),
            ("steps without replies", algorithm.steps_without_replies)}


def covering(built, features, given=frozenset()):
    """Names of algorithms, of fewest parts if possible, that together have all features that are not given."""
    chosen, seen = [], {*given}
    for name in sorted(built, key=lambda name: len([*parts(built[name])])):
        if new := {*features(built[name])} - seen:
            seen |= new
            chosen.append(name)
    for name in [*chosen]:  # a later one may have all that an earlier one was chosen for
        others = given.union(*(features(built[other]) for other in chosen if other != name))
        if {*features(built[name])} <= others:
            chosen.remove(name)
    return chosen


ALL_ROWS = ROWS | COMBINED | OWN
BUILT = {name: make(example_solver()) for name, make in ALL_ROWS.items()}
# Compiling takes seconds: a commit checks all clauses on algorithms that have every property that there is, and the
# clauses that trace on one algorithm of each class. A change of the engine checks every pair of properties, and the
# night everything.
IN_FULL = covering(BUILT, properties)
IN_PAIRS = covering(BUILT, lambda algorithm: combinations(sorted(properties(algorithm)), 2))
TRACED = [*covering(BUILT, algorithms_in, {kind for name in IN_FULL for kind in algorithms_in(BUILT[name])}),
          "a loss on features"]
