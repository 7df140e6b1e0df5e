"""The virtual clock against a plain loop over rounds and parties."""

import numpy as np
import pytest

import resolvent as rv
from resolvent.algorithms.description import describe
from resolvent.simulator.record.systems import message_bytes

DATA = rv.datasets.synthetic(parties=5, samples=12, features=3)
CLOCK = rv.VirtualClock(speed=50.0, rate=2000.0, latency=0.01, speed_spread=1.0, seed=4)
PARTICIPATION = rv.participation.Stragglers(rv.participation.Uniform(cohort=3), share=0.4)


def run(algorithm, clock=CLOCK, **options):
    return rv.simulate(algorithm, rv.models.linear(3), DATA, rounds=6, evaluate_every=3, participation=PARTICIPATION,
                       clock=clock, progress=False, **options)


@pytest.mark.when_changed
def test_round_lasts_as_long_as_its_slowest_party():
    algorithm = rv.fedprox(rv.SGD(0.01, batch_size=4, epochs=3), mu=0.1)
    result = run(algorithm, diagnostics=("steps",))
    speed, rate = CLOCK.parties(range(5))
    down, up = message_bytes(describe(algorithm, result.problem))
    steps = result.metrics.query("metric == 'steps'")
    expected = [max(0.01 + (down + up) / rate[int(r.party)] + r.value / speed[int(r.party)] for r in rows.itertuples())
              for _, rows in steps.groupby("round")]
    simulated = result.metrics.query("metric == 'simulated_seconds'").sort_values("round")
    np.testing.assert_allclose(simulated["value"], expected, rtol=1e-6)
    assert simulated["round"].tolist() == [1, 2, 3, 4, 5, 6]
    for direction, size in (("down", down), ("up", up)):
        per_round = result.metrics.query(f"metric == 'bytes_{direction}'")["value"]
        assert per_round.tolist() == [3.0 * size] * 6
        assert per_round.sum() == result.facts["bytes"][direction]
    without_clock = run(algorithm, clock=None)
    assert without_clock.digest == result.digest
    assert not set(without_clock.metrics["metric"]) & {"simulated_seconds", "bytes_down", "bytes_up", "steps"}
    assert "steps" not in set(run(algorithm).metrics["metric"])


def test_speeds_are_lognormal_and_belong_to_the_party():
    speed, rate = rv.VirtualClock(speed=10, rate=100, speed_spread=0.5, rate_spread=0).parties(range(2000))
    assert abs(np.log(speed / 10).std() - 0.5) < 0.03
    assert abs(np.log(speed / 10).mean()) < 0.05
    np.testing.assert_array_equal(rate, 100)
    np.testing.assert_array_equal(CLOCK.parties(range(7))[0][:5], CLOCK.parties(range(5))[0])
    no_reply = CLOCK.seconds(np.zeros((1, 2), int), np.zeros((1, 2), bool), np.ones((1, 2)), 10)
    assert no_reply.tolist() == [0.0]
    for wrong in ({"speed": 0.0}, {"rate": float("nan")}, {"latency": -1.0}, {"seed": -1}):
        with pytest.raises(rv.InputError, match="VirtualClock"):
            rv.VirtualClock(**wrong)
