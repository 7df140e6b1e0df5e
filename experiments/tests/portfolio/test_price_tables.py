"""Prices from CSV files: what is read, and errors that name the file, the line, the column and the value."""

import gzip

import numpy as np
import pytest

from experiments.portfolio.market_data import draw_markets
from experiments.portfolio.price_tables import Prices, read_prices
from resolvent.errors import InputError

GOOD = "Date,A,B\n2019-01-02,1.5,\n2019-01-03,2,10\n2019-01-04,2.5,11\n"


@pytest.fixture
def write(tmp_path):
    def write_text(text, name="closes.csv"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return str(path)
    return write_text


@pytest.fixture
def prices(write):
    return read_prices(write(GOOD))


@pytest.mark.parametrize("text", [GOOD, GOOD.replace(",", ";"), GOOD.replace("\n", "\r\n\r\n"), "\ufeff" + GOOD,
                                  GOOD.replace(",\n", ",NaN\n")],
                         ids=["comma", "semicolon", "blank lines", "byte-order mark", "NaN"])
@pytest.mark.parametrize("name", ["closes.csv", "closes.csv.gz"])
def test_reads_dates_tickers_and_closes(write, text, name):
    read = read_prices(write(text, name))
    assert read.tickers == ("A", "B")
    assert read.dates.astype(str).tolist() == ["2019-01-02", "2019-01-03", "2019-01-04"]
    np.testing.assert_array_equal(read.closes, [[1.5, np.nan], [2, 10], [2.5, 11]])


def test_reads_chosen_columns_only(write):
    text = "day,A,note,B\n2019-01-02,1,old,2\n"
    read = read_prices(write(text), tickers=["B", "A"], date="day")
    assert read.tickers == ("B", "A")
    np.testing.assert_array_equal(read.closes, [[2, 1]])


@pytest.mark.parametrize(("text", "settings", "words"), [
    (GOOD.replace("2.5", "two"), {}, ["closes.csv, line 4, column 'A'", "'two' is not a number"]),
    (GOOD.replace("2.5", "0"), {}, ["line 4, column 'A'", "'0' must be a positive number"]),
    (GOOD.replace("2.5", "-1"), {}, ["line 4, column 'A'", "'-1'"]),
    (GOOD.replace("2.5", "inf"), {}, ["line 4, column 'A'", "'inf'"]),
    (GOOD.replace("2,10", ",10"), {}, ["line 3, column 'A'", "is missing, and there are prices on earlier"]),
    (GOOD.replace("2019-01-04", "04.01.2019"), {}, ["line 4, column 'Date'", "'04.01.2019' is not a date"]),
    (GOOD.replace("2019-01-04", "2019-02-30"), {}, ["line 4, column 'Date'", "'2019-02-30' is not a date"]),
    (GOOD.replace("2019-01-04", "2019-01-03"), {}, ["line 4", "must be later than 2019-01-03", "leave one"]),
    (GOOD.replace("2019-01-04", "2018-01-03"), {}, ["line 4", "must be later than 2019-01-03", "sort"]),
    (GOOD.replace("2.5,11", "2.5"), {}, ["line 4 has 2 values for 3 columns"]),
    (GOOD.replace("A,B", "A,A"), {}, ["2 columns are named 'A'"]),
    (GOOD.replace("A,B", "A,"), {}, ["column 3 has no name"]),
    (GOOD, {"date": "Day"}, ["no column 'Day'", "set date"]),
    (GOOD, {"tickers": ["C"]}, ["no column 'C'", "'A', 'B'"]),
    (GOOD, {"tickers": ["A", "A"]}, ["'A' is chosen 2 times"]),
    (GOOD, {"tickers": []}, ["no column of prices"]),
    ("Date,A\n", {}, ["no rows"]),
    ("", {}, ["no column 'Date'"]),
])
def test_mistakes_are_named(write, text, settings, words):
    with pytest.raises(InputError) as error:
        read_prices(write(text), **settings)
    assert not [word for word in words if word not in str(error.value)], error.value


def test_missing_file_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"no file closes\.csv"):
        read_prices("closes.csv")


def test_days_are_selected_by_date(prices):
    assert prices.between("2019-01-03").dates.astype(str).tolist() == ["2019-01-03", "2019-01-04"]
    assert len(prices.between(None, "2019-01-03").dates) == 2
    np.testing.assert_array_equal(prices.between("2019-01-04", preceding=1).closes, [[2, 10], [2.5, 11]])
    for arguments, word in ((("2020-01-01",), "no prices from 2020-01-01"), (("1.1.2019",), "not a date")):
        with pytest.raises(InputError, match=word):
            prices.between(*arguments)
    with pytest.raises(InputError, match="preceding=2 must lie in 0 to 1"):
        prices.between("2019-01-03", preceding=2)


def test_assets_are_selected_by_ticker(prices):
    assert prices.select(["B", "A"]).closes[-1].tolist() == [11, 2.5]
    assert (prices.listed_since("A"), prices.listed_since("B")) == ("2019-01-02", "2019-01-03")
    for tickers, word in ((["C"], "no ticker 'C'"), (["A", "A"], "named 2 times")):
        with pytest.raises(InputError, match=word):
            prices.select(tickers)


def test_first_price_fills_the_days_before_it(prices):
    np.testing.assert_array_equal(prices.filled().closes, [[1.5, 10], [2, 10], [2.5, 11]])
    assert prices.between(None, "2019-01-02").listed_since("B") is None
    with pytest.raises(InputError, match="column 'B': there is no price"):
        prices.between(None, "2019-01-02").filled()


def test_shapes_must_agree():
    with pytest.raises(InputError, match=r"shape \(2, 1\)"):
        Prices(np.array(["2019-01-02"], "datetime64[D]"), ("A",), np.ones((2, 1)))


def series(closes, dates=None):
    """A file with a column A of these prices and a column B that changes a little every day."""
    days = np.busday_offset("2019-01-01", np.arange(len(closes))) if dates is None else dates
    return "Date,A,B\n" + "".join(f"{day},{a},{10 + k % 3 / 10}\n" for k, (day, a) in enumerate(
        zip(days, closes, strict=True)))


STEADY = [100 + k % 7 for k in range(60)]
WITH_A_GAP = np.concatenate([np.busday_offset("2019-01-01", np.arange(30)),
                             np.busday_offset("2019-01-01", np.arange(150, 180))])


@pytest.mark.parametrize(("text", "words"), [
    (series([*STEADY[:30], *(a / 10 for a in STEADY[30:])]), ["line 32, column 'A'", "from 101 to 10.2",
                                                               "split of 10:1", "adjusted for splits"]),
    (series([*STEADY[:30], *(a * 2 for a in STEADY[30:])]), ["line 32, column 'A'", "split of 1:2"]),
    (series([*STEADY[:30], 10_200, *STEADY[31:]]), ["line 32, column 'A'", "the next day it is back",
                                                     "factor of about 101", "correct it"]),
    (series(STEADY, WITH_A_GAP), ["line 32", "120 business days have no row after 2019-02-11", "add the missing rows"]),
    (series([7] * 60), ["line 2, column 'A'", "stays 7 for 60 days", "leave the ticker out"]),
    (series([*STEADY[:30], *[105] * 30]), ["line 32, column 'A'", "stays 105 for 30 days", "if it was delisted"]),
])
def test_unusual_prices_are_refused_and_can_be_accepted(write, text, words):
    path = write(text)
    with pytest.raises(InputError) as error:
        read_prices(path)
    assert not [word for word in [*words, "set check=False"] if word not in str(error.value)], error.value
    assert len(read_prices(path, check=False).dates) == 60


def test_large_moves_and_holidays_are_usual(write):
    """Half as much again, a third less, and ten days without trade."""
    days = np.array(["2019-01-02", "2019-01-03", "2019-01-04", "2019-01-15"])
    assert read_prices(write(series([10, 15, 10, 10.5], days))).closes[1, 0] == 15


def test_a_delisted_stock_ends(write):
    """Its last price is kept, so that its relative prices are 1 afterwards."""
    prices = read_prices(write(series([*STEADY[:40], *[""] * 20])))
    assert prices.delisted_after("A") == str(prices.dates[39])
    assert prices.delisted_after("B") is None
    assert np.isnan(prices.closes[40:, 0]).all()
    filled = prices.filled().closes
    np.testing.assert_array_equal(filled[40:, 0], STEADY[39])
    np.testing.assert_array_equal(filled[:40], prices.closes[:40])
    markets = draw_markets(prices, parties=2, assets=2, train_until=str(prices.dates[30]))
    np.testing.assert_array_equal(markets.closes(0)[:, list(markets.tickers(0)).index("A")], filled[:, 0])
    assert f"A was delisted after {prices.dates[39]}: its last price is kept" in markets.notes


def test_real_prices_have_their_dates_and_first_days(real_data):
    prices = read_prices(str(real_data / "stocks" / "sp500_tech50_adjclose_2006_2019.csv.gz"))
    assert prices.closes.shape == (3523, 50)
    assert (str(prices.dates[0]), str(prices.dates[-1])) == ("2006-01-03", "2019-12-31")
    late = {ticker: prices.listed_since(ticker) for ticker in prices.tickers
            if prices.listed_since(ticker) != "2006-01-03"}
    assert late == {"CTL": "2006-07-07", "MA": "2006-05-25", "WU": "2006-10-02", "TEL": "2007-06-14",
                    "AVGO": "2009-08-06", "CHTR": "2010-01-05", "FB": "2012-05-18"}
    test = prices.between("2019-01-01", "2019-12-31", preceding=1)
    assert (len(test.dates), str(test.dates[0]), str(test.dates[-2])) == (253, "2018-12-31", "2019-12-30")
    assert np.isfinite(prices.filled().closes).all()
