"""Relative links of pages that are not on the site lead to files; ``mkdocs build --strict`` checks the others."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "benchmarks").rglob("*.md")), ROOT / "experiments" / "README.md",
         ROOT / "experiments" / "results" / "README.md", ROOT / "src" / "xla_cpu_rewrites" / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text("utf-8"))
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_the_readme_has_links():
    assert PAGES[0].read_text("utf-8").count("](docs/") > 30
