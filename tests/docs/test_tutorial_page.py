"""The tutorial from a table to a decision: its program and its commands, as a reader runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from resolvent import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
COMMANDS = re.findall(r"^resolvent ((?:check|run|show|model (?:refit|predict|evaluate)) .*)$", PAGE, re.MULTILINE)
OUTPUTS = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def block(language):
    return re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the tables and the experiment of the page."""
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python"), "tables.py", "exec"), {})
    (tmp_path / "mine.yaml").write_text(block("yaml"))
    return tmp_path


@pytest.mark.when_changed
def test_commands_of_the_page_in_a_small_setting(folder, monkeypatch, capsys):
    """Two rounds and one seed, training alone without its search."""
    assert [command.replace("model ", "").split()[0] for command in COMMANDS] == ["check", "run", "refit", "predict",
                                                                                  "evaluate"]
    small = ["--rounds", "2", "--set", "seeds=1", "algorithms={alone: local, FedAvg: fedavg}", "diagnostics=[]"]
    for command in COMMANDS:
        arguments = command.split()
        monkeypatch.setattr(sys, "argv", ["resolvent", *arguments, *(small if arguments[0] == "run" else ())])
        cli.main()
    printed = capsys.readouterr().out
    assert "Next: resolvent show runs/mine" in printed
    assert "24 rows with labels" in printed
    assert len(pd.read_csv(folder / "predictions.csv")) == len(pd.read_csv(folder / "later.csv")) == 24


@pytest.mark.slow
@pytest.mark.nightly
def test_outputs_of_the_page_are_true(folder):
    """Compared without the digits, which depend on the versions of the compiler and of the machine."""
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    printed = (folder / "tumours.csv").read_text()
    for command in COMMANDS:
        printed += subprocess.run([sys.executable, "-m", "resolvent.cli", *command.split()], env=environment,
                                  check=True, capture_output=True, text=True).stdout
    printed += (folder / "predictions.csv").read_text()
    lines = {shape(line) for line in printed.splitlines()}
    for line in "\n".join(OUTPUTS).splitlines():
        parts = [shape(part) for part in line.split("...")]
        assert any(all(part in known for part in parts) for known in lines), line


def shape(line):
    """A line without numbers, signs and the widths of columns."""
    return re.sub(r"[\s\d.,e%+−─-]+", " ", line).strip()


def test_pictures_of_the_page_are_small():
    pictures = re.findall(r"\]\((images/[\w-]+\.png)\)", PAGE)
    assert set(pictures) == {f"images/tutorial-{name}.png" for name in ("table", "report", "predictions")}
    assert all((ROOT / "docs" / picture).stat().st_size < 200_000 for picture in pictures)
