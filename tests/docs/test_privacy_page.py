"""The figures of the pages on privacy and secure sums that need no measurement follow from the code."""

import json
import math
import re
from pathlib import Path

import pytest

import resolvent as rv
from resolvent.federation.protocol.exact_sums import EXACT_WORDS, exact_words
from resolvent.federation.secure.rules import SumRules
from resolvent.math.fixed_point import fraction_bits
from resolvent.math.gaussian_noise import NoisySum
from resolvent.math.system_keys import system_key

ROOT = Path(__file__).parents[2]
PAGE, PROTOCOL = ((ROOT / "docs" / name).read_text("utf-8") for name in ("privacy.md", "secure-sums.md"))


def rows(page):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]


def test_the_table_of_sites_together():
    pytest.importorskip("dp_accounting", reason="needs the extra `privacy`")
    header = next(i for i, row in enumerate(rows(PAGE)) if row[0].startswith("k sites together"))
    helpers = [int(cell.split(":")[0]) for cell in rows(PAGE)[header][1:]]
    algorithm = rv.combinators.PrivateParties(rv.fedavg(rv.SGD(0.1)), cohort=10, noise="parties", noise_multiplier=4)
    spent = [rv.privacy.party_epsilons(algorithm, rate=1.0, rounds=20, delta=1e-5, colluding=k) for k in helpers]
    assert rows(PAGE)[header + 2][1:] == [f"{e.secure_server:#.3g}" for e in spent]
    assert all(e.known_cohorts == e.secure_server for e in spent[1:])
    assert f"ε is {spent[0].known_cohorts:#.3g} against a single other site, with" in PAGE
    assert f"it is {spent[0].server:.3g} against the server alone" in PAGE


def test_the_claims_of_the_audit():
    """The claims of parties in the file of the table are computed again."""
    pytest.importorskip("dp_accounting", reason="needs the extra `privacy`")
    measured = json.loads((ROOT / "benchmarks" / "audit.json").read_text("utf-8"))
    claims = {row["composition"]: row["claim"] for row in measured["rows"]}
    for name, settings in (("noise of the server", {}), ("noise of the parties", {"noise": "parties"}),
                           ("quantile", {"quantile": 0.5})):
        algorithm = rv.combinators.PrivateParties(rv.fedavg(rv.SGD(0.1)), cohort=measured["canaries"], **settings)
        claim = rv.privacy.party_epsilon(algorithm, rate=1.0, rounds=measured["rounds"], delta=measured["delta"])
        assert claims[name] == pytest.approx(claim, rel=1e-3)


def test_bounds_and_grid():
    for epsilon, text in ((1, "which is 0.46"), (3, "and 0.91 for")):
        value, = re.findall(r"0\.\d+", text)
        assert text in PAGE
        assert f"{rv.privacy.advantage_bound(epsilon, 0.0):.2f}" == value

    def unit(batch_size):
        terms = batch_size + 10 * math.sqrt(batch_size) + 64  # of ``DPSGD``
        return float(NoisySum.for_key(system_key(), length=1.0, multiplier=1.0, terms=terms)._unit)

    finest, more_than = (int(text.replace(",", "")) for text in re.search(
        r"clip/([\d,]+) for a noise multiplier of 1; coarser for minibatches of more than ([\d,]+)", PAGE).groups())
    assert unit(20) == pytest.approx(finest, rel=0.002)
    assert unit(more_than) == unit(20) > unit(more_than + 100)


def test_numbers_of_the_protocol():
    sums = rv.combinators.FixedPointSums(rv.fedavg(rv.SGD(0.1)))
    largest = round(math.log2(sums.largest))
    assert f"b = {sums.bits}, range = 2^{largest}, N = {sums.terms}, so that f = {sums.fraction}" in PROTOCOL
    assert fraction_bits(1024, 2.0**120, 64, 5) == 145
    assert "2^120 and f = 145" in PROTOCOL
    assert EXACT_WORDS == len(exact_words(1)) == 16
    assert [n for n in range(3, 30) if SumRules().needs_all(n)] == [3]  # "with three sites by default"
