"""How text tables are written: separators, decimal marks and encodings are recognised, or named in the error."""

import numpy as np
import pytest
from table_samples import digest, people

from resolvent.errors import InputError
from resolvent.tables.party_tables import from_frame, table

OPTIONS = {"validation": 0, "test": 0, "scale": "none"}


def write(tmp_path, text, name="t.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return str(path)


def rows_of(data):
    return sorted((*map(float, x), float(y)) for x, y in zip(data.x, data.y, strict=True))


# Separators


@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_the_separator_is_recognised_from_the_header(tmp_path, separator, ending):
    path = tmp_path / f"t{ending}"
    people().to_csv(path, index=False, sep=separator)
    expected = from_frame(people(), "hospital", "ill", missing="impute")
    assert digest(table(str(path), "hospital", "ill", missing="impute")) == digest(expected)
    assert digest(table(str(path), "hospital", "ill", missing="impute", separator=separator)) == digest(expected)


def test_names_with_another_separator_do_not_hide_the_separator(tmp_path):
    data = table(write(tmp_path, "p;weight, kg;y\na;1;0\na;2;1\n"), "p", "y")
    assert data.features == ("weight, kg",)
    assert table(write(tmp_path, 'p,"a;b",y\na,1,0\na,2,1\n'), "p", "y").features == ("a;b",)


def test_a_first_line_can_state_the_separator(tmp_path):
    path = write(tmp_path, "sep=;\r\np;x,z;y\r\na;1,5;0\r\na;;1\r\n", encoding="utf-8-sig")
    with pytest.raises(InputError, match="row 4, column 'x,z': the value is missing"):
        table(path, "p", "y")
    assert table(path, "p", "y", missing="impute").features == ("x,z",)


@pytest.mark.parametrize(("text", "message"), [
    ("p|x,p;y,y\na|1,a;2,1\n", r"\(',': .*; ';': .*\): set separator: ',', or another of them"),
    ("p,a;p;y;b,y\n", r"\(.*\): set separator: ','"),
    ("pp,x;z,y\na,1,0\n", r"\(.*\), and no header has the column 'p': set separator: ',', .*; did you mean 'pp'"),
])
def test_an_ambiguous_separator_is_refused_with_the_setting(tmp_path, text, message):
    with pytest.raises(InputError, match=rf"^'t.csv': the header can be divided at several characters {message}"):
        table(write(tmp_path, text), "p", "y")


# Decimal marks


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_decimal_commas_are_recognised(tmp_path, separator):
    text = "p;x;z;y\na;1,5;-2;0\na;,25;1,5e-1;1\nb;1,234;+3,;1\n".replace(";", separator)
    data = table(write(tmp_path, text), "p", "y", **OPTIONS)
    np.testing.assert_allclose(rows_of(data), [(0.25, 0.15, 1), (1.234, 3, 1), (1.5, -2, 0)], rtol=1e-6)


def test_decimal_commas_of_the_label_make_it_a_quantity(tmp_path):
    data = table(write(tmp_path, "p;x;y\na;1;0,5\na;2;1,5\n"), "p", "y")
    assert (data.task, sorted(data.y)) == ("regression", [0.5, 1.5])


@pytest.mark.parametrize(("text", "message"), [
    ("p;x;y\na;1,234;0\na;2,345;1\n", r"column 'x' holds numbers with a comma, such as '1,234': set decimal: ','"),
    ('p,x,y\na,"1,5",0\na,"2,5",1\n', r"column 'x' holds numbers with a comma, such as '1,5': set decimal: ','"),
    ("p;x;z;y\na;1,5;2.5;0\na;2,5;1;1\n", r"'1,5', and column 'z' holds numbers with a point"),
    ("p;x;y\na;1,5;0\na;2.5;1\n", r"column 'x' holds numbers .*two decimal marks, such as '2.5'.*set text: \[x\]"),
    ("p;x;y\na;1.234,5;0\na;2,5;1\n", r"column 'x' holds numbers with separators of thousands, .*'1.234,5'"),
    ('p,x,y\na,"1,234.5",0\na,2.5,1\n', r"column 'x' holds numbers with separators of thousands, .*'1,234.5'"),
    ('p,x,y\na,"1,234,567",0\na,"1,234",1\n', r"column 'x' holds numbers with separators of thousands"),
])
def test_ambiguous_decimal_marks_are_refused_by_column_with_the_setting(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=message):
        table(path, "p", "y")
    with pytest.raises(InputError, match=r"column '[xz]' holds numbers|column 'x': 1 of 2 values are numbers"):
        table(path, "p", "y", decimal=".")
    assert table(path, "p", "y", text=["x"]).features[-2].startswith("x=")


def test_the_decimal_mark_can_be_set(tmp_path):
    path = write(tmp_path, "p;x;y\na;1,234;0\na;2,345;1\n")
    np.testing.assert_allclose(rows_of(table(path, "p", "y", decimal=",", **OPTIONS)), [(1.234, 0), (2.345, 1)])
    assert table(path, "p", "y", text=["x"]).features == ("x=1,234", "x=2,345")


def test_a_column_that_is_left_out_does_not_decide_the_decimal_mark(tmp_path):
    path = write(tmp_path, "p;x;z;y\na;1,234;2.5;0\na;2,345;1;1\n")
    assert table(path, "p", "y", exclude=["x"]).features == ("z",)
    assert table(path, "p", "y", features=["z"]).features == ("z",)


def test_text_with_commas_stays_text(tmp_path):
    data = table(write(tmp_path, 'p;x;y\na;"Rome, Oslo";0\na;Bern;1\n'), "p", "y")
    assert data.features == ("x=Bern", "x=Rome, Oslo")


# Encodings


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_states_the_encoding(tmp_path, encoding):
    path = write(tmp_path, "p;größe;y\nZürich;1,5;0\nZürich;2,5;1\n", encoding=encoding)
    data = table(path, "p", "y")
    assert (data.parties, data.features) == (("Zürich",), ("größe",))


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16-le"])
def test_another_encoding_is_refused_with_the_setting(tmp_path, encoding):
    path = write(tmp_path, "p,x,y\na,1,0\nZürich,2,1\n", encoding=encoding)
    setting = "utf-16-le" if encoding == "utf-16-le" else "cp1252"
    with pytest.raises(InputError, match=rf"'t.csv' cannot be read as text in UTF-8.*set encoding: {setting}"):
        table(path, "p", "y")
    assert table(path, "p", "y", encoding=encoding).parties == ("a", "Zürich")


def test_text_in_another_encoding_than_the_setting_is_refused(tmp_path):
    path = write(tmp_path, "p,x,y\nZürich,1,0\n")
    with pytest.raises(InputError, match=r"'t.csv' cannot be read as text in ascii: .*set another encoding"):
        table(path, "p", "y", encoding="ascii")


# Settings


@pytest.mark.parametrize(("options", "message"), [
    ({"separator": ";;"}, r"separator=';;' cannot separate"), ({"separator": ""}, r"separator='' cannot"),
    ({"separator": "\n"}, r"separator=.* cannot"), ({"separator": 5}, r"separator=5\) must be text"),
    ({"decimal": ";"}, r"decimal=';'\) must be 'auto'"), ({"encoding": "utf-88"}, r"encoding='utf-88' is not known"),
    ({"encoding": "hex"}, r"encoding='hex' is not known"), ({"encoding": 8}, r"encoding=8\) must be text")])
def test_wrong_settings_are_refused(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        table(write(tmp_path, "p,x,y\na,1,0\na,2,1\n"), "p", "y", **options)


def test_settings_of_text_files_are_refused_for_parquet(tmp_path):
    people().to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="settings of text files"):
        table(str(tmp_path / "t.parquet"), "hospital", "ill", separator=";")
