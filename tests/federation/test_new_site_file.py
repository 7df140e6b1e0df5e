"""``resolvent site new``: a short file that loads, and ``site check``, which explains every setting and limit."""

import json
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest

from federation.harness import EXPERIMENT
from resolvent.cli import site as commands
from resolvent.comparisons.experiment.docstrings import help_of
from resolvent.errors import InputError
from resolvent.federation.protocol.files import Approval, SiteFile, read_site
from resolvent.federation.protocol.limits import LIMITS, Limits
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


def test_the_file_has_about_ten_lines_and_site_check_explains_every_setting(folder, capsys):
    """The file has what only a person can know; ``site check`` has every setting, its value, its meaning and reason."""
    path = folder / "site.yaml"
    commands.new("patients.csv", path)
    site = read_site(path)
    assert site == SiteFile(table=str(folder / "patients.csv"), approval=Approval(), folder=folder)
    text = path.read_text()
    assert [line for line in text.splitlines() if not line.startswith(("# ", "  # ")) or line.endswith(": null")] == [
        'table: "patients.csv"', "# columns: null", 'profile: "clinic"', "approval: {}", "limits:", "  # labels: null",
        "  # features: null"]
    assert 'It has 60 rows and the columns ["age", "ward", "ill"].' in " ".join(text.replace("#", "").split())
    assert "resolvent site check KIT" in capsys.readouterr().out
    lines = [*check_site(site, "aachen", None)]
    assert lines[-1] == "Nothing has left the site."
    meanings = help_of(SiteFile) | {name: f"{limit.meaning}. Reason: {limit.why}" for name, limit in LIMITS.items()}
    shown = {line.split()[0]: line for line in lines if line.startswith("  ")
             and line.endswith(f": {meanings.get(line.split()[0])}")}
    assert [*shown] == [item.name for item in fields(SiteFile) if item.name not in ("folder", "limits")] + [*LIMITS]
    assert shown["min_cell"].startswith("  min_cell 5: ")
    other = [*check_site(replace(site, limits=Limits(min_cell=9)), "aachen", None)]
    assert [line.split(":")[0] for line in other if "*:" in line] == ["  min_cell 9*"]


def test_a_line_without_its_sign_is_a_setting(folder):
    """What the comments show can be used as it stands."""
    path = folder / "site.yaml"
    commands.new("patients.csv", path)
    text = path.read_text()
    for line in ("# columns: null", "  # labels: null", "  # features: null"):
        assert line in text
        path.write_text(text.replace(line, line.replace("# ", "")))
        assert read_site(path) == SiteFile(table=str(folder / "patients.csv"), approval=Approval(), folder=folder)
    path.write_text(text.replace("  # labels: null", "  labels: [ill]"))
    assert read_site(path).limits == Limits(labels=("ill",))


def test_options_are_settings_of_the_file(folder, monkeypatch):
    monkeypatch.chdir(folder)
    commands.new("patients.csv", set=(("limits.min_cell=10", "limits.labels=[ill]"), (
        "approval={leads: [a@b.org]}", "test=0.3", "columns={years: age}")))
    site = read_site(folder / "site.yaml")
    assert (site.test, site.approval, site.columns) == (0.3, Approval(leads=("a@b.org",)), {"years": "age"})
    assert site.limits == Limits(min_cell=10, labels=("ill",))
    commands.new("patients.csv", folder / "other.yaml", set=(("approval=null",),))
    assert read_site(folder / "other.yaml").approval is None


def test_a_name_of_a_column_stays_in_the_comment(folder):
    """A name with a sign that ends a line in YAML does not become a setting."""
    names = ["age\u2028limits: {min_cell: 1}", "b\x85test: 0.9", "größe"]
    pd.DataFrame([[1.5, 2.5, 3.5]] * 30, columns=names).to_parquet(folder / "rows.parquet")
    commands.new("rows.parquet", folder / "site.yaml")
    site = read_site(folder / "site.yaml")
    assert (site.limits, site.test) == (Limits(), 0.2)
    assert "min_cell: 1}" in (folder / "site.yaml").read_text()


@pytest.mark.parametrize(("changes", "message"), [
    (("limits.min_cel=3",), r"site\.yaml:\d+: limits\.min_cel: unknown key"),
    (("limits.min_cell=0",), r"site\.yaml:\d+: limits: Limits\(min_cell=0\)"), (("tables=1",), "unknown key"),
    (("test=2",), "must sum to less than 1"), (("columns={age: alter}",), "the table has no column 'alter'"),
    (("encoding=nothing",), "encoding='nothing' is not known")])
def test_a_wrong_setting_writes_no_file(changes, message, folder):
    with pytest.raises(InputError, match=message):
        commands.new("patients.csv", folder / "site.yaml", set=(changes,))
    assert sorted(path.name for path in folder.iterdir()) == ["mine.yaml", "patients.csv"]


def test_a_file_is_never_overwritten(folder):
    path = folder / "site.yaml"
    path.write_text("table: mine.csv\n")
    with pytest.raises(InputError, match="exists, and is not overwritten"):
        commands.new("patients.csv", path)
    assert path.read_text() == "table: mine.csv\n"
    with pytest.raises(InputError, match="there is no file"):
        commands.new("absent.csv", folder / "other.yaml")


def test_names_with_signs_of_yaml_are_read_back(folder):
    """A name with a colon, a quotation mark or a line sign is a name."""
    names = ["a: b", "#x", "it's", 'say "y"', "é"]
    commands.new("patients.csv", folder / "site.yaml",
                   set=((f"limits.features={json.dumps(names)}",),))
    assert read_site(folder / "site.yaml").limits.features == tuple(names)
