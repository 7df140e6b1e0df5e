"""Values of 100 kB in a table, an array or a file are shortened in errors."""

import json

import numpy as np
import pandas as pd
import pytest

from resolvent import datasets
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, nearest
from resolvent.tables.party_tables import from_frame, table

LONG = "z" * 100_000
MAX_LENGTH = 1500  # a few values of 200 characters, and the text of the message


def frame(**columns):
    return pd.DataFrame({"p": "a", "x": [1.0, 2.0], "y": [0, 1]} | columns)


def cells(count):
    """That many different values of 100 kB."""
    return [f"{LONG}{k}" for k in range(count)]


def frame_of(count, **columns):
    return pd.DataFrame({"p": "a", "y": np.arange(count) % 2} | columns)


FRAMES = {
    "party option": lambda: from_frame(frame(), LONG, "y"),
    "label option": lambda: from_frame(frame(), "p", LONG),
    "features option": lambda: from_frame(frame(), "p", "y", features=[LONG]),
    "exclude option": lambda: from_frame(frame(), "p", "y", exclude=[LONG]),
    "task option": lambda: from_frame(frame(), "p", "y", task=LONG),
    "misspelt column": lambda: from_frame(frame(**{LONG: 1.0}), "p", LONG + "z"),
    "infinite value": lambda: from_frame(frame(**{LONG: np.inf}), "p", "y"),
    "party and row": lambda: from_frame(frame(p=LONG, x=np.nan).set_axis([LONG, "b"]), "p", "y"),
    "dates": lambda: from_frame(frame(**{LONG: pd.Timestamp("2020")}), "p", "y"),
    "column used twice": lambda: from_frame(frame(**{LONG: 1}), LONG, LONG),
    "too many categories": lambda: from_frame(frame_of(101, **{LONG: cells(101)}), "p", "y"),
    "mostly numbers": lambda: from_frame(frame_of(103, x=[*map(str, range(102)), LONG]), "p", "y"),
    "one class": lambda: from_frame(frame(y=LONG), "p", "y"),
    "missing label": lambda: from_frame(frame(y=[LONG, None]).rename(columns={"y": LONG}), "p", LONG),
    "many classes": lambda: from_frame(frame_of(101, x=1.0).assign(y=cells(101)), "p", "y"),
    "label kind": lambda: from_frame(frame(y=LONG), "p", "y", task="regression"),
    "nothing to impute": lambda: from_frame(frame(**{LONG: np.nan}), "p", "y", missing="impute"),
    "unknown level": lambda: from_frame(frame(x=cells(2)), "p", "y").encoding.transform(frame(x=LONG)),
    "absent column": lambda: from_frame(frame(**{LONG: 1.0}), "p", "y").encoding.transform(frame(**{LONG + "z": 1.0})),
    "text for numbers": lambda: from_frame(frame(**{LONG: 1.0}), "p", "y").encoding.transform(frame(**{LONG: LONG})),
    "empty table": lambda: from_frame(frame()[:0], "p", "y", name=LONG),
    "surrogate": lambda: from_frame(frame(x=pd.Series(["\ud800" + LONG, "b"], dtype=object)), "p", "y"),
    "surrogate party": lambda: from_frame(frame(p=pd.Series(["\ud800" + LONG, "b"], dtype=object)), "p", "y"),
    "same parties": lambda: FederatedData.from_arrays([np.eye(2)] * 2, [[0, 1]] * 2, parties=[LONG, LONG]),
    "party samples": lambda: FederatedData.from_arrays([np.eye(2)], [[0]], parties=[LONG]),
    "inputs type": lambda: FederatedData.from_arrays([np.array([[LONG]])], [[0]]),
    "structured type": lambda: FederatedData.from_arrays([np.zeros(1, [(LONG, int)])], [[0]]),
    "unknown class": lambda: FederatedData.from_arrays([np.eye(2)], [cells(2)], classes=cells(1)),
    "unknown party": lambda: FederatedData.from_arrays([np.eye(2)], [[0, 1]]).party(LONG),
    "missing file": lambda: table(f"{LONG}.csv", "p", "y"),
    "other ending": lambda: table(LONG, "p", "y"),
    "spreadsheet": lambda: table(f"{LONG}.xlsx", "p", "y"),
    "separator": lambda: table("t.csv", "p", "y", separator=LONG),
    "decimal": lambda: table("t.csv", "p", "y", decimal=LONG),
    "encoding": lambda: table("t.csv", "p", "y", encoding=LONG),
    "missing data file": lambda: datasets.leaf(train=LONG),
}


@pytest.mark.when_changed
@pytest.mark.parametrize("name", FRAMES)
def test_errors_about_arguments_and_frames_are_short(name):
    with pytest.raises(InputError) as caught:
        FRAMES[name]()
    assert len(str(caught.value)) < MAX_LENGTH


@pytest.mark.parametrize("text", [
    f"{LONG},x,y\na,1,0\n", f"p,{LONG},{LONG},y\na,1,2,0\na,2,2,1\n", f"p;x,{LONG};z,y\n",
    f"p,x,y\n{LONG},,0\na,1,1\n", f'p;{LONG};y\na;1,234;0\na;2,345;1\n', f"p,x,y\na,1,{LONG}\na,2,{LONG}\n",
    f"p;x;y\na;1,234,567,{'000,' * 25_000}000;0\na;1;1\n", f"p;x;y\na;1,{'5' * 100_000};0\na;2.5;1\n",
    f"p,x,y\n{LONG}ü,1,0\n", f'p,x,y\na,"{LONG},0\n', f"p,x,y\na,{LONG}\n"])
def test_errors_about_text_tables_are_short(tmp_path, text):
    (tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError) as caught:
        table(str(tmp_path / "t.csv"), "p", "y")
    assert len(str(caught.value)) < MAX_LENGTH


@pytest.mark.parametrize("content", [
    {LONG: 1}, {"users": LONG, "num_samples": [], "user_data": {}},
    {"users": [LONG], "num_samples": [2], "user_data": {}},
    {"users": [LONG] * 2, "num_samples": [2] * 2, "user_data": {}},
    {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[LONG]], "y": [0]}}},
    {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": [[LONG]]}}},
    {"users": ["a"], "num_samples": [LONG], "user_data": {"a": {"x": [[1]], "y": [1]}}},
    {"users": [LONG], "num_samples": [1], "user_data": {LONG: {"x": [LONG], "y": [LONG]}}}])
def test_errors_about_leaf_files_are_short(tmp_path, content):
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        datasets.leaf(train=str(tmp_path / "a.json"))
    assert len(str(caught.value)) < MAX_LENGTH


@pytest.mark.parametrize("content", [f"1 1:{LONG}\n", f"{LONG} 1:1\n", f"1 {LONG}:1\n"])
def test_errors_about_libsvm_files_are_short(tmp_path, content):
    (tmp_path / "a.svm").write_text(content)
    with pytest.raises(InputError) as caught:
        datasets.libsvm(file=str(tmp_path / "a.svm"))
    assert len(str(caught.value)) < MAX_LENGTH


def test_errors_about_texts_are_short(tmp_path):
    (tmp_path / "s.csv").write_text(f"user_id,{LONG},text\n7,a,b\n")
    (tmp_path / "s.txt").write_text(LONG)
    (tmp_path / "s.xml").write_text(f'<users><row {LONG}="1" /></users>')
    calls = [lambda: datasets.sentiment(file=str(tmp_path / "s.csv")),
             lambda: datasets.sentiment(file=str(tmp_path / "s.csv"), label=LONG),
             lambda: datasets.shakespeare(file=str(tmp_path / "s.txt")),
             lambda: datasets.stackexchange(file=str(tmp_path / "s.xml"))]
    for call in calls:
        with pytest.raises(InputError) as caught:
            call()
        assert len(str(caught.value)) < MAX_LENGTH


def test_long_words_are_not_compared():
    assert nearest(LONG, [LONG + "z"]) == nearest("zz", [LONG]) == ""
    assert nearest("site", [LONG, "sites"]) == "; did you mean 'sites'?"
