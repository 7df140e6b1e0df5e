"""Units and shifts: false alarms on homogeneous tables, and power with 30 rows a site."""

import numpy as np
import pytest
from planted import SITES

import nightly
from resolvent.tables.checks.units import Spread, find_shifts, normal_spread

QUARTILES = (0.25, 0.5, 0.75)


def homogeneous(rng, rows):
    """Columns of several distributions."""
    return {"normal": rng.normal(60, 12, rows), "lognormal": rng.lognormal(1, 1, rows), "count": rng.poisson(6, rows),
            "centred": rng.standard_t(2, rows), "uniform": rng.random(rows), "two peaks": np.where(
                rng.random(rows) < 0.5, rng.normal(0, 1, rows), rng.normal(9, 1, rows))}


def spreads(columns, site_of):
    return {name: {SITES[k]: Spread(int((site_of == k).sum()), *np.quantile(values[site_of == k], QUARTILES))
                   for k in range(5)} for name, values in columns.items()}


@nightly.parametrize("rows", [150, 60, 5000], others=nightly.WHEN_CHANGED)
def test_random_divisions_of_a_homogeneous_table_give_at_most_5_percent_false_alarms(rows):
    rng = np.random.default_rng(rows)
    columns = homogeneous(rng, rows)
    alarms = sum(bool(find_shifts(spreads(columns, rng.integers(0, 5, rows)))) for _ in range(200))
    assert alarms <= 10


@pytest.mark.parametrize(("name", "change"), [
    ("pounds for kilograms", lambda x: 2.20462 * x), ("months for years", lambda x: 12 * x),
    ("offset", lambda x: x + 60), ("kelvin", lambda x: x + 273.15), ("", lambda x: 5.3 * x), ("", lambda x: -x)])
def test_a_changed_unit_is_found_with_30_rows_a_site(name, change):
    detected = named = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        values, site_of = rng.normal(70, 14, 150), np.arange(150) % 5
        values = np.where(site_of == 2, change(values), values)
        shifts = find_shifts(spreads({"x": values}, site_of))
        detected += [shift.site for shift in shifts] == ["Celle"]
        if name == "offset":
            named += bool(shifts) and shifts[0].offset == pytest.approx(60, abs=20)
        else:
            named += bool(shifts) and name in (shifts[0].unit.name if shifts[0].unit else "")
    assert detected >= 98
    assert named >= 85


def test_body_temperature_in_fahrenheit_is_named():
    rng = np.random.default_rng(0)
    values, site_of = rng.normal(37, 0.6, 150), np.arange(150) % 5
    shifts = find_shifts(spreads({"t": np.where(site_of == 1, 1.8 * values + 32, values)}, site_of))
    assert [(shift.site, shift.unit.name) for shift in shifts] == [("Bonn", "degrees Fahrenheit for Celsius")]


def test_ordinary_differences_between_sites_are_not_reported():
    """Patients who are on average 0.8 standard deviations older, and a column that varies twice as much."""
    rng = np.random.default_rng(0)
    site_of = np.arange(5000) % 5
    columns = {"age": rng.normal(60, 12, 5000) + 10 * (site_of == 1),
               "crp": rng.lognormal(1, 1, 5000) * np.where(site_of == 2, 1.8, 1.0),
               "wide": rng.normal(0, 1, 5000) * np.where(site_of == 3, 2, 1)}
    assert not find_shifts(spreads(columns, site_of))


def test_two_of_five_sites_in_pounds_are_both_named_and_of_two_sites_one():
    usual, pounds = Spread(30, 65, 75, 84), Spread(30, 143, 165, 185)
    shifts = find_shifts({"w": {"A": usual, "B": pounds, "C": usual, "D": pounds, "E": usual}})
    assert [shift.site for shift in shifts] == ["B", "D"]
    assert [shift.site for shift in find_shifts({"w": {"A": pounds, "B": usual}})] == ["A"]


def test_means_and_deviations_name_the_same_factor():
    sites = {site: normal_spread(40, 75, 14) for site in SITES} | {"Bonn": normal_spread(40, 165, 31)}
    shift, = find_shifts({"w": sites})
    assert (shift.site, shift.factor, shift.unit.name) == ("Bonn", 165 / 75, "pounds for kilograms")


def test_sites_with_few_rows_and_single_sites_are_not_compared():
    assert not find_shifts({"w": {"A": Spread(7, 1, 2, 3), "B": Spread(100, 65, 75, 84)}})
    assert not find_shifts({"w": {"A": Spread(100, 1, 2, 3)}})
    assert not find_shifts({})
