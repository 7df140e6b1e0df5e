"""The recipes run, hold what they assert, draw a picture, and are shown."""

import importlib.util
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("recipes", ROOT / "docs" / "recipes.py")
RECIPES = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RECIPES)
FILES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.when_changed(f"examples/{name}.py")) for name in FILES])
def test_recipe_runs_and_draws(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    variables, printed = RECIPES.run(name), capsys.readouterr().out
    page = (ROOT / "docs" / "regression.md").read_text("utf-8")
    shown = re.findall(rf"<!-- printed by examples/{name}\.py -->\n```text\n(.*?)```", page, re.DOTALL)
    assert all(block in printed for block in shown)
    assert any(axes.has_data() for axes in variables["figure"].axes)
    plt.close("all")  # otherwise matplotlib warns of many figures
    if name == "hospital":
        shown = variables["comparison"]._repr_html_()
        assert "<td>Essen</td>" in shown


def test_every_script_is_on_the_page_once():
    assert sorted(RECIPES.names()) == FILES
    assert len(FILES) >= 25


def test_no_script_hides_a_module_of_python():
    """Python puts a script's folder first in its path: beside compression.py, JAX cannot be imported."""
    assert {*FILES} & {*sys.stdlib_module_names, "compression"} == set()


def test_pages_of_recipes():
    wrong = []
    for name in FILES:
        recipe = RECIPES.read(name)
        wrong += [f"{name}: {problem}" for problem, is_wrong in {
            "more than 110 lines": len(recipe.code.splitlines()) >= 110,
            "no picture": not (RECIPES.PICTURES / f"{name}.webp").is_file(),
            "another title": not RECIPES.page_of(name).startswith(f"# {recipe.title}\n"),
        }.items() if is_wrong]
        wrong += [f"{name}: a link to {target}" for target in RECIPES.links(recipe.text)
                  if not (ROOT / "docs" / target.split("#")[0]).is_file()]
    assert wrong == []
