"""Findings about the tables of a federation: those of a site stay there, the lead has those of the agreed numbers."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from federation.schema_tables import SETTINGS, SITES, agreed, pooled_table, site_tables
from resolvent.data.files.plain_values import read_plain
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.refusals import Refusal
from resolvent.federation.protocol.site_findings import compare_sites
from resolvent.federation.protocol.table_reports import TableReport
from resolvent.federation.site.check import check_site
from resolvent.tables.party_tables import from_frame


def reports(frame, settings=SETTINGS, min_cell=5):
    return {site: read_plain(TableReport, json.loads(json.dumps(table.report().plain())), site)
            for site, table in site_tables(frame, settings, min_cell=min_cell).items()}


def test_sites_with_ordinary_differences_have_no_finding():
    frames = [pd.concat([pooled_table(seed), pooled_table(seed + 20)]) for seed in range(20)]
    assert not [finding for frame in frames for finding in compare_sites(reports(frame, min_cell=3))]


def test_another_unit_is_seen_in_the_means_and_deviations():
    frame = pooled_table().assign(age=np.random.default_rng(1).normal(60, 10, 90))
    frame["age"] = frame["age"].where(frame["site"] != "celle", 12 * frame["age"])
    finding, = compare_sites(reports(frame))
    assert (finding.kind, finding.column, finding.site) == ("units", "age", "celle")
    assert "months for years" in finding.message


def test_a_class_that_is_absent_at_a_site_is_named():
    frame = pooled_table()
    frame["ill"] = frame["ill"].where(frame["site"] != "berlin", "no")
    finding, = compare_sites(reports(frame))
    assert (finding.kind, finding.site, finding.value) == ("class absent", "berlin", "yes")


def test_a_mean_of_few_rows_is_not_compared():
    frame = pooled_table()
    frame["age"] = frame["age"].where((frame["site"] != "celle") | (np.arange(90) < 54), np.nan) * np.where(
        frame["site"] == "celle", 12, 1)
    assert not list(compare_sites(reports(frame, replace(SETTINGS, missing="impute"), min_cell=5)))


def test_dates_and_rare_levels_are_agreed_on():
    frame = pooled_table().assign(day=pd.date_range("2024-01-01", periods=90).astype(str),
                                  code=["usual"] * 60 + ["a", "b", "c"] * 10)
    settings = replace(SETTINGS, dates="parts", rare="other", rare_count=20, unseen="other")
    tables = site_tables(frame, settings)
    encoding, conflicts = agreed(tables, settings)
    assert not conflicts
    assert encoding.unseen == "other"
    pooled = from_frame(frame, "site", "ill", test=0.3, validation=0.1, seed=4, dates="parts", rare="other",
                        rare_count=20, unseen="other")
    assert encoding.dates == pooled.encoding.dates
    assert set(encoding.features) >= {"day year", "day month", "day weekday", "code=other", "code=usual"}
    assert "code=a" not in encoding.features
    for site in SITES:
        x = tables[site].encode(encoding).x
        rows = frame[frame["site"] == site]
        assert x[:, encoding.features.index("code=other")].sum() == (rows["code"] != "usual").sum()
        expected = encoding.encode(rows).x
        np.testing.assert_allclose(np.sort(x, axis=0), np.sort(expected, axis=0), atol=1e-6)


def test_a_hidden_level_is_other_if_there_are_rare_levels_whatever_the_server_names():
    frame = pooled_table().drop(columns="ward").assign(code=["usual"] * 60 + ["a"] * 26 + ["hidden"] * 4)
    settings = replace(SETTINGS, rare="other", rare_count=20)
    tables = site_tables(frame, settings, min_cell=5)
    encoding, _ = agreed(tables, settings)
    column = next(c for c in encoding.categories if c.name == "code")
    assert (column.levels, column.rare) == (("other", "usual"), ("a",))
    assert tables["celle"].encode(encoding).x[:, encoding.features.index("code=other")].sum() == 30


def test_a_site_sees_all_findings_about_its_own_table(tmp_path):
    frame = pooled_table().query("site == 'celle'").drop(columns="site").assign(day="2024-05-01", code=range(40))
    frame["ill"] = ["yes"] * 3 + ["no"] * 37
    frame["age"] = frame["age"].where(frame["ward"] != "east")
    frame.rename(columns={"pulse": "beats"}).to_csv(tmp_path / "celle.csv", index=False)
    (tmp_path / "mine.yaml").write_text("data: {label: ill, exclude: [only elsewhere]}\nmodel: logistic\nrounds: 1\n"
                                        "solver: {name: SGD, learning_rate: 0.1}\nalgorithms: [fedavg]\n")
    file = SiteFile(table=str(tmp_path / "celle.csv"), columns={"pulse": "beats"}, folder=tmp_path)
    lines = []
    with pytest.raises(Refusal):  # the first error alone, as the federation would see its code
        lines.extend(check_site(file, "celle", tmp_path / "mine.yaml"))
    text = "\n".join(lines)
    for part in ("error: column 'day' holds dates", "error: column 'age' has",
                 "error: the class 'yes' has 3 rows, fewer than min_cell 5",
                 "warning: column 'constant' has one value"):
        assert part in text
    assert "elsewhere" not in text
