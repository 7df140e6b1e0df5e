"""Formulas of the pages become MathML, and letters with an index are set in prose only."""

import ast
import re
from xml.etree import ElementTree

import pytest

from docs.outside_modules import HOOKS, ROOT, load

pytest.importorskip("latex2mathml")
MATHEMATICS = load("docs/mathematics.py")
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]
BLOCK = re.compile(r"^ *```math\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def docstrings():
    """The docstrings with a displayed formula, as the reference has them."""
    for path in (ROOT / "src").rglob("*.py"):
        if ".. math::" in (source := path.read_text("utf-8")):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    yield HOOKS.markdown_of(ast.get_docstring(node) or "")


def test_every_formula_is_understood():
    """A command that the converter does not know would show with its backslash, and an alignment as an ampersand."""
    texts = [*(page.read_text("utf-8") for page in PAGES), *docstrings()]
    assert not any(".. math::" in text for text in texts)
    formulas = [latex for text in texts for latex in BLOCK.findall(text)]
    assert len(formulas) > 50
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


def test_powers_and_operators_are_set_in_prose():
    content = "<p>prox_{δφ}(r), prox_Ψ^{1/σ}, 2^24, factor^floor(t / period), |g|^2 <code>x^2</code></p>"
    assert MATHEMATICS.on_page_content(content) == (
        "<p>prox<sub>δφ</sub>(r), prox<sub>Ψ</sub><sup>1/σ</sup>, 2<sup>24</sup>, factor^floor(t / period), "
        "|g|<sup>2</sup> <code>x^2</code></p>")
