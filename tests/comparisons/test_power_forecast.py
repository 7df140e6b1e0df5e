"""The number of further test rows that would show a gain, against simulated test rows."""

import numpy as np
import pandas as pd
import pytest

import nightly
from resolvent.cli.terminal import forecast_lines
from resolvent.comparisons.judgement.decisions import decide
from resolvent.comparisons.judgement.power_forecast import Forecast, forecast, further_rows
from resolvent.comparisons.judgement.row_values import RowValues
from resolvent.comparisons.judgement.sites import Evidence, judge_sites
from resolvent.comparisons.judgement.wording import advice_of, forecast_text
from resolvent.predict.intervals import Interval
from resolvent.predict.special_intervals import RankScores, gains_of_shares


def variance_of(interval):
    """The variance that the width of an interval implies, which is near the true one with many rows."""
    return ((interval.high - interval.low) / (2 * 1.959964)) ** 2


def test_the_formula():
    """A deviation of 0.1 on 50 rows; (1.96 + 0.8416)^2 = 7.849 deviations are needed."""
    assert further_rows(0.01, 50, 0.1) == np.ceil(50 * (7.8489 - 1))
    assert further_rows(0.01, 50, -0.1) == further_rows(0.01, 50, 0.1)
    assert further_rows(0.01, 50, 0.3) == 0
    assert further_rows(0.01, 50, 0.1, power=0.9) > further_rows(0.01, 50, 0.1)
    assert further_rows(0.01, 50, 0.0) is None
    assert further_rows(0.0, 50, 0.1) is None
    assert further_rows(np.nan, 50, 0.1) is None
    assert forecast(Interval(0.0, -0.2, 0.2), 0.01, 200, 20, 0.1) == Forecast(0.1, 10 * 137, 137)
    assert forecast(Interval(0.2, 0.1, 0.3), 0.01, 200, 0, 0.1) is None


@pytest.mark.when_changed
def test_sites_with_few_rows_are_not_sent_for_many_times_the_rows_that_a_gain_needs():
    """14 test rows, of which 1 or 2 differ: the interval is twice as wide as the gain varies, its square 4 times."""
    rng, rows, gained, lost = np.random.default_rng(0), 14, 0.075, 0.025
    needed = 7.849 * (gained + lost - (gained - lost) ** 2) / (gained - lost) ** 2 - rows
    medians = []
    for _ in range(20):
        right = rng.random((10, 1, rows)) < 0.8
        change = rng.choice([1, -1, 0], size=right.shape, p=[gained, lost, 1 - gained - lost])
        values = {"alone": np.where(change, change < 0, right), "joined": np.where(change, change > 0, right)}
        table = RowValues(np.zeros(10 * rows, int), np.repeat(np.arange(10), rows), np.tile(np.arange(rows), 10),
                          {name: of_sites.ravel().astype(float) for name, of_sites in values.items()})
        evidence = Evidence("accuracy", "test", True, ("alone", "joined"), "alone", [f"site {k}" for k in range(10)],
                            pd.DataFrame(columns=["method", "round", "party", "split", "metric", "value", "seed"]),
                            (0,), table)
        sites = decide(judge_sites(evidence), evidence).sites
        forecasts = [s.decision.forecast for s in sites if s.decision.forecast is not None]
        medians += [f.rows * (f.gain / (gained - lost)) ** 2 for f in forecasts]
    assert needed / 2 <= np.median(medians) <= 2 * needed


def shares(rng, rows, gained, lost):
    """[1, rows] differences of two 0/1 values: 1, -1 or 0."""
    return rng.choice([1.0, -1.0, 0.0], size=(1, rows), p=[gained, lost, 1 - gained - lost])


@nightly.parametrize(("rows", "gained", "lost"), [(60, 0.14, 0.06), (150, 0.10, 0.05)], others=nightly.WHEN_CHANGED)
def test_paired_shares_have_the_stated_power(rows, gained, lost):
    """Forecasts from many first samples, each followed by test rows in the number that it states."""
    rng = np.random.default_rng(0)
    shown, trials = 0, 500
    for _ in range(trials):
        first = shares(rng, rows, gained, lost)
        interval = gains_of_shares(first[None], np.ones_like(first, bool))[0]
        more = further_rows(variance_of(interval), rows, gained - lost)
        second = shares(rng, rows + more, gained, lost)
        shown += gains_of_shares(second[None], np.ones_like(second, bool))[0].low > 0
    assert 0.72 <= shown / trials <= 0.88  # 0.8 with a standard error of 0.018, and the uncertainty of the first rows


@pytest.mark.when_changed
def test_areas_have_the_stated_power():
    """The area under the ROC curve, with 15 % of the rarer class: the further rows keep the shares of the classes."""
    rng, trials, (rows, rarest), shown = np.random.default_rng(0), 400, (200, 30), 0

    def gain(rows, rarest):
        y = (np.arange(rows) < rarest).astype(int)
        signal = rng.normal(size=rows) + 1.2 * y
        scores = [signal, signal + rng.normal(size=rows)]  # areas of 0.80 and 0.73
        parts = [np.where(y == 1, (s[:, None] > s[y == 0]).mean(axis=1), (s[y == 1] > s[:, None]).mean(axis=1))
                 for s in scores]
        return RankScores.of(np.array(parts)[:, None], np.ones((1, rows), bool), y).gain(0, 1)

    truth = np.mean([gain(2000, 300).value for _ in range(20)])
    for _ in range(trials):
        more = further_rows(variance_of(gain(rows, rarest)), rarest, truth)
        shown += gain(rows * (rarest + more) // rarest, rarest + more).low > 0
    assert 0.7 <= shown / trials <= 0.92


def test_the_sentence():
    of_class = {"forecast": {"gain": 0.02, "rows": 1140, "rarest": 30, "power": 0.8}}
    assert forecast_text(of_class, "accuracy") == "1,140 more test rows, 30 of the rarest class, would show +2.0 points"
    assert forecast_text({"forecast": {"gain": 0.02, "rows": 0, "rarest": 0, "power": 0.8}}, "accuracy") == (
        "these test rows would show +2.0 points")
    assert forecast_text({"forecast": None}, "accuracy") == forecast_text({}, "accuracy") == ""


def test_an_uncertain_advice_never_states_the_probability_of_a_certain_one():
    texts = [advice_of({"advice": "probably join", "probability": p}) for p in (0.934, 0.9499)]
    assert texts == ["probably join (93 %)", "probably join (94 %)"]
    assert advice_of({"advice": "join", "probability": 0.95}) == "join"


def test_the_lines_on_the_terminal():
    """At most ten sites that are undecided, those that need the fewest rows first."""
    def site(name, rows):
        forecast = {"gain": 0.02, "rows": rows, "rarest": 0, "power": 0.8}
        return {"name": name, "decision": {"forecast": rows and forecast}}

    sites = [site("Bochum", 300), site("Essen", None), site("Ulm", 20)]
    assert forecast_lines({"sites": sites, "score": "accuracy"}) == [
        "How many more test rows would show a gain on own rows, with a probability of 80%:",
        "  Ulm: 20 more test rows would show +2.0 points", "  Bochum: 300 more test rows would show +2.0 points"]
    many = {"sites": [site(f"site {k}", 100 + k) for k in range(12)], "score": "accuracy"}
    assert forecast_lines(many)[-1] == "  2 more sites: in the report"
    assert len(forecast_lines(many)) == 12
    decided = [site("Essen", None), {"name": "Ulm", "decision": None}]
    assert forecast_lines({"sites": decided, "score": "accuracy"}) == []
