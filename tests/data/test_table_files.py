"""Tables in files: CSV, TSV and Parquet, the lines that errors name, and damaged files."""

import gzip

import numpy as np
import pandas as pd
import pytest
from table_samples import diabetes, digest, people, wine

from resolvent.errors import InputError
from resolvent.tables.party_tables import from_frame, table


def write(tmp_path, text, name="t.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return str(path)


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv", ".parquet", ".CSV"])
def test_a_file_of_any_kind_gives_the_same_data_as_the_frame(tmp_path, ending):
    frame = people()
    path = tmp_path / f"clinic.v2{ending}"
    if ending == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if ending == ".tsv" else ",")
    data = table(str(path), "hospital", "ill", missing="indicate", seed=4)
    assert data.name == "clinic.v2"
    assert digest(data) == digest(from_frame(frame, "hospital", "ill", missing="indicate", seed=4))


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_decimal_numbers_survive_the_round_trip_to_the_last_digit(tmp_path, ending):
    frame = diabetes()
    frame["bmi"] = np.random.default_rng(0).normal(size=len(frame)) * 1e-7
    path = tmp_path / f"diabetes{ending}"
    frame.to_parquet(path, index=False) if ending == ".parquet" else frame.to_csv(path, index=False)
    options = {"features": ["bmi", "age"], "validation": 0.1, "test": 0.3, "scale": "none"}
    data = table(str(path), "clinic", "target", **options)
    assert digest(data) == digest(from_frame(frame, "clinic", "target", **options))
    sexes = table(str(path), "clinic", "sex", task="classification", exclude=["bp"])
    assert digest(sexes) == digest(from_frame(frame, "clinic", "sex", task="classification", exclude=["bp"]))


def test_leading_zeros_stay_in_a_partys_name(tmp_path):
    data = table(write(tmp_path, "p,x,y\n007,1,0\n7,2,1\n007,3,1\n"), "p", "y")
    assert data.parties == ("007", "7")


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path):
    assert table(write(tmp_path, "p,x,y\na,1,0\na,2,1\n", encoding="utf-8-sig"), "p", "y").features == ("x",)


def test_true_and_false_with_gaps_are_numbers(tmp_path):
    data = table(write(tmp_path, "p,x,y\na,True,0\na,,1\na,False,1\n"), "p", "y", missing="indicate", test=0,
                 validation=0, scale="none")
    assert sorted(map(tuple, data.x.tolist())) == [(0.0, 0.0), (0.5, 1.0), (1.0, 0.0)]


def test_a_column_without_a_name_can_be_excluded(tmp_path):
    path = tmp_path / "t.csv"
    wine().to_csv(path)
    assert digest(table(str(path), "site", "cultivar", exclude=["Unnamed: 0"])) == digest(
        from_frame(wine(), "site", "cultivar"))


# The row of an error


@pytest.mark.parametrize(("text", "row"), [
    ("p,x,z,y\na,1,1,0\na,,1,1\nb,2,2,1\n", 3),
    ("p,x,z,y\na,1,1,0\na,,1,1\nb,2,2,1", 3),
    ("p,x,z,y\r\na,1,1,0\r\na,,1,1\r\n", 3),
    ("p,x,z,y\ra,1,1,0\ra,,1,1\r", 3),
    ("p,x,z,y\n\na,1,1,0\n  \n\nb,2,2,1\na,,1,1\n", 7),
    ('p,x,z,y\na,1,"1\n",0\na,,1,1\nb,2,2,1\n', 4),
    ("\n\np,x,z,y\na,,1,0\na,1,1,1\n", 4),
    ("\ufeffp,x,z,y\na,NA,1,0\na,1,1,1\n", 2),
    ("p,z,y,x\na,1,1,1\n\na,1,0,2\na,1,1,\n", 5),  # in the last column
])
@pytest.mark.parametrize("packed", [False, True])
def test_the_row_of_an_error_is_the_line_of_the_file(tmp_path, text, row, packed):
    path = write(tmp_path, text)
    if packed:
        path += ".gz"
        (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(InputError, match=f"^party 'a', row {row}, column 'x': the value is missing"):
        table(path, "p", "y")


def test_the_row_of_an_error_in_parquet_is_the_index_of_the_frame(tmp_path):
    frame = people().set_index(pd.Index([f"patient {i}" for i in range(60)]))
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="row patient 3, column 'age'"):
        table(str(tmp_path / "t.parquet"), "hospital", "ill")


# Files that are refused


@pytest.mark.parametrize(("text", "message"), [
    ("p,x,y\na,1,0\na,2\nb,3,1\n", r"'t.csv', row 3 is cut off, with 2 values for 3 columns"),
    ("p,x,y\na,1,0\nb,3,1\na,2", r"'t.csv', row 4 is cut off"),
    ("p,x,y\na,1,0\na,2,1,7\n", r"row 3 has 4 values, and the first line names 3 columns"),
    ("p,x,y\na,1,0,\na,2,1,\n", r"'t.csv' has rows with more values than the header's 3 names"),
    ('p,x,y\na,1,0\na,"2,1\n', r"cannot be read as .csv: .*EOF inside string.*cut off"),
    ("", r"is empty \(0 bytes\), or cut off"),
    (" \n\n", r"cannot be read as .csv: No columns to parse"),
    ("p,x,y\n", r"the table 't' has no rows"),
    ("p,x,x,y\na,1,2,0\na,2,3,1\n", r"two columns are named 'x'"),
    (",p,x,y\n0,a,1,0\n1,a,2,1\n", r"column 1 has no name .*exclude 'Unnamed: 0'"),
    ("p,x,y\na,1,0\n,2,1\n", r"^row 3, column 'p': the party is missing"),
    ("p,x,y\na,1,0\na,2,\n", r"^party 'a', row 3, column 'y': the label is missing"),
    ("p,x,y\na,1,0\na,inf,1\n", r"^party 'a', row 3, column 'x': the value is infinite"),
    ("p,x,y\na,2020-01-01,0\na,2020-01-02,1\n", r"column 'x' holds dates or times"),
])
def test_a_text_file_that_cannot_be_used_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        table(write(tmp_path, text), "p", "y")


def test_text_that_is_not_utf_8_is_refused(tmp_path):
    path = write(tmp_path, "p,x,y\nZürich,1,0\nZürich,2,1\n", encoding="latin-1")
    with pytest.raises(InputError, match=r"'t.csv' cannot be read as text in UTF-8: line 2 has the byte "
                                         r"0xfc\. If 'Zürich,1,0' is right there, set encoding: cp1252"):
        table(path, "p", "y")
    assert table(path, "p", "y", encoding="latin-1").parties == ("Zürich",)


@pytest.mark.parametrize("ending", [".parquet", ".csv.gz"])
@pytest.mark.parametrize("share", [0, 0.5, 0.95])
def test_a_file_that_is_cut_off_is_refused(tmp_path, ending, share):
    path = tmp_path / f"wine{ending}"
    wine().to_parquet(path) if ending == ".parquet" else wine().to_csv(path, index=False)
    whole = path.read_bytes()
    assert len(table(str(path), "site", "cultivar")) == 4
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match=rf"wine{ending}' (cannot be read as {ending}: |is empty).*cut off"):
        table(str(path), "site", "cultivar")


def test_a_packed_file_that_is_damaged_is_refused(tmp_path):
    path = tmp_path / "wine.csv.gz"
    wine().to_csv(path, index=False)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2 : len(whole) // 2 + 64] = b"\xff" * 64
    path.write_bytes(whole)
    with pytest.raises(InputError, match=r"cannot be read as .csv.gz: Error -3 .*cut off"):
        table(str(path), "site", "cultivar")


@pytest.mark.parametrize("ending", [".parquet", ".csv.gz", ".csv"])
def test_a_file_of_another_format_than_its_name_says_is_refused(tmp_path, ending):
    path = tmp_path / f"t{ending}"
    path.write_bytes(bytes(range(256)) * 20)
    with pytest.raises(InputError, match="cannot be read as"):
        table(str(path), "p", "y")


def test_for_a_missing_file_a_similar_name_is_suggested(tmp_path):
    write(tmp_path, "p,x,y\na,1,0\n", name="patients.csv")
    (tmp_path / ".patient.csv.lock").touch()  # a hidden file is nearer to the name, but not what a user means
    with pytest.raises(InputError, match=r"no file '/.*/patient.csv'.*did you mean 'patients.csv'\?"):
        table(str(tmp_path / "patient.csv"), "p", "y")
    (tmp_path / "folder.csv").mkdir()
    for name, message in (("nowhere/t.csv", "there is no file '/.*/nowhere/t.csv'"),
                          ("folder.csv", "folder.csv' is a folder: name a file")):
        with pytest.raises(InputError, match=message):
            table(str(tmp_path / name), "p", "y")


@pytest.mark.parametrize("name", ["t.csv.zip", "t", "csv"])
def test_other_kinds_of_files_are_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"cannot be read: name a \.csv, \.csv\.gz, \.tsv or \.parquet file"):
        table(write(tmp_path, "p,x,y\na,1,0\n", name=name), "p", "y")


@pytest.mark.parametrize("name", ["t.xlsx", "t.XLS", "t.ods", "t.xlsb"])
def test_the_error_for_a_spreadsheet_says_how_to_convert_it(tmp_path, name):
    with pytest.raises(InputError, match=r"spreadsheet, .*save it as CSV .*pandas.read_excel\(.*\).to_csv\(.*t.csv'"):
        table(str(tmp_path / name), "p", "y")
    for content in (b"PK\x03\x04 xl/workbook.xml", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 workbook"):
        with pytest.raises(InputError, match=r"t.csv' cannot be read as .csv: it is a spreadsheet"):
            table(write(tmp_path, content.decode("latin-1"), encoding="latin-1"), "p", "y")
