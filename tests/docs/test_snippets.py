"""Every Python block of the documentation runs: the blocks of a page in order, in one namespace, in an empty folder.

A block after the line ``<!-- not run -->`` is only compiled. Experiment files in YAML blocks are checked.
"""

import re
import sys
import types
from pathlib import Path
from typing import NamedTuple

import pytest

from resolvent.study.experiment import ExperimentFile

ROOT = Path(__file__).parents[2]
PAGES = [p for p in (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
         if p.is_file()]
FENCE = re.compile(r"(?P<skip><!-- not run -->\n)?^```(?P<language>python|yaml)\n(?P<code>.*?)^```$",
                   re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    line: int
    code: str
    runs: bool


def blocks(page: Path, language: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(text.count("\n", 0, m.start("code")), m["code"], m["skip"] is None)
            for m in FENCE.finditer(text) if m["language"] == language]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Pages whose blocks train for more than three seconds, next to those that a newcomer reads first.
NIGHTLY = {"docs/api/portfolio.md", "docs/data.md", "docs/decisions.md", "docs/diagnostics.md", "docs/ditto.md",
           "docs/metrics.md", "docs/scaling.md", "docs/scikit-learn.md", "docs/theory.md", "docs/tuning.md",
           "docs/unification.md"}
WITH_PYTHON = [pytest.param(p, id=name_of(p), marks=pytest.mark.nightly if name_of(p) in NIGHTLY else ())
               for p in PAGES if blocks(p, "python")]
EXPERIMENTS = [pytest.param(b, id=f"{name_of(p)}:{b.line}") for p in PAGES for b in blocks(p, "yaml")
               if re.search(r"^algorithms:", b.code, re.MULTILINE)]


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    if page.name == "pytorch.md":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("snippets")
    monkeypatch.setitem(sys.modules, "snippets", module)
    for block in blocks(page, "python"):
        # With these blank lines a traceback has the line numbers of the page.
        code = compile("\n" * block.line + block.code, str(page), "exec")
        if block.runs:
            exec(code, module.__dict__)


@pytest.mark.parametrize("block", EXPERIMENTS)
def test_experiment_files_are_valid(block, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(block.code, encoding="utf-8")
    ExperimentFile.load(str(path))


def test_every_block_is_tested():
    for page in PAGES:
        fences = re.findall(r"^\s*```(?:python|yaml)\b.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == len(blocks(page, "python")) + len(blocks(page, "yaml")), name_of(page)
