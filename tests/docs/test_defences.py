"""The page about defences agrees with their benchmark."""

import json
import re

import pytest
from test_names import HOOKS, ROOT, plain

RECORD = json.loads((ROOT / "benchmarks" / "defences.json").read_text("utf-8"))
ALL_LOSSES = {(plain(row["method"]), row["malicious"], attack): row["none"] - row[attack]
              for row in RECORD["rows"] for attack in row if attack not in ("method", "malicious", "none")}
LOSSES = {key: loss for key, loss in ALL_LOSSES.items() if key[2] != "adaptive"}
PLUS = {"fedavg_plus", "fedgeomed_plus", "fedcomed_plus"}
METHODS = {method for method, _, _ in LOSSES} - {"local"}
ATTACKS = {"NaN": "NaN", "Gaussian": "Gaussian", "SignFlip": "sign flip", "LabelFlip": "label flip", "ALIE": "ALIE",
           "IPM": "IPM", "Mimic": "mimic", "MinMax": "min-max"}
KNOWN = {"Adaptive": "adaptive"}  # knows the aggregator
MIXING = {"mixing", "momentum of mixing"}
PAGE = (ROOT / "docs" / "defences.md").read_text("utf-8")
SECTION = PAGE.split("## Which defence by threat")[1].split("\n## ")[0]
ROWS = [re.findall(r"[^|]+", line) for line in SECTION.splitlines() if line.startswith("| ")][1:]
# Differences of printed numbers, which have one decimal.
TOLERANCE = RECORD["tolerance"] + 1e-6


def named(cell):
    """The methods that a cell of the table recommends."""
    cell, _, excluded = cell.partition(" but ")
    methods = set(re.findall(r"`(\w+)`", cell)) | (PLUS if "Fed+" in cell else set())
    methods |= {"momentum of mixing"} if "momentum of mixing" in cell else set()
    if "any method" in cell:
        methods |= METHODS
    methods |= METHODS - PLUS - {"fedavg"} if "any robust method" in cell else set()
    return methods - set(re.findall(r"`(\w+)`", excluded))


@pytest.mark.parametrize("column", [1, 2])
def test_recommended_methods_lose_at_most_two_points(column):
    share = (0.2, 0.4)[column - 1]
    for threat, *cells in ROWS:
        attacks = [(ATTACKS | KNOWN)[name] for name in re.findall(r"`(\w+)`", threat)] or list(ATTACKS.values())
        for method in named(cells[column - 1]):
            assert max(ALL_LOSSES[method, share, attack] for attack in attacks) <= TOLERANCE, (threat, method)
    assert len(ROWS) == len(ATTACKS | KNOWN) + 1


def test_statements_about_all_methods():
    shared = METHODS - PLUS
    assert max(loss for (method, share, _), loss in ALL_LOSSES.items()
               if share == 0.2 and method not in {"fedavg", "fedavg_plus", "krum"}) <= 2.2 + 1e-6
    assert all(max(LOSSES[method, 0.4, attack] for attack in ATTACKS.values()) > TOLERANCE
               for method in shared - {"momentum of mixing"})
    assert max(loss for (method, _, _), loss in LOSSES.items() if method == "momentum of mixing") <= TOLERANCE
    assert max(loss for (method, _, _), loss in LOSSES.items() if method in MIXING) <= 3.7 + 1e-6
    assert max(loss for (method, _, _), loss in LOSSES.items() if method in PLUS) <= 5.5
    worst = sorted(shared, key=lambda method: LOSSES[method, 0.4, "IPM"])[-3:]
    assert set(worst) == {"krum", "multi_krum", "bulyan"}


def test_statements_about_an_attacker_who_knows_the_aggregator():
    known = {method: loss for (method, share, attack), loss in ALL_LOSSES.items()
             if (share, attack) == (0.4, "adaptive")}
    assert {method for method in METHODS - PLUS if known[method] <= TOLERANCE} == {"centred_clipping"}
    assert all(loss == pytest.approx(known[method], abs=0.06) for method, loss in {
        "momentum of mixing": 3.1, "norm_bound": 2.1, "centred_clipping": 1.3}.items())
    accuracy = {(plain(row["method"]), row["malicious"]): row["adaptive"] for row in RECORD["rows"]}
    assert accuracy["krum", 0.4] < 2.5
    assert max(accuracy["bulyan", 0.4], accuracy["fedavg_plus", 0.2], accuracy["fedavg_plus", 0.4]) == 0
    assert all(2 < known[method] < 5.5 for method in PLUS - {"fedavg_plus"})


def test_the_page_has_every_method():
    page = HOOKS.on_page_markdown(PAGE)
    assert all(page.count(f"| `{row['method']}` |") == sum(row["method"] == other["method"] for other in (
        *RECORD["rows"], *RECORD["apart"])) for row in RECORD["rows"])


def test_interpolation_of_mixing_is_nowhere_more_than_a_point_below_training_alone():
    alone = next(row["none"] for row in RECORD["apart"] if row["method"] == "local")
    row = next(row for row in RECORD["apart"] if row["method"] == "interpolation of Mixing")
    measured = set(row) - {"method", "malicious"}
    assert {"none", "sign flip", "ALIE", "IPM", "Gaussian"} <= measured
    assert min(row[column] for column in measured) >= alone - RECORD["tolerance_alone"]
