"""Descriptions over sites: equal to pandas where all is told, and no small cell follows from what is printed."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog

import resolvent as rv
from resolvent.comparisons.description.description import Description
from resolvent.comparisons.description.disclosure import bounds_of_counts, hidden_cells, joined_levels, told_rows
from resolvent.errors import InputError


def visits(rows=300, seed=0):
    """Patients of three hospitals, with rare levels, few missing values and a rare yes."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "hospital": rng.choice(["Bonn", "Essen", "Ulm"], rows, p=[0.2, 0.3, 0.5]),
        "arm": rng.choice(["control", "low", "high"], rows, p=[0.5, 0.45, 0.05]), "age": rng.normal(50, 10, rows),
        "visits": rng.poisson(2, rows), "ward": rng.choice(["A", "B", "C", "D"], rows, p=[0.5, 0.3, 0.17, 0.03]),
        "ill": rng.random(rows) < 0.06})
    frame.loc[rng.random(rows) < 0.02, "age"] = np.nan
    frame["ward"] = frame["ward"].where(rng.random(rows) > 0.03)
    return frame


def cell(described, **keys):
    table = described.table
    for name, value in keys.items():
        table = table[table[name] == value]
    assert len(table) == 1, keys
    return table.iloc[0]


@pytest.mark.parametrize("by", [None, "arm"])
def test_without_small_cells_to_hide_it_is_what_pandas_says(by):
    frame = visits()
    described = rv.describe(frame, party="hospital", by=by, min_cell=1, quantiles=[0.1, 0.5])
    assert described.table["is_exact"].all()
    groups = ["all"] if by is None else ["control", "high", "all"]
    for site, group in itertools.product(["all sites", "Ulm"], groups):
        rows = frame if site == "all sites" else frame[frame["hospital"] == site]
        rows = rows if group == "all" else rows[rows["arm"] == group]
        at = {"site": site, "group": group}
        assert cell(described, **at, column="", statistic="n")["value"] == len(rows)
        for name in ("age", "visits"):
            expected = {"n": rows[name].count(), "missing": rows[name].isna().sum(), "mean": rows[name].mean(),
                        "sd": rows[name].std()}
            for statistic, value in expected.items():
                found = cell(described, **at, column=name, statistic=statistic)["value"]
                assert found == pytest.approx(value, rel=1e-12, abs=1e-12)
            for quantile in (0.1, 0.5):
                found = cell(described, **at, column=name, statistic=f"{100 * quantile:g}%")
                below, value, above = (rows[name].quantile(quantile, interpolation=kind)
                                       for kind in ("lower", "linear", "higher"))
                assert found["low"] <= value <= found["high"]
                assert found["high"] - found["low"] <= above - below + frame[name].std() / 8
        for level, count in rows["ward"].fillna("(missing)").value_counts().items():
            assert cell(described, **at, column="ward", level=level, statistic="count")["value"] == count
            assert cell(described, **at, column="ward", level=level, statistic="share")["value"] == pytest.approx(
                count / len(rows), rel=1e-12)


def most_rows(described, frame, site, column, smallest):
    """For each small cell of a column by arms at a site: (smallest, largest) number of rows that the printed numbers
    allow, and whether linear algebra alone determines it. The unknowns are the rows of each arm and level."""
    rows = frame[frame["hospital"] == site]
    truth = pd.crosstab(rows["arm"], rows[column].fillna("(missing)").astype(str))
    arms, levels = [*truth.index], [*truth.columns]
    told = described.table[(described.table["site"] == site) & described.table["column"].isin(["", column])
                           & described.table["statistic"].isin(["n", "count"])]
    number = {(line.column, line.level, line.group): line for line in told.itertuples()}
    equations = []

    def joined(of_column, name, names):
        """The names behind a printed one: those that are told nowhere are behind ``(not told)``."""
        if name != "(not told)":
            return [name]
        if of_column == "":
            return [a for a in arms if ("", "", a) not in number or not number["", "", a].is_exact]
        return [v for v in names if (column, v, "all") not in number or not number[column, v, "all"].is_exact]

    for (of_column, level, group), line in number.items():
        if not line.is_exact:
            continue
        of_arms = arms if group == "all" else joined("", group, arms)
        of_levels = levels if of_column == "" else joined(column, level, levels)
        if not of_arms or not of_levels or not {*of_arms} <= {*arms} or not {*of_levels} <= {*levels}:
            assert line.value == 0
            continue
        row = np.zeros(truth.shape)
        row[np.ix_([arms.index(a) for a in of_arms], [levels.index(v) for v in of_levels])] = 1
        assert row.ravel() @ truth.to_numpy().ravel() == line.value, (of_column, level, group)
        equations.append((row.ravel(), line.value))
    left, right = np.array([row for row, _ in equations]), np.array([value for _, value in equations], float)
    kernel = np.eye(left.shape[1]) - np.linalg.pinv(left) @ left
    for place, count in enumerate(truth.to_numpy().ravel()):
        if 0 < count < smallest:
            goal = np.eye(left.shape[1])[place]
            bounds = (0, None)
            most = -linprog(-goal, A_eq=left, b_eq=right, bounds=bounds).fun
            yield count, most, kernel[place, place] < 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_no_small_cell_can_be_computed_from_all_that_is_printed(seed):
    frame, small = visits(seed=seed), 0
    described = rv.describe(frame, party="hospital", by="arm")
    for site, column in itertools.product(["Bonn", "Essen", "Ulm"], ["ward", "ill"]):
        for count, most, is_determined in most_rows(described, frame, site, column, 5):
            assert not is_determined
            assert most >= 5 - 1e-6, (site, column, count)
            small += 1
    assert small > 3
    table = described.table
    counts = table[table["statistic"].isin(["n", "count", "missing"])]["value"]
    assert not ((counts > 0) & (counts < 5)).any()
    both = table[table["statistic"].isin(["n", "count", "missing"])]
    sums = both[both["site"] != "all sites"].groupby(["column", "level", "statistic", "group"])["value"].sum()
    together = both[both["site"] == "all sites"].set_index(["column", "level", "statistic", "group"])["value"]
    for key, value in together.items():  # the numbers of all sites say nothing that those of the sites do not say
        assert value == sums[key]


def test_the_attack_finds_the_cell_of_a_table_without_secondary_suppression():
    counts = np.array([[3, 20], [7, 40]])
    # Totals and one cell.
    left = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 1]], float)
    most = -linprog([-1, 0, 0, 0], A_eq=left, b_eq=left @ counts.ravel(), bounds=(0, None)).fun
    assert most == pytest.approx(3)
    assert hidden_cells(counts, 5).all()


@pytest.mark.parametrize("smallest", [3, 5, 10])
def test_a_small_cell_of_a_table_with_known_totals_can_be_a_large_one(smallest):
    rng, seen = np.random.default_rng(smallest), 0
    for _ in range(60):
        counts = rng.poisson(rng.choice([1, 6, 30], (rng.integers(1, 5), 1)) * rng.choice([0.3, 1, 3],
                                                                                       (1, rng.integers(1, 5))))
        for axis in (1, 0):  # as a site does: small rows and columns are joined
            joined = joined_levels(counts.sum(axis=axis), smallest)
            parts = np.split(np.moveaxis(counts, 1 - axis, 0), [])[0]
            counts = np.moveaxis(np.vstack([parts[~joined], parts[joined].sum(axis=0)]), 0, 1 - axis)
        if any(0 < total < smallest for axis in (0, 1) for total in counts.sum(axis=axis)):
            continue  # the table has too few rows
        hidden = hidden_cells(counts, smallest)
        n, m = counts.shape
        left = np.array([*(np.kron(np.eye(n)[i], np.ones(m)) for i in range(n)),
                         *(np.kron(np.ones(n), np.eye(m)[j]) for j in range(m)),
                         *np.eye(n * m)[~hidden.ravel()]])
        for place in np.flatnonzero((counts > 0) & (counts < smallest)):
            goal = -np.eye(n * m)[place]
            # Hidden cells have a row at least, as far as zeros are told.
            lower = [(1 if hidden.ravel()[i] and not hidden.all() else 0, None) for i in range(n * m)]
            found = linprog(goal, A_eq=left, b_eq=left @ counts.ravel(), bounds=lower)
            assert -found.fun >= smallest - 1e-6
            seen += 1
    assert seen > 10


def test_levels_are_joined_until_none_is_known():
    assert not joined_levels(np.array([40, 5, 0]), 5).any()
    assert joined_levels(np.array([40, 2, 3]), 5).tolist() == [True, True, True]  # 2 + 3 rows would both be small
    assert joined_levels(np.array([2]), 5).tolist() == [True]


def test_values_are_left_out_so_that_the_missing_ones_are_not_few():
    x = np.arange(20.0)
    assert told_rows(x, 5).all()
    x[[3, 7]] = np.nan
    assert np.flatnonzero(~told_rows(x, 5)).tolist() == [3, 7, 9, 10, 11]  # the median is 10.5
    assert (told_rows(x[::-1], 5) == told_rows(x, 5)[::-1]).all()
    assert not told_rows(np.array([np.nan] * 6 + [1.0] * 4), 5).any()
    assert not told_rows(np.repeat([0.0, 1.0], [30, 4]), 5).any()  # their sum would count the four
    assert told_rows(np.repeat([0.0, 1.0], [30, 5]), 5).all()


def test_bounds_of_a_histogram_have_enough_rows_between_the_edges_that_are_told():
    rng = np.random.default_rng(0)
    x = np.sort(rng.normal(size=57))
    up_to = np.searchsorted(x, np.linspace(-3, 3, 50), side="right")
    low, high = bounds_of_counts(up_to, 57, 5)
    assert (low <= up_to).all()
    assert (up_to <= high).all()
    known = np.unique(low[low == high])
    assert len(known) > 5
    assert (np.diff([0, *known, 57]) >= 5).all()
    assert {*low} <= {0, *known}
    assert {*high} <= {*known, 57}
    assert all((bounds == up_to).all() for bounds in bounds_of_counts(up_to, 57, 1))


def test_a_description_in_every_form(tmp_path):
    frame = visits()
    frame.to_csv(tmp_path / "visits.csv", index=False)
    described = rv.describe(tmp_path / "visits.csv", party="hospital", by="arm", columns=["age", "ward"])
    text = described.to_text()
    assert "all sites, by arm (*: without what a site does not tell, such as counts below 5)" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert r"\begin{tabular}{lccccc}" in described.to_text("latex")
    assert described.to_text("markdown").startswith("|  | control | low | high | \\(not told\\) | all |") or (
        described.to_text("markdown").startswith("|"))
    report = described.save(tmp_path / "out")
    assert "<th>control</th>" in report.read_text("utf-8")
    again = Description.read(tmp_path / "out")
    pd.testing.assert_frame_equal(again.table, described.table)
    with pytest.raises(InputError, match="has files"):
        described.save(tmp_path / "out")


def test_the_command_describes_a_table_and_a_file(tmp_path, call):
    visits().assign(day="2020-01-01").to_csv(tmp_path / "visits.csv")  # the column of row numbers has no name
    path = str(tmp_path / "visits.csv")
    printed = call("describe", path, "--party", "hospital", "--by", "arm", "--out", "out", cwd=tmp_path).out
    assert "300 rows of 3 sites." in printed
    assert "On the page and in description.csv (--out FOLDER): the table of each site." in printed
    assert "\nBonn" not in printed
    assert "Not described: Unnamed: 0 (no name), day (dates)." in printed
    assert (tmp_path / "out" / "report.html").is_file()
    (tmp_path / "mine.yaml").write_text(json.dumps({
        "data": {"table": path, "party": "hospital"}, "describe": {"columns": ["age"], "min_cell": 1}}))
    numbers = json.loads(call("describe", "mine.yaml", "--format", "json", cwd=tmp_path).out)["numbers"]
    assert next(line["value"] for line in numbers if line["statistic"] == "mean") == pytest.approx(
        visits()["age"].mean(), rel=1e-12)
    assert call("describe", "mine.yaml", "--format", "markdown", cwd=tmp_path).out.startswith("|")


def test_the_description_of_many_columns_fits_a_screen(tmp_path, call):
    frame = visits().assign(**{f"lab {k}": np.random.default_rng(k).normal(size=300) for k in range(30)})
    frame.to_csv(tmp_path / "visits.csv", index=False)
    lines = call("describe", "visits.csv", "--party", "hospital", cwd=tmp_path).out.splitlines()
    assert len(lines) < 50
    rest = rv.describe(frame, party="hospital").tables()[0].splitlines()[40:]
    assert lines[-1].endswith(f": {len(rest)} more lines and the table of each site.")
    assert rest[0] not in lines


@pytest.mark.parametrize(("change", "settings", "words"), [
    (lambda f: f, {"by": "arms"}, "no column 'arms'"), (lambda f: f, {"columns": ["age", "age"]}, "named twice"),
    (lambda f: f, {"quantiles": [2.0]}, "quantiles"), (lambda f: f, {"min_cell": 0}, "min_cell"),
    (lambda f: f.assign(hospital=np.where(f.index < 3, "Kiel", f["hospital"])), {}, "'Kiel' has 3 rows"),
    (lambda f: f.assign(day=pd.Timestamp("2020-01-01")), {"columns": ["day"]}, "dates"),
    (lambda f: f.assign(age=f["age"].where(f.index > 0, np.inf)), {}, "row 0, column 'age': the value is infinite"),
    (lambda f: f.assign(age=f["age"].where(f.index > 0, 1e39)), {}, "row 0, column 'age': .* or too large"),
    (lambda f: f[:0], {}, "the table has no rows"), (lambda f: f.assign(arm="all"), {"by": "arm"}, "the level 'all'"),
    (lambda f: f.replace("Ulm", "all sites"), {}, "a site is named 'all sites', which a description uses for all"),
    (lambda f: f.assign(ward="(not told)"), {}, "give the level another name")])
def test_what_cannot_be_described_is_refused(change, settings, words):
    with pytest.raises(InputError, match=words):
        rv.describe(change(visits()), party="hospital", **settings)


@pytest.mark.parametrize("command", ["describe", "regress", "survival"])
def test_a_plan_on_the_table_of_an_experiment_reads_it_as_the_experiment_does(command, call, tmp_path):
    """Missing codes, texts, separator and excluded columns of an experiment hold for its other commands."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"hospital": ["a", "b"] * 60, "id": np.arange(120), "icd": rng.choice([250, 401], 120),
                          "age": rng.normal(60, 9, 120).round(1), "days": rng.integers(1, 400, 120),
                          "ill": rng.integers(0, 2, 120)})
    frame.loc[:11, "age"] = -999
    frame.to_csv(tmp_path / "t.csv", index=False, sep="|")
    (tmp_path / "mine.yaml").write_text(json.dumps({
        "data": {"table": str(tmp_path / "t.csv"), "party": "hospital", "label": "ill", "separator": "|",
                 "missing": ["impute", -999], "text": ["icd"], "exclude": ["id"]},
        "model": "logistic", "solver": {"name": "SGD", "learning_rate": 0.1}, "algorithms": {"alone": "local"}}))
    options = {"describe": [], "regress": ["--formula", "ill ~ age + icd"],
               "survival": ["--time", "age", "--event", "ill"]}[command]
    found = json.loads(call(command, "mine.yaml", *options, "--format", "json", cwd=tmp_path).out)
    text = json.dumps(found)
    if command == "describe":
        means = {row["column"]: row["value"] for row in found["numbers"] if row["statistic"] == "mean"}
        assert {*means} == {"age", "days", "ill"}
        assert 55 < means["age"] < 65
        assert {row["column"] for row in found["numbers"]} - {*means} >= {"icd"}
        assert "id" not in {row["column"] for row in found["numbers"]}
    elif command == "regress":
        assert "icd=401" in text or "icd[T.401]" in text
        assert found["rows"] == 108
    else:
        assert sum(found["sites"].values()) == 108
