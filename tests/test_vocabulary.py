"""Retired names and phrases do not come back. The glossary, docs/glossary.md, has the names to use."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = sorted(p for room in ("src", "tests", "benchmarks") for p in (ROOT / room).rglob("*.py") if p != Path(__file__))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = [p for p in CODE + PAGES if p.is_file()]

# Words that say nothing as the name of a variable, a parameter or an attribute.
RETIRED_WORDS = {
    "given", "found", "told", "kept", "came", "seen", "here", "there", "what", "who", "how", "where", "place", "one",
    "some", "all_", "own", "apart", "now", "rest", "most", "least", "spare", "speaks",
}

# Names of the library that were replaced.
RETIRED_NAMES = {
    "Averaged", "Averaging", "Centralised", "Drawn", "Elementary", "Indicator0", "Members", "NeverWorse", "OneModel",
    "Optax", "Personalised", "Remembered", "SelfTuned", "breakdown", "deployed", "iterate_by_party", "never_worse",
    "offer", "own_iterate", "partial_work", "party_weights", "reads_rows", "remembers", "replies_per_bad", "reply_like",
    "with_iterate", "with_mean", "with_shared_iterate",
}

PHRASES = [
    "as many as", "as told", "are told", "beside", "by hand or left to hope", "by itself", "comes to rest", "deal out",
    "dealt", "deals out", "go on with", "goes on with", "gone on with", "in place of", "is given away", "is told",
    "knows of", "lay out", "lays out", "nobody", "of its own accord", "of small cohorts", "share out", "shared out",
    "shares out", "so many", "speaks for", "was told", "what is found", "what is given", "what was found",
    "what was given", "whatever it is", "where there are none", "where there is none", "who comes", "yardstick",
]
# In comments a phrase can continue on the next line, after a "#".
PATTERN = re.compile(r"\b(?:" + "|".join(r"\s+(?:#\s*)?".join(phrase.split()) for phrase in PHRASES) + r")\b",
                     re.IGNORECASE)

# (file, name or phrase) where the word is a term of its own.
ALLOWED: set[tuple[str, str]] = set()


def defined_names(path):
    """(line, name, whether it is a variable, a parameter or an attribute) of everything that a file defines."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name, False
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg, True
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id, True
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr, True


def retired_names(path):
    return [(line, name) for line, name, is_variable in defined_names(path)
            if name in RETIRED_NAMES or (is_variable and name.lstrip("_").lower() in RETIRED_WORDS)]


def retired_phrases(path):
    text = path.read_text("utf-8")
    return [(text.count("\n", 0, match.start()) + 1, " ".join(match[0].lower().split()))
            for match in PATTERN.finditer(text)]


def label(path):
    return str(path.relative_to(ROOT))


def listed(path, offenders):
    return [f"{label(path)}:{line}: {word}" for line, word in offenders if (label(path), word) not in ALLOWED]


def test_retired_names_are_not_defined():
    assert [line for path in CODE for line in listed(path, retired_names(path))] == []


def test_retired_phrases_are_not_used():
    assert [line for path in TEXTS for line in listed(path, retired_phrases(path))] == []


def test_retired_words_are_recognised(tmp_path):
    path = tmp_path / "example.py"
    path.write_text("# An example that is\n# gone on\n# with.\n_LEAST = 5\ndef place(who): return jnp.where(who)\n")
    assert retired_names(path) == [(4, "_LEAST"), (5, "who")]
    assert [line for line, _ in retired_phrases(path)] == [2]
