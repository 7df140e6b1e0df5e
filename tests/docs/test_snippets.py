"""Every Python block of the documentation runs: the blocks of a page in order, in one namespace, in an empty folder.

A block after the line ``<!-- not run -->`` is only compiled. The text after ``<!-- its output -->`` is what the block
before prints. Experiment files in YAML blocks are checked.
"""

import contextlib
import importlib.util
import io
import re
import sys
import types
from pathlib import Path
from typing import NamedTuple

import pytest

from docs.outside_modules import ROOT, name_of
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.study.study_file import read_study
from resolvent.errors import InputError

PAGES = [p for p in (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md",
                     ROOT / "src" / "xla_cpu_rewrites" / "README.md",
                     ROOT / "experiments" / "portfolio" / "README.md")
         if p.is_file()]
FENCE = re.compile(r"(?P<skip><!-- not run -->\n)?^```(?P<language>python|yaml)\n(?P<code>.*?)^```$",
                   re.MULTILINE | re.DOTALL)


OUTPUT = re.compile(r"\n<!-- its output -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    line: int
    code: str
    runs: bool
    output: str | None  # what it prints, if the page has it


def blocks(page: Path, language: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [(m, OUTPUT.match(text, m.end() + 1)) for m in FENCE.finditer(text) if m["language"] == language]
    return [Block(text.count("\n", 0, m.start("code")), m["code"], m["skip"] is None, output and output[1])
            for m, output in found]


def compiled(block: Block, page: Path) -> types.CodeType:
    """With these blank lines a traceback has the line numbers of the page."""
    return compile("\n" * block.line + block.code, str(page), "exec")


# Pages whose blocks train for more than a second.
SLOW = {"CONTRIBUTING.md", "README.md", "experiments/portfolio/README.md", *(f"docs/{name}.md" for name in (
    "api/algorithm", "api/asynchronous", "api/own_parts", "api/participation", "api/solvers",
    "coming-from", "data", "decisions", "experiments", "federation", "index", "predict", "privacy",
    "regression", "research", "scaling", "theory", "tuning"))}
WITH_PYTHON = [pytest.param(p, id=name_of(p), marks=pytest.mark.when_changed(name_of(p)) if name_of(p) in SLOW else ())
               for p in PAGES if blocks(p, "python")]
EXPERIMENTS = {f"{name_of(p)}:{b.line}": b.code for p in PAGES for b in blocks(p, "yaml")
               if re.search(r"^algorithms:", b.code, re.MULTILINE)}


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("snippets")
    monkeypatch.setitem(sys.modules, "snippets", module)
    needs_torch = [block for block in blocks(page, "python") if "import torch" in block.code]
    left_out = () if importlib.util.find_spec("torch") else needs_torch
    for block in blocks(page, "python"):
        code = compiled(block, page)
        if block.runs and block not in left_out:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(code, module.__dict__)
            assert block.output in (None, printed.getvalue())
    if left_out:
        pytest.skip("the other blocks of this page run; those with PyTorch need it")


@pytest.mark.when_changed("docs/coming-from.md")
def test_every_call_of_a_table_of_calls_runs(tmp_path, monkeypatch):
    """The second column of the table after ``<!-- calls -->``."""
    page = ROOT / "docs/coming-from.md"
    monkeypatch.chdir(tmp_path)
    names, failed = {}, []
    (block,) = [block for block in blocks(page, "python") if "visits = " in block.code]
    exec(compiled(block, page), names)
    table = page.read_text(encoding="utf-8").split("<!-- calls -->")[1].split("\n##")[0]
    calls = re.findall(r"\| `([^`]*)` \|$", table, re.MULTILINE)
    for call in calls:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                eval(call, names)
        except Exception as error:  # every call that fails is named
            failed.append(f"{call}: {error}")
    assert failed == []
    assert len(calls) >= 30


def test_experiment_files_are_valid(tmp_path):
    path, refused = tmp_path / "mine.yaml", []
    for name, code in EXPERIMENTS.items():
        path.write_text(code, encoding="utf-8")
        try:
            assert read_study(str(path)) or ExperimentFile.load(str(path))
        except InputError as error:
            refused.append(f"{name}: {error}")
    assert refused == []
    assert len(EXPERIMENTS) > 5


def test_every_block_is_tested_and_compiles():
    for page in PAGES:
        for block in blocks(page, "python"):
            compiled(block, page)
        fences = re.findall(r"^\s*```(?:python|yaml)\b.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == len(blocks(page, "python")) + len(blocks(page, "yaml")), name_of(page)
