"""Tables with several labels: targets of a regression, and labels of two values."""

import numpy as np
import pandas as pd
import pytest

import resolvent as rv
from resolvent.errors import InputError
from resolvent.tables.checks.table_check import check_frame
from resolvent.tables.encoding_files import from_plain, to_plain
from resolvent.tables.party_tables import from_frame
from resolvent.tables.table_options import TableOptions

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"site": list("aabb") * 5, "age": RNG.normal(50, 9, 20), "upper": RNG.normal(12, 1, 20),
                      "lower": RNG.normal(8, 1, 20), "ill": ["no", "yes"] * 10,
                      "smokes": [True, True, False, False] * 5, "stage": [1, 2, 3, 4] * 5})


def test_targets_are_columns_in_the_order_of_the_setting():
    data = from_frame(FRAME, "site", ["lower", "upper"], features=["age"], validation=0, test=0, scale="none")
    assert (data.task, data.label_shape, data.outputs) == ("regression", (2,), 2)
    rows = data.party("b")
    expected = FRAME[FRAME["site"] == "b"].sort_values("age")
    order = np.argsort(rows[0][:, 0])
    np.testing.assert_allclose(rows[1][order], expected[["lower", "upper"]])


@pytest.mark.when_changed
def test_labels_of_two_values_are_0_and_1_and_predictions_are_the_values_of_the_columns():
    data = from_frame(FRAME, "site", ["ill", "smokes"], features=["age"], validation=0, test=0, seed=3)
    assert (data.task, data.classes, data.outputs) == ("structured", (), 2)
    encoding = from_plain(to_plain(data.encoding))
    assert encoding == data.encoding
    y = encoding.encode_labels(FRAME)
    np.testing.assert_array_equal(y, np.stack([FRAME["ill"] == "yes", FRAME["smokes"]], axis=1))
    np.testing.assert_array_equal(encoding.encode_labels(FRAME, FRAME[["ill", "smokes"]].to_numpy()), y)
    assert encoding.decode_labels(y[:3]).tolist() == FRAME[["ill", "smokes"]][:3].to_numpy().tolist()
    again = from_frame(FRAME, "site", ["ill", "smokes"], encoding=encoding, validation=0, test=0, seed=3)
    np.testing.assert_array_equal(again.y, data.y)
    result = rv.simulate(rv.fedavg(rv.SGD(0.1)), rv.models.logistic(1, 2, task="structured"), data, rounds=1,
                         progress=False)
    predicted = result.fitted("a").predict(FRAME[["age"]])
    assert {*predicted[:, 0]} <= {"no", "yes"}
    assert {*predicted[:, 1]} <= {True, False}


@pytest.mark.parametrize(("label", "options", "message"), [
    (["ill", "upper"], {}, "1 of 2 are decimal numbers, 'upper'"),
    (["ill", "stage"], {}, "'stage' has 4"),
    (["ill", "ill"], {}, "'ill' is named twice"),
    (["ill", "age"], {"features": ["age"]}, "'age' is named twice, as label and features"),
    (["ill", "smoke"], {}, "label names the column 'smoke'"),
    ([], {}, "the list is empty"),
    (["ill", "upper"], {"task": "regression"}, "'ill' holds text values"),
])
def test_labels_that_do_not_belong_together_are_refused(label, options, message):
    with pytest.raises(InputError, match=message):
        from_frame(FRAME, "site", label, **{"features": ["stage"] * ("stage" not in label) or ["age"], **options})


def test_a_missing_label_is_found_in_every_column():
    frame = FRAME.assign(smokes=FRAME["smokes"].astype(object).where(FRAME.index != 5, None))
    with pytest.raises(InputError, match=r"5.*smokes|smokes.*5"):
        from_frame(frame, "site", ["ill", "smokes"], features=["age"])
    findings = check_frame(frame, TableOptions.of({"party": "site", "label": ["ill", "smokes"]}))[1]
    assert [(f.kind, f.column) for f in findings if f.severity == "error"] == [("missing", "smokes")]
