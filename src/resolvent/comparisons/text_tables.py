"""A table of texts in a language: plain text, LaTeX (with booktabs), Markdown or HTML."""

import html
from collections.abc import Callable, Sequence
from typing import Literal

TableForm = Literal["frame", "text", "latex", "markdown", "html"]
Mark = Literal["best", "second", ""]
Rows = Sequence[Sequence[tuple[str, Mark]]]


def text_table(head: Sequence[str], rows: Sequence[Sequence[tuple[str, Mark]]], form: TableForm, caption: str) -> str:
    """A table of texts with marks, which plain text does not show; all texts are escaped."""
    return _WRITERS[form](head, rows, caption)


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]], form: TableForm, caption: str = "") -> str:
    """A table without marks."""
    return text_table(head, [[(text, "") for text in row] for row in rows], form, caption)


_LATEX = str.maketrans({"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
                        "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
                        "–": "--", "−": "$-$", "ε": r"$\varepsilon$", "∞": r"$\infty$", "<": "$<$", ">": "$>$",
                        "≥": r"$\ge$"})


def _plain(head: Sequence[str], rows: Rows, caption: str) -> str:
    lines = [[*head], *([text for text, _ in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    body = [(row[0].ljust(widths[0]) + "".join("  " + text.rjust(width) for text, width in zip(
        row[1:], widths[1:], strict=True))).rstrip() for row in lines]
    return "\n".join([*([caption, ""] if caption else []), *body])


def _latex(head: Sequence[str], rows: Rows, caption: str) -> str:
    marks = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}
    lines = [" & ".join(marks[mark] % text.translate(_LATEX) for text, mark in row) + r" \\" for row in rows]
    return "\n".join([
        r"\begin{table}", r"\centering", r"\small", rf"\caption{{{caption.translate(_LATEX)}}}",
        rf"\begin{{tabular}}{{l{'c' * (len(head) - 1)}}}", r"\toprule",
        " & ".join(text.translate(_LATEX) for text in head) + r" \\", r"\midrule", *lines, r"\bottomrule",
        r"\end{tabular}", r"\end{table}", ""])


def _markdown(head: Sequence[str], rows: Rows, caption: str) -> str:
    marks = {"best": "**%s**", "second": "*%s*", "": "%s"}

    def escape(text: str) -> str:
        return "".join(f"\\{c}" if c in r"\|*_`<>[]" else c for c in text).replace("\n", " ")

    lines = [[marks[mark] % escape(text) for text, mark in row] for row in rows]
    body = "\n".join(f"| {' | '.join(line)} |" for line in [[escape(h) for h in head],
                                                            ["---", *["---:"] * (len(head) - 1)], *lines])
    return f"{body}\n\n{escape(caption)}\n"


def _html(head: Sequence[str], rows: Rows, caption: str) -> str:
    marks = {"best": "<strong>%s</strong>", "second": "<u>%s</u>", "": "%s"}
    lines = ["<tr>" + "".join(f"<td>{marks[mark] % html.escape(text)}</td>" for text, mark in row) + "</tr>"
             for row in rows]
    # An empty cell in the corner heads nothing.
    heads = "".join(f"<th>{html.escape(text)}</th>" if text else "<td></td>" for text in head)
    return "\n".join(["<table>", *([f"<caption>{html.escape(caption)}</caption>"] if caption else []),
                      f"<thead><tr>{heads}</tr></thead>", "<tbody>", *lines, "</tbody>", "</table>", ""])


_WRITERS: dict[str, Callable[[Sequence[str], Rows, str], str]] = {"text": _plain, "latex": _latex,
                                                                     "markdown": _markdown, "html": _html}
