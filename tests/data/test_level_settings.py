"""The settings of a table for dates, rare levels and levels of new rows."""

import numpy as np
import pandas as pd
import pytest

from resolvent.errors import InputError
from resolvent.tables.encoding_files import from_plain, read_encoding, to_plain, write_encoding
from resolvent.tables.party_tables import from_frame

N = 60


def table(**columns):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"site": ["a", "b"] * (N // 2), "x": rng.normal(size=N), "ill": rng.choice(["no", "yes"], N),
                         **columns})


def encode(data, frame):
    return pd.DataFrame(data.encoding.transform(frame), columns=list(data.features))


DAYS = pd.date_range("1970-01-01", periods=N, freq="36h")


@pytest.mark.parametrize("dates", [DAYS, DAYS.strftime("%Y-%m-%dT%H:%M:%S"), DAYS.strftime("%d.%m.%Y %H:%M"),
                                   DAYS.to_series().dt.tz_localize("UTC")])
def test_dates_become_days_or_parts(dates):
    frame = table(day=np.array(dates, object) if dates.dtype == "str" else list(dates))
    data = from_frame(frame, "site", "ill", dates="days", scale="none")
    assert data.features == ("x", "day days")
    np.testing.assert_allclose(encode(data, frame)["day days"], 1.5 * np.arange(N))
    data = from_frame(frame, "site", "ill", dates="parts", scale="none")
    assert data.features == ("x", "day year", "day month", "day weekday")
    expected = {"day year": DAYS.year, "day month": DAYS.month, "day weekday": DAYS.weekday}
    for name, values in expected.items():
        np.testing.assert_array_equal(encode(data, frame)[name], values)


def test_new_rows_have_the_dates_and_not_their_numbers(tmp_path):
    frame = table(day=DAYS.strftime("%Y-%m-%d"))
    data = from_frame(frame, "site", "ill", dates="days")
    write_encoding(tmp_path / "e.json", data.encoding)
    assert read_encoding(tmp_path / "e.json") == data.encoding
    assert not data.encoding.encode(frame).remarks.messages()
    with pytest.raises(InputError, match="no column 'day', which the encoding needs"):
        data.encoding.encode(frame.drop(columns="day"))
    with pytest.raises(InputError, match="59 of 60 values are dates, and 'soon' in row 3 is not"):
        data.encoding.encode(frame.assign(day=frame["day"].where(frame.index != 3, "soon")))


def test_a_missing_date_is_a_missing_number():
    frame = table(day=DAYS.to_series(index=range(N)).where(np.arange(N) != 5))
    with pytest.raises(InputError, match="row 5, column 'day days': the value is missing"):
        from_frame(frame, "site", "ill", dates="days")
    data = from_frame(frame, "site", "ill", dates="days", missing="indicate")
    assert data.features[-1] == "day days missing"


def test_a_new_column_of_dates_may_not_replace_a_column():
    with pytest.raises(InputError, match="'day' become the column 'day days', which the table has already"):
        from_frame(table(**{"day": DAYS, "day days": 1.0}), "site", "ill", dates="days")


def cities():
    return table(city=["Ulm"] * 30 + ["Bonn"] * 20 + ["Celle"] * 6 + ["Essen"] * 4)


def test_rare_levels_become_other():
    data = from_frame(cities(), "site", "ill", rare="other", rare_count=10)
    assert data.features == ("x", "city=Bonn", "city=Ulm", "city=other")
    np.testing.assert_array_equal(encode(data, cities())["city=other"], [0] * 50 + [1] * 10)
    column, = data.encoding.categories
    assert (column.rare, column.imputed) == (("Celle", "Essen"), "Ulm")
    assert from_plain(to_plain(data.encoding)) == data.encoding


@pytest.mark.parametrize("rare", ["keep", "other"])
def test_more_than_100_levels_can_be_joined(rare):
    frame = table(code=[f"c{i}" if i % 2 else "usual" for i in range(N)])
    frame = pd.concat([frame.assign(code=frame["code"] + str(k) * (k > 0)) for k in range(4)], ignore_index=True)
    if rare == "keep":
        with pytest.raises(InputError, match=r"at most 100.*set rare: other"):
            from_frame(frame, "site", "ill")
    else:
        data = from_frame(frame, "site", "ill", rare="other")
        assert data.features[1:] == ("code=other", "code=usual", "code=usual1", "code=usual2", "code=usual3")


def test_a_column_of_rare_levels_only_is_refused():
    with pytest.raises(InputError, match="column 'code' has no level in at least 10 rows"):
        from_frame(table(code=[f"c{i}" for i in range(N)]), "site", "ill", rare="other")
    with pytest.raises(InputError, match=r"column 'code' has 120 levels in at least 2 rows .*a larger rare_count"):
        from_frame(pd.concat([table(code=[f"{k}c{i}" for i in range(N)]) for k in (0, 0, 1, 1)]), "site", "ill",
                   rare="other", rare_count=2)


def test_all_unseen_levels_of_all_columns_are_refused_at_once():
    frame = cities().assign(ward=["n", "s"] * (N // 2))
    data = from_frame(frame, "site", "ill")
    new = frame.assign(city=frame["city"].where(frame.index != 8, "Rom").where(frame.index < 58, "Oslo"),
                       ward=frame["ward"].where(frame.index != 2, "w"))
    message = (r"row 2, column 'ward': the value is none of 'n', 's'.*\(unseen levels: 'city': 'Rom' \(1\), 'Oslo' "
               r"\(2\); 'ward': 'w' \(1\)\).*train with the setting unseen")
    with pytest.raises(InputError, match=message):
        data.encoding.encode(new)


@pytest.mark.parametrize(("options", "inputs"), [
    ({"unseen": "other", "rare": "other"}, {"city=Bonn": 0, "city=Ulm": 0, "city=other": 1}),
    ({"unseen": "other"}, {"city=Bonn": 0, "city=Celle": 0, "city=Essen": 0, "city=Ulm": 0}),
    ({"unseen": "missing", "missing": "impute", "rare": "other"}, {"city=Bonn": 0, "city=Ulm": 1, "city=other": 0})])
def test_an_unseen_level_can_be_other_none_or_missing(options, inputs, tmp_path):
    data = from_frame(cities(), "site", "ill", **options)
    write_encoding(tmp_path / "e.json", data.encoding)
    new = cities().assign(city=["Rom", *cities()["city"][1:]])
    encoded = read_encoding(tmp_path / "e.json").encode(new)
    row = pd.DataFrame(encoded.x, columns=list(data.features)).iloc[0]
    assert {name: row[name] for name in inputs} == inputs
    assert encoded.remarks.messages() == ("Levels did not occur in the training table: 'city': 'Rom' (1)",)
    np.testing.assert_array_equal(encoded.x[1:], encode(data, cities())[1:])


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(InputError, match="unseen: missing needs missing: impute or indicate"):
        from_frame(cities(), "site", "ill", unseen="missing")
    with pytest.raises(InputError, match="rare_count=0 must be at least 1"):
        from_frame(cities(), "site", "ill", rare="other", rare_count=0)
    with pytest.raises(InputError, match=r"rare='merge'.*'keep' or 'other'"):
        from_frame(cities(), "site", "ill", rare="merge")
