"""The examples of samples of any structure run, are short, and learn."""

import re
import types
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "samples"
AT_EVERY_COMMIT = ("multi_label", "two_targets")
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in AT_EVERY_COMMIT else pytest.mark.nightly) for name in EXAMPLES])
def test_example_learns(name):
    names = types.ModuleType("example").__dict__
    exec(compile((FOLDER / f"{name}.py").read_text("utf-8"), name, "exec"), names)
    result = names["result"]
    scores = result.scores("train").mean(axis=1)
    sign = 1 if result.problem.higher_is_better else -1
    assert sign * scores.iloc[-1] > sign * scores.iloc[0]
    if name == "matrix_factorisation":  # one vector for all users cannot tell them apart
        private, shared = (names[run].scores("test").iloc[-1].mean() for run in ("result", "shared"))
        assert private < 0.7 * shared


def test_examples_are_short_and_shown_in_the_gallery():
    gallery = (FOLDER.parents[1] / "docs" / "gallery.md").read_text("utf-8")
    assert len(EXAMPLES) == 7
    for name in EXAMPLES:
        assert len((FOLDER / f"{name}.py").read_text("utf-8").splitlines()) < 60
        assert re.search(rf'--8<-- "examples/samples/{name}\.py"', gallery)
