"""Formulas of the pages as MathML, which browsers typeset without a script or a download.

Blocks of the language ``math`` and formulas between dollars are LaTeX. In prose a letter with an index, such as w_k, is
set as one, and so are powers, prox and env.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(?P<tag>div|span) class="arithmatex">\\[\[(](?P<latex>.*?)\\[\])]</(?P=tag)>', re.DOTALL)
BARS = re.compile(r"(?<!\\left)(?<!\\right)(?<!\\)\|([^|]+?)(?<!\\right)(?<!\\left)\|")  # a norm, not two operators
TAG = re.compile(r"(<[^>]+>)")
AS_IT_IS = re.compile(r"</?(?:code|pre|math|script|style|svg|title)\b")
# A letter, which can have an accent, and its index: w_k, w̃_k, λ_k, ∇f_k, n_k², not parts of names such as from_equinox.
INDEXED = re.compile(r"(?<![\w_.])([A-Za-zΑ-ω𝒜ȳ][̀-ͯ]?)_([A-Za-z0-9]|avg|max|kl)(?![\w_])")
OPERATOR = re.compile(r"\b(prox|env)_(?:\{([^{}]+)\}|([A-Za-zΑ-ω]))(?![\w_])")
POWER = re.compile(r"(?<=[\w)|;])\^(?:\{([^{}]+)\}|(-?[^\W_]+)(?![\w(]))")  # 2^24, w^t, not factor^floor(t)


def on_page_content(content: str, **_: Any) -> str:
    """Typeset the formulas of a page."""
    pieces, depth = TAG.split(FORMULA.sub(lambda m: typeset(m["latex"], m["tag"]), content)), 0
    for i, piece in enumerate(pieces):
        if AS_IT_IS.match(piece):
            depth += -1 if piece.startswith("</") else 1
        elif not i % 2 and not depth:
            piece = OPERATOR.sub(r"\1<sub>\2\3</sub>", POWER.sub(r"<sup>\1\2</sup>", piece))
            pieces[i] = INDEXED.sub(r"<var>\1<sub>\2</sub></var>", piece)
    return "".join(pieces)


def typeset(latex: str, tag: str) -> str:
    """MathML of one formula; one in a ``div`` has a line of its own."""
    text = BARS.sub(r"\\left|\1\\right|", html.unescape(latex).strip())
    formula = convert(text, display="block" if tag == "div" else "inline")
    # A long formula scrolls: the keyboard must reach it.
    return f'<{tag} class="formula" tabindex="0">{formula}</{tag}>' if tag == "div" else formula
