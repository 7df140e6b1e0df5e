"""The encoding that sites agree on from sums is that of the pooled rows, and conflicts are named."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from federation.schema_tables import SETTINGS, SITES, agreed, pooled_table, site_tables
from resolvent.data.files.plain_values import read_plain
from resolvent.data.samples import split_order
from resolvent.errors import InputError
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.limits import NO_LIMITS, Limits
from resolvent.federation.protocol.names import VERSIONS
from resolvent.federation.protocol.refusals import Refusal, outgoing
from resolvent.federation.protocol.row_weights import agree_weights
from resolvent.federation.protocol.schema import agree, misfits
from resolvent.federation.protocol.table_reports import TableReport
from resolvent.federation.site.table import SiteTable, read_site_table
from resolvent.tables.party_tables import from_frame
from resolvent.tables.table_options import TableOptions


def test_scaling_from_sums_is_that_of_the_pooled_rows():
    frame = pooled_table()
    data = from_frame(frame, "site", "ill", test=0.3, validation=0.1, seed=4)
    tables = site_tables(frame)
    encoding, conflicts = agreed(tables)
    assert not conflicts
    assert encoding.classes == data.classes
    assert encoding.features == data.features
    for mine, pooled in zip(encoding.numbers, data.encoding.numbers, strict=True):
        np.testing.assert_allclose([mine.mean, mine.deviation], [pooled.mean, pooled.deviation], rtol=1e-13)
        assert mine.low is mine.high is None  # a smallest value is the value of one row
    for site, table in tables.items():
        samples = table.encode(encoding)
        for split in ("train", "validation", "test"):
            (x, y), (pooled_x, pooled_y) = samples.party(0, split), data.party(site, split)
            np.testing.assert_allclose(x, pooled_x, atol=1e-6)
            np.testing.assert_array_equal(y, pooled_y)


@pytest.mark.parametrize("scale", ["standard", "none"])
def test_missing_numbers_become_the_pooled_mean(scale):
    frame = pooled_table()
    frame.loc[frame.index % 7 == 0, "age"] = np.nan
    frame.loc[3, "ward"] = None
    settings = replace(SETTINGS, missing="indicate", scale=scale)
    tables = site_tables(frame, settings)
    encoding, _ = agreed(tables, settings)
    data = from_frame(frame, "site", "ill", test=0.3, validation=0.1, seed=4, missing="indicate", scale=scale)
    assert encoding.features == data.features
    assert encoding.categories == data.encoding.categories
    x = np.concatenate([t.encode(encoding).party(0)[0] for t in tables.values()])
    age = x[:, encoding.features.index("age")]
    train = [t._frame["age"].to_numpy()[t._train] for t in tables.values()]
    mean = np.nanmean(np.concatenate(train))
    filled = np.where(np.isnan(np.concatenate(train)), mean, np.concatenate(train))
    expected = (filled - filled.mean()) / filled.std() if scale == "standard" else filled
    np.testing.assert_allclose(age, expected, rtol=1e-5, atol=1e-6)


def test_regression_and_integer_classes_have_the_order_of_the_pooled_table():
    frame = pooled_table()
    frame["ill"] = np.arange(90) % 12
    assert agreed(site_tables(frame))[0].classes == from_frame(frame, "site", "ill").classes == tuple(
        map(str, range(12)))
    frame["ill"] = frame["age"] / 3
    encoding, _ = agreed(site_tables(frame))
    assert (encoding.task, encoding.classes) == ("regression", ())


# Levels that the experiment lists

LEVELS = {"ward": ["west", "south", "east"], "ill": ["yes", "no", "perhaps"]}
LISTING = replace(SETTINGS, levels=LEVELS)


def test_listed_levels_are_those_of_the_encoding_and_no_other_is_read_from_the_rows():
    """Rows of the level north, which is not listed, have none, as in a simulation; the site does not say that it has
    any."""
    frame = pooled_table()
    tables = site_tables(frame, LISTING)
    assert "north" not in json.dumps([table.report().plain() for table in tables.values()])
    encoding, conflicts = agreed(tables, LISTING)
    data = from_frame(frame, "site", "ill", test=0.3, validation=0.1, seed=4, levels=LEVELS)
    assert not conflicts
    assert encoding.classes == data.classes == ("no", "perhaps", "yes")
    assert encoding.features == data.features
    assert encoding.features[-3:] == ("ward=east", "ward=south", "ward=west")
    for site, table in tables.items():
        x, y = table.encode(encoding).party(0, "train")
        pooled_x, pooled_y = data.party(site, "train")
        np.testing.assert_allclose(x, pooled_x, atol=1e-6)
        np.testing.assert_array_equal(y, pooled_y)
        assert (x[:, -3:].sum(axis=1) == 0).any()


@pytest.mark.parametrize("guess", ["icu", "absent"])
def test_listed_levels_reveal_nothing_beyond_the_first_answer(guess, tmp_path):
    """The lead lists guesses and leaves levels out: a hidden level looks as an absent one, and counts stay the same."""
    frame = pd.DataFrame({"ward": ["east"] * 60 + ["west"] * 40 + ["icu"] * 3, "age": np.arange(103.0) % 9,
                          "ill": ["no", "yes"] * 51 + ["no"]})
    frame.to_csv(tmp_path / "patients.csv", index=False)
    site = SiteFile(table=str(tmp_path / "patients.csv"), limits=Limits())

    def answer(levels):
        settings = TableOptions("site", "ill", levels=levels)
        (ward,) = [column for column in read_site_table(site, settings, "aachen", 0, folder=tmp_path / VERSIONS)
                   .report().columns if column.name == "ward"]
        return ward

    first = answer(None).levels
    assert {*first} == {"east", "west"}
    assert answer({"ward": ["east", guess]}).levels == {"east": first["east"], guess: 0}
    assert not answer({"ward": ["east", "west"]}).has_hidden
    assert answer({"ward": [guess, "west", "east"]}).levels == {**first, guess: 0}


def test_lists_that_do_not_fit_are_refused_by_column():
    frame = pooled_table()
    for levels, column, match in (
            ({"ill": ["no", "perhaps"]}, "ill", "has the class 'yes', which the experiment does not list"),
            ({"age": ["a"]}, "age", "no column of text"), ({"ward": ["a", "a"]}, "ward", "list each level once"),
            ({"street": ["a"]}, "street", "has no column 'street'")):
        with pytest.raises(Refusal, match=match) as refused:
            site_tables(frame, replace(SETTINGS, levels=levels))
        assert refused.value.column == column
    for levels, match in (({"age": ["a"]}, "no column of text"), ({"ill": ["no"]}, "not among the classes"),
                          ({"ward": []}, "at least one")):
        with pytest.raises(InputError, match=match):
            from_frame(frame, "site", "ill", levels=levels)
    with pytest.raises(InputError, match="not both"):
        from_frame(frame, "site", "ill", levels=LEVELS, rare="other")


def test_conflicts_name_the_site_and_the_column():
    frame = pooled_table()
    parts = {site: frame[frame["site"] == site].reset_index(drop=True) for site in SITES}
    parts["berlin"] = parts["berlin"].drop(columns="age").assign(weight=1.0)
    parts["celle"] = parts["celle"].assign(pulse="high", ill=1)
    tables = {site: SiteTable(part, SETTINGS, site, k) for k, (site, part) in enumerate(parts.items())}
    encoding, conflicts = agreed(tables)
    assert encoding is None
    starts = [line.split(":")[0] for line in conflicts]
    assert starts == ["berlin", "celle", "aachen, celle", "celle"]
    for line, column in zip(conflicts, ["age", "pulse", "weight", "ill"], strict=True):
        assert repr(column) in line


def test_whole_numbers_of_a_label_beside_decimal_ones_ask_for_the_task():
    """A site whose stays are whole days, and one that writes them as 1.0, are read as one column by a simulation."""
    frame = pooled_table()
    frame["ill"] = np.where(frame["site"] == "celle", frame["pulse"], frame["pulse"] + 0.5)
    tables = site_tables(frame)
    tables["celle"] = SiteTable(frame[frame["site"] == "celle"].astype({"ill": int}), SETTINGS, "celle", 2, NO_LIMITS)
    assert agreed(tables).conflicts == (
        "celle: the label 'ill' holds integer values, and decimal values at most sites: set task: regression if it is "
        "a quantity, or set text: [ill] for all sites if it has classes, or convert it",)
    settings = replace(SETTINGS, task="regression")
    tables = {site: SiteTable(frame[frame["site"] == site].astype({"ill": int if site == "celle" else float}), settings,
                              site, k, NO_LIMITS) for k, site in enumerate(SITES)}
    encoding, _ = agreed(tables, settings)
    assert encoding.labels[0].kind == "decimal"
    assert sorted(np.concatenate([table.encode(encoding).y for table in tables.values()])) == sorted(frame["ill"])


def test_cells_mean_the_same_at_all_sites_and_in_a_simulation(tmp_path):
    """A code among numbers, leading zeros, spellings and the codes of one site: agreed on, or refused with advice."""
    frame = pooled_table()
    code = np.where(frame["pulse"] % 2 == 0, "250", "401")
    for other in ("V45", "0401"):
        icd = np.where((frame["site"] == "celle") & (code == "250"), other, code)
        conflicts = agreed(site_tables(frame.assign(icd=icd))).conflicts
        assert [line.split(":")[0] for line in conflicts] == ["celle"]
        assert "set text: [icd] for all sites if it is a category" in conflicts[0]
        settings = replace(SETTINGS, text=["icd"])
        encoding = agreed(site_tables(frame.assign(icd=icd), settings), settings).encoding
        simulated = from_frame(frame.assign(icd=icd), "site", "ill", text=["icd"])
        assert encoding.categories[-1].levels == simulated.encoding.categories[-1].levels == tuple(sorted({*icd}))
    spelt = frame.assign(ward=frame["ward"].where(frame["site"] != "celle", frame["ward"].str.title()))
    assert any("'East' and 'east' differ only" in line for line in agreed(site_tables(spelt)).conflicts)

    part = frame[frame["site"] == "celle"].drop(columns="site")
    part.assign(pulse=part["pulse"].where(part["pulse"] > 55, 999)).to_csv(tmp_path / "table.csv", index=False)
    settings = replace(SETTINGS, missing="impute")
    site = SiteFile(table=str(tmp_path / "table.csv"), columns={"rate": "pulse"}, missing={"pulse": [999.0]})
    report = {c.name: c for c in read_site_table(site, settings, "celle", 2).report().columns}
    assert report["rate"].has_missing
    assert report["rate"].mean < 90


@pytest.mark.parametrize("is_refused", [False, True])
def test_texts_among_numbers_are_judged_alike_whatever_rows_train(is_refused):
    """One table is judged by all of its rows, and sites name levels with the numbers of their training rows.

    Either all training rows have numbers, and a tenth of all rows a text; or half of all rows have one of 18 numbers,
    and fewer of the training rows. No site alone has reason to refuse its rows.
    """
    frame, grades = pooled_table(), []
    for number, rows in enumerate((20, 30, 40)):
        order, values = split_order(rows, number, SETTINGS.seed), np.full(rows, "word", object)
        if is_refused:
            held_out = order[-rows // 2:]
            values[held_out] = [str(10 * number + i % 6) for i in range(rows // 2)]
            values[np.setdiff1d(order, held_out)[:2]] = "and", "another"
        else:
            values[order[:-rows // 10]] = [str(i % 4) for i in range(rows - rows // 10)]
        grades.append(values)
    frame["grade"] = np.concatenate(grades)
    encoding, conflicts = agreed(site_tables(frame))
    if is_refused:
        message = "column 'grade': .* values are numbers, and '(word|and|another)'.* and others are not"
        assert re.search(message, conflicts[0])
        with pytest.raises(InputError, match=message):
            from_frame(frame, "site", "ill")
    else:
        assert not conflicts
        assert encoding.features == from_frame(frame, "site", "ill").features


def test_a_column_that_only_one_site_fills_is_text_everywhere_if_it_is_set():
    """Sites whose column is empty cannot tell its kind; ``text`` tells it."""
    frame = pooled_table()
    frame["finding"] = np.where(frame["site"] == "celle", np.where(frame["pulse"] % 2 == 0, "left", "right"), None)
    settings = replace(SETTINGS, missing="impute")
    assert "set text: [finding] for all sites" in agreed(site_tables(frame, settings), settings).conflicts[0]
    settings = replace(settings, text=["finding"])
    encoding, conflicts = agreed(site_tables(frame, settings), settings)
    assert not conflicts
    assert encoding.categories[-1].levels == ("left", "right")
    simulated = from_frame(frame, "site", "ill", text=["finding"], missing="impute").encoding
    assert simulated.categories[-1].levels == ("left", "right")
    part = frame[frame["site"] == "aachen"].reset_index(drop=True)
    columns = site_tables(part, settings, ("aachen",))["aachen"].encode(encoding).x
    assert np.isfinite(columns).all()


def test_a_rare_level_is_not_named_and_not_used_whatever_the_server_guesses():
    """The answer of the site and its inputs are the same, whether or not the encoding has the hidden level."""
    frame = pooled_table()
    frame.loc[0, "ward"] = secret = "the mayor's room"
    tables = site_tables(frame, min_cell=3)
    reports = {site: table.report() for site, table in tables.items()}
    assert "mayor" not in json.dumps([report.plain() for report in reports.values()])
    assert [report.columns[4].has_hidden for report in reports.values()] == [True, False, False]
    encoding, _ = agree(reports, SETTINGS)
    ward = encoding.categories[0]
    guessed = replace(encoding, categories=(replace(ward, levels=(*ward.levels, secret)),))
    wrong = replace(encoding, categories=(replace(ward, levels=(*ward.levels, "another guess")),))
    x, x_guessed, x_wrong = (tables["aachen"].encode(sent).x for sent in (encoding, guessed, wrong))
    np.testing.assert_array_equal(x_guessed, x_wrong)
    np.testing.assert_array_equal(x_guessed[:, :-1], x)
    of_ward = [encoding.features.index(name) for name in ward.features]
    assert np.sort(x[:, of_ward].sum(axis=1)).tolist() == [0.0] + [1.0] * 19


def test_a_rare_class_is_refused_before_anything_leaves():
    """The refusal does not depend on an encoding, and says neither the class nor its number of rows."""
    frame = pooled_table()
    frame.loc[[0, 1], "ill"] = "plague"
    with pytest.raises(Refusal) as refused:
        site_tables(frame, min_cell=3)
    assert "plague" in str(refused.value)  # for the site itself
    assert outgoing(refused.value, "aachen") == {"code": "rare", "column": "ill", "limits": {}}


def test_no_mean_over_few_values_is_reported():
    """With two values, their mean and sum of squares give both of them."""
    frame = pooled_table()
    frame.loc[2:19, "age"] = np.nan
    settings = replace(SETTINGS, missing="impute")
    tables = site_tables(frame, settings, min_cell=5)
    reports = {site: table.report() for site, table in tables.items()}
    few = reports["aachen"].columns[0]
    assert (few.name, few.count, few.mean, few.squares) == ("age", 0, 0.0, 0.0)
    assert all(reports[site].columns[0].count > 5 for site in ("berlin", "celle"))
    encoding, _ = agree(reports, settings)
    others = np.concatenate([t._frame["age"].to_numpy()[t._train] for t in list(tables.values())[1:]])
    assert encoding.numbers[0].mean == pytest.approx(others.mean(), rel=1e-12)


def test_a_column_without_values_is_a_conflict():
    frame = pooled_table()
    frame["age"] = np.nan
    settings = replace(SETTINGS, missing="impute")
    assert "at no site as many values" in agreed(site_tables(frame, settings), settings).conflicts[0]


@pytest.mark.parametrize("content", [
    None, [], {}, {"rows": {}, "columns": [{}], "label": {}},
    {"rows": {"train": float("nan")}, "columns": [], "label": {"kind": "text", "classes": {}}}])
def test_a_reply_that_is_no_report_is_refused(content):
    with pytest.raises(InputError, match="no report"):
        read_plain(TableReport, content, "the site sent no report on its table")


def test_a_missing_column_says_how_the_site_can_name_it():
    with pytest.raises(InputError, match=r"columns: \{ill: NAME\}"):
        SiteTable(pd.DataFrame({"a": [1.0]}), SETTINGS, "aachen", 0)


@pytest.mark.parametrize("class_weight", [None, "balanced", "balanced_per_party", {"no": 1.0, "yes": 3.0}], ids=str)
def test_weights_from_sums_are_those_of_the_pooled_rows(class_weight):
    frame = pooled_table().assign(sure=np.random.default_rng(1).uniform(0.5, 2, 90))
    data = from_frame(frame, "site", "ill", test=0.3, validation=0.1, seed=4, weight="sure")
    data = data if class_weight is None else data.with_class_weights(class_weight)
    settings = replace(SETTINGS, weight="sure")
    tables = site_tables(frame, settings)
    encoding, _ = agreed(tables, settings)
    reports = {site: table.report(with_weights=True) for site, table in tables.items()}
    factors = agree_weights({site: r.labels[0].weights for site, r in reports.items()},
                            {site: r.rows["train"] for site, r in reports.items()}, SITES, class_weight)
    weights = [tables[site].encode(encoding, factors[site]).weights for site in SITES]
    np.testing.assert_allclose(np.concatenate(weights), data.weights, rtol=1e-6)
    assert tables["aachen"].report().labels[0].weights is None  # nothing leaves that the experiment does not need


def test_a_class_without_a_weight_is_named():
    with pytest.raises(InputError, match="there is no class 'maybe'; the classes of the sites are no, yes"):
        agree_weights({"aachen": {"no": 1.0, "yes": 2.0}}, {"aachen": 3}, ("aachen",), {"maybe": 1, "no": 1, "yes": 1})


def test_a_site_that_joins_fits_the_encoding_or_is_refused_by_column():
    frame = pooled_table()
    encoding, _ = agreed(site_tables(frame[frame["site"] != "celle"], sites=SITES[:2]))
    joining = frame[frame["site"] == "celle"].reset_index(drop=True)
    assert misfits("celle", SiteTable(joining, SETTINGS, "celle", 2).report(), encoding) == []
    other = joining.drop(columns="pulse").assign(smoker=3.5, ward="south", extra=1, ill=["maybe", "yes"] * 20)
    text = "\n".join(misfits("celle", SiteTable(other, SETTINGS, "celle", 2).report(), encoding))
    for line in ("celle: column 'pulse' is absent", "column 'extra' is not a column of the run",
                 "column 'smoker' holds number values, and boolean values in the run",
                 "column 'ward' has the level 'south'", "the label has the class 'maybe'"):
        assert line in text


def test_a_column_whose_decimal_mark_is_not_clear_stops_a_site_only_if_the_plan_uses_it_as_numbers(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("money,age,ill\n" + "".join(f'"1.{k}0,5",{k},{"yes" if k % 2 else "no"}\n' for k in range(10, 50)))
    site, settings = SiteFile(table=str(path), limits=replace(NO_LIMITS, min_cell=1)), TableOptions("site", "ill")
    with pytest.raises(Refusal, match="'money' holds numbers with separators of thousands"):
        read_site_table(site, settings, "aachen", 0)
    for folder in (None, tmp_path / VERSIONS):
        table = read_site_table(site, replace(settings, exclude=["money"]), "aachen", 0, folder=folder)
        assert [column.name for column in table.report().columns] == ["age"]
    texts = read_site_table(site, replace(settings, text=["money"]), "aachen", 0).report().columns[0]
    assert (texts.kind, "1.100,5" in texts.levels) == ("text", True)


def test_sites_whose_names_differ_only_in_case_are_refused():
    tables = site_tables(pooled_table())
    tables["Aachen"] = tables.pop("berlin")
    assert agreed(tables).conflicts == (
        "among the sites, 'Aachen' and 'aachen' differ only in upper and lower case or blanks: write them alike",)
