"""The commands of the page on metrics and tuning, run on a table of six sites, as a new user would."""

import re
import sys
from pathlib import Path

import pandas as pd
import pytest

from docs.visits import visits
from resolvent import cli
from resolvent.comparisons.runs.record import read_record

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.nightly
def test_commands_of_the_page(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "tuning.md").read_text("utf-8")
    for name, text in zip(("mine", "search"), re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL),
                          strict=True):
        (tmp_path / f"{name}.yaml").write_text(text)
    visits(0, 240).dropna().to_csv(tmp_path / "visits.csv", index=False)
    monkeypatch.chdir(tmp_path)
    for command in re.findall(r"^resolvent (.*?)(?:\s+#.*)?$", page, re.MULTILINE):
        monkeypatch.setattr(sys, "argv", ["resolvent", *command.split()])
        cli.main()
    assert read_record(tmp_path / "runs" / "mine").plain()["score"] == "roc_auc"
    assert "FedProx: solver.learning_rate = " in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "runs" / "tuned" / "trials.csv")
    assert table["method"].value_counts().to_dict() == {"alone": 8, "FedAvg": 8, "FedProx": 8}
    assert (tmp_path / "runs" / "compared" / "report.html").is_file()
