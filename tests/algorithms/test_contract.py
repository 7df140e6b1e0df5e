"""Every preset passes the contract. A new algorithm is one row here."""

import pytest

import contract
import resolvent as rv
from resolvent.algorithms import presets

ROWS = {
    "local": rv.local,
    "fedavg": rv.fedavg,
    "fedprox": rv.fedprox,
    "rfa": rv.rfa,
    "coordinate_median": rv.coordinate_median,
    "fedplus": lambda s: rv.fedplus(
        s, rv.PerLayer({"layer 1": rv.L1()}, default=rv.Scaled(rv.SquaredL2(), 2.0)), lam=0.3),
    "fedavg_plus": lambda s: rv.fedavg_plus(s, aggregate="all"),
    "fedgeomed_plus": rv.fedgeomed_plus,
    "fedcomed_plus": rv.fedcomed_plus,
    "splitting": lambda s: rv.splitting(s, eta=rv.InversePower(2.0), alpha=1.5, beta=1.7, gamma=0.8),
    "fedsplit": lambda s: rv.fedsplit(s, eta=0.5, decentralised=True),
    "fedpi": lambda s: rv.Anderson(rv.fedpi(s, eta=0.5)),
    "fedrp": rv.fedrp,
    "scaffold": rv.scaffold,
    "feddane": rv.feddane,
    "ditto": rv.ditto,
    "reptile": rv.reptile,
    "fedavgm": rv.fedavgm,
    "fedadam": rv.fedadam,
    "fedyogi": rv.fedyogi,
    "fedplus_pull": lambda s: rv.fedplus_pull(s, rv.CoordinateMedian(), gamma=0.4),
}


COMBINED = {
    "average of anderson on the mean": lambda s: rv.Averaged(rv.Anderson(rv.fedpi(s, eta=0.5), memory=4, on="mean")),
    "anderson at the parties": lambda s: rv.Averaged(
        rv.DecentralisedAnderson(rv.fedpi(s, eta=0.5, decentralised=True)), weight=rv.InversePower(1.0)),
    "anderson of fed+": lambda s: rv.DecentralisedAnderson(rv.fedgeomed_plus(s)),
}


def test_every_preset_has_a_row():
    assert set(ROWS) == set(presets.__all__)


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", ROWS | COMBINED)
def test_contract(name, check):
    check((ROWS | COMBINED)[name])
