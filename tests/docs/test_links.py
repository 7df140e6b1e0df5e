"""Relative links of pages that are not on the site lead to files; ``mkdocs build --strict`` checks the others."""

import re

from docs.outside_modules import ROOT, name_of

PAGES = [ROOT / "README.md", *(page for folder in ("benchmarks", "experiments", "src")
                               for page in sorted((ROOT / folder).rglob("*.md")))]


def test_links_lead_to_files():
    targets = [(page, target) for page in PAGES
               for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text("utf-8"))]
    assert [f"{name_of(page)}: {target}" for page, target in targets if not (page.parent / target).exists()] == []


def test_the_readme_has_links():
    assert PAGES[0].read_text("utf-8").count("](docs/") > 10
