"""The rules about portfolios: on given curves, and bootstraps against what they must decide."""

import numpy as np
import pytest
from portfolio_rule_cases import ALL_RULES, CASES, TESTS

from experiments.claims import check


@pytest.mark.parametrize(("rule", "arguments", "figure", "expected"), CASES)
def test_rules(rule, arguments, figure, expected):
    items = check(rule, figure, rules=ALL_RULES, **arguments)
    assert [item.value for item in items] == pytest.approx([value for value, _ in expected])
    assert [item.holds for item in items] == [holds for _, holds in expected]


@pytest.mark.parametrize("statistic", ["annual_return", "sharpe_ratio"])
def test_better_needs_an_interval_above_0(statistic):
    arguments = {"panels": ["p"], "statistic": statistic}
    (surely,) = check("better", TESTS, methods=["A"], than=["B"], **arguments)
    assert surely.holds
    assert surely.value > 0
    less, equal, reversed_days = (check("better", TESTS, methods=["B"], than=[other], **arguments)[0]
                                  for other in ("A", "B", "C"))
    assert not less.holds
    assert equal.value == 0
    assert not equal.holds
    assert not reversed_days.holds  # the same returns on other days
    improved, not_improved = (check("better_of_panels", TESTS, rules=ALL_RULES, panels=[a], than=b, methods=["A"])
                              for a, b in (("p", "q"), ("q", "p")))
    assert [improved[0].holds, not_improved[0].holds] == [True, False]


def test_the_best_of_many_trials_must_be_better():
    """A has a Sharpe ratio near 3; those of B and C are below. The more trials, the less it says."""
    values = [check("survives_deflation", TESTS, panels=["p"], methods=["A", "B", "C"], trials=trials)[0].value
              for trials in (3, 1000)]
    assert 0 < values[1] < values[0] < 1
    assert np.isfinite(values).all()
