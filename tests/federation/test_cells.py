"""One reading of cells: the same for CSV, Parquet, frames of every type, regressions, checks and new rows."""

from dataclasses import replace
from decimal import Decimal
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import resolvent as rv
from resolvent.comparisons.description.describe import describe_rows
from resolvent.comparisons.description.settings import DescriptionSettings
from resolvent.comparisons.experiment.data_check import check
from resolvent.comparisons.regression.rows import read_tables
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.errors import InputError
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.limits import NO_LIMITS
from resolvent.federation.site.table import read_site_table
from resolvent.tables.cells import CellRules, read_column_cells
from resolvent.tables.new_rows import read_rows as read_new_rows
from resolvent.tables.party_tables import from_frame, table
from resolvent.tables.table_options import TableOptions, cell_rules

N = 40
Y = np.random.default_rng(0).normal(size=N)
NUMBERS_ONLY = from_frame(pd.DataFrame({"site": ["a", "b"] * 20, "x": np.arange(40.0), "y": Y}), "site", "y",
                          missing="impute").encoding


def column(*values):
    """Forty rows with these values, the last one in a single row."""
    *usual, last = values
    return [usual[i % len(usual)] for i in range(N - 1)] + [last]


NUMBERS = tuple(str(40 + i) for i in range(7))
DECIMALS = tuple(f"{40 + i}.{1 + i % 7}" for i in range(12))


def each(form):
    """Forty decimal numbers in a form, such as ``{} kg``."""
    return column(*map(form.format, DECIMALS))


DIGITS = [*"12345678"]
# Cells -> what must be in the refusal.
REFUSED = {
    **{f"a number and {word}": (column(*NUMBERS, word), f"39 of 40 values are numbers, and {word!r} in row 4?")
       for word in ("?", ".", "-", "unknown", "<0.3", "V45")},
    "more than a few": ([*NUMBERS, "unknown"] * 5, "set missing: ['unknown']"),
    "thousands": (column("1,234", "2,345", "3,456"), "comma"),
    "thousands of India": (column("1,20,000", "12,34,567"), "separators of thousands, such as '1,20,000'"),
    "decimal commas": (column("1,5", "2,25"), "comma"),
    "percent": (column("5%", "7 %", "12%"), "a sign of percent, such as '5%'"),
    "currency": (column("€ 5", "7.5 €", "12 €"), "a currency"),
    "unit": (column("70 kg", "81 kg", "77.5 kg"), "a unit, such as '70 kg'"),
    "apostrophes of a spreadsheet": (column("'12", "'345"), "numbers in quotes, such as"),
    "formulas of a spreadsheet": (column('="12"', '="345"'), "numbers in quotes, such as"),
    "blood pressure": (column("120/80", "130/85"), "two numbers in a cell"),
    "dates": (column("2024-01-01", "2024-02-01"), "dates"),
    "months": (column("2024-01", "2024-02"), "dates"),
    "other dates": (column("31.12.2024", "01.02.2024"), "dates"),
    "German months": (column("01.2024", "11.2024"), "dates or times"),
    "names of months": (column("1 May 2024", "12 June 2024"), "dates or times"),
    "times": (column("08:15", "17:45"), "dates or times"),
    "days and a word": (column("2024-01-01", "2024-02-01", "unknown"), "39 of 40 values are dates, and 'unknown'"),
    "a unit without a name": (column(*(f"{age} years old" for age in range(40, 52))), "'years old' after them"),
    "marks of several kinds": (column("1,5", "\u22122.5", "3 %"), "such as '1,5'"),
    "decimal commas and ?": (column("1,5", "2,5", "3,5", "?"), "39 of 40 values are numbers, and '?' in row 4?"),
    "words for yes and no": (column("yes", "no", "1"), "are different words for yes and no"),
    "two kinds of letters": (column("Zürich", "Zu\u0308rich"), "look alike and have different characters"),
    "two kinds of hyphens": (column("Nord-Ost", "Nord\u2013Ost"), "look alike and have different characters"),
    "spellings": (column("yes", "no", "Yes"), "'Yes' and 'yes' differ only in upper and lower case or blanks"),
    "upper case": (column("Nord", "Süd", "NORD"), "'NORD' and 'Nord' differ only"),
    **{f"a number and {word}": (column(*NUMBERS, word), f"39 of 40 values are numbers, and {word!r}")
       for word in ("nan.", "N/a", "#DIV/0!", "#NAME?", "#####", "...", "(null)", "keine Angabe", "1.2.3",
                    "\u221e", "x", "<LOD", "--5", "/")},
    "more than half pending": ([*DECIMALS, *["pending"] * 28], "12 of 40 values are numbers, and 'pending'"),
    "below a limit": (column(*DECIMALS, *DECIMALS, "< 5", ">90"), "values are numbers, and '< 5'"),
    **{f"thousands by {sign!r}": (column(f"1{sign}234", f"12{sign}345", f"1{sign}234{sign}567"), "of thousands")
       for sign in (" ", "'", "\u2019", "\u00a0", "\u202f", "_")},
    "decimal points in the middle": ([v.replace(".", "\u00b7") for v in each("{}")], "commas or separators"),
    "decimal points of Arabic": ([v.replace(".", "\u066b") for v in each("{}")], "commas or separators"),
    "one decimal comma": (column(*DECIMALS, "41,5"), "decimal"),
    **{f"written as {form}": (each(form), words) for form, words in {
        "${}": "a currency", "{} EUR": "a currency", "\u20b9{}": "a currency", "{} kr": "'kr' after",
        "R$ {}": "'R$ ' before", "-${}": "'-$' before", "({})": "minus of a keyboard", "{}\uff05": "after them",
        "{}\u2030": "percent", "{} IU/L": "a unit",
        "{} mm[Hg]": "'mm[Hg]' after", "{} x10^9/L": "'x10^9/L' after", "{}+": "'+' after", "{}*": "'*' after",
        "{} \u00b1 2": "with their errors", "age {}": "'age ' before", "\uff0d{}": "minus of a keyboard",
        "{}-": "minus of a keyboard",
        "- {}": "minus of a keyboard", "\u2013{}": "minus of a keyboard", "<{}": "'<' before", "{}D+01": "'D+01' after",
        "{}+1j": "'+1j' after", "'{}'": "in quotes", "{} (a)": "'(a)' after", "{} Jahre": "a unit"}.items()},
    "two units": (column("70 kg", "150 lb", "81 kg"), "a unit, such as '70 kg'"),
    **{f"few {values[0]}": (column(*values), words) for *values, words in (
        ("5.1 mmol", "7.2 mmol", "a unit"), ("5 Jahre", "9 Jahre", "a unit"), ("1d 2h", "2d 5h", "a unit"),
        ("36.5 C", "38.1 C", "'C' after"), ("37.5\u00b0", "38\u00b0", "'\u00b0' after"), ("(5)", "3", "minus of a"),
        ("120/80 mmHg", "130 / 85 mmHg", "two numbers in a cell"), ("01,5", "2,5", "comma"))},
    "base 16": (column("0x1F", "0x2a", "0x30"), "base 16 or 2, such as '0x1F'"),
    "a letter for a digit": (column(*DECIMALS, "4O.5"), "'O.5' after them"),
    **{f"dates such as {date}": (column(*dates, date), "dates") for *dates, date in (
        ("12/31/2024", "01/02/2024"), ("31.12.24", "1.2.24"), ("31.12.", "01.02."), ("2024/12/31", "2024/01/02"),
        ("31-Dec-2024", "01-May-2024"), ("31DEC2024", "01MAY2024"), ("Mon, 30 Dec 2024", "Wed, 01 May 2024"),
        ("1. Mai 2024", "12. Juni 2024"), ("May 1, 2024", "June 12, 2024"), ("2024-W01", "2024-W52"), ("1h30", "2h05"),
        ("2024-01-01", "01.05.2024"), ("2024-02-31", "0000-00-00"), ("2024-05-01T10:00:00Z", "2024-05-02 10:00"),
        ("08:15:00.25", "17:45:30.5"), ("1:05 PM", "2:10 am"), ("10am", "2 pm"), ("10.30 Uhr", "11 Uhr"),
        ("24-May", "1-Jun"), ("01 05 2024", "2 6 2024"), ("1 janvier 2024", "2 f\u00e9vrier 2024"),
        ("1 de mayo de 2024", "2 de junio de 2024"),
        ("2024\u5e745\u67081\u65e5", "2024\u5e745\u670812\u65e5"))},
    **{"/".join(words): (column(*words), f"are different words for {what}") for what, groups in {
        "yes and no": (("true", "0"), ("ja", "nein", "yes", "no"), ("oui", "non", "1"), ("T", "F", "true", "false"),
                       ("T", "False"), ("on", "no"), ("neg", "+"), ("si", "s\u00ed", "no"),
                       ("positive", "negative", "pos"), ("y", "no")),
        "the two sexes": (("m", "f", "male"), ("male", "female", "weiblich"))}.items() for words in groups},
    **{f"look-alikes {a} {b}": (column(a, b), "look alike and have different characters") for a, b in (
        ("A", "\u0391"), ("CT", "\u0421\u0422"), ("A", "\uff21"), ("abc", "\u202eabc"), ("Bern", "Bern\u200b"),
        ("O'Neil", "O\u2019Neil"))},
    **{f"periods such as {values[0]}": (column(*values), "looks like dates or times") for values in (
        ("2024-Q1", "2023-Q4"), ("Q1 2024", "Q2 2024"), ("2024Q1", "2024 H2"), ("Q1/24", "Q2/24"), ("1Q24", "2Q24"),
        ("H1 2024", "H2 2023"), ("KW 12/2024", "KW 5/2024"), ("FY2023", "FY2024"), ("2024-1", "2024-12"),
        ("Jan '24", "Feb '24"))},
    "quarters and ?": (column("2024-Q1", "2024-Q2", "?"), "39 of 40 values are dates, and '?'"),
    **{f"forms such as {values[0]}": (column(*values), words) for *values, words in (
        ("5k", "12K", "1.2M", "a unit"), ("5 Mio", "7 Mio", "a unit"), ("5 mg/d", "10 mg/d", "a unit"),
        ("5 IE", "10 IE", "a unit"), ("5 /µl", "7 /µl", "a unit"), ("5ft11", "6ft2", "a unit"),
        ("5 Tbl", "10 Tbl", "a unit"), ("5 pct", "7 percent", "percent"),
        ("5'11\"", "6'0\"", "feet and inches"), ("5'11", "6'2", "feet and inches"),
        ("PT5M", "PT1H", "durations"), ("P1D", "P2DT3H", "durations"), ("25:30", "31:10", "durations"),
        ("5:30", "26:45", "durations"), ("1 day, 2:03:04", "2 days, 1:00:00", "durations"),
        ("120-80", "118-79", "two numbers in a cell"), ("120 80", "130 85", "two numbers in a cell"),
        ("120\\80", "130\\85", "two numbers in a cell"), ("RR 120/80", "RR 130/85", "two numbers in a cell"),
        ("5;6", "6;7", "two numbers in a cell"), ("[5, 6]", "[6, 7]", "two numbers in a cell"),
        ("~5", "ca. 7", "numbers that are about right"), ("5±1", "6 +/- 1", "numbers with their errors"),
        ("5 (1)", "6 (2)", "numbers with their errors"), ("10^3", "10^4", "fractions or powers"),
        ("½", "1½", "fractions or powers"), ("5-", "7-", "3", "minus of a keyboard"))},
    "a mark in most rows": (["unknown"] * 37 + ["0", "1", "0"], "3 of 40 values are numbers, and 'unknown'"),
    "double blanks": (column("a b", "a  b"), "differ only in upper and lower case or blanks"),
    **{f"a control character {sign!r}": (column(f"a{sign}b", "c"), "a level with a control character")
       for sign in ("\n", "\x07", "\x1b[31m", "\x0b")},
    **{f"a number and {word}": (column(*DECIMALS, word), "infinite") for word in ("inf", "-Infinity", "1e400")},
}


def readers(values, path, **rules):
    """Every way of reading a column x of two sites, with a label that is a number; each returns the inputs' names."""
    frame = pd.DataFrame({"site": ["a", "b"] * (N // 2), "x": values, "y": Y})
    csv, parquet = str(path / "t.csv"), str(path / "t.parquet")
    frame.to_csv(csv, index=False)
    frame.to_parquet(parquet)
    cells = CellRules({"*": rules.get("missing", [])}, frozenset(rules.get("text", [])))
    settings = RegressionSettings(formula="y ~ x")

    def names_of_regression(rows):
        return next(read_tables(rows, settings, party="site", cells=cells)).model.columns[1:]

    def names_of_description():
        described = describe_rows(frame, DescriptionSettings(columns=("x",), min_cell=1), party="site", cells=cells)
        return tuple(f"x={level}" for level in described.agreement.levels.get("x", ())) or ("x",)

    def names_at_site():
        options = TableOptions("", "y", exclude=["site"], **rules)
        report = read_site_table(SiteFile(table=csv, limits=NO_LIMITS), options, "a", 0).report()
        return tuple(f"x={level}" for level in report.columns[0].levels or ()) or ("x",)

    def names_of_new_rows():
        encoding = replace(NUMBERS_ONLY, codes=tuple(cells.codes.items()))
        encoding.encode(read_new_rows(csv, encoding))
        return ("x",)

    def names_of_check():
        if errors := [f for f in check(frame, party="site", label="y", **rules).findings if f.severity == "error"]:
            raise InputError(f"{errors[0].message}: {errors[0].advice}")

    return {"csv": lambda: table(csv, "site", "y", **rules).features,
            "parquet": lambda: table(parquet, "site", "y", **rules).features,
            "frame": lambda: from_frame(frame, "site", "y", **rules).features,
            "objects": lambda: from_frame(frame.astype({"x": object}), "site", "y", **rules).features,
            "arrow": lambda: from_frame(frame.convert_dtypes(dtype_backend="pyarrow"), "site", "y", **rules).features,
            "check": names_of_check, "description": names_of_description, "site": names_at_site,
            "new rows": names_of_new_rows, "regression": lambda: names_of_regression(frame),
            "regression of a file": lambda: names_of_regression(csv)}


@pytest.mark.parametrize("kind", REFUSED)
def test_cells_that_could_be_meant_as_numbers_are_refused_by_every_reader(kind, tmp_path):
    values, words = REFUSED[kind]
    words = words.removesuffix("4?")
    wrong = {}
    for name, read in readers(values, tmp_path).items():
        try:
            wrong[name] = read()
        except InputError as error:
            if words not in str(error) or "'x'" not in str(error).replace('"x"', "'x'"):
                wrong[name] = str(error)
    assert wrong == {}


@pytest.mark.parametrize("sign", [",", " ", "1", "1 s "])
def test_a_long_text_is_read_at_once(sign):
    values = ["5" + sign * 100_000 + "?", "a"]  # takes minutes in quadratic time
    assert read_column_cells("x", pd.Series(values), CellRules()).tolist() == values


def test_all_columns_that_cannot_be_read_are_named_at_once():
    frame = pd.DataFrame({"site": ["a", "b"] * (N // 2), "dose": column("5 mg", "7 mg"), "y": Y,
                          "age": column(*NUMBERS, "4?")})
    with pytest.raises(InputError, match=r"'dose' holds numbers with a unit.*; column 'age': .* '4\?'"):
        next(read_tables(frame, RegressionSettings(formula="y ~ dose + age"), party="site"))
    with pytest.raises(InputError, match=r"'dose' holds numbers with a unit.*; column 'age': .* '4\?'"):
        from_frame(frame, "site", "y")


@pytest.mark.parametrize(("values", "refused"), [
    (["pending"] * 32 + DIGITS, True), (["pending"] * 32 + ["A"] * 5 + ["7"] * 3, False),
    (["0117", "118"] * 4 + ["119"] * 32, False), (["pending"] * 20 + ["250", "401", "580", "610"] * 5, False)])
def test_numbers_that_a_site_hides_are_not_categories(values, refused, tmp_path):
    """At each of two sites the numbers are in too few rows to be told, and too few to be recognised among words.

    Together they would be: a run refuses the column.
    """
    frame = pd.DataFrame({"site": "a", "x": values, "y": Y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    site = SiteFile(table=str(tmp_path / "t.csv"), limits=replace(NO_LIMITS, min_cell=5))
    read = partial(read_site_table, site, TableOptions("", "y", exclude=["site"]), "a", 0)
    if refused:
        with pytest.raises(InputError, match="8 different values are numbers, and 'pending' are not"):
            read()
        other = frame.assign(site="b", x=frame["x"].where(frame["x"] == "pending", frame["x"] + ".5"))
        with pytest.raises(InputError, match="16 of 80 values are numbers, and 'pending'"):
            from_frame(pd.concat([frame, other], ignore_index=True), "site", "y")
    else:
        assert read().report().columns[0].levels


# Cells, rules -> the levels; none for a column of numbers.
READ = {
    "numbers as text": (column(*NUMBERS, " 47 "), {}, ()),
    "missing words": (column(*NUMBERS, "NA"), {"missing": ["impute"]}, ()),
    "codes": (column(*NUMBERS, "?"), {"missing": ["impute", "?", -999]}, ()),
    "numeric code": (column(40, 41, 42, 43, -999), {"missing": ["impute", -999]}, ()),
    "leading zeros": (column("0117", "117", "5"), {}, ("0117", "117", "5")),
    "Arabic zeros": (column("\u0660\u0661", "\u0661"), {}, ("\u0660\u0661", "\u0661")),
    "codes by name": (column("250", "401", "V45"), {"text": ["x"]}, ("250", "401", "V45")),
    "kept spellings": (column("yes", "Yes"), {"text": ["x"]}, ("Yes", "yes")),
    "blanks at the end": (column("yes", "no", "yes "), {}, ("no", "yes")),
    **{f"categories such as {values[0]}": (column(*values), {}, tuple(sorted(values))) for values in (
        ("18-29", "30-39", "40+"), ("E11.9", "I10"), ("A10BA02", "C09AA05"), ("A+", "B-", "0+"), ("T", "F"), ("+", "-"),
        ("T1", "T2"), ("<18", "18-65", ">65"), ("2022/23", "2023/24"), ("1/2", "2/2"), ("1st", "2nd"),
        ("week 1", "week 2"), ("12345-6789", "12346-6789"), ("A/G", "G/G"), ("Jan", "Feb"), ("5 foo", "7 foo"),
        ("m", "f"), ("F", "N"))},
    "a few digits are levels": (column("1", "2", "3a"), {"text": ["x"]}, ("1", "2", "3a")),
}


@pytest.mark.parametrize("kind", READ)
def test_every_reader_reads_the_same_column(kind, tmp_path):
    values, rules, levels = READ[kind]
    of_data = tuple(f"x={level}" for level in levels) or ("x",)
    of_regression = tuple(f"x[T.{level}]" for level in levels[1:]) or ("x",)
    left_out = ("check", "new rows") if levels else ("check",)
    found = {name: read() for name, read in readers(values, tmp_path, **rules).items() if name not in left_out}
    if kind in ("leading zeros", "Arabic zeros", "kept spellings"):  # regressions have the natural order
        found = {name: tuple(sorted(names)) for name, names in found.items() if "regression" not in name}
    assert found == {name: of_regression if "regression" in name else of_data for name in found}


@pytest.mark.parametrize(("values", "dtype"), [
    ([1, 2, None], pa.int64()), ([1.5, 2, None], pa.float32()), ([True, False, None], pa.bool_()),
    ([Decimal("1.5"), Decimal(2), None], pa.decimal128(5, 2)), (["a", "b", None], pa.string()),
    (["a", "b", None], pa.dictionary(pa.int32(), pa.string()))])
def test_types_of_arrow_and_decimals_are_read_as_those_of_numpy(values, dtype):
    plain = [float(v) if isinstance(v, Decimal) else v for v in values] * 20
    rest = {"site": ["a", "b"] * 30, "y": [0.5, 1.25, 3.0] * 20}
    expected = from_frame(pd.DataFrame({**rest, "x": plain}), "site", "y", missing="indicate")
    for rows in (pd.Series(values * 20, dtype=pd.ArrowDtype(dtype)), pd.Series(values * 20, dtype=object)):
        data = from_frame(pd.DataFrame({**rest, "x": rows}), "site", "y", missing="indicate")
        assert data.features == expected.features
        np.testing.assert_array_equal(data.x, expected.x)


@pytest.mark.parametrize("change", [
    str, "+{}".format, " {}\u00a0".format, "{}e0".format, "{}E-2".format, "{}0".format, "\t{}\n".format,
    lambda text: text.removeprefix("4"), lambda text: text.split(".")[0] + ".", lambda text: text.replace(".", "") * 9,
    *(lambda text, zero=zero: "".join(chr(zero + int(sign)) if sign != "." else sign for sign in text)
      for zero in (0xff10, 0x0660, 0x0966))])  # digits of full width, Arabic and Devanagari
def test_numbers_in_other_forms_are_the_same_numbers_in_every_reader(tmp_path, change):
    values = [change(text) for text in each("{}")]
    found = {name: read() for name, read in readers(values, tmp_path).items() if name != "check"}
    assert found == dict.fromkeys(found, ("x",))
    assert read_column_cells("x", pd.Series(values), CellRules()).tolist() == [*map(float, values)]


def test_texts_beside_numbers_of_numpy_are_numbers():
    values = pd.Series([np.int64(1), "2.5", np.float32(3), Decimal("4.25"), pd.NA], dtype=object)
    read = read_column_cells("x", values, CellRules()).tolist()
    assert read[:-1] == [1, 2.5, 3, 4.25]
    assert np.isnan(read[-1])
    assert read_column_cells("x", pd.Series([1, 2.5, pd.NA], dtype=object), CellRules()).dtype == float


def test_codes_of_a_column_replace_the_words():
    """Alcohol: none is a level of one column, and NA is missing in another."""
    frame = pd.DataFrame({"site": ["a", "b"] * 20, "alcohol": ["None", "some"] * 20, "age": [*range(38), "NA", "x"],
                          "y": Y}, dtype=object)
    data = from_frame(frame, "site", "y", missing={"alcohol": [], "age": ["NA", "x"], "*": ["impute"]})
    assert data.features == ("age", "alcohol=None", "alcohol=some")
    with pytest.raises(InputError, match="impute and indicate exclude each other"):
        from_frame(frame, "site", "y", missing=["impute", "indicate"])


def test_new_rows_are_read_by_the_rules_of_the_fitted_ones(tmp_path):
    frame = pd.DataFrame({"site": ["a", "b"] * 20, "icd": ["0117", "250"] * 20, "age": [*range(38), -999, -999],
                          "y": Y})
    encoding = from_frame(frame, "site", "y", missing=["impute", -999]).encoding
    (tmp_path / "new.csv").write_text("icd,age\n0117,-999\n250,20\n")
    encoded = encoding.transform(read_new_rows(str(tmp_path / "new.csv"), encoding))
    np.testing.assert_array_equal(encoded, encoding.transform(pd.DataFrame({"icd": ["0117", 250], "age": [-999, 20]})))
    np.testing.assert_array_equal(encoded[:, 1:], np.eye(2))
    assert encoded[0, 0] == pytest.approx((encoding.numbers[0].imputed - encoding.numbers[0].mean)
                                          / encoding.numbers[0].deviation)


def test_sites_and_classes_keep_leading_zeros_and_spellings_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("site,x,y\n" + "".join(f"0{1 + i % 2},{i},0{i // 2 % 2}\n" for i in range(N)))
    data = table(str(tmp_path / "t.csv"), "site", "y")
    assert (data.parties, data.classes) == (("01", "02"), ("00", "01"))
    with pytest.raises(InputError, match="among the parties, 'A' and 'a' differ only"):
        from_frame(pd.DataFrame({"site": ["a", "A"] * 20, "x": Y, "y": Y}), "site", "y")


@pytest.mark.parametrize("read", [
    lambda rows: from_frame(rows, "site", "y"), lambda rows: rv.regress(rows, "y ~ x", party="site"),
    lambda rows: rv.describe(rows, party="site"), lambda rows: rv.check(rows, party="site", label="y")])
def test_tables_that_are_not_those_of_pandas_are_refused(read):
    frame = pd.DataFrame({"site": ["a", "b"] * 20, "x": Y, "y": Y})
    for rows, words in ((pa.table(frame), "is a Table, and a pandas.DataFrame is needed: convert it with its to_pan"),
                        (frame.to_dict(), "is a dict"), (frame["x"], "is a Series"), (None, "is a NoneType")):
        with pytest.raises(InputError, match=words):
            read(rows)


@pytest.mark.parametrize(("text", "message"), [
    ("1,40,0.5\n2,41,0.7\n", "no line with the names of the columns: its first line is '1', '40', '0.5'"),
    ("site,x,x,y\na,1,2,0.5\nb,2,3,0.7\n", "two columns are named 'x'"),
    ("site,x,x ,y\na,1,2,0.5\nb,2,3,0.7\n", "two columns are named 'x'"),
    ("site,x,y,y \na,1,2,0.5\nb,2,3,0.7\n", "two columns are named 'y'"),
    ('site,"x\n(mg)",x,y\na,1,2,0.5\nb,2,3,0.7\n', "the name of a column, .* has a control character"),
    ("# exported\n# by me\nsite,x,y\na,1,0.5\n", "row 3 has 3 values, and the first line names 1 column, '# exported'"),
    ("site,x,y\na,1,0.5\nb,2,0.7,3\n", "row 3 has 4 values, and the first line names 3 columns, 'site', 'x', 'y'"),
    ("site,x,y\na,1,0.5\nb,2\n", "row 3 is cut off, with 2 values for 3 columns"),
    ("site:x:y\na:1:0.5\n", "the names of the columns are divided by ':': set separator: ':'"),
    ("site x y\na 1 0.5\n", "the names of the columns are divided by ' ': set separator: ' '"),
    ("<html><body>site</body></html>", "column 'site'"), ("\n", "cannot be read as .csv"),
    ("site,x,y\n" + "a,1,0.5\nb,2,0.7\n" * 20 + "site,x,y\n", "40 of 41 values are numbers, and 'y' in row 42 is not"),
    ("site,x,y\n,years,mg\n" + "a,1,0.5\nb,2,0.7\n" * 20, "(party is missing|values are numbers, and 'mg' in row 2)"),
    ("site,x,y\na,1,0.5\nb,2,0.7\n,,\n", "row 4, column 'site': the party is missing"),
    ("x,site,y\n0,a,0.5,1\n1,b,0.7,1\n2,b,0.9,1\n", "rows with more values than the header's 3 names")])
def test_files_without_names_or_with_equal_names_are_refused(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    path, settings = str(tmp_path / "t.csv"), RegressionSettings(formula="y ~ x", family="gaussian")
    for read in (lambda: table(path, "site", "y"), lambda: next(read_tables(path, settings, party="site"))):
        with pytest.raises(InputError, match=message):
            read()


def test_names_are_read_without_blanks_and_decimal_commas_beside_missing_codes(tmp_path):
    rows = [f"{'ab'[i % 2]};{i % 9},5;{i},25" if i else "a;?;7,5" for i in range(N)]
    (tmp_path / "t.csv").write_text("\n".join(["site; x ;y", *rows]))
    path, x = str(tmp_path / "t.csv"), np.array([i % 9 + 0.5 for i in range(1, N)])
    for missing in (["?"], {"x": ["?"]}):
        settings = RegressionSettings(formula="y ~ x")
        fitted = next(read_tables(path, settings, party="site", cells=cell_rules(missing, ())))
        np.testing.assert_array_equal(np.sort(fitted.x[:, 1]), np.sort(x))
    data = table(path, "site", "y", scale="none", missing=["impute", "?"])
    assert data.features == ("x",)
    np.testing.assert_array_equal(np.unique(data.x), np.unique(x))


@pytest.mark.parametrize(("changed", "options", "message"), [
    ({}, {"text": ["icd"]}, "icd"), ({}, {"missing": {"icd": ["?"], "*": ["impute"]}}, "icd"),
    ({"y": ["2024-01-01", "2024-02-01"] * (N // 2)}, {}, "holds dates, which are no classes"),
    ({"y": [np.inf, *Y[1:]]}, {}, "in"), ({"site": ["NA", *"ab" * (N // 2 - 1), "a"]}, {}, "is missing"),
    ({"site": ["?", *"ab" * (N // 2 - 1), "a"]}, {"missing": ["impute", "?"]}, "is missing"),
    ({"site": ["\u0410", "A"] * (N // 2)}, {}, "look alike"), ({"site": ["a", "b\x07"] * (N // 2)}, {}, "control"),
    ({"y": ["a\nb", "c"] * (N // 2)}, {}, "a control character"), ({"y": ["ja", "no"] * (N // 2)}, {}, "yes and no"),
    ({"y": [1e39, *Y[1:]]}, {}, "too large for"), ({"x": ["-1e39", *map(str, Y[1:])]}, {}, "too large for"),
    ({"y": ["<0.3", *map(str, Y[1:])]}, {}, "'<0.3' in row"), ({"site": "a"}, {"text": ["x\ny"]}, "x\\ny"),
    ({"site": ["a", "b", "a "] * (N // 3) + ["\u00a0a"]}, {}, None)])
def test_check_run_and_regress_agree_on_sites_labels_and_columns_that_there_are_not(changed, options, message):
    frame = pd.DataFrame({"site": ["a", "b"] * (N // 2), "x": [*map(str, Y)], "y": Y, **changed})
    cells = cell_rules(options.get("missing"), options.get("text", ()))
    read = {"run": lambda: from_frame(frame, "site", "y", **options).parties,
            "check": lambda: [f.line for f in check(frame, party="site", label="y", **options).findings
                              if f.severity == "error"],
            "regress": lambda: next(read_tables(frame, RegressionSettings(
                "y ~ x", family="auto" if "y" in changed else "gaussian"), party="site", cells=cells)).sizes.size}
    said = {}
    for name, of_reader in read.items():
        try:
            said[name] = of_reader()
        except InputError as error:
            said[name] = [str(error)]
    if message is None:
        assert said == {"run": ("a", "b"), "check": [], "regress": 2}
    else:
        assert all(isinstance(lines, list) and message in " ".join(lines) for lines in said.values()), said


def test_a_level_that_is_alone_and_a_site_without_rows_are_named():
    frame = pd.DataFrame({"site": ["A", "B", "C"] * 10, "x": np.arange(30.0), "y": np.arange(30.0) % 7, "sex": "f"})
    settings = RegressionSettings(formula="y ~ x", family="gaussian")
    with pytest.raises(InputError, match="site 'B': 'x' has no value in any row"):
        next(read_tables(frame.assign(x=frame["x"].where(frame["site"] != "B")), settings, party="site"))
    few = frame.assign(sex=np.where(np.arange(30) % 10 < 5, "f", None))
    with pytest.raises(InputError, match=r"'sex' is 'f' in all rows .*15 rows with missing values left out"):
        next(read_tables(few, RegressionSettings(formula="y ~ x + sex", family="gaussian"), party="site"))


@pytest.mark.parametrize("formula", ["y ~ `1`", "y ~ Intercept", "y ~ x + `1`", "y ~ x + ``", "y ~ `1.5`"])
def test_columns_with_the_name_of_the_constant_term_are_refused_in_formulas(formula):
    frame = pd.DataFrame({"site": ["a", "b"] * 20, 1: Y, "Intercept": Y, "x": Y, "y": Y})
    with pytest.raises(InputError, match="which in a formula is the constant term: give the column another name"):
        next(read_tables(frame, RegressionSettings(formula=formula), party="site"))
    assert from_frame(frame, "site", "y").features == ("1", "Intercept", "x")


def test_a_column_keeps_its_index_and_mixed_values_are_no_numbers():
    rows = pd.Series(["1", "2"], index=[7, 9])
    assert read_column_cells("x", rows, CellRules()).index.tolist() == [7, 9]
    assert read_column_cells("x", pd.Series([[1], [2]]), CellRules()).tolist() == [[1], [2]]
