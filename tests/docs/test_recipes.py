"""The recipes of the gallery run, hold what they assert, draw a picture, and are shown."""

import importlib.util
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("recipes", ROOT / "docs" / "recipes.py")
RECIPES = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RECIPES)
FILES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
AT_EVERY_COMMIT = ("multi_label", "two_targets")  # those that compile least


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in AT_EVERY_COMMIT else pytest.mark.nightly) for name in FILES])
def test_recipe_runs_and_draws(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    variables = RECIPES.run(name)
    assert any(axes.has_data() for axes in variables["figure"].axes)
    plt.close("all")  # otherwise matplotlib warns of many figures
    if name == "hospital":
        shown = variables["comparison"]._repr_html_()
        assert "<td>Essen</td>" in shown


def test_every_script_is_in_the_gallery_once():
    assert sorted(RECIPES.names()) == FILES
    assert len(FILES) >= 25
    assert set(AT_EVERY_COMMIT) <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_page_of_a_recipe(name):
    recipe = RECIPES.read(name)
    assert len(recipe.code.splitlines()) < 110
    assert (RECIPES.PICTURES / f"{name}.webp").is_file()
    page = RECIPES.page_of(name)
    assert page.startswith(f"# {recipe.title}\n")
    for target in RECIPES.links(recipe.text):
        assert (ROOT / "docs" / target.split("#")[0]).is_file(), target
