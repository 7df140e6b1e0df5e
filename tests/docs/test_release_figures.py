"""The page of release figures is computed from the committed results: a changed result changes the page."""

import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import resolvent

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("release", ROOT / "docs" / "release.py")
RELEASE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RELEASE)


def test_every_figure_has_a_command_and_the_page_has_all():
    rows = RELEASE.figures()
    assert len({row.subject for row in rows}) == len(rows) > 7
    assert all(row.command.startswith(("python ", "resolvent ")) for row in rows)
    page = RELEASE.on_page_markdown((ROOT / "docs" / "release.md").read_text("utf-8"))
    assert all(row.value in page for row in rows)


def test_figures_follow_the_results(monkeypatch):
    record = json.loads((ROOT / "benchmarks" / "federation_faults.json").read_text("utf-8"))
    monkeypatch.setattr(RELEASE, "benchmark", lambda name: record | {"runs with another result": 2})
    (row,) = RELEASE.kills()
    kills = record["cases"] - record["cases without such a process"]
    assert row.value.startswith(f"{kills} kills in {record['runs']} runs; 2 runs")


def test_the_version_is_the_same_everywhere():
    """In the package, the citation, the changelog's newest release and the footer of the site."""
    version = resolvent.__version__
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    (name, date), *_ = re.findall(r"^## \[(\d[\d.]*)\] - ([\d-]+)$", changelog, re.MULTILINE)
    assert name == version
    assert f"\nversion: {version}\ndate-released: {date}\n" in citation
    assert RELEASE.on_config(SimpleNamespace()).copyright == f"Resolvent {version}"
