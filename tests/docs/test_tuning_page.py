"""The commands of the pages on metrics and on tuning, run on a table of six sites, as a new user would."""

import re
import sys
from pathlib import Path

import pandas as pd
import pytest

from docs.visits import visits
from resolvent import cli
from resolvent.comparisons.runs.summary import read_summary

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", ["metrics", "tuning"])
def test_commands_of_the_page(name, tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    (tmp_path / "mine.yaml").write_text(re.search(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1])
    visits(0, 240).dropna().to_csv(tmp_path / "visits.csv", index=False)
    monkeypatch.chdir(tmp_path)
    for command in re.findall(r"^resolvent (.*?)(?:\s+#.*)?$", page, re.MULTILINE):
        monkeypatch.setattr(sys, "argv", ["resolvent", *command.split()])
        cli.main()
    if name == "metrics":
        assert read_summary(tmp_path / "runs" / "mine")["score"] == "roc_auc"
        return
    assert "FedProx: solver.learning_rate = " in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "runs" / "tuned" / "trials.csv")
    assert table["method"].value_counts().to_dict() == {"alone": 8, "FedAvg": 8, "FedProx": 8}
    assert (tmp_path / "runs" / "compared" / "report.html").is_file()
