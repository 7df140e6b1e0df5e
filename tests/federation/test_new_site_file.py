"""``resolvent party new``: a file with every limit and its reason, which ``party check`` accepts."""

import json
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from federation.test_federation_cli import EXPERIMENT
from resolvent.cli import federation as commands
from resolvent.errors import InputError
from resolvent.federation.protocol.files import Approval, SiteFile, read_site
from resolvent.federation.protocol.limits import WHY, Limits
from resolvent.federation.site.check import check_site


@pytest.fixture
def folder(tmp_path):
    """A hospital's folder, with its table and the lead's experiment."""
    rng = np.random.default_rng(0)
    age = rng.normal(50, 12, 60)
    pd.DataFrame({"age": age, "ward": rng.choice(["east", "west"], 60),
                  "ill": np.where(age > 50, "yes", "no")}).to_csv(tmp_path / "patients.csv", index=False)
    (tmp_path / "mine.yaml").write_text(EXPERIMENT)
    return tmp_path


def answering(monkeypatch, *answers):
    """A terminal at which a person gives these answers; returns the questions."""
    questions, left = [], iter(answers)

    def answer(question):
        questions.append(question)
        return next(left)

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    return questions


def test_a_file_without_answers_has_every_default_with_its_reason(folder, capsys):
    path = folder / "site.yaml"
    commands.party("new", site=path, table="patients.csv", yes=True)
    site = read_site(path)
    assert site == SiteFile(table=str(folder / "patients.csv"), approval=Approval(), folder=folder)
    text = path.read_text()
    for limit in fields(Limits):
        assert f"  # {WHY[limit.name]}\n" in text
        assert f"  {limit.name}: " in text or f"  # {limit.name}:\n" in text
    for item in fields(SiteFile):
        assert item.name == "folder" or f"\n{item.name}: " in text or f"\n# {item.name}: " in text or (
            item.name == "limits")
    assert "party check" in capsys.readouterr().out
    lines = [*check_site(site, "aachen", folder / "mine.yaml")]
    assert lines[-1] == "Nothing has left the site."
    # party check shows every limit that is in force, with its reason.
    assert [line.split()[0] for line in lines if any(line.endswith(f": {why}") for why in WHY.values())] == [*WHY]


def test_a_line_without_its_sign_is_a_setting(folder):
    """What the comments show can be used as it stands."""
    path = folder / "site.yaml"
    commands.party("new", site=path, table="patients.csv", yes=True)
    text = path.read_text()
    for line, changed in (('# separator: "auto"', {"separator": "auto"}), ("# columns: null", {"columns": None})):
        assert line in text
        path.write_text(text.replace(line, line.removeprefix("# ")))
        assert read_site(path) == SiteFile(**{"table": str(folder / "patients.csv"), "approval": Approval(),
                                              "folder": folder, **changed})
    path.write_text(text.replace("  # max_rounds:", "  max_rounds: 7"))
    assert read_site(path).limits == Limits(max_rounds=7)


def test_the_answers_of_a_person_are_the_limits(folder, monkeypatch, capsys):
    questions = answering(monkeypatch, "patients.csv", "ill", "age, ward", "perhaps", "no", "", "many", "2000", "")
    commands.party("new", site=folder / "site.yaml")
    site = read_site(folder / "site.yaml")
    assert site.approval is None
    assert site.limits == Limits(labels=("ill",), features=("age", "ward"), max_total_rounds=2000)
    shown = capsys.readouterr().out
    assert "60 rows; columns: age, ward, ill" in shown
    assert "'perhaps' is not an answer: yes or no" in shown
    assert "'many' is not a number of rounds" in shown
    assert len(questions) == 9


def test_flags_answer_without_a_terminal(folder, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match="party new needs --table"):
        commands.party("new")
    commands.party("new", table="patients.csv", set=(("limits.min_cell=10", "limits.labels=[ill]"), (
        "approval={leads: [a@b.org]}", "test=0.3", "columns={age: alter}")))
    site = read_site(folder / "site.yaml")
    assert (site.test, site.approval, site.columns) == (0.3, Approval(leads=("a@b.org",)), {"age": "alter"})
    assert site.limits == Limits(min_cell=10, labels=("ill",))


@pytest.mark.parametrize(("changes", "message"), [
    (("limits.min_cel=3",), r"site\.yaml:\d+: limits\.min_cel: unknown key"),
    (("limits.min_cell=0",), r"site\.yaml:\d+: limits: Limits\(min_cell=0\)"), (("tables=1",), "unknown key"),
    (("test=2",), "must sum to less than 1")])
def test_a_wrong_setting_writes_no_file(changes, message, folder):
    with pytest.raises(InputError, match=message):
        commands.party("new", site=folder / "site.yaml", table="patients.csv", set=(changes,), yes=True)
    assert sorted(path.name for path in folder.iterdir()) == ["mine.yaml", "patients.csv"]


def test_a_file_is_never_overwritten(folder, monkeypatch):
    path = folder / "site.yaml"
    path.write_text("table: mine.csv\n")
    for yes in (True, False):
        with pytest.raises(InputError, match="exists, and is not overwritten"):
            commands.party("new", site=path, table="patients.csv", yes=yes)
    assert path.read_text() == "table: mine.csv\n"
    with pytest.raises(InputError, match="there is no file"):
        commands.party("new", site=folder / "other.yaml", table="absent.csv", yes=True)
    with pytest.raises(InputError, match="party check needs --kit"):
        commands.party("check", site=path)


def test_names_with_signs_of_yaml_are_read_back(folder):
    """A name with a colon, a quotation mark or a line sign is a name."""
    names = ["a: b", "#x", "it's", 'say "y"', "é"]
    commands.party("new", site=folder / "site.yaml", table="patients.csv", yes=True,
                   set=((f"limits.features={json.dumps(names)}",),))
    assert read_site(folder / "site.yaml").limits.features == tuple(names)
