"""Names that the documentation puts in backticks exist, and every preset is where a reader looks for it."""

import re
from functools import cache, reduce
from pathlib import Path

import pytest

import resolvent as rv
from resolvent.study.binding import parameters
from resolvent.study.experiment import Experiment, experiments
from resolvent.study.registry import listings

ROOT = Path(__file__).parents[2]
GUIDES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "docs/choosing.md", "docs/theory.md")]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What these guides name beside what can be configured or imported as rv: commands, values, columns, inner parts.
WORDS = {"list", "report", "run", "show", "RESOLVENT_DATA", "drop", "FO", "HF", "exact", "from_equinox", "from_flax",
         "centre_iterations", "centre_residual", "finds_the_optimum", "party_weights", "admit", "Anchor", "ModelAggregation",
         "FedPlus", "Oracle"}


@cache
def known():
    """Everything that an experiment file can name or set, and everything at the top level."""
    functions = [f for kind in listings().values() for f in kind.values()]
    settings = {p for f in (*functions, Experiment, rv.simulate) for p in parameters(f)}
    return WORDS | settings | {n for kind in listings().values() for n in kind} | set(dir(rv)) | set(experiments())


def spans(page):
    """Code in backticks, fenced blocks left out."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.name)
def test_names_in_guides_exist(page):
    """A name alone, or one that is called or set: `fedpi`, `ErgodicAveraging(algorithm, weight)`, `lam: 0`."""
    found = [m[1] for m in (re.match(r"([A-Za-z_]\w*)(?:$|\(|: |=)", span) for span in spans(page)) if m]
    assert len(found) > 5
    assert not sorted(set(found) - known())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_is_called_rv_is_there(page):
    for path in re.findall(r"\brv((?:\.[A-Za-z_]\w*)+)", page.read_text("utf-8")):
        reduce(getattr, path[1:].split("."), rv)


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_every_preset_is_named(page):
    named = set(re.findall(r"\w+", " ".join(spans(ROOT / page))))
    assert not sorted(set(rv.presets.__all__) - named)


def test_every_combinator_and_kind_is_named():
    index, changelog = (set(re.findall(r"\w+", " ".join(spans(ROOT / page))))
                        for page in ("docs/api/index.md", "CHANGELOG.md"))
    assert not sorted(set(listings()["combinators"]) - (index & changelog))
    assert not sorted(set(listings()) - set(re.findall(r"\w+", (ROOT / "docs/experiments.md").read_text("utf-8"))))
