"""Splits, dividends, delistings, closed days and members of a universe, against returns by hand."""

import numpy as np
import pytest

import resolvent as rv
from experiments import portfolio

# Five trading days; the 4th is closed. A: 4:1 split on the 3rd, dividend of 1 (new shares) on the 5th, both together
# would be of new shares. B is delisted after the 3rd at 5. C is listed on the 3rd.
TRADED = """Date,A,B,C
2019-06-28,400,10,
2019-07-01,404,11,
2019-07-02,408,12,
2019-07-03,103,8,20
2019-07-05,101,,21
2019-07-08,102,,22
"""
ACTIONS = """Date,Ticker,Action,Value
2019-07-08,B,leaves,
2019-07-03,A,split,4
2019-07-05,A,dividend,1
2019-07-05,B,delisting,5
2019-06-28,A,joins,
2019-06-28,B,joins,
2019-07-05,C,joins,
2019-07-04,,closed,
"""


@pytest.fixture
def files(tmp_path):
    def write(actions=ACTIONS, traded=TRADED):
        paths = tmp_path / "traded.csv", tmp_path / "actions.csv"
        for path, text in zip(paths, (traded, actions), strict=True):
            path.write_text(text)
        return portfolio.read_prices(str(paths[0]), check=False), portfolio.read_actions(str(paths[1]))
    return write


def test_returns_are_those_of_an_investor(files):
    """100 shares of A become 400, and the dividend buys more at the close before it; B ends at what it brought."""
    prices, actions = files()
    adjusted = actions.adjusted(prices).filled().closes
    value_of_a = np.array([400, 404, 408, 4 * 103, 4 * 103 / 102 * 101, 4 * 103 / 102 * 102])
    np.testing.assert_allclose(adjusted[1:, 0] / adjusted[:-1, 0], value_of_a[1:] / value_of_a[:-1], rtol=1e-12)
    np.testing.assert_allclose(adjusted[:, 1], [10, 11, 12, 8, 5, 5])
    assert adjusted[-1, 0] == 102  # the last prices are as traded


def test_a_dividend_on_the_day_of_a_split_is_of_new_shares(files):
    prices, actions = files(ACTIONS.replace("2019-07-05,A,dividend", "2019-07-03,A,dividend"))
    adjusted = actions.adjusted(prices).closes[:, 0]
    # One share of 408 becomes four of 102 with a dividend of 1 each.
    np.testing.assert_allclose(adjusted[3] / adjusted[2], 103 / (102 - 1), rtol=1e-12)


@pytest.mark.parametrize(("day", "members"), [("2019-06-28", ("A", "B")), ("2019-07-03", ("A", "B")),
                                              ("2019-07-05", ("A", "C")), ("2019-07-08", ("A", "C"))])
def test_the_universe_as_it_was_known(files, day, members):
    """C has a price two days before it joins; B has none from its delisting on, before it leaves."""
    prices, actions = files()
    assert actions.members(prices, day) == members


def test_a_universe_without_a_list_of_members_is_what_has_a_price(files):
    prices, _ = files()
    assert portfolio.Actions(()).members(prices, "2019-07-02") == ("A", "B")


def test_every_trading_day_has_a_row_and_no_other_day(files):
    prices, actions = files()
    actions.check_days(prices)
    with pytest.raises(rv.InputError, match="no row on 2019-07-04, a trading day: add it, or add a row 'closed' to"):
        files(ACTIONS.replace("2019-07-04,,closed,\n", ""))[1].check_days(prices)
    with pytest.raises(rv.InputError, match="a row on 2019-07-05, which is no trading day"):
        files(ACTIONS + "2019-07-05,,closed,\n")[1].check_days(prices)


@pytest.mark.parametrize(("old", "new", "message"), [
    ("split,4", "spilt,4", "line 3: there is no action 'spilt'; did you mean 'split'"),
    ("split,4", "split,", "line 3: split needs a value"),
    ("split,4", "split,-4", "line 3, column 'Value': the price '-4' must be a positive number"),
    ("A,joins,", "A,joins,1", "line 6: joins has no value"),
    (",,closed,", ",A,closed,", "line 9: closed has no ticker"),
    ("2019-07-03,A", "3.7.2019,A", "line 3, column 'Date': '3.7.2019' is not a date"),
    ("Value", "Amount", "must be Date, Ticker, Action, Value"),
    ("2019-07-03,A", "2019-06-28,A", "'A' on 2019-06-28: it has no price before this day"),
    ("A,dividend,1", "A,dividend,200", "200 a share is not less than the close before it, 103"),
    ("2019-07-05,B", "2019-07-03,B", "must be a row of traded.csv after its last price, 2019-07-03"),
    ("2019-07-03,A", "2019-07-03,X", "has no ticker 'X'"),
])
def test_what_is_wrong_is_refused(files, old, new, message):
    def adjust():
        prices, actions = files(ACTIONS.replace(old, new))
        return actions.adjusted(prices)

    with pytest.raises(rv.InputError, match=message):
        adjust()


def test_an_experiment_reads_them(files, tmp_path):
    """The universes of parties are drawn from the members of a day; later listings are not in them."""
    files()
    data = portfolio.prices(prices=str(tmp_path / "traded.csv"), actions=str(tmp_path / "actions.csv"), parties=3,
                               assets=2, train_until="2019-07-03", universe_on="2019-07-02")
    assert {ticker for k in range(3) for ticker in data.tickers(k)} == {"A", "B"}
    np.testing.assert_allclose(data.prices.select(["B"]).closes[:, 0], [10, 11, 12, 8, 5, np.nan])
    (tmp_path / "actions.csv").write_text(ACTIONS.replace("2019-07-04,,closed,\n", ""))
    with pytest.raises(rv.InputError, match="no row on 2019-07-04"):
        portfolio.prices(prices=str(tmp_path / "traded.csv"), actions=str(tmp_path / "actions.csv"), parties=3,
                            assets=2, train_until="2019-07-03")


def test_the_real_universe_of_2006_and_the_bound_of_survival(real_data):
    """The page of the portfolio: 46 members, and their growth a year if a share of the universe had failed."""
    prices = portfolio.read_prices(str(real_data / "stocks" / "sp500_tech50_adjclose_2006_2019.csv.gz"))
    members = portfolio.Actions(()).members(prices, "2006-12-29")
    assert set(prices.tickers) - set(members) == {"AVGO", "CHTR", "FB", "TEL"}
    closes = prices.select(members).between(first="2006-12-29").closes
    growth = (closes[-1] / closes[0]).sum()
    numbers = [(growth / round(46 / (1 - failed)))**(1 / 13) - 1 for failed in (0, 0.1, 0.2, 0.3)]
    np.testing.assert_allclose(numbers, [0.165, 0.156, 0.145, 0.134], atol=6e-4)
