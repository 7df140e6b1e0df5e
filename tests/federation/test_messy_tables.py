"""Messy tables, as people write them, are read alike by check, run, regress and the sites of a federation."""

import tempfile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import nightly
from data.hostile import CELLS, CHOICES, LABELS, Messy
from federation.messy_readers import Readers, run_messy
from resolvent.tables.party_tables import table

KINDS = st.sampled_from(sorted(CELLS))
TABLES = st.builds(Messy, cells=st.tuples(KINDS, st.sampled_from(["decimals", "levels", "codes", "empty cells"])),
                   odd=KINDS, label=st.sampled_from(LABELS), seed=st.integers(0, 2**31),
                   **{name: st.sampled_from(values) for name, values in CHOICES.items()})


@pytest.mark.when_changed
@settings(max_examples=nightly.examples(30), deadline=None)
@given(TABLES)
@example(Messy(("a few numbers", "levels"), "true or false", "decimals"))
@example(Messy(("a word in every eighth row", "levels"), "a word in every eighth row", "decimals"))
@example(Messy(("decimal commas and ?", "levels"), "decimal commas and ?", "levels", separator=";", missing=["?"]))
def test_all_readers_say_the_same_about_a_table_that_has_other_cells_at_one_site(case):
    with tempfile.TemporaryDirectory() as folder:
        assert Readers(case, folder).compare() == []


@pytest.mark.when_changed
def test_tables_of_the_campaign_are_read_alike(tmp_path):
    assert run_messy(20, seed=14, folder=tmp_path) == []


def test_a_reader_that_differs_is_found(tmp_path, monkeypatch):
    """The comparison itself: a table read with another number, and a site with another name of a level."""
    case = Messy(("decimals", "levels"), "decimals", "decimals")
    readers = Readers(case, tmp_path)
    data = table(str(readers.path), "site", "y", scale="none")
    data.x[3, 0] += 1
    readers.compare_with_hand(data)
    assert readers.problems == ["age: other values than by hand"]
    rows = (tmp_path / "1.csv").read_text()
    (tmp_path / "1.csv").write_text(rows.replace("Rome", "Roma"))
    assert any("ward=Roma" in problem for problem in readers.compare())
