"""Each kind of fault, planted alone, is reported with its column, its site and its severity; nothing else is."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from planted import SETTINGS, SITES, at, clean
from ruamel.yaml import YAML
from sklearn.datasets import load_breast_cancer

from resolvent.errors import InputError
from resolvent.tables.checks.table_check import check_frame
from resolvent.tables.columns import excluding
from resolvent.tables.party_tables import from_frame

N = 800


def with_missing(frame, column, rows):
    return frame.assign(**{column: frame[column].astype(object).where(~np.isin(np.arange(len(frame)), rows), None)})


def visits_of_patients(frame, first="", interleaved=True):
    """The table with numbers of patients, who have four rows each on average, all at one site."""
    rng = np.random.default_rng(0)
    site = frame["site"].astype("category").cat.codes.to_numpy()
    patient = site * 40 + rng.integers(0, 40, len(frame))
    number = rng.permutation(200)[patient] if interleaved else patient
    return frame.assign(code=[f"{first}{n}" for n in number] if first else number)


def repeated(frame, *, site=None):
    """The table with 40 rows twice."""
    again = frame.iloc[:40]
    return pd.concat([frame, again if site is None else again.assign(site=site)], ignore_index=True)


def of_numbers(frame):
    """The table with a positive number as the label."""
    return frame.assign(ill=np.random.default_rng(0).gamma(9, 2, len(frame)))


def with_stays(frame):
    """The table with two dates, whose difference is the label."""
    rng, days = np.random.default_rng(7), np.random.default_rng(1).integers(1, 60, len(frame)) + 0.5
    start = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 400, len(frame)), "D")
    return frame.assign(start=start, end=start + pd.to_timedelta(days, "D"), ill=days)


FAULTS = {  # name: (change of the table, settings, kind, severity, column, site)
    "party": (lambda f: with_missing(f, "site", [3, 9]), {}, "missing", "error", "site", None),
    "label": (lambda f: with_missing(f, "ill", [5]), {}, "missing", "error", "ill", None),
    "blank label": (lambda f: f.assign(ill=f["ill"].where(f.index != 7, "  ")), {}, "missing", "error", "ill", None),
    "feature": (lambda f: with_missing(f, "ward", range(50)), {}, "missing", "error", "ward", None),
    "imputed": (lambda f: with_missing(f, "age", range(50)).astype({"age": float}), {"missing": "impute"}, "missing",
                "note", "age", None),
    "dates": (lambda f: f.assign(day=pd.date_range("2024-01-01", periods=N).astype(str)), {}, "dates", "error", "day",
              None),
    "timestamps": (lambda f: f.assign(day=pd.date_range("2024-01-01", periods=N)), {}, "dates", "error", "day", None),
    "other dates": (lambda f: f.assign(day=pd.date_range("2024-01-01", periods=N).strftime("%d.%m.%Y")), {}, "dates",
                    "error", "day", None),
    "few other dates": (lambda f: f.assign(day=[f"{1 + i % 20}.12.2024" for i in range(N)]), {}, "dates", "error",
                        "day", None),
    "free text": (lambda f: f.assign(note=[f"patient {i} is well" for i in range(N)]), {}, "free text", "error", "note",
                  None),
    "identifier": (lambda f: f.assign(code=[f"P{i}" for i in range(N)]), {}, "identifier", "error", "code", None),
    "number": (lambda f: f.assign(code=np.arange(N) + 7), {}, "identifier", "warning", "code", None),
    "visits": (lambda f: visits_of_patients(f), {}, "persons", "warning", "code", None),
    "large numbers": (lambda f: f.assign(code=2**62 + np.arange(N) // 2 * 7919), {}, "identifier", "warning", "code",
                      None),
    "levels": (lambda f: f.assign(city=[f"c{i % 150}" for i in range(N)]), {}, "levels", "error", "city", None),
    "only rare": (lambda f: f.assign(city=[f"c{i % 150}" for i in range(N)]), {"rare": "other"}, "levels", "error",
                  "city", None),
    "joined": (lambda f: f.assign(city=[f"c{i % 5 if i % 9 else i % 150}" for i in range(N)]), {"rare": "other"},
               "levels", "note", "city", None),
    "word": (lambda f: f.assign(dose=["unknown", *map(str, range(50)), *map(str, range(50))] * 7 + ["1"] * 93), {},
             "kind", "error", "dose", None),
    "mixed": (lambda f: f.assign(dose=[1, "a"] * (N // 2)), {}, "kind", "error", "dose", None),
    "true and 1": (lambda f: f.assign(dose=pd.Series([1, True] * (N // 2), dtype=object)), {}, "kind", "error", "dose",
                   None),
    "lists": (lambda f: f.assign(dose=[[1]] * N), {}, "kind", "error", "dose", None),
    "infinite": (lambda f: f.assign(age=f["age"].where(f.index != 4, np.inf)), {}, "magnitude", "error", "age", None),
    "too large": (lambda f: f.assign(age=f["age"].where(f.index != 4, 1e39)), {}, "magnitude", "error", "age", None),
    "far": (lambda f: f.assign(age=f["age"].where(f.index != 4, 1e9)), {}, "far values", "warning", "age", None),
    "constant": (lambda f: f.assign(dose=1), {}, "constant", "warning", "dose", None),
    "constant at a site": (lambda f: at(f, "Celle", "ward", lambda c: "north"), {}, "constant at a site", "warning",
                           "ward", "Celle"),
    "missing at a site": (lambda f: at(f, "Celle", "age", lambda c: np.nan), {"missing": "impute"},
                          "missing at a site", "warning", "age", "Celle"),
    "spelling": (lambda f: f.assign(ward=f["ward"].where(np.arange(N) % 2 == 0, f["ward"].str.upper())), {}, "spelling",
                 "error", "ward", None),
    "class absent": (lambda f: at(f, "Bonn", "ill", lambda c: "no"), {}, "class absent", "warning", "ill", "Bonn"),
    "leak": (lambda f: f.assign(therapy=np.where(f["ill"] == "yes", 1, 0)), {}, "leak", "warning", "therapy", None),
    "leak of a number": (lambda f: f.assign(days=(f["ill"] == "yes") + np.linspace(0, 0.9, N)), {}, "leak", "warning",
                         "days", None),
    "pounds": (lambda f: at(f, "Bonn", "weight", lambda c: c * 2.2046), {}, "units", "warning", "weight", "Bonn"),
    "minutes of the label": (lambda f: at(of_numbers(f), "Bonn", "ill", lambda c: c * 60), {}, "units", "error", "ill",
                             "Bonn"),
    "-999": (lambda f: f.assign(age=f["age"].where(f.index % 80 > 0, -999)), {}, "missing code", "warning", "age",
             None),
    "one 999": (lambda f: f.assign(age=f["age"].where(f.index != 7, 999)), {}, "missing code", "warning", "age", None),
    "days as numbers": (lambda f: f.assign(day=pd.date_range("2024-01-01", periods=N).strftime("%Y%m%d").astype(int)),
                        {}, "dates", "warning", "day", None),
    "999": (lambda f: f.assign(age=f["age"].where(f.index % 80 > 0, 999)), {}, "missing code", "warning", "age", None),
    "9": (lambda f: f.assign(score=np.where(f.index % 80 > 0, f.index % 7 % 5, 9)), {}, "missing code", "warning",
          "score", None),
    "months as numbers": (lambda f: f.assign(month=202401 + np.arange(N) % 12), {}, "dates", "warning", "month", None),
    "a leading zero": (lambda f: f.assign(dose=["041" if i == 7 else str(i % 40) for i in range(N)]), {},
                       "leading zeros", "warning", "dose", None),
    "-999 in the label": (lambda f: of_numbers(f).assign(ill=of_numbers(f)["ill"].where(f.index % 80 > 0, -999.0)), {},
                          "missing code", "warning", "ill", None),
    "9 among classes": (lambda f: f.assign(ill=np.where(f.index % 4 == 0, 9, f["ill"] == "yes")), {}, "missing code",
                        "warning", "ill", None),
    "a label too large": (lambda f: of_numbers(f).assign(ill=of_numbers(f)["ill"].where(f.index != 4, 1e39)), {},
                          "magnitude", "error", "ill", None),
    "a bell in a name": (lambda f: f.assign(site=f["site"].replace("Bonn", "Bo\x07nn")), {}, "spelling", "error", None,
                         None),
    "stay": (lambda f: with_stays(f), {"dates": "days"}, "leak", "warning", None, None),
    "another base rate": (lambda f: at(f, "Bonn", "ill", lambda c: np.where(f.index % 4 == 0, "no", "yes")), {},
                          "base rate", "note", "ill", "Bonn"),
    "months": (lambda f: at(f, "Essen", "age", lambda c: c * 12), {}, "units", "warning", "age", "Essen"),
    "weights": (lambda f: f.assign(sure=np.where(f.index == 3, -1.0, 1.0)), {"weight": "sure"}, "weight", "error",
                "sure", None),
    "no column": (lambda f: f, {"exclude": ["wart"]}, "columns", "error", None, None),
    "no name": (lambda f: f.rename(columns={"crp": "Unnamed: 3"}), {}, "columns", "error", None, None),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_nothing_else(name):
    change, settings, *expected = FAULTS[name]
    frame = change(clean())
    _, findings = check_frame(frame, replace(SETTINGS, **settings))
    reported = {(f.kind, f.severity, f.column, f.site) for f in findings}
    extra = {"class absent": {("few test rows", "warning", "ill", "Bonn")},
             "missing at a site": {("missing", "note", "age", None)}}
    assert tuple(expected) in reported
    assert reported - {tuple(expected)} <= extra.get(name, set())
    assert all(f.message and f.advice for f in findings)


@pytest.mark.parametrize("name", FAULTS)
def test_an_error_is_reported_exactly_if_the_run_refuses_the_table(name):
    change, settings, *_ = FAULTS[name]
    frame, is_refused = change(clean()), False
    options = vars(replace(SETTINGS, **settings))
    try:
        from_frame(frame, **options)
    except InputError:
        is_refused = True
    except UserWarning:
        pass
    _, findings = check_frame(frame, replace(SETTINGS, **settings))
    assert any(f.severity == "error" for f in findings) == is_refused


@pytest.mark.parametrize("seed", range(5))
def test_a_clean_table_has_no_finding(seed):
    view, findings = check_frame(clean(seed=seed), SETTINGS)
    assert not findings
    assert view.sites == SITES


@pytest.mark.parametrize("seed", range(3))
def test_real_patients_at_random_hospitals_have_no_warning_and_a_planted_unit_is_found(seed):
    frame = load_breast_cancer(as_frame=True).frame
    sites = np.random.default_rng(seed).choice(SITES, len(frame))
    frame = frame.assign(site=sites, ill=frame.pop("target").astype(str))
    assert not check_frame(frame, SETTINGS)[1]
    _, findings = check_frame(at(frame, "Celle", "mean radius", lambda c: c / 25.4 * 10), SETTINGS)
    assert [(f.kind, f.column, f.site) for f in findings] == [("units", "mean radius", "Celle")]
    assert findings[0].message.endswith("inches for centimetres?")


def test_far_values_are_those_beside_which_the_others_hardly_differ():
    frame = clean()
    _, findings = check_frame(frame.assign(age=frame["age"].where(~frame.index.isin((4, 9)), 1e9)), SETTINGS)
    assert [(f.message, f.value) for f in findings] == [(
        "column 'age' has 2 values so far from the others that these hardly differ after scaling: 1e+09 in row 4, ...",
        1e9)]
    # With n values one at the distance d makes the standard deviation d/sqrt(n), and the quartiles lie 16 apart.
    spread = np.subtract(*np.quantile(frame["age"], (0.75, 0.25)))
    limit = spread / 0.05 * np.sqrt(N)
    for factor, kinds in ((0.9, []), (1.1, ["far values"])):
        far = frame["age"].where(frame.index != 4, frame["age"].median() + factor * limit)
        assert [f.kind for f in check_frame(frame.assign(age=far), SETTINGS)[1]] == kinds


def test_the_advice_to_exclude_a_column_can_be_pasted():
    names = ["dose", "blood pressure", "smoker ", "a, b", "it's", "Kreatinin µmol/l", "x: y", "true", "9", "- a", "#"]
    settings = [YAML(typ="safe").load(excluding(name)) for name in names]
    assert settings == [{"exclude": [name]} for name in names]
    assert excluding("blood pressure") == "exclude: [blood pressure]"


def test_a_class_without_a_test_row_is_reported_in_words():
    frame = clean()
    view, _ = check_frame(frame, SETTINGS)
    rows = np.flatnonzero((frame["site"] == "Bonn") & (view.split_of == 0))
    one_ill = at(frame, "Bonn", "ill", lambda c: np.where(frame.index == rows[0], "yes", "no"))
    few = next(f for f in check_frame(one_ill, SETTINGS)[1] if f.kind == "few test rows")
    assert few.message == "'Bonn' has no test row of class 'yes', so that its score is uncertain"


def test_all_faults_are_found_at_once():
    frame = at(clean(), "Bonn", "weight", lambda c: c * 2.2046).assign(
        note=[f"patient {i} is well" for i in range(N)], day="2024-05-01", dose=[1, "a"] * (N // 2))
    frame = with_missing(with_missing(frame, "ill", [5]), "age", [8])
    _, findings = check_frame(frame, SETTINGS)
    assert {(f.kind, f.column) for f in findings} == {
        ("units", "weight"), ("free text", "note"), ("dates", "day"), ("kind", "dose"), ("missing", "ill"),
        ("missing", "age")}


def test_rows_in_training_and_test_are_leakage_and_rows_at_two_sites_are_reported():
    _, findings = check_frame(repeated(clean()), SETTINGS)
    assert "leakage" in {f.kind for f in findings}
    view, findings = check_frame(repeated(clean(), site="Bonn"), SETTINGS)
    across = next(f for f in findings if f.kind == "duplicates across sites")
    assert across.value == 2 * (clean()["site"].iloc[:40] != "Bonn").sum()
    assert len(view.index) == N + 40


def test_several_rows_of_a_person_are_reported_and_repeated_quantities_are_not():
    """Text in any order; whole numbers unless each site has a range of its own, as ages at a children's hospital."""
    def persons(frame, **settings):
        return [f.column for f in check_frame(frame, replace(SETTINGS, **settings))[1] if f.kind == "persons"]

    assert persons(visits_of_patients(clean(), "P"), exclude=["code"]) == ["code"]
    assert persons(visits_of_patients(clean(), "P", interleaved=False), exclude=["code"]) == ["code"]
    assert not persons(visits_of_patients(clean(), interleaved=False))
    frame = clean()
    frame = frame.assign(age=frame["age"].round() + 100 * frame["site"].astype("category").cat.codes)
    days = pd.to_datetime("2024-01-01") + pd.to_timedelta(frame["age"], "D")
    assert not persons(frame.assign(day=days, text=days.astype(str)))
    alone = visits_of_patients(clean())
    assert not persons(alone[alone["site"] == "Bonn"])


def test_rows_that_are_equal_by_chance_are_not_reported():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": rng.choice(SITES, N), "a": rng.integers(0, 3, N), "b": rng.integers(0, 4, N),
                          "ill": rng.choice(["no", "yes"], N)})
    assert not check_frame(frame, SETTINGS)[1]


def test_the_splits_are_those_of_the_run():
    frame = clean()
    view, _ = check_frame(frame, SETTINGS)
    data = from_frame(frame, **vars(SETTINGS))
    for k in range(len(data)):
        ages = frame["age"].to_numpy()[(view.site_of == k) & (view.split_of == 2)]
        test = data.party(k, "test")[0][:, data.features.index("age")]
        number = next(c for c in data.encoding.numbers if c.name == "age")
        np.testing.assert_allclose(np.sort(ages), np.sort(test * number.deviation + number.mean), rtol=1e-5)


def test_messages_name_factor_rows_and_levels():
    _, findings = check_frame(at(clean(), "Bonn", "weight", lambda c: c * 2.2046), SETTINGS)
    assert "'weight' at 'Bonn' is 2." in findings[0].message
    assert findings[0].message.endswith("pounds for kilograms?")
    assert findings[0].value == pytest.approx(2.2, rel=0.1)
    _, findings = check_frame(with_missing(clean(), "ill", [5, 6]), SETTINGS)
    assert "rows 5, 6" in findings[0].message
