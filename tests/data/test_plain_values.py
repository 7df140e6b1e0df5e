"""Objects of plain values: what sites, servers and files say is read with its types, or refused by name."""

import json
from dataclasses import asdict

import pytest

from resolvent.comparisons.regression.agreement import RowsAgreement, RowsReport
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.data.files.plain_values import read_plain
from resolvent.errors import InputError

REPORT = RowsReport(3, 1, {"ward": {"A": 2, "B": 1}}, ("age",), (), "classes", {"no": 2, "yes": 1}, 0.0)
AGREEMENT = RowsAgreement({"ward": ["A", "B"]}, "binomial", {"no": 2, "yes": 1}, 1 / 3, {"Ulm": 3}, {}, missing={
    "*": ["?", -999]})


@pytest.mark.parametrize("value", [REPORT, AGREEMENT, RegressionModel(
    "ill ~ age", ("Intercept", "age"), "binomial", ("no", "yes"), (2, 1), 1 / 3, ("Ulm",), (3,), {}, 0.0, "",
    {"ward": ["A"]}, {"offset": "risk"}, {"*": ["?", 0.5]}, weights="frequency")])
def test_an_object_comes_back_from_json(value):
    assert read_plain(type(value), json.loads(json.dumps(asdict(value))), "file") == value


@pytest.mark.parametrize(("change", "words"), [
    ({"rows": "many"}, r"the site sent no report \(rows: .*integer"), ({"rows": 0}, "there are no rows"),
    ({"classes": {"no": -1}}, "a count is negative"), ({"levels": {"ward": 3}}, r"\(levels.ward: "),
    ({"label": "colours"}, r"\(label: "), ({"total": float("nan")}, "a sum is too large"), ({"left_out": []}, "left_")])
def test_what_is_no_report_is_refused_by_name(change, words):
    with pytest.raises(InputError, match=words):
        read_plain(RowsReport, {**asdict(REPORT), **change}, "the site sent no report")
    for content in (None, [], "report", {}):
        with pytest.raises(InputError, match="the site sent no report"):
            read_plain(RowsReport, content, "the site sent no report")
    with pytest.raises(InputError, match="there is no such family"):
        read_plain(RowsAgreement, {**asdict(AGREEMENT), "family": "normal"}, "the server sent no agreement")
