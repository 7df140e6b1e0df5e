"""Formulas of the pages become MathML, and letters with an index are set in prose only."""

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("latex2mathml")
ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("mathematics", ROOT / "docs" / "mathematics.py")
MATHEMATICS = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(MATHEMATICS)
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]
BLOCK = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_formula_is_understood():
    """A command that the converter does not know would show with its backslash, and an alignment as an ampersand."""
    formulas = [latex for page in PAGES for latex in BLOCK.findall(page.read_text("utf-8"))]
    assert len(formulas) > 25
    for latex in formulas:
        shown = "".join(ElementTree.fromstring(MATHEMATICS.typeset(latex, "div")).itertext())
        assert not re.search(r"[\\&{}]", shown), latex


def test_a_formula_of_the_page_becomes_mathml():
    content = MATHEMATICS.on_page_content('<p>With <span class="arithmatex">\\(a &lt; |b|\\)</span>.</p>')
    assert ElementTree.fromstring(content).find(".//{*}math") is not None
    assert "arithmatex" not in content
    assert MATHEMATICS.typeset("|b|", "span").count('stretchy="true"') == 2


def test_indices_are_set_in_prose_and_not_in_code():
    code = "<code>w_k</code></p><pre><span>w_k</span></pre>"
    content = f"<p>w_k and w\u0303_k, |∇f_k|², from_equinox, rv.f_k {code}"
    shown = MATHEMATICS.on_page_content(content)
    letters = [f"<var>{letter}<sub>k</sub></var>" for letter in ("w", "w\u0303", "f")]
    assert shown.startswith("<p>{} and {}, |∇{}|²".format(*letters))
    assert "from_equinox" in shown
    assert "rv.f_k" in shown
    assert shown.endswith(code)
