"""The commands of the pages on using a model, run on a table of six sites, as a new user would."""

import re
import shlex
import sys
from pathlib import Path

import pandas as pd
import pytest

from docs.visits import visits
from resolvent import cli

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_commands_of_the_page(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "predict.md").read_text("utf-8").replace("<!-- not run -->\n```bash\nresolvent", "")
    (tmp_path / "mine.yaml").write_text(re.search(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1])
    visits(0, 240).to_csv(tmp_path / "visits.csv", index=False)
    visits(1, 30).drop(columns=["hospital", "outcome"]).to_csv(tmp_path / "new.csv", index=False)
    visits(1, 60).to_csv(tmp_path / "later.csv", index=False)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^resolvent (.*?)(?:\s+#.*)?$", page, re.MULTILINE)
    commands = [command for command in commands if "kits/" not in command]
    assert [command.replace("model ", "").split()[0] for command in commands] == [
        "run", "predict", "evaluate", "refit", "calibrate", "explain", "calibrate"]
    for command in commands:
        monkeypatch.setattr(sys, "argv", ["resolvent", *shlex.split(command)])
        cli.main()
    printed = capsys.readouterr().out
    assert "Predictions for 30 rows: predictions.csv" in printed.splitlines()
    assert any(line.split()[:2] == ["brier", "score"] for line in printed.splitlines())
    assert "trained on all 40 rows of Essen" in " ".join(printed.split())
    assert "Calibration, measured on test rows" in printed
    assert list((tmp_path / "runs" / "mine" / "models").glob("*/explanation.json"))
    table = pd.read_csv(tmp_path / "predictions.csv")
    assert set(table["prediction"]) == {"ill", "well"}
    assert len(table) == 30
