"""The notebooks of the folder ``examples`` run, in a small setting."""

import re
import types
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", [
    pytest.param(path, id=path.stem, marks=() if path.stem == "hospital" else pytest.mark.nightly)
    for path in EXAMPLES])
def test_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = re.sub(r"^(ROUNDS|SEEDS) = \d+$", r"\1 = 2", path.read_text("utf-8"), flags=re.MULTILINE)
    assert "\nROUNDS = 2\n" in text
    names = types.ModuleType("notebook").__dict__
    exec(compile(text, str(path), "exec"), names)
    if path.stem == "hospital":
        shown = names["comparison"]._repr_html_()
        assert "<td>Essen</td>" in shown
        assert repr(names["comparison"]) == "Comparison(alone, FedAvg, FedAvg+; 2 rounds, 2 seed(s))"


def test_notebooks_have_a_title_and_cells():
    assert {path.stem for path in EXAMPLES} == {"hospital", "own_algorithm", "own_network"}
    for path in EXAMPLES:
        cells = re.split(r"^# %%", path.read_text("utf-8"), flags=re.MULTILINE)
        assert len(cells) > 6
        assert cells[1].startswith(" [markdown]\n# # ")
