"""Every preset passes the contract. A new preset is one row here.

The contract runs once for each composition. Presets in ``SAME`` are shown to be the composition of a row with other
parts (aggregators, penalties, schedules, optimizers). The parts have tests of their own, and ``test_compositions``
draws each of them.
"""

import jax
import pytest

import resolvent as rv
from resolvent import testing
from resolvent.algorithms import presets
from resolvent.problem.solvers.optimizers import TracedOptimizer

LAYERS = rv.penalties.PerLayer({"layer 1": rv.penalties.L1()},
                               default=rv.penalties.Scaled(rv.penalties.SquaredL2(), 2.0))
PARTS = (rv.aggregators.Aggregator, rv.penalties.Penalty, rv.schedules.Schedule, TracedOptimizer)


def compressed_scaffold(solver):
    return rv.combinators.Compressed(rv.scaffold(solver), rv.codecs.QSGD())


ROWS = {
    "local": rv.local,
    "fedavg": rv.fedavg,
    "fedprox_adaptive": lambda s: rv.fedprox_adaptive(s, mu=0.3, patience=1),
    "pooled": rv.pooled,
    "fedplus": lambda s: rv.fedplus(s, LAYERS, lam=0.3),
    "fedavg_plus": lambda s: rv.fedavg_plus(s, aggregate="all"),
    "fedgeomed_plus": rv.fedgeomed_plus,
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
# One row of each kind of method and of state runs at every commit: the library's papers' methods and those whose parts
# no other of them has. Training alone, attacks, optimizers of the server and Ditto are compared with NumPy in files of
# their own. The rows of all presets run at night.
PER_COMMIT = {"fedavg", "pooled", "scaffold", "robust", "moon", "fedplus", "splitting", "fedsplit", "fedpi",
              "personal_splitting", "diana", "flix", "Anderson of Fed+ with abstention and a relative delta"}
# Clauses that trace or compile programs of their own; a commit checks them on a row of each kind, the night on all.
COSTLY = {testing.check_sweep, testing.check_single_sample}
KINDS = {"fedavg", "scaffold", "robust", "personal_splitting"}

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
        rv.combinators.Abstention(rv.fedgeomed_plus(s, sigma=0.5))),
}

# preset -> (the preset with the row's static settings, the row that is the same composition)
SAME = {
    "fedprox": (lambda s: rv.fedprox(s, stragglers="drop"), "fedavg"),
    "rfa": (rv.rfa, "robust"),
    "coordinate_median": (rv.coordinate_median, "robust"),
    "fedcomed_plus": (rv.fedcomed_plus, "fedgeomed_plus"),
    "fedrp": (rv.fedrp, "splitting"),
    "reptile": (lambda s: rv.reptile(s, stragglers="drop"), "fedadam"),
    "fedavgm": (rv.fedavgm, "fedadam"),
    "fedyogi": (rv.fedyogi, "fedadam"),
    "fedpi_plus": (lambda s: rv.fedpi_plus(s, rv.penalties.L2Norm(), sigma=0.1, delta=0.1), "personal_splitting"),
    "fedmix": (lambda s: rv.fedmix(s, alpha=0.6, inner=compressed_scaffold(s), repeats=2), "flix"),
}


def structure(algorithm):
    """The tree structure, static fields included, with every part replaced by a number."""
    def is_part(node):
        return isinstance(node, PARTS)
    return jax.tree.structure(jax.tree.map(lambda leaf: 0.0, algorithm, is_leaf=is_part))


def test_every_preset_has_a_row():
    assert {*ROWS, *SAME} == set(presets.__all__)
    assert not {*ROWS} & {*SAME}
    assert {*ROWS, *COMBINED} >= PER_COMMIT


@pytest.mark.parametrize("name", SAME)
def test_preset_is_the_composition_of_a_row(name):
    make, row = SAME[name]
    solver = testing.example_solver()
    assert structure(make(solver)) == structure(ROWS[row](solver))


def contract_cases():
    for name in ROWS | COMBINED:
        for check in testing.CHECKS:
            nightly = name not in PER_COMMIT or check is testing.check_dtypes or (check in COSTLY and name not in KINDS)
            yield pytest.param(name, check, id=f"{name}-{check.__name__}", marks=pytest.mark.nightly if nightly else ())


@pytest.mark.parametrize(("name", "check"), contract_cases())
def test_contract(name, check):
    check((ROWS | COMBINED)[name])
