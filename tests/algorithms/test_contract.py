"""Every preset passes the contract. A new algorithm is one row here."""

import pytest

import contract
import resolvent as rv
from resolvent.algorithms import presets

ROWS = {
    "local": rv.local,
    "fedavg": rv.fedavg,
    "fedprox": rv.fedprox,
    "fedprox_adaptive": lambda s: rv.fedprox_adaptive(s, mu=0.3, patience=1),
    "pooled": rv.pooled,
    "rfa": rv.rfa,
    "coordinate_median": rv.coordinate_median,
    "fedplus": lambda s: rv.fedplus(
        s, rv.penalties.PerLayer({"layer 1": rv.penalties.L1()}, default=rv.penalties.Scaled(rv.penalties.SquaredL2(), 2.0)), lam=0.3),
    "fedavg_plus": lambda s: rv.fedavg_plus(s, aggregate="all"),
    "fedgeomed_plus": rv.fedgeomed_plus,
    "fedcomed_plus": rv.fedcomed_plus,
    "splitting": lambda s: rv.splitting(s, eta=rv.schedules.InversePower(2.0), alpha=1.5, beta=1.7, gamma=0.8),
    "fedsplit": lambda s: rv.fedsplit(s, eta=0.5, decentralised=True),
    "fedpi": lambda s: rv.combinators.Anderson(rv.fedpi(s, eta=0.5)),
    "fedrp": rv.fedrp,
    "scaffold": rv.scaffold,
    "feddane": rv.feddane,
    "ditto": rv.ditto,
    "fednova": rv.fednova,
    "fomaml": lambda s: rv.fomaml(s, order="second", steps=2),
    "perfedavg": lambda s: rv.perfedavg(s, variant="HF", delta=0.05),
    "pfedme": lambda s: rv.pfedme(s, eta=0.03, steps=3, beta=0.7),
    "apfl": rv.apfl,
    "reptile": rv.reptile,
    "fedavgm": rv.fedavgm,
    "fedadam": rv.fedadam,
    "fedyogi": rv.fedyogi,
    "robust": lambda s: rv.robust(s, rv.aggregators.Bulyan(0.15)),
    "attacked": lambda s: rv.attacked(rv.feddane(s), rv.attacks.NaN(), share=0.4),
    "personal_splitting": lambda s: rv.personal_splitting(
        s, rv.penalties.PerLayer({"layer 1": rv.penalties.L1()}, default=rv.penalties.SquaredL2()), alpha=1.5, beta=1.7, gamma=0.8, lam=0.3),
    "fedpi_plus": lambda s: rv.fedpi_plus(s, rv.penalties.L2Norm(), aggregate="all"),
    "fedplus_auto": lambda s: rv.fedplus_auto(s, rv.penalties.SquaredL2(), sigmas=(0.1, 1.0), deltas=(0.3,)),
    "model_interpolation": lambda s: rv.model_interpolation(s, rv.feddane(s), points=3),
    "fedplus_pull": lambda s: rv.fedplus_pull(s, rv.aggregators.CoordinateMedian(), gamma=0.4),
    "fedmix": lambda s: rv.fedmix(s, alpha=0.6, inner=rv.fedprox(s), repeats=2),
    "flix": lambda s: rv.flix(s, alpha=0.3, inner=rv.combinators.Compressed(rv.scaffold(s), rv.codecs.QSGD()), repeats=2),
    "one_shot": lambda s: rv.one_shot(s, smoothness=2.0, repeats=2),
    "dgd": lambda s: rv.dgd(s, learning_rate=s.learning_rate, repeats=2),
    "dcgd": lambda s: rv.dcgd(codec=rv.codecs.NaturalCompression(), alpha=1.0),
    "diana": lambda s: rv.diana(alpha=1.0),
    "l2gd": rv.l2gd,
}


COMBINED = {
    "average of anderson on the mean": lambda s: rv.combinators.ErgodicAveraging(rv.combinators.Anderson(rv.fedpi(s, eta=0.5), history_size=4, on="mean")),
    "anderson at the parties": lambda s: rv.combinators.ErgodicAveraging(
        rv.combinators.DecentralisedAnderson(rv.fedpi(s, eta=0.5, decentralised=True)), weight=rv.schedules.InversePower(1.0)),
    "anderson of fed+": lambda s: rv.combinators.DecentralisedAnderson(rv.fedgeomed_plus(s)),
}


def test_every_preset_has_a_row():
    assert set(ROWS) == set(presets.__all__)


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in ROWS | COMBINED])
def test_contract(name, check):
    check((ROWS | COMBINED)[name])
